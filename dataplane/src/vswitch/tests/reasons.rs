//! Causes a drop for every reason, and checks that a trace, a monitor and the counters report it alike. The workers are stepped, so that
//! each drop results only from what a case sends.

use super::fragments::narrow_ports;
use super::names::snapshot_of_web;
use super::*;
use crate::SourcePorts;
use crate::filter::Filter;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::vswitch::stream::{LONGEST_SNAP, LeftOut, Record, Tracepoint};
use crate::{Backends, FragmentConfig, Masquerade, Percent, Routes, ServicePort, TcpWindow, Vip, VipEntry};
use std::collections::{BTreeMap, BTreeSet};

/// A port that is in no snapshot.
const STRANGER: PortId = PortId(7);

enum Step {
    /// Frames arrive together.
    Send(PortId, Vec<Vec<u8>>),
    /// This number of seconds passes.
    Wait(u64),
    /// The peer of a port closes.
    Unplug(PortId),
}

/// A node and the steps that cause a drop.
struct Scene {
    snapshot: Snapshot,
    engine: WorkerConfig,
    workers: usize,
    /// Number of workers that run.
    awake: usize,
    /// Capacity of each port's queue, in frames.
    queue: usize,
    frames: u32,
    absent: Vec<PortId>,
    steps: Vec<Step>,
}

impl Scene {
    fn of(steps: Vec<Step>) -> Self {
        Self {
            snapshot: snapshot_of(1, live_ports()),
            engine: WorkerConfig { sessions: SessionConfig::live(1000), ..WorkerConfig::default() },
            workers: 1,
            awake: 1,
            queue: 1024,
            frames: 8192,
            absent: Vec::new(),
            steps,
        }
    }

    fn with_services(self, services: crate::Services) -> Self {
        Self { snapshot: self.snapshot.with_services(Some(Arc::new(services))), ..self }
    }

    fn with_sessions(self, sessions: SessionConfig) -> Self {
        Self { engine: WorkerConfig { sessions, ..self.engine }, ..self }
    }

    fn with_ports(self, ports: Vec<PortConfig>) -> Self {
        Self { snapshot: snapshot_of(1, ports), ..self }
    }

    /// Plays the scene with an open stream of this plan. Returns the stream's records and the counters.
    fn play(self, plan: &StreamPlan) -> (Vec<Record>, VswitchCounters) {
        let publisher = Publisher::new(self.snapshot);
        let config = VswitchConfig {
            affinity: Affinity::new(),
            lease: LEASE,
            cores: vec![None; self.workers],
            poll: PollMode::Spin,
            engine: self.engine,
            frames: self.frames,
            tap: None,
            flow_cache: None,
        };
        let (mut vswitch, mut workers) = Vswitch::stepped(&config, &publisher).unwrap();
        let mut peers: Vec<Option<LoopbackPeer>> = (0..=STRANGER.0).map(|_| None).collect();
        for id in [UPLINK, HOST, A, B, STRANGER].into_iter().filter(|id| !self.absent.contains(id)) {
            let (port, other) = LoopbackPort::pair(self.queue);
            vswitch.add_port(id, 0, Box::new(port));
            peers[id.index()] = Some(LoopbackPeer::new(other, vswitch.pool().sibling()));
        }
        let mut reader = vswitch.open_stream(plan);
        let (mut now, mut records) = (1_000 * SECOND, Vec::new());
        let mut rounds = |now: &mut u64| {
            // Enough rounds to receive all frames that fit into a port.
            for _ in 0..5 {
                *now += 1000;
                for worker in workers.iter_mut().take(self.awake) {
                    worker.round(*now);
                }
                reader.read(usize::MAX, |_, record, _| records.push(*record));
            }
        };
        rounds(&mut now);
        for step in self.steps {
            match step {
                Step::Send(port, frames) => {
                    for frames in frames.chunks(self.queue) {
                        peers[port.index()].as_mut().unwrap().push_burst(frames).unwrap();
                        rounds(&mut now);
                    }
                }
                Step::Unplug(port) => {
                    peers[port.index()] = None;
                    rounds(&mut now);
                }
                Step::Wait(seconds) => (0..seconds).for_each(|_| {
                    now += SECOND;
                    rounds(&mut now);
                }),
            }
        }
        assert_eq!(reader.left_out(), LeftOut::default());
        let counters = VswitchCounters {
            workers: workers.into_iter().map(SteppedWorker::stop).collect(),
            port_sessions: Vec::new(),
        };
        (records, counters)
    }
}

