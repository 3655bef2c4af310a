//! Hellos over TCP.

use std::collections::BTreeMap;

use bulkhead_hello::tls::Stream;
use bulkhead_hello::{MAX_HELLO, MAX_PIECES, Reading};
use proptest::prelude::*;

use crate::builder::{
    self, ECH, KEY_SHARE, SERVER_NAME, client_bytes, connection, cuts, hello, message, name, named, names, recorded,
    records, retry, retrying_server, vector,
};

/// Returns the reading of segments, each with its offset.
fn read<'a>(segments: impl IntoIterator<Item = (usize, &'a [u8])>) -> Reading {
    let mut stream = Stream::default();
    for (offset, data) in segments {
        stream.take(offset.try_into().unwrap(), data);
    }
    stream.reading().clone()
}

fn whole(bytes: &[u8]) -> Reading {
    read([(0, bytes)])
}

/// Returns the reading of a ClientHello in one record.
fn of_message(bytes: &[u8]) -> Reading {
    whole(&records(bytes, 16_384))
}

#[test]
fn hellos_of_real_clients_are_read() {
    for client in ["openssl", "curl", "node"] {
        assert_eq!(whole(&recorded(client)[0]), name("www.example.com"), "{client}");
    }
    // A post-quantum key share makes it long, and the extension for an encrypted hello has no meaning.
    let chromium = recorded("chromium").remove(0);
    assert!(chromium.len() > 1700);
    assert_eq!(whole(&chromium), Reading::Name { name: "www.example.com".into(), has_ech: true });
    for record in [None, Some(32), Some(100)] {
        assert_eq!(whole(&client_bytes(record, "API.Example.com")), name("api.example.com"), "records of {record:?}");
    }
}

#[test]
fn the_name_is_in_lower_case_without_a_final_dot() {
    for (sent, read) in
        [("Example.COM", "example.com"), ("a.b.", "a.b"), ("localhost", "localhost"), ("_x-1.y", "_x-1.y")]
    {
        assert_eq!(of_message(&named(sent)), name(read), "{sent}");
    }
    for bad in
        ["", ".", "a..b", ".a", "a.b..", "a b", "a\0.b", "b\u{fc}cher.de", "a/b", "*.b", "[::1]", &"a".repeat(64)]
    {
        assert_eq!(of_message(&named(bad)), Reading::Malformed, "{bad:?}");
    }
    let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    assert_eq!(of_message(&named(&longest)), name(&longest));
    assert_eq!(of_message(&named(&(longest + "d"))), Reading::Malformed);
}

#[test]
fn an_encrypted_hello_shows_its_outer_name() {
    let outer = (SERVER_NAME, names(&[b"front.example"]));
    let expected = Reading::Name { name: "front.example".into(), has_ech: true };
    assert_eq!(of_message(&hello(&[outer.clone(), (ECH, vec![0; 99])])), expected);
    assert_eq!(of_message(&hello(&[(ECH, vec![0; 99]), outer.clone()])), expected);
    assert_eq!(of_message(&hello(&[(ECH, vec![]), outer, (ECH, vec![])])), Reading::Malformed);
}

#[test]
fn a_hello_may_have_no_name() {
    assert_eq!(of_message(&hello(&[])), Reading::NoName);
    assert_eq!(of_message(&hello(&[(KEY_SHARE, vec![1; 1216]), (ECH, vec![])])), Reading::NoName);
    assert_eq!(of_message(&message(&builder::start())), Reading::NoName);
}

