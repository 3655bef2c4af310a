//! Copies of packets, by which the cache requests the renewal of flows.

use super::caching::{Recorded, slot, stepped_over_trunk};
use super::*;
use crate::io::CachedFlow;
use crate::testbed::{ACK, RST, b_to_a, tcp_at};

const SECOND: u64 = 1_000_000_000;

/// The bit of a tag that marks a copy.
const IS_COPY: u16 = 0x1000;

/// A stepped worker, and the peer of its trunk.
struct Lab {
    cache: Arc<Recorded>,
    _vswitch: Vswitch,
    worker: SteppedWorker,
    trunk: LoopbackPeer,
}

/// Returns the packet with a tag behind its MAC addresses.
fn tagged(port: PortId, bits: u16, packet: &[u8]) -> Vec<u8> {
    let tag = [[0x88, 0xa8], (slot(port).0 | bits).to_be_bytes()].concat();
    [&packet[..12], &tag, &packet[12..]].concat()
}

impl Lab {
    fn new() -> Self {
        let cache = Arc::new(Recorded::default());
        let (vswitch, mut workers, mut trunk) = stepped_over_trunk(&cache, live_ports(), 1);
        Self { cache, _vswitch: vswitch, worker: workers.remove(0), trunk: trunk.remove(0) }
    }

    /// Passes packets from a port. Returns the number of packets that the worker sends.
    fn pass(&mut self, port: PortId, bits: u16, packets: &[Vec<u8>], now: u64) -> usize {
        let packets: Vec<Vec<u8>> = packets.iter().map(|packet| tagged(port, bits, packet)).collect();
        self.trunk.push_burst(&packets).unwrap();
        self.worker.round(now);
        std::iter::from_fn(|| self.trunk.pop()).count()
    }

    fn renewed(&self) -> Vec<CachedFlow> {
        std::mem::take(&mut *self.cache.renewed.lock().unwrap())
    }
}

/// Returns an allowed datagram from this port of A to port 80 of B.
fn datagram(port: u16) -> Vec<u8> {
    let mut packet = udp("10.0.0.1", "10.0.0.2", 80);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    from_a(&packet)
}

/// Returns the frame with another destination MAC address.
fn ethernet_to(mac: [u8; 6], frame: &[u8]) -> Vec<u8> {
    [&mac[..], &frame[6..]].concat()
}

#[test]
fn a_copy_renews_its_flow_keeps_its_session_and_is_counted_and_not_sent() {
    let mut lab = Lab::new();
    for now in [1, 2] {
        assert_eq!(lab.pass(A, 0, &[datagram(80)], now), 1);
    }
    let [added] = *lab.cache.take() else { panic!("a flow") };
    assert_eq!(lab.renewed(), []);
    let counts = |lab: &Lab| {
        let counters = lab.worker.counters();
        let port = |id: PortId| counters.ports.iter().filter(move |(port, _)| *port == id).map(|(_, traffic)| *traffic);
        let sums = [A, B].map(|id| port(id).map(|traffic| [traffic.received, traffic.sent]).next());
        (sums, counters.received, counters.sent, counters.dropped(DropReason::PolicyDenied))
    };
    assert_eq!(counts(&lab), ([Some([2, 0]), Some([0, 2])], 2, 2, 0));
    // A session without reply lives for 30 s. Only the copies keep it alive until the end.
    for seconds in [20, 40, 60] {
        // The segments of a long packet. The first one renews the flow.
        let copies = vec![datagram(80); 5];
        assert_eq!(lab.pass(A, IS_COPY, &copies, seconds * SECOND), 0);
        let [renewed] = *lab.renewed() else { panic!("once") };
        assert_eq!(CachedFlow { start: added.start, ..renewed }, added);
        assert_eq!(lab.cache.take(), [], "a latch would send the flow's packets to the worker");
    }
    assert_eq!(counts(&lab), ([Some([17, 0]), Some([0, 17])], 17, 17, 0), "instead of the kernel");
    assert_eq!(lab.worker.counters().engine.sessions().created, 1);
}

