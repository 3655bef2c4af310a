//! The flows that the vswitch adds to a flow cache, and those that it must not add.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::io::{CachedFlow, FirstNumbers, FlowHandshake, FlowLatch, FlowStart, FlowSteps};
use crate::packet::TcpFlags;
use crate::testbed::{ACK, b_to_a};
use bulkhead_classifier::OriginId;

/// A cache that records flows and forwards nothing.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    flows: Mutex<Vec<CachedFlow>>,
    pub(super) renewed: Mutex<Vec<CachedFlow>>,
    pub(super) confirmed: Mutex<Vec<CachedFlow>>,
    /// The number of packets that passed each latch, and whether it is open.
    latches: Mutex<HashMap<FlowLatch, (u64, bool)>>,
    /// The numbers of each handshake, and the steps that a test lets the cache have forwarded.
    pub(super) handshakes: Mutex<HashMap<FlowHandshake, (FirstNumbers, FlowSteps)>>,
    /// Whether connections are added at their SYN.
    forwards_answers: bool,
    /// Ports that the cache does not reach.
    far: Vec<FlowSlot>,
    moves: Mutex<HashMap<PortId, u16>>,
    endings: AtomicU64,
}

impl FlowCache for Recorded {
    fn reaches(&self, out: FlowSlot) -> bool {
        !self.far.contains(&out)
    }

    fn add(&self, flow: &CachedFlow) {
        self.flows.lock().unwrap().push(*flow);
        if let FlowStart::Latch(latch) = flow.start {
            self.latches.lock().unwrap().insert(latch, (0, false));
        }
    }

    fn renew(&self, flow: &CachedFlow) -> bool {
        self.renewed.lock().unwrap().push(*flow);
        true
    }

    fn confirm(&self, flow: &CachedFlow) {
        self.confirmed.lock().unwrap().push(*flow);
    }

    fn forwards_answers(&self) -> bool {
        self.forwards_answers
    }

    fn await_handshake(&self, handshake: FlowHandshake, numbers: FirstNumbers) {
        let steps = FlowSteps { answered: numbers.responder, ..FlowSteps::default() };
        self.handshakes.lock().unwrap().insert(handshake, (numbers, steps));
    }

    fn steps(&self, handshake: FlowHandshake) -> FlowSteps {
        self.handshakes.lock().unwrap()[&handshake].1
    }

    fn passed(&self, latch: FlowLatch) -> u64 {
        self.latches.lock().unwrap()[&latch].0
    }

    fn moves(&self, port: PortId) -> u16 {
        self.moves.lock().unwrap().get(&port).copied().unwrap_or_default()
    }

    fn moved(&self, port: PortId) {
        *self.moves.lock().unwrap().entry(port).or_default() += 1;
        self.endings.fetch_add(1, Ordering::SeqCst);
    }

    fn endings(&self) -> u64 {
        self.endings.load(Ordering::SeqCst)
    }

    fn open(&self, latch: FlowLatch, passed: Option<u64>) -> bool {
        let mut latches = self.latches.lock().unwrap();
        let (count, is_open) = latches.get_mut(&latch).unwrap();
        *is_open |= passed.is_none_or(|passed| passed == *count);
        *is_open
    }
}

fn latch_of(flow: &CachedFlow) -> FlowLatch {
    match flow.start {
        FlowStart::Latch(latch) => latch,
        FlowStart::Handshake(..) => panic!("{flow:?}"),
    }
}

pub(super) const fn slot(id: PortId) -> FlowSlot {
    FlowSlot(id.0 + 10)
}

/// Starts a vswitch whose ports all have slots.
fn start(cache: &Arc<Recorded>, tap: Option<Tap>) -> Node {
    start_with(cache, tap, snapshot_of(4, live_ports()))
}

