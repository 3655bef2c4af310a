//! Address translation of flows: its encoding in the map, and the program steps.
//!
//! ```text
//!   the flow has no translation                                           | done
//!   correct the transport's checksum                                        (XDP and tc programs differ)
//!   IPv4: add flow.addresses_change to the header's checksum
//!   the packet's addresses and ports = flow.source, flow.destination, flow.ports
//! ```
//!
//! An XDP program sees the whole packet as on a wire, and updates the transport's checksum itself:
//!
//! ```text
//!   UDP, checksum 0 (none)                                                | done
//!   add flow.addresses_change and flow.ports_change to the checksum
//!   UDP, checksum became 0: checksum = 0xffff
//! ```
//!
//! A tc program may see an unfinished checksum; see `tc/checksum.rs`.
//!
//! The checksum difference is equal for all packets of a flow, so the process computes it when it adds the flow. The programs always write
//! both addresses and both ports, also unchanged ones.

use std::net::IpAddr;

use super::flow_headers::{ETHERNET, HEADER, IPV4, IPV6, JUMBO_HEADER, need};
use super::flow_layout::{key, put, value};
use super::flow_place::Place::{self, Checksum, Drop, Finished, HasChecksum, TranslateV6, Translated};
use super::flow_stack::{DATA, IS_TRANSLATED, JUMBO, KEY, STACK, VALUE};
use super::instruction::Operation::{Add, And, ShiftRight, Xor};
use super::instruction::Test::{Differs, Equal};
use super::instruction::Width::{Double, Short, Word};
use super::instruction::{Assembler, Instruction};
use crate::Flow;
use crate::flow::Translation;
use crate::wire::checksum;

/// `BPF_F_MARK_MANGLED_0`: a checksum of 0 means none and stays 0; one that becomes 0 is written as 0xffff (RFC 768).
const MANGLED_ZERO: u16 = 1 << 5;
/// Offset of the checksum in the UDP and TCP headers.
const UDP_CHECKSUM: i32 = 6;
const TCP_CHECKSUM: i32 = 16;
/// Bytes of source and destination port.
const PORTS: i32 = 4;
/// An upper bound of the checksum's offset in a frame, for the verifier.
const PLACES: i32 = 128;

const LEN: usize = (value::LEN - value::TRANSLATION).cast_unsigned() as usize;

/// Encodes the translation part of a flow's value, from [`value::TRANSLATION`] on. `None` between address families, and for protocols other
/// than TCP and UDP.
pub(super) fn encode(flow: &Flow, translation: &Translation) -> Option<[u8; LEN]> {
    let Translation { src, dst, sport, dport } = *translation;
    let addresses = [flow.src, flow.dst, src, dst];
    let header = match flow.src {
        IpAddr::V4(_) if addresses.iter().all(IpAddr::is_ipv4) => IPV4,
        IpAddr::V6(_) if addresses.iter().all(IpAddr::is_ipv6) => IPV6,
        _ => return None,
    };
    let (checksum, flags) = match i32::from(flow.protocol) {
        libc::IPPROTO_UDP => (UDP_CHECKSUM, MANGLED_ZERO),
        libc::IPPROTO_TCP => (TCP_CHECKSUM, 0),
        _ => return None,
    };
    let checksum_at = u16::try_from(ETHERNET + header + checksum).ok()?;
    let [old_src, old_dst, new_src, new_dst] = addresses.map(octets);
    let [old_ports, new_ports] = [[flow.sport, flow.dport], [sport, dport]].map(|ports| ports.map(u16::to_be_bytes));
    let mut bytes = [0; LEN];
    let mut set = |offset: i16, part: &[u8]| put(&mut bytes, offset - value::TRANSLATION, part);
    set(value::SOURCE, &new_src);
    set(value::DESTINATION, &new_dst);
    set(value::PORTS, new_ports.as_flattened());
    set(value::ADDRESSES_CHANGE, &change([old_src, old_dst].as_flattened(), [new_src, new_dst].as_flattened()));
    set(value::PORTS_CHANGE, &change(old_ports.as_flattened(), new_ports.as_flattened()));
    set(value::CHECKSUM_AT, &checksum_at.to_ne_bytes());
    set(value::CHECKSUM_FLAGS, &flags.to_ne_bytes());
    Some(bytes)
}

