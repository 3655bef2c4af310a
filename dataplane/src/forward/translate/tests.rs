//! Compares translated packets with packets built from the other addresses and ports.

mod errors;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::Flow;
use crate::packet::{self, Body, LinkType, Transport};
use crate::probe::{Probe, ProbeKind};
use crate::testbed::{ethernet, ip};
use crate::translations::Changes;
use crate::wire::ipv6::extension;
use crate::wire::{icmpv4, icmpv6};

/// The transport protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tcp,
    Udp,
    UdpWithoutChecksum,
    Sctp,
    Echo,
    /// A protocol without ports.
    Other(u8),
}

/// The part of a datagram that a packet carries. Only IPv6 has atomic fragments (RFC 6946).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Piece {
    Whole,
    Atomic,
    First,
    Later,
}

/// All properties of a packet except its addresses and ports.
#[derive(Clone, Debug)]
struct Sample {
    kind: Kind,
    piece: Piece,
    /// Words of options in IPv4, types of extension headers in IPv6.
    options: Vec<u8>,
    data: Vec<u8>,
    padding: usize,
}

/// A frame and its layout.
#[derive(Clone, Debug, PartialEq)]
struct Built {
    frame: Vec<u8>,
    /// Offset of the IP packet's payload.
    payload: usize,
    /// Number of bytes that translation needs.
    needed: usize,
    /// Offset of the transport's checksum.
    checksum: Option<usize>,
}

impl Sample {
    const fn protocol(&self, is_v4: bool) -> u8 {
        match self.kind {
            Kind::Tcp => protocol::TCP,
            Kind::Udp | Kind::UdpWithoutChecksum => protocol::UDP,
            Kind::Sctp => protocol::SCTP,
            Kind::Echo if is_v4 => protocol::ICMP,
            Kind::Echo => protocol::ICMPV6,
            Kind::Other(number) => number,
        }
    }

    /// Returns the length of the transport's header and the offset of its checksum.
    const fn shape(&self) -> (usize, Option<usize>) {
        match self.kind {
            Kind::Tcp => (20, Some(16)),
            Kind::Udp | Kind::UdpWithoutChecksum => (8, Some(6)),
            Kind::Sctp => (12, Some(8)),
            Kind::Echo => (6, Some(2)),
            Kind::Other(_) => (0, None),
        }
    }

    /// Returns the transport packet, with a freshly computed checksum.
    fn transport(&self, tuple: &Translation) -> Vec<u8> {
        let Translation { src, dst, sport, dport } = *tuple;
        let with = |header: usize| [&vec![0; header][..], &self.data].concat();
        match self.kind {
            Kind::Tcp => {
                let mut bytes = with(20);
                let (sequence, acknowledgement) = (0x0102_0304, 0xfffe_fdfc);
                let (source_port, destination_port, flags, window) = (sport, dport, tcp::flags::ACK, 0xffff);
                tcp::Repr { source_port, destination_port, sequence, acknowledgement, flags, window }
                    .emit(src, dst, &mut bytes);
                bytes
            }
            Kind::Udp | Kind::UdpWithoutChecksum => {
                let mut bytes = with(8);
                udp::Repr { source_port: sport, destination_port: dport }.emit(src, dst, &mut bytes);
                if self.kind == Kind::UdpWithoutChecksum {
                    bytes[6..8].fill(0);
                }
                bytes
            }
            Kind::Sctp => {
                let mut bytes = with(12);
                bytes[..4].copy_from_slice(&[sport.to_be_bytes(), dport.to_be_bytes()].concat());
                bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
                let sum = checksum::crc32c(&bytes).to_le_bytes();
                bytes[8..12].copy_from_slice(&sum);
                bytes
            }
            Kind::Echo => {
                let mut bytes = with(8);
                match (src, dst) {
                    (IpAddr::V6(src), IpAddr::V6(dst)) => icmpv6::Repr::echo(128, sport, 9).emit(src, dst, &mut bytes),
                    _ => icmpv4::Repr::echo(8, sport, 9).emit(&mut bytes),
                }
                bytes
            }
            Kind::Other(_) => self.data.clone(),
        }
    }

