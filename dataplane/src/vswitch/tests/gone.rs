//! The vswitch notifies peers of pods that are gone at once.

use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::*;
use crate::Counters;
use crate::testbed::{FIN, RST, VIP, backend, service, services, snapshot_of_blocks, tcp_at, v6};

/// A vswitch with one worker that the test steps, and the peers of its ports.
struct Stepped {
    vswitch: Vswitch,
    worker: SteppedWorker,
    publisher: Publisher,
    peers: Vec<Option<LoopbackPeer>>,
    now: u64,
}

impl Stepped {
    fn new(snapshot: Snapshot) -> Self {
        let publisher = Publisher::new(snapshot);
        let config = VswitchConfig {
            affinity: Affinity::new(),
            lease: LEASE,
            cores: vec![None],
            poll: PollMode::Spin,
            engine: WorkerConfig { sessions: SessionConfig::live(100_000), ..WorkerConfig::default() },
            frames: FRAMES,
            tap: None,
            flow_cache: None,
        };
        let (vswitch, mut workers) = Vswitch::stepped(&config, &publisher).unwrap();
        let worker = workers.remove(0);
        let mut node = Self { vswitch, worker, publisher, peers: (0..4).map(|_| None).collect(), now: 1 };
        [UPLINK, HOST, A, B].into_iter().for_each(|id| node.plug(id));
        node
    }

    fn plug(&mut self, id: PortId) {
        let (port, other) = LoopbackPort::pair(1024);
        self.vswitch.add_port(id, 0, Box::new(port));
        self.peers[id.index()] = Some(LoopbackPeer::new(other, self.vswitch.pool().sibling()));
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.now += 1000;
            self.worker.round(self.now);
        }
    }

    /// Sends a packet from behind a port.
    fn send(&mut self, id: PortId, packet: &[u8]) {
        let mac = match id {
            A => A_MAC,
            B => B_MAC,
            _ => STRANGER,
        };
        let mut frame = ethernet(mac, if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, packet);
        frame[..6].copy_from_slice(&own_mac(u8::try_from(id.0).unwrap()));
        self.peers[id.index()].as_mut().unwrap().push(&frame).unwrap();
        self.rounds(2);
    }

    /// Returns the frames that the vswitch has sent out of a port.
    fn received(&mut self, id: PortId) -> Vec<Vec<u8>> {
        let peer = self.peers[id.index()].as_mut().unwrap();
        std::iter::from_fn(|| peer.pop()).collect()
    }

    /// Opens a TCP connection with these first sequence numbers, of which each side has sent some bytes.
    fn connect(&mut self, (from, src): (PortId, (&str, u16)), (to, dst): (PortId, (&str, u16)), seen: (&str, u16)) {
        self.send(from, &tcp_at(src, dst, SYN, (1000, 0)));
        self.send(to, &tcp_at(seen, src, SYN | ACK, (5000, 1001)));
        self.send(from, &tcp_at(src, dst, ACK, (1001, 5001)));
        self.received(from);
        self.received(to);
    }

    /// The interface of a pod's port ends.
    fn end(&mut self, id: PortId) {
        self.vswitch.remove_port(id);
        self.vswitch.end_port(id);
        self.peers[id.index()] = None;
        self.rounds(3);
    }

    fn counters(&self) -> Counters {
        self.worker.counters().engine
    }

    /// Stops the worker, and checks that every packet was counted.
    fn stop(self) -> WorkerCounters {
        let workers = vec![self.worker.stop()];
        let counters = VswitchCounters { workers, port_sessions: Vec::new() };
        assert_eq!(counters.lost(), 0, "{counters:?}");
        counters.workers.into_iter().next().unwrap()
    }
}

const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn node() -> Stepped {
    Stepped::new(snapshot_of_blocks(1, live_ports()))
}

