//! Hellos over QUIC. The packets are protected by rustls, a second implementation.

use std::collections::BTreeMap;

use bulkhead_hello::quic::{Flow, MAX_CONNECTIONS};
use bulkhead_hello::{MAX_HELLO, Reading};
use proptest::prelude::*;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{ClientConnection, Keys, Version};
use rustls::{Side, SupportedCipherSuite};

use crate::builder::{KEY_SHARE, SERVER_NAME, client, cuts, hello, name, named, names, recorded, unhex};

/// The connection id of the RFCs' examples.
const ID: [u8; 8] = *b"\x83\x94\xc8\xf0\x3e\x51\x57\x08";

/// Returns a number of QUIC in four bytes.
fn number(number: usize) -> [u8; 4] {
    (u32::try_from(number).unwrap() | 0x8000_0000).to_be_bytes()
}

/// Returns a CRYPTO frame.
fn crypto(offset: usize, data: &[u8]) -> Vec<u8> {
    [&[6][..], &number(offset), &number(data.len()), data].concat()
}

/// An Initial packet.
#[derive(Clone)]
struct Initial<'a> {
    version: Version,
    /// The destination connection id, and the one that the keys come from.
    id: &'a [u8],
    key_id: &'a [u8],
    token: &'a [u8],
    /// The packet number and its encoded length in bytes.
    number: (u64, usize),
    frames: Vec<u8>,
}

impl Initial<'_> {
    const fn of(frames: Vec<u8>) -> Self {
        Self { version: Version::V1, id: &ID, key_id: &ID, token: &[], number: (2, 4), frames }
    }

    /// Returns the protected packet. PADDING fills its payload up to 1,162 bytes, as in the RFCs.
    fn bytes(&self) -> Vec<u8> {
        let (number, len) = self.number;
        let (first, version) = match self.version {
            Version::V1 => (0xc0, [0, 0, 0, 1]),
            _ => (0xd0, [0x6b, 0x33, 0x43, 0xcf]),
        };
        let mut payload = self.frames.clone();
        payload.resize(payload.len().max(1162), 0);
        let mut header = vec![first | u8::try_from(len - 1).unwrap()];
        header.extend(version);
        header.extend([&[u8::try_from(self.id.len()).unwrap()][..], self.id, &[0]].concat());
        header.push(u8::try_from(self.token.len()).unwrap());
        header.extend(self.token);
        let length = u16::try_from(len + payload.len() + 16).unwrap() | 0x4000;
        header.extend(length.to_be_bytes());
        let number_at = header.len();
        header.extend(&number.to_be_bytes()[8 - len..]);

        let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else { panic!() };
        let keys = Keys::initial(self.version, suite, suite.quic.unwrap(), self.key_id, Side::Client).local;
        let tag = keys.packet.encrypt_in_place(number, &header, &mut payload).unwrap();
        payload.extend(tag.as_ref());
        let (first, rest) = header.split_at_mut(1);
        let sample = &payload[4 - len..][..16];
        keys.header.encrypt_in_place(sample, &mut first[0], &mut rest[number_at - 1..]).unwrap();
        [header, payload].concat()
    }
}

/// Returns the reading after each datagram.
fn read<D: AsRef<[u8]>>(datagrams: impl IntoIterator<Item = D>) -> Vec<Reading> {
    let mut flow = Flow::default();
    datagrams.into_iter().map(|datagram| flow.take(datagram.as_ref())).collect()
}

fn one(frames: Vec<u8>) -> Reading {
    read([Initial::of(frames).bytes()]).remove(0)
}

/// The payload of the packet in RFC 9001 appendix A.2 and in RFC 9369 appendix A.2, without its PADDING.
fn example() -> Vec<u8> {
    unhex(
        "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c00000413011302010000c0000000\
         10000e00000b6578616d706c652e636f6dff01000100000a00080006001d0017001800100007000504616c706e0005000501000000000033\
         00260024001d00209370b2c9caa47fbabaf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b0003020304000d0010000e040305\
         0306030203080408050806002d00020101001c00024001003900320408ffffffffffffffff05048000ffff07048000ffff08011001048000\
         75300901100f088394c8f03e51570806048000ffff",
    )
}