    /// Returns this packet's part of the transport packet, and the header word that describes the part.
    fn piece(&self, transport: &[u8]) -> (Vec<u8>, Option<u16>) {
        let (first, later) = transport.split_at(24.min(transport.len()));
        match self.piece {
            Piece::Whole => (transport.to_vec(), None),
            Piece::Atomic => (transport.to_vec(), Some(0)),
            Piece::First => (first.to_vec(), Some(0x2000)),
            Piece::Later => (later.to_vec(), Some(3)),
        }
    }

    fn build(&self, tuple: &Translation) -> Built {
        let (payload, word) = self.piece(&self.transport(tuple));
        let (ethertype, packet) = match (tuple.src, tuple.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (0x0800, self.build_v4(src, dst, &payload, word.unwrap_or(0))),
            (IpAddr::V6(src), IpAddr::V6(dst)) => (0x86dd, self.build_v6(src, dst, &payload, word)),
            _ => panic!("two families"),
        };
        let at = IP + packet.len() - payload.len();
        let (len, checksum) = if self.piece == Piece::Later { (0, None) } else { self.shape() };
        let frame = [ethernet([2, 0, 0, 0, 0, 1], ethertype, &packet), vec![0xcc; self.padding]].concat();
        Built { frame, payload: at, needed: at + len, checksum: checksum.map(|offset| at + offset) }
    }

    fn build_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8], word: u16) -> Vec<u8> {
        let header_len = 20 + self.options.len() * 4;
        let mut packet = vec![0; header_len];
        packet[0] = 0x40 | u8::try_from(header_len / 4).unwrap();
        packet[4..10].copy_from_slice(&[0x12, 0x34, 0, 0, 63, self.protocol(true)]);
        packet[12..20].copy_from_slice(&[src.octets(), dst.octets()].concat());
        // "No operation", an option of one byte.
        packet[20..].fill(1);
        packet.extend(payload);
        let total_len = u16::try_from(packet.len()).unwrap();
        packet[2..4].copy_from_slice(&total_len.to_be_bytes());
        let mut header = ipv4::Packet::new_checked(&mut packet[..]).unwrap();
        header.set_fragment_word(word);
        header.fill_checksum();
        packet
    }

    fn build_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, payload: &[u8], word: Option<u16>) -> Vec<u8> {
        // The unit of the offset is the same 8 bytes, but at another position.
        let word = word.map(|word| if word & 0x2000 != 0 { 1 } else { word << 3 });
        let mut types = self.options.clone();
        types.extend(word.map(|_| extension::FRAGMENT));
        types.push(self.protocol(false));
        let mut rest = vec![];
        for pair in types.windows(2) {
            match (pair[0], word) {
                (extension::FRAGMENT, Some(word)) => {
                    rest.extend([pair[1], 0]);
                    rest.extend(word.to_be_bytes());
                    rest.extend([0, 0, 0, 9]);
                }
                (extension::AUTHENTICATION, _) => rest.extend([pair[1], 2, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]),
                // A routing header of an accepted type, without segments left.
                _ => rest.extend([pair[1], 0, 4, 0, 0, 0, 0, 0]),
            }
        }
        rest.extend(payload);
        let header =
            ipv6::Repr { source: src, destination: dst, next_header: types[0], hop_limit: 63, payload_len: rest.len() };
        let mut packet = vec![0; 40 + rest.len()];
        header.emit(&mut packet).copy_from_slice(&rest);
        packet
    }

    /// Whether the new checksum cannot be computed.
    fn is_impossible(&self, from: &Translation, to: &Translation) -> bool {
        let ports = |tuple: &Translation| (tuple.sport, tuple.dport);
        self.kind == Kind::Sctp && self.piece == Piece::First && ports(from) != ports(to)
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::Tcp),
        3 => prop_oneof![3 => Just(Kind::Udp), 1 => Just(Kind::UdpWithoutChecksum)],
        1 => Just(Kind::Sctp),
        1 => Just(Kind::Echo),
        1 => select(vec![4, 47, 50, 89, 136, 253]).prop_map(Kind::Other),
    ]
}