/// Returns a segment's source and destination, flags, sequence and acknowledgement number, after checking its checksums.
fn segment(frame: &[u8]) -> ((IpAddr, u16), (IpAddr, u16), u8, u32, u32) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("TCP expected: {frame:x?}") };
    let header = tcp.to_header();
    let (src, dst): (IpAddr, IpAddr) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header();
            assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
            assert_eq!(header.checksum, header.calc_checksum_ipv4_raw(ip.source(), ip.destination(), &[]).unwrap());
            (ip.source_addr().into(), ip.destination_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header();
            assert_eq!(header.checksum, header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), &[]).unwrap());
            (ip.source_addr().into(), ip.destination_addr().into())
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    assert_eq!(tcp.payload().len(), 0, "no reader gets a byte from the vswitch");
    let flags = tcp.slice()[13];
    let ends = ((src, header.source_port), (dst, header.destination_port));
    (ends.0, ends.1, flags, header.sequence_number, header.acknowledgment_number)
}

const CLIENT: (&str, u16) = ("10.0.0.1", 40_000);
const SERVER: (&str, u16) = ("10.0.0.2", 80);

fn end((address, port): (&str, u16)) -> (IpAddr, u16) {
    (ip(address), port)
}

/// Checks that a peer got two probes of which at least one is outside of any window. Returns the first one's sequence number.
fn probes(frames: &[Vec<u8>], from: (&str, u16), to: (&str, u16)) -> u32 {
    let [one, other] = frames else { panic!("two frames expected: {frames:x?}") };
    let (one, other) = (segment(one), segment(other));
    assert_eq!((one.0, one.1, one.2), (end(from), end(to), ACK));
    assert_eq!((other.0, other.1, other.2), (end(from), end(to), ACK));
    assert_eq!(one.3.wrapping_sub(other.3), 1 << 31);
    one.3
}

#[test]
fn a_client_that_only_reads_is_made_to_speak_and_gets_a_reset_with_its_numbers() {
    let mut node = node();
    node.connect((A, CLIENT), (B, SERVER), SERVER);
    node.end(B);
    assert_eq!(probes(&node.received(A), SERVER, CLIENT), 5000, "a keepalive's number");
    // The client's kernel answers with its present numbers, which no worker has seen.
    node.send(A, &tcp_at(CLIENT, SERVER, ACK, (777_777, 888_888)));
    let frames = node.received(A);
    assert_eq!(frames.len(), 1);
    assert_eq!((&frames[0][..6], &frames[0][6..12]), (&A_MAC[..], &own_mac(2)[..]));
    assert_eq!(segment(&frames[0]), (end(SERVER), end(CLIENT), RST, 888_888, 0));
    // A reset is not answered, a close is.
    node.send(A, &tcp_at(CLIENT, SERVER, RST, (777_777, 0)));
    assert_eq!(node.received(A).len(), 0);
    node.send(A, &tcp_at(CLIENT, SERVER, FIN | ACK, (777_777, 888_888)));
    assert_eq!(segment(&node.received(A)[0]).3, 888_888);
    let counters = node.stop();
    assert_eq!((counters.originated, counters.forward.refused), (4, 3));
    assert_eq!(counters.dropped(DropReason::NoSuchPod), 3);
}

#[test]
fn a_server_is_told_of_its_client_and_machines_outside_are_told_through_the_uplink() {
    let mut node = node();
    node.connect((A, CLIENT), (B, SERVER), SERVER);
    // The machine outside is on the uplink's link. The vswitch learns its MAC address by ARP.
    let outside = ("192.168.7.7", 50_000);
    node.send(UPLINK, &tcp_at(outside, ("10.0.0.1", 443), SYN, (1000, 0)));
    node.send(A, &tcp_at(("10.0.0.1", 443), outside, SYN | ACK, (5000, 1001)));
    let request = node.received(UPLINK).pop().unwrap();
    let mut reply = [&request[6..12], &STRANGER, &request[12..20], &[0, 2], &STRANGER, &request[38..42]].concat();
    reply.extend([&own_mac(0)[..], &request[28..32], &[0; 18]].concat());
    node.peers[UPLINK.index()].as_mut().unwrap().push(&reply).unwrap();
    node.rounds(3);
    // The next look at requests.
    node.now += 1_000_000_000;
    node.rounds(3);
    assert_eq!(segment(&node.received(UPLINK)[0]).2, SYN | ACK);
    node.send(UPLINK, &tcp_at(outside, ("10.0.0.1", 443), ACK, (1001, 5001)));
    node.received(B);
    node.end(A);
    assert_eq!(probes(&node.received(B), CLIENT, SERVER), 1000);
    let frames = node.received(UPLINK);
    assert_eq!(probes(&frames, ("10.0.0.1", 443), outside), 5000);
    assert_eq!(frames[0][..6], STRANGER);
    node.send(UPLINK, &tcp_at(outside, ("10.0.0.1", 443), ACK, (1001, 7)));
    assert_eq!(segment(&node.received(UPLINK)[0]), (end(("10.0.0.1", 443)), end(outside), RST, 7, 0));
    node.stop();
}

