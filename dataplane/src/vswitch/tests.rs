//! The whole vswitch over ports in memory.

mod caching;
mod fragments;
mod gone;
mod judging;
mod names;
mod openings;
mod reasons;
mod renewals;
mod services;
mod stream;
mod torture;

use std::time::{Duration, Instant};

use super::*;
use crate::WorkerConfig;
use crate::io::{FlowCache, Frame, LoopbackPeer, LoopbackPort, PortError};
use crate::testbed::{
    A, A_MAC, ACK, B, FATAL_PORT, HOST, SYN, UPLINK, a_to_b, ethernet, ip, ports, snapshot_of, tcp, udp, v4,
};
use crate::{DropReason, Link, PortConfig, SessionConfig, Snapshot, Verdict};

const B_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const FRAMES: u32 = 4096;

/// Returns the testbed's ports with links. The vswitch's MAC address on port n ends in n.
fn live_ports() -> Vec<PortConfig> {
    let link = |id: u8| Some(Link { mac: own_mac(id), mtu: 9000 });
    let mut ports: Vec<PortConfig> =
        (0..).zip(ports()).map(|(id, port)| PortConfig { link: link(id), ..port }).collect();
    ports[B.index()].mac = Some(B_MAC);
    ports
}

const fn own_mac(id: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0xff, id]
}

/// A running vswitch and the peers of its ports.
struct Node {
    vswitch: Vswitch,
    publisher: Arc<Publisher>,
    peers: Vec<Option<LoopbackPeer>>,
}

impl Node {
    fn start(workers: usize, snapshot: Snapshot) -> Self {
        Self::start_with(workers, snapshot, None)
    }

    fn start_with(workers: usize, snapshot: Snapshot, tap: Option<Tap>) -> Self {
        let mut node = Self::unplugged(workers, snapshot, tap, None);
        [UPLINK, HOST, A, B].into_iter().for_each(|id| node.plug(id));
        node
    }

    /// Starts a vswitch without ports.
    fn unplugged(workers: usize, snapshot: Snapshot, tap: Option<Tap>, flow_cache: Option<Arc<dyn FlowCache>>) -> Self {
        let publisher = Arc::new(Publisher::new(snapshot));
        let config = VswitchConfig {
            affinity: Affinity::new(),
            lease: LEASE,
            cores: vec![None; workers],
            poll: PollMode::Adaptive,
            engine: WorkerConfig { sessions: SessionConfig::live(1_000_000), ..WorkerConfig::default() },
            frames: FRAMES,
            tap,
            flow_cache,
        };
        let vswitch = Vswitch::start(&config, &publisher).unwrap();
        Self { vswitch, publisher, peers: (0..4).map(|_| None).collect() }
    }

    fn plug(&mut self, id: PortId) {
        self.plug_with(id, |port| port);
    }

    /// Adds a port that `change` has changed, and waits until every worker knows it.
    fn plug_with(&mut self, id: PortId, change: impl FnOnce(LoopbackPort) -> LoopbackPort) {
        let (port, other) = LoopbackPort::pair(1024);
        let port = change(port);
        self.vswitch.add_port(id, 0, Box::new(port));
        self.peers[id.index()] = Some(LoopbackPeer::new(other, self.vswitch.pool().sibling()));
        // A worker that does not know the port yet drops packets to it.
        assert!(self.vswitch.confirm());
    }

    fn send(&mut self, id: PortId, frame: &[u8]) {
        let peer = self.peers[id.index()].as_mut().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while peer.push(frame).is_err() {
            assert!(Instant::now() < deadline, "port {id:?} takes nothing");
            std::thread::yield_now();
        }
    }

    /// Sends frames that the vswitch receives together.
    fn send_burst(&mut self, id: PortId, frames: &[Vec<u8>]) {
        self.until("room for a burst", |node| node.peers[id.index()].as_mut().unwrap().push_burst(frames).is_ok());
    }

    /// Returns the next frame that the vswitch sends out of a port.
    fn receive(&mut self, id: PortId) -> Vec<u8> {
        let mut got = None;
        self.until("a frame", |node| {
            got = node.peers[id.index()].as_mut().unwrap().pop();
            got.is_some()
        });
        got.unwrap()
    }