fn samples() -> impl Strategy<Value = Sample> {
    let pieces = prop_oneof![4 => Just(Piece::Whole), 3 => select(vec![Piece::Atomic, Piece::First, Piece::Later])];
    // In the order that RFC 8200 §4.1 recommends.
    let options = proptest::sample::subsequence(vec![0, 60, 43, 51], 0..=4);
    let options = prop_oneof![1 => Just(vec![]), 1 => options];
    let data = proptest::collection::vec(any::<u8>(), 24..300);
    (kinds(), pieces, options, data, 0usize..9).prop_map(|(kind, piece, options, data, padding)| Sample {
        kind,
        piece,
        options,
        data,
        padding,
    })
}

fn tuple(src: IpAddr, dst: IpAddr, sport: u16, dport: u16) -> Translation {
    Translation { src, dst, sport, dport }
}

/// Two tuples of one family. Some share values, and some are at the limits.
fn tuples() -> impl Strategy<Value = (Translation, Translation)> {
    let word = || prop_oneof![4 => any::<u32>(), 1 => select(vec![0, 0xffff, 0xffff_0000, u32::MAX])];
    let port = || prop_oneof![4 => any::<u16>(), 1 => select(vec![0, u16::MAX])];
    let side = move || (proptest::array::uniform4(word()), port());
    let sides = (side(), side(), side(), side(), any::<[bool; 5]>());
    sides.prop_map(|(src, dst, new_src, new_dst, [is_v4, same_src, same_dst, same_sport, same_dport])| {
        let address = |words: [u32; 4]| {
            let octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            match is_v4 {
                true => IpAddr::from(words[0].to_be_bytes()),
                false => IpAddr::from(<[u8; 16]>::try_from(octets).unwrap()),
            }
        };
        let from = tuple(address(src.0), address(dst.0), src.1, dst.1);
        let to = Translation {
            src: if same_src { from.src } else { address(new_src.0) },
            dst: if same_dst { from.dst } else { address(new_dst.0) },
            sport: if same_sport { from.sport } else { new_src.1 },
            dport: if same_dport { from.dport } else { new_dst.1 },
        };
        (from, to)
    })
}

fn translated(frame: &[u8], wire_len: usize, to: &Translation) -> Option<Vec<u8>> {
    let mut bytes = frame.to_vec();
    if translate(&mut bytes, wire_len, to) {
        return Some(bytes);
    }
    assert_eq!(bytes, frame, "changed, and says that it is not");
    None
}

/// Counts how often a property saw each case.
#[derive(Default)]
struct Reached(RefCell<BTreeMap<String, u32>>);

impl Reached {
    fn note(&self, what: impl Into<String>) {
        *self.0.borrow_mut().entry(what.into()).or_default() += 1;
    }

    fn note_sample(&self, sample: &Sample, is_v4: bool) {
        let (kind, family) = (sample.kind, if is_v4 { 4 } else { 6 });
        let kind = if let Kind::Other(_) = kind { "other".into() } else { format!("{kind:?}") };
        self.note(format!("{kind} {family}"));
        self.note(format!("{:?} {family}", sample.piece));
        self.note(format!("{} {family}", if sample.options.is_empty() { "plain" } else { "options" }));
    }

    fn assert(&self, least: u32, what: &[&str]) {
        let reached = self.0.borrow();
        for what in what {
            let count = reached.get(*what).copied().unwrap_or_default();
            assert!(count >= least, "only {count} times {what}: {reached:?}");
        }
    }

