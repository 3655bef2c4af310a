use std::ops::Range;
use std::sync::Arc;

use bulkhead_answers::bundle::weight;
use bulkhead_answers::destination::{DestinationNames, KnownName};
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Labels, Namespace, Object};
use bulkhead_dataplane::Flow;

use super::format::{HEADER, Kind, MOST_NUMBER, SEGMENT_HEAD};
use super::history::Limits;
use super::reader::{Damage, JournalError};
use super::state::{PART_HEAD, Unread, pack, unpack};
use super::writer::Writer;
use super::*;
use crate::scratch::Scratch;

const SMALL: Layout = Layout { segment: 1 << 18, segments: 3 };
const BIG: Layout = Layout { segment: 1 << 20, segments: 2 };

/// Memory that ignores writes after its first `left` bytes, as if the process had been killed then.
#[derive(Clone, Debug)]
struct Torn {
    bytes: Vec<u8>,
    left: usize,
}

impl Memory for Torn {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let taken = bytes.len().min(self.left);
        self.bytes.put(at, &bytes[..taken]);
        self.left -= taken;
    }

    fn grow(&mut self, _part: Range<usize>) -> bool {
        true
    }
}

fn recorder(layout: Layout) -> Recorder<Vec<u8>> {
    Recorder::open(vec![0; layout.bytes()], layout, "node-1", 1).unwrap().0
}

fn namespace(name: &str, label: &str) -> Object {
    let labels: Labels = [("team".into(), label.into())].into();
    Object::Namespace(Namespace {
        name: name.into(),
        labels,
        terminating: false,
        isolation: Default::default(),
        denied: None,
        enforcement: None,
    })
}

fn change(events: Vec<Event>) -> Change {
    Change { merged: 1, events, ..Change::default() }
}

fn whole(objects: Vec<Object>) -> Change {
    Change { is_whole: true, ..change(objects.into_iter().map(Event::Apply).collect()) }
}

fn known_name(at: u64) -> KnownName {
    let until = (!at.is_multiple_of(8)).then_some(1_796_126_400_000_000_000 + at * 1_000_000_000);
    KnownName { name: format!("n{at}.example.com").into(), until }
}

fn verdict(at: u64) -> Verdict {
    let name = |text: &str| Some(Arc::<str>::from(text));
    let v6 = at.is_multiple_of(3);
    let address = |last: u8| match v6 {
        true => std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
        false => std::net::IpAddr::from([10, 0, 0, last]),
    };
    let flow = Flow { src: address(1), dst: address(2), protocol: 6, sport: 40_000, dport: 80, icmp: None };
    let (sport, dport) = (40_000, 8080);
    Verdict {
        time: at,
        generation: 300 + at,
        count: 1 + at % 1000,
        length: 74,
        in_port: name("x/a"),
        out_port: if at.is_multiple_of(2) { name("x/b") } else { None },
        reason: if at % 2 == 1 { name("policy_denied") } else { None },
        flow: if at % 7 == 6 { None } else { Some(flow) },
        translated: (at.is_multiple_of(5) && at % 7 != 6).then(|| Translated {
            src: address(1),
            dst: address(9),
            sport,
            dport,
        }),
        tcp_flags: Some(2),
        table: name("x/b"),
        rule: (at % 2 == 1).then_some(1 << 20),
        origin: name("ingress isolated by x/p"),
        audited: None,
        names: match at % 4 {
            0 => Some(DestinationNames::Matched(known_name(at))),
            1 => Some(DestinationNames::Known((0..at % 3).map(known_name).collect())),
            _ => None,
        },
    }
}

fn history(bytes: &[u8]) -> History<'_> {
    History::open(bytes).unwrap()
}

/// Returns the label `team` of each namespace at a time.
fn teams(history: &History<'_>, time: u64) -> Result<String, HistoryError> {
    let team = |object: &Object| match object {
        Object::Namespace(namespace) => format!("{}={}", namespace.name, namespace.labels["team"]),
        other => format!("{other:?}"),
    };
    history.state_at(time).map(|state| state.objects.objects().map(team).collect::<Vec<_>>().join(" "))
}

fn seen(history: &History<'_>) -> Vec<Verdict> {
    let mut all = Vec::new();
    history.verdicts(0, u64::MAX, |verdict| all.push(verdict));
    all
}