    /// Waits until a condition holds, with a generous time limit.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < deadline, "no {what}: {:?}", self.vswitch.counters());
            std::thread::yield_now();
        }
    }

    fn until_dropped(&mut self, reason: DropReason, count: u64) {
        self.until(reason.name(), |node| node.vswitch.counters().dropped(reason) == count);
    }

    /// Stops the vswitch, and checks that every packet was counted and every frame is back.
    fn stop(mut self) -> VswitchCounters {
        self.peers.clear();
        let mut pool = self.vswitch.pool().sibling();
        let counters = self.vswitch.stop();
        assert_eq!(counters.lost(), 0, "{counters:?}");
        let mut frames = Vec::new();
        frames.extend(std::iter::from_fn(|| pool.take()));
        assert_eq!(frames.len(), FRAMES as usize, "frames are missing");
        counters
    }
}

fn from_a(packet: &[u8]) -> Vec<u8> {
    ethernet(A_MAC, 0x0800, packet)
}

fn with_ttl(mut packet: Vec<u8>, ttl: u8) -> Vec<u8> {
    packet[8] = ttl;
    packet[10..12].fill(0);
    let sum = etherparse::Ipv4HeaderSlice::from_slice(&packet).unwrap().to_header().calc_header_checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn packets_of_two_pods_arrive_as_a_router_sends_them_and_none_is_lost() {
    for workers in [1, 2, 3] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        for round in 0..50 {
            for sport in 0..20 {
                let packet = tcp("10.0.0.1", "10.0.0.2", 1000 + round * 20 + sport, 80, SYN);
                node.send(A, &from_a(&packet));
            }
            for _ in 0..20 {
                let frame = node.receive(B);
                assert_eq!((&frame[..6], &frame[6..12]), (&B_MAC[..], &own_mac(3)[..]));
                let (before, after) = (tcp("10.0.0.1", "10.0.0.2", 0, 80, SYN)[8], frame[14 + 8]);
                assert_eq!(after, before - 1, "one hop less");
                let header = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap();
                assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            }
        }
        let counters = node.stop();
        assert_eq!(counters.port(A).received, 1000);
        assert_eq!(counters.port(B).sent, 1000);
        assert_eq!(counters.sum(|worker| worker.engine.sessions().created), 1000);
    }
}

#[test]
fn both_directions_of_a_connection_find_one_session_whatever_worker_they_come_in_on() {
    for workers in [2, 3] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        for sport in 0..40u16 {
            node.send(A, &from_a(&tcp("10.0.0.1", "10.0.0.2", 2000 + sport, 80, SYN)));
            node.receive(B);
            let answer = tcp("10.0.0.2", "10.0.0.1", 80, 2000 + sport, SYN | ACK);
            node.send(B, &ethernet(B_MAC, 0x0800, &answer));
            assert_eq!(node.receive(A)[..6], A_MAC);
        }
        let counters = node.stop();
        assert_eq!(counters.sum(|worker| worker.engine.sessions().created), 40);
    }
}

#[test]
fn a_session_counts_for_the_ports_at_both_of_its_ends_whatever_worker_has_it() {
    for workers in [1, 2] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        for sport in 0..5 {
            node.send(A, &from_a(&tcp("10.0.0.1", "10.0.0.2", 2000 + sport, 80, SYN)));
            node.receive(B);
        }
        node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 81)));
        node.until_dropped(DropReason::PolicyDenied, 1);
        let counters = node.vswitch.counters();
        let told = [UPLINK, HOST, A, B].map(|id| counters.sessions_of(id)).map(|told| (told.started, told.reached));
        assert_eq!(told, [(0, 0), (0, 0), (5, 0), (0, 5)]);
        assert_eq!((counters.port_dropped(A), counters.port_dropped(B)), (1, 0));
        node.stop();
    }
}

#[test]
fn what_policy_denies_goes_nowhere() {
    let mut node = Node::start(2, snapshot_of(1, live_ports()));
    for dport in 81..91 {
        node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", dport)));
    }
    node.until_dropped(DropReason::PolicyDenied, 10);
    let counters = node.stop();
    assert_eq!((counters.port(B).sent, counters.sum(|worker| worker.originated)), (0, 0));
}

#[test]
fn a_jumbo_packet_travels_in_several_frames() {
    for workers in [1, 2] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        let payload: Vec<u8> = (0..=255).cycle().take(8900).collect();
        for _ in 0..10 {
            node.send(A, &from_a(&jumbo(&payload)));
            assert_eq!(node.receive(B)[14 + 28..], payload);
        }
        node.stop();
    }
}