/// Encodes an address; an IPv4 address uses the first four bytes.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the checksum difference from `old` to `new`: ~m + m' of RFC 1624, in network order. Programs load it and the checksum in the
/// same way, and a ones' complement sum is independent of byte order (RFC 1071 §2).
fn change(old: &[u8], new: &[u8]) -> [u8; 2] {
    let old = checksum::fold(checksum::sum(old));
    checksum::fold(checksum::sum(new) + u64::from(!old)).to_be_bytes()
}

/// Translates the packet if the flow on the stack has a translation. `transport` emits the correction of the transport's checksum.
pub(super) fn translate(program: &mut Assembler<Place>, transport: impl FnOnce(&mut Assembler<Place>)) {
    program.jump_if(IS_TRANSLATED, Equal, 0, Translated);
    transport(program);
    load_version(program, 3);
    program.jump_if(3, Equal, 6, TranslateV6);
    need(program, DATA, ETHERNET + IPV4 + PORTS, Drop);
    program.load(Short, 4, DATA, HEADER + 10);
    change_by(program, &[value::ADDRESSES_CHANGE]);
    program.store(Short, DATA, 4, HEADER + 10);
    for (from, to) in [(value::SOURCE, 12), (value::DESTINATION, 16), (value::PORTS, 20)] {
        program.load(Word, 1, STACK, VALUE + from);
        program.store(Word, DATA, 1, HEADER + to);
    }
    program.jump(Translated);
    program.place(TranslateV6);
    add_jumbo(program, DATA);
    need(program, 3, ETHERNET + IPV6 + PORTS, Drop);
    program.load(Word, 1, STACK, VALUE + value::PORTS);
    program.store(Word, 3, 1, HEADER + 40);
    need(program, DATA, ETHERNET + IPV6, Drop);
    for at in [0, 4, 8, 12] {
        for (from, to) in [(value::SOURCE, 8), (value::DESTINATION, 24)] {
            program.load(Word, 1, STACK, VALUE + from + at);
            program.store(Word, DATA, 1, HEADER + to + at);
        }
    }
    program.place(Translated);
}

/// Register 3 becomes the address in register `from`, moved by the length of the packet's jumbo header. Overwrites register 2.
fn add_jumbo(program: &mut Assembler<Place>, from: u8) {
    program.push([Instruction::copy(3, from)]);
    program.load(Double, 2, STACK, JUMBO);
    // Changes nothing; tells the verifier the bounds.
    program.apply(And, 2, JUMBO_HEADER);
    program.apply_register(Add, 3, 2);
}

/// Emits steps that load the IP version of the flow on the stack, 4 or 6, into a register.
pub(super) fn load_version(program: &mut Assembler<Place>, register: u8) {
    program.load(Word, register, STACK, KEY + key::KIND);
    program.apply(ShiftRight, register, 8);
}

/// Registers 3, 4 and 5 become the transport checksum's address, its value, and the flow's checksum flags. Jumps to `none` if the packet
/// has no checksum.
pub(super) fn load_checksum(program: &mut Assembler<Place>, none: Place) {
    program.load(Short, 2, STACK, VALUE + value::CHECKSUM_AT);
    program.apply(And, 2, PLACES - 1);
    program.push([Instruction::copy(5, DATA)]);
    program.apply_register(Add, 5, 2);
    add_jumbo(program, 5);
    need(program, 3, 2, Drop);
    program.load(Short, 4, 3, 0);
    program.load(Short, 5, STACK, VALUE + value::CHECKSUM_FLAGS);
    program.jump_if(4, Differs, 0, HasChecksum);
    program.jump_if(5, Differs, 0, none);
    program.place(HasChecksum);
}

