//! Answers to senders of packets that policy denies.

use std::net::IpAddr;

use bulkhead_classifier::{Action, OriginId, Rule, Tables};
use etherparse::TransportSlice;

use super::*;
use crate::probe::ProbeKind;

const INGRESS: OriginId = OriginId(8);
/// The policy that denies all egress to the uplink.
const EGRESS: OriginId = OriginId(5);

/// Returns a node where B's policy allows only port 80 from A, and nothing may leave by the uplink. Denials of the origins in `refusing`
/// are answered.
fn node(refusing: &[OriginId]) -> Node {
    let mut ports = linked_ports();
    ports[UPLINK.index()].egress = Some(CLOSED);
    let closed = Tables::build(vec![Rule::any(Action::Deny, EGRESS)]).unwrap();
    let tables = vec![Arc::new(open_table()), Arc::new(closed), Arc::new(strict_table())];
    let routes = routes(&ports);
    let snapshot = Snapshot::new(1, ports, tables, routes).unwrap().refusing(refusing.iter().copied());
    let mut node = Node::with(Neighbours::new(), snapshot);
    node.neighbours.learn_peer(B, B_MAC, false);
    node.neighbours.learn_peer(HOST, HOST_MAC, true);
    node.tick();
    node
}

impl Node {
    /// Returns the answer to the sender of a denied packet.
    fn refusal(&mut self, in_port: PortId, frame: &[u8]) -> Option<Vec<u8>> {
        assert_eq!(self.step(in_port, &mut frame.to_vec()), dropped(DropReason::PolicyDenied));
        self.report(in_port, frame, None, DropReason::PolicyDenied)
    }
}

/// Returns a SYN from A with options and data.
pub(super) fn syn(src: &str, dst: &str, dport: u16, sequence: u32, data: &[u8]) -> Vec<u8> {
    let mut segment = [&40_000u16.to_be_bytes()[..], &dport.to_be_bytes(), &sequence.to_be_bytes(), &[0; 4]].concat();
    segment.extend([6 << 4, SYN, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
    segment.extend(data);
    match ip(src) {
        IpAddr::V4(_) => framed(A_MAC, A, &v4(src, dst, 6, 64, &segment)),
        IpAddr::V6(_) => framed(A_MAC, A, &v6(src, dst, 6, 64, &segment)),
    }
}

/// Returns a reset's addresses, ports and acknowledgement number, after checking that the rest conforms to RFC 9293.
pub(super) fn reset(frame: &[u8]) -> (IpAddr, IpAddr, (u16, u16), u32) {
    assert!(frame.len() >= 60 && hop_limit(frame) == 64);
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("TCP expected: {frame:x?}") };
    let header = tcp.to_header();
    let (src, dst, sum): (IpAddr, IpAddr, u16) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header();
            let sum = header.calc_checksum_ipv4_raw(ip.source(), ip.destination(), &[]).unwrap();
            (ip.source_addr().into(), ip.destination_addr().into(), sum)
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header();
            let sum = header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), &[]).unwrap();
            (ip.source_addr().into(), ip.destination_addr().into(), sum)
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    assert_eq!((header.checksum, tcp.payload().len(), header.data_offset()), (sum, 0, 5));
    assert_eq!((header.sequence_number, header.rst, header.ack), (0, true, true));
    assert!(!header.syn && !header.fin && !header.psh && !header.urg);
    (src, dst, (header.source_port, header.destination_port), header.acknowledgment_number)
}

#[test]
fn rfc_9293_a_denied_syn_gets_a_reset_that_acknowledges_all_of_it() {
    let mut node = node(&[INGRESS]);
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        for (sequence, data, acknowledged) in
            [(1000, &b""[..], 1001), (7, b"fast open", 17), (u32::MAX, b"", 0), (u32::MAX - 2, b"abc", 1)]
        {
            let answer = node.refusal(A, &syn(src, dst, 81, sequence, data)).unwrap();
            assert_eq!((destination(&answer), source(&answer)), (A_MAC, own(A)));
            assert_eq!(reset(&answer), (ip(dst), ip(src), (81, 40_000), acknowledged), "{sequence} {data:?}");
        }
    }
    assert_eq!((node.forwarder.counters().refused, node.forwarder.counters().errors_sent), (8, 0));
}

#[test]
fn ethernet_padding_is_not_acknowledged() {
    let mut node = node(&[INGRESS]);
    let mut padded = syn("10.0.0.1", "10.0.0.2", 81, 1000, b"");
    padded.extend([0; 10]);
    let answer = node.refusal(A, &padded).unwrap();
    assert_eq!(reset(&answer).3, 1001);
}