/// Returns a UDP packet from A to port 80 of B.
fn jumbo(payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    let udp_packet = [&[0x9c, 0x40, 0, 80][..], &len.to_be_bytes(), &[0, 0], payload].concat();
    v4("10.0.0.1", "10.0.0.2", 17, 64, &udp_packet)
}

#[test]
fn a_burst_leaves_in_order_whatever_is_between_its_packets() {
    let (denied, expired) = (udp("10.0.0.1", "10.0.0.2", 81), with_ttl(a_to_b(SYN), 1));
    let to_host = tcp("10.0.0.1", "192.168.0.1", 7, 80, SYN);
    let between = [None, Some(denied), Some(expired), Some(jumbo(&[7; 8000])), Some(to_host)];
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    // The vswitch learns the host's MAC address.
    node.send(HOST, &ethernet([2, 0, 0, 0, 0, 9], 0x0800, &udp("192.168.0.1", "10.0.0.1", 80)));
    node.receive(A);
    for (number, odd) in (0..).zip(between) {
        let packets = (0..60).map(|sport| tcp("10.0.0.1", "10.0.0.2", 100 * number + 1 + sport, 80, SYN));
        let mut burst: Vec<Vec<u8>> = packets.map(|packet| from_a(&packet)).collect();
        if let Some(odd) = odd {
            burst.insert(20, from_a(&odd));
            burst.insert(40, from_a(&odd));
        }
        node.send_burst(A, &burst);
        for sport in 0..60 {
            let mut frame = node.receive(B);
            if frame.len() > 8000 {
                assert!(sport == 20 || sport == 39, "{sport}");
                frame = node.receive(B);
            }
            assert_eq!(frame[34..36], (100 * number + 1u16 + sport).to_be_bytes());
        }
    }
    let counters = node.stop();
    assert_eq!((counters.port(A).received, counters.port(B).sent), (5 * 60 + 4 * 2, 5 * 60 + 2));
    assert_eq!(counters.port(HOST).sent, 2);
    assert_eq!((counters.dropped(DropReason::PolicyDenied), counters.dropped(DropReason::TtlExpired)), (2, 2));
}

#[test]
fn a_pod_whose_mac_is_not_known_is_asked_and_the_packet_waits() {
    let mut ports = live_ports();
    ports[B.index()].mac = None;
    let mut node = Node::start(2, snapshot_of(1, ports));
    node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
    let question = node.receive(B);
    assert_eq!(question[12..14], [8, 6]);
    assert_eq!(question[38..42], [10, 0, 0, 2]);
    let answer = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &B_MAC, &[10, 0, 0, 2], &question[22..28], &question[28..32]].concat();
    node.send(B, &ethernet(B_MAC, 0x0806, &answer));
    let packet = node.receive(B);
    assert_eq!((&packet[..6], &packet[12..14]), (&B_MAC[..], &[8, 0][..]));
    let counters = node.stop();
    assert!(counters.sum(|worker| worker.absorbed) >= 1);
}

#[test]
fn a_packet_without_another_hop_is_answered_with_time_exceeded() {
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    node.send(A, &from_a(&with_ttl(a_to_b(SYN), 1)));
    let error = node.receive(A);
    assert_eq!((error[14 + 9], error[34], &error[26..30]), (1, 11, &[192, 168, 0, 1][..]));
    let counters = node.stop();
    assert_eq!((counters.dropped(DropReason::TtlExpired), counters.sum(|worker| worker.originated)), (1, 1));
}

#[test]
fn vswitch_and_host_stack_are_one_hop_so_what_the_node_sends_with_ttl_1_passes() {
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    node.send(HOST, &ethernet([2, 0, 0, 0, 0, 9], 0x0800, &with_ttl(udp("192.168.0.1", "10.0.0.1", 179), 1)));
    let frame = node.receive(A);
    assert_eq!((&frame[..6], frame[14 + 8]), (&A_MAC[..], 1));
    node.stop();
}