#[test]
fn what_was_told_is_what_is_read() {
    let mut recorder = recorder(SMALL);
    recorder.change(1000, 5, &whole(vec![namespace("x", "red"), namespace("y", "red")])).unwrap();
    // Microseconds are kept.
    let verdicts: Vec<Verdict> = (0..100).map(|at| Verdict { time: at * 1_000_000, ..verdict(at) }).collect();
    recorder.verdicts(50_000_000, &verdicts).unwrap();
    let left_out = LeftOut { since: 1, sessions: 7, dropped: 8, unheard: 9 };
    recorder.left_out(60_000_000, left_out).unwrap();
    let gone = Event::DeleteNamespace("y".into());
    recorder.change(70_000_000, 6, &change(vec![Event::Apply(namespace("x", "blue")), gone.clone()])).unwrap();
    recorder.stop(80_000_000).unwrap();
    let history = history(recorder.memory());
    assert_eq!(history.damage(), Damage::default());
    assert_eq!((history.node(), history.begins(), history.ends()), ("node-1", Some(1000), 80_000_000));
    assert_eq!(seen(&history), verdicts);
    assert_eq!(history.left_out(0, 100), LeftOut { since: 0, ..left_out });
    assert_eq!(history.left_out(70_000_000, 80_000_000).total(), 0);
    assert_eq!(teams(&history, 999), Err(HistoryError::Before { begins: 1000 }));
    assert_eq!(teams(&history, 69_999_999).unwrap(), "x=red y=red");
    assert_eq!(teams(&history, 70_000_000).unwrap(), "x=blue");
    let mut state = history.state_at(1000).unwrap();
    let step = history.follow(&mut state).unwrap();
    assert_eq!((step.time, step.generation, step.merged, step.missing), (70_000_000, 6, 1, 0));
    let before = [Some(namespace("x", "red")), Some(namespace("y", "red"))];
    let events = [Event::Apply(namespace("x", "blue")), gone];
    assert_eq!(step.events, events.into_iter().zip(before).collect::<Vec<_>>());
    assert!(history.follow(&mut state).is_none() && history.is_last(&state));
    assert_eq!(history.pause_at(80_000_001), Some((80_000_000, None)));
}

#[test]
fn a_crash_at_any_byte_of_a_record_loses_nothing_that_was_written_before() {
    crash_at_any_byte(|writer, payload| writer.append(Kind::Name, 30, 2, payload).unwrap());
}

#[test]
fn a_crash_at_any_byte_of_a_rotation_loses_nothing_that_was_written_before() {
    crash_at_any_byte(|writer, payload| {
        writer.rotate(30).unwrap();
        writer.append(Kind::Name, 30, 2, payload).unwrap();
    });
}

/// Cuts `write` off after each possible number of bytes, on a copy of one journal. Panics if the journal then lacks what it had before, or
/// if the next process cannot add to it.
fn crash_at_any_byte(write: fn(&mut Writer<Torn>, &[u8])) {
    let mut recorder = recorder(SMALL);
    recorder.change(10, 1, &whole(vec![namespace("x", "red")])).unwrap();
    recorder.verdicts(20, &(0..10).map(verdict).collect::<Vec<_>>()).unwrap();
    let before = recorder.memory().clone();
    let expected = seen(&history(&before));
    let number = before.len();
    let payload = vec![0xa5; 301];
    let whole = {
        let torn = Torn { bytes: before.clone(), left: number };
        let (mut writer, _) = Writer::open(torn, SMALL, "node-1", 1, |_| ()).unwrap();
        write(&mut writer, &payload);
        number - writer.memory().left
    };
    for left in 0..=whole {
        let torn = Torn { bytes: before.clone(), left };
        let (mut writer, _) = Writer::open(torn, SMALL, "node-1", 1, |_| ()).unwrap();
        write(&mut writer, &payload);
        let mut bytes = writer.memory().bytes.clone();
        let found = history(&bytes);
        assert_eq!(seen(&found), expected, "{left} of {whole} bytes");
        assert_eq!(teams(&found, 10).unwrap(), "x=red", "{left} of {whole} bytes");
        assert!(!found.damage().is_loss() || left >= whole - 312, "{left}: {:?}", found.damage());
        // The next process continues the journal.
        let (mut next, damage) = Recorder::open(bytes.clone(), SMALL, "node-1", 40).unwrap();
        assert!(damage.is_some());
        next.change(50, 3, &whole_of("blue")).unwrap();
        bytes.clone_from(next.memory());
        let found = history(&bytes);
        assert_eq!((teams(&found, 49).unwrap(), teams(&found, 50).unwrap()), ("x=red".into(), "x=blue".into()));
        assert_eq!(seen(&found), expected);
    }
}

