//! The vswitch's answers to ARP requests and neighbour solicitations.

use super::*;
use crate::packet::{self, Body, Neighbour, Operation, Transport};

/// Returns an ARP reply's address and MAC address.
fn arp_reply(frame: &[u8]) -> (String, Mac) {
    let Ok(Body::Arp(arp)) = packet::parse(LinkType::Ethernet, frame, frame.len()).body else { panic!("ARP") };
    assert_eq!(arp.operation, Operation::Reply);
    (arp.sender.to_string(), arp.sender_mac)
}

fn advertised(frame: &[u8]) -> String {
    let Ok(Body::Ip(ip)) = packet::parse(LinkType::Ethernet, frame, frame.len()).body else { panic!("IP") };
    let Transport::Neighbour(Neighbour::Advertisement(target)) = ip.transport else { panic!("advertisement") };
    target.to_string()
}

#[test]
fn pods_and_host_are_answered_for_every_address_that_is_not_their_own() {
    for target in ["169.254.1.1", "10.0.0.2", "192.168.0.1", "8.8.8.8"] {
        let mut node = Node::new();
        assert_eq!(node.receive(A, &arp(1, A_MAC, "10.0.0.1", target)), Step::Consumed);
        let (port, reply) = node.message();
        assert_eq!((port, destination(&reply), source(&reply)), (A, A_MAC, own(A)));
        assert_eq!(arp_reply(&reply), (target.to_string(), own(A)));
    }
    for target in ["192.168.0.254", "10.0.0.1"] {
        let mut node = Node::new();
        assert_eq!(node.receive(HOST, &arp(1, HOST_MAC, "192.168.0.1", target)), Step::Consumed);
        assert_eq!(arp_reply(&node.message().1), (target.to_string(), own(HOST)));
    }
}

#[test]
fn solicitations_of_pods_and_host_are_answered_too() {
    for (src, target) in [("fe80::a", "fe80::1"), ("fd00::1", "fd00::2"), ("fd00::1", "2001:db8::1")] {
        let mut node = Node::new();
        assert_eq!(node.receive(A, &solicitation(A_MAC, src, target)), Step::Consumed);
        let (port, reply) = node.message();
        assert_eq!((port, destination(&reply), source(&reply)), (A, A_MAC, own(A)));
        assert_eq!(advertised(&reply), target);
    }
    // To the vswitch's MAC address and without an option: neighbour unreachability detection.
    let mut node = Node::new();
    let unicast = nd(135, 0, A_MAC, ("fe80::a", "fe80::1"), "fe80::1", None);
    assert_eq!(node.receive(A, &unicast), Step::Consumed);
    assert_eq!(destination(&node.message().1), A_MAC);
}

#[test]
fn gateways_are_announced_on_a_new_port_to_whoever_has_asked_for_them_in_vain() {
    let mut node = Node::new();
    for port in [A, UPLINK, HOST] {
        node.forwarder.announce(port);
    }
    assert_eq!(node.messages(), [], "the snapshot of the next round has the port");
    node.tick();
    let told = node.messages();
    assert_eq!(
        told.iter().map(|(port, _)| *port).collect::<Vec<_>>(),
        [A, A, HOST, HOST],
        "others own the uplink's gateways"
    );
    for (port, frame) in [&told[0], &told[2]] {
        assert_eq!((destination(frame), source(frame)), (EVERYBODY, own(*port)));
        assert_eq!(arp_reply(frame), ("169.254.1.1".to_owned(), own(*port)));
    }
    assert_eq!(advertised(&told[1].1), "fe80::1");
    // More than the queue of messages holds: none is lost.
    for _ in 0..MAX_MESSAGES {
        node.forwarder.announce(A);
    }
    let mut count = 0;
    for _ in 0..3 {
        node.tick();
        count += node.messages().len();
    }
    assert_eq!((count, node.forwarder.counters().messages_lost), (2 * MAX_MESSAGES, 0));
}

