//! Translates ICMP errors: their own addresses, and the packet that each quotes.
//!
//! An error returns to the sender of the quoted packet, which knows that packet with other addresses and ports.
//!
//! **Invariant.** As for all [translations](super), wrong checksums stay equally wrong, including quoted ones. A quoted packet is truncated
//! by design (RFC 792: 8 bytes after the IP header), so its checksum is only updated if it is there.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::layout::{Addresses, Layout};
use super::{packet_of, ports_of};
use crate::flow::Translation;
use crate::wire::{checksum, icmpv4, icmpv6, set_word, word};

/// ICMP and ICMPv6 have their checksum at the same offset, and their errors quote after the same 8 bytes.
const CHECKSUM: usize = icmpv4::field::CHECKSUM;
const QUOTED: usize = icmpv4::HEADER_LEN;

/// Writes new addresses, source and destination, into an ICMP error, and new addresses and ports into the quoted packet. `quoted` is in the
/// quoted packet's direction. Updates the checksums of both. Returns false, without changes, if the frame is no such error, if an address
/// is of another family, or if the quoted packet's headers up to its ports are incomplete.
///
/// `frame` and `wire_len` are as in [`translate`](super::translate).
#[cold]
#[inline(never)]
pub fn translate_error(frame: &mut [u8], wire_len: usize, outer: (IpAddr, IpAddr), quoted: &Translation) -> bool {
    try_translate(frame, wire_len, outer, quoted).is_some()
}

fn try_translate(frame: &mut [u8], wire_len: usize, (src, dst): (IpAddr, IpAddr), quoted: &Translation) -> Option<()> {
    let (around, within) = (Addresses::new(src, dst)?, Addresses::new(quoted.src, quoted.dst)?);
    if src.is_ipv4() != quoted.src.is_ipv4() {
        return None;
    }
    let packet = packet_of(frame, wire_len, src)?;
    let layout = Layout::of(packet, src).filter(|layout| is_error(layout, packet))?;
    let (message, body) = (layout.transport, layout.transport + QUOTED);
    let bytes = packet.get(body..)?;
    let inner = Layout::of(bytes, src).filter(|inner| inner.has_its_ports(bytes))?;
    // From here on nothing can fail.
    let ports = ports_of(quoted);
    layout.translate(packet, &around, ports);
    let change = inner.translate(&mut packet[body..], &within, ports);
    let sum = checksum::updated(word(packet, message + CHECKSUM), change);
    set_word(packet, message + CHECKSUM, sum);
    Some(())
}

/// Whether a packet is an ICMP error with a quoted packet.
fn is_error(layout: &Layout, packet: &[u8]) -> bool {
    use icmpv4::kind::{PARAMETER_PROBLEM, TIME_EXCEEDED, UNREACHABLE};
    packet.get(layout.transport).filter(|_| !layout.is_later).is_some_and(|&kind| match layout.protocol {
        protocol::ICMP if layout.is_v4 => matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM),
        protocol::ICMPV6 if !layout.is_v4 => kind < icmpv6::kind::FIRST_INFORMATIONAL,
        _ => false,
    })
}