fn whole_of(team: &str) -> Change {
    whole(vec![namespace("x", team)])
}

#[test]
fn whatever_byte_is_wrong_nothing_is_read_that_was_not_written_and_a_loss_is_told() {
    let mut recorder = recorder(SMALL);
    recorder.change(10, 1, &whole_of("red")).unwrap();
    recorder.verdicts(20, &(0..4).map(verdict).collect::<Vec<_>>()).unwrap();
    recorder.change(30, 2, &change(vec![Event::Apply(namespace("x", "blue"))])).unwrap();
    recorder.verdicts(40, &(4..8).map(verdict).collect::<Vec<_>>()).unwrap();
    let sound = recorder.memory().clone();
    let written = seen(&history(&sound));
    let end = sound.iter().rposition(|&byte| byte != 0).unwrap();
    assert!(end < HEADER + 4096, "{end}");
    for at in (0..HEADER / 8).chain(HEADER..=end) {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x41;
        let Ok(found) = History::open(&bytes) else {
            assert!(at < HEADER, "byte {at}");
            continue;
        };
        let read = seen(&found);
        assert!(read.iter().all(|verdict| written.contains(verdict)), "byte {at}");
        let is_whole = read == written && teams(&found, 30).as_deref() == Ok("x=blue");
        assert!(is_whole || found.damage().is_loss() || found.damage().is_torn, "byte {at}: {:?}", found.damage());
        // An unknown state is an error, not a guess.
        let then = teams(&found, 30);
        assert!(then.is_err() || ["x=blue", "x=red"].contains(&then.as_deref().unwrap()), "byte {at}: {then:?}");
        if then.as_deref() == Ok("x=red") {
            assert!(found.damage().is_loss(), "byte {at}");
        }
    }
    for end in (0..=end + 8).step_by(5) {
        if let Ok(found) = History::open(&sound[..end]) {
            assert!(seen(&found).len() <= written.len(), "cut at {end}");
        } else {
            assert!(end < HEADER);
        }
    }
    for foreign in [vec![0; HEADER * 2], vec![0xff; HEADER * 2], b"apiVersion: v1".to_vec(), Vec::new()] {
        assert_eq!(History::open(&foreign).unwrap_err(), JournalError::Foreign);
    }
    let mut other = sound.clone();
    other[8] = 99;
    assert_eq!(History::open(&other).unwrap_err(), JournalError::Version(99));
    let opened = Recorder::open(sound, SMALL, "node-2", 1);
    assert!(opened.unwrap_err().to_string().contains("node `node-1`"));
}

#[test]
fn a_page_of_zeros_in_the_middle_is_a_loss_and_what_is_behind_it_is_read() {
    let mut recorder = recorder(SMALL);
    recorder.change(10, 1, &whole_of("red")).unwrap();
    for at in 0..200 {
        recorder.verdicts(20, &(0..10).map(|entry| verdict(at * 10 + entry)).collect::<Vec<_>>()).unwrap();
    }
    let mut bytes = recorder.memory().clone();
    let before = seen(&history(&bytes)).len();
    bytes[HEADER + 8192..HEADER + 12_288].fill(0);
    let found = history(&bytes);
    let after = seen(&found).len();
    assert!(after < before && after + 200 > before, "{after} of {before}");
    assert!(found.damage().is_loss() && found.damage().bytes >= 4096);
}

