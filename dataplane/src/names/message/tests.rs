pub(in crate::names) mod encoder;
mod model;
mod random;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::iter;

use super::*;
use encoder::{A, AAAA, ANY, CNAME, Encoder, IN, labels, pointer, response, wire};
use random::Random;

type Addresses = Vec<(IpAddr, u32)>;

/// Returns the reported addresses and the count of ignored records.
fn answers(bytes: &[u8]) -> Result<(Addresses, u16), Fault> {
    let mut addresses = Vec::new();
    let answered = Message::parse(bytes)?.addresses(|address, ttl| addresses.push((address, ttl)));
    let answered = answered.inspect_err(|fault| assert!(addresses.is_empty(), "addresses before {fault:?}"))?;
    assert_eq!(usize::from(answered.addresses), addresses.len());
    Ok((addresses, answered.ignored))
}

/// Returns the reported addresses as text, without TTLs, and the count of ignored records.
fn texts(encoder: &Encoder) -> (Vec<String>, u16) {
    let (addresses, ignored) = answers(&encoder.bytes).unwrap();
    (addresses.iter().map(|(address, _)| address.to_string()).collect(), ignored)
}

fn fault(encoder: &Encoder) -> Option<Fault> {
    answers(&encoder.bytes).err()
}

fn name_of(encoder: &Encoder) -> Result<String, Fault> {
    Message::parse(&encoder.bytes)?.name().map(|name| name.as_str().to_owned())
}

/// Returns a response with a chain n0 -> n1 -> ... of `names` names, written from its end. The last name has an address.
fn reversed_chain(names: usize) -> Encoder {
    let start = response("n0", A).a(&format!("n{}", names - 1), 60, "192.0.2.1");
    (1..names).rev().fold(start, |encoder, n| encoder.cname(&format!("n{}", n - 1), &format!("n{n}")))
}

#[test]
fn the_header_and_the_question_are_read() {
    let query = [
        0xbe, 0xef, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 1, 3, b'w', b'W', b'w', 2, b'e', b'X', 0, 0, 28, 0, 1, 0, 0, 41,
        4, 208, 0, 0, 0, 0, 0, 0,
    ];
    let message = Message::parse(&query).unwrap();
    assert_eq!(
        (message.id(), message.is_response(), message.is_truncated(), message.response_code()),
        (0xbeef, false, false, 0)
    );
    assert_eq!((message.question_type, message.question_class), (28, 1));
    assert_eq!(message.name().unwrap().as_str(), "www.ex");
    let mut response = query;
    (response[2], response[3]) = (0x83, 0xf3);
    let message = Message::parse(&response).unwrap();
    assert_eq!((message.is_response(), message.is_truncated(), message.response_code()), (true, true, 3));
}

#[test]
fn the_question_keeps_its_case_and_the_name_does_not() {
    let mixed = Encoder::new("wWw.eXample", A, 3, true);
    let message = Message::parse(&mixed.bytes).unwrap();
    assert_eq!(message.question(), [wire("wWw.eXample"), vec![0, 1, 0, 3]].concat());
    let lower = response("www.example", A);
    let other = Message::parse(&lower.bytes).unwrap();
    assert_ne!(message.question(), other.question());
    assert_eq!(message.name(), other.name());
    assert_eq!(message.name().unwrap().as_bytes(), b"www.example");
    let hasher = RandomState::new();
    let names = [message.name().unwrap(), other.name().unwrap()];
    assert_eq!(hasher.hash_one(names[0]), hasher.hash_one(names[1]));
    assert_eq!(format!("{0:>13}|{0:?}", message.name().unwrap()), "  www.example|\"www.example\"");
}

#[test]
fn a_name_is_letters_digits_hyphens_and_underscores_up_to_253_bytes() {
    assert_eq!(name_of(&response("_Dns-1.0.Example", A)), Ok("_dns-1.0.example".to_owned()));
    assert_eq!(name_of(&response("", A)), Err(Fault::UnusualName));
    for byte in 0..=u8::MAX {
        let mut encoder = response("xx.example", A);
        encoder.bytes[14] = byte;
        let usual = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        assert_eq!(name_of(&encoder).is_ok(), usual, "byte {byte}");
        assert_eq!(answers(&encoder.bytes), Ok((vec![], 0)), "the name on the wire needs no text");
    }
    let longest = [&"a.".repeat(126), "b"].concat();
    assert_eq!(name_of(&response(&longest, A)), Ok(longest.clone()));
    assert_eq!(name_of(&response(&(longest + "c"), A)), Err(Fault::MalformedName));
}