#[test]
fn a_port_that_goes_is_told_and_the_others_go_on() {
    for workers in [1, 3] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        node.peers[B.index()] = None;
        node.until("event", |node| {
            node.vswitch.events().any(|event| matches!(event, VswitchEvent::PortGone { port: B, .. }))
        });
        node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
        node.until_dropped(DropReason::PortDown, 1);
        node.send(A, &from_a(&udp("10.0.0.1", "192.168.0.1", 53)));
        node.until("packet to the host", |node| node.vswitch.counters().sum(|worker| worker.held + worker.sent) > 0);
        node.vswitch.remove_port(B);
        node.plug(B);
        node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
        assert_eq!(node.receive(B)[..6], B_MAC);
        node.stop();
    }
}

#[test]
fn the_tap_gets_every_packet_as_it_came_in_with_the_verdict_of_the_vswitch() {
    let (tap, tapped) = Tap::new();
    let mut node = Node::start_with(2, snapshot_of(1, live_ports()), Some(tap));
    let frames = [from_a(&udp("10.0.0.1", "10.0.0.2", 80)), from_a(&udp("10.0.0.1", "10.0.0.2", 81))];
    frames.iter().for_each(|frame| node.send(A, frame));
    let next = || tapped.recv_timeout(Duration::from_secs(20)).unwrap();
    let (one, two) = (next(), next());
    assert_eq!([&*one.bytes, &*two.bytes], [&frames[0][..], &frames[1][..]]);
    assert_eq!(one.outcome.verdict, Verdict::Forward(B));
    assert_eq!(two.outcome.verdict, Verdict::Drop(DropReason::PolicyDenied));
    assert_eq!(two.outcome.flow.unwrap().dst, ip("10.0.0.2"));
    node.stop();
}

#[test]
fn a_new_generation_holds_from_its_first_packet_on() {
    let mut node = Node::start(2, snapshot_of(1, live_ports()));
    node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
    node.receive(B);
    let mut ports = live_ports();
    ports[B.index()].egress = Some(crate::testbed::CLOSED);
    node.publisher.publish(snapshot_of(2, ports)).unwrap();
    node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
    node.until_dropped(DropReason::PolicyDenied, 1);
    let counters = node.stop();
    assert_eq!(counters.sum(|worker| worker.engine.sessions().revoked), 1);
}

#[test]
fn workers_without_threads_do_a_round_when_they_are_told_to() {
    let publisher = Publisher::new(snapshot_of(1, live_ports()));
    let config = VswitchConfig {
        affinity: Affinity::new(),
        lease: LEASE,
        cores: vec![None; 2],
        poll: PollMode::Spin,
        engine: WorkerConfig { sessions: SessionConfig::live(1000), ..WorkerConfig::default() },
        frames: FRAMES,
        tap: None,
        flow_cache: None,
    };
    let (mut vswitch, mut workers) = Vswitch::stepped(&config, &publisher).unwrap();
    let peers = [A, B].map(|id| {
        let (port, other) = LoopbackPort::pair(64);
        vswitch.add_port(id, 0, Box::new(port));
        LoopbackPeer::new(other, vswitch.pool().sibling())
    });
    let [mut a, mut b] = peers;
    let frame = from_a(&udp("10.0.0.1", "10.0.0.2", 80));
    assert_eq!(workers.iter().filter(|worker| worker.owns(&frame)).count(), 1);
    // A's port belongs to the first worker, B's to the second, so the packet travels over one lane for either owner of the session.
    a.push(&frame).unwrap();
    assert!(workers[0].round(1) && b.pop().is_none());
    assert!(workers[1].round(2));
    assert_eq!(b.pop().unwrap()[..6], B_MAC);
    assert!(!workers[0].round(3) && !workers[1].round(3));
    // Busy time is the time from the start of a round with work to the start of the next round.
    assert!(!workers[0].round(1000) && !workers[1].round(1000));
    let counters = VswitchCounters {
        workers: workers.into_iter().map(SteppedWorker::stop).collect(),
        ..VswitchCounters::default()
    };
    assert_eq!((counters.port(A).received, counters.port(B).sent, counters.lost()), (1, 1, 0));
    assert_eq!([0, 1].map(|worker| counters.workers[worker].busy_ns), [2, 1]);
    // `stop` waits for no worker.
    assert!(vswitch.stop().workers.is_empty());
}