    /// Asserts that every kind of packet and every part occurred in both families.
    fn assert_samples(&self, least: u32) {
        for family in [4, 6] {
            let kinds = ["Tcp", "Udp", "UdpWithoutChecksum", "Sctp", "Echo", "other"];
            let others = ["Whole", "First", "Later", "plain", "options"];
            let names: Vec<String> = kinds.iter().chain(&others).map(|what| format!("{what} {family}")).collect();
            self.assert(least, &names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        self.assert(least, &["Atomic 6"]);
    }
}

#[test]
fn a_translated_packet_is_the_one_that_is_built_anew_and_translated_back_the_original() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(4000), |(sample in samples(), (from, to) in tuples())| {
        let (before, after) = (sample.build(&from), sample.build(&to));
        let wire_len = before.frame.len();
        if sample.is_impossible(&from, &to) {
            reached.note("impossible");
            prop_assert_eq!(translated(&before.frame, wire_len, &to), None);
            return Ok(());
        }
        reached.note_sample(&sample, from.src.is_ipv4());
        let there = translated(&before.frame, wire_len, &to);
        prop_assert_eq!(there.as_ref(), Some(&after.frame));
        prop_assert_eq!(translated(&after.frame, wire_len, &from), Some(before.frame));
    });
    reached.assert_samples(40);
    reached.assert(5, &["impossible"]);
}

#[test]
fn the_common_cases_are_done_as_all_others_are() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(4000), |(
        sample in samples(), (from, to) in tuples(), edit in proptest::option::of((0usize..64, any::<u8>())),
        cut in 0usize..200,
    )| {
        let mut frame = sample.build(&from).frame;
        if let Some((at, value)) = edit && let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        let wire_len = frame.len();
        frame.truncate(cut.max(40));
        let (mut common, mut general) = (frame.clone(), frame.clone());
        let ports = ports_of(&to);
        let translate_plain = |frame: &mut [u8], is_plain| match Addresses::new(to.src, to.dst) {
            Some(Addresses::V4(addresses)) => translate_plain_v4(frame, wire_len, &addresses, ports, is_plain),
            Some(Addresses::V6(addresses)) => translate_plain_v6(frame, wire_len, &addresses, ports, is_plain),
            None => panic!("two families"),
        };
        let is_done = translate_plain(&mut common, false);
        if is_done {
            prop_assert!(translate_any(&mut general, wire_len, &to));
            prop_assert_eq!(&common, &general);
            reached.note_sample(&sample, from.src.is_ipv4());
        }
        if is_parsed_as_plain(&frame, wire_len, from.src.is_ipv4()) {
            let mut parsed = frame.clone();
            prop_assert!(is_done && translate_plain(&mut parsed, true));
            prop_assert_eq!(parsed, general);
            reached.note("parsed as plain");
        }
        if !is_done {
            prop_assert_eq!(common, frame);
        }
        let has_ports = matches!(sample.kind, Kind::Tcp | Kind::Udp | Kind::UdpWithoutChecksum);
        let is_plain = has_ports && sample.options.is_empty() && sample.piece == Piece::Whole;
        prop_assert!(is_done || !is_plain || edit.is_some() || cut < 80);
    });
    reached.assert(20, &["Tcp 4", "Tcp 6", "Udp 4", "Udp 6", "First 4"]);
    reached.assert(4, &["UdpWithoutChecksum 4", "UdpWithoutChecksum 6"]);
    reached.assert(100, &["parsed as plain"]);
}

/// Whether the parser classifies a packet of this family as plain.
fn is_parsed_as_plain(frame: &[u8], wire_len: usize, is_v4: bool) -> bool {
    match packet::open(LinkType::Ethernet, frame, wire_len) {
        Some((packet::Inner::V4(bytes), _)) => is_v4 && packet::parse_plain_v4(bytes).is_some(),
        Some((packet::Inner::V6(bytes), _)) => !is_v4 && packet::parse_plain_v6(bytes).is_some(),
        _ => false,
    }
}

/// Returns the error of a checksum. All ones equal 0.
fn distance(found: &[u8], right: &[u8]) -> u32 {
    let number = |bytes: &[u8]| bytes.iter().fold(0u32, |number, &byte| number << 8 | u32::from(byte));
    match found.len() {
        2 => (number(found) + 0xffff - number(right)) % 0xffff,
        _ => number(found) ^ number(right),
    }
}