#[test]
fn clients_of_a_service_are_told_in_its_name() {
    let services = services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    let mut node = Stepped::new(snapshot_of_blocks(1, live_ports()).with_services(Some(Arc::new(services))));
    let vip = (VIP, 8080);
    node.connect((A, CLIENT), (B, vip), SERVER);
    node.end(B);
    assert_eq!(probes(&node.received(A), vip, CLIENT), 5000);
    node.send(A, &tcp_at(CLIENT, vip, ACK, (1001, 5009)));
    assert_eq!(segment(&node.received(A)[0]), (end(vip), end(CLIENT), RST, 5009, 0));
    node.stop();
}

#[test]
fn a_syn_without_an_answer_gets_its_reset_at_once() {
    let mut node = node();
    node.send(A, &tcp_at(CLIENT, SERVER, SYN, (1000, 0)));
    node.end(B);
    let frames = node.received(A);
    assert_eq!(frames.len(), 1);
    assert_eq!(segment(&frames[0]), (end(SERVER), end(CLIENT), RST | ACK, 0, 1001));
    node.stop();
}

#[test]
fn a_udp_peer_gets_the_error_about_what_it_would_send_next() {
    let mut node = node();
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        node.send(A, &udp(src, dst, 80));
    }
    node.end(B);
    let frames = node.received(A);
    assert_eq!(frames.len(), 2);
    for (frame, src, dst) in [(&frames[0], "10.0.0.1", "10.0.0.2"), (&frames[1], "fd00::1", "fd00::2")] {
        let quoted = udp(src, dst, 80);
        let is_v4 = frame[12] == 8;
        let (at, kind) = if is_v4 { (34, (3, 3)) } else { (54, (1, 4)) };
        assert_eq!((frame[at], frame[at + 1]), kind, "port unreachable");
        assert_eq!(frame[at + 8..], quoted, "what the peer sent");
        let source = if is_v4 { &frame[26..30] } else { &frame[22..38] };
        let own = if is_v4 { &quoted[16..20] } else { &quoted[24..40] };
        assert_eq!((source, &frame[..6]), (own, &A_MAC[..]), "in the gone pod's name");
    }
    // So does what it sends afterwards.
    node.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
    let frames = node.received(A);
    assert_eq!((frames.len(), frames[0][34], frames[0][35]), (1, 3, 3));
    node.stop();
}

#[test]
fn sessions_end_a_part_at_a_time_and_all_of_their_peers_are_told() {
    let mut node = node();
    let client = |number: u16| ("10.0.0.1", 1000 + number);
    for number in 0..300 {
        node.connect((A, client(number)), (B, SERVER), SERVER);
    }
    node.vswitch.end_port(B);
    let mut told = 0;
    let mut rounds = 0;
    while node.worker.round(node.now) {
        let frames = node.received(A).len();
        assert!(frames <= 128, "{frames} in a round");
        (told, rounds) = (told + frames, rounds + 1);
    }
    assert_eq!(told, 600);
    assert!((5..=7).contains(&rounds), "{rounds}");
    node.rounds(1);
    assert_eq!(node.counters().sessions().removed, 0, "counted with the next packet");
    node.send(A, &udp("10.0.0.1", "192.168.0.1", 80));
    assert_eq!(node.counters().sessions().removed, 300);
    node.stop();
}