#[test]
fn what_servers_may_understand_differently_is_malformed() {
    let host = |name: &[u8]| (SERVER_NAME, names(&[name]));
    let bad_names = [
        vec![],
        vector(2, &[]),
        names(&[b"a.b", b"c.d"]),
        [names(&[b"a.b"]), vec![0]].concat(),
        vector(2, &[&[1][..], &vector(2, b"a.b")].concat()),
        vector(2, &[0, 0, 9, b'a']),
    ];
    for data in bad_names {
        assert_eq!(of_message(&hello(&[(SERVER_NAME, data.clone())])), Reading::Malformed, "{data:?}");
    }
    assert_eq!(of_message(&hello(&[host(b"a.b"), host(b"a.b")])), Reading::Malformed, "two extensions");
    let body = |end: &[u8]| message(&[&builder::start()[..], end].concat());
    for end in [&[0][..], &[0, 1], &[0, 0, 0], &[0, 3, 0, 0, 0], &[0, 4, 0, 0, 0, 9]] {
        assert_eq!(of_message(&body(end)), Reading::Malformed, "{end:?}");
    }
    assert_eq!(of_message(&message(&[3; 20])), Reading::Malformed, "a short body");
    assert_eq!(of_message(&[2, 0, 0, 1, 0]), Reading::Malformed, "a ServerHello");
    // Records of other kinds and empty ones.
    let hello = named("a.b");
    let (first, rest) = hello.split_at(20);
    for between in
        [&b"\x17\x03\x03\0\x01x"[..], b"\x14\x03\x03\0\x01\x01", b"\x16\x03\x03\0\0", b"\x16\x03\x03\x40\x01x"]
    {
        let bytes = [&records(first, 99), between, &records(rest, 999)].concat();
        assert_eq!(whole(&bytes), Reading::Malformed, "{between:?}");
    }
}

#[test]
fn other_protocols_are_known_from_their_first_bytes() {
    for bytes in
        [&b"GET / HTTP/1.1"[..], b"SSH-2.0", b"\x16\x02", b"\x80\x2e\x01\x03\x01", b"\x15\x03\x01\0\x02", b"\0"]
    {
        assert_eq!(whole(bytes), Reading::NotTls, "{bytes:?}");
        assert_eq!(read([(0, bytes), (0, &records(&named("a.b"), 999)[..])]), Reading::NotTls, "it is final");
    }
}

#[test]
fn bytes_in_any_pieces_and_any_order_give_the_same_name() {
    for bytes in [records(&named("www.example.com"), 16_384), records(&named("www.example.com"), 7)] {
        let (expected, len) = (name("www.example.com"), bytes.len());
        for first in 0..=len {
            let (a, b) = bytes.split_at(first);
            assert_eq!(read([(0, a), (first, b)]), expected, "divided at {first}");
            assert_eq!(read([(first, b), (0, a)]), expected, "divided at {first}, the last part first");
            // Truncated: no name, however it was divided.
            if first < len {
                assert_eq!(read([(0, a)]), Reading::NeedMore, "cut at {first}");
            }
            for second in (first..=len).step_by(5) {
                let parts = [(0, a), (first, &bytes[first..second]), (second, &bytes[second..])];
                for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                    assert_eq!(read(order.map(|at| parts[at])), expected, "{first}, {second}, {order:?}");
                }
            }
        }
        assert_eq!(read(bytes.chunks(1).enumerate()), expected, "byte by byte");
        let twice = bytes.chunks(9).enumerate().flat_map(|(at, part)| [(9 * at, part), (9 * at, part)]);
        assert_eq!(read(twice), expected, "everything twice");
    }
}

#[test]
fn what_follows_the_hello_does_not_matter() {
    let hello = records(&named("a.b"), 30);
    let mut stream = Stream::default();
    stream.take(0, &[&hello[..], &[0xff; 40_000]].concat());
    assert_eq!((stream.reading(), stream.end()), (&name("a.b"), None));
    // The byte before the stream, which keepalives send.
    assert_eq!(stream.take(u32::MAX, &[1]), &name("a.b"));
    assert_eq!(stream.answer(0, b"\x16\x03\x03\0\x7a\x02"), &name("a.b"));
    assert_eq!(stream.end(), None, "it may be a HelloRetryRequest");
    assert_eq!(stream.answer(6, &[0; 90]), &name("a.b"));
    assert_eq!(stream.end(), Some(hello.len()));
    assert!(stream.memory() < 1024, "the rest is forgotten: {} bytes", stream.memory());
    assert_eq!(stream.take(u32::try_from(hello.len()).unwrap(), &[1; 9]), &name("a.b"));
    // A second message in the record of the hello, whether or not its bytes are there.
    let two = records(&[named("a.b"), named("c.d")].concat(), 16_384);
    assert_eq!(whole(&two), Reading::Malformed);
    assert_eq!(whole(&two[..5 + named("a.b").len()]), Reading::Malformed);
}

