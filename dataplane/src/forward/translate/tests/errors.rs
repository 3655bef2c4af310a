//! Compares translated ICMP errors with errors built from the other addresses and ports.

use std::ops::Range;

use super::*;

#[derive(Clone, Debug)]
struct ErrorSample {
    /// The packet that caused the error.
    about: Sample,
    /// Maximum number of quoted bytes behind the IP headers.
    quotes: usize,
    /// Type and code, by family.
    kinds: [(u8, u8); 2],
    /// Options of the error's own packet, as in a [`Sample`].
    options: Vec<u8>,
    padding: usize,
}

/// The error's source and destination, and the addressing of the quoted packet.
#[derive(Clone, Copy, Debug)]
struct Addressed {
    outer: (IpAddr, IpAddr),
    quoted: Translation,
}

/// An error's frame and its layout.
#[derive(Clone, Debug)]
struct BuiltError {
    frame: Vec<u8>,
    message: usize,
    /// Number of bytes that translation needs.
    needed: usize,
    /// Positions of the quoted packet's complete checksums.
    sums: Vec<Range<usize>>,
    /// Position of the partial checksum at which the quote ends, if any.
    half: Option<Range<usize>>,
}

impl ErrorSample {
    /// Returns the quoted part of the packet, and the layout from [`Sample`].
    fn quoted(&self, tuple: &Translation) -> (Vec<u8>, Built) {
        let built = self.about.build(tuple);
        let end = built.payload.saturating_add(self.quotes).min(built.frame.len() - self.about.padding);
        (built.frame[IP..end].to_vec(), built)
    }

    /// Returns an error that quotes these bytes, and the offset of its message.
    fn around(&self, outer: (IpAddr, IpAddr), quoted: &[u8]) -> (Vec<u8>, usize) {
        let mut message = [&[0; QUOTED][..], quoted].concat();
        let carrier = Sample { kind: Kind::Echo, options: self.options.clone(), ..self.about.clone() };
        let (ethertype, packet) = match outer {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (kind, code) = self.kinds[0];
                icmpv4::Repr { kind, code, rest: 1400 }.emit(&mut message);
                (0x0800, carrier.build_v4(src, dst, &message, 0))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (kind, code) = self.kinds[1];
                icmpv6::Repr { kind, code, rest: 1400 }.emit(src, dst, &mut message);
                (0x86dd, carrier.build_v6(src, dst, &message, None))
            }
            _ => panic!("two families"),
        };
        let at = IP + packet.len() - message.len();
        ([ethernet([2, 0, 0, 0, 0, 1], ethertype, &packet), vec![0xcc; self.padding]].concat(), at)
    }

    fn build(&self, to: &Addressed) -> BuiltError {
        let (quoted, built) = self.quoted(&to.quoted);
        let (frame, message) = self.around(to.outer, &quoted);
        // Converts a position in the packet's own frame to one in the error's.
        let within = |at: usize| message + QUOTED + at - IP;
        let numbers = match self.about.kind {
            _ if built.checksum.is_none() => 0,
            Kind::Echo => 6,
            _ => PORTS_LEN,
        };
        let needed = within(built.payload) + numbers;
        let mut sums = vec![];
        sums.extend(to.outer.0.is_ipv4().then(|| within(24)..within(26)));
        let len = if self.about.kind == Kind::Sctp { 4 } else { 2 };
        sums.extend(built.checksum.map(|at| within(at)..within(at) + len));
        let end = frame.len() - self.padding;
        let half = sums.iter().find(|sum| (sum.start + 1..sum.end).contains(&end)).map(|sum| sum.start..end);
        sums.retain(|sum| sum.end <= end);
        BuiltError { frame, message, needed, sums, half }
    }

    /// Returns the expected translation if the first `seen` bytes of the frame of `from` are present. Incomplete checksums stay, and so do
    /// checksums whose new value cannot be computed.
    fn expected(&self, from: &Addressed, to: &Addressed, seen: usize) -> Vec<u8> {
        let (before, (mut quoted, _)) = (self.build(from), self.quoted(&to.quoted));
        let (old, _) = self.quoted(&from.quoted);
        let start = before.message + QUOTED;
        let is_impossible = self.about.is_impossible(&from.quoted, &to.quoted);
        for sum in before.sums.iter().chain(&before.half) {
            if sum.end > seen || before.half.as_ref() == Some(sum) || (is_impossible && sum.len() == 4) {
                let sum = sum.start - start..sum.end - start;
                quoted[sum.clone()].copy_from_slice(&old[sum]);
            }
        }
        self.around(to.outer, &quoted).0
    }
}