#[test]
fn a_copy_that_comes_to_another_worker_is_handed_over_and_renews_its_flow_there() {
    let cache = Arc::new(Recorded::default());
    let (_vswitch, mut workers, mut trunks) = stepped_over_trunk(&cache, live_ports(), 2);
    // One worker owns both directions of a pair of addresses.
    let owner = workers.iter().position(|worker| worker.owns(&datagram(80))).unwrap();
    let pass = |workers: &mut [SteppedWorker], trunk: &mut LoopbackPeer, bits: u16, now: u64| {
        trunk.push_burst(&[tagged(A, bits, &datagram(80))]).unwrap();
        // Three rounds: to hand over, to judge, and to send.
        for _ in 0..3 {
            for worker in &mut *workers {
                worker.round(now);
            }
        }
    };
    for now in [1, 2] {
        pass(&mut workers, &mut trunks[owner], 0, now);
    }
    assert_eq!(cache.take().len(), 1);
    let mut popped = || trunks.iter_mut().map(|trunk| std::iter::from_fn(|| trunk.pop()).count()).sum::<usize>();
    assert_eq!(popped(), 2);
    pass(&mut workers, &mut trunks[1 - owner], IS_COPY, 20 * SECOND);
    let mut popped = || trunks.iter_mut().map(|trunk| std::iter::from_fn(|| trunk.pop()).count()).sum::<usize>();
    assert_eq!((cache.renewed.lock().unwrap().len(), cache.take().len(), popped()), (1, 0, 0));
    let sums = [owner, 1 - owner].map(|worker| (workers[worker].counters().received, workers[worker].counters().sent));
    assert_eq!(sums, [(2, 3), (1, 0)]);
}

#[test]
fn packets_beside_copies_are_sent_and_flows_of_theirs_added() {
    let mut lab = Lab::new();
    for now in [1, 2] {
        lab.pass(A, 0, &[datagram(80), datagram(81)], now);
    }
    assert_eq!(lab.cache.take().len(), 2);
    let [copy, other] = [tagged(A, IS_COPY, &datagram(80)), tagged(A, 0, &datagram(81))];
    lab.trunk.push_burst(&[other.clone(), copy.clone(), other.clone(), copy, other]).unwrap();
    lab.worker.round(20 * SECOND);
    assert_eq!(std::iter::from_fn(|| lab.trunk.pop()).count(), 3);
    let ports = |flows: Vec<CachedFlow>| flows.iter().map(|flow| flow.flow.sport).collect::<Vec<_>>();
    assert_eq!((ports(lab.renewed()), ports(lab.cache.take())), (vec![80], vec![81]));
}

#[test]
fn a_copy_of_what_policy_denies_by_now_renews_nothing_and_is_counted_as_dropped() {
    let mut lab = Lab::new();
    // This session does not exist any more, and policy denies it.
    let denied = from_a(&udp("10.0.0.1", "10.0.0.2", 81));
    assert_eq!(lab.pass(A, IS_COPY, &[denied], 1), 0);
    let counters = lab.worker.counters();
    assert_eq!((counters.received, counters.sent, counters.dropped(DropReason::PolicyDenied)), (1, 0, 1));
    assert_eq!((lab.renewed(), lab.cache.take()), (vec![], vec![]));
}

/// A bulk connection is too far ahead to end its handshake by sequence numbers, so the worker asks the kernel whether it has ended.
#[test]
fn a_bulk_connection_is_established_before_its_flows_ask_to_be_renewed() {
    for has_ended in [true, false] {
        let mut lab = Lab::new();
        assert_eq!(lab.pass(A, 0, &[from_a(&a_to_b(SYN))], 1), 1);
        let syn_ack = ethernet(B_MAC, 0x0800, &b_to_a(SYN | ACK));
        assert_eq!(lab.pass(B, 0, &[syn_ack], 2), 1);
        let [reply, forward] = *lab.cache.take() else { panic!("two flows") };
        if has_ended {
            lab.cache.forward(|steps| steps.has_ended = true);
        }
        // A gigabyte was sent, and half a gigabyte returned.
        let far = tcp_at(("10.0.0.1", 40_000), ("10.0.0.2", 80), ACK, (1 << 30, 1 << 29));
        let far_back = tcp_at(("10.0.0.2", 80), ("10.0.0.1", 40_000), ACK, (1 << 29, 1 << 30));
        let now = forward.lease - forward.lease / 8;
        let far = ethernet_to(own_mac(2), &from_a(&far));
        assert_eq!(lab.pass(A, IS_COPY, &[far], now), 0);
        assert_eq!(lab.pass(B, IS_COPY, &[ethernet(B_MAC, 0x0800, &far_back)], now + 1), 0);
        let renewed = lab.renewed();
        if !has_ended {
            assert_eq!(renewed, []);
            continue;
        }
        let [forward_again, reply_again] = *renewed else { panic!("{renewed:?}") };
        assert!(forward_again.lease > 10 * forward.lease, "that of an established connection");
        let as_before =
            |again: CachedFlow, before: &CachedFlow| CachedFlow { lease: before.lease, start: before.start, ..again };
        assert_eq!([as_before(forward_again, &forward), as_before(reply_again, &reply)], [forward, reply]);
        // Only a reset at the connection's present sequence number ends it.
        let blind = tcp_at(("10.0.0.1", 40_000), ("10.0.0.2", 80), RST, (77, 0));
        lab.pass(A, 0, &[from_a(&blind)], now + 2);
        assert_eq!(lab.worker.counters().sessions, 1);
    }
}