/// As [`start`], with this snapshot.
pub(super) fn start_with(cache: &Arc<Recorded>, tap: Option<Tap>, snapshot: Snapshot) -> Node {
    let flow_cache: Arc<dyn FlowCache> = Arc::clone(cache) as Arc<dyn FlowCache>;
    let mut node = Node::unplugged(1, snapshot, tap, Some(flow_cache));
    for id in [UPLINK, HOST, A, B] {
        node.plug_with(id, |port| port.with_slot(slot(id)));
    }
    node
}

fn from_b(packet: &[u8]) -> Vec<u8> {
    ethernet(B_MAC, 0x0800, packet)
}

impl Recorded {
    pub(super) fn flows(&self) -> Vec<CachedFlow> {
        self.flows.lock().unwrap().clone()
    }

    /// Creates a cache that gets connections at their SYN.
    pub(super) fn answering() -> Self {
        Self { forwards_answers: true, ..Self::default() }
    }

    /// Changes what the cache has forwarded of all handshakes.
    pub(super) fn forward(&self, change: impl Fn(&mut FlowSteps)) {
        self.handshakes.lock().unwrap().values_mut().for_each(|(_, steps)| change(steps));
    }

    /// Takes the flows added since the last call.
    pub(super) fn take(&self) -> Vec<CachedFlow> {
        std::mem::take(&mut *self.flows.lock().unwrap())
    }
}

#[test]
fn flows_of_a_pod_are_added_again_after_they_were_ended() {
    let cache = Arc::new(Recorded::default());
    let mut node = start(&cache, None);
    let exchange = |node: &mut Node| {
        for _ in 0..2 {
            node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
            node.receive(B);
        }
    };
    exchange(&mut node);
    cache.moved(B);
    // A flow is not added again at once: see `PAUSE`.
    std::thread::sleep(Duration::from_millis(20));
    exchange(&mut node);
    let flows = cache.flows();
    assert_eq!(flows.first().map(|flow| flow.moves), Some([0, 0]));
    assert_eq!(flows.last().map(|flow| flow.moves), Some([0, 1]), "what is added now is good");
    node.stop();
}

#[test]
fn a_flow_between_pods_is_added_with_what_was_done_to_its_packet() {
    let cache = Arc::new(Recorded::default());
    let mut node = start(&cache, None);
    let frame = from_a(&udp("10.0.0.1", "10.0.0.2", 80));
    node.send(A, &frame);
    node.receive(B);
    assert_eq!(cache.flows(), [], "the first packet asks the policy");
    node.send(A, &frame);
    let sent = node.receive(B);
    let [flow] = *cache.flows() else { panic!("{:?}", cache.flows()) };
    assert_eq!((flow.from, flow.to), (slot(A), slot(B)));
    assert_eq!((&flow.received[..], &flow.sent[..]), (&frame[..12], &sent[..12]));
    assert_eq!((flow.flow.src, flow.flow.dst), (ip("10.0.0.1"), ip("10.0.0.2")));
    assert_eq!((flow.flow.protocol, flow.flow.dport), (17, 80));
    assert_eq!((flow.epochs, flow.origin), ([4, 4], Some(OriginId(7))));
    assert_eq!(usize::from(flow.longest), 14 + 9000);
    assert_eq!(flow.lease, 30_000_000_000 / 16, "nobody has answered yet");
    node.stop();
}

