//! The XDP flow cache on real veths: compares the program's treatment of packets with a worker's verdicts.
//! ```text
//!   a: eth0 ------ va [ program of the cache ] vb ------ b: eth0
//!   frames as they      | to the worker's port             what the cache has forwarded
//!   are made            `--> read here
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::translate::{Random, TCP, UDP, translated};
use crate::support::{Net, SMALL, pool};
use bulkhead_classifier::{Action, OriginId, Rule, Tables};
use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::io::{
    CachedFlow, CachedTraffic, FirstNumbers, FlowCache, FlowHandshake, FlowLatch, FlowSlot, FlowStart, Frame,
    FramePool, Initiator, Interface, KernelFlowCache, KernelFlows, PollSet, Port, XdpMode, XskPort, poll,
    takes_xdp_frames,
};
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::{
    Flow, Link, LinkType, Outcome, Packet, PortConfig, PortId, PortKind, Routes, SessionConfig, Snapshot, TableId,
    Verdict, Worker, WorkerConfig,
};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const A_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0xff, 0];
const MTU: u16 = 1500;
const ORIGIN: OriginId = OriginId(5);
const LATCH: FlowLatch = FlowLatch(40_000);
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

/// How long to wait for a packet that must not arrive. The kernel has handled a packet when the sending call returns, or when another
/// packet has arrived.
const SILENCE: Duration = Duration::from_millis(20);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The tested flows: protocol, source, destination.
const FLOWS: [(ProbeKind, &str, &str); 4] = [
    (ProbeKind::Udp, "10.0.0.1", "10.0.0.2"),
    (ProbeKind::Tcp, "10.0.0.1", "10.0.0.2"),
    (ProbeKind::Udp, "fd00::1", "fd00::2"),
    (ProbeKind::Tcp, "fd00::1", "fd00::2"),
];

/// A frame of a flow. TCP frames have these flags.
fn frame((kind, src, dst): (ProbeKind, &str, &str), flags: u8) -> Vec<u8> {
    let mut packet = Probe { src: ip(src), dst: ip(dst), kind, sport: 40_000, dport: 80 }.request().unwrap();
    if kind == ProbeKind::Tcp {
        let at = packet.len() - 7;
        packet[at] = flags;
    }
    let ethertype: [u8; 2] = if ip(src).is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
    let mut frame = [&OWN_MAC[..], &A_MAC, &ethertype, &packet].concat();
    // Tests change bytes behind the headers.
    frame.resize(frame.len().max(80), 0);
    frame
}

/// A TCP frame of the flow's reverse direction with these flags.
fn answer((kind, src, dst): (ProbeKind, &str, &str), flags: u8) -> Vec<u8> {
    let mut packet = Probe { src: ip(dst), dst: ip(src), kind, sport: 80, dport: 40_000 }.request().unwrap();
    let at = packet.len() - 7;
    packet[at] = flags;
    let ethertype: [u8; 2] = if ip(src).is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&OWN_MAC[..], &B_MAC, &ethertype, &packet].concat()
}

/// A node with two pods whose policies allow all traffic.
fn snapshot() -> Snapshot {
    let tables = Arc::new(Tables::build(vec![Rule::any(Action::Allow, ORIGIN)]).unwrap());
    let pod = |name: &str, mac, addresses: [&str; 2]| PortConfig {
        name: name.into(),
        kind: PortKind::Pod,
        addresses: addresses.map(ip).to_vec(),
        mac: Some(mac),
        egress: Some(TableId(0)),
        ingress: None,
        audit: None,
        hairpin: None,
        hairpin_table: None,
        named_table: None,
        named_audit: None,
        link: Some(Link { mac: OWN_MAC, mtu: MTU }),
        is_gone: false,
        shares_host: false,
    };
    let ports = vec![pod("x/a", A_MAC, ["10.0.0.1", "fd00::1"]), pod("x/b", B_MAC, ["10.0.0.2", "fd00::2"])];
    let routes = ports.iter().zip([A, B]).flat_map(|(port, id)| port.addresses.iter().map(move |&a| (a.into(), id)));
    let routes = Routes::new(routes).unwrap();
    Snapshot::new(1, ports, vec![tables], routes).unwrap()
}

