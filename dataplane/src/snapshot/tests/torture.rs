//! Alternates, as fast as possible, between two policies of which each allows what the other denies, while workers judge bursts with both
//! kinds of packets. A burst in which both kinds pass, neither passes, or a packet has no verdict would mix two generations.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bulkhead_classifier::{Action, OriginId, PortRange, Rule, Service, ServiceSet, Services, protocol};

use super::*;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::{CLOSED, SECOND, probe};
use crate::{DropReason, LinkType, Outcome, Packet, SessionConfig, Verdict, Worker, WorkerConfig};

/// The destination port that each policy allows: even generations the first, odd generations the second.
const ALLOWED: [u16; 2] = [80, 81];

/// Number of bursts that each worker must judge by each policy. A worker that read the snapshot twice per burst was detected in every run.
const BURSTS: u64 = 1200;

/// Number of changes that each worker must see.
const CHANGES: u64 = 300;

const FLOWS: u16 = 64;

fn policy(which: usize) -> Arc<Tables> {
    let ports = PortRange::one(ALLOWED[which]);
    let set: ServiceSet = [Service { protocols: (protocol::UDP, protocol::UDP), ports }].into_iter().collect();
    let origin = OriginId(u32::from(ALLOWED[which]));
    let allow = Rule { services: Services::from(set), ..Rule::any(Action::Allow, origin) };
    Arc::new(Tables::build(vec![allow, Rule::any(Action::Deny, origin)]).unwrap())
}

/// Creates snapshots in which pod B has one of two policies, and no connection to pod A is allowed.
struct Policies {
    ports: Vec<PortConfig>,
    routes: Routes,
    closed: Arc<Tables>,
    tables: [Arc<Tables>; 2],
}

impl Policies {
    fn new() -> Self {
        let mut ports = ports();
        // The tables of `snapshot`.
        ports[A.index()].egress = Some(TableId(0));
        ports[B.index()].egress = Some(TableId(1));
        ports[UPLINK.index()].egress = Some(TableId(0));
        ports[HOST.index()].egress = Some(TableId(0));
        let closed = Arc::clone(&snapshot().tables()[CLOSED.index()]);
        Self { routes: routes(&ports), ports, closed, tables: [policy(0), policy(1)] }
    }

    fn snapshot(&self, generation: u64) -> Snapshot {
        let ruling = Arc::clone(&self.tables[usize::from(generation % 2 == 1)]);
        let tables = vec![Arc::clone(&self.closed), ruling];
        Snapshot::new(generation, self.ports.clone(), tables, self.routes.clone()).unwrap()
    }
}

/// A packet, and the policy that allows it.
struct Sent {
    bytes: Vec<u8>,
    in_port: PortId,
    kind: usize,
}

impl Sent {
    fn packet(&self) -> Packet<'_> {
        let (frame, wire_len) = (self.bytes.as_slice(), self.bytes.len());
        Packet { frame, wire_len, link: LinkType::Raw, in_port: self.in_port, time: SECOND }
    }
}

/// Returns requests of flows of both kinds in turn, each followed by its reply if requested.
fn burst(with_replies: bool) -> Vec<Sent> {
    let mut burst = Vec::new();
    for flow in 0..FLOWS {
        for (kind, dport) in ALLOWED.into_iter().enumerate() {
            let probe = Probe { sport: 1024 + flow, ..probe(ProbeKind::Udp, "10.0.0.1", "10.0.0.2", dport) };
            burst.push(Sent { bytes: probe.request().unwrap(), in_port: A, kind });
            if with_replies {
                burst.push(Sent { bytes: probe.reply().unwrap(), in_port: B, kind });
            }
        }
    }
    burst
}

/// The bursts and changes that a worker has seen.
#[derive(Debug, Default)]
struct Met {
    bursts: [AtomicU64; 2],
    changes: AtomicU64,
    revoked: AtomicU64,
}