#[test]
fn the_packets_of_the_specifications_are_read() {
    // The first bytes of the RFCs' packets and their tags, which prove all bytes between.
    let examples = [
        (
            Version::V1,
            "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11",
            "e221af44860018ab0856972e194cd934",
        ),
        (
            Version::V2,
            "d76b3343cf088394c8f03e5157080000449ea0c95e82ffe67b6abcdb4298b485",
            "a18b2faa745b6fe189cf772a9f84cbfc",
        ),
    ];
    for (version, start, tag) in examples {
        let bytes = Initial { version, ..Initial::of(example()) }.bytes();
        assert!(bytes.len() == 1200 && bytes.starts_with(&unhex(start)) && bytes.ends_with(&unhex(tag)), "{version:?}");
        assert_eq!(read([bytes]), [name("example.com")], "{version:?}");
    }
}

#[test]
fn hellos_of_real_clients_are_read() {
    let datagrams = recorded("chromium.quic");
    assert_eq!(datagrams.len(), 2);
    let expected = Reading::Name { name: "www.example.com".into(), has_ech: true };
    assert_eq!(read(&datagrams), [Reading::NeedMore, expected.clone()]);
    assert_eq!(read(datagrams.iter().rev()), [Reading::NeedMore, expected]);
    let server = "API.example.com".try_into().unwrap();
    let mut rustls = ClientConnection::new(client(None), Version::V1, server, vec![1, 1, 7]).unwrap();
    let mut bytes = Vec::new();
    assert!(rustls.write_hs(&mut bytes).is_none());
    assert_eq!(one(crypto(0, &bytes)), name("api.example.com"));
}

#[test]
fn a_hello_may_be_divided_among_frames_and_datagrams_in_any_order() {
    let hello = hello(&[(KEY_SHARE, vec![1; 1216]), (SERVER_NAME, names(&[b"www.example.com"]))]);
    let frames: Vec<Vec<u8>> = (0..).step_by(50).zip(hello.chunks(50)).map(|(at, part)| crypto(at, part)).collect();
    // A PING, an ACK with two ranges, one with counts of ECN, and the end of a connection between the frames.
    let others: [&[u8]; 4] =
        [b"\x01", b"\x02\x09\x00\x01\x01\x02\x03", b"\x03\x01\x00\x00\x00\x01\x02\x03", b"\x1c\x01\x06\x02no"];
    for datagrams in 1..5 {
        let mut packets: Vec<(u64, Vec<u8>)> = (0..datagrams).map(|number| (number, Vec::new())).collect();
        for (at, frame) in frames.iter().rev().enumerate() {
            let frames = &mut packets[at % usize::try_from(datagrams).unwrap()].1;
            frames.extend([others[at % 4], frame].concat());
        }
        let packets: Vec<_> = packets
            .into_iter()
            .map(|(number, frames)| Initial { number: (number, 1), ..Initial::of(frames) }.bytes())
            .collect();
        let readings = read(&packets);
        let (last, early) = readings.split_last().unwrap();
        assert_eq!(*last, name("www.example.com"), "{datagrams} datagrams");
        assert!(early.iter().all(|reading| *reading == Reading::NeedMore), "{early:?}");
        assert_eq!(read(packets.iter().rev()).last(), Some(last));
    }
}

#[test]
fn packet_numbers_of_all_lengths_are_read_and_continue() {
    let hello = named("a.b");
    for len in 1..=4 {
        assert_eq!(read([Initial { number: (5, len), ..Initial::of(crypto(0, &hello)) }.bytes()]), [name("a.b")]);
    }
    // One byte of the number is enough for the next 128.
    let (start, rest) = hello.split_at(30);
    let packets = [(250, crypto(0, start)), (370, vec![1]), (480, crypto(30, rest))].map(|(number, frames)| {
        Initial { number: (number, if number == 250 { 2 } else { 1 }), ..Initial::of(frames) }.bytes()
    });
    assert_eq!(read(&packets).last(), Some(&name("a.b")));
}