#[test]
fn a_wrong_checksum_is_as_wrong_afterwards() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(3000), |(
        sample in samples(), (from, to) in tuples(), header in any::<u16>(), transport in any::<u32>(),
    )| {
        prop_assume!(!sample.is_impossible(&from, &to) && sample.kind != Kind::UdpWithoutChecksum);
        let (before, after) = (sample.build(&from), sample.build(&to));
        let is_v4 = from.src.is_ipv4();
        let mut sums = vec![];
        sums.extend(is_v4.then_some(24..26));
        sums.extend(before.checksum.map(|at| at..at + if sample.kind == Kind::Sctp { 4 } else { 2 }));
        let mut wrong = before.frame.clone();
        for (at, sum) in sums.iter().enumerate() {
            let noise = if at == 0 && is_v4 { u32::from(header) << 16 } else { transport };
            wrong[sum.clone()].iter_mut().zip(noise.to_be_bytes()).for_each(|(byte, noise)| *byte ^= noise);
            // UDP without a checksum has no wrong one.
            prop_assume!(sample.kind != Kind::Udp || wrong[sum.clone()] != [0, 0]);
        }
        let there = translated(&wrong, wrong.len(), &to).unwrap();
        let mut rest = there.clone();
        for sum in sums.iter().cloned() {
            let (found, right) = (&there[sum.clone()], &after.frame[sum.clone()]);
            prop_assert_eq!(distance(found, right), distance(&wrong[sum.clone()], &before.frame[sum.clone()]));
            if distance(found, right) != 0 {
                let (whose, family) = (if sum.start == 24 { "header" } else { "transport" }, if is_v4 { 4 } else { 6 });
                reached.note(format!("{:?} {whose} of {family}", sample.kind));
            }
            rest[sum.clone()].copy_from_slice(right);
        }
        prop_assert_eq!(rest, after.frame);
        // The other representation of zero, which no sender computes, is not restored.
        if sums.iter().all(|sum| wrong[sum.clone()] != [0xff, 0xff]) {
            prop_assert_eq!(translated(&there, there.len(), &from), Some(wrong));
            reached.note("back");
        }
    });
    for kind in ["Tcp", "Udp", "Sctp"] {
        let names = ["header of 4", "transport of 4", "transport of 6"].map(|name| format!("{kind} {name}"));
        reached.assert(40, &names.each_ref().map(String::as_str));
    }
    reached.assert(40, &["Echo header of 4", "Echo transport of 6"]);
    reached.assert(1000, &["back"]);
}

#[test]
fn of_a_packet_that_is_cut_short_all_is_translated_or_nothing() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(400), |(sample in samples(), (from, to) in tuples())| {
        prop_assume!(!sample.is_impossible(&from, &to));
        let (before, after) = (sample.build(&from), sample.build(&to));
        reached.note_sample(&sample, from.src.is_ipv4());
        for len in 0..=before.frame.len() {
            let there = translated(&before.frame[..len], before.frame.len(), &to);
            prop_assert_eq!(there.as_deref(), (len >= before.needed).then_some(&after.frame[..len]), "{} bytes", len);
        }
        // A header within the frame but behind the packet's end, by the packet's own length, does not count.
        let mut short = before.frame.clone();
        let (at, len) = if from.src.is_ipv4() { (16, before.payload - IP) } else { (18, before.payload - IP - 40) };
        short[at..at + 2].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        prop_assert_eq!(translated(&short, short.len(), &to).is_some(), before.needed == before.payload);
        // A packet that is longer than its frame is not translated.
        let len = before.frame.len() - sample.padding;
        let longer = before.frame[..len].to_vec();
        prop_assert!(translated(&longer, len, &to).is_some());
        prop_assert_eq!(translated(&longer[..len - 1], len - 1, &to), None);
    });
    reached.assert_samples(1);
}