/// Returns a frame from behind a port to the vswitch.
fn from(port: PortId, packet: &[u8]) -> Vec<u8> {
    let mac = match port {
        A => A_MAC,
        B => B_MAC,
        _ => [2, 0, 0, 0, 0, 9],
    };
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    let mut frame = ethernet(mac, ethertype, packet);
    frame[..6].copy_from_slice(&own_mac(u8::try_from(port.0).unwrap()));
    frame
}

fn send(port: PortId, packet: &[u8]) -> Step {
    Step::Send(port, vec![from(port, packet)])
}

/// Returns a scene with one packet from A.
fn a(packet: &[u8]) -> Scene {
    Scene::of(vec![send(A, packet)])
}

/// Returns a scene with one packet from the uplink.
fn outside(packet: &[u8]) -> Scene {
    Scene::of(vec![send(UPLINK, packet)])
}

fn arp(sender: &str, target: &str) -> Vec<u8> {
    let octets = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let message = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &A_MAC, &octets(sender), &[0; 6], &octets(target)].concat();
    ethernet(A_MAC, 0x0806, &message)
}

fn solicitation(src: &str, hop_limit: u8) -> Vec<u8> {
    let target = "fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets();
    v6(src, "ff02::1:ff00:2", 58, hop_limit, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat())
}

/// Returns a UDP packet from A over IPv6 behind these extension headers of eight bytes each.
fn behind(headers: &[u8]) -> Vec<u8> {
    let next = headers.iter().copied().skip(1).chain([17]);
    let chain: Vec<u8> = next.flat_map(|next| [next, 0, 0, 0, 1, 2, 0, 0]).collect();
    v6("fd00::1", "fd00::2", headers[0], 64, &[&chain[..], &[0x9c, 0x40, 0, 80, 0, 8, 0, 0]].concat())
}

fn datagram_of_len(len: usize) -> Vec<u8> {
    let length = u16::try_from(8 + len).unwrap().to_be_bytes();
    v4("10.0.0.1", "10.0.0.2", 17, 64, &[&[0x9c, 0x40, 0, 80][..], &length, &[0, 0], &vec![7; len]].concat())
}

fn without_mac() -> Vec<PortConfig> {
    let mut ports = live_ports();
    ports[B.index()].mac = None;
    ports
}

/// Returns a SYN to a Service's address.
fn opening(src: &str, dst: &str, port: u16) -> Vec<u8> {
    tcp(src, dst, 40_000, port, SYN)
}

/// Services at two addresses: the first without endpoints, the second with one on another node.
fn refusing(entry: VipEntry) -> crate::Services {
    let elsewhere = ServicePort {
        local: Backends::default(),
        source_ranges: Some(["9.0.0.0/8".parse().unwrap()].into()),
        ..service(&[backend("10.9.0.1", 80)])
    };
    let mut all = services(1, &[(VIP, service(&[])), ("10.96.0.2", elsewhere)]);
    let vip = Vip { address: ip("10.96.0.2"), protocol: 6, port: 8080 };
    all.set_vip(vip, Some(VipEntry { port: 1, ..entry }));
    all
}

fn masquerading_as(sources: &[&str]) -> Option<Arc<Masquerade>> {
    let kept = ["10.0.0.0/8".parse().unwrap()];
    Some(Arc::new(Masquerade::new(sources.iter().map(|source| ip(source)), kept, SourcePorts::default())))
}