#[test]
fn names_that_differ_in_one_byte_are_not_equal() {
    let names = ["a", "b", "aa", "a.a", "a-a"].map(|name| {
        let encoder = response(name, A);
        Message::parse(&encoder.bytes).unwrap().name().unwrap()
    });
    for (index, name) in names.iter().enumerate() {
        assert_eq!(names.iter().position(|other| other == name), Some(index), "{name}");
    }
    assert_eq!(HashSet::from(names).len(), names.len());
}

#[test]
fn only_queries_with_one_question_are_parsed() {
    for opcode in 1..16 {
        let mut encoder = response("a", A);
        encoder.bytes[2] |= opcode << 3;
        assert_eq!(fault(&encoder), Some(Fault::UnusualOpcode));
    }
    for count in [[0, 0], [0, 2], [1, 0], [1, 1]] {
        let mut encoder = response("a", A);
        encoder.bytes[4..6].copy_from_slice(&count);
        assert_eq!(fault(&encoder), Some(Fault::NotOneQuestion));
    }
}

#[test]
fn every_cut_of_a_message_is_truncated() {
    let whole = response("a.example", A).a("a.example", 60, "192.0.2.1").cname("b", "c");
    for len in 0..whole.bytes.len() {
        let cut = &whole.bytes[..len];
        assert_eq!(answers(cut), Err(Fault::Truncated), "{len} bytes");
        assert_eq!(Message::parse(cut).is_ok(), len >= 27, "{len} bytes");
    }
}

#[test]
fn a_pointer_in_the_question_is_a_fault() {
    for target in [0, 4, 11, 12, 13, 18, 400] {
        let mut encoder = Encoder::new("", A, IN, true);
        encoder.bytes.splice(12..13, [&labels("aa")[..], &pointer(target), &[0; 8]].concat());
        assert_eq!(fault(&encoder), Some(Fault::BadPointer), "to {target}");
    }
}

#[test]
fn pointers_must_lead_to_a_name_that_ends_before_their_own() {
    // The question's name is at 12..16, and the record starts at 20.
    let with = |owner: &[u8]| fault(&response("ab", A).raw(owner, A, &[1; 4]));
    assert_eq!(with(&pointer(12)), None);
    assert_eq!(with(&[&labels("x")[..], &pointer(12)].concat()), None);
    for target in [0, 11, 20, 21, 22, 23, 24, 0x3fff] {
        assert_eq!(with(&pointer(target)), Some(Fault::BadPointer), "to {target}");
        assert_eq!(
            with(&[&labels("x")[..], &pointer(target)].concat()),
            Some(Fault::BadPointer),
            "after x to {target}"
        );
    }
    // At 16, the zero byte of the type reads as the root.
    assert_eq!(with(&pointer(16)), None);
    // At 14, the letter b reads as a label of an unknown type.
    assert_eq!(with(&pointer(14)), Some(Fault::MalformedName));
    // At 19, the 1 of the class IN reads as the length of a label, whose byte is in the record itself.
    assert_eq!(with(&pointer(19)), Some(Fault::BadPointer));
}

#[test]
fn two_names_that_point_at_each_other_are_a_fault() {
    let encoder = response("a", A).cname("b", "c");
    let second = encoder.bytes.len();
    let mut encoder = encoder.raw(&pointer(19), A, &[1; 4]);
    encoder.bytes.splice(19..22, [labels("b"), pointer(second + 1).to_vec()].concat());
    assert_eq!(fault(&encoder), Some(Fault::BadPointer));
}

/// Returns a response whose first record is a TXT record of `count` pointers, and the offset of the last one. The first points to the name
/// asked, each other to the one before.
fn pointers(count: usize) -> (Encoder, usize) {
    let encoder = response("a", A);
    let start = encoder.bytes.len() + 11;
    let targets = iter::once(12).chain((0..).map(|n| start + 2 * n)).take(count);
    let data: Vec<u8> = targets.flat_map(pointer).collect();
    (encoder.raw(&[0], 16, &data), start + 2 * (count - 1))
}

#[test]
fn pointers_may_lead_to_pointers() {
    for count in [1, 2, 128, 8_000] {
        let (encoder, last) = pointers(count);
        assert_eq!(texts(&encoder.raw(&pointer(last), A, &[192, 0, 2, 1])).0, ["192.0.2.1"]);
    }
}