/// The verdict of a worker on a frame, after it has created the flow's session.
fn verdict(flow: (ProbeKind, &str, &str), received: &[u8]) -> Verdict {
    let sessions = SessionConfig { capacity: 16, ..SessionConfig::default() };
    let mut worker = Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() });
    let snapshot = snapshot();
    let mut judge = |in_port, frame: &[u8]| {
        let packet = Packet { frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port, time: 1 };
        let mut outcome = [Outcome::UNJUDGED];
        worker.process(&snapshot, &[packet], &mut outcome);
        outcome[0].verdict
    };
    if flow.0 == ProbeKind::Tcp {
        judge(A, &frame(flow, SYN));
        judge(B, &answer(flow, SYN | ACK));
    }
    assert_eq!(judge(A, &frame(flow, ACK)), Verdict::Forward(B));
    judge(A, received)
}

/// The lab: frames sent at `a` arrive at `b`, or at the worker's port of `va`.
struct Lab {
    net: Net,
    cache: Arc<KernelFlowCache>,
    pool: FramePool,
    /// Ports are declared before their interfaces: fields drop in this order, and interfaces must outlive ports.
    a: XskPort,
    b: XskPort,
    worker: Option<XskPort>,
    _far: Vec<Interface>,
    va: Interface,
    vb: Interface,
}

impl Lab {
    fn new(mode: XdpMode) -> Option<Self> {
        let net = Net::new(1, u32::from(MTU))?;
        let cache = KernelFlowCache::new().unwrap();
        cache.enter(&snapshot());
        let mut pool = pool(4096);
        let hold = |name: &str| net.inside("sw", || Interface::hold(name, mode, Some(&cache)).unwrap());
        let (va, vb) = (hold("va"), hold("vb"));
        let far = ["a", "b"].map(|pod| net.inside(pod, || Interface::open("eth0", XdpMode::Drv).unwrap()));
        let mut open = |namespace: &str, interface: &Interface| {
            let umem = pool.umem();
            let mut port = net.inside(namespace, || interface.port(0, umem, SMALL).unwrap());
            port.service(&mut pool).unwrap();
            port
        };
        let (a, b, worker) = (open("a", &far[0]), open("b", &far[1]), Some(open("sw", &va)));
        let lab = Self { cache, pool, a, b, worker, _far: far.into(), va, vb, net };
        lab.reach(true);
        Some(lab)
    }

    fn slots(&self) -> (FlowSlot, FlowSlot) {
        (self.va.slot().unwrap(), self.vb.slot().unwrap())
    }

    fn reach(&self, yes: bool) {
        let (cache, slot, index) = (&self.cache, self.slots().1, self.vb.info().index);
        self.net.inside("sw", || cache.reach(slot, yes.then_some(index))).unwrap();
        assert_eq!(self.cache.reaches(self.slots().1), yes);
    }

    fn flow(&self, (kind, src, dst): (ProbeKind, &str, &str)) -> CachedFlow {
        let protocol = if kind == ProbeKind::Udp { UDP } else { TCP };
        CachedFlow {
            from: self.slots().0,
            to: self.slots().1,
            flow: Flow { src: ip(src), dst: ip(dst), protocol, sport: 40_000, dport: 80, icmp: None },
            received: rewrite::addresses(OWN_MAC, A_MAC),
            sent: rewrite::addresses(B_MAC, OWN_MAC),
            longest: 14 + MTU,
            origin: Some(ORIGIN),
            ports: [A, B],
            epochs: [1, 1],
            moves: [0, 0],
            is_hop: true,
            translation: None,
            lease: 60_000_000_000,
            timeout: 60_000_000_000,
            start: FlowStart::Latch(LATCH),
        }
    }

