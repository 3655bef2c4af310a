//! Connections to Services through the whole vswitch.

use super::caching::{Recorded, slot};
use super::*;
use crate::io::Translation;
use crate::testbed::{VIP, b_to_a, backend, fragments_v4, service, services};

use etherparse::{Ipv4HeaderSlice, TcpHeaderSlice, UdpHeaderSlice};

/// Returns a snapshot with a Service whose only backend is B.
pub(super) fn snapshot(generation: u64) -> Snapshot {
    let services = services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    snapshot_of(generation, live_ports()).with_services(Some(Arc::new(services)))
}

fn from_b(packet: &[u8]) -> Vec<u8> {
    ethernet(B_MAC, 0x0800, packet)
}

/// Returns the addresses and ports of a TCP frame, after checking its checksums.
fn ends(frame: &[u8]) -> ((String, u16), (String, u16)) {
    let ip = Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap();
    assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
    let segment = &frame[34..14 + usize::from(ip.total_len())];
    let tcp = TcpHeaderSlice::from_slice(segment).unwrap();
    let sum = tcp.to_header().calc_checksum_ipv4(&ip.to_header(), &segment[tcp.slice().len()..]).unwrap();
    assert_eq!(tcp.checksum(), sum);
    let (src, dst) = (ip.source_addr().to_string(), ip.destination_addr().to_string());
    ((src, tcp.source_port()), (dst, tcp.destination_port()))
}

fn pair(src: (&str, u16), dst: (&str, u16)) -> ((String, u16), (String, u16)) {
    ((src.0.to_owned(), src.1), (dst.0.to_owned(), dst.1))
}

#[test]
fn connections_are_translated_both_ways_whatever_worker_their_packets_come_in_on() {
    for workers in [1, 2, 3, 5] {
        let mut node = Node::start(workers, snapshot(1));
        for sport in 2000..2040 {
            for flags in [SYN, ACK] {
                node.send(A, &from_a(&tcp("10.0.0.1", VIP, sport, 8080, flags)));
                assert_eq!(ends(&node.receive(B)), pair(("10.0.0.1", sport), ("10.0.0.2", 80)), "{workers} workers");
                let answer = tcp("10.0.0.2", "10.0.0.1", 80, sport, flags | ACK);
                node.send(B, &from_b(&answer));
                assert_eq!(ends(&node.receive(A)), pair((VIP, 8080), ("10.0.0.1", sport)), "{workers} workers");
            }
        }
        let counters = node.stop();
        assert_eq!(counters.sum(|worker| worker.engine.sessions().created), 40);
        assert_eq!(counters.sum(|worker| worker.engine.dropped_in_all()), 0);
    }
}

#[test]
fn fragments_of_a_translated_datagram_arrive_with_one_pair_of_addresses() {
    for workers in [1, 2, 3] {
        let mut node = Node::start(workers, snapshot(1));
        for id in 0..20 {
            let packet = [v4("10.0.0.1", VIP, 17, 64, &[0x9c, 0x40, 0x1f, 0x90, 0, 48, 0, 0]), vec![7; 40]].concat();
            for part in fragments_v4(&packet, id, 16) {
                node.send(A, &from_a(&part));
                let frame = node.receive(B);
                let ip = Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap();
                assert_eq!(ip.destination_addr().to_string(), "10.0.0.2", "{workers} workers");
                if ip.fragments_offset().value() == 0 {
                    assert_eq!(UdpHeaderSlice::from_slice(&frame[34..]).unwrap().destination_port(), 80);
                }
            }
        }
        node.stop();
    }
}

#[test]
fn an_error_of_the_vswitch_quotes_what_the_client_has_sent() {
    let mut ports = live_ports();
    ports[B.index()].link = Some(Link { mac: own_mac(3), mtu: 1000 });
    let services = services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    let mut node = Node::start(1, snapshot_of(1, ports).with_services(Some(Arc::new(services))));
    let mut packet = v4("10.0.0.1", VIP, 17, 64, &[&[0x9c, 0x40, 0x1f, 0x90, 4, 0xb8, 0, 0][..], &[7; 1200]].concat());
    packet[6] = 0x40;
    node.send(A, &from_a(&with_ttl(packet, 64)));
    let error = node.receive(A);
    assert_eq!(error[34..36], [3, 4], "fragmentation needed");
    let quoted = Ipv4HeaderSlice::from_slice(&error[42..]).unwrap();
    assert_eq!(quoted.destination_addr().to_string(), VIP);
    assert_eq!(quoted.header_checksum(), quoted.to_header().calc_header_checksum());
    assert_eq!(error[62..66], [0x9c, 0x40, 0x1f, 0x90]);
    node.stop();
}

#[test]
fn an_error_about_a_packet_that_was_held_quotes_what_the_client_has_sent_too() {
    // Behind the uplink, where no neighbour answers.
    let services = services(1, &[(VIP, service(&[backend("10.9.0.1", 80)]))]);
    let mut node = Node::start(1, snapshot_of(1, live_ports()).with_services(Some(Arc::new(services))));
    node.send(A, &from_a(&tcp("10.0.0.1", VIP, 40_000, 8080, SYN)));
    let error = node.receive(A);
    assert_eq!(error[34..36], [3, 1], "host unreachable");
    let quoted = Ipv4HeaderSlice::from_slice(&error[42..]).unwrap();
    assert_eq!(quoted.destination_addr().to_string(), VIP);
    assert_eq!(error[62..66], [0x9c, 0x40, 0x1f, 0x90]);
    node.stop();
}