#[test]
fn pointers_reach_the_first_16_kib() {
    let encoder = response("a", A);
    // The RDATA ends with a name, whose first byte is at 0x3fff.
    let data = [vec![0; 0x3fff - encoder.bytes.len() - 11], wire("a")].concat();
    let encoder = encoder.record("", 16, IN, 60, &data).raw(&pointer(0x3fff), A, &[192, 0, 2, 1]);
    assert_eq!(texts(&encoder).0, ["192.0.2.1"]);
}

#[test]
fn a_pointer_in_skipped_bytes_must_lead_backwards_too() {
    let with = |data: &[u8]| fault(&response("a", A).raw(&[0], 16, data).raw(&pointer(30), A, &[1; 4]));
    assert_eq!(with(&pointer(12)), None);
    assert_eq!(with(&[&pointer(32)[..], &wire("a")].concat()), Some(Fault::BadPointer), "a name after the pointer");
    assert_eq!(with(&[pointer(32), pointer(30)].concat()), Some(Fault::BadPointer), "a loop");
}

#[test]
fn compressed_names_are_at_most_255_bytes() {
    for (label, expected) in [("x", None), ("xx", Some(Fault::MalformedName))] {
        let encoder = response(&"a.".repeat(126), A).raw(&[&labels(label)[..], &pointer(12)].concat(), A, &[1; 4]);
        assert_eq!(fault(&encoder), expected);
    }
    let root = [labels(&"a.".repeat(127)), pointer(12).to_vec()].concat();
    assert_eq!(fault(&response("", A).raw(&root, A, &[1; 4])), None);
}

#[test]
fn uncompressed_names_are_at_most_255_bytes() {
    let longest = "a.".repeat(127);
    for kind in [A, 16] {
        assert_eq!(fault(&response("a", A).raw(&wire(&longest), kind, &[])), None);
        let longer = wire(&format!("a{longest}"));
        assert_eq!(longer.len(), 256);
        assert_eq!(fault(&response("a", A).raw(&longer, kind, &[])), Some(Fault::MalformedName));
    }
}

#[test]
fn labels_of_unknown_types_are_a_fault() {
    for first in [0x40, 0x7f, 0x80, 0xbf] {
        let mut encoder = response("a", A);
        encoder.bytes[12] = first;
        assert_eq!(fault(&encoder), Some(Fault::MalformedName));
        assert_eq!(fault(&response("a", A).raw(&[first, 0], 16, &[])), Some(Fault::MalformedName));
    }
}

#[test]
fn addresses_are_of_the_type_asked() {
    let with = |kind| response("a", kind).a("a", 60, "192.0.2.1").a("a", 60, "2001:db8::1").a("a", 60, "192.0.2.2");
    assert_eq!(texts(&with(A)), (vec!["192.0.2.1".into(), "192.0.2.2".into()], 1));
    assert_eq!(texts(&with(AAAA)), (vec!["2001:db8::1".into()], 2));
    assert_eq!(texts(&with(ANY)), (vec!["192.0.2.1".into(), "2001:db8::1".into(), "192.0.2.2".into()], 0));
    for other in [0, 2, CNAME, 12, 64, 65, 256] {
        assert_eq!(texts(&with(other)), (vec![], 0), "type {other}");
    }
}

#[test]
fn only_responses_of_class_in_have_addresses() {
    let encoder = response("a", A).a("a", 60, "192.0.2.1");
    assert_eq!(texts(&encoder).0.len(), 1);
    let mut query = encoder;
    query.bytes[2] &= 0x7f;
    assert_eq!(texts(&query), (vec![], 0));
    assert_eq!(texts(&Encoder::new("a", A, 3, true).a("a", 60, "192.0.2.1")), (vec![], 0));
    assert_eq!(texts(&Encoder::new("a", A, 255, true).a("a", 60, "192.0.2.1")), (vec![], 0));
    assert_eq!(texts(&response("a", A).record("a", A, 3, 60, &[1; 4])), (vec![], 0), "a record of class CHAOS");
}

