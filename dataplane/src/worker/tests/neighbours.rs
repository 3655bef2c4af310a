//! ARP and neighbour discovery.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dropped;
use crate::testbed::*;
use crate::*;

const B_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn arp(operation: u8, mac: [u8; 6], sender: &str, target: &str) -> Vec<u8> {
    let mut message = vec![0, 1, 8, 0, 6, 4, 0, operation];
    message.extend(mac);
    message.extend(sender.parse::<Ipv4Addr>().unwrap().octets());
    message.extend([0; 6]);
    message.extend(target.parse::<Ipv4Addr>().unwrap().octets());
    ethernet(mac, 0x0806, &message)
}

fn arp_verdict(in_port: PortId, frame: &[u8]) -> Verdict {
    let mut bed = Bed::new();
    let outcome = bed.send_link(in_port, LinkType::Ethernet, frame);
    assert_eq!((outcome.session, outcome.decision, bed.worker.sessions_in_use()), (None, None, 0));
    outcome.verdict
}

#[test]
fn arp_goes_to_the_local_owner_of_the_target_or_to_the_host() {
    assert_eq!(arp_verdict(A, &arp(1, A_MAC, "10.0.0.1", "10.0.0.2")), Verdict::Forward(B));
    assert_eq!(arp_verdict(A, &arp(1, A_MAC, "10.0.0.1", "169.254.1.1")), Verdict::Forward(HOST));
    assert_eq!(arp_verdict(B, &arp(2, B_MAC, "10.0.0.2", "10.0.0.1")), Verdict::Forward(A));
    assert_eq!(arp_verdict(UPLINK, &arp(1, B_MAC, "192.168.0.7", "192.168.0.1")), Verdict::Forward(HOST));
    assert_eq!(arp_verdict(HOST, &arp(1, B_MAC, "192.168.0.1", "192.168.0.254")), Verdict::Forward(UPLINK));
    assert_eq!(arp_verdict(HOST, &arp(1, B_MAC, "192.168.0.1", "10.0.0.1")), Verdict::Forward(A));
}

#[test]
fn probes_and_announcements_of_a_pods_own_address_pass() {
    assert_eq!(arp_verdict(A, &arp(1, A_MAC, "0.0.0.0", "10.0.0.1")), Verdict::Forward(HOST));
    assert_eq!(arp_verdict(A, &arp(1, A_MAC, "10.0.0.1", "10.0.0.1")), Verdict::Forward(HOST));
    assert_eq!(arp_verdict(A, &arp(2, A_MAC, "10.0.0.1", "10.0.0.1")), Verdict::Forward(HOST));
}

#[test]
fn a_pod_cannot_take_over_an_address_with_arp() {
    for sender in ["10.0.0.2", "192.168.0.1", "169.254.1.1", "8.8.8.8"] {
        for operation in [1, 2] {
            let frame = arp(operation, A_MAC, sender, "10.0.0.2");
            assert_eq!(arp_verdict(A, &frame), dropped(DropReason::ArpSpoofed), "{sender}");
        }
    }
    assert_eq!(arp_verdict(A, &arp(2, A_MAC, "0.0.0.0", "10.0.0.2")), dropped(DropReason::ArpSpoofed));
    // The message has another MAC address than the frame.
    let mut frame = arp(2, A_MAC, "10.0.0.1", "10.0.0.2");
    frame[14 + 13] = 9;
    assert_eq!(arp_verdict(A, &frame), dropped(DropReason::ArpSpoofed));
}

#[test]
fn nobody_outside_speaks_for_a_pod_with_arp() {
    for port in [UPLINK, HOST] {
        assert_eq!(arp_verdict(port, &arp(2, B_MAC, "10.0.0.1", "10.0.0.2")), dropped(DropReason::ArpSpoofed));
    }
    assert_eq!(arp_verdict(UPLINK, &arp(2, B_MAC, "192.168.0.1", "10.0.0.2")), dropped(DropReason::ArpSpoofed));
}