#[test]
fn nobody_is_told_that_their_own_address_is_taken() {
    let mut node = Node::new();
    for frame in [
        arp(1, A_MAC, "0.0.0.0", "10.0.0.1"),
        arp(1, A_MAC, "10.0.0.1", "10.0.0.1"),
        arp(2, A_MAC, "10.0.0.1", "10.0.0.1"),
        // An address without a known owner may be the sender's own.
        arp(1, A_MAC, "0.0.0.0", "169.254.7.7"),
        solicitation(A_MAC, "::", "fd00::1"),
        solicitation(A_MAC, "::", "fe80::a"),
    ] {
        assert_eq!(node.receive(A, &frame), Step::Consumed);
        assert_eq!(node.messages(), []);
    }
}

#[test]
fn a_pod_that_tests_the_address_of_another_is_told_that_it_is_taken() {
    let mut node = Node::new();
    assert_eq!(node.receive(A, &arp(1, A_MAC, "0.0.0.0", "10.0.0.2")), Step::Consumed);
    assert_eq!(arp_reply(&node.message().1).0, "10.0.0.2");
    assert_eq!(node.receive(A, &solicitation(A_MAC, "::", "fd00::2")), Step::Consumed);
    let (_, reply) = node.message();
    assert_eq!((advertised(&reply), destination(&reply)), ("fd00::2".to_string(), [0x33, 0x33, 0, 0, 0, 1]));
    let ours = ipv6::link_local(own(A)).to_string();
    assert_eq!(node.receive(A, &solicitation(A_MAC, "::", &ours)), Step::Consumed);
    assert_eq!(advertised(&node.message().1), ours);
}

#[test]
fn on_the_uplink_only_the_node_and_its_pods_are_answered_for() {
    let mut node = Node::new();
    for target in ["192.168.0.1", "10.0.0.1", "10.0.0.2"] {
        assert_eq!(node.receive(UPLINK, &arp(1, STRANGER_MAC, "192.168.0.7", target)), Step::Consumed);
        assert_eq!(arp_reply(&node.message().1), (target.to_string(), own(UPLINK)));
    }
    for target in ["fd00::1", "fd00:1::1", &ipv6::link_local(own(UPLINK)).to_string()] {
        assert_eq!(node.receive(UPLINK, &solicitation(STRANGER_MAC, "fe80::7", target)), Step::Consumed);
        assert_eq!(advertised(&node.message().1), target);
    }
    for foreign in [
        arp(1, STRANGER_MAC, "192.168.0.7", "192.168.0.254"),
        arp(1, STRANGER_MAC, "192.168.0.7", "10.0.0.77"),
        arp(1, STRANGER_MAC, "0.0.0.0", "192.168.0.9"),
        solicitation(STRANGER_MAC, "fe80::7", "fe80::1"),
        solicitation(STRANGER_MAC, "fe80::7", "2001:db8::1"),
        solicitation(STRANGER_MAC, "::", "fd00:1::77"),
    ] {
        assert_eq!(node.receive(UPLINK, &foreign), Step::Consumed);
        assert_eq!(node.messages(), []);
    }
}

#[test]
fn a_pod_is_answered_where_there_is_no_host_port() {
    let mut ports = linked_ports();
    ports[HOST.index()].kind = PortKind::Pod;
    let mut node = Node::with(Neighbours::new(), linked_snapshot(1, ports));
    let question = arp(1, A_MAC, "10.0.0.1", "169.254.1.1");
    assert_eq!(node.verdict(A, &question), Verdict::Drop(DropReason::NoRoute));
    assert_eq!(node.receive(A, &question), Step::Consumed);
    assert_eq!(arp_reply(&node.message().1).0, "169.254.1.1");
}

#[test]
fn spoofed_arp_and_neighbour_discovery_is_neither_answered_nor_learned() {
    let mut node = Node::new();
    let mut two_macs = arp(1, B_MAC, "10.0.0.2", "10.0.0.1");
    two_macs[22 + 5] = 9;
    let other_option = nd(135, 0, B_MAC, ("fd00::2", "ff02::1:ff00:1"), "fd00::1", Some(STRANGER_MAC));
    for (frame, reason) in [
        (arp(1, B_MAC, "10.0.0.1", "10.0.0.2"), DropReason::ArpSpoofed),
        (two_macs, DropReason::ArpSpoofed),
        (other_option, DropReason::NdSpoofed),
        (solicitation(B_MAC, "fd00::1", "fd00::2"), DropReason::NdSpoofed),
    ] {
        assert_eq!(node.receive(B, &frame), dropped(reason));
    }
    assert_eq!((node.messages(), node.neighbours.peer(B)), (Vec::new(), None));
}