#[test]
fn workers_that_cannot_be_are_an_error() {
    let publisher = Publisher::new(Snapshot::empty());
    let config = |cores| VswitchConfig {
        affinity: Affinity::new(),
        lease: LEASE,
        cores,
        poll: PollMode::Spin,
        engine: WorkerConfig::default(),
        frames: 64,
        tap: None,
        flow_cache: None,
    };
    assert!(matches!(Vswitch::start(&config(vec![]), &publisher), Err(VswitchError::Workers { workers: 0 })));
    let nowhere = Vswitch::start(&config(vec![Some(100_000)]), &publisher);
    assert!(matches!(nowhere, Err(VswitchError::Core { worker: 0, core: 100_000 })));
}

/// A port that panics when `now` is set.
#[derive(Debug)]
struct Fatal {
    port: LoopbackPort,
    now: Arc<std::sync::atomic::AtomicBool>,
}

impl Port for Fatal {
    fn receive(&mut self, into: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        assert!(!self.now.swap(false, std::sync::atomic::Ordering::Relaxed), "a test wants this");
        self.port.receive(into, limit)
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        self.port.send(frames)
    }

    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        self.port.service(pool)
    }

    fn close(&mut self, pool: &mut FramePool) {
        self.port.close(pool);
    }
}

#[test]
fn a_worker_that_panics_goes_on_with_its_sessions_and_the_others_never_stop() {
    for workers in [1, 3] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        let exchange = |node: &mut Node| {
            node.send(A, &from_a(&a_to_b(ACK)));
            node.receive(B);
        };
        node.send(A, &from_a(&a_to_b(SYN)));
        node.receive(B);
        for round in 1..=3 {
            let fatal = tcp("10.0.0.1", "10.0.0.2", 40_000, FATAL_PORT, SYN);
            node.send(A, &from_a(&fatal));
            let is_told = |event| matches!(event, VswitchEvent::WorkerRestarted { .. });
            node.until("restart", |node| node.vswitch.events().any(is_told));
            // The session still exists: a segment from its middle would create none.
            exchange(&mut node);
            assert_eq!(
                (node.vswitch.counters().dropped(DropReason::Unjudged), node.vswitch.dead_workers()),
                (round, 0)
            );
        }
        let counters = node.stop();
        assert_eq!(counters.sum(|worker| worker.restarts), 3);
        assert_eq!(counters.sum(|worker| worker.engine.sessions().created), 1);
    }
}

#[test]
fn a_worker_that_panics_outside_of_the_engine_goes_on_too() {
    let mut node = Node::unplugged(2, snapshot_of(1, live_ports()), None, None);
    [UPLINK, HOST, B].into_iter().for_each(|id| node.plug(id));
    let (port, other) = LoopbackPort::pair(1024);
    let now = Arc::new(std::sync::atomic::AtomicBool::new(false));
    node.vswitch.add_port(A, 0, Box::new(Fatal { port, now: Arc::clone(&now) }));
    node.peers[A.index()] = Some(LoopbackPeer::new(other, node.vswitch.pool().sibling()));
    node.send(A, &from_a(&a_to_b(SYN)));
    node.receive(B);
    now.store(true, std::sync::atomic::Ordering::Relaxed);
    node.until("restart", |node| node.vswitch.counters().sum(|worker| worker.restarts) == 1);
    node.send(A, &from_a(&a_to_b(ACK)));
    node.receive(B);
    node.stop();
}

#[test]
fn a_worker_that_fails_again_and_again_ends() {
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    let fatal = from_a(&tcp("10.0.0.1", "10.0.0.2", 40_000, FATAL_PORT, SYN));
    node.until("end", |node| {
        let _ = node.peers[A.index()].as_mut().unwrap().push(&fatal);
        std::thread::sleep(Duration::from_millis(2));
        node.vswitch.dead_workers() == 1
    });
    let is_end = |event: &VswitchEvent| matches!(event, VswitchEvent::WorkerEnded { worker: 0 });
    assert_eq!(node.vswitch.events().filter(is_end).count(), 1, "once, after its restarts");
}

#[test]
fn a_worker_that_has_ended_is_told_as_one_that_does_not_answer() {
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    let answers = |node: &Node| node.vswitch.counters().workers[0].has_answered;
    assert!(answers(&node));
    let fatal = from_a(&tcp("10.0.0.1", "10.0.0.2", 40_000, FATAL_PORT, SYN));
    node.until("end", |node| {
        let _ = node.peers[A.index()].as_mut().unwrap().push(&fatal);
        std::thread::sleep(Duration::from_millis(2));
        !answers(node)
    });
}