#[test]
fn a_second_hello_has_the_name_of_the_first() {
    let [first, second, evil] = ["a.b", "a.b", "evil.example"].map(named);
    let packet = |number, frames| Initial { number: (number, 1), ..Initial::of(frames) }.bytes();
    let (start, rest) = second.split_at(50);
    let after = |second: &[u8]| [packet(0, crypto(0, &first)), packet(1, crypto(first.len(), second))];
    let halves = [packet(2, crypto(first.len(), start)), packet(3, crypto(first.len() + 50, rest))];
    assert_eq!(read(after(&second)), vec![name("a.b"); 2]);
    assert_eq!(read([packet(0, crypto(0, &first))].iter().chain(&halves)), vec![name("a.b"); 3]);
    assert_eq!(read(after(&evil)), [name("a.b"), Reading::Malformed]);
    assert_eq!(read(after(&hello(&[]))), [name("a.b"), Reading::Malformed], "without a name");
    assert_eq!(read(after(&[&second[..], &[1]].concat())), [name("a.b"), Reading::Malformed], "a third message");
    assert_eq!(read(after(&[1, 0, 0x40, 0])), [name("a.b"), Reading::TooLong]);
}

#[test]
fn other_frames_and_other_messages_are_malformed() {
    for kind in (0x04..=0x3f).filter(|kind| ![0x06, 0x1c].contains(kind)) {
        assert_eq!(one([&[kind][..], &crypto(0, &named("a.b"))].concat()), Reading::Malformed, "frame {kind:#x}");
    }
    for bad in [
        &b"\x06\x00"[..],
        b"\x06\x00\x7f\xff",
        b"\x02\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x1c\x00\x00\x7f\xff",
        b"\x40\x00",
    ] {
        let frames = [&crypto(0, &named("a.b")), &vec![0; 1200][..], bad].concat();
        assert_eq!(one(frames), Reading::Malformed, "{bad:?}");
    }
    assert_eq!(one(crypto(0, &[2, 0, 0, 0])), Reading::Malformed, "a ServerHello");
    assert_eq!(one(crypto(0, &hello(&[]))), Reading::NoName);
    assert_eq!(one(crypto(0, &[1, 0, 0x40, 0])), Reading::TooLong);
    assert_eq!(one([&[6][..], &[0xff; 8], &[1, 0]].concat()), Reading::NeedMore, "an offset far away");
}

#[test]
fn a_byte_with_two_values_is_malformed() {
    let (good, evil) = (named("good.example"), named("evil.example"));
    let packet = |number, frames| Initial { number: (number, 1), ..Initial::of(frames) }.bytes();
    let twice =
        [packet(0, crypto(0, &good)), packet(1, crypto(0, &good)), packet(2, crypto(0, &evil)), packet(3, vec![1])];
    assert_eq!(read(twice), [name("good.example"), name("good.example"), Reading::Malformed, Reading::Malformed]);
    assert_eq!(one([crypto(100, &evil[100..]), crypto(0, &good)].concat()), Reading::Malformed);
}

#[test]
fn keys_come_from_the_first_connection_id_of_a_connection() {
    let (start, rest) = (crypto(0, &named("a.b")[..60]), crypto(60, &named("a.b")[60..]));
    let first = Initial { number: (0, 1), ..Initial::of(start.clone()) };
    // The client uses the id that the server chose, and the version that the server chose (RFC 9368).
    for version in [Version::V1, Version::V2] {
        let second = Initial { version, id: b"server", number: (1, 1), ..Initial::of(rest.clone()) };
        assert_eq!(read([first.bytes(), second.bytes()]), [Reading::NeedMore, name("a.b")], "{version:?}");
        assert_eq!(read([second.bytes()]), [Reading::Malformed], "keys of an unknown connection");
    }
    // After a Retry, the client repeats its hello, and the new id makes the keys.
    let retried = |frames: &[u8], number| {
        let (id, token) = (b"retry", b"token");
        Initial { id, key_id: id, token, number: (number, 1), ..Initial::of(frames.to_vec()) }.bytes()
    };
    let packets = [first.bytes(), retried(&start, 1), retried(&rest, 2)];
    assert_eq!(read(packets), [Reading::NeedMore, Reading::NeedMore, name("a.b")]);
    let packets = [first.bytes(), retried(&rest, 1)];
    assert_eq!(read(packets).last(), Some(&Reading::NeedMore), "the hello of another connection is not continued");
    let packets = [first.bytes(), retried(&rest, 1), Initial { number: (2, 1), ..Initial::of(rest) }.bytes()];
    assert_eq!(read(packets).last(), Some(&name("a.b")), "the first connection is not forgotten");
}