    /// Adds a flow and opens its latch at once.
    fn add(&self, flow: &CachedFlow) {
        self.cache.add(flow);
        assert!(self.cache.open(LATCH, Some(0)));
    }

    /// Sends a frame at `a`. Returns the frames that arrived at `b` and at the worker's port.
    fn pass(&mut self, bytes: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let mut frame = self.pool.take().unwrap();
        frame.reset(bytes.len());
        self.pool.umem().bytes_mut(&mut frame).copy_from_slice(bytes);
        let mut frames = vec![frame];
        self.a.send(&mut frames).unwrap();
        assert!(frames.is_empty());
        self.a.service(&mut self.pool).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let cached = take(&mut self.b, &mut self.pool);
            let left = self.worker.as_mut().and_then(|port| take(port, &mut self.pool));
            if cached.is_some() || left.is_some() {
                return (cached, left);
            }
            if self.worker.is_none() {
                let mut set = PollSet::new();
                set.add(self.b.descriptor().unwrap());
                poll(&mut set, SILENCE.as_millis() as u32).unwrap();
                return (take(&mut self.b, &mut self.pool), None);
            }
            assert!(Instant::now() < deadline, "the frame is lost: {bytes:02x?}");
        }
    }

    /// Sends a frame at `a`. Returns whether the cache forwarded it instead of passing it to the worker.
    fn is_cached(&mut self, bytes: &[u8]) -> bool {
        match self.pass(bytes) {
            (Some(_), None) => true,
            (None, Some(left)) => {
                assert_eq!(left, bytes, "the worker gets the packet as it came");
                false
            }
            both => panic!("{both:?}"),
        }
    }

    fn traffic(&self, slot: FlowSlot) -> CachedTraffic {
        self.cache.traffic(slot)
    }
}

fn take(port: &mut XskPort, pool: &mut FramePool) -> Option<Vec<u8>> {
    let mut frames: Vec<Frame> = Vec::new();
    port.receive(&mut frames, 1).unwrap();
    let umem = Arc::clone(pool.umem());
    let bytes = frames.first().map(|frame| umem.bytes(frame).to_vec());
    pool.give_all(frames);
    port.service(pool).unwrap();
    bytes
}

/// Returns the frame with one or two bytes changed, sometimes also with another length.
fn damage(random: &mut Random, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..=random.below(2) {
        let (at, bit) = (random.below(frame.len()), random.below(8));
        match random.below(4) {
            0 => frame[at] ^= 1 << bit,
            1 => frame[at] = random.below(256) as u8,
            // Increments and decrements reach values next to valid lengths.
            2 => frame[at] = frame[at].wrapping_add(1),
            _ => frame[at] = frame[at].wrapping_sub(1),
        }
    }
    if random.below(8) == 0 {
        let len = 14 + random.below(frame.len());
        frame.resize(len, 0xee);
    }
    frame
}

#[test]
fn what_the_cache_forwards_the_worker_would_have_forwarded_with_the_same_bytes() {
    for mode in [XdpMode::Drv, XdpMode::Skb] {
        let Some(mut lab) = Lab::new(mode) else { return };
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let addresses = rewrite::addresses(B_MAC, OWN_MAC);
        for flow in FLOWS {
            let good = frame(flow, ACK);
            assert!(!lab.is_cached(&good), "nothing was added yet");
            lab.add(&lab.flow(flow));
            let mut reached = [0; 2];
            for round in 0..1500 {
                let bytes = if round == 0 { good.clone() } else { damage(&mut random, &good) };
                let (cached, left) = lab.pass(&bytes);
                assert!(round > 0 || cached.is_some(), "{flow:?} is cached");
                reached[usize::from(cached.is_some())] += 1;
                let Some(cached) = cached else {
                    assert_eq!(left.unwrap(), bytes, "the worker gets the packet as it came");
                    continue;
                };
                assert_eq!(left, None);
                assert_eq!(verdict(flow, &bytes), Verdict::Forward(B), "{flow:?}: {bytes:02x?}");
                let mut expected = bytes.clone();
                assert!(rewrite::hop(&mut expected, &addresses));
                assert_eq!(cached, expected, "{flow:?}");
            }
            assert!(reached.iter().all(|&count| count > 200), "{mode} {flow:?}: {reached:?}");
        }
    }
}