/// Returns a scene that causes a drop for this reason. The match makes the compiler require a scene for a new reason.
fn scene(reason: DropReason) -> Scene {
    use DropReason::*;
    match reason {
        Unjudged => a(&tcp("10.0.0.1", "10.0.0.2", 40_000, FATAL_PORT, SYN)),
        UnknownPort => Scene::of(vec![send(STRANGER, &a_to_b(SYN))]),
        LinkTruncated => Scene::of(vec![Step::Send(HOST, vec![vec![0; 10]])]),
        VlanTagged => Scene::of(vec![Step::Send(A, vec![ethernet(A_MAC, 0x8100, &[0; 46])])]),
        UnknownEthertype => Scene::of(vec![Step::Send(A, vec![ethernet(A_MAC, 0x1234, &[0; 46])])]),
        ArpMalformed => Scene::of(vec![Step::Send(A, vec![arp("10.0.0.1", "10.0.0.2")[..41].to_vec()])]),
        ArpSpoofed => Scene::of(vec![Step::Send(A, vec![arp("10.0.0.9", "10.0.0.2")])]),
        NdMalformed => a(&solicitation("fd00::1", 254)),
        NdSpoofed => a(&solicitation("fd00::2", 255)),
        NdFromPod => a(&v6("fe80::a", "ff02::1", 58, 255, &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0])),
        Ipv4Malformed => a(&[&[0x43][..], &a_to_b(SYN)[1..]].concat()),
        Ipv6Malformed => a(&[0x60; 39]),
        Ipv6ExtensionLimit => a(&behind(&[60; 9])),
        Ipv6Jumbogram => {
            let mut packet = behind(&[0]);
            packet[4..6].fill(0);
            a(&packet)
        }
        SourceRouted => a(&behind(&[43])),
        L4Truncated => a(&v4("10.0.0.1", "10.0.0.2", 6, 64, &[0; 10])),
        L4Malformed => {
            let mut packet = a_to_b(SYN);
            packet[32] = 0x40;
            a(&packet)
        }
        FragmentTiny => a(&fragments_v4(&a_to_b(SYN), 1, 8)[0]),
        BadChecksum => {
            let mut packet = a_to_b(SYN);
            packet[37] ^= 1;
            a(&packet)
        }
        TcpOutOfWindow => {
            let blind = tcp_at(("10.0.0.1", 40_000), ("10.0.0.2", 80), RST, (1 << 21, 1));
            let open = [(A, a_to_b(SYN)), (B, b_to_a(SYN | ACK)), (A, a_to_b(ACK)), (A, blind)];
            let strict = SessionConfig { tcp_window: TcpWindow::Strict, ..SessionConfig::live(1000) };
            Scene::of(open.iter().map(|(port, packet)| send(*port, packet)).collect()).with_sessions(strict)
        }
        FragmentMalformed => {
            let mut last = fragments_v4(&datagram_of_len(32), 1, 16)[1].clone();
            last[6..8].copy_from_slice(&[0x1f, 0xff]);
            a(&last)
        }
        FragmentOverlap => {
            let mut parts = fragments_v4(&datagram_of_len(56), 1, 16);
            parts[1][6..8].copy_from_slice(&[0x20, 1]);
            Scene::of(parts.iter().take(2).map(|part| send(A, part)).collect())
        }
        FragmentWithoutFirst => a(&fragments_v4(&datagram_of_len(32), 1, 16)[1]),
        FragmentTableFull => {
            let fragments = FragmentConfig { capacity: 0, ..FragmentConfig::default() };
            let scene = a(&fragments_v4(&datagram_of_len(32), 1, 16)[0]);
            Scene { engine: WorkerConfig { fragments, ..scene.engine }, ..scene }
        }
        FragmentLimit => {
            Scene::of(fragments_v4(&datagram_of_len(8 * 70), 1, 8).iter().map(|part| send(A, part)).collect())
        }
        MartianSource => outside(&udp("127.0.0.1", "10.0.0.1", 80)),
        MartianDestination => a(&udp("10.0.0.1", "127.0.0.1", 80)),
        Multicast => a(&udp("10.0.0.1", "224.0.0.5", 80)),
        SpoofedSource => a(&udp("10.9.9.9", "10.0.0.2", 80)),
        LinkLocalSource => outside(&udp("169.254.1.2", "10.0.0.1", 80)),
        IcmpRedirect => {
            a(&v4("10.0.0.1", "10.0.0.2", 1, 64, &[&[5, 1, 0, 0, 10, 0, 0, 9][..], &b_to_a(ACK)[..28]].concat()))
        }
        IcmpErrorWithoutSession => a(&error_about(&b_to_a(ACK), "10.0.0.1", "10.0.0.2")),
        NoRoute => {
            let ports = live_ports();
            let own =
                (0u16..).zip(&ports).flat_map(|(id, port)| port.addresses.iter().map(move |&a| (a.into(), PortId(id))));
            let tables = [open_table(), bulkhead_classifier::Tables::build(vec![]).unwrap(), strict_table()];
            let routes = Routes::new(own.collect::<Vec<_>>()).unwrap();
            let snapshot = Snapshot::new(1, ports.clone(), tables.map(Arc::new).into(), routes).unwrap();
            Scene { snapshot, ..a(&udp("10.0.0.1", "8.8.8.8", 80)) }
        }
        BackToSender => outside(&udp("9.9.9.9", "8.8.8.8", 80)),
        TtlExpired => a(&with_ttl(a_to_b(SYN), 1)),
        TableMissing => {
            let mut ports = live_ports();
            ports[B.index()].egress = None;
            a(&a_to_b(SYN)).with_ports(ports)
        }
        PolicyDenied => a(&udp("10.0.0.1", "10.0.0.2", 81)),
        TcpWithoutSession => a(&a_to_b(ACK)),
        ReplyWithoutSession => a(&probe(ProbeKind::IcmpEcho, "10.0.0.2", "10.0.0.1", 0).reply().unwrap()),
        NoEndpoint => a(&opening("10.0.0.1", VIP, 8080)).with_services(refusing(ENTRY)),
        NoLocalEndpoint => {
            let entry = VipEntry { outside: crate::BackendList::Local, ..ENTRY };
            outside(&opening("9.8.8.8", "10.96.0.2", 8080)).with_services(refusing(entry))
        }
        ServiceSourceRange => {
            let entry = VipEntry { is_ranged: true, ..ENTRY };
            outside(&opening("8.8.8.8", "10.96.0.2", 8080)).with_services(refusing(entry))
        }
        UnknownServicePort => a(&opening("10.0.0.1", VIP, 9)).with_services(refusing(ENTRY)),
        UnknownServiceAddress => a(&opening("10.0.0.1", "10.97.0.1", 9)).with_services(refusing(ENTRY)),
        SourcePortsExhausted => {
            let mut services = services(1, &[(VIP, service(&[backend("10.9.0.1", 80)]))]);
            services.set_sources([]);
            outside(&opening("8.8.8.8", VIP, 8080)).with_services(services)
        }
        SourcePortsQuota => {
            let probe =
                |sport| Probe { src: ip("10.0.0.1"), dst: ip("8.8.8.8"), kind: ProbeKind::Udp, sport, dport: 53 };
            let conversation = |port: u16| send(A, &probe(40_000 + port).request().unwrap());
            let scene = Scene::of((0..24).map(conversation).collect());
            let ports = SourcePorts::new(vec![61_000..=61_001, 62_000..=62_009]).unwrap();
            let masquerade = Masquerade::new([ip("192.168.0.1")], [], ports);
            Scene { snapshot: scene.snapshot.with_masquerade(Some(Arc::new(masquerade))), ..scene }
        }
        NotMasqueraded => {
            let scene = a(&udp("10.0.0.1", "8.8.8.8", 53));
            Scene { snapshot: scene.snapshot.with_masquerade(masquerading_as(&[])), ..scene }
        }
        TunnelPort => {
            let scene = a(&udp("10.0.0.1", "8.8.8.8", 4789));
            Scene { snapshot: scene.snapshot.with_tunnel_port(Some(4789)), ..scene }
        }
        SessionClash => {
            let to_vip = |flags| tcp("10.0.0.1", VIP, 40_000, 8080, flags);
            let packets = [(A, to_vip(SYN)), (B, b_to_a(SYN | ACK)), (A, to_vip(ACK)), (A, a_to_b(SYN))];
            let services = services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
            Scene::of(packets.iter().map(|(port, packet)| send(*port, packet)).collect()).with_services(services)
        }
        SessionTableFull => a(&a_to_b(SYN)).with_sessions(SessionConfig { capacity: 0, ..SessionConfig::default() }),
        SessionQuota => {
            let conversation = |port| probe(ProbeKind::Udp, "10.0.0.1", "8.8.8.8", port);
            let answered = (1..=50).flat_map(|port| {
                [(A, conversation(port).request().unwrap()), (UPLINK, conversation(port).reply().unwrap())]
            });
            let packets = answered.chain([(A, conversation(51).request().unwrap())]);
            let sessions =
                SessionConfig { pod_share: Percent(50), outside_share: Percent::ALL, ..SessionConfig::live(100) };
            Scene::of(packets.map(|(port, packet)| send(port, &packet)).collect()).with_sessions(sessions)
        }
        OtherHost => {
            let mut frame = from(UPLINK, &udp("8.8.8.8", "10.0.0.1", 80));
            frame[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
            Scene::of(vec![Step::Send(UPLINK, vec![frame])])
        }
        NoSuchPod => {
            let mut ports = live_ports();
            ports[B.index()].is_gone = true;
            a(&a_to_b(SYN)).with_ports(ports)
        }
        PortDown => Scene { absent: vec![B], ..a(&a_to_b(SYN)) },
        PacketTooBig => {
            let mut packet = datagram_of_len(8000);
            packet[6] = 0x40;
            a(&packet).with_ports(narrow_ports())
        }
        // The peer holds all frames of the pool.
        NoBuffer => Scene { frames: 128, ..a(&datagram_of_len(8000)).with_ports(narrow_ports()) },
        NoNeighbour => Scene::of(vec![send(A, &a_to_b(SYN)), Step::Wait(5)]).with_ports(without_mac()),
        NeighbourQueueFull => {
            let packets = (0..9).map(|port| from(A, &tcp("10.0.0.1", "10.0.0.2", 1000 + port, 80, SYN)));
            Scene::of(vec![Step::Send(A, packets.collect())]).with_ports(without_mac())
        }
        NeighbourRate => Scene::of(vec![Step::Send(A, vec![arp("10.0.0.1", "10.0.0.2"); 300])]),
        TxFull => {
            // The peer takes no frame, and its queue has room for the first ones.
            let packets = (0..40).map(|port| from(A, &tcp("10.0.0.1", "10.0.0.2", 1000 + port, 80, SYN)));
            Scene { queue: 20, ..Scene::of(vec![Step::Send(A, packets.collect())]) }
        }
        WorkerBusy => {
            // The second worker never takes the packets handed to it, which are half of all.
            let packets =
                (0..6000u16).map(|at| from(A, &udp("10.0.0.1", &format!("10.8.{}.{}", at / 250, at % 250), 80)));
            Scene { workers: 2, ..Scene::of(vec![Step::Send(A, packets.collect())]) }
        }
        ServerName => {
            let mut ports = live_ports();
            ports[B.index()].egress = Some(OPEN);
            // B is the server of DNS and the site.
            let snapshot = snapshot_of_web(ports, "10.0.0.2");
            let (client, server) = (("10.0.0.1", 4000), ("10.0.0.2", 53));
            let reply = dns::answer(1, "www.example.com", &[("www.example.com", 60, "10.0.0.2")]);
            Scene {
                snapshot,
                ..Scene::of(vec![
                    send(A, &datagram(client, server, &dns::query(1, "www.example.com"))),
                    send(B, &datagram(server, client, &reply)),
                    send(A, &datagram(client, ("10.0.0.2", 443), b"no packet of QUIC")),
                ])
            }
        }
    }
}

