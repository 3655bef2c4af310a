//! ICMP errors.

use std::net::IpAddr;

use super::*;
use etherparse::{Icmpv4Slice, Icmpv6Slice, TransportSlice};

/// An ICMP error: source, destination, type, code, the four bytes after the checksum, the quoted bytes. Lengths and checksums were checked.
pub(super) struct Parsed {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) kind: (u8, u8),
    pub(super) rest: u32,
    pub(super) quoted: Vec<u8>,
}

pub(super) fn parsed(frame: &[u8]) -> Parsed {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let (src, dst): (IpAddr, IpAddr) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Arp(_) => panic!("ARP"),
    };
    assert_eq!(hop_limit(frame), 64);
    let message = match sliced.transport.unwrap() {
        TransportSlice::Icmpv4(icmp) => {
            assert!(Icmpv4Slice::from_slice(icmp.slice()).is_ok());
            assert_eq!(checksum::internet(&[icmp.slice()]), 0);
            icmp.slice().to_vec()
        }
        TransportSlice::Icmpv6(icmp) => {
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (src, dst) else { panic!("IPv6") };
            assert!(Icmpv6Slice::from_slice(icmp.slice()).unwrap().is_checksum_valid(src.octets(), dst.octets()));
            icmp.slice().to_vec()
        }
        other => panic!("{other:?}"),
    };
    let rest = u32::from_be_bytes(message[4..8].try_into().unwrap());
    Parsed { src, dst, kind: (message[0], message[1]), rest, quoted: message[8..].to_vec() }
}

fn from_a(six: bool, payload: usize) -> Vec<u8> {
    let payload = vec![7; payload];
    match six {
        true => framed(A_MAC, A, &v6("fd00::1", "2001:db8::1", 253, 1, &payload)),
        false => framed(A_MAC, A, &v4("10.0.0.1", "8.8.8.8", 253, 1, &payload)),
    }
}

fn begun() -> Node {
    let mut node = Node::acquainted();
    node.tick();
    node
}

#[test]
fn each_kind_of_loss_has_its_type_and_code() {
    for (reason, four, six) in [
        (DropReason::NoRoute, (3, 0), (1, 0)),
        (DropReason::NoNeighbour, (3, 1), (1, 3)),
        (DropReason::PortDown, (3, 1), (1, 3)),
        (DropReason::TtlExpired, (11, 0), (3, 0)),
        (DropReason::PacketTooBig, (3, 4), (2, 0)),
    ] {
        let mut node = begun();
        for (is_six, kind) in [(false, four), (true, six)] {
            let frame = from_a(is_six, 30);
            let error = node.report(A, &frame, Some(UPLINK), reason).unwrap();
            assert_eq!((destination(&error), source(&error)), (A_MAC, own(A)));
            let error = parsed(&error);
            assert_eq!((error.kind, error.quoted), (kind, frame[14..].to_vec()));
            let (src, dst) = if is_six { ("fd00:1::1", "fd00::1") } else { ("192.168.0.1", "10.0.0.1") };
            assert_eq!((error.src, error.dst), (ip(src), ip(dst)));
            assert_eq!(error.rest, if reason == DropReason::PacketTooBig { 1400 } else { 0 });
        }
        assert!(Forwarder::<()>::reports(&node.snapshot, reason));
    }
}

#[test]
fn all_other_drops_are_silent_and_policys_first_of_all() {
    let told = [
        DropReason::NoRoute,
        DropReason::NoNeighbour,
        DropReason::PortDown,
        DropReason::TtlExpired,
        DropReason::PacketTooBig,
        DropReason::NoEndpoint,
        DropReason::UnknownServicePort,
    ];
    let mut node = begun();
    for &reason in DropReason::ALL.iter().filter(|reason| !told.contains(reason)) {
        assert!(!Forwarder::<()>::reports(&node.snapshot, reason), "{reason}");
        assert_eq!(node.report(A, &from_a(false, 8), Some(B), reason), None, "{reason}");
    }
    assert!(!told.contains(&DropReason::PolicyDenied));
}

#[test]
fn as_much_is_quoted_as_the_rfcs_allow_and_no_padding() {
    let mut node = begun();
    for (six, longest) in [(false, 576), (true, 1280)] {
        let error = node.report(A, &from_a(six, 1400), None, DropReason::TtlExpired).unwrap();
        assert_eq!(error.len(), 14 + longest);
        parsed(&error);
        let mut padded = from_a(six, 3);
        let len = padded.len();
        padded.extend([0xcc; 20]);
        let error = node.report(A, &padded, None, DropReason::TtlExpired).unwrap();
        assert_eq!(parsed(&error).quoted, padded[14..len]);
    }
}