#[test]
fn a_translated_flow_leaves_with_its_addresses_ports_and_right_checksums() {
    for mode in [XdpMode::Drv, XdpMode::Skb] {
        let Some(mut lab) = Lab::new(mode) else { return };
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let mut zeros = 0;
        for round in 0..400 {
            let (flow, new) = random.flow(round % 2 == 0, if round % 4 < 2 { UDP } else { TCP });
            lab.add(&CachedFlow { flow, translation: Some(new), is_hop: round % 8 < 4, ..lab.flow(FLOWS[0]) });
            let addresses = rewrite::addresses(B_MAC, OWN_MAC);
            for bytes in random.frames(&flow, &new, &rewrite::addresses(OWN_MAC, A_MAC)) {
                let mut expected = translated(&bytes, &new);
                let at = crate::support::translate::checksum_at(&expected);
                zeros += usize::from(matches!(expected[at..at + 2], [0, 0] | [0xff, 0xff]));
                if round % 8 < 4 {
                    assert!(rewrite::hop(&mut expected, &addresses));
                } else {
                    rewrite::ethernet(&mut expected, &addresses);
                }
                let (cached, left) = lab.pass(&bytes);
                assert_eq!((cached, left), (Some(expected), None), "{mode} {flow:?} -> {new:?}");
            }
        }
        assert!(zeros >= 400, "checksums that are or become 0: {zeros}");
    }
}

#[test]
fn every_reason_to_ask_the_worker_is_one() {
    let Some(mut lab) = Lab::new(XdpMode::Drv) else { return };
    for flow in FLOWS {
        lab.add(&lab.flow(flow));
        let good = frame(flow, ACK);
        let (ip, is_v4, is_tcp) = (14, ip_is_v4(flow), flow.0 == ProbeKind::Tcp);
        let transport = ip + if is_v4 { 20 } else { 40 };
        assert!(lab.is_cached(&good));
        let mut changes = vec![
            ("another destination MAC", 0, 0x06),
            ("another source MAC", 11, 9),
            ("another ethertype", 13, 0x06),
            ("another source port", transport, 1),
            ("another destination port", transport + 3, 81),
        ];
        if is_v4 {
            changes.extend([
                ("options", ip, 0x46),
                ("more fragments", ip + 6, 0x20),
                ("a later fragment", ip + 7, 1),
                ("the last hop", ip + 8, 1),
                ("another protocol", ip + 9, 132),
                ("another source", ip + 15, 9),
                ("another destination", ip + 19, 9),
                ("longer than the frame", ip + 2, 1),
                ("shorter than its headers", ip + 3, 27),
            ]);
        } else {
            changes.extend([
                ("no IPv6", ip, 0x45),
                ("an extension header", ip + 6, 0),
                ("the last hop", ip + 7, 1),
                ("another source", ip + 23, 9),
                ("another destination", ip + 39, 9),
                ("longer than the frame", ip + 4, 1),
                ("shorter than its headers", ip + 5, 7),
            ]);
        }
        if is_tcp {
            let flags = transport + 13;
            changes.extend([("SYN", flags, 0x12), ("FIN", flags, 0x11), ("RST", flags, 0x14), ("no ACK", flags, 0)]);
            changes.extend([("a short header", transport + 12, 0x40), ("a long header", transport + 12, 0xf0)]);
        } else {
            changes.extend([("UDP's length too long", transport + 4, 1), ("and too short", transport + 5, 7)]);
        }
        for (what, at, value) in changes {
            let mut bytes = good.clone();
            assert_ne!(bytes[at], value, "{what}");
            bytes[at] = value;
            assert!(!lab.is_cached(&bytes), "{flow:?}: {what}");
        }
        assert!(lab.is_cached(&good), "and the packet itself still is");
    }
}

