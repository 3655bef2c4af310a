//! Flows in the kernel that a new snapshot judges without their packets.

use super::caching::{Recorded, start_with};
use super::*;
use crate::io::{CachedFlow, FlowLatch, FlowStart, ForwardedFlow};
use crate::testbed::{ACK, VIP};
use crate::{Flow, TableId};

fn from_b(packet: &[u8]) -> Vec<u8> {
    ethernet(B_MAC, 0x0800, packet)
}

const fn forwarded(flow: &CachedFlow) -> ForwardedFlow {
    let CachedFlow { from, to, ports, flow, received, .. } = *flow;
    ForwardedFlow { slots: [from, to], from: ports[0], flow, received }
}

/// Lets the worker judge the flows by a snapshot, and publishes that. Returns those that the worker confirms.
fn judge(node: &Node, cache: &Recorded, next: Snapshot, flows: &[CachedFlow]) -> Vec<CachedFlow> {
    let next = Arc::new(next);
    let flows: Vec<ForwardedFlow> = flows.iter().map(forwarded).collect();
    node.vswitch.judge_again(&next, &flows, Instant::now() + Duration::from_secs(20));
    node.publisher.publish(next).unwrap();
    std::mem::take(&mut *cache.confirmed.lock().unwrap())
}

/// Returns the flow without what a confirmation leaves as it is.
fn ageless(flow: &CachedFlow) -> CachedFlow {
    CachedFlow { lease: 0, timeout: 0, epochs: [0; 2], start: FlowStart::Latch(FlowLatch(0)), ..*flow }
}

#[test]
fn flows_are_confirmed_as_they_were_added_if_the_new_tables_allow_them() {
    let cache = Arc::new(Recorded::default());
    let mut node = start_with(&cache, None, services::snapshot(4));
    for (from, to, flags) in [(A, B, SYN), (B, A, SYN | ACK), (A, B, ACK)] {
        let (client, server) = (tcp("10.0.0.1", VIP, 2000, 8080, flags), tcp("10.0.0.2", "10.0.0.1", 80, 2000, flags));
        node.send(from, &if from == A { from_a(&client) } else { from_b(&server) });
        node.receive(to);
    }
    let datagram = from_a(&udp("10.0.0.1", "10.0.0.2", 80));
    for _ in 0..2 {
        node.send(A, &datagram);
        node.receive(B);
    }
    let flows = cache.take();
    let (datagrams, connection): (Vec<CachedFlow>, Vec<CachedFlow>) =
        flows.iter().partition(|flow| flow.flow.protocol == 17);
    let ways = |from: PortId| connection.iter().any(|flow| flow.ports[0] == from && flow.translation.is_some());
    assert!(ways(A) && ways(B) && datagrams.len() == 1, "{flows:?}");
    let confirmed = judge(&node, &cache, services::snapshot(5), &flows);
    assert!(confirmed.iter().all(|flow| flow.epochs == [5, 5]), "{confirmed:?}");
    let [confirmed, flows_then] = [&confirmed, &flows].map(|flows| flows.iter().map(ageless).collect::<Vec<_>>());
    assert_eq!(confirmed, flows_then);
    let counters = node.vswitch.counters();
    assert_eq!(counters.sum(|worker| worker.received), 5, "no packet");
    // B's table denies everything. Replies go by their session.
    let mut ports = live_ports();
    ports[B.index()].egress = Some(TableId(1));
    assert_eq!(judge(&node, &cache, snapshot_of(6, ports), &flows), []);
    node.send(A, &datagram);
    node.until_dropped(DropReason::PolicyDenied, 1);
    assert_eq!(judge(&node, &cache, services::snapshot(7), &datagrams), [], "a packet has found it cut");
    let again = judge(&node, &cache, services::snapshot(8), &connection);
    assert_eq!(again.len(), connection.len(), "nothing has cut it meanwhile");
    node.stop();
}

#[test]
fn a_flow_that_would_go_another_way_is_not_confirmed() {
    let cache = Arc::new(Recorded::default());
    let mut node = start_with(&cache, None, snapshot_of(4, live_ports()));
    for _ in 0..2 {
        node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
        node.receive(B);
    }
    let [flow] = *cache.take() else { panic!("one flow") };
    let others = [
        CachedFlow { to: flow.from, ..flow },
        CachedFlow { ports: [B, A], ..flow },
        CachedFlow { received: *b"abcdefghijkl", ..flow },
        CachedFlow { flow: Flow { sport: 7, ..flow.flow }, ..flow },
    ];
    assert_eq!(judge(&node, &cache, snapshot_of(5, live_ports()), &others), []);
    let mut ports = live_ports();
    ports[A.index()].addresses.clear();
    assert_eq!(judge(&node, &cache, snapshot_of(6, ports), &[flow]), [], "the address is not the pod's any more");
    assert_eq!(judge(&node, &cache, snapshot_of(7, live_ports()), &[flow]).len(), 1);
    let mut ports = live_ports();
    ports[B.index()].link = ports[B.index()].link.map(|link| Link { mtu: link.mtu + 1, ..link });
    assert_eq!(judge(&node, &cache, snapshot_of(8, ports), &[flow]), [], "the forwarder does not know the new link");
    let mut ports = live_ports();
    ports[B.index()].is_gone = true;
    assert_eq!(judge(&node, &cache, snapshot_of(9, ports), &[flow]), [], "the pod is gone");
    node.stop();
}