#[test]
fn everything_but_tcp_gets_administratively_prohibited_from_the_node() {
    let mut node = node(&[INGRESS]);
    let echo = [128, 0, 0, 0, 0, 1, 0, 1];
    for (packet, kind, node_address) in [
        (udp("10.0.0.1", "10.0.0.2", 81), (3, 13), "192.168.0.1"),
        (v4("10.0.0.1", "10.0.0.2", 47, 64, &[0; 8]), (3, 13), "192.168.0.1"),
        (udp("fd00::1", "fd00::2", 81), (1, 1), "fd00:1::1"),
        (v6("fd00::1", "fd00::2", 47, 64, &echo), (1, 1), "fd00:1::1"),
    ] {
        let frame = framed(A_MAC, A, &packet);
        let answer = node.refusal(A, &frame).unwrap();
        assert_eq!((destination(&answer), source(&answer)), (A_MAC, own(A)));
        let error = errors::parsed(&answer);
        assert_eq!((error.kind, error.rest, error.quoted), (kind, 0, packet));
        assert_eq!(error.src, ip(node_address));
    }
}

#[test]
fn a_node_without_an_address_refuses_in_the_name_of_the_one_who_was_called() {
    let mut node = node(&[INGRESS]);
    let mut ports = node.snapshot.ports().to_vec();
    ports[HOST.index()].addresses.clear();
    let tables = node.snapshot.tables().to_vec();
    node.snapshot = Snapshot::new(2, ports.clone(), tables, routes(&ports)).unwrap().refusing([INGRESS]);
    let answer = node.refusal(A, &framed(A_MAC, A, &udp("10.0.0.1", "10.0.0.2", 81))).unwrap();
    assert_eq!((errors::parsed(&answer).src, errors::parsed(&answer).kind), (ip("10.0.0.2"), (3, 13)));
}

#[test]
fn the_policy_that_denies_says_whether_it_is_refused() {
    let (inside, outside) = (syn("10.0.0.1", "10.0.0.2", 81, 1, b""), syn("10.0.0.1", "8.8.8.8", 443, 1, b""));
    for (refusing, told) in [
        (&[][..], (false, false)),
        (&[INGRESS], (true, false)),
        (&[EGRESS], (false, true)),
        (&[INGRESS, EGRESS], (true, true)),
        (&[OriginId(77)], (false, false)),
    ] {
        let mut node = node(refusing);
        assert_eq!(node.refusal(A, &inside).is_some(), told.0, "{refusing:?}");
        assert_eq!(node.refusal(A, &outside).is_some(), told.1, "{refusing:?}");
        assert_eq!(Forwarder::<()>::reports(&node.snapshot, DropReason::PolicyDenied), !refusing.is_empty());
    }
    let mut node = node(&[EGRESS]);
    let answer = node.refusal(A, &outside).unwrap();
    assert_eq!(reset(&answer), (ip("8.8.8.8"), ip("10.0.0.1"), (443, 40_000), 2));
}

#[test]
fn a_policy_of_the_sender_that_names_domains_says_whether_it_is_refused() {
    let (inside, outside) = (syn("10.0.0.1", "10.0.0.2", 80, 1, b""), syn("10.0.0.1", "8.8.8.8", 443, 1, b""));
    for (refusing, told) in [(&[][..], false), (&[EGRESS], true)] {
        let mut ports = linked_ports();
        ports[A.index()].named_table = Some(CLOSED);
        let mut node = node(refusing);
        let (tables, routes) = (node.snapshot.tables().to_vec(), routes(&ports));
        node.snapshot = Snapshot::new(2, ports, tables, routes).unwrap().refusing(refusing.iter().copied());
        assert_eq!(node.refusal(A, &inside).is_some(), told);
        assert_eq!(node.refusal(A, &outside).is_some(), told);
    }
}

#[test]
fn who_is_behind_the_node_is_told_through_the_host_port_and_strangers_are_told_nothing() {
    let mut node = node(&[INGRESS]);
    let from_host = framed(HOST_MAC, HOST, &tcp("172.17.0.2", "10.0.0.2", 40_000, 81, SYN));
    let answer = node.refusal(HOST, &from_host).unwrap();
    assert_eq!((destination(&answer), reset(&answer).1), (HOST_MAC, ip("172.17.0.2")));
    for packet in [tcp("8.8.8.8", "10.0.0.2", 40_000, 81, SYN), udp("8.8.8.8", "10.0.0.2", 81)] {
        assert_eq!(node.refusal(UPLINK, &framed(GATEWAY_MAC, UPLINK, &packet)), None);
    }
}