fn ip_is_v4(flow: (ProbeKind, &str, &str)) -> bool {
    ip(flow.1).is_ipv4()
}

#[test]
fn another_epoch_of_a_port_a_lease_that_is_over_and_a_way_out_that_is_closed_end_a_flow() {
    let Some(mut lab) = Lab::new(XdpMode::Drv) else { return };
    let good = frame(FLOWS[0], 0);
    lab.add(&lab.flow(FLOWS[0]));
    assert!(lab.is_cached(&good));
    lab.cache.leave(B);
    assert!(!lab.is_cached(&good), "the tables that allowed it are no more");
    lab.add(&lab.flow(FLOWS[0]));
    assert!(!lab.is_cached(&good), "a worker that has not seen the new ones cannot bring it back");
    lab.cache.enter(&snapshot());
    assert!(lab.is_cached(&good));
    lab.add(&CachedFlow { lease: 0, ..lab.flow(FLOWS[0]) });
    assert!(!lab.is_cached(&good), "its lease is over");
    lab.add(&lab.flow(FLOWS[0]));
    assert!(lab.is_cached(&good));
    lab.reach(false);
    assert!(!lab.is_cached(&good), "the port cannot be sent to");
    lab.reach(true);
    assert!(lab.is_cached(&good));
    lab.add(&CachedFlow { longest: good.len() as u16 - 1, ..lab.flow(FLOWS[0]) });
    assert!(!lab.is_cached(&good), "too long for the way out");
    lab.add(&CachedFlow { longest: good.len() as u16, ..lab.flow(FLOWS[0]) });
    assert!(lab.is_cached(&good));
}

#[test]
fn a_flow_goes_through_the_worker_until_its_latch_is_opened_and_that_needs_that_none_has_come_since() {
    let Some(mut lab) = Lab::new(XdpMode::Drv) else { return };
    let good = frame(FLOWS[0], 0);
    lab.cache.add(&lab.flow(FLOWS[0]));
    assert_eq!(lab.cache.passed(LATCH), 0);
    assert!(!lab.is_cached(&good) && !lab.is_cached(&good));
    assert_eq!(lab.cache.passed(LATCH), 2);
    assert!(!lab.is_cached(&frame(FLOWS[1], 0)), "another flow");
    assert!(!lab.cache.open(LATCH, Some(1)), "one has come since it was looked at");
    assert!(!lab.is_cached(&good));
    assert!(lab.cache.open(LATCH, Some(3)));
    assert!(lab.is_cached(&good) && lab.is_cached(&good));
    lab.cache.add(&lab.flow(FLOWS[0]));
    assert!(!lab.is_cached(&good), "added again, it is closed again");
    assert!(lab.cache.open(LATCH, None) && lab.is_cached(&good));
}

#[test]
fn a_port_that_is_closed_forwards_nothing_whatever_is_in_the_cache() {
    let Some(mut lab) = Lab::new(XdpMode::Drv) else { return };
    let good = frame(FLOWS[1], ACK);
    lab.add(&lab.flow(FLOWS[1]));
    assert!(lab.is_cached(&good));
    lab.worker.take().unwrap().close(&mut lab.pool);
    // A child process of another test may hold a copy of the socket until it calls exec, and a busy machine delivers packets late.
    let (deadline, mut silent) = (Instant::now() + Duration::from_secs(10), 0);
    while silent < 5 {
        assert!(Instant::now() < deadline, "its packets are dropped");
        silent = if lab.pass(&good) == (None, None) { silent + 1 } else { 0 };
    }
    assert_eq!(lab.net.seen_by_the_host(), 0);
}

