//! Alternates, as fast as possible, between two policies of which each allows what the other denies, while bursts with both kinds of
//! packets, and a third kind that both allow, pass from port to port. A burst of which both kinds arrive, or neither, would mix two
//! generations. A missing packet of the third kind was lost.

use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_classifier::{Action, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, protocol};

use super::*;
use crate::TableId;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::{probe, routes};

/// Destination ports: the generation's policy allows one of the first two, and always the third.
const PORTS: [u16; 3] = [80, 81, 82];

/// Number of outside senders, enough that every worker owns some of the address pairs.
const SOURCES: u8 = 8;

/// Number of packets of each kind from a source in a burst.
const FLOWS: u16 = 5;

/// Number of flows that are the same in each burst, so that their sessions outlive changes. The others are new.
const OLD_FLOWS: u16 = 3;

/// Number of bursts that each policy must judge, and of changes between two bursts.
const BURSTS: u64 = 150;
const CHANGES: u64 = 100;

fn policy(which: usize) -> Arc<Tables> {
    let service = |port| Service { protocols: (protocol::UDP, protocol::UDP), ports: PortRange::one(port) };
    let set: ServiceSet = [service(PORTS[which]), service(PORTS[2])].into_iter().collect();
    let allow = Rule { services: Services::from(set), ..Rule::any(Action::Allow, OriginId(1)) };
    Arc::new(Tables::build(vec![allow, Rule::any(Action::Deny, OriginId(2))]).unwrap())
}

/// Creates generations in which pod B has one of two policies.
struct Policies {
    tables: [Arc<Tables>; 2],
    generation: u64,
    random: u64,
}

impl Policies {
    fn new() -> Self {
        Self { tables: [policy(0), policy(1)], generation: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Chooses a policy at random, so that bursts cannot keep step. (xorshift64, Marsaglia 2003.)
    fn next(&mut self) -> Snapshot {
        self.generation += 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let ruling = usize::from(self.random >> 63 == 1);
        let ports = live_ports().into_iter().map(|port| PortConfig { egress: Some(TableId(0)), ..port });
        let ports: Vec<PortConfig> = ports.collect();
        let routes = routes(&ports);
        Snapshot::new(self.generation, ports, vec![Arc::clone(&self.tables[ruling])], routes).unwrap()
    }
}

/// A packet's identity: its burst, source, flow and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    burst: u64,
    source: u8,
    flow: u16,
    kind: u8,
}

impl Number {
    const LEN: usize = 12;

    fn bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.burst.to_be_bytes());
        bytes[8] = self.source;
        bytes[9..11].copy_from_slice(&self.flow.to_be_bytes());
        bytes[11] = self.kind;
        bytes
    }

    fn read(frame: &[u8]) -> Self {
        let bytes: &[u8; Self::LEN] = frame[14 + 28..].first_chunk().unwrap();
        let burst = u64::from_be_bytes(*bytes.first_chunk().unwrap());
        Self { burst, source: bytes[8], flow: u16::from_be_bytes([bytes[9], bytes[10]]), kind: bytes[11] }
    }

    /// Returns the packet with this number, as it arrives on the uplink.
    fn frame(self) -> Vec<u8> {
        let fresh = u16::try_from(self.burst % 50_000).unwrap();
        let sport = if self.flow < OLD_FLOWS { 1024 + self.flow } else { 2048 + self.flow + fresh };
        let source = format!("8.8.8.{}", self.source);
        let probe = Probe { sport, ..probe(ProbeKind::Udp, &source, "10.0.0.2", PORTS[usize::from(self.kind)]) };
        let mut packet = probe.request().unwrap();
        // Keeps addresses and ports, and replaces the payload. UDP over IPv4 needs no checksum.
        packet.truncate(28);
        let len = u16::try_from(8 + Self::LEN).unwrap();
        let head: [u8; 4] = packet[20..24].try_into().unwrap();
        let udp = [&head[..], &len.to_be_bytes(), &[0, 0], &self.bytes()].concat();
        let [a, b, c, d] = [8, 8, 8, self.source];
        let packet = with_ttl(v4(&format!("{a}.{b}.{c}.{d}"), "10.0.0.2", 17, 64, &udp), 64);
        [&own_mac(0)[..], &[2, 0, 0, 0, 9, 9], &[8, 0], &packet].concat()
    }
}