#[test]
fn a_real_client_repeats_its_name_after_a_hello_retry_request() {
    let (mut client, mut server) = (connection(None, "www.example.com"), retrying_server());
    let (mut stream, mut sent, mut answered) = (Stream::default(), 0, 0);
    let mut hellos = Vec::new();
    // Both directions, a hello each time.
    for _ in 0..2 {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        assert_eq!(stream.take(sent, &bytes), &name("www.example.com"));
        assert_eq!(stream.end().is_some(), hellos.len() == 1, "known after the second hello");
        sent += u32::try_from(bytes.len()).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        hellos.push(bytes);
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        for byte in &bytes {
            assert_eq!(stream.answer(answered, std::slice::from_ref(byte)), &name("www.example.com"));
            answered += 1;
        }
        client.read_tls(&mut &bytes[..]).unwrap();
        // The client does not trust the server's certificate.
        assert_eq!(client.process_new_packets().is_ok(), hellos.len() == 1);
    }
    assert_eq!(stream.end(), Some(hellos.concat().len()));
}

/// Returns the stream after a hello, the server's HelloRetryRequest and `then`, in which the bytes arrive one by one.
fn retried(first: &str, then: &[u8]) -> Stream {
    let mut stream = Stream::default();
    let first = records(&named(first), 16_384);
    stream.take(0, &first);
    stream.answer(0, &retry());
    for (at, byte) in then.iter().enumerate() {
        stream.take(u32::try_from(first.len() + at).unwrap(), &[*byte]);
    }
    stream
}

#[test]
fn a_second_hello_has_the_name_of_the_first() {
    let second = |name: &str| records(&named(name), 40);
    let len = records(&named("a.b"), 16_384).len();
    for between in [&b""[..], b"\x14\x03\x03\0\x01\x01", b"\x17\x03\x03\0\x03abc\x14\x03\x03\0\x01\x01\x17\x03\x03\0\0"]
    {
        let stream = retried("a.b", &[between, &second("a.b")].concat());
        assert_eq!(stream.reading(), &name("a.b"), "{between:?}");
        assert_eq!(stream.end(), Some(len + between.len() + second("a.b").len()), "{between:?}");
        let stream = retried("a.b", &[between, &second("evil.example")].concat());
        assert_eq!((stream.reading(), stream.end()), (&Reading::Malformed, None), "{between:?}");
        // Sent before the HelloRetryRequest.
        let mut early = Stream::default();
        early.take(0, &[&records(&named("a.b"), 50)[..], between, &second("evil.example")].concat());
        assert_eq!(early.reading(), &name("a.b"));
        assert_eq!(early.answer(0, &retry()), &Reading::Malformed, "{between:?}");
    }
    let alert = [&b"\x15\x03\x03\0\x02\x02\x28"[..], &second("a.b")].concat();
    assert_eq!(retried("a.b", &alert).reading(), &Reading::Malformed, "an alert between them");
    assert_eq!(retried("a.b", &[0x17, 3, 3, 0xff, 0xff, 0, 0, 0, 0]).reading(), &Reading::TooLong, "early data");
    assert_eq!(retried("a.b", &[]).end(), None);
}

#[test]
fn a_byte_with_two_values_is_malformed_before_and_after_the_name_is_known() {
    let (good, evil) = (records(&named("good.example"), 50), records(&named("evil.example"), 50));
    let (good, evil) = (&good[..], &evil[..]);
    let at = (0..good.len()).find(|at| good[*at] != evil[*at]).unwrap();
    for first in 1..=good.len() {
        let expected = if first <= at { name("evil.example") } else { Reading::Malformed };
        assert_eq!(read([(0, &good[..first]), (0, evil)]), expected, "after {first} bytes");
    }
    assert_eq!(read([(0, good), (at, &evil[at..=at])]), Reading::Malformed, "one byte after the name");
    assert_eq!(read([(at, &evil[at..=at]), (0, good)]), Reading::Malformed, "one byte before");
    assert_eq!(read([(0, good), (at, &good[at..=at])]), name("good.example"), "a repetition");
    assert_eq!(read([(0, good), (at, &evil[at..=at]), (0, good)]), Reading::Malformed, "it is final");
    for answer in [vec![0], retry()] {
        let mut stream = Stream::default();
        stream.take(0, good);
        stream.answer(0, &answer);
        stream.take(0, evil);
        assert_eq!((stream.reading(), stream.end()), (&Reading::Malformed, None), "after the server's answer");
        let mut stream = Stream::default();
        stream.take(0, good);
        stream.take(0, evil);
        stream.answer(0, &answer);
        assert_eq!((stream.reading(), stream.end()), (&Reading::Malformed, None), "before the server's answer");
        assert_eq!(stream.take(0, good), &Reading::Malformed);
        assert!(stream.memory() < 300, "{} bytes", stream.memory());
    }
}