/// Corrects the transport's checksum of a packet with a finished checksum.
pub(super) fn change_checksum(program: &mut Assembler<Place>) {
    load_checksum(program, Finished);
    change_by(program, &[value::ADDRESSES_CHANGE, value::PORTS_CHANGE]);
    program.jump_if(4, Differs, 0, Checksum);
    program.jump_if(5, Equal, 0, Checksum);
    program.push([Instruction::set(4, 0xffff)]);
    program.place(Checksum);
    program.store(Short, 3, 4, 0);
    program.place(Finished);
}

/// Adds the flow's differences at these offsets to the checksum in register 4: ~(~HC + ~m + m') of RFC 1624.
fn change_by(program: &mut Assembler<Place>, changes: &[i16]) {
    program.apply(Xor, 4, 0xffff);
    for change in changes {
        program.load(Short, 1, STACK, VALUE + change);
        program.apply_register(Add, 4, 1);
    }
    finish_sum(program, 4);
}

/// Turns the sum of words in a register, at most 32 bits, into the complement of their ones' complement sum (RFC 1071). Overwrites register 1.
pub(super) fn finish_sum(program: &mut Assembler<Place>, register: u8) {
    // Folds the carries, twice as the first fold may carry.
    for _ in 0..2 {
        program.push([Instruction::copy(1, register)]);
        program.apply(ShiftRight, 1, 16);
        program.apply(And, register, 0xffff);
        program.apply_register(Add, register, 1);
    }
    program.apply(Xor, register, 0xffff);
}

#[cfg(test)]
mod tests {
    use super::super::flow_layout::place;
    use super::*;
    use proptest::prelude::*;

    fn flow(protocol: u8, src: IpAddr, dst: IpAddr, sport: u16, dport: u16) -> Flow {
        Flow { src, dst, protocol, sport, dport, icmp: None }
    }

    /// Returns a number of the entry as a program loads it.
    fn short(bytes: &[u8], offset: i16) -> u16 {
        u16::from_ne_bytes(*bytes[place((offset - value::TRANSLATION).into())..].first_chunk().unwrap())
    }

    /// Returns a checksum, as loaded from a packet, after the instructions of [`change_by`].
    fn changed(checksum: u16, changes: &[u16]) -> u16 {
        let mut sum = changes.iter().map(|&change| u64::from(change)).sum::<u64>() + u64::from(checksum ^ 0xffff);
        for _ in 0..2 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap() ^ 0xffff
    }

    fn from_packet(checksum: u16) -> u16 {
        u16::from_ne_bytes(checksum.to_be_bytes())
    }

    fn addresses(bytes: [[u8; 16]; 4], is_v4: bool) -> [IpAddr; 4] {
        bytes.map(|bytes| if is_v4 { <[u8; 4]>::try_from(&bytes[..4]).unwrap().into() } else { bytes.into() })
    }

    proptest! {
        #[test]
        fn a_checksum_that_is_changed_is_the_one_that_is_computed_anew(
            bytes: [[u8; 16]; 4], ports: [u16; 4], is_v4: bool, is_udp: bool, stays in 0..4u8, rest: [u8; 16], seed: u16,
        ) {
            let [src, dst, mut new_src, mut new_dst] = addresses(bytes, is_v4);
            // A Service's requests change only the destination, its replies only the source.
            if stays & 1 != 0 { new_src = src }
            if stays & 2 != 0 { new_dst = dst }
            let protocol = if is_udp { 17 } else { 6 };
            let translation = Translation { src: new_src, dst: new_dst, sport: ports[2], dport: ports[3] };
            let entry = encode(&flow(protocol, src, dst, ports[0], ports[1]), &translation).unwrap();
            let changes = [short(&entry, value::ADDRESSES_CHANGE), short(&entry, value::PORTS_CHANGE)];
            let segment = |ports: [u16; 2]| [ports.map(u16::to_be_bytes).as_flattened(), &rest[..]].concat();
            let before = checksum::transport(src, dst, protocol, &segment([ports[0], ports[1]]));
            let after = checksum::transport(new_src, new_dst, protocol, &segment([ports[2], ports[3]]));
            prop_assert_eq!(changed(from_packet(before), &changes), from_packet(after));
            // The IPv4 header's checksum covers the addresses, too.
            let header = |src, dst| checksum::internet(&[&seed.to_be_bytes(), &[0x45, 6], &octets(src), &octets(dst)]);
            let (before, after) = (header(src, dst), header(new_src, new_dst));
            prop_assert_eq!(changed(from_packet(before), &changes[..1]), from_packet(after));
            // An unfinished checksum is the sum over the pseudo-header, without complement. The kernel adds to it.
            let unfinished = |src, dst| !checksum::transport(src, dst, protocol, &[]);
            let sum = u64::from(from_packet(unfinished(src, dst))) + u64::from(changes[0]);
            prop_assert_eq!(checksum::fold(sum), from_packet(unfinished(new_src, new_dst)));
        }
    }