/// Returns a burst: by source, then by flow, one packet of each kind.
fn burst(number: u64) -> Vec<Number> {
    let kinds = |source, flow| (0..3).map(move |kind| Number { burst: number, source, flow, kind });
    (0..SOURCES).flat_map(|source| (0..FLOWS).flat_map(move |flow| kinds(source, flow))).collect()
}

/// Returns the policy that judged each source's packets. `arrived` has all packets of a burst that were sent.
fn judge(sent: &[Number], arrived: &[Number]) -> Vec<u8> {
    let mut sorted = arrived.to_vec();
    sorted.sort_unstable();
    assert!(sorted.iter().all(|number| sent.contains(number)), "a packet of another burst: {arrived:?}");
    let of = |source| arrived.iter().filter(move |number| number.source == source);
    (0..SOURCES)
        .map(|source| {
            let ruling = of(source).find(|number| number.kind < 2).map(|number| number.kind);
            let ruling = ruling.unwrap_or_else(|| panic!("neither kind passed for {source}: {arrived:?}"));
            let all = sent.iter().filter(|number| number.source == source);
            let expected: Vec<&Number> = all.filter(|number| number.kind == ruling || number.kind == 2).collect();
            // In order, none missing, none of the denied kind.
            assert_eq!(of(source).collect::<Vec<_>>(), expected, "policy {ruling} rules");
            ruling
        })
        .collect()
}

fn torture(workers: usize) {
    let mut policies = Policies::new();
    let mut node = Node::start(workers, policies.next());
    let (publisher, stop) = (Arc::clone(&node.publisher), AtomicBool::new(false));
    let (mut bursts, mut by_policy, mut changes, mut last) = (0, [0; 2], 0, 0);
    std::thread::scope(|scope| {
        let ended = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                publisher.publish(policies.next()).unwrap();
                std::thread::yield_now();
            }
        });
        while by_policy.iter().any(|&count| count < BURSTS) || changes < CHANGES {
            let sent = burst(bursts);
            bursts += 1;
            node.send_burst(UPLINK, &sent.iter().map(|number| number.frame()).collect::<Vec<_>>());
            let passing = sent.len() * 2 / 3;
            let arrived: Vec<Number> = (0..passing).map(|_| Number::read(&node.receive(B))).collect();
            let ruling = judge(&sent, &arrived);
            if workers == 1 {
                assert!(ruling.iter().all(|&kind| kind == ruling[0]), "one burst, one generation: {ruling:?}");
            }
            by_policy[usize::from(ruling[0])] += 1;
            changes += u64::from(ruling[0] != last);
            last = ruling[0];
        }
        drop(ended);
    });
    let counters = node.stop();
    let sent = bursts * u64::from(SOURCES) * u64::from(FLOWS) * 3;
    assert_eq!((counters.port(UPLINK).received, counters.port(B).sent), (sent, sent * 2 / 3));
    assert_eq!(counters.dropped(DropReason::PolicyDenied), sent / 3);
    assert_eq!(counters.drops().map(|(_, count)| count).sum::<u64>(), sent / 3, "no other reason: {counters:?}");
    let revoked = counters.sum(|worker| worker.engine.sessions().revoked);
    assert!(revoked > 0, "sessions were revoked: {counters:?}");
}

/// Ends the publishing thread on drop, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_burst_that_one_worker_forwards_gets_one_of_two_disjoint_policies_and_loses_nothing() {
    torture(1);
}

#[test]
fn packets_that_change_workers_get_one_of_two_disjoint_policies_and_none_is_lost() {
    torture(2);
    torture(3);
}