#[test]
fn every_connection_of_a_flow_has_its_name_and_their_number_is_limited() {
    let names: Vec<String> = (0..=MAX_CONNECTIONS).map(|at| format!("n{at}.example")).collect();
    let ids: Vec<[u8; 9]> = (0..9).map(|at| [at; 9]).collect();
    let packets = names
        .iter()
        .zip(&ids)
        .map(|(name, id)| Initial { id, key_id: id, ..Initial::of(crypto(0, &named(name))) }.bytes());
    let packets: Vec<_> = packets.collect();
    let mut readings = read(&packets);
    assert_eq!(readings.pop(), Some(Reading::TooLong));
    assert_eq!(readings, names[..MAX_CONNECTIONS].iter().map(|text| name(text)).collect::<Vec<_>>());
    // The others continue.
    assert_eq!(read(packets.iter().chain([&packets[1]])).last(), Some(&name("n1.example")));
}

#[test]
fn a_datagram_has_packets_of_one_connection() {
    let half = [crypto(0, &named("a.b")[..50]), crypto(50, &named("a.b")[50..])];
    let [start, rest] = half.map(|frames| Initial { number: (3, 2), ..Initial::of(frames) });
    assert_eq!(read([[start.bytes(), rest.bytes()].concat()]), [name("a.b")]);
    // A 0-RTT packet, a Handshake packet, one with a short header, and zeros.
    let long = |first: u8| [&[first, 0, 0, 0, 1, 8][..], &ID, &[0, 5], &[9; 5]].concat();
    for other in [long(0xd0), long(0xe0), vec![0x40; 30], vec![0; 30]] {
        assert_eq!(read([[&start.bytes()[..], &rest.bytes(), &other].concat()]), [name("a.b")], "{other:?}");
        assert_eq!(read([start.bytes(), rest.bytes(), other]).last(), Some(&name("a.b")));
    }
    for other in [long(0xd0), long(0xe0)] {
        assert_eq!(read([[&other[..], &start.bytes(), &rest.bytes()].concat()]), [name("a.b")], "{other:?}");
        assert_eq!(read([other]), [Reading::NotTls], "without an Initial packet");
    }
    // Only servers send a Retry.
    assert_eq!(read([long(0xf0)]), [Reading::Malformed]);
    let stranger = Initial { id: b"stranger", key_id: b"stranger", ..start.clone() };
    assert_eq!(read([[start.bytes(), stranger.bytes()].concat()]), [Reading::Malformed], "another destination");
    // The server reads the first packet as the second connection's, and cannot read the second packet.
    let id = b"stranger";
    let hidden = Initial { id, key_id: id, ..Initial::of(crypto(0, &named("evil.example"))) };
    let shown = Initial { id, number: (4, 2), ..rest };
    let datagram = [hidden.bytes(), shown.bytes()].concat();
    assert_eq!(read([start.bytes(), datagram]).last(), Some(&Reading::Malformed), "keys of two connections");
}

#[test]
fn other_versions_are_not_known_and_do_not_matter_later() {
    let mut unknown = Initial::of(crypto(0, &named("a.b"))).bytes();
    unknown[1..5].copy_from_slice(b"\x1a\x2a\x3a\x4a");
    let known = Initial::of(crypto(0, &named("a.b"))).bytes();
    assert_eq!(read([unknown, known]), [Reading::UnknownVersion(0x1a2a_3a4a), name("a.b")]);
    assert_eq!(read([b"\x80\0\0\0\0\0\0"]), [Reading::UnknownVersion(0)], "Version Negotiation");
    assert_eq!(read([&b""[..], b"\0", b"\x16", b"\x7f"]), vec![Reading::NotTls; 4]);
}