#[test]
fn a_jumbo_packet_is_quoted_from_its_first_part() {
    let mut node = begun();
    let whole = from_a(false, 8000);
    let packet =
        Packet { frame: &whole[..3800], wire_len: whole.len(), link: LinkType::Ethernet, in_port: A, time: node.now };
    let mut error = [0; ERROR_MAX];
    let reason = DropReason::PacketTooBig;
    let len = node.forwarder.report(&node.snapshot, &packet, Some(UPLINK), reason, &mut error).unwrap();
    assert_eq!(parsed(&error[..len]).rest, 1400);
}

#[test]
fn an_ipv6_sender_is_never_told_less_than_1280() {
    let mut node = begun();
    let mut ports = linked_ports();
    ports[UPLINK.index()].link = Some(Link { mac: own(UPLINK), mtu: 600 });
    node.snapshot = linked_snapshot(2, ports);
    node.tick();
    let told = |node: &mut Node, six| {
        parsed(&node.report(A, &from_a(six, 900), Some(UPLINK), DropReason::PacketTooBig).unwrap()).rest
    };
    assert_eq!((told(&mut node, true), told(&mut node, false)), (1280, 600));
}

#[test]
fn rfc_1812_no_error_is_sent_about_errors_fragments_groups_and_nobody() {
    let mut node = begun();
    let about = udp("10.0.0.1", "8.8.8.8", 53);
    let about6 = udp("fd00::1", "2001:db8::1", 53);
    let udp6 = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
    let later4 = fragments_v4(&v4("10.0.0.1", "8.8.8.8", 253, 1, &[0; 64]), 7, 32).remove(1);
    let later6 = fragments_v6(&v6("fd00::1", "2001:db8::1", 253, 1, &[0; 64]), 7, 32).remove(1);
    let silent = [
        error_about(&about, "10.0.0.1", "8.8.8.8"),
        error_about(&about6, "fd00::1", "2001:db8::1"),
        v6("fd00::1", "2001:db8::1", 58, 1, &[100, 0, 0, 0, 0, 0, 0, 0]),
        v4("10.0.0.1", "8.8.8.8", 1, 1, &[5, 0, 0, 0, 0, 0, 0, 0]),
        later4,
        later6,
        v4("10.0.0.1", "224.0.0.5", 17, 1, &udp6),
        v4("10.0.0.1", "255.255.255.255", 17, 1, &udp6),
        v6("fd00::1", "ff02::5", 17, 1, &udp6),
        v4("0.0.0.0", "8.8.8.8", 17, 1, &udp6),
        v4("127.0.0.1", "8.8.8.8", 17, 1, &udp6),
        v4("224.0.0.1", "8.8.8.8", 17, 1, &udp6),
        v6("::", "2001:db8::1", 17, 1, &udp6),
        // Spoofed sources: another pod's, the node's and a foreign one.
        v4("10.0.0.2", "8.8.8.8", 17, 1, &udp6),
        v4("192.168.0.1", "8.8.8.8", 17, 1, &udp6),
        v4("9.9.9.9", "8.8.8.8", 17, 1, &udp6),
    ];
    for packet in silent {
        let frame = framed(A_MAC, A, &packet);
        assert_eq!(node.report(A, &frame, None, DropReason::TtlExpired), None, "{packet:x?}");
    }
    let broadcast = frame(A_MAC, EVERYBODY, 0x0800, &about);
    assert_eq!(node.report(A, &broadcast, None, DropReason::TtlExpired), None);
    assert_eq!(node.report(A, &arp(1, A_MAC, "10.0.0.1", "10.0.0.2"), None, DropReason::NoRoute), None);
    for len in 0..34 {
        assert_eq!(node.report(A, &framed(A_MAC, A, &about)[..len], None, DropReason::NoRoute), None);
    }
    // An echo request and a first fragment do cause an error.
    let first = fragments_v4(&v4("10.0.0.1", "8.8.8.8", 253, 1, &[0; 64]), 7, 32).remove(0);
    for packet in [v4("10.0.0.1", "8.8.8.8", 1, 1, &[8, 0, 0, 0, 0, 1, 0, 1]), first] {
        assert!(node.report(A, &framed(A_MAC, A, &packet), None, DropReason::TtlExpired).is_some());
    }
}