#[test]
fn nothing_is_said_about_resets_other_segments_fragments_errors_and_groups() {
    let mut node = node(&[INGRESS, EGRESS]);
    let whole = v4("10.0.0.1", "10.0.0.2", 17, 64, &[&[0x9c, 0x40, 0, 81, 0, 72, 0, 0][..], &[0; 64]].concat());
    let whole6 = v6("fd00::1", "fd00::2", 17, 64, &[&[0x9c, 0x40, 0, 81, 0, 72, 0, 0][..], &[0; 64]].concat());
    let mut silent = vec![
        tcp("10.0.0.1", "10.0.0.2", 40_000, 81, RST),
        tcp("10.0.0.1", "10.0.0.2", 40_000, 81, RST | ACK),
        tcp("10.0.0.1", "10.0.0.2", 40_000, 81, ACK),
        tcp("10.0.0.1", "10.0.0.2", 40_000, 81, SYN | ACK),
        tcp("10.0.0.1", "10.0.0.2", 40_000, 81, FIN),
        error_about(&udp("10.0.0.2", "10.0.0.1", 53), "10.0.0.1", "10.0.0.2"),
        error_about(&udp("fd00::2", "fd00::1", 53), "fd00::1", "fd00::2"),
        udp("10.0.0.1", "224.0.0.5", 81),
        udp("fd00::1", "ff02::5", 81),
        // From an address that is not the sender's.
        tcp("10.0.0.7", "10.0.0.2", 40_000, 81, SYN),
    ];
    silent.extend(fragments_v4(&whole, 7, 32));
    silent.extend(fragments_v6(&whole6, 7, 32));
    for packet in silent {
        let frame = framed(A_MAC, A, &packet);
        assert_eq!(node.report(A, &frame, None, DropReason::PolicyDenied), None, "{packet:x?}");
    }
    // An allowed packet is not refused, even if a caller reports it as denied.
    let allowed = framed(A_MAC, A, &tcp("10.0.0.1", "10.0.0.2", 40_000, 80, SYN));
    assert_eq!(node.report(A, &allowed, None, DropReason::PolicyDenied), None);
    assert_eq!(node.forwarder.counters().refused, 0);
}

#[test]
fn refusals_are_limited_per_port_and_counted() {
    let mut node = node(&[INGRESS]);
    let frame = syn("10.0.0.1", "10.0.0.2", 81, 1, b"");
    let sent = (0..1000).filter(|_| node.refusal(A, &frame).is_some()).count();
    assert_eq!(sent, 100);
    assert_eq!((node.forwarder.counters().refused, node.forwarder.counters().refusals_suppressed), (100, 900));
    let from_host = framed(HOST_MAC, HOST, &tcp("172.17.0.2", "10.0.0.2", 40_000, 81, SYN));
    assert!(node.refusal(HOST, &from_host).is_some(), "another port");
    node.wait(SECOND / 10);
    assert!(node.refusal(A, &frame).is_some());
}

/// Returns a node whose blocks contain addresses that no pod has.
fn node_of_blocks() -> Node {
    let mut node = Node::with(Neighbours::new(), snapshot_of_blocks(1, linked_ports()));
    node.tick();
    node
}

/// Returns a reset's flags, sequence and acknowledgement number.
fn reset_of(frame: &[u8]) -> (u8, u32, u32) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("TCP expected: {frame:x?}") };
    (tcp.slice()[13], tcp.sequence_number(), tcp.acknowledgment_number())
}