#[test]
fn every_reason_is_told_by_a_trace_and_a_monitor_and_counted_in_the_same_words() {
    let everything = Tracepoint { filter: Filter::default(), snap: LONGEST_SNAP, ..Tracepoint::default() };
    let dropped = Tracepoint { forwarded: Some(false), ..everything.clone() };
    for &reason in DropReason::ALL {
        // Each tracepoint also alone, because together one can use the marks that the other sets.
        for points in [vec![everything.clone()], vec![dropped.clone()], vec![everything.clone(), dropped.clone()]] {
            let all = (1u64 << points.len()) - 1;
            let plan = StreamPlan { verdicts: true, tracepoints: points.into(), ..StreamPlan::default() };
            let (records, counters) = scene(reason).play(&plan);
            let counted = counters.dropped(reason);
            assert!(counted > 0, "{reason} does not happen: {:?}", happened(&counters));
            let (mut traced, mut monitored) = (0, 0);
            for record in &records {
                match record {
                    Record::Packet { tracepoints, judgement, .. } => {
                        let is_dropped = judgement.outcome.verdict == Verdict::Drop(reason);
                        assert!(!is_dropped || *tracepoints == all, "{reason}: {record:?}");
                        traced += u64::from(is_dropped);
                    }
                    Record::Dropped(judgement) => {
                        monitored += u64::from(judgement.outcome.verdict == Verdict::Drop(reason));
                    }
                    Record::Lost { reason: lost, packets, .. } => panic!("{packets} {lost} are in no record"),
                    Record::Session(_) | Record::Ended { .. } => {}
                }
            }
            assert_eq!((traced, monitored), (counted, counted), "{reason}: {records:#?}");
        }
    }
}