#[test]
fn what_the_engine_understands_can_be_translated_and_only_that_changes() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(10_000), |(
        sample in samples(), (from, to) in tuples(), edit in proptest::option::of((12usize..120, any::<u8>())),
    )| {
        let mut frame = sample.build(&from).frame;
        if let Some((at, value)) = edit && let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        let parsed = |frame: &[u8]| match packet::parse(LinkType::Ethernet, frame, frame.len()).body {
            Ok(Body::Ip(ip)) if ip.flow.src.is_ipv4() == to.src.is_ipv4() => Some(ip),
            _ => None,
        };
        let there = translated(&frame, frame.len(), &to);
        let (Some(before), false) = (parsed(&frame), sample.is_impossible(&from, &to)) else {
            reached.note(if there.is_some() { "translated all the same" } else { "refused" });
            return Ok(());
        };
        let is_sctp_part = before.fragment.is_some() && before.flow.protocol == protocol::SCTP;
        prop_assert!(there.is_some() || is_sctp_part, "{:?}", before);
        let Some(there) = there else { return Ok(()) };
        let after = parsed(&there).unwrap();
        let has_ports = matches!(before.transport, Transport::Tcp(_) | Transport::Udp | Transport::Sctp(_));
        let (sport, dport) = if has_ports { (to.sport, to.dport) } else { (0, 0) };
        prop_assert_eq!(after.flow, Flow { src: to.src, dst: to.dst, sport, dport, ..before.flow });
        let transport = match before.transport {
            Transport::Echo { request, .. } => Transport::Echo { id: to.sport, request },
            other => other,
        };
        prop_assert_eq!(packet::Ip { flow: before.flow, ..after }, packet::Ip { transport, ..before });
        reached.note(if has_ports { "ports" } else { "addresses" });
        reached.note(if edit.is_some() { "edited" } else { "as built" });
    });
    reached.assert(200, &["refused", "ports", "addresses", "edited", "as built"]);
}

#[test]
fn a_translated_probe_is_the_probe_of_the_other_addresses_and_ports() {
    let framed =
        |packet: &[u8]| ethernet([2, 0, 0, 0, 0, 1], if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd }, packet);
    for (from, to) in
        [(["10.0.0.1", "10.96.0.10"], ["10.0.0.254", "10.1.2.3"]), (["fd00::1", "fd96::a"], ["fd00::fe", "fd01::2:3"])]
    {
        for kind in [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho] {
            let before = Probe { src: ip(from[0]), dst: ip(from[1]), kind, sport: 40_000, dport: 53 };
            let after = Probe { src: ip(to[0]), dst: ip(to[1]), kind, sport: 1025, dport: 5353 };
            // An echo's identifier represents both ports.
            let dport = if kind == ProbeKind::IcmpEcho { 1025 } else { 5353 };
            let there = tuple(after.src, after.dst, 1025, dport);
            let back = tuple(after.dst, after.src, dport, 1025);
            for (packet, expected, to) in [
                (before.request().unwrap(), after.request().unwrap(), there),
                (before.reply().unwrap(), after.reply().unwrap(), back),
            ] {
                let frame = framed(&packet);
                assert_eq!(translated(&frame, frame.len(), &to), Some(framed(&expected)), "{kind:?}");
            }
        }
    }
}

#[test]
fn rfc_768_and_1624_every_checksum_is_updated_as_if_computed_anew_and_udps_zero_is_sent_as_all_ones() {
    let sample = Sample { kind: Kind::Udp, piece: Piece::Whole, options: vec![], data: vec![], padding: 0 };
    let from = tuple(ip("10.0.0.1"), ip("10.96.0.10"), 40_000, 53);
    let before = sample.build(&from);
    let mut reached = [false; 2];
    for low in 0..=u16::MAX {
        let [high, low] = low.to_be_bytes();
        let to = Translation { dst: IpAddr::from([10, 0, high, low]), ..from };
        let after = translated(&before.frame, before.frame.len(), &to).unwrap();
        assert_eq!(after, sample.build(&to).frame);
        reached[0] |= after[24..26] == [0, 0];
        reached[1] |= after[40..42] == [0xff, 0xff];
    }
    assert_eq!(reached, [true; 2], "a header's checksum of 0, and a datagram's");
}

