//! Translation of ICMP errors: of their own addresses, and of the packet that each quotes.
//!
//! An error goes back to the sender of the packet that it is about, who knows that packet with other addresses and ports.
//!
//! **Invariant.** As for all [translations](super): each of the checksums, the quoted ones too, is as wrong as it was. A quoted
//! packet is cut short by design (RFC 792: 8 bytes behind the IP header), so its checksum is updated where it is there.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::layout::{Addresses, Layout};
use super::{packet_of, ports_of};
use crate::flow::Translation;
use crate::wire::{checksum, icmpv4, icmpv6, set_word, word};

/// ICMP and ICMPv6 have their checksum at the same place, and errors of both quote behind the same 8 bytes.
const CHECKSUM: usize = icmpv4::field::CHECKSUM;
const QUOTED: usize = icmpv4::HEADER_LEN;

/// Writes other addresses, source and destination, into an ICMP error, and other addresses and ports into the packet that it
/// quotes: `quoted` is in the direction in which that one went. Updates the checksums of both. False, and nothing changed,
/// when the frame is no such error, the addresses are not all of its family, or the quoted packet's headers up to its ports
/// are not all there.
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
    // Nothing is in the way any more.
    let ports = ports_of(quoted);
    layout.translate(packet, &around, ports);
    let change = inner.translate(&mut packet[body..], &within, ports);
    let sum = checksum::updated(word(packet, message + CHECKSUM), change);
    set_word(packet, message + CHECKSUM, sum);
    Some(())
}

/// Whether a packet is an ICMP error that quotes another one.
fn is_error(layout: &Layout, packet: &[u8]) -> bool {
    use icmpv4::kind::{PARAMETER_PROBLEM, TIME_EXCEEDED, UNREACHABLE};
    packet.get(layout.transport).filter(|_| !layout.is_later).is_some_and(|&kind| match layout.protocol {
        protocol::ICMP if layout.is_v4 => matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM),
        protocol::ICMPV6 if !layout.is_v4 => kind < icmpv6::kind::FIRST_INFORMATIONAL,
        _ => false,
    })
}