#[test]
fn rfc_9293_an_address_without_a_pod_resets_every_segment_except_resets() {
    let mut node = node_of_blocks();
    for (mac, port, src, dst) in [
        (A_MAC, A, "10.0.0.1", "10.0.0.9"),
        (A_MAC, A, "fd00::1", "fd00::9"),
        (GATEWAY_MAC, UPLINK, "8.8.8.8", "10.0.0.9"),
        (HOST_MAC, HOST, "192.168.0.1", "10.0.0.9"),
    ] {
        for (flags, expected) in [
            (SYN, (RST | ACK, 0, 8)),
            (FIN, (RST | ACK, 0, 8)),
            (ACK, (RST, 99, 0)),
            (SYN | ACK, (RST, 99, 0)),
            (FIN | ACK, (RST, 99, 0)),
        ] {
            let frame = framed(mac, port, &tcp_at((src, 40_000), (dst, 80), flags, (7, 99)));
            let answer = node.report(port, &frame, None, DropReason::NoSuchPod).unwrap();
            assert_eq!((destination(&answer), source(&answer)), (mac, own(port)));
            assert_eq!(reset_of(&answer), expected, "{flags}");
        }
        for flags in [RST, RST | ACK] {
            let frame = framed(mac, port, &tcp_at((src, 40_000), (dst, 80), flags, (7, 99)));
            assert_eq!(node.report(port, &frame, None, DropReason::NoSuchPod), None);
        }
    }
    let answer = node.report(A, &syn("10.0.0.1", "10.0.0.9", 81, 7, b"fast open"), None, DropReason::NoSuchPod);
    assert_eq!(reset(&answer.unwrap()), (ip("10.0.0.9"), ip("10.0.0.1"), (81, 40_000), 17));
}

#[test]
fn everything_else_to_an_address_without_a_pod_gets_an_error_that_its_program_hears() {
    let mut node = node_of_blocks();
    let ping = |src, dst| probe(ProbeKind::IcmpEcho, src, dst, 0).request().unwrap();
    let sctp = probe(ProbeKind::Sctp, "10.0.0.1", "10.0.0.9", 80).request().unwrap();
    for (packet, kind, speaker) in [
        (udp("10.0.0.1", "10.0.0.9", 53), (3, 3), "10.0.0.9"),
        (udp("fd00::1", "fd00::9", 53), (1, 4), "fd00::9"),
        (sctp, (3, 3), "10.0.0.9"),
        (ping("10.0.0.1", "10.0.0.9"), (3, 1), "192.168.0.1"),
        (ping("fd00::1", "fd00::9"), (1, 3), "fd00:1::1"),
        (v4("10.0.0.1", "10.0.0.9", 47, 64, &[0; 8]), (3, 1), "192.168.0.1"),
    ] {
        let answer = node.report(A, &framed(A_MAC, A, &packet), None, DropReason::NoSuchPod).unwrap();
        let error = errors::parsed(&answer);
        assert_eq!((error.kind, error.src, error.quoted), (kind, ip(speaker), packet));
    }
    for packet in
        [error_about(&udp("10.0.0.9", "10.0.0.1", 53), "10.0.0.1", "10.0.0.9"), udp("10.0.0.7", "10.0.0.9", 5)]
    {
        assert_eq!(node.report(A, &framed(A_MAC, A, &packet), None, DropReason::NoSuchPod), None);
    }
}

#[test]
fn answers_for_addresses_without_a_pod_can_be_turned_off_and_have_a_limit_of_their_own() {
    let mut node = node_of_blocks();
    let frame = syn("10.0.0.1", "10.0.0.9", 81, 1, b"");
    let sent = (0..21_000).filter(|_| node.report(A, &frame, None, DropReason::NoSuchPod).is_some()).count();
    assert_eq!((sent, node.forwarder.counters().refusals_suppressed), (20_000, 1000));
    let silent = snapshot_of_blocks(2, linked_ports()).telling_unreachable(false);
    let mut node = Node::with(Neighbours::new(), silent);
    assert!(!Forwarder::<()>::reports(&node.snapshot, DropReason::NoSuchPod));
    assert_eq!(node.report(A, &frame, None, DropReason::NoSuchPod), None);
}

#[test]
fn a_refusal_that_finds_no_room_is_not_sent() {
    let mut node = node(&[INGRESS]);
    let frame = syn("10.0.0.1", "10.0.0.2", 81, 1, b"");
    let packet = Packet { frame: &frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port: A, time: node.now };
    let mut short = [0; ERROR_MAX - 1];
    assert_eq!(node.forwarder.report(&node.snapshot, &packet, None, DropReason::PolicyDenied, &mut short), None);
}

#[test]
fn verdicts_are_the_same_whether_denials_are_refused_or_not() {
    let packets = [syn("10.0.0.1", "10.0.0.2", 81, 1, b""), syn("10.0.0.1", "10.0.0.2", 80, 1, b"")];
    let verdicts = |refusing: &[OriginId]| packets.each_ref().map(|packet| node(refusing).verdict(A, packet));
    assert_eq!(verdicts(&[INGRESS, EGRESS]), verdicts(&[]));
}