impl Met {
    fn is_enough(&self) -> bool {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.bursts.iter().all(|bursts| count(bursts) >= BURSTS) && count(&self.changes) >= CHANGES
    }
}

/// Judges the burst repeatedly until `stop` is set.
fn work(mut reader: Reader, config: SessionConfig, keeps_sessions: bool, met: &Met, stop: &AtomicBool) {
    let mut worker = Worker::new(WorkerConfig { sessions: config, ..WorkerConfig::default() });
    let burst = burst(keeps_sessions);
    let packets: Vec<Packet<'_>> = burst.iter().map(Sent::packet).collect();
    let mut outcomes = vec![Outcome::UNJUDGED; burst.len()];
    let (mut last, mut bursts) = (0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        outcomes.fill(Outcome::UNJUDGED);
        let snapshot = reader.load();
        worker.process(snapshot, &packets, &mut outcomes);
        let generation = snapshot.generation();
        let ruling = usize::from(generation % 2 == 1);
        check(&burst, &outcomes, ruling);
        met.bursts[ruling].fetch_add(1, Ordering::Relaxed);
        met.changes.fetch_add(u64::from(generation != last), Ordering::Relaxed);
        last = generation;
        if !keeps_sessions {
            worker.clear();
        }
        // So that all workers run on a machine with one core.
        bursts += 1;
        if bursts % 8 == 0 {
            std::thread::yield_now();
        }
    }
    let counters = worker.counters();
    let judged = bursts * burst.len() as u64;
    assert_eq!((counters.received(), counters.forwarded()), (judged, judged / 2), "half of each burst passes");
    assert_eq!(counters.dropped(DropReason::PolicyDenied), judged / 2);
    met.revoked.store(counters.sessions().revoked, Ordering::Relaxed);
}

/// Checks that each packet has the verdict and the origin of the policy in force.
fn check(burst: &[Sent], outcomes: &[Outcome], ruling: usize) {
    for (sent, outcome) in burst.iter().zip(outcomes) {
        let out = if sent.in_port == A { B } else { A };
        let expected =
            if sent.kind == ruling { Verdict::Forward(out) } else { Verdict::Drop(DropReason::PolicyDenied) };
        assert_eq!(outcome.verdict, expected, "{:?} while only port {} is allowed", outcome.flow, ALLOWED[ruling]);
        if sent.in_port == A {
            let origin = outcome.decision.unwrap().origin;
            assert_eq!(origin, Some(OriginId(ALLOWED[ruling].into())), "a policy that does not rule any more");
        }
    }
}

fn torture(config: SessionConfig, keeps_sessions: bool) -> [Met; 2] {
    let policies = Policies::new();
    let publisher = Publisher::new(policies.snapshot(0));
    let (met, stop) = ([Met::default(), Met::default()], AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers = met.each_ref().map(|met| {
            let (reader, stop) = (publisher.reader(), &stop);
            scope.spawn(move || work(reader, config, keeps_sessions, met, stop))
        });
        let mut generation = 0;
        // The scope reports a worker that has panicked.
        while !met.iter().all(Met::is_enough) && !workers.iter().any(|worker| worker.is_finished()) {
            generation += 1;
            publisher.publish(policies.snapshot(generation)).unwrap();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(publisher.collect(), 0, "every old snapshot is freed here");
    met
}

#[test]
fn a_burst_of_new_flows_gets_one_policy_and_never_the_union() {
    for met in torture(SessionConfig::default(), false) {
        assert!(met.is_enough(), "{met:?}");
    }
}

#[test]
fn sessions_that_a_policy_allowed_end_with_the_burst_in_which_the_other_one_rules() {
    for remember_refused in [true, false] {
        for met in torture(SessionConfig { remember_refused, ..SessionConfig::default() }, true) {
            assert!(met.is_enough(), "{met:?}");
            let revoked = met.revoked.load(Ordering::Relaxed);
            assert!(revoked >= u64::from(FLOWS), "sessions were revoked: {met:?}");
        }
    }
}