#[test]
fn a_flow_of_a_shared_uplink_that_came_by_the_node_is_added_where_its_next_packets_come_from() {
    let cache = Arc::new(Recorded::default());
    let mut ports = live_ports();
    let kernel = [2, 0, 0, 0, 0, 9];
    for id in [UPLINK, HOST] {
        (ports[id.index()].mac, ports[id.index()].link) = (Some(kernel), ports[HOST.index()].link);
    }
    ports[UPLINK.index()].shares_host = true;
    let mut node = start_with(&cache, None, snapshot_of(4, ports));
    let request = from_a(&udp("10.0.0.1", "8.8.8.8", 53));
    let mut answer = udp("8.8.8.8", "10.0.0.1", 53);
    answer[20..24].rotate_left(2);
    let answer = [&own_mac(1)[..], &kernel, &ethernet(kernel, 0x0800, &answer)[12..]].concat();
    for _ in 0..3 {
        node.send(A, &request);
        node.receive(UPLINK);
        node.send(HOST, &answer);
        node.receive(A);
    }
    let flows = cache.flows();
    let back = flows.iter().find(|flow| flow.to == slot(A)).unwrap_or_else(|| panic!("{flows:?}"));
    assert_eq!((back.from, back.ports), (slot(UPLINK), [UPLINK, A]));
    assert!(flows.iter().all(|flow| flow.from != slot(HOST)), "{flows:?}");
    node.stop();
}

#[test]
fn tcp_is_added_with_its_syn_ack_and_between_its_handshake_and_its_end_in_both_directions() {
    let cache = Arc::new(Recorded::default());
    let mut node = start(&cache, None);
    let mut pass = |from: PortId, flags: u8| {
        let (frame, to) = if from == A { (from_a(&a_to_b(flags)), B) } else { (from_b(&b_to_a(flags)), A) };
        node.send(from, &frame);
        node.receive(to);
        std::mem::take(&mut *cache.flows.lock().unwrap()).len()
    };
    assert_eq!([pass(A, SYN), pass(B, SYN | ACK)], [0, 2]);
    // The third segment establishes the connection. Later ones find it established.
    let [handshake, next, back] = [pass(A, ACK), pass(A, ACK), pass(B, ACK)];
    // On a slow machine, both of A's segments add the flow, since `PAUSE` has passed.
    assert!(matches!(handshake + next, 1 | 2), "{handshake} and {next}");
    assert_eq!(back, 1);
    assert_eq!([pass(B, TcpFlags::FIN | ACK), pass(A, TcpFlags::FIN | ACK), pass(B, ACK), pass(A, ACK)], [0; 4]);
    node.stop();
}

#[test]
fn what_does_not_go_from_pod_to_pod_or_where_the_cache_does_not_reach_is_not_added() {
    let cache = Arc::new(Recorded { far: vec![slot(A)], ..Recorded::default() });
    let mut node = start(&cache, None);
    let to_uplink = from_a(&udp("10.0.0.1", "8.8.8.8", 53));
    let from_uplink = ethernet([2, 0, 0, 0, 0, 9], 0x0800, &udp("8.8.8.8", "10.0.0.1", 53));
    let to_a = from_b(&udp("10.0.0.2", "10.0.0.1", 53));
    for _ in 0..3 {
        node.send(A, &to_uplink);
        node.send(UPLINK, &from_uplink);
        node.send(B, &to_a);
        node.receive(A);
    }
    let counters = node.stop();
    assert!(counters.sum(|worker| worker.received) >= 9);
    assert_eq!(cache.flows(), []);
}

#[test]
fn a_port_that_is_no_more_has_no_flows_and_neither_has_a_vswitch_that_captures() {
    let cache = Arc::new(Recorded::default());
    let (tap, _captured) = Tap::new();
    let mut node = start(&cache, Some(tap));
    let frame = from_a(&udp("10.0.0.1", "10.0.0.2", 80));
    for _ in 0..3 {
        node.send(A, &frame);
        node.receive(B);
    }
    node.stop();
    assert_eq!(cache.flows(), []);
    let mut node = start(&cache, None);
    node.vswitch.remove_port(B);
    node.plug(B);
    for _ in 0..3 {
        node.send(A, &frame);
        node.receive(B);
    }
    node.stop();
    assert_eq!(cache.flows(), [], "the new port has no place");
}

/// Returns one frame for each of `count` flows.
fn flows(count: u16) -> Vec<Vec<u8>> {
    let frame = |flow: u16| {
        let mut packet = udp("10.0.0.1", "10.0.0.2", 80);
        packet[20..22].copy_from_slice(&(1000 + flow).to_be_bytes());
        from_a(&packet)
    };
    (0..count).map(frame).collect()
}