#[test]
fn other_families_other_frames_and_two_families_stay_as_they_are() {
    let sample = Sample { kind: Kind::Tcp, piece: Piece::Whole, options: vec![], data: vec![], padding: 0 };
    let four = tuple(ip("10.0.0.1"), ip("10.0.0.2"), 1, 2);
    let six = tuple(ip("fd00::1"), ip("fd00::2"), 1, 2);
    let frames = [four, six].map(|tuple| sample.build(&tuple).frame);
    assert_eq!((translated(&frames[0], 54, &six), translated(&frames[1], 74, &four)), (None, None));
    for frame in &frames {
        for mixed in [Translation { src: six.src, ..four }, Translation { dst: six.dst, ..four }] {
            assert_eq!(translated(frame, frame.len(), &mixed), None);
        }
        // ARP; VLAN; a type that contradicts the version.
        for ethertype in [[8, 6], [0x81, 0], if frame[12] == 8 { [0x86, 0xdd] } else { [8, 0] }] {
            let mut other = frame.clone();
            other[12..14].copy_from_slice(&ethertype);
            assert_eq!((translated(&other, other.len(), &four), translated(&other, other.len(), &six)), (None, None));
        }
    }
}

/// Both addresses and both ports, source first.
fn ends_v4() -> impl Strategy<Value = (u64, u32)> {
    // Includes changes of nothing.
    (prop_oneof![any::<u64>(), Just(0)], prop_oneof![any::<u32>(), Just(0)])
}

proptest! {
    /// A session's precomputed changes give the same bytes as those computed from the packet, in both directions.
    #[test]
    fn a_plain_packet_is_written_alike_with_changes_that_are_known(
        bytes in prop::collection::vec(any::<u8>(), 60),
        is_tcp in any::<bool>(),
        checksum in prop_oneof![any::<u16>(), Just(0), Just(u16::MAX)],
        received in ends_v4(),
        sent in ends_v4(),
    ) {
        let (from, to) = (Ends::v4(received.0, received.1), Ends::v4(sent.0, sent.1));
        let mut frame = bytes;
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[16..18].copy_from_slice(&46u16.to_be_bytes());
        frame[23] = if is_tcp { protocol::TCP } else { protocol::UDP };
        frame[26..34].copy_from_slice(&from.addresses_v4());
        frame[34..38].copy_from_slice(&from.ports());
        let at = if is_tcp { 50 } else { 40 };
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        let changes = Changes::of_v4(&from, &to);
        for (received, sent, changes) in [(received, sent, changes), (sent, received, changes.turned_if(true))] {
            let mut expected = frame.clone();
            let len = frame.len();
            prop_assert!(write_ends(&mut expected, len, &Ends::v4(sent.0, sent.1), true));
            let packet = PlainV4::new((received.0, received.1, true), sent, changes);
            prop_assert!(write_plain_v4(&mut frame, &packet));
            prop_assert_eq!(&frame, &expected);
            prop_assert_eq!(packet.received(), Ends::v4(received.0, received.1));
            let turned = (received.0.rotate_left(32), received.1.rotate_left(16), false);
            prop_assert_eq!(PlainV4::new(turned, sent, changes).received(), packet.received());
        }
    }
}

#[test]
fn what_lies_behind_a_tag_or_is_too_short_is_left_to_others() {
    let to = PlainV4::new((1, 2, true), (3, 4), Changes { addresses: 5, all: 6 });
    let mut tagged = vec![7; 60];
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let mut short = vec![7; 51];
    short[12..14].copy_from_slice(&[8, 0]);
    short[23] = protocol::TCP;
    for frame in [tagged, short, Vec::new()] {
        let mut written = frame.clone();
        assert!(!write_plain_v4(&mut written, &to));
        assert_eq!(written, frame);
    }
}