#[test]
fn what_the_cache_forwards_is_counted_by_port_and_by_policy() {
    let Some(mut lab) = Lab::new(XdpMode::Drv) else { return };
    let (from, to) = lab.slots();
    assert_eq!((lab.traffic(from), lab.traffic(to)), Default::default());
    for flow in FLOWS {
        lab.add(&lab.flow(flow));
        assert!(lab.is_cached(&frame(flow, ACK)));
        assert!(!lab.is_cached(&frame(flow, ACK)[..40]), "what the worker gets is its to count");
    }
    let by_headers = FLOWS.map(|flow| {
        let bytes = frame(flow, ACK);
        let length = |at: usize| u64::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        14 + if ip_is_v4(flow) { length(16) } else { 40 + length(18) }
    });
    let bytes = by_headers.iter().sum::<u64>();
    assert_eq!(lab.traffic(from), CachedTraffic { received: 4, received_bytes: bytes, ..Default::default() });
    assert_eq!(lab.traffic(to), CachedTraffic { sent: 4, sent_bytes: bytes, ..Default::default() });
    assert_eq!((lab.cache.allowed_by(ORIGIN), lab.cache.allowed_by(OriginId(6))), (4, 0));
    assert_eq!((lab.cache.added(), lab.cache.failed()), (4, 0));
}

#[test]
fn the_kernel_tells_whether_a_veth_takes_packets_from_a_program() {
    let Some(net) = Net::new(1, 1500) else { return };
    let asked = || net.inside("sw", || takes_xdp_frames(bulkhead_dataplane::io::LinkInfo::read("va").unwrap().index));
    if let Err(error) = asked() {
        println!("skipped: the kernel does not tell ({error})");
        return;
    }
    net.exec("a", "ethtool -K eth0 gro off");
    assert!(!asked().unwrap());
    net.exec("a", "ethtool -K eth0 gro on");
    assert!(asked().unwrap());
    net.exec("a", "ethtool -K eth0 gro off");
    assert!(!asked().unwrap());
}

#[test]
fn a_connection_begins_with_the_segment_of_its_initiator_that_ends_its_handshake() {
    const HANDSHAKE: FlowHandshake = FlowHandshake(50_000);
    let Some(mut lab) = Lab::new(XdpMode::Drv) else { return };
    for flow in [FLOWS[1], FLOWS[3]] {
        let at = 8 + if ip(flow.1).is_ipv4() { 34 } else { 54 };
        let acknowledging = |number: u32, flags: u8| {
            let mut frame = frame(flow, flags);
            frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
            frame
        };
        let add = |lab: &Lab, end: Initiator| {
            lab.cache.add(&CachedFlow { start: FlowStart::Handshake(HANDSHAKE, end), ..lab.flow(flow) });
        };
        lab.cache.await_handshake(HANDSHAKE, FirstNumbers { initiator: 9, responder: Some(0x0102_0304) });
        add(&lab, Initiator::Destination);
        assert!(!lab.is_cached(&acknowledging(0x0102_0304, ACK)), "the other end has to acknowledge it");
        add(&lab, Initiator::Source);
        assert!(!lab.is_cached(&acknowledging(0x0102_0305, ACK)), "something else");
        assert!(!lab.is_cached(&acknowledging(0x0102_0304, SYN | ACK)));
        assert!(!lab.cache.steps(HANDSHAKE).has_ended);
        assert!(lab.is_cached(&acknowledging(0x0102_0304, ACK)));
        assert!(lab.cache.steps(HANDSHAKE).has_ended);
        assert!(lab.is_cached(&acknowledging(77, ACK)), "whatever comes after it");
        add(&lab, Initiator::Destination);
        assert!(lab.is_cached(&acknowledging(78, ACK)));
        lab.cache.await_handshake(HANDSHAKE, FirstNumbers { initiator: 9, responder: Some(1) });
        assert!(!lab.cache.steps(HANDSHAKE).has_ended && !lab.is_cached(&acknowledging(1, ACK)));
    }
}