#[test]
fn an_address_counts_only_if_its_owner_was_asked_or_is_in_the_chain() {
    let encoder = response("www.example", A)
        .a("bank.example", 60, "192.0.2.1")
        .cname("www.example", "cdn.example")
        .a("WWW.example", 60, "192.0.2.2")
        .a("cdn.example", 60, "192.0.2.3")
        .a("example", 60, "192.0.2.4")
        .a("x.www.example", 60, "192.0.2.5")
        .a("", 60, "192.0.2.6")
        .cname("other.example", "bank.example");
    assert_eq!(texts(&encoder), (vec!["192.0.2.2".into(), "192.0.2.3".into()], 4));
}

#[test]
fn a_chain_may_come_in_any_order() {
    let records = |order: [usize; 4]| {
        order.iter().fold(response("a", A), |encoder, record| match record {
            0 => encoder.cname("A", "b.a"),
            1 => encoder.cname("B.A", "c"),
            2 => encoder.cname("C", "d"),
            _ => encoder.a("D", 60, "192.0.2.1"),
        })
    };
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        assert_eq!(texts(&records(order)), (vec!["192.0.2.1".into()], 0), "{order:?}");
    }
}

#[test]
fn a_chain_has_at_most_64_names() {
    assert_eq!(texts(&reversed_chain(64)), (vec!["192.0.2.1".into()], 0));
    assert_eq!(fault(&reversed_chain(65)), Some(Fault::LongChain));
}

#[test]
fn aliases_may_form_a_loop_or_a_tree() {
    let encoder = response("a", A).cname("a", "b").cname("b", "a").cname("c", "c").a("b", 60, "192.0.2.1");
    assert_eq!(texts(&encoder), (vec!["192.0.2.1".into()], 0));
    let encoder = response("a", A).cname("a", "b").cname("a", "c").a("c", 60, "192.0.2.1").a("b", 60, "192.0.2.2");
    assert_eq!(texts(&encoder).0.len(), 2);
}

#[test]
fn an_alias_of_another_class_or_type_is_not_followed() {
    let mut encoder = response("a", A);
    encoder.name("a");
    assert_eq!(texts(&encoder.alias(3, "b").a("b", 60, "192.0.2.1")), (vec![], 1));
    // DNAME, RFC 6672. The server adds the CNAME record that follows from it.
    let encoder = response("x.a", A).record("a", 39, IN, 60, &wire("b")).a("x.b", 60, "192.0.2.1");
    assert_eq!(texts(&encoder), (vec![], 1));
    assert_eq!(texts(&encoder.cname("x.a", "x.b")), (vec!["192.0.2.1".into()], 0));
}

#[test]
fn the_target_of_an_alias_fills_its_rdata() {
    let with = |data: &[u8]| fault(&response("a", A).record("a", CNAME, IN, 60, data).a("a", 60, "192.0.2.1"));
    assert_eq!(with(&wire("b")), None);
    assert_eq!(with(&[&wire("b")[..], &[0]].concat()), Some(Fault::MalformedName));
    assert_eq!(with(&labels("b")), Some(Fault::MalformedName));
    assert_eq!(with(&[]), Some(Fault::MalformedName));
    assert_eq!(with(&pointer(0x3fff)), Some(Fault::BadPointer));
}

#[test]
fn addresses_of_a_wrong_length_are_ignored() {
    for len in (0..20).filter(|&len| len != 4) {
        let encoder = response("a", ANY).record("a", A, IN, 60, &vec![1; len]);
        assert_eq!(texts(&encoder), (vec![], 1), "A of {len} bytes");
    }
    for len in (0..20).filter(|&len| len != 16) {
        let encoder = response("a", ANY).record("a", AAAA, IN, 60, &vec![1; len]);
        assert_eq!(texts(&encoder), (vec![], 1), "AAAA of {len} bytes");
    }
}

#[test]
fn rfc_2181_a_ttl_with_the_top_bit_is_0() {
    for (ttl, expected) in
        [(0, 0), (1, 1), (0x7fff_ffff, 0x7fff_ffff), (0x8000_0000, 0), (0x8000_0001, 0), (u32::MAX, 0)]
    {
        let encoder = response("a", A).a("a", ttl, "192.0.2.1");
        assert_eq!(answers(&encoder.bytes), Ok((vec![("192.0.2.1".parse().unwrap(), expected)], 0)));
    }
}