#[test]
fn a_port_that_is_only_closed_keeps_its_sessions_and_nobody_is_told() {
    let mut node = node();
    node.connect((A, CLIENT), (B, SERVER), SERVER);
    node.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
    node.vswitch.remove_port(B);
    node.rounds(3);
    assert_eq!(node.received(A), [[0u8; 0]; 0]);
    node.plug(B);
    node.send(A, &tcp_at(CLIENT, SERVER, ACK, (1001, 5001)));
    node.send(B, &tcp_at(SERVER, CLIENT, ACK, (5001, 1001)));
    assert_eq!((node.received(B).len(), node.received(A).len()), (1, 1));
    node.stop();
}

#[test]
fn sessions_of_the_pod_that_had_the_port_before_are_ended_and_told_before_the_next_pods_begin() {
    let mut node = node();
    node.connect((A, CLIENT), (B, SERVER), SERVER);
    node.vswitch.remove_port(B);
    node.vswitch.end_port(B);
    node.plug(B);
    node.rounds(3);
    assert_eq!(probes(&node.received(A), SERVER, CLIENT), 5000);
    node.connect((A, ("10.0.0.1", 40_001)), (B, SERVER), SERVER);
    node.send(A, &tcp_at(("10.0.0.1", 40_001), SERVER, ACK, (1001, 5001)));
    assert_eq!((node.received(B).len(), node.received(A).len()), (1, 0), "the new session stays");
    node.stop();
}

#[test]
fn without_answers_sessions_end_as_well_and_nothing_is_sent() {
    let silent = || snapshot_of_blocks(1, live_ports()).telling_unreachable(false);
    let mut node = Stepped::new(silent());
    node.connect((A, CLIENT), (B, SERVER), SERVER);
    node.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
    node.end(B);
    node.send(A, &tcp_at(CLIENT, SERVER, ACK, (1001, 5001)));
    node.send(A, &udp("10.0.0.1", "10.0.0.9", 80));
    node.send(A, &v6("fd00::1", "fd00::9", 17, 64, &udp("fd00::1", "fd00::9", 80)[40..]));
    assert_eq!(node.received(A), [[0u8; 0]; 0]);
    assert_eq!(node.stop().dropped(DropReason::NoSuchPod), 3);
}

#[test]
fn an_address_without_a_pod_is_answered_under_a_new_snapshot_too() {
    let mut node = node();
    node.connect((A, CLIENT), (B, SERVER), SERVER);
    node.end(B);
    node.received(A);
    // The control plane may know first that the port is closed. A connection that begins then is not the gone pod's.
    let mut ports = live_ports();
    ports[B.index()].link = None;
    node.publisher.publish(snapshot_of_blocks(2, ports.clone())).unwrap();
    node.send(A, &tcp_at(CLIENT, SERVER, ACK, (1001, 5001)));
    assert_eq!(segment(&node.received(A)[0]), (end(SERVER), end(CLIENT), RST, 5001, 0));
    for (generation, is_known) in [(3, true), (4, false)] {
        ports[B.index()].is_gone = true;
        if !is_known {
            ports[B.index()].addresses.clear();
        }
        node.publisher.publish(snapshot_of_blocks(generation, ports.clone())).unwrap();
        node.send(A, &tcp_at(CLIENT, SERVER, ACK, (1001, 5001)));
        node.send(A, &tcp_at(("10.0.0.1", 50_000), SERVER, SYN, (9, 0)));
        let answers: Vec<_> = node.received(A).iter().map(|frame| segment(frame)).collect();
        let expected =
            [(end(SERVER), end(CLIENT), RST, 5001, 0), (end(SERVER), end(("10.0.0.1", 50_000)), RST | ACK, 0, 10)];
        assert_eq!(answers, expected, "{generation}");
    }
    node.stop();
}