#[test]
fn the_ring_turns_and_each_segment_is_read_alone() {
    let mut recorder = recorder(SMALL);
    recorder.change(0, 1, &whole(vec![namespace("x", "0"), namespace("y", "same")])).unwrap();
    let times = 3000_u64;
    for at in 1..times {
        recorder.change(at * 10, at, &change(vec![Event::Apply(namespace("x", &at.to_string()))])).unwrap();
        recorder.verdicts(at * 10 + 5, &(0..10).map(|entry| verdict(at * 10 + entry)).collect::<Vec<_>>()).unwrap();
    }
    let bytes = recorder.memory().clone();
    let found = history(&bytes);
    let begins = found.begins().unwrap();
    assert!(begins > 10 && begins < times * 10 / 2 + times * 5, "{begins}");
    assert_eq!(teams(&found, begins - 1), Err(HistoryError::Before { begins }));
    for time in (begins..times * 10).step_by(170) {
        assert_eq!(teams(&found, time).unwrap(), format!("x={} y=same", time / 10), "{time}");
    }
    let (mut state, mut steps) = (found.state_at(begins).unwrap(), begins / 10);
    while let Some(step) = found.follow(&mut state) {
        steps += 1;
        assert_eq!((step.time, step.missing, step.events.len()), (steps * 10, 0, 1));
    }
    assert_eq!(steps, times - 1);
    // All segments except one are lost.
    for kept in 0..SMALL.segments {
        let mut alone = bytes.clone();
        for other in (0..SMALL.segments).filter(|&other| other != kept) {
            let range = SMALL.at(other);
            alone[range.start..range.start + SEGMENT_HEAD].fill(0xee);
        }
        let alone = history(&alone);
        assert_eq!(alone.damage().segments, SMALL.segments - 1);
        let begins = alone.begins().unwrap();
        assert_eq!(teams(&alone, begins).unwrap(), format!("x={} y=same", begins / 10));
        assert!(!seen(&alone).is_empty());
    }
}

#[test]
fn a_lost_change_is_a_gap_and_not_a_guess() {
    let mut recorder = recorder(SMALL);
    recorder.change(10, 1, &whole_of("0")).unwrap();
    let start = recorder.memory().iter().rposition(|&byte| byte != 0).unwrap();
    recorder.change(20, 2, &change(vec![Event::Apply(namespace("x", "1"))])).unwrap();
    let middle = recorder.memory().iter().rposition(|&byte| byte != 0).unwrap();
    recorder.change(30, 3, &change(vec![Event::Apply(namespace("y", "2"))])).unwrap();
    let mut bytes = recorder.memory().clone();
    bytes[usize::midpoint(start, middle)] ^= 1;
    let found = history(&bytes);
    assert_eq!(teams(&found, 10).unwrap(), "x=0");
    assert!(found.damage().is_loss());
    for time in [25, 30] {
        // At 25 it may have been in force, or not.
        assert_eq!(teams(&found, time), Err(HistoryError::Gap(Gap { from: 10, until: None })));
    }
    let mut state = found.state_at(10).unwrap();
    assert!(found.follow(&mut state).is_none() && !found.is_last(&state));
    // The next process begins with the whole state.
    let (mut next, _) = Recorder::open(bytes, SMALL, "node-1", 40).unwrap();
    next.change(50, 4, &whole(vec![namespace("x", "1"), namespace("y", "2")])).unwrap();
    let found = history(next.memory());
    assert_eq!(teams(&found, 30), Err(HistoryError::Gap(Gap { from: 10, until: Some(50) })));
    assert_eq!(teams(&found, 50).unwrap(), "x=1 y=2");
    let mut state = found.state_at(10).unwrap();
    let step = found.follow(&mut state).unwrap();
    assert_eq!((step.time, step.missing, step.events.len()), (50, 2, 2));
}

#[test]
fn a_restart_goes_on_and_says_when_nobody_was_there() {
    let mut first = recorder(SMALL);
    first.change(10, 1, &whole(vec![namespace("x", "red"), namespace("y", "red")])).unwrap();
    first.alive(20);
    let (mut second, damage) = Recorder::open(first.memory().clone(), SMALL, "node-1", 50).unwrap();
    assert_eq!(damage, Some(Damage::default()));
    second.change(60, 9, &whole(vec![namespace("x", "red")])).unwrap();
    let found = history(second.memory());
    assert_eq!(teams(&found, 59).unwrap(), "x=red y=red");
    assert_eq!(teams(&found, 60).unwrap(), "x=red");
    assert_eq!((found.pause_at(20), found.pause_at(49)), (Some((20, Some(50))), Some((20, Some(50)))));
    assert_eq!((found.pause_at(19), found.pause_at(50)), (None, None));
    // Only what differs was written.
    let mut state = found.state_at(10).unwrap();
    assert_eq!(found.follow(&mut state).unwrap().events.len(), 1);
}