/// Offset of the quoted packet in the message.
const QUOTED: usize = 8;

fn error_samples() -> impl Strategy<Value = ErrorSample> {
    let quotes = prop_oneof![1 => Just(8usize), 1 => 4usize..40, 1 => Just(usize::MAX)];
    let four = select(vec![(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)]);
    let six = select(vec![(1, 4), (2, 0), (3, 0), (4, 1), (100, 0)]);
    let options = prop_oneof![2 => Just(vec![]), 1 => Just(vec![60]), 1 => Just(vec![0, 60])];
    (samples(), quotes, four, six, options, 0usize..9).prop_map(|(about, quotes, four, six, options, padding)| {
        let kinds = [four, six];
        // Without its identifier, an echo's new checksum cannot be computed.
        let quotes = if about.kind == Kind::Echo { quotes.max(8) } else { quotes };
        ErrorSample { about, quotes, kinds, options, padding }
    })
}

/// Two ways to address an error, in one family.
fn addressed() -> impl Strategy<Value = (Addressed, Addressed)> {
    let pairs = (tuples(), tuples());
    let pairs = pairs.prop_filter("one family", |(one, other)| one.0.src.is_ipv4() == other.0.src.is_ipv4());
    pairs.prop_map(|(outer, quoted)| {
        let outer = [outer.0, outer.1].map(|tuple| (tuple.src, tuple.dst));
        (Addressed { outer: outer[0], quoted: quoted.0 }, Addressed { outer: outer[1], quoted: quoted.1 })
    })
}

fn translated(frame: &[u8], wire_len: usize, to: &Addressed) -> Option<Vec<u8>> {
    let mut bytes = frame.to_vec();
    if translate_error(&mut bytes, wire_len, to.outer, &to.quoted) {
        return Some(bytes);
    }
    assert_eq!(bytes, frame, "changed, and says that it is not");
    None
}

/// Damages two bytes of a checksum.
fn spoil(bytes: &mut [u8], noise: u16) {
    bytes.iter_mut().zip(noise.to_be_bytes()).for_each(|(byte, noise)| *byte ^= noise);
}

#[test]
fn a_translated_error_is_the_one_that_is_built_anew_and_translated_back_the_original() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(4000), |(sample in error_samples(), (from, to) in addressed())| {
        let before = sample.build(&from);
        let (is_v4, len) = (from.outer.0.is_ipv4(), before.frame.len());
        let there = translated(&before.frame, len, &to);
        prop_assert_eq!(there.as_ref(), Some(&sample.expected(&from, &to, len)));
        prop_assert_eq!(translated(&there.unwrap(), len, &from), Some(before.frame));
        reached.note_sample(&sample.about, is_v4);
        reached.note(match (before.sums.len() - usize::from(is_v4), sample.quotes) {
            _ if before.half.is_some() => "half a checksum quoted",
            (1, _) => "checksum quoted",
            (_, 8) => "8 bytes quoted",
            _ => "other",
        });
        reached.note(format!("{} options {}", if is_v4 { "four" } else { "six" }, sample.options.len()));
    });
    reached.assert_samples(30);
    reached.assert(100, &["checksum quoted", "8 bytes quoted"]);
    reached.assert(10, &["half a checksum quoted"]);
    reached.assert(100, &["four options 0", "four options 1", "six options 0", "six options 2"]);
}