#[test]
fn only_the_answer_section_is_read() {
    let encoder = response("a", A).a("a", 60, "192.0.2.1");
    let authority = encoder.clone().a("a", 60, "192.0.2.2").moved(8, 1);
    assert_eq!(texts(&authority), (vec!["192.0.2.1".into()], 0));
    // An OPT record (RFC 6891): the root owns it, and its class is a size in bytes.
    let edns = encoder.record("", 41, 1232, 0x8000_0000, &[0, 10, 0, 1, 7]).a("a", 60, "192.0.2.3").moved(10, 2);
    assert_eq!(texts(&edns), (vec!["192.0.2.1".into()], 0));
    assert_eq!(texts(&edns.without(4)), (vec!["192.0.2.1".into()], 0), "damage after the section");
}

#[test]
fn a_truncated_message_answers_with_its_complete_records() {
    let whole = response("a", A).a("b", 60, "192.0.2.1").cname("a", "b").a("b", 60, "192.0.2.2");
    for cut in 1..=16 {
        assert_eq!(fault(&whole.clone().without(cut)), Some(Fault::Truncated));
        assert_eq!(
            texts(&whole.clone().truncated().without(cut)),
            (vec!["192.0.2.1".into()], 0),
            "without {cut} bytes"
        );
    }
    // Without the alias, b was not asked.
    assert_eq!(texts(&whole.clone().truncated().without(17)), (vec![], 1));
    // The bit excuses no other fault.
    assert_eq!(fault(&whole.truncated().raw(&pointer(0x3fff), A, &[1; 4])), Some(Fault::BadPointer));
    assert_eq!(fault(&response("a", A).truncated().without(1)), Some(Fault::Truncated));
}

#[test]
fn a_fault_after_an_address_leaves_no_address() {
    let start = response("a", A).a("a", 60, "192.0.2.1");
    for owner in [&pointer(0x3fff)[..], &[0x40, 0]] {
        assert!(fault(&start.clone().raw(owner, A, &[1; 4])).is_some());
    }
    // `answers` checks that no address was reported before the fault.
    assert_eq!(fault(&start.without(1)), Some(Fault::Truncated));
}

#[test]
fn bytes_after_the_longest_message_are_not_read() {
    let mut encoder = response("a", A).record("a", 16, IN, 60, &vec![0; 65_000]);
    let room = 65_535 - encoder.bytes.len() - 12;
    encoder = encoder.record("a", 16, IN, 60, &vec![0; room - 16]).a("a", 60, "192.0.2.1");
    assert_eq!(encoder.bytes.len(), 65_535);
    assert_eq!(texts(&encoder).0.len(), 1);
    encoder = encoder.a("a", 60, "192.0.2.2");
    assert_eq!(fault(&encoder), Some(Fault::Truncated));
}

#[test]
fn the_last_of_the_most_records_counts() {
    let mut encoder = response("", A);
    while encoder.bytes.len() + 11 + 15 <= 65_535 {
        encoder = encoder.raw(&[0], A, &[]);
    }
    encoder = encoder.a("", 60, "192.0.2.1");
    assert_eq!(texts(&encoder), (vec!["192.0.2.1".into()], 5_954));
}

/// Appends address records with this owner until the message is full. Returns the message and the number of records.
fn fill(mut encoder: Encoder, owner: &[u8]) -> (Encoder, u16) {
    let mut count = 0;
    while encoder.bytes.len() + owner.len() + 14 <= 65_535 {
        encoder = encoder.raw(owner, A, &[192, 0, 2, 1]);
        count += 1;
    }
    (encoder, count)
}

/// Returns a name of 125 labels, almost the longest: 124 times `a`, then `number` with three digits.
fn long_name(number: usize) -> String {
    format!("{}{number:03}", "a.".repeat(124))
}

#[test]
fn a_message_full_of_addresses_is_not_costly() {
    let (encoder, count) = fill(response(&["a"; 20].join("."), A), &pointer(12));
    assert!(count > 4_000);
    assert_eq!(answers(&encoder.bytes).map(|(addresses, _)| addresses.len()), Ok(count.into()));
    // The same at the end of the longest chain, and with names in full. Their labels are compared.
    let (encoder, count) = fill(reversed_chain(64), &pointer(20));
    assert_eq!(answers(&encoder.bytes).map(|(addresses, _)| addresses.len()), Ok(usize::from(count) + 1));
    let name = ["ab"; 20].join(".");
    let (encoder, count) = fill(response(&name, A), &wire(&name));
    assert_eq!(answers(&encoder.bytes).map(|(addresses, _)| addresses.len()), Ok(count.into()));
}