#[test]
fn a_large_state_is_bounded_and_that_is_said() {
    let mut recorder = recorder(SMALL);
    // Names that do not pack.
    let mut word = 1_u64;
    let mut random = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{word:016x}")
    };
    let many = |count: usize, random: &mut dyn FnMut() -> String| {
        (0..count).map(|_| namespace(&random(), &random())).collect::<Vec<_>>()
    };
    recorder.change(10, 1, &whole(many(7000, &mut random))).unwrap();
    assert_eq!(recorder.is_too_large(), None);
    for at in 0..3000 {
        recorder.verdicts(20 + at, &(0..20).map(verdict).collect::<Vec<_>>()).unwrap();
    }
    let found = history(recorder.memory());
    assert_eq!(recorder.is_too_large(), Some(7000));
    assert_eq!(found.state_at(4000).err(), Some(HistoryError::Empty), "its segment was written over");
    assert!(!seen(&found).is_empty(), "and verdicts go on");
    let error = recorder.change(5000, 2, &change(many(20_000, &mut random).into_iter().map(Event::Apply).collect()));
    assert!(error.unwrap_err().to_string().contains("27000 objects"));
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let mut recorder = recorder(SMALL);
    recorder.change(10, 1, &whole_of("red")).unwrap();
    recorder.verdicts(20, &(0..50).map(verdict).collect::<Vec<_>>()).unwrap();
    let sound = recorder.memory().clone();
    let mut word = 88_172_645_463_325_252_u64;
    for _ in 0..300 {
        let mut bytes = sound.clone();
        for _ in 0..20 {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            let at = HEADER + usize::try_from(word % 6000).unwrap();
            bytes[at] = u8::try_from(word >> 56).unwrap();
        }
        let found = history(&bytes);
        let _ = (teams(&found, 15), seen(&found), found.pause_at(3), found.left_out(0, 9));
    }
    // Arbitrary payloads with valid CRCs.
    let (mut writer, _) = Writer::open(sound, SMALL, "node-1", 1, |_| ()).unwrap();
    for kind in [Kind::Checkpoint, Kind::Change, Kind::Name, Kind::Verdicts, Kind::LeftOut, Kind::Run] {
        for length in 1..60 {
            writer.append(kind, 30, 1, &vec![0xff; length]).unwrap();
            writer.append(kind, 30, 1, &vec![u8::try_from(length).unwrap(); length]).unwrap();
        }
    }
    let found = history(writer.memory());
    assert!(found.damage().unknown > 100 && teams(&found, 20).as_deref() == Ok("x=red"));
    let _ = (found.state_at(30).is_ok(), seen(&found));
}