#[test]
fn wrong_checksums_of_errors_and_of_what_they_quote_are_as_wrong_afterwards() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(2000), |(
        sample in error_samples(), (from, to) in addressed(), noise in any::<[u16; 2]>(), own in any::<u16>(),
    )| {
        prop_assume!(!sample.about.is_impossible(&from.quoted, &to.quoted));
        prop_assume!(sample.about.kind != Kind::UdpWithoutChecksum);
        let (before, after) = (sample.build(&from), sample.build(&to));
        prop_assume!(before.half.is_none());
        let quoted = before.message + QUOTED;
        let checksum = before.message + 2..before.message + 4;
        // The error's checksum is correct for the quoted bytes, even if these are wrong. Then it is damaged, too.
        let mut wrong = before.frame[quoted..before.frame.len() - sample.padding].to_vec();
        for (sum, noise) in before.sums.iter().zip(noise) {
            let at = sum.start - quoted;
            spoil(&mut wrong[at..at + 2], noise);
            // UDP without a checksum has no wrong one.
            prop_assume!(sample.about.kind != Kind::Udp || wrong[at..at + 2] != [0, 0]);
        }
        let (mut wrong, _) = sample.around(from.outer, &wrong);
        let right = wrong[checksum.clone()].to_vec();
        spoil(&mut wrong[checksum.clone()], own);
        let there = translated(&wrong, wrong.len(), &to).unwrap();
        let mut rest = there.clone();
        for sum in &after.sums {
            let (found, right) = (&there[sum.clone()], &after.frame[sum.clone()]);
            prop_assert_eq!(distance(found, right), distance(&wrong[sum.clone()], &before.frame[sum.clone()]));
            rest[sum.clone()].copy_from_slice(right);
            reached.note(format!("quoted {}", sum.len()));
        }
        let (fresh, _) = sample.around(to.outer, &there[quoted..there.len() - sample.padding]);
        let off = distance(&there[checksum.clone()], &fresh[checksum.clone()]);
        prop_assert_eq!(off, distance(&wrong[checksum.clone()], &right));
        rest[checksum.clone()].copy_from_slice(&after.frame[checksum]);
        prop_assert_eq!(rest, after.frame);
        reached.note(if off == 0 { "right" } else { "wrong" });
    });
    reached.assert(50, &["wrong", "quoted 2", "quoted 4"]);
}

#[test]
fn of_an_error_that_is_cut_short_what_is_there_is_translated_if_the_quoted_ports_are() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(200), |(sample in error_samples(), (from, to) in addressed())| {
        let before = sample.build(&from);
        reached.note_sample(&sample.about, from.outer.0.is_ipv4());
        for len in 0..=before.frame.len() {
            let there = translated(&before.frame[..len], before.frame.len(), &to);
            let expected = (len >= before.needed).then(|| sample.expected(&from, &to, len)[..len].to_vec());
            prop_assert_eq!(there, expected, "{} bytes", len);
        }
    });
    reached.assert_samples(1);
}