#[test]
fn from_the_uplink_strangers_are_told_and_nobody_with_a_local_address_is() {
    let mut node = begun();
    let from = |src: &str| framed(GATEWAY_MAC, UPLINK, &v4(src, "10.0.0.1", 253, 1, &[0; 8]));
    let error = node.report(UPLINK, &from("8.8.8.8"), None, DropReason::TtlExpired).unwrap();
    assert_eq!((destination(&error), parsed(&error).dst), (GATEWAY_MAC, ip("8.8.8.8")));
    assert_eq!(node.report(UPLINK, &from("10.0.0.2"), None, DropReason::TtlExpired), None);
    assert_eq!(node.report(UPLINK, &from("192.168.0.1"), None, DropReason::TtlExpired), None);
}

#[test]
fn a_node_without_an_address_of_the_family_says_nothing() {
    let mut ports = linked_ports();
    ports[HOST.index()].addresses = vec![ip("192.168.0.1"), ip("fe80::1")];
    let mut node = Node::with(Neighbours::new(), linked_snapshot(1, ports));
    assert!(node.report(A, &from_a(false, 8), None, DropReason::TtlExpired).is_some());
    assert_eq!(node.report(A, &from_a(true, 8), None, DropReason::TtlExpired), None);
}

/// Regression: with one bucket per port, "TTL exceeded" errors suppressed "packet too big" errors for all behind the port.
#[test]
fn issue_10_6h_a_flood_of_ttl_exceeded_does_not_silence_packet_too_big_or_other_destinations() {
    let mut node = begun();
    let from = |src: &str| framed(GATEWAY_MAC, UPLINK, &v4(src, "10.0.0.1", 253, 1, &[0; 8]));
    let flood = from("8.8.8.8");
    let sent = (0..10_000).filter(|_| node.report(UPLINK, &flood, None, DropReason::TtlExpired).is_some()).count();
    assert_eq!(sent, 10);
    assert!(node.report(UPLINK, &flood, Some(A), DropReason::PacketTooBig).is_some(), "to the same destination");
    let others = (1..=40).map(|n| from(&format!("9.9.{n}.9")));
    let told = others.filter(|other| node.report(UPLINK, other, None, DropReason::TtlExpired).is_some()).count();
    assert!(told >= 35, "{told} of 40 other destinations");
    // From many sources: the port's limit is reached, and "packet too big" errors are still sent.
    for n in 0..2000 {
        node.report(UPLINK, &from(&format!("9.8.{}.{}", n / 250, n % 250)), None, DropReason::TtlExpired);
    }
    assert_eq!(node.report(UPLINK, &from("7.7.7.7"), None, DropReason::TtlExpired), None);
    assert!(node.report(UPLINK, &from("7.7.7.7"), Some(A), DropReason::PacketTooBig).is_some());
}

#[test]
fn errors_are_limited_per_destination_and_counted() {
    let mut node = begun();
    let frame = from_a(false, 8);
    let sent =
        |node: &mut Node| (0..1000).filter(|_| node.report(A, &frame, None, DropReason::TtlExpired).is_some()).count();
    assert_eq!(sent(&mut node), 10);
    let other = framed(B_MAC, B, &v4("10.0.0.2", "8.8.8.8", 253, 1, &[0; 8]));
    assert!(node.report(B, &other, None, DropReason::TtlExpired).is_some(), "another port");
    node.wait(SECOND / 2);
    assert_eq!(sent(&mut node), 5);
    assert_eq!((node.forwarder.counters().errors_sent, node.forwarder.counters().errors_suppressed), (16, 1985));
}

#[test]
fn traceroute_of_a_pod_shows_the_node() {
    let mut node = begun();
    let mut probe = framed(A_MAC, A, &v4("10.0.0.1", "8.8.8.8", 17, 1, &[0x9c, 0x40, 0x82, 0x9b, 0, 8, 0, 0]));
    assert_eq!(node.step(A, &mut probe), dropped(DropReason::TtlExpired));
    let error = parsed(&node.report(A, &probe, None, DropReason::TtlExpired).unwrap());
    assert_eq!((error.src, error.kind, &error.quoted), (ip("192.168.0.1"), (11, 0), &probe[14..].to_vec()));
}