fn happened(counters: &VswitchCounters) -> BTreeSet<DropReason> {
    counters.drops().filter(|(_, count)| *count > 0).map(|(reason, _)| reason).collect()
}

/// Counts the packets that a trace reports as dropped, by reason, and as forwarded.
fn ends(records: &[Record]) -> (BTreeMap<DropReason, u64>, u64) {
    let (mut dropped, mut forwarded) = (BTreeMap::new(), 0);
    for record in records {
        let Record::Packet { judgement, meant_for, .. } = record else { continue };
        match judgement.outcome.verdict {
            Verdict::Drop(reason) => *dropped.entry(reason).or_default() += 1,
            Verdict::Forward(out) => {
                assert_eq!(*meant_for, None, "{out:?}");
                forwarded += 1;
            }
        }
    }
    (dropped, forwarded)
}

#[test]
fn the_end_of_a_packet_is_told_whichever_worker_sees_it() {
    let everything = Tracepoint { snap: LONGEST_SNAP, ..Tracepoint::default() };
    let plan = StreamPlan { tracepoints: [everything].into(), ..StreamPlan::default() };
    let burst = |from_port: u16, len: usize| {
        let packet = |port: u16| {
            let mut packet = datagram_of_len(len);
            packet[20..22].copy_from_slice(&(from_port + port).to_be_bytes());
            from(A, &packet)
        };
        Step::Send(A, (0..20u16).map(packet).collect())
    };
    for workers in [1, 2, 3] {
        // Some packets are sent, partly in several frames. Others find a full queue, wait for a neighbour that never answers, or find their
        // port gone.
        let steps = || {
            let mut steps = vec![burst(1000, 32), burst(2000, 32)];
            steps.extend([burst(3000, 8000), Step::Unplug(B), burst(4000, 32), Step::Wait(5)]);
            steps.extend((0..5).map(|at| send(A, &udp("10.0.0.1", &format!("8.8.8.{at}"), 80))));
            steps.push(Step::Wait(6));
            steps
        };
        let scene = Scene { workers, awake: workers, queue: 60, ..Scene::of(steps()) };
        let (records, counters) = scene.play(&plan);
        let (dropped, forwarded) = ends(&records);
        let counted: BTreeMap<DropReason, u64> = counters.drops().filter(|(_, count)| *count > 0).collect();
        assert_eq!(dropped, counted, "{workers} workers");
        for reason in [DropReason::TxFull, DropReason::PortDown, DropReason::NoNeighbour] {
            assert!(dropped.contains_key(&reason), "{workers} workers: {reason} in {dropped:?}");
        }
        assert_eq!(forwarded, counters.port(B).sent, "{workers} workers");
        assert_eq!(counters.port(A).received, forwarded + dropped.values().sum::<u64>());
    }
}

