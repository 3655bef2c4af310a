//! ICMP messages other than errors: rules on types and codes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_classifier::{Action, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, protocol};
use proptest::prelude::*;

use super::dropped;
use crate::testbed::*;
use crate::*;

const DENIED: Verdict = Verdict::Drop(DropReason::PolicyDenied);

/// A family's ends, and the types of its messages.
#[derive(Clone, Copy)]
struct Family {
    pods: [&'static str; 2],
    protocol: u8,
    echo: u8,
    reply: u8,
    /// Another request and its answer.
    request: u8,
    answer: u8,
    /// A message that is neither.
    message: u8,
}

const FAMILIES: [Family; 2] = [
    Family {
        pods: ["10.0.0.1", "10.0.0.2"],
        protocol: protocol::ICMP,
        echo: 8,
        reply: 0,
        request: 13,
        answer: 14,
        message: 40,
    },
    Family {
        pods: ["fd00::1", "fd00::2"],
        protocol: protocol::ICMPV6,
        echo: 128,
        reply: 129,
        request: 139,
        answer: 140,
        message: 200,
    },
];

impl Family {
    fn packet(&self, (from, to): (&str, &str), (kind, code): (u8, u8), id: u8) -> Vec<u8> {
        let message = [kind, code, 0, 0, 0, id, 0, 1, 0, 0, 0, 0];
        match self.protocol {
            protocol::ICMP => v4(from, to, protocol::ICMP, 64, &message),
            _ => v6(from, to, protocol::ICMPV6, 64, &message),
        }
    }

    fn a_to_b(&self, kind: u8, code: u8) -> Vec<u8> {
        self.packet((self.pods[0], self.pods[1]), (kind, code), 7)
    }

    fn b_to_a(&self, kind: u8, code: u8) -> Vec<u8> {
        self.packet((self.pods[1], self.pods[0]), (kind, code), 7)
    }

    /// A table that allows these types and codes.
    fn table(&self, allowed: &[(u8, u8)]) -> Tables {
        let set: ServiceSet = allowed
            .iter()
            .map(|&(kind, code)| Service {
                protocols: (self.protocol, self.protocol),
                ports: PortRange::one(u16::from_be_bytes([kind, code])),
            })
            .collect();
        let allow = Rule { services: Services::from(set), ..Rule::any(Action::Allow, OriginId(7)) };
        let deny = Rule::any(Action::Deny, OriginId(8));
        Tables::build(if allowed.is_empty() { vec![deny] } else { vec![allow, deny] }).unwrap()
    }

    /// A snapshot in which these messages may enter A, and B.
    fn snapshot(&self, generation: u64, into_a: &[(u8, u8)], into_b: &[(u8, u8)]) -> Snapshot {
        let mut ports = ports();
        (ports[A.index()].egress, ports[B.index()].egress) = (Some(CLOSED), Some(STRICT));
        let tables = [open_table(), self.table(into_a), self.table(into_b)].map(Arc::new).to_vec();
        let routes = routes(&ports);
        Snapshot::new(generation, ports, tables, routes).unwrap()
    }