#[test]
fn malformed_arp_is_dropped() {
    let frame = arp(1, A_MAC, "10.0.0.1", "10.0.0.2");
    assert_eq!(arp_verdict(A, &frame[..41]), dropped(DropReason::ArpMalformed));
    assert_eq!(arp_verdict(A, &arp(3, A_MAC, "10.0.0.1", "10.0.0.2")), dropped(DropReason::ArpMalformed));
}

fn neighbour(kind: u8, src: &str, dst: &str, target: &str) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.parse::<Ipv6Addr>().unwrap().octets());
    v6(src, dst, 58, 255, &message)
}

fn nd_verdict(in_port: PortId, packet: &[u8]) -> Verdict {
    let mut bed = Bed::new();
    let outcome = bed.send(in_port, packet);
    assert_eq!((outcome.session, outcome.decision, bed.worker.sessions_in_use()), (None, None, 0));
    outcome.verdict
}

#[test]
fn solicitations_go_to_the_owner_of_the_target_or_to_the_host() {
    let group = "ff02::1:ff00:2";
    assert_eq!(nd_verdict(A, &neighbour(135, "fd00::1", group, "fd00::2")), Verdict::Forward(B));
    assert_eq!(nd_verdict(A, &neighbour(135, "fe80::a", group, "fe80::1")), Verdict::Forward(HOST));
    assert_eq!(nd_verdict(A, &neighbour(135, "::", group, "fd00::1")), Verdict::Forward(HOST), "DAD");
    assert_eq!(nd_verdict(HOST, &neighbour(135, "fe80::9", group, "fd00::2")), Verdict::Forward(B));
    assert_eq!(nd_verdict(HOST, &neighbour(135, "fe80::9", group, "2001:db8::1")), Verdict::Forward(UPLINK));
}

#[test]
fn advertisements_go_to_whom_they_are_sent() {
    assert_eq!(nd_verdict(B, &neighbour(136, "fd00::2", "fd00::1", "fd00::2")), Verdict::Forward(A));
    assert_eq!(nd_verdict(B, &neighbour(136, "fd00::2", "ff02::1", "fd00::2")), Verdict::Forward(HOST));
    assert_eq!(nd_verdict(UPLINK, &neighbour(136, "fe80::9", "fe80::5", "fe80::9")), Verdict::Forward(HOST));
}

#[test]
fn cve_2023_5366_a_pod_cannot_advertise_the_address_of_another() {
    for target in ["fd00::2", "fd00:1::1", "2001:db8::1"] {
        let packet = neighbour(136, "fd00::1", "fd00::2", target);
        assert_eq!(nd_verdict(A, &packet), dropped(DropReason::NdSpoofed), "{target}");
    }
    let foreign = neighbour(135, "fd00::2", "ff02::1:ff00:2", "fd00::2");
    assert_eq!(nd_verdict(A, &foreign), dropped(DropReason::NdSpoofed));
    for port in [UPLINK, HOST] {
        let packet = neighbour(136, "fe80::9", "fd00::2", "fd00::1");
        assert_eq!(nd_verdict(port, &packet), dropped(DropReason::NdSpoofed), "{port:?}");
    }
}

#[test]
fn a_pod_cannot_claim_the_gateways_link_local_address() {
    let mut bed = Bed::new();
    let mut ports = ports();
    ports[HOST.index()].addresses.push(ip("fe80::1"));
    bed.snapshot = snapshot_of(2, ports);
    let advertisement = neighbour(136, "fd00::1", "fd00::2", "fe80::1");
    assert_eq!(bed.verdict(A, &advertisement), dropped(DropReason::NdSpoofed));
    let solicitation = neighbour(135, "fe80::1", "ff02::1:ff00:2", "fd00::2");
    assert_eq!(bed.verdict(A, &solicitation), dropped(DropReason::NdSpoofed));
}