#[test]
fn what_the_engine_reads_in_an_error_is_what_is_translated() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(5000), |(
        sample in error_samples(), (from, to) in addressed(),
        edit in proptest::option::of((12usize..160, any::<u8>())),
    )| {
        let mut frame = sample.build(&from).frame;
        if let Some((at, value)) = edit && let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        let parsed = |frame: &[u8]| match packet::parse(LinkType::Ethernet, frame, frame.len()).body {
            Ok(Body::Ip(ip)) if ip.flow.src.is_ipv4() == to.outer.0.is_ipv4() => match ip.transport {
                Transport::IcmpError(Some(embedded)) => Some((ip, embedded)),
                _ => None,
            },
            _ => None,
        };
        let there = translated(&frame, frame.len(), &to);
        let Some((before, embedded)) = parsed(&frame) else {
            reached.note("no session");
            return Ok(());
        };
        let Some(there) = there else {
            // If no ports follow, the engine needs only the length of an extension header. An edited length may have cut off the rest.
            let is_cut = embedded.ports == packet::Ports::None && embedded.src.is_ipv6() && edit.is_some();
            prop_assert!(is_cut, "{:?}", embedded);
            return Ok(());
        };
        let (after, found) = parsed(&there).unwrap();
        prop_assert_eq!((after.flow.src, after.flow.dst, after.flow.icmp), (to.outer.0, to.outer.1, before.flow.icmp));
        let ports = match embedded.ports {
            packet::Ports::Pair(..) => packet::Ports::Pair(to.quoted.sport, to.quoted.dport),
            packet::Ports::EchoRequest(_) => packet::Ports::EchoRequest(to.quoted.sport),
            packet::Ports::EchoReply(_) => packet::Ports::EchoReply(to.quoted.sport),
            other => other,
        };
        let Translation { src, dst, .. } = to.quoted;
        prop_assert_eq!(found, packet::Embedded { src, dst, protocol: embedded.protocol, ports });
        reached.note(if matches!(ports, packet::Ports::Pair(..)) { "ports" } else { "addresses" });
    });
    reached.assert(200, &["no session", "ports", "addresses"]);
}

#[test]
fn what_is_no_error_stays_as_it_is() {
    let echo = Sample { kind: Kind::Echo, piece: Piece::Whole, options: vec![], data: vec![0x45; 60], padding: 0 };
    let tcp = Sample { kind: Kind::Tcp, ..echo.clone() };
    let sample = ErrorSample { about: tcp.clone(), quotes: 8, kinds: [(3, 1), (1, 0)], options: vec![], padding: 0 };
    let four = tuple(ip("10.0.0.1"), ip("10.0.0.2"), 1, 2);
    let six = tuple(ip("fd00::1"), ip("fd00::2"), 1, 2);
    let [in_four, in_six] = [four, six].map(|quoted| Addressed { outer: (quoted.src, quoted.dst), quoted });
    for (own, other) in [(in_four, in_six), (in_six, in_four)] {
        let is_v4 = own.outer.0.is_ipv4();
        let BuiltError { frame, message, .. } = sample.build(&own);
        assert!(translated(&frame, frame.len(), &own).is_some());
        for to in [other, Addressed { outer: other.outer, ..own }, Addressed { quoted: other.quoted, ..own }] {
            assert_eq!(translated(&frame, frame.len(), &to), None);
        }
        for other in [&echo, &tcp, &Sample { piece: Piece::Later, ..echo.clone() }] {
            let frame = other.build(&own.quoted).frame;
            assert_eq!(translated(&frame, frame.len(), &own), None);
        }
        // Bytes like an error's in the middle of a datagram.
        let (carrier, bytes) = (Sample { piece: Piece::Later, ..echo.clone() }, &frame[message..]);
        let later = match own.outer {
            (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet([2; 6], 0x0800, &carrier.build_v4(src, dst, bytes, 3)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet([2; 6], 0x86dd, &carrier.build_v6(src, dst, bytes, Some(3))),
            _ => panic!("two families"),
        };
        assert_eq!(translated(&later, later.len(), &own), None);
        // A redirect or an echo request instead; a quoted packet of the other family.
        let kinds = if is_v4 { [(0, 5), (0, 8)] } else { [(0, 137), (0, 128)] };
        for (at, value) in kinds.into_iter().chain([(QUOTED, if is_v4 { 0x60 } else { 0x45 })]) {
            let mut odd = frame.clone();
            odd[message + at] = value;
            assert_eq!(translated(&odd, odd.len(), &own), None);
        }
    }
}