#[test]
fn a_hello_has_a_longest_length() {
    let of = |len| hello(&[(SERVER_NAME, names(&[b"a.b"])), (KEY_SHARE, vec![1; len])]);
    let fixed = records(&of(0), 16_384).len();
    assert_eq!(of_message(&of(MAX_HELLO - fixed)), name("a.b"));
    assert_eq!(of_message(&of(MAX_HELLO - fixed + 1)), Reading::TooLong);
    // Known from the message's header, before the bytes were sent.
    assert_eq!(whole(b"\x16\x03\x01\x40\0\x01\0\x40\0"), Reading::TooLong);
    // The headers of tiny records count as well.
    assert_eq!(whole(&records(&of(4000), 1)), Reading::TooLong);
}

#[test]
fn a_hello_has_a_largest_number_of_gaps() {
    let bytes = records(&hello(&[(SERVER_NAME, names(&[b"a.b"])), (KEY_SHARE, vec![1; 200])]), 16_384);
    let odd =
        |count: usize| bytes.chunks(2).enumerate().skip(1).step_by(2).map(|(at, part)| (2 * at, part)).take(count);
    assert_eq!(read(odd(MAX_PIECES).chain([(0, &bytes[..])])), name("a.b"));
    assert_eq!(read(odd(MAX_PIECES + 1)), Reading::TooLong);
}

proptest! {
    #[test]
    fn a_changed_hello_causes_no_panic_and_its_pieces_give_the_reading_of_the_whole(
        size in 1_usize..300,
        changes in prop::collection::vec((0_usize..400, any::<u8>()), 0..4),
        cuts in prop::collection::vec(0_usize..400, 0..5),
        reversed in any::<bool>(),
    ) {
        let mut bytes = records(&named("www.example.com"), size);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % bytes.len()).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut parts: Vec<(usize, &[u8])> = cuts.windows(2).map(|cut| (cut[0], &bytes[cut[0]..cut[1]])).collect();
        if reversed {
            parts.reverse();
        }
        let (parts, whole) = (read(parts), whole(&bytes));
        // Bytes that are too few for a hello are not read until there are enough.
        let is_delayed = parts == Reading::NeedMore && whole == Reading::Malformed;
        prop_assert!(parts == whole || is_delayed, "{parts:?}, {whole:?}");
    }

    #[test]
    fn no_server_has_a_hello_with_a_refused_name(
        script in prop::collection::vec((any::<bool>(), 0_usize..4, 1_usize..5, any::<bool>()), 1..20),
        size in prop::sample::select(vec![40_usize, 16_384]),
        prefers_last in any::<bool>(),
    ) {
        // The client sends parts of two hellos of equal length. It decides which segments reach the server.
        let hellos = ["good.example", "evil.example"].map(|name| records(&named(name), size));
        let cuts = cuts(&hellos);
        let (mut stream, mut server) = (Stream::default(), BTreeMap::new());
        for (is_evil, from, count, arrives) in script {
            let (start, end) = (cuts[from], cuts[(from + count).min(4)]);
            let data = &hellos[usize::from(is_evil)][start..end];
            let reading = stream.take(u32::try_from(start).unwrap(), data);
            let is_forwarded = *reading == Reading::NeedMore || *reading == name("good.example");
            for (at, byte) in (start..).zip(data).filter(|_| is_forwarded && arrives) {
                let known = server.entry(at).or_insert(*byte);
                *known = if prefers_last { *byte } else { *known };
            }
        }
        let received: Vec<u8> = (0..).map_while(|at| server.get(&at).copied()).collect();
        let reading = whole(&received);
        prop_assert!(reading == Reading::NeedMore || reading == name("good.example"), "{reading:?}");
    }

    #[test]
    fn arbitrary_segments_cause_no_panic(
        segments in prop::collection::vec((0_u32..60, prop::collection::vec(prop::sample::select(vec![0_u8, 1, 3, 5, 22]), 0..60)), 0..20),
    ) {
        let mut stream = Stream::default();
        for (offset, data) in segments {
            stream.take(offset, &data);
        }
    }
}