#[test]
fn a_truncated_packet_is_malformed() {
    let whole = Initial::of(crypto(0, &named("a.b"))).bytes();
    for len in 1..whole.len() {
        let expected = Reading::Malformed;
        assert_eq!(read([&whole[..len]]), [expected], "{len} bytes");
    }
    for (len, expected) in [(0, name("a.b")), (20, name("a.b")), (21, Reading::Malformed)] {
        let id = [7; 21];
        let packet = Initial { id: &id[..len], key_id: &id[..len], ..Initial::of(crypto(0, &named("a.b"))) };
        assert_eq!(read([packet.bytes()]), [expected], "an id of {len} bytes");
    }
    // Too short for the sample.
    assert_eq!(read([b"\xc0\0\0\0\x01\0\0\0\x04abcd"]), [Reading::Malformed]);
}

#[test]
fn a_flow_has_bounded_memory() {
    let mut flow = Flow::default();
    let mut most = 0;
    for id in 0..=u8::MAX {
        // All bytes of the longest hello but the last.
        for part in 0..15_usize {
            let bytes = [&[1, 0, 0x3f, 0xfc][..], &vec![1; 1096.min(MAX_HELLO - 1 - 1100 * part - 4)]].concat();
            let number = (u64::try_from(part).unwrap(), 1);
            let (id, frames) = ([id; 8], crypto(part * 1100, &bytes));
            flow.take(&Initial { id: &id, key_id: &id, number, ..Initial::of(frames) }.bytes());
            most = most.max(flow.memory());
        }
    }
    let bytes = MAX_CONNECTIONS * MAX_HELLO;
    assert!((bytes..bytes + MAX_CONNECTIONS * 2048).contains(&most), "{most} bytes");
}

proptest! {
    #[test]
    fn a_changed_datagram_causes_no_panic_and_gives_no_other_name(
        at in 0_usize..1200, value in 1_u8..=255, len in 0_usize..=1200,
    ) {
        let mut bytes = Initial::of(crypto(0, &named("a.b"))).bytes();
        bytes[at] ^= value;
        // Every bit is authenticated, except the version, which changes the keys.
        let reading = read([&bytes[..len]]).remove(0);
        prop_assert!(!matches!(reading, Reading::Name { .. } | Reading::NoName), "{reading:?}");
    }

    #[test]
    fn no_server_has_a_hello_with_a_refused_name(
        script in prop::collection::vec(
            (0..7_u8, any::<bool>(), any::<bool>(), 0_usize..4, 1_usize..4, any::<bool>()), 1..25,
        ),
    ) {
        // The client sends parts of two hellos in up to seven connections. It decides which datagrams reach the server, and may use the
        // id that the server chose. The server knows a connection by both ids.
        let hellos = ["good.example", "evil.example"].map(named);
        let cuts = cuts(&hellos);
        let (mut flow, mut server) = (Flow::default(), BTreeMap::<_, BTreeMap<usize, u8>>::new());
        for (number, (connection, by_server, is_evil, from, count, arrives)) in (0..).zip(script) {
            let (start, end) = (cuts[from], cuts[(from + count).min(4)]);
            let data = &hellos[usize::from(is_evil)][start..end];
            let key_id = [connection; 8];
            let id = if by_server { &[connection; 5][..] } else { &key_id };
            let packet = Initial { id, key_id: &key_id, number: (number, 2), ..Initial::of(crypto(start, data)) };
            let reading = flow.take(&packet.bytes());
            // A server makes a connection only for an id of the client.
            let is_known = !by_server || server.contains_key(&connection);
            if arrives && is_known && (reading == Reading::NeedMore || reading == name("good.example")) {
                let stream = server.entry(connection).or_default();
                for (at, byte) in (start..).zip(data) {
                    stream.entry(at).or_insert(*byte);
                }
            }
        }
        for stream in server.values() {
            let received: Vec<u8> = (0..).map_while(|at| stream.get(&at).copied()).collect();
            let reading = one(crypto(0, &received));
            prop_assert!(reading == Reading::NeedMore || reading == name("good.example"), "{reading:?}");
        }
    }

    #[test]
    fn arbitrary_frames_cause_no_panic(
        frames in prop::collection::vec(prop_oneof![0_u8..8, Just(0x1c), any::<u8>()], 0..200),
        tail in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        read([[Initial::of(frames).bytes(), [&[0xc0, 0, 0, 0, 1][..], &tail].concat()].concat()]);
    }
}