    fn bed(&self, into_b: &[(u8, u8)]) -> Bed {
        let mut bed = Bed::new();
        bed.snapshot = self.snapshot(2, &[], into_b);
        bed
    }
}

#[test]
fn a_rule_on_echo_requests_allows_pings_and_their_replies_and_no_other_message() {
    for family in FAMILIES {
        let mut bed = family.bed(&[(family.echo, 0)]);
        assert_eq!(bed.verdict(A, &family.a_to_b(family.echo, 0)), Verdict::Forward(B));
        let reply = bed.send(B, &family.b_to_a(family.reply, 0));
        assert_eq!((reply.verdict, reply.session), (Verdict::Forward(A), Some(SessionState::Hit)));
        assert_eq!(bed.verdict(A, &family.a_to_b(family.request, 0)), DENIED, "another type");
        assert_eq!(bed.verdict(A, &family.a_to_b(family.message, 0)), DENIED, "another type");
        assert_eq!(bed.verdict(B, &family.b_to_a(family.echo, 0)), DENIED, "against the direction");
        let (from, to) = (family.pods[0], family.pods[1]);
        let first = bed.send(A, &family.packet((from, to), (family.echo, 3), 9));
        assert_eq!(first.verdict, DENIED, "another code");
        assert_eq!(first.decision.unwrap().rule, Some(1));
    }
}

#[test]
fn a_rule_on_another_type_does_not_allow_pings() {
    for family in FAMILIES {
        let mut bed = family.bed(&[(family.request, 0)]);
        assert_eq!(bed.verdict(A, &family.a_to_b(family.echo, 0)), DENIED);
        assert_eq!(bed.verdict(A, &family.a_to_b(family.request, 0)), Verdict::Forward(B));
    }
}

#[test]
fn a_message_with_another_code_is_judged_although_a_ping_of_its_identifier_is_open() {
    for family in FAMILIES {
        let (ping, other) = (family.a_to_b(family.echo, 0), family.a_to_b(family.echo, 5));
        let mut bed = family.bed(&[(family.echo, 0)]);
        assert_eq!(bed.verdict(A, &ping), Verdict::Forward(B));
        assert_eq!(bed.verdict(A, &other), DENIED);
        let next = bed.send(A, &ping);
        assert_eq!((next.verdict, next.session), (Verdict::Forward(B), Some(SessionState::Hit)), "the ping goes on");
        assert_eq!(bed.verdict(B, &family.b_to_a(family.reply, 0)), Verdict::Forward(A));
        // The other way round: a refusal is for its message only.
        let mut bed = family.bed(&[(family.echo, 0)]);
        assert_eq!([&other, &ping].map(|packet| bed.verdict(A, packet)), [DENIED, Verdict::Forward(B)]);
    }
}

#[test]
fn messages_of_several_types_between_two_pods_have_sessions_of_their_own() {
    for family in FAMILIES {
        let mut bed = family.bed(&[(family.request, 0)]);
        assert_eq!(bed.verdict(A, &family.a_to_b(family.request, 0)), Verdict::Forward(B));
        let answer = bed.send(B, &family.b_to_a(family.answer, 2));
        assert_eq!((answer.verdict, answer.session), (Verdict::Forward(A), Some(SessionState::Hit)));
        assert_eq!(bed.verdict(B, &family.b_to_a(family.request, 0)), DENIED, "a request is no answer");
        assert_eq!(bed.verdict(B, &family.b_to_a(family.message, 0)), DENIED, "nor is another message");
        assert_eq!(bed.verdict(A, &family.a_to_b(family.message, 0)), DENIED, "which A may not send either");
        assert_eq!(bed.verdict(A, &family.a_to_b(family.answer, 0)), DENIED);
    }
}

#[test]
fn an_answer_that_a_rule_allows_by_its_type_opens_nothing_to_requests() {
    for family in FAMILIES {
        let mut bed = Bed::new();
        bed.snapshot = family.snapshot(2, &[], &[(family.answer, 0)]);
        assert_eq!(bed.verdict(A, &family.a_to_b(family.answer, 0)), Verdict::Forward(B));
        assert_eq!(bed.verdict(B, &family.b_to_a(family.request, 0)), DENIED);
    }
}

#[test]
fn a_session_is_judged_again_by_its_first_message_in_either_direction() {
    for family in FAMILIES {
        for (request, reply) in [(family.echo, family.reply), (family.request, family.answer)] {
            for reply_first in [false, true] {
                let mut bed = family.bed(&[(request, 1)]);
                bed.send(A, &family.a_to_b(request, 1));
                let next = |bed: &mut Bed| match reply_first {
                    false => bed.verdict(A, &family.a_to_b(request, 1)),
                    true => bed.verdict(B, &family.b_to_a(reply, 0)),
                };
                let passes = Verdict::Forward(if reply_first { A } else { B });
                assert_eq!(next(&mut bed), passes);
                bed.snapshot = family.snapshot(3, &[], &[(family.message, 0), (request, 1)]);
                assert_eq!(next(&mut bed), passes, "type {request}");
                assert_eq!(bed.worker.counters().sessions().created, 1);
                bed.snapshot = family.snapshot(4, &[(reply, 0)], &[(request, 0), (reply, 0)]);
                assert_eq!(next(&mut bed), DENIED, "type {request}");
            }
        }
    }
}

#[test]
fn an_error_about_a_ping_is_judged_by_the_ping_after_a_change() {
    for family in FAMILIES {
        let ping = family.a_to_b(family.echo, 0);
        let error = error_about(&ping, family.pods[1], family.pods[0]);
        let mut bed = family.bed(&[(family.echo, 0)]);
        bed.send(A, &ping);
        bed.snapshot = family.snapshot(3, &[], &[(family.echo, 0)]);
        assert_eq!(bed.verdict(B, &error), Verdict::Forward(A));
        bed.snapshot = family.snapshot(4, &[], &[(family.request, 0)]);
        assert_eq!(bed.verdict(B, &error), dropped(DropReason::PolicyDenied));
    }
}

#[test]
fn an_audited_message_is_reported_with_its_type_and_code() {
    for family in FAMILIES {
        let mut bed = Bed::new();
        let (tap, told) = AuditTap::new();
        bed.worker.tell_audits_to(tap);
        let mut ports = ports();
        (ports[B.index()].egress, ports[B.index()].audit) = (Some(OPEN), Some(STRICT));
        let tables = [open_table(), open_table(), family.table(&[(family.echo, 0)])].map(Arc::new).to_vec();
        let routes = routes(&ports);
        bed.snapshot = Snapshot::new(2, ports, tables, routes).unwrap();
        for code in [0, 4] {
            assert_eq!(bed.verdict(A, &family.a_to_b(family.echo, code)), Verdict::Forward(B));
        }
        let flows: Vec<Flow> = told.try_iter().map(|audited| audited.flow).collect();
        assert_eq!(flows.iter().map(|flow| (flow.icmp, flow.dport)).collect::<Vec<_>>(), [(Some((family.echo, 4)), 0)]);
    }
}

#[test]
fn a_session_of_an_earlier_process_is_judged_by_its_first_message() {
    let folder = std::env::temp_dir().join(format!("bulkhead-messages-{}", std::process::id()));
    let config = WorkerConfig { sessions: SessionConfig::live(1000), ..WorkerConfig::default() };
    for family in FAMILIES {
        let affinity = Affinity::new();
        let mut bed = family.bed(&[(family.echo, 3), (family.request, 3)]);
        let restart = |bed: &mut Bed| {
            drop(std::mem::replace(&mut bed.worker, Worker::new(config)));
            let mut store = SessionStore::open(&folder).unwrap();
            bed.worker = Worker::team_in(&mut store, config, 1, &affinity, &snapshot(), bed.now).unwrap().remove(0);
            store.adoption().adopted
        };
        restart(&mut bed);
        for request in [family.echo, family.request] {
            bed.send(A, &family.a_to_b(request, 3));
        }
        assert_eq!(restart(&mut bed), 2);
        for answer in [family.reply, family.answer] {
            assert_eq!(bed.verdict(B, &family.b_to_a(answer, 0)), Verdict::Forward(A));
        }
        bed.snapshot = family.snapshot(3, &[], &[(family.echo, 0), (family.request, 0)]);
        for answer in [family.reply, family.answer] {
            assert_eq!(bed.verdict(B, &family.b_to_a(answer, 0)), DENIED);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// A conversation of the model: the pod that began it, its message, and whether the tables last allowed it.
#[derive(Clone, Copy)]
struct Conversation {
    from: usize,
    message: (u8, u8),
    is_open: bool,
    was_open: bool,
}

/// What tells conversations apart: the type of the request or message, the pod that sends the requests, and an echo's identifier.
type Conversations = BTreeMap<(u8, Option<usize>, u8), Conversation>;

/// The messages that may enter each pod.
type Allowed = [BTreeSet<(u8, u8)>; 2];

/// Returns whether a packet passes, and which case it was.
fn model(
    family: &Family,
    known: &mut Conversations,
    allowed: &Allowed,
    (from, message, id): (usize, (u8, u8), u8),
) -> (bool, &'static str) {
    let allows = |from: usize, message: (u8, u8)| allowed[1 - from].contains(&message);
    let (request, asks) = match message.0 {
        kind if kind == family.reply => (family.echo, Some(false)),
        kind if kind == family.answer => (family.request, Some(false)),
        kind if kind == family.message => (kind, None),
        kind => (kind, Some(true)),
    };
    let is_echo = request == family.echo;
    let asker = asks.map(|asks| if asks { from } else { 1 - from });
    let key = (request, asker, if is_echo { id } else { 0 });
    if let Some(known) = known.get_mut(&key) {
        let is_part = if known.from == from { known.message == message } else { asks != Some(true) };
        if is_part && is_echo && known.from != from && !known.was_open {
            return (false, "reply to a request that never passed");
        }
        if is_part {
            known.is_open = allows(known.from, known.message);
            known.was_open |= known.is_open;
            let case = if known.from == from { "again" } else { "answer" };
            return (known.is_open, case);
        }
    }
    if is_echo && asks == Some(false) {
        return (false, "reply to nothing");
    }
    let is_open = allows(from, message);
    let is_kept = !is_open && known.get(&key).is_some_and(|known| known.is_open);
    if !is_kept {
        known.insert(key, Conversation { from, message, is_open, was_open: is_open });
    }
    (is_open, if is_kept { "denied beside an open one" } else { "new" })
}

#[test]
fn all_sequences_of_messages_pass_as_in_the_model() {
    let reached = RefCell::new(BTreeMap::<(&str, bool), u32>::new());
    let messages = (0usize..5, prop::bool::weighted(0.3)).prop_map(|(kind, code)| (kind, u8::from(code)));
    let allowed = || proptest::collection::vec((0usize..2, messages.clone()), 0..9);
    let packets = || proptest::collection::vec((0usize..2, messages.clone(), 1u8..3), 1..25);
    let generations = proptest::collection::vec((allowed(), packets()), 1..4);
    proptest!(ProptestConfig::with_cases(600), |(v6 in any::<bool>(), generations in generations)| {
        let family = &FAMILIES[usize::from(v6)];
        let kinds = [family.echo, family.reply, family.request, family.answer, family.message];
        let (mut bed, mut known) = (Bed::new(), Conversations::new());
        for (generation, (allowed, packets)) in (2..).zip(generations) {
            let into = |pod| allowed.iter().filter(move |(to, _)| *to == pod).map(|(_, (kind, code))| (kinds[*kind], *code));
            let allowed = [into(0).collect(), into(1).collect()];
            let [a, b] = allowed.each_ref().map(|set: &BTreeSet<_>| set.iter().copied().collect::<Vec<_>>());
            bed.snapshot = family.snapshot(generation, &a, &b);
            for (from, (kind, code), id) in packets {
                let message = (kinds[kind], code);
                let packet = family.packet((family.pods[from], family.pods[1 - from]), message, id);
                let (passes, case) = model(family, &mut known, &allowed, (from, message, id));
                let verdict = bed.verdict([A, B][from], &packet);
                prop_assert_eq!(verdict.out_port(), passes.then_some([A, B][1 - from]), "{} {:?} {:?}", case, message, verdict);
                *reached.borrow_mut().entry((case, passes)).or_default() += 1;
            }
        }
    });
    let reached = reached.into_inner();
    let cases = [("new", true), ("new", false), ("again", true), ("again", false), ("answer", true), ("answer", false)];
    let denied = ["reply to nothing", "reply to a request that never passed", "denied beside an open one"];
    for case in cases.into_iter().chain(denied.map(|case| (case, false))) {
        assert!(reached.get(&case).copied().unwrap_or_default() >= 100, "{case:?}: {reached:?}");
    }
}