#[test]
fn flows_are_cached_with_their_translation() {
    let cache = Arc::new(Recorded::default());
    let flow_cache: Arc<dyn FlowCache> = Arc::clone(&cache) as Arc<dyn FlowCache>;
    let mut node = Node::unplugged(1, snapshot(4), None, Some(flow_cache));
    for id in [UPLINK, HOST, A, B] {
        node.plug_with(id, |port| port.with_slot(slot(id)));
    }
    for _ in 0..2 {
        for flags in [SYN, ACK] {
            node.send(A, &from_a(&tcp("10.0.0.1", VIP, 40_000, 8080, flags)));
            node.receive(B);
            node.send(B, &from_b(&b_to_a(flags | ACK)));
            node.receive(A);
        }
    }
    let sent = |src: (&str, u16), dst: (&str, u16)| {
        Some(Translation { src: ip(src.0), dst: ip(dst.0), sport: src.1, dport: dst.1 })
    };
    let flows = cache.flows();
    for (from, received, expected) in [
        (A, ("10.0.0.1", 40_000, VIP, 8080), sent(("10.0.0.1", 40_000), ("10.0.0.2", 80))),
        (B, ("10.0.0.2", 80, "10.0.0.1", 40_000), sent((VIP, 8080), ("10.0.0.1", 40_000))),
    ] {
        let flow = flows.iter().find(|flow| flow.ports[0] == from).expect("both directions are in");
        let (src, sport, dst, dport) = received;
        assert_eq!((flow.flow.src, flow.flow.sport), (ip(src), sport));
        assert_eq!((flow.flow.dst, flow.flow.dport), (ip(dst), dport));
        assert_eq!(flow.translation, expected);
    }
    node.stop();
}

/// Starts a node whose pods reach the outside network 8.8.8.0/24 by the uplink, with the node's address.
fn masquerading(workers: usize) -> Node {
    let masquerade = crate::Masquerade::new([ip("192.168.0.1")], [], crate::SourcePorts::default());
    Node::start(workers, snapshot_of(1, live_ports()).with_masquerade(Some(Arc::new(masquerade))))
}

/// Sends a packet from A, resolves the destination if asked, and returns the packet on the uplink with the sender's MAC address.
fn leaves(node: &mut Node, packet: &[u8]) -> (Vec<u8>, [u8; 6]) {
    node.send(A, &from_a(packet));
    let mut frame = node.receive(UPLINK);
    let own: [u8; 6] = frame[6..12].try_into().unwrap();
    if frame[12..14] == [8, 6] {
        let header = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9];
        let answer = [&header[..], &frame[38..42], &frame[22..32]].concat();
        node.send(UPLINK, &[&own[..], &[2, 0, 0, 0, 0, 9, 8, 6], &answer].concat());
        frame = node.receive(UPLINK);
    }
    (frame, own)
}

fn from_world(own: [u8; 6], packet: &[u8]) -> Vec<u8> {
    [&own[..], &[2, 0, 0, 0, 0, 9, 8, 0], packet].concat()
}

#[test]
fn masqueraded_connections_find_their_way_back_whatever_worker_their_packets_come_in_on() {
    for workers in [1, 2, 3, 5] {
        let mut node = masquerading(workers);
        for sport in 2000..2040 {
            let world = format!("8.8.8.{}", sport % 8);
            for flags in [SYN, ACK] {
                let (frame, own) = leaves(&mut node, &tcp("10.0.0.1", &world, sport, 443, flags));
                let ((source, port), to) = ends(&frame);
                assert_eq!((&*source, to), ("192.168.0.1", (world.clone(), 443)), "{workers} workers");
                assert!((61_000..=65_535).contains(&port));
                node.send(UPLINK, &from_world(own, &tcp(&world, "192.168.0.1", 443, port, flags | ACK)));
                assert_eq!(ends(&node.receive(A)), pair((&world, 443), ("10.0.0.1", sport)), "{workers} workers");
            }
        }
        let counters = node.stop();
        assert_eq!(counters.sum(|worker| worker.engine.sessions().created), 40);
        assert_eq!(counters.sum(|worker| worker.engine.dropped_in_all()), 0);
    }
}

#[test]
fn a_router_that_finds_a_masqueraded_packet_too_big_tells_the_pod_about_what_the_pod_has_sent() {
    for workers in [1, 3] {
        let mut node = masquerading(workers);
        let sent = tcp("10.0.0.1", "8.8.8.8", 40_000, 443, SYN);
        let (frame, own) = leaves(&mut node, &sent);
        let error = crate::testbed::error_about(&frame[14..], "9.9.9.9", "192.168.0.1");
        node.send(UPLINK, &from_world(own, &error));
        let told = node.receive(A);
        let outer = Ipv4HeaderSlice::from_slice(&told[14..]).unwrap();
        assert_eq!(outer.source_addr().to_string(), "9.9.9.9", "{workers} workers");
        assert_eq!(outer.destination_addr().to_string(), "10.0.0.1");
        assert_eq!(told[34..36], [3, 4], "fragmentation needed");
        let quoted = Ipv4HeaderSlice::from_slice(&told[42..]).unwrap();
        assert_eq!(quoted.source_addr().to_string(), "10.0.0.1");
        assert_eq!(quoted.header_checksum(), quoted.to_header().calc_header_checksum());
        assert_eq!(told[62..70], sent[20..28], "its ports and its number");
        node.stop();
    }
}