    #[test]
    fn every_checksum_changes_as_if_computed_anew_also_to_0_and_from_0() {
        let [old, new] = [[10, 96, 0, 10], [10, 244, 1, 7]].map(IpAddr::from);
        let src = IpAddr::from([10, 244, 1, 2]);
        let entry = encode(&flow(17, src, old, 40_000, 53), &Translation { src, dst: new, sport: 40_000, dport: 5353 });
        let entry = entry.unwrap();
        let changes = [short(&entry, value::ADDRESSES_CHANGE), short(&entry, value::PORTS_CHANGE)];
        let mut reached = [false; 2];
        for word in 0..=u16::MAX {
            let segment = |port: u16| [40_000, port, word].map(u16::to_be_bytes).as_flattened().to_vec();
            let before = checksum::transport(src, old, 17, &segment(53));
            let after = checksum::transport(src, new, 17, &segment(5353));
            assert_eq!(changed(from_packet(before), &changes), from_packet(after), "{before:#06x}");
            reached[0] |= before == 0;
            reached[1] |= after == 0;
        }
        assert_eq!(reached, [true; 2]);
    }

    #[test]
    fn a_translation_is_encoded_as_the_programs_read_it() {
        let [src, dst] = [[10, 0, 0, 1], [10, 96, 0, 10]].map(IpAddr::from);
        let new = Translation { src, dst: [10, 0, 0, 2].into(), sport: 0x1234, dport: 0x5678 };
        let bytes = encode(&flow(6, src, dst, 0x1234, 80), &new).unwrap();
        assert_eq!((&bytes[..4], &bytes[16..20]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert_eq!(bytes[32..36], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!((short(&bytes, value::CHECKSUM_AT), short(&bytes, value::CHECKSUM_FLAGS)), (50, 0));
        let bytes = encode(&flow(17, src, dst, 0x1234, 80), &new).unwrap();
        assert_eq!((short(&bytes, value::CHECKSUM_AT), short(&bytes, value::CHECKSUM_FLAGS)), (40, 0x20));
        let [src, dst, new_dst] = ["fd00::1", "fd00:96::10", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap());
        let new = Translation { src, dst: new_dst, sport: 1, dport: 2 };
        let checksum_at = |protocol| short(&encode(&flow(protocol, src, dst, 1, 2), &new).unwrap(), value::CHECKSUM_AT);
        assert_eq!([6, 17].map(checksum_at), [70, 60]);
    }

    #[test]
    fn what_the_programs_cannot_translate_is_no_flow_of_the_map() {
        let [four, six] = ["10.0.0.1", "fd00::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let to = |src, dst| Translation { src, dst, sport: 1, dport: 2 };
        assert_eq!(encode(&flow(6, four, four, 1, 2), &to(four, six)), None);
        assert_eq!(encode(&flow(6, six, six, 1, 2), &to(four, four)), None);
        assert_eq!(encode(&flow(132, four, four, 1, 2), &to(four, four)), None);
        assert!(encode(&flow(6, four, four, 1, 2), &to(four, four)).is_some());
    }
}