/// Returns a vswitch with one stepped worker, and the peers of both pods' ports.
fn stepped(cache: &Arc<Recorded>, ports: Vec<PortConfig>) -> (Vswitch, SteppedWorker, [LoopbackPeer; 2]) {
    stepped_with(cache, ports, SessionConfig::live(1000))
}

/// As [`stepped`], with other settings of the sessions.
pub(super) fn stepped_with(
    cache: &Arc<Recorded>,
    ports: Vec<PortConfig>,
    sessions: SessionConfig,
) -> (Vswitch, SteppedWorker, [LoopbackPeer; 2]) {
    let (mut vswitch, mut workers) = stepped_without_ports(cache, ports, sessions, 1);
    let peers = [A, B].map(|id| {
        let (port, other) = LoopbackPort::pair(1024);
        vswitch.add_port(id, 0, Box::new(port.with_slot(slot(id))));
        LoopbackPeer::new(other, vswitch.pool().sibling())
    });
    (vswitch, workers.remove(0), peers)
}

/// Returns stepped workers with both pods behind a trunk, and the peers of their queues.
pub(super) fn stepped_over_trunk(
    cache: &Arc<Recorded>,
    ports: Vec<PortConfig>,
    workers: usize,
) -> (Vswitch, Vec<SteppedWorker>, Vec<LoopbackPeer>) {
    let (mut vswitch, workers) = stepped_without_ports(cache, ports, SessionConfig::live(1000), workers);
    let (queues, others): (Vec<LoopbackPort>, Vec<LoopbackPort>) =
        workers.iter().map(|_| LoopbackPort::pair(1024)).unzip();
    vswitch.add_trunk(queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Port>));
    [A, B].into_iter().for_each(|id| vswitch.attach_port(id, slot(id)));
    let peers = others.into_iter().map(|other| LoopbackPeer::new(other, vswitch.pool().sibling())).collect();
    (vswitch, workers, peers)
}

fn stepped_without_ports(
    cache: &Arc<Recorded>,
    ports: Vec<PortConfig>,
    sessions: SessionConfig,
    workers: usize,
) -> (Vswitch, Vec<SteppedWorker>) {
    let publisher = Publisher::new(snapshot_of(1, ports));
    let config = VswitchConfig {
        affinity: Affinity::new(),
        lease: LEASE,
        cores: vec![None; workers],
        poll: PollMode::Spin,
        engine: WorkerConfig { sessions, ..WorkerConfig::default() },
        frames: FRAMES,
        tap: None,
        flow_cache: Some(Arc::clone(cache) as Arc<dyn FlowCache>),
    };
    Vswitch::stepped(&config, &publisher).unwrap()
}

#[test]
fn a_packet_that_does_not_come_from_its_pod_adds_nothing() {
    let cache = Arc::new(Recorded::default());
    // A's MAC address is not configured. The first packet teaches it, and the second is judged in the same burst.
    let mut ports = live_ports();
    ports[A.index()].mac = None;
    let (_vswitch, mut worker, [mut a, mut b]) = stepped(&cache, ports);
    let packet = udp("10.0.0.1", "10.0.0.2", 80);
    let [own, other] = [A_MAC, [2, 0, 0, 0, 0, 0x66]].map(|mac| ethernet(mac, 0x0800, &packet));
    a.push_burst(&[own.clone(), other]).unwrap();
    worker.round(1);
    assert_eq!((std::iter::from_fn(|| b.pop()).count(), cache.flows()), (1, vec![]));
    a.push(&own).unwrap();
    worker.round(2);
    assert_eq!((std::iter::from_fn(|| b.pop()).count(), cache.flows().len()), (1, 1));
    assert_eq!(cache.flows()[0].received, own[..12]);
}

