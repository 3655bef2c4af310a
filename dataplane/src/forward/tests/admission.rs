//! Checks of source and destination MAC addresses.

use super::*;

#[test]
fn the_first_mac_address_that_a_pod_sends_with_is_the_one_that_it_keeps() {
    let mut node = Node::acquainted();
    node.neighbours.forget(B);
    assert_eq!(node.receive(B, &udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1")), Step::Send(A));
    assert_eq!(node.neighbours.peer(B), Some(B_MAC));
    let other = udp_frame(STRANGER_MAC, B, "10.0.0.2", "10.0.0.1");
    assert_eq!(node.receive(B, &other), dropped(DropReason::SpoofedSource));
    assert_eq!(node.forwarder.admit(B, &udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1")), Ok(()));
    assert_eq!(node.forwarder.admit(B, &other), Err(DropReason::SpoofedSource));
    // Also without a call of `admit`.
    let step = node.forwarder.forward(&node.snapshot, &mut other.clone(), 42, B, Verdict::Forward(A));
    assert_eq!(step, dropped(DropReason::SpoofedSource));
    node.neighbours.forget(B);
    assert_eq!(node.receive(B, &other), Step::Send(A), "another interface, another MAC address");
}

#[test]
fn nothing_is_learned_from_what_the_engine_drops() {
    let mut node = Node::new();
    let spoofed = udp_frame(STRANGER_MAC, B, "10.0.0.9", "10.0.0.1");
    assert_eq!(node.receive(B, &spoofed), dropped(DropReason::SpoofedSource));
    assert_eq!(node.neighbours.peer(B), None);
}

#[test]
fn a_configured_mac_address_is_not_learned_over() {
    let mut node = Node::acquainted();
    node.neighbours.learn_peer(A, STRANGER_MAC, false);
    let mut frame = udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1");
    assert_eq!((node.step(B, &mut frame), destination(&frame)), (Step::Send(A), A_MAC));
    let stranger = udp_frame(STRANGER_MAC, A, "10.0.0.1", "10.0.0.2");
    assert_eq!(node.forwarder.admit(A, &stranger), Err(DropReason::SpoofedSource));
}

#[test]
fn a_host_may_change_its_mac_address() {
    let mut node = Node::acquainted();
    for mac in [HOST_MAC, STRANGER_MAC] {
        assert_eq!(node.receive(HOST, &udp_frame(mac, HOST, "192.168.0.1", "10.0.0.1")), Step::Send(A));
        assert_eq!(node.neighbours.peer(HOST), Some(mac));
    }
}

#[test]
fn no_pod_has_a_groups_address_or_the_vswitchs_own() {
    let mut node = Node::new();
    for mac in [EVERYBODY, [0; 6], [0x33, 0x33, 0, 0, 0, 1], own(B)] {
        let frame = udp_frame(mac, B, "10.0.0.2", "10.0.0.1");
        assert_eq!(node.receive(B, &frame), dropped(DropReason::SpoofedSource), "{mac:x?}");
    }
    assert_eq!(node.neighbours.peer(B), None);
}

#[test]
fn the_uplink_takes_what_is_sent_to_it_and_no_broadcast_packets() {
    let mut node = Node::acquainted();
    let packet = udp("8.8.8.8", "10.0.0.1", 80);
    let to = |mac| frame(GATEWAY_MAC, mac, 0x0800, &packet);
    assert_eq!(node.receive(UPLINK, &to(own(UPLINK))), Step::Send(A));
    assert_eq!(node.receive(UPLINK, &to(STRANGER_MAC)), dropped(DropReason::OtherHost));
    assert_eq!(node.receive(UPLINK, &to(EVERYBODY)), dropped(DropReason::Multicast));
    let six = frame(GATEWAY_MAC, [0x33, 0x33, 0, 0, 0, 1], 0x86dd, &udp("2001:db8::1", "fd00::1", 80));
    assert_eq!(node.receive(UPLINK, &six), dropped(DropReason::Multicast));
    assert_eq!(node.receive(UPLINK, &arp(1, GATEWAY_MAC, "192.168.0.254", "10.0.0.1")), Step::Consumed);
    assert_eq!(node.receive(UPLINK, &solicitation(GATEWAY_MAC, "fe80::fe", "fd00::1")), Step::Consumed);
    // Pods may send to any MAC address.
    assert_eq!(node.receive(A, &frame(A_MAC, STRANGER_MAC, 0x0800, &udp("10.0.0.1", "10.0.0.2", 80))), Step::Send(B));
}

#[test]
fn workers_agree_on_the_mac_address_that_came_first() {
    let neighbours = Neighbours::new();
    let mut one = Node::with(Arc::clone(&neighbours), linked_snapshot(1, linked_ports()));
    let mut two = Node::with(Arc::clone(&neighbours), linked_snapshot(1, linked_ports()));
    assert_eq!(one.receive(B, &udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1")), Step::Send(A));
    // `two` has not started a burst since, so its view has no address yet.
    let mut late = udp_frame(STRANGER_MAC, B, "10.0.0.2", "10.0.0.1");
    let step = two.forwarder.forward(&two.snapshot, &mut late, 42, B, Verdict::Forward(A));
    assert_eq!(step, dropped(DropReason::SpoofedSource));
    assert_eq!(neighbours.peer(B), Some(B_MAC));
    assert_eq!(two.receive(B, &udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1")), Step::Send(A));
}