#[test]
fn long_names_of_many_records_are_costly() {
    let encoder = response("a", A).record("a", 16, IN, 60, &wire(&long_name(0)));
    let (encoder, _) = fill(encoder, &pointer(31));
    assert_eq!(fault(&encoder), Some(Fault::CostlyNames));
}

#[test]
fn long_labels_of_many_records_are_costly() {
    let label = "x".repeat(63);
    let name = [&*label; 3].join(".");
    let encoder = response(&format!("{name}.a"), A).record(&format!("{name}.b").to_uppercase(), 16, IN, 60, &[]);
    let (encoder, _) = fill(encoder, &pointer(12 + 195 + 4));
    assert_eq!(fault(&encoder), Some(Fault::CostlyNames));
}

#[test]
fn long_runs_of_pointers_are_costly() {
    let (encoder, last) = pointers(8_000);
    assert_eq!(fault(&fill(encoder, &pointer(last)).0), Some(Fault::CostlyNames));
}

#[test]
fn comparisons_of_many_records_with_a_long_chain_are_costly() {
    // Each record takes 2 steps to check and 64 times 2 steps to compare.
    let with =
        |records| fault(&(0..records).fold(reversed_chain(64), |encoder, _| encoder.raw(&wire("other"), A, &[])));
    assert_eq!(with(400), None);
    assert_eq!(with(510), Some(Fault::CostlyNames));
}

#[test]
fn aliases_that_differ_in_their_last_labels_are_costly() {
    let start = Encoder::new(&long_name(0), A, IN, false);
    let encoder = (1..64).rev().fold(start, |encoder, n| encoder.cname(&long_name(n - 1), &long_name(n)));
    assert_eq!(fault(&encoder), Some(Fault::CostlyNames));
}

#[test]
fn thousands_of_aliases_are_a_long_chain() {
    let mut encoder = response("a", A);
    while encoder.bytes.len() < 65_000 {
        encoder = encoder.raw(&pointer(12), CNAME, &pointer(12));
    }
    assert_eq!(fault(&encoder), Some(Fault::LongChain));
}

#[test]
fn no_bytes_cause_a_panic() {
    let mut random = Random::new();
    let mut originals: Vec<Vec<u8>> = (0..200).map(|_| random.message().bytes).collect();
    originals.push(reversed_chain(64).bytes);
    let (mut bytes, mut reported) = (Vec::new(), 0u32);
    for round in 0..1_000_000 {
        bytes.clone_from(&originals[round % originals.len()]);
        random.damage(&mut bytes);
        if let Ok(message) = Message::parse(&bytes) {
            let _ = message.name().map(|name| assert!(!name.as_str().is_empty()));
            let _ = message.addresses(|_, _| reported += 1);
        }
    }
    assert!(reported > 50_000, "{reported} addresses");
}

#[test]
fn random_messages_have_the_answers_of_the_model() {
    let mut random = Random::new();
    let (mut with, mut without, mut ignoring, mut faulty, mut chained) = (0, 0, 0, 0, 0);
    for round in 0..100_000 {
        let mut bytes = random.message().bytes;
        if round % 2 == 0 {
            random.damage(&mut bytes);
        }
        let actual = answers(&bytes);
        let expected = model::answers(&bytes).map(|(addresses, ignored)| (addresses, u16::try_from(ignored).unwrap()));
        assert_eq!(actual.clone().ok(), expected, "{actual:?} of {bytes:02x?}");
        match actual {
            Ok((addresses, ignored)) => {
                with += u32::from(!addresses.is_empty());
                without += u32::from(addresses.is_empty());
                ignoring += u32::from(ignored > 0);
                // Without its aliases, the message has fewer addresses.
                chained += u32::from(addresses.len() > without_aliases(&bytes));
            }
            Err(_) => faulty += 1,
        }
    }
    let counts = [with, without, ignoring, faulty, chained];
    assert!(counts.iter().all(|&count| count > 1_000), "with, without, ignoring, faulty, chained: {counts:?}");
}

/// Returns the count of addresses that remain if the types of CNAME records change. The records of the message must be complete.
fn without_aliases(bytes: &[u8]) -> usize {
    let mut bytes = bytes.to_vec();
    let alias = [0, 5, 0, 1];
    for at in 12..bytes.len().saturating_sub(4) {
        if bytes[at..at + 4] == alias {
            bytes[at + 1] = 16;
        }
    }
    answers(&bytes).map_or(usize::MAX, |(addresses, _)| addresses.len())
}
