//! Next hops whose MAC address is unknown.

use super::*;
use crate::forward::pending::{NEIGHBOURS_PER_PORT, PER_NEIGHBOUR};
use crate::packet::{self, Body, Neighbour, Operation, Transport};

fn neighbour(port: PortId, address: &str) -> NeighbourId {
    NeighbourId { port, address: ip(address) }
}

/// Returns the address that an ARP request or a neighbour solicitation asks about.
fn asked_for(frame: &[u8]) -> String {
    match packet::parse(LinkType::Ethernet, frame, frame.len()).body {
        Ok(Body::Arp(arp)) if arp.operation == Operation::Request => arp.target.to_string(),
        Ok(Body::Ip(ip)) => match ip.transport {
            Transport::Neighbour(Neighbour::Solicitation(target)) => target.to_string(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn reply(mac: Mac, sender: &str) -> Vec<u8> {
    let mut frame = arp(2, mac, sender, "192.168.0.1");
    frame[..6].copy_from_slice(&own(UPLINK));
    frame
}

fn advertisement(mac: Mac, target: &str, flags: u8) -> Vec<u8> {
    let ours = ipv6::link_local(own(UPLINK)).to_string();
    let mut frame = nd(136, flags, mac, (target, &ours), target, Some(mac));
    frame[..6].copy_from_slice(&own(UPLINK));
    frame
}

const TO_WORLD: (&str, &str) = ("10.0.0.1", "8.8.8.8");

fn to_world() -> Vec<u8> {
    udp_frame(A_MAC, A, TO_WORLD.0, TO_WORLD.1)
}

/// Returns a node that knows its IPv4 gateway.
fn with_gateway() -> Node {
    let mut node = Node::acquainted();
    node.receive(A, &to_world());
    node.messages();
    assert_eq!(node.receive(UPLINK, &reply(GATEWAY_MAC, "192.168.0.254")), Step::Consumed);
    node.tick();
    assert_eq!(node.released().len(), 1);
    node
}

#[test]
fn a_packet_waits_for_its_gateway_and_goes_when_the_gateway_answers() {
    let cases = [
        ("10.0.0.1", "8.8.8.8", "192.168.0.254", reply(GATEWAY_MAC, "192.168.0.254")),
        ("fd00::1", "2001:db8::1", "fe80::fe", advertisement(GATEWAY_MAC, "fe80::fe", 0xe0)),
        ("10.0.0.1", "192.168.0.9", "192.168.0.9", reply(GATEWAY_MAC, "192.168.0.9")),
        ("fd00::1", "fd00:1::9", "fd00:1::9", advertisement(GATEWAY_MAC, "fd00:1::9", 0x60)),
    ];
    for (src, dst, hop, answer) in cases {
        let mut node = Node::acquainted();
        let before = udp_frame(A_MAC, A, src, dst);
        assert_eq!(node.receive(A, &before), Step::Hold(neighbour(UPLINK, hop)));
        let (port, question) = node.message();
        assert_eq!((port, asked_for(&question), source(&question)), (UPLINK, hop.to_string(), own(UPLINK)));
        assert_eq!(node.receive(A, &before), Step::Hold(neighbour(UPLINK, hop)));
        assert_eq!(node.messages(), [], "asked already");
        assert_eq!(node.receive(UPLINK, &answer), Step::Consumed);
        node.tick();
        let released = node.released();
        assert_eq!((released.len(), node.forwarder.held()), (2, 0));
        for mut held in released {
            rewrite::ethernet(&mut held.packet, &held.addresses.unwrap());
            assert_eq!((held.in_port, held.out), (A, UPLINK));
            assert_eq!((destination(&held.packet), source(&held.packet)), (GATEWAY_MAC, own(UPLINK)));
            assert_eq!(hop_limit(&held.packet), 63);
        }
        for _ in 0..2 {
            let mut frame = before.clone();
            assert_eq!(node.step(A, &mut frame), Step::Send(UPLINK));
            assert_eq!((destination(&frame), hop_limit(&frame)), (GATEWAY_MAC, 63));
        }
    }
}

#[test]
fn the_node_asks_with_the_address_that_the_neighbour_is_nearest_to() {
    let mut ports = linked_ports();
    ports[HOST.index()].addresses.push(ip("172.16.0.1"));
    ports[HOST.index()].addresses.push(ip("8.8.0.1"));
    let mut node = Node::with(Neighbours::new(), linked_snapshot(1, ports));
    node.receive(A, &to_world());
    assert_eq!(node.message().1[28..32], octets4("192.168.0.1"));
}

#[test]
fn a_gateway_that_stays_silent_is_asked_three_times_and_the_packets_are_dropped() {
    let mut node = Node::acquainted();
    node.receive(A, &to_world());
    let mut asked = node.messages().len();
    let mut released = Vec::new();
    for _ in 0..40 {
        node.wait(SECOND / 10);
        asked += node.messages().len();
        released.extend(node.released());
    }
    assert_eq!(asked, 3);
    assert_eq!(released.len(), 1);
    assert_eq!((released[0].in_port, released[0].addresses), (A, Err(DropReason::NoNeighbour)));
    assert_eq!(node.receive(A, &to_world()), Step::Hold(neighbour(UPLINK, "192.168.0.254")));
    assert_eq!(node.messages().len(), 1, "the next packet asks again");
}

#[test]
fn an_unsolicited_answer_poisons_nothing() {
    let mut node = Node::acquainted();
    for frame in [
        reply(STRANGER_MAC, "192.168.0.254"),
        arp(2, STRANGER_MAC, "192.168.0.254", "192.168.0.254"),
        arp(1, STRANGER_MAC, "192.168.0.254", "192.168.0.254"),
        arp(1, STRANGER_MAC, "192.168.0.254", "192.168.0.1"),
        advertisement(STRANGER_MAC, "fe80::fe", 0xe0),
        advertisement(STRANGER_MAC, "fe80::fe", 0xa0),
        solicitation(STRANGER_MAC, "fe80::fe", "fd00::1"),
    ] {
        assert_eq!(node.receive(UPLINK, &frame), Step::Consumed);
    }
    node.messages();
    assert_eq!(node.neighbours.list(), []);
    assert_eq!(node.receive(A, &to_world()), Step::Hold(neighbour(UPLINK, "192.168.0.254")));
    // Solicited but no answer; not from a station; on another port.
    let mut elsewhere = reply(HOST_MAC, "192.168.0.254");
    elsewhere[..6].copy_from_slice(&own(HOST));
    node.receive(HOST, &elsewhere);
    for frame in [
        arp(1, STRANGER_MAC, "192.168.0.254", "192.168.0.254"),
        reply(EVERYBODY, "192.168.0.254"),
        reply(own(UPLINK), "192.168.0.254"),
    ] {
        node.receive(UPLINK, &frame);
    }
    assert_eq!(node.neighbours.list(), []);
}

#[test]
fn a_solicited_advertisement_is_one_that_says_so() {
    let mut node = Node::acquainted();
    node.receive(A, &udp_frame(A_MAC, A, "fd00::1", "2001:db8::1"));
    node.receive(UPLINK, &advertisement(STRANGER_MAC, "fe80::fe", 0xa0));
    assert_eq!(node.neighbours.list(), []);
    node.receive(UPLINK, &advertisement(GATEWAY_MAC, "fe80::fe", 0xc0));
    assert_eq!(node.neighbours.list(), [(neighbour(UPLINK, "fe80::fe"), GATEWAY_MAC)]);
}

#[test]
fn a_second_answer_does_not_replace_the_first() {
    let mut node = with_gateway();
    node.receive(UPLINK, &reply(STRANGER_MAC, "192.168.0.254"));
    assert_eq!(node.neighbours.list(), [(neighbour(UPLINK, "192.168.0.254"), GATEWAY_MAC)]);
    assert_eq!(node.forwarder.counters().unsolicited, 1);
}

#[test]
fn a_gateway_that_moves_is_asked_again_and_believed_when_it_answers() {
    let mut node = with_gateway();
    node.wait(2 * SECOND);
    node.receive(UPLINK, &arp(2, STRANGER_MAC, "192.168.0.254", "192.168.0.254"));
    let (_, question) = node.message();
    assert_eq!((asked_for(&question), destination(&question)), ("192.168.0.254".to_string(), EVERYBODY));
    let mut frame = to_world();
    assert_eq!((node.step(A, &mut frame), destination(&frame)), (Step::Send(UPLINK), GATEWAY_MAC));
    node.receive(UPLINK, &reply(STRANGER_MAC, "192.168.0.254"));
    let mut frame = to_world();
    assert_eq!((node.step(A, &mut frame), destination(&frame)), (Step::Send(UPLINK), STRANGER_MAC));
}

#[test]
fn a_gateway_in_use_is_probed_when_its_answer_is_old_and_packets_go_on_meanwhile() {
    let mut node = with_gateway();
    node.wait(29 * SECOND);
    assert_eq!(node.receive(A, &to_world()), Step::Send(UPLINK));
    assert_eq!(node.messages(), []);
    node.wait(2 * SECOND);
    for _ in 0..3 {
        assert_eq!(node.receive(A, &to_world()), Step::Send(UPLINK));
    }
    let (_, probe) = node.message();
    assert_eq!((asked_for(&probe), destination(&probe)), ("192.168.0.254".to_string(), GATEWAY_MAC));
    node.receive(UPLINK, &reply(GATEWAY_MAC, "192.168.0.254"));
    node.wait(25 * SECOND);
    assert_eq!((node.receive(A, &to_world()), node.messages()), (Step::Send(UPLINK), Vec::new()));
}

#[test]
fn a_gateway_that_is_gone_is_noticed() {
    let mut node = with_gateway();
    node.wait(31 * SECOND);
    assert_eq!(node.receive(A, &to_world()), Step::Send(UPLINK));
    for _ in 0..4 {
        node.wait(SECOND);
    }
    assert_eq!(node.messages().len(), 3);
    assert_eq!(node.receive(A, &to_world()), Step::Hold(neighbour(UPLINK, "192.168.0.254")));
}

#[test]
fn a_pod_whose_mac_is_not_known_is_asked_for_it() {
    for (src, dst, answer) in [
        ("10.0.0.1", "10.0.0.2", arp(2, B_MAC, "10.0.0.2", "192.168.0.1")),
        ("fd00::1", "fd00::2", nd(136, 0x60, B_MAC, ("fd00::2", "fe80::1"), "fd00::2", Some(B_MAC))),
    ] {
        let mut node = Node::new();
        let frame = udp_frame(A_MAC, A, src, dst);
        assert_eq!(node.receive(A, &frame), Step::Hold(neighbour(B, dst)));
        let (port, question) = node.message();
        assert_eq!((port, asked_for(&question)), (B, dst.to_string()));
        assert_eq!(node.receive(B, &answer), Step::Consumed);
        node.tick();
        let released = node.released();
        assert_eq!(released[0].addresses, Ok(rewrite::addresses(B_MAC, own(B))));
        assert_eq!(node.receive(A, &frame), Step::Send(B));
        node.wait(5 * SECOND);
        assert_eq!(node.messages(), [], "nothing is left to ask");
    }
}

#[test]
fn the_host_is_not_asked_in_its_own_name_which_its_kernel_would_not_answer() {
    // The second address is like node-local DNS: on another interface, where a question without a sender's address gets no answer either.
    for target in ["192.168.0.1", "169.254.20.10"] {
        let mut ports = linked_ports();
        ports[HOST.index()].addresses.push(ip("169.254.20.10"));
        let mut node = Node::with(Neighbours::new(), linked_snapshot(1, ports));
        node.receive(A, &udp_frame(A_MAC, A, "10.0.0.1", target));
        let (port, question) = node.message();
        assert_eq!((port, asked_for(&question)), (HOST, target.to_owned()));
        assert_eq!(question[28..32], octets4("10.0.0.1"));
    }
}

#[test]
fn what_the_host_only_routes_to_is_asked_for_by_the_hosts_own_address() {
    let ports = linked_ports();
    let mut routes: Vec<_> = vec![("10.96.0.0/12".parse().unwrap(), NextHop::from(HOST))];
    routes.push(("10.0.0.1/32".parse().unwrap(), A.into()));
    let tables = (0..3).map(|_| Arc::new(open_table())).collect();
    let snapshot = Snapshot::new(1, ports, tables, Routes::new(routes).unwrap()).unwrap();
    let mut node = Node::with(Neighbours::new(), snapshot);
    let frame = udp_frame(A_MAC, A, "10.0.0.1", "10.96.0.10");
    assert_eq!(node.receive(A, &frame), Step::Hold(neighbour(HOST, "192.168.0.1")));
}

#[test]
fn a_link_local_destination_is_no_gateways_even_when_the_gateway_is_known() {
    let mut node = Node::acquainted();
    node.receive(A, &udp_frame(A_MAC, A, "fd00::1", "2001:db8::1"));
    node.receive(UPLINK, &advertisement(GATEWAY_MAC, "fe80::fe", 0xe0));
    node.tick();
    let to_link_local = udp_frame(HOST_MAC, HOST, "fd00:1::1", "fe80::9");
    assert_eq!(node.receive(HOST, &to_link_local), Step::Hold(neighbour(UPLINK, "fe80::9")));
}

#[test]
fn an_answer_that_comes_in_on_another_worker_is_good_for_all() {
    let neighbours = Neighbours::new();
    let mut one = Node::with(Arc::clone(&neighbours), linked_snapshot(1, linked_ports()));
    let mut two = Node::with(Arc::clone(&neighbours), linked_snapshot(1, linked_ports()));
    assert!(matches!(one.receive(A, &to_world()), Step::Hold(_)));
    assert!(matches!(two.receive(A, &to_world()), Step::Hold(_)));
    assert_eq!((one.messages().len(), two.messages().len()), (1, 0), "one question");
    assert_eq!(two.receive(UPLINK, &reply(GATEWAY_MAC, "192.168.0.254")), Step::Consumed);
    for node in [&mut one, &mut two] {
        node.tick();
        assert_eq!(node.released().len(), 1);
        assert_eq!(node.receive(A, &to_world()), Step::Send(UPLINK));
    }
}

#[test]
fn news_that_come_too_fast_are_published_with_the_next_tick() {
    let mut node = Node::acquainted();
    for host in 2..10 {
        node.receive(A, &udp_frame(A_MAC, A, "10.0.0.1", &format!("192.168.0.{host}")));
    }
    for host in 2..10 {
        node.receive(UPLINK, &reply(GATEWAY_MAC, &format!("192.168.0.{host}")));
    }
    node.tick();
    let at_once = node.released().len();
    assert!(at_once < 8, "{at_once}");
    node.wait(resolve::PROBE);
    node.tick();
    assert_eq!(at_once + node.released().len(), 8);
}

#[test]
fn one_pod_cannot_fill_the_queues_for_all() {
    let mut node = Node::acquainted();
    let mut refused = 0;
    for host in 0..1000 {
        let mut frame = udp_frame(A_MAC, A, "10.0.0.1", &format!("192.168.0.{}", 2 + host % 250));
        let Step::Hold(id) = node.step(A, &mut frame) else { panic!("unknown neighbours") };
        refused += usize::from(node.forwarder.hold(&node.snapshot, id, A, frame).is_some());
    }
    assert!(node.forwarder.held() <= NEIGHBOURS_PER_PORT * PER_NEIGHBOUR);
    assert_eq!(node.forwarder.held() + refused, 1000);
    node.messages();
    let other = udp_frame(B_MAC, B, "10.0.0.2", "192.168.0.253");
    assert_eq!(node.receive(B, &other), Step::Hold(neighbour(UPLINK, "192.168.0.253")));
    assert_eq!(node.messages().len(), 1);
}

#[test]
fn what_waits_for_a_port_that_goes_away_is_dropped() {
    let mut node = Node::acquainted();
    node.receive(A, &to_world());
    let mut ports = linked_ports();
    ports[UPLINK.index()].link = None;
    node.snapshot = linked_snapshot(2, ports);
    node.neighbours.forget(UPLINK);
    node.tick();
    assert_eq!(node.released()[0].addresses, Err(DropReason::PortDown));
    node.wait(SECOND);
    assert_eq!(node.released().len() + node.messages().len(), 1, "the first question was written before");
}

#[test]
fn neighbours_of_a_port_that_goes_away_are_forgotten() {
    let mut node = with_gateway();
    node.neighbours.forget(UPLINK);
    assert_eq!(node.neighbours.list(), []);
    assert!(matches!(node.receive(A, &to_world()), Step::Hold(_)));
}