#[test]
fn cve_2020_10749_router_advertisements_and_redirects_from_pods_are_dropped() {
    let advertisement = v6("fe80::a", "ff02::1", 58, 255, &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(nd_verdict(A, &advertisement), dropped(DropReason::NdFromPod));
    assert_eq!(nd_verdict(UPLINK, &advertisement), Verdict::Forward(HOST));
    let redirect = v6("fe80::a", "fd00::2", 58, 255, &[&[137u8, 0, 0, 0][..], &[0; 36]].concat());
    assert_eq!(nd_verdict(A, &redirect), dropped(DropReason::NdFromPod));
    // Behind an extension header, which evaded RA guards (RFC 7113).
    let hidden = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &advertisement[40..]].concat();
    assert_eq!(nd_verdict(A, &v6("fe80::a", "ff02::1", 60, 255, &hidden)), dropped(DropReason::NdFromPod));
    // In a fragment: complete (RFC 6980), or cut so that the type is in the second one.
    let whole = [&[58, 0, 0, 0, 0, 0, 0, 1][..], &advertisement[40..]].concat();
    assert_eq!(nd_verdict(A, &v6("fe80::a", "ff02::1", 44, 255, &whole)), dropped(DropReason::NdMalformed));
    let cut = [60, 0, 0, 1, 0, 0, 0, 1, 58, 1, 1, 12, 0, 0, 0, 0];
    assert_eq!(nd_verdict(A, &v6("fe80::a", "ff02::1", 44, 255, &cut)), dropped(DropReason::FragmentTiny));
}

#[test]
fn router_solicitations_go_to_the_host() {
    let solicitation = v6("fe80::a", "ff02::2", 58, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(nd_verdict(A, &solicitation), Verdict::Forward(HOST));
}

#[test]
fn neighbour_discovery_from_afar_is_dropped() {
    let mut packet = neighbour(135, "fd00::1", "ff02::1:ff00:2", "fd00::2");
    packet[7] = 254;
    assert_eq!(nd_verdict(A, &packet), dropped(DropReason::NdMalformed));
}

/// Returns a node whose pod B also has a link-local address.
fn with_link_local_of_b() -> Bed {
    let mut bed = Bed::new();
    let mut ports = ports();
    ports[B.index()].addresses.push(ip("fe80::b"));
    bed.snapshot = snapshot_of(2, ports);
    bed
}

#[test]
fn neighbour_discovery_of_a_pod_about_link_local_addresses_is_for_the_node_and_never_for_another_pod() {
    let mut bed = with_link_local_of_b();
    let group = "ff02::1:ff00:2";
    for packet in [
        neighbour(135, "fe80::a", group, "fd00::2"),
        neighbour(135, "fd00::1", group, "fe80::b"),
        neighbour(135, "fe80::a", group, "fe80::b"),
        neighbour(136, "fe80::a", "fd00::2", "fd00::1"),
        neighbour(136, "fd00::1", "fd00::2", "fe80::a"),
        neighbour(136, "fe80::a", "fe80::b", "fe80::a"),
    ] {
        assert_eq!(bed.verdict(A, &packet), Verdict::Forward(HOST), "{packet:x?}");
    }
    // A pod may still advertise its own global address.
    assert_eq!(bed.verdict(A, &neighbour(136, "fd00::1", "fd00::2", "fd00::1")), Verdict::Forward(B));
}

#[test]
fn neighbour_discovery_from_the_uplink_is_for_the_node_only() {
    let mut bed = with_link_local_of_b();
    for packet in [
        neighbour(135, "fe80::9", "ff02::1:ff00:2", "fd00::2"),
        neighbour(135, "2001:db8::9", "fd00::2", "fd00::2"),
        neighbour(136, "fe80::9", "fd00::2", "fe80::9"),
        neighbour(136, "fe80::9", "fe80::b", "fe80::9"),
    ] {
        assert_eq!(bed.verdict(UPLINK, &packet), Verdict::Forward(HOST), "{packet:x?}");
    }
}

#[test]
fn arp_from_the_uplink_is_for_the_node_only() {
    for operation in [1, 2] {
        assert_eq!(arp_verdict(UPLINK, &arp(operation, B_MAC, "192.168.0.7", "10.0.0.2")), Verdict::Forward(HOST));
    }
}