#[test]
fn rfc_4861_a_message_with_a_wrong_checksum_is_dropped() {
    let mut node = Node::new();
    let mut frame = solicitation(A_MAC, "fd00::1", "fd00::2");
    frame[56] ^= 1;
    assert_eq!(node.receive(A, &frame), dropped(DropReason::NdMalformed));
    assert_eq!(node.messages(), []);
}

#[test]
fn neighbour_discovery_behind_an_extension_header_is_dropped() {
    let mut node = Node::new();
    let plain = solicitation(A_MAC, "fd00::1", "fd00::2");
    let hidden = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &plain[54..]].concat();
    let frame = framed(A_MAC, A, &v6("fd00::1", "ff02::1:ff00:2", 60, 255, &hidden));
    assert_eq!(node.receive(A, &frame), dropped(DropReason::NdMalformed));
}

#[test]
fn cve_2020_10749_router_messages_from_pods_are_dropped_and_none_is_passed_on() {
    let mut node = Node::new();
    let advertisement = |mac| {
        let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let sum = checksum::transport(ip("fe80::a"), ip("ff02::1"), 58, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        frame(mac, [0x33, 0x33, 0, 0, 0, 1], 0x86dd, &v6("fe80::a", "ff02::1", 58, 255, &message))
    };
    assert_eq!(node.receive(A, &advertisement(A_MAC)), dropped(DropReason::NdFromPod));
    // The engine lets messages of the fabric's routers pass to the host. The forwarder drops them.
    assert_eq!(node.receive(UPLINK, &advertisement(GATEWAY_MAC)), Step::Consumed);
    assert_eq!((node.messages(), node.neighbours.list()), (Vec::new(), Vec::new()));
}

#[test]
fn a_router_solicitation_is_learned_from_and_not_answered() {
    let mut node = Node::new();
    let mut message = [&[133, 0, 0, 0, 0, 0, 0, 0, 1, 1][..], &B_MAC].concat();
    let sum = checksum::transport(ip("fe80::b"), ip("ff02::2"), 58, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let frame = framed(B_MAC, B, &v6("fe80::b", "ff02::2", 58, 255, &message));
    assert_eq!(node.receive(B, &frame), Step::Consumed);
    assert_eq!((node.messages(), node.neighbours.peer(B)), (Vec::new(), Some(B_MAC)));
}

#[test]
fn answers_that_find_no_room_are_counted() {
    let mut node = Node::new();
    let question = arp(1, A_MAC, "10.0.0.1", "169.254.1.1");
    for _ in 0..MAX_MESSAGES + 5 {
        // At the rate limit of a port.
        node.now += SECOND / 1000;
        assert_eq!(node.receive(A, &question), Step::Consumed);
    }
    assert_eq!((node.messages().len(), node.forwarder.counters().messages_lost), (MAX_MESSAGES, 5));
}

#[test]
fn a_pod_that_floods_with_questions_gets_no_more_answers_and_the_others_still_do() {
    let mut node = Node::new();
    let questions = [arp(1, A_MAC, "10.0.0.1", "169.254.1.1"), solicitation(A_MAC, "fd00::1", "fd00::2")];
    let ask = |node: &mut Node, count: usize| {
        let steps = questions.iter().cycle().take(count).map(|question| node.receive(A, question));
        let steps: Vec<Step> = steps.collect();
        let answered = steps.iter().take_while(|step| **step == Step::Consumed).count();
        assert!(steps[answered..].iter().all(|step| *step == Step::Drop(DropReason::NeighbourRate)), "{steps:?}");
        assert_eq!(node.messages().len(), answered);
        answered
    };
    assert_eq!(ask(&mut node, 1000), 256);
    // A message that needs no answer is no request. The vswitch still learns from it.
    assert_eq!(node.receive(A, &arp(2, A_MAC, "10.0.0.1", "10.0.0.1")), Step::Consumed);
    assert_eq!(node.receive(HOST, &arp(1, HOST_MAC, "192.168.0.1", "10.0.0.1")), Step::Consumed);
    assert_eq!(node.message().0, HOST);
    node.wait(SECOND / 10);
    assert_eq!(ask(&mut node, 1000), 100);
    assert_eq!(node.forwarder.counters().answered, 256 + 100 + 1);
}