#[test]
fn a_packet_that_was_let_through_and_is_lost_is_told_with_who_has_allowed_it_and_where_it_was_to_leave() {
    let everything = Tracepoint { snap: LONGEST_SNAP, ..Tracepoint::default() };
    let dropped = Tracepoint { forwarded: Some(false), ..everything.clone() };
    let forwarded = Tracepoint { forwarded: Some(true), ..everything.clone() };
    for (points, expected) in [
        (vec![everything.clone()], Some(0b1)),
        (vec![dropped.clone()], Some(0b1)),
        (vec![forwarded.clone(), dropped, everything], Some(0b110)),
        (vec![forwarded], None),
    ] {
        let plan = StreamPlan { tracepoints: points.into(), ..StreamPlan::default() };
        for scene in [scene(DropReason::NoNeighbour), scene(DropReason::PacketTooBig), scene(DropReason::NoBuffer)] {
            let (records, _) = scene.play(&plan);
            let told: Vec<_> = records
                .iter()
                .filter_map(|record| match record {
                    Record::Packet { tracepoints, judgement, meant_for, .. } => {
                        let rule = judgement.outcome.decision.and_then(|decision| decision.rule);
                        Some((*tracepoints, *meant_for, rule, judgement.outcome.in_port))
                    }
                    _ => None,
                })
                .collect();
            let expected: Vec<_> = expected.iter().map(|points| (*points, Some(B), Some(0), A)).collect();
            assert_eq!(told, expected, "{records:?}");
        }
    }
}