#[test]
fn numbers_that_no_journal_has_are_not_understood() {
    let mut recorder = recorder(SMALL);
    recorder.change(10, 1, &whole_of("red")).unwrap();
    let (mut writer, _) = Writer::open(recorder.memory().clone(), SMALL, "node-1", 1, |_| ()).unwrap();
    for number in [0, MOST_NUMBER, u64::MAX] {
        for kind in [Kind::Checkpoint, Kind::Change] {
            let parts = pack(number, br#"{"whole":true}"#).unwrap();
            parts.iter().for_each(|part| writer.append(kind, 30, 1, part).unwrap());
        }
    }
    let most = u64::MAX;
    let left_out = LeftOut { since: 1, sessions: most, dropped: most, unheard: most };
    writer.append(Kind::LeftOut, 30, 1, &serde_json::to_vec(&left_out).unwrap()).unwrap();
    let found = history(writer.memory());
    assert_eq!(found.damage().unknown, 6);
    assert_eq!(teams(&found, 40).as_deref(), Ok("x=red"));
    assert_eq!(found.left_out(0, 50).total(), most);
    let mut state = found.state_at(40).unwrap();
    assert!(found.follow(&mut state).is_none() && found.is_last(&state));
    // A later process can continue the journal.
    let (mut next, _) = Recorder::open(writer.memory().clone(), SMALL, "node-1", 50).unwrap();
    next.change(60, 2, &change(vec![Event::Apply(namespace("x", "blue"))])).unwrap();
    assert_eq!(teams(&history(next.memory()), 60).as_deref(), Ok("x=blue"));
}

#[test]
fn a_small_record_of_very_many_events_is_not_unpacked() {
    let change_of = |events: usize| {
        let event = serde_json::to_string(&Event::DeleteNode("a".into())).unwrap();
        let lines = "{}\n".to_owned() + &vec![event; events].join("\n");
        let parts = pack(1, lines.as_bytes()).unwrap();
        let packed = parts.iter().flat_map(|part| &part[PART_HEAD..]).copied().collect::<Vec<u8>>();
        unpack(&packed[..], weight::MOST_WEIGHT, &std::cell::Cell::new(u64::MAX))
            .map(|unpacked| unpacked.change.events.len())
    };
    assert_eq!(change_of(1000), Ok(1000));
    let too_many = usize::try_from(weight::MOST_WEIGHT).unwrap() / size_of::<Event>();
    assert_eq!(change_of(too_many), Err(Unread::TooLarge));
}

#[test]
fn a_state_that_is_not_known_is_in_no_checkpoint() {
    let mut first = recorder(SMALL);
    first.change(10, 1, &whole_of("0")).unwrap();
    let start = first.memory().iter().rposition(|&byte| byte != 0).unwrap();
    first.change(20, 2, &change(vec![Event::Apply(namespace("x", "1"))])).unwrap();
    let middle = first.memory().iter().rposition(|&byte| byte != 0).unwrap();
    first.change(30, 3, &change(vec![Event::Apply(namespace("y", "2"))])).unwrap();
    let mut bytes = first.memory().clone();
    bytes[usize::midpoint(start, middle)] ^= 1;
    // The segment is full before the next process records its state.
    let (mut next, _) = Recorder::open(bytes, SMALL, "node-1", 40).unwrap();
    for _ in 0..400 {
        next.verdicts(45, &(0..20).map(verdict).collect::<Vec<_>>()).unwrap();
    }
    assert!(next.memory()[SMALL.at(1).start..SMALL.at(1).end].iter().any(|&byte| byte != 0), "it is full");
    assert_eq!(teams(&history(next.memory()), 45), Err(HistoryError::Gap(Gap { from: 10, until: None })));
    next.change(50, 4, &whole(vec![namespace("x", "1")])).unwrap();
    assert_eq!(teams(&history(next.memory()), 45), Err(HistoryError::Gap(Gap { from: 10, until: Some(50) })));
    assert_eq!(teams(&history(next.memory()), 50).as_deref(), Ok("x=1"));
}

#[test]
fn of_too_many_changes_the_newest_are_read_and_the_others_are_counted() {
    let mut recorder = recorder(SMALL);
    recorder.change(0, 1, &whole_of("0")).unwrap();
    for at in 1..100_u64 {
        recorder.change(at * 10, at, &change(vec![Event::Apply(namespace("x", &at.to_string()))])).unwrap();
    }
    // A checkpoint of a process that does not know the earlier state.
    recorder.change(1000, 100, &whole_of("100")).unwrap();
    let within = |limits| History::within(recorder.memory().into(), limits).unwrap();
    let all = within(Limits::OF_A_VSWITCH);
    assert_eq!((all.passed_over(), all.begins()), (0, Some(0)));
    let some = within(Limits { changes: 20, ..Limits::OF_A_VSWITCH });
    assert!((80..100).contains(&some.passed_over()), "{}", some.passed_over());
    assert!(some.state_at(500).is_err(), "its whole state is not read");
    assert_eq!(all.state_at(500).map(|state| state.generation), Ok(50));
    assert_eq!(some.last_number(), all.last_number());
}

#[test]
fn a_state_that_grows_beyond_what_a_vswitch_can_have_is_refused_and_one_that_changes_as_often_is_not() {
    let mut recorder = recorder(SMALL);
    recorder.change(0, 1, &whole_of("0")).unwrap();
    let limits = Limits { weight: 1 << 14, ..Limits::OF_A_VSWITCH };
    for at in 1..200_u64 {
        recorder.change(at, at, &change(vec![Event::Apply(namespace("x", &at.to_string()))])).unwrap();
    }
    let before = History::within(recorder.memory().into(), limits).unwrap();
    assert_eq!(teams(&before, 199).as_deref(), Ok("x=199"), "one object, however often it changes");
    for at in 200..400_u64 {
        recorder.change(at, at, &change(vec![Event::Apply(namespace(&at.to_string(), "same"))])).unwrap();
    }
    let after = History::within(recorder.memory().into(), limits).unwrap();
    assert!(teams(&after, 201).is_ok());
    assert_eq!(teams(&after, 399), Err(HistoryError::TooLarge));
    let mut state = after.state_at(199).unwrap();
    while after.follow(&mut state).is_some() {}
    assert!(!after.is_last(&state), "what comes after it is lost, and that is said");
    assert!(teams(&history(recorder.memory()), 399).is_ok());
}

#[test]
fn names_that_no_recorder_writes_are_not_kept() {
    let (mut writer, _) = Writer::open(recorder(SMALL).memory().clone(), SMALL, "node-1", 1, |_| ()).unwrap();
    let mut long = 1_u64.to_le_bytes().to_vec();
    long.extend_from_slice(&[b'x'; 2000]);
    writer.append(Kind::Name, 30, 1, &long).unwrap();
    assert_eq!(history(writer.memory()).damage().unknown, 1);
}

#[test]
fn a_file_is_read_through_a_window_and_tells_what_memory_tells() {
    // Segments of several windows, so that records cross their borders.
    let (mut recorder, _) = Recorder::open(vec![0; BIG.bytes()], BIG, "node-1", 1).unwrap();
    recorder.change(10, 1, &whole_of("red")).unwrap();
    let mut verdicts = 0;
    while !recorder.memory()[BIG.at(1)].iter().any(|&byte| byte != 0) {
        recorder.verdicts(20, &(0..900).map(|entry| verdict(verdicts + entry)).collect::<Vec<_>>()).unwrap();
        verdicts += 900;
    }
    recorder.change(30, 2, &change(vec![Event::Apply(namespace("x", "blue"))])).unwrap();
    let scratch = Scratch::new("journal-window");
    let path = scratch.path().join("journal");
    std::fs::write(&path, recorder.memory()).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let (read, held) = (History::open(&file).unwrap(), history(recorder.memory()));
    assert_eq!((read.damage(), read.ends()), (Damage::default(), held.ends()));
    assert!(seen(&read).len() > 4000 && seen(&read) == seen(&held));
    for time in [10, 30] {
        assert_eq!(teams(&read, time), teams(&held, time));
    }
    // A damaged byte is named by its offset in the file.
    let mut bytes = recorder.memory().clone();
    bytes[BIG.at(0).start + 500_000] ^= 1;
    let damage = history(&bytes).damage();
    let first = damage.first.unwrap();
    assert!((BIG.at(0).start + 400_000..=BIG.at(0).start + 500_000).contains(&first), "{first}");
    assert!(damage.to_string().ends_with(&format!("the first at byte {first}")), "{damage}");
    // The file becomes shorter while it is read.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(HEADER as u64).unwrap();
    assert_eq!(seen(&read), []);
    assert!(teams(&read, 30).is_err());
}

#[test]
fn a_file_that_claims_a_gigabyte_and_holds_little_is_read_up_to_its_end() {
    let claimed = Layout::of_size((1 << 30) - (1 << 16)).unwrap();
    let head = format::FileHead { layout: claimed, node: "node-1".into(), made: 1 };
    let mut small = recorder(SMALL);
    small.change(10, 1, &whole_of("red")).unwrap();
    let mut bytes = head.bytes();
    bytes.extend_from_slice(&small.memory()[HEADER..HEADER + 4096]);
    assert_eq!(teams(&history(&bytes), 10).as_deref(), Ok("x=red"));
}

#[test]
fn a_state_that_unpacks_to_far_more_than_its_records_is_refused() {
    let (mut writer, _) = Writer::open(recorder(SMALL).memory().clone(), SMALL, "node-1", 1, |_| ()).unwrap();
    let line = serde_json::to_string(&Event::Apply(namespace("x", "red"))).unwrap();
    let lines = "{\"whole\":true}\n".to_owned() + &vec![line; 100_000].join("\n");
    for payload in pack(1, lines.as_bytes()).unwrap() {
        writer.append(Kind::Checkpoint, 30, 1, &payload).unwrap();
    }
    assert_eq!(teams(&history(writer.memory()), 30), Err(HistoryError::TooLarge));
}