#[test]
fn a_latch_is_opened_when_nothing_has_passed_it_for_longer_than_the_kernel_holds_a_packet_back() {
    let cache = Arc::new(Recorded::default());
    let (_vswitch, mut worker, [mut a, _b]) = stepped(&cache, live_ports());
    let frame = from_a(&udp("10.0.0.1", "10.0.0.2", 80));
    for now in [1, 2] {
        a.push(&frame).unwrap();
        worker.round(now);
    }
    let [flow] = *cache.flows() else { panic!("{:?}", cache.flows()) };
    let is_open = || cache.latches.lock().unwrap()[&latch_of(&flow)].1;
    let mut round = |now: u64| {
        worker.round(now);
        is_open()
    };
    assert!(!round(1_000), "watched from now on");
    assert!(!round(80_000), "what was counted before may still be on its way here");
    // One more packet passes the latch.
    cache.latches.lock().unwrap().get_mut(&latch_of(&flow)).unwrap().0 = 1;
    assert!(!round(100_000) && !round(179_000));
    assert!(round(180_000));
    // Another latch, which packets pass all the time.
    cache.latches.lock().unwrap().clear();
    a.push(&frame).unwrap();
    assert!(worker.round(20_000_000));
    let latches = |change: fn(&mut u64)| {
        let mut latches = cache.latches.lock().unwrap();
        let (count, is_open) = latches.get_mut(&latch_of(&flow)).unwrap();
        change(count);
        *is_open
    };
    let mut opened_at = None;
    for now in (20_000_000..200_000_000u64).step_by(50_000) {
        latches(|count| *count += 1);
        worker.round(now);
        if latches(|_| {}) {
            opened_at = Some(now);
            break;
        }
    }
    assert_eq!(opened_at, Some(25_000_000), "a round that has sent all that it found is enough at last");
}

#[test]
fn a_worker_that_does_not_catch_up_opens_a_latch_in_the_end() {
    let cache = Arc::new(Recorded::default());
    let (_vswitch, mut worker, [mut a, mut b]) = stepped(&cache, live_ports());
    let frames: Vec<Vec<u8>> = vec![from_a(&udp("10.0.0.1", "10.0.0.2", 80)); 200];
    let mut round = |now: u64| {
        // More than half a burst, so the worker may have more to receive.
        a.push_burst(&frames).unwrap();
        worker.round(now);
        while b.pop().is_some() {}
        cache.latches.lock().unwrap().values().any(|(_, is_open)| *is_open)
    };
    round(0);
    assert!(!round(1_000) && !round(60_000_000) && !round(99_000_000));
    assert!(round(100_001_000));
}

#[test]
fn of_a_burst_some_flows_are_added_in_the_end_all_and_none_twice_at_a_time() {
    let cache = Arc::new(Recorded::default());
    let (_vswitch, mut worker, [mut a, mut b]) = stepped(&cache, live_ports());
    let mut burst = |frames: &[Vec<u8>], now: u64| {
        a.push_burst(frames).unwrap();
        assert!(worker.round(now));
        assert_eq!(std::iter::from_fn(|| b.pop()).count(), frames.len());
        std::mem::take(&mut *cache.flows.lock().unwrap())
    };
    let frames = flows(100);
    assert_eq!(burst(&frames, 1), [], "all are new");
    assert_eq!(burst(&frames[..1], 2).len(), 1);
    assert_eq!(burst(&frames[..1], 2 + 9_000_000), [], "its packets may still be under way");
    assert_eq!(burst(&frames[..1], 2 + 10_000_000).len(), 1);
    // The cache forgets all flows, so each flow has its turn repeatedly.
    let mut ports = Vec::new();
    for _ in 0..26 {
        let added = burst(&frames, 2_000_000_000);
        assert!(added.len() <= 8, "{} system calls for a burst", added.len());
        ports.extend(added.iter().map(|flow| flow.flow.sport));
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports, (1000..1100).collect::<Vec<u16>>());
}
