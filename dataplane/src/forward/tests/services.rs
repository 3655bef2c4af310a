//! Answers to senders of packets to Services without endpoints. The tests pass the engine's reasons.

use std::net::IpAddr;

use super::refusals::{reset, syn};
use super::*;
use crate::probe::ProbeKind;

/// Cluster addresses, which belong to no port.
const VIPS: [&str; 2] = ["10.96.0.10", "fd96::a"];
/// Drop reasons that are answered.
const TOLD: [DropReason; 2] = [DropReason::NoEndpoint, DropReason::UnknownServicePort];

/// A client: its port, MAC address and IP addresses.
type Client = (PortId, Mac, [&'static str; 2]);
const CLIENTS: [Client; 3] = [
    (A, A_MAC, ["10.0.0.1", "fd00::1"]),
    (HOST, HOST_MAC, ["172.17.0.2", "fd17::2"]),
    (UPLINK, GATEWAY_MAC, ["8.8.8.8", "2001:db8::8"]),
];

/// Returns a node that answers no denied packet, which is the default.
fn begun() -> Node {
    let mut node = Node::acquainted();
    node.tick();
    assert!(!node.snapshot.refuses_any());
    node
}

fn syn_from((port, mac, _): Client, src: &str, dst: &str) -> Vec<u8> {
    framed(mac, port, &syn(src, dst, 80, 1000, b"early")[14..])
}

#[test]
fn a_syn_gets_a_reset_in_the_services_name_whoever_sends_it() {
    for reason in TOLD {
        let mut node = begun();
        assert!(Forwarder::<()>::reports(&node.snapshot, reason));
        for client in CLIENTS {
            let (port, mac, addresses) = client;
            for (src, dst) in addresses.into_iter().zip(VIPS) {
                let answer = node.report(port, &syn_from(client, src, dst), None, reason).unwrap();
                assert_eq!((destination(&answer), source(&answer)), (mac, own(port)));
                assert_eq!(reset(&answer), (ip(dst), ip(src), (80, 40_000), 1006));
            }
        }
        let counters = node.forwarder.counters();
        assert_eq!((counters.refused, counters.refusals_suppressed, counters.errors_sent), (6, 0, 0));
    }
}

#[test]
fn everything_else_gets_port_unreachable_in_the_services_name_whoever_sends_it() {
    for reason in TOLD {
        let mut node = begun();
        for (port, mac, addresses) in CLIENTS {
            for (src, dst) in addresses.into_iter().zip(VIPS) {
                let of = |kind| probe(kind, src, dst, 53).request().unwrap();
                let other = match ip(src) {
                    IpAddr::V4(_) => v4(src, dst, 47, 64, &[7; 30]),
                    IpAddr::V6(_) => v6(src, dst, 47, 64, &[7; 30]),
                };
                for packet in [of(ProbeKind::Udp), of(ProbeKind::Sctp), of(ProbeKind::IcmpEcho), other] {
                    let answer = node.report(port, &framed(mac, port, &packet), None, reason).unwrap();
                    assert_eq!((destination(&answer), source(&answer)), (mac, own(port)));
                    let error = errors::parsed(&answer);
                    assert_eq!((error.src, error.dst), (ip(dst), ip(src)), "the node's own address would say nothing");
                    assert_eq!(error.kind, if ip(src).is_ipv4() { (3, 3) } else { (1, 4) });
                    assert_eq!((error.rest, error.quoted), (0, packet));
                }
            }
        }
        assert_eq!((node.forwarder.counters().refused, node.forwarder.counters().errors_sent), (24, 0));
    }
}

#[test]
fn a_node_without_addresses_refuses_in_the_services_name_as_well() {
    let mut node = begun();
    let mut ports = linked_ports();
    ports[HOST.index()].addresses.clear();
    node.snapshot = linked_snapshot(2, ports);
    node.tick();
    let answer = node.report(A, &framed(A_MAC, A, &udp("10.0.0.1", VIPS[0], 53)), None, DropReason::NoEndpoint);
    assert_eq!(errors::parsed(&answer.unwrap()).src, ip(VIPS[0]));
}

#[test]
fn nothing_is_said_about_other_segments_fragments_errors_groups_and_addresses_that_are_not_the_senders() {
    let mut node = begun();
    let whole = v4("10.0.0.1", VIPS[0], 17, 64, &[&[0x9c, 0x40, 0, 53, 0, 72, 0, 0][..], &[0; 64]].concat());
    let mut silent = vec![
        tcp("10.0.0.1", VIPS[0], 40_000, 80, RST),
        tcp("10.0.0.1", VIPS[0], 40_000, 80, ACK),
        tcp("10.0.0.1", VIPS[0], 40_000, 80, SYN | ACK),
        tcp("10.0.0.1", VIPS[0], 40_000, 80, FIN | ACK),
        error_about(&udp(VIPS[0], "10.0.0.1", 53), "10.0.0.1", VIPS[0]),
        error_about(&udp(VIPS[1], "fd00::1", 53), "fd00::1", VIPS[1]),
        udp("10.0.0.1", "224.0.0.5", 53),
        udp("fd00::1", "ff02::5", 53),
        udp("10.0.0.7", VIPS[0], 53),
        udp("10.0.0.2", VIPS[0], 53),
    ];
    silent.extend(fragments_v4(&whole, 7, 32));
    for reason in TOLD {
        for packet in &silent {
            assert_eq!(node.report(A, &framed(A_MAC, A, packet), None, reason), None, "{packet:x?}");
        }
        // From the uplink, with a pod's address.
        let spoofed = framed(GATEWAY_MAC, UPLINK, &udp("10.0.0.1", VIPS[0], 53));
        assert_eq!(node.report(UPLINK, &spoofed, None, reason), None);
    }
    assert_eq!(node.forwarder.counters().refused, 0);
}

#[test]
fn other_reasons_of_services_are_silent() {
    let mut node = begun();
    for reason in [
        DropReason::NoLocalEndpoint,
        DropReason::ServiceSourceRange,
        DropReason::UnknownServiceAddress,
        DropReason::SourcePortsExhausted,
    ] {
        assert!(!Forwarder::<()>::reports(&node.snapshot, reason), "{reason}");
        for client in CLIENTS {
            let (port, mac, [src, _]) = client;
            assert_eq!(node.report(port, &syn_from(client, src, VIPS[0]), None, reason), None);
            assert_eq!(node.report(port, &framed(mac, port, &udp(src, VIPS[0], 53)), None, reason), None);
        }
    }
}

#[test]
fn refusals_of_services_are_limited_per_port_and_strangers_cannot_use_up_those_of_pods() {
    let mut node = begun();
    let [pod, _, stranger] = CLIENTS;
    let from_stranger = syn_from(stranger, stranger.2[0], VIPS[0]);
    let sent =
        (0..1000).filter(|_| node.report(UPLINK, &from_stranger, None, DropReason::NoEndpoint).is_some()).count();
    assert_eq!(sent, 100);
    assert_eq!((node.forwarder.counters().refused, node.forwarder.counters().refusals_suppressed), (100, 900));
    assert!(node.report(A, &syn_from(pod, pod.2[0], VIPS[0]), None, DropReason::NoEndpoint).is_some());
    node.wait(SECOND / 10);
    assert!(node.report(UPLINK, &from_stranger, None, DropReason::NoEndpoint).is_some());
}

#[test]
fn a_refusal_that_finds_no_room_is_not_sent() {
    let mut node = begun();
    let frame = syn_from(CLIENTS[0], "10.0.0.1", VIPS[0]);
    let packet = Packet { frame: &frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port: A, time: node.now };
    let mut short = [0; ERROR_MAX - 1];
    assert_eq!(node.forwarder.report(&node.snapshot, &packet, None, DropReason::NoEndpoint, &mut short), None);
}
