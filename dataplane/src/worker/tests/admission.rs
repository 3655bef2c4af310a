//! Checks of source addresses, MAC addresses, groups, martians and link types.

use super::dropped;
use crate::testbed::*;
use crate::*;

#[test]
fn a_pod_sends_with_its_own_addresses_only() {
    let mut bed = Bed::new();
    for (src, dst) in
        [("10.0.0.9", "10.0.0.2"), ("10.0.0.2", "10.0.0.2"), ("192.168.0.1", "10.0.0.2"), ("8.8.8.8", "10.0.0.2")]
    {
        assert_eq!(bed.verdict(A, &udp(src, dst, 80)), dropped(DropReason::SpoofedSource), "{src}");
    }
    for src in ["fd00::9", "fd00::2", "fe80::1"] {
        assert_eq!(bed.verdict(A, &udp(src, "fd00::2", 80)), dropped(DropReason::SpoofedSource), "{src}");
    }
    assert_eq!(bed.worker.sessions_in_use(), 0);
}

#[test]
fn nobody_outside_sends_with_a_pods_address() {
    let mut bed = Bed::new();
    for port in [UPLINK, HOST] {
        assert_eq!(bed.verdict(port, &udp("10.0.0.1", "10.0.0.2", 80)), dropped(DropReason::SpoofedSource));
        assert_eq!(bed.verdict(port, &udp("fd00::1", "fd00::2", 80)), dropped(DropReason::SpoofedSource));
    }
}

#[test]
fn nobody_on_the_uplink_sends_with_the_nodes_address() {
    let mut bed = Bed::new();
    assert_eq!(bed.verdict(UPLINK, &udp("192.168.0.1", "10.0.0.1", 80)), dropped(DropReason::SpoofedSource));
    assert_eq!(bed.verdict(HOST, &udp("192.168.0.1", "10.0.0.1", 80)), Verdict::Forward(A));
}

#[test]
fn a_pods_frames_carry_its_mac_address_where_it_is_known() {
    let mut bed = Bed::new();
    let packet = udp("10.0.0.1", "10.0.0.2", 80);
    let wrong = ethernet([2, 0, 0, 0, 0, 9], 0x0800, &packet);
    assert_eq!(bed.send_link(A, LinkType::Ethernet, &wrong).verdict, dropped(DropReason::SpoofedSource));
    let right = ethernet(A_MAC, 0x0800, &packet);
    assert_eq!(bed.send_link(A, LinkType::Ethernet, &right).verdict, Verdict::Forward(B));
    // B's MAC address is unknown.
    let any = ethernet([2, 0, 0, 0, 0, 9], 0x0800, &udp("10.0.0.2", "10.0.0.1", 80));
    assert_eq!(bed.send_link(B, LinkType::Ethernet, &any).verdict, Verdict::Forward(A));
}

#[test]
fn groups_and_martians_are_dropped_each_with_its_reason() {
    let mut bed = Bed::new();
    for dst in ["224.0.0.1", "239.1.2.3", "255.255.255.255"] {
        assert_eq!(bed.verdict(A, &udp("10.0.0.1", dst, 80)), dropped(DropReason::Multicast), "{dst}");
    }
    // A multicast listener report, which every pod sends at its start.
    let report = v6("fe80::1", "ff02::16", 58, 1, &[143, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bed.verdict(A, &report), dropped(DropReason::Multicast));
    for src in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        assert_eq!(bed.verdict(UPLINK, &udp(src, "10.0.0.1", 80)), dropped(DropReason::MartianSource), "{src}");
    }
    for src in ["::", "::1", "ff02::1", "::ffff:8.8.8.8"] {
        assert_eq!(bed.verdict(UPLINK, &udp(src, "fd00::1", 80)), dropped(DropReason::MartianSource), "{src}");
    }
    for (src, dst) in
        [("10.0.0.1", "127.0.0.1"), ("10.0.0.1", "0.0.0.0"), ("fd00::1", "::1"), ("fd00::1", "::ffff:10.0.0.2")]
    {
        assert_eq!(bed.verdict(A, &udp(src, dst, 80)), dropped(DropReason::MartianDestination), "{dst}");
    }
}

/// Regression: machines on the uplink's link reached pods from link-local addresses, which no router forwards.
#[test]
fn issue_10_6j_nothing_begins_from_a_link_local_source_on_the_uplink() {
    let mut bed = Bed::new();
    let refused = dropped(DropReason::LinkLocalSource);
    for (src, dst) in
        [("169.254.1.2", "10.0.0.1"), ("169.254.1.2", "192.168.0.1"), ("fe80::9", "fd00::1"), ("fe80::9", "fd00:1::1")]
    {
        assert_eq!(bed.verdict(UPLINK, &udp(src, dst, 80)), refused, "{src} to {dst}");
    }
    assert_eq!(bed.verdict(UPLINK, &tcp("169.254.1.2", "10.0.0.1", 40_000, 80, SYN)), refused);
    assert_eq!(bed.verdict(UPLINK, &v4("169.254.1.2", "10.0.0.1", 1, 64, &[8, 0, 0, 0, 0, 1, 0, 1])), refused);
    assert_eq!(bed.worker.sessions_in_use(), 0);
    // The node may use link-local sources. Addresses next to 169.254/16 and fe80::/10 are not link-local.
    assert_eq!(bed.verdict(HOST, &udp("169.254.20.10", "10.0.0.1", 80)), Verdict::Forward(A));
    assert_eq!(bed.verdict(UPLINK, &udp("169.253.1.2", "10.0.0.1", 80)), Verdict::Forward(A));
    assert_eq!(bed.verdict(UPLINK, &udp("fec0::9", "fd00::1", 80)), Verdict::Forward(A));
}

#[test]
fn a_pod_and_the_node_are_answered_from_link_local_addresses_that_they_asked() {
    let mut bed = Bed::new();
    for (from, src) in [(A, "10.0.0.1"), (HOST, "192.168.0.1")] {
        assert_eq!(bed.verdict(from, &tcp(src, "169.254.169.254", 40_000, 80, SYN)), Verdict::Forward(UPLINK));
        let reply = tcp("169.254.169.254", src, 80, 40_000, SYN | ACK);
        assert_eq!(bed.verdict(UPLINK, &reply), Verdict::Forward(from));
        let other = tcp("169.254.169.254", src, 81, 40_000, SYN);
        assert_eq!(bed.verdict(UPLINK, &other), dropped(DropReason::LinkLocalSource));
    }
}

#[test]
fn the_nodes_link_local_address_is_spoken_to_on_its_link() {
    let mut ports = ports();
    ports[HOST.index()].addresses.push(ip("169.254.7.7"));
    let mut bed = Bed::new();
    bed.snapshot = snapshot_of(2, ports);
    assert_eq!(bed.verdict(UPLINK, &tcp("169.254.7.8", "169.254.7.7", 40_000, 179, SYN)), Verdict::Forward(HOST));
    assert_eq!(bed.verdict(UPLINK, &tcp("fe80::9", "fe80::5", 40_000, 179, SYN)), Verdict::Forward(HOST));
}

#[test]
fn link_local_addresses_are_not_routed() {
    let mut bed = Bed::new();
    assert_eq!(bed.verdict(A, &udp("fd00::1", "fe80::9", 80)), dropped(DropReason::NoRoute));
    assert_eq!(bed.verdict(HOST, &udp("fe80::5", "fe80::9", 179)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &udp("fe80::9", "fe80::5", 179)), Verdict::Forward(HOST));
}

#[test]
fn every_link_type_leads_to_the_same_packet() {
    let packet = udp("10.0.0.1", "10.0.0.2", 80);
    let mut sll = vec![0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x00];
    sll[6..12].copy_from_slice(&A_MAC);
    let mut sll2 = vec![0x08, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0];
    sll2[12..18].copy_from_slice(&A_MAC);
    for (link, header) in [
        (LinkType::Raw, vec![]),
        (LinkType::Ipv4, vec![]),
        (LinkType::Null, vec![2, 0, 0, 0]),
        (LinkType::Loop, vec![0, 0, 0, 2]),
        (LinkType::LinuxSll, sll),
        (LinkType::LinuxSll2, sll2),
        (LinkType::Ethernet, ethernet(A_MAC, 0x0800, &[])),
    ] {
        let frame = [&header[..], &packet].concat();
        assert_eq!(Bed::new().send_link(A, link, &frame).verdict, Verdict::Forward(B), "{link}");
    }
    let six = udp("fd00::1", "fd00::2", 80);
    assert_eq!(Bed::new().send_link(A, LinkType::Ipv6, &six).verdict, Verdict::Forward(B));
    assert_eq!(Bed::new().send_link(A, LinkType::Ipv4, &six).verdict, dropped(DropReason::Ipv4Malformed));
}

#[test]
fn frames_that_are_not_ip_are_dropped() {
    let mut bed = Bed::new();
    for (ethertype, reason) in [
        (0x8100, DropReason::VlanTagged),
        (0x88a8, DropReason::VlanTagged),
        (0x8847, DropReason::UnknownEthertype),
        (0x88cc, DropReason::UnknownEthertype),
    ] {
        let frame = ethernet(A_MAC, ethertype, &udp("10.0.0.1", "10.0.0.2", 80));
        assert_eq!(bed.send_link(A, LinkType::Ethernet, &frame).verdict, dropped(reason));
    }
}

#[test]
fn a_packet_that_a_capture_cut_is_judged_by_its_headers() {
    let mut bed = Bed::new();
    let mut packet = v4("10.0.0.1", "10.0.0.2", 17, 64, &[0x9c, 0x40, 0, 80, 0x03, 0xf0, 0, 0]);
    packet[2..4].copy_from_slice(&1028u16.to_be_bytes());
    let judge = |bed: &mut Bed, seen: usize, wire_len| {
        let frame = &packet[..seen];
        let packet = Packet { frame, wire_len, link: LinkType::Raw, in_port: A, time: 0 };
        let mut outcomes = [Outcome::UNJUDGED];
        bed.worker.process(&bed.snapshot, &[packet], &mut outcomes);
        outcomes[0].verdict
    };
    assert_eq!(judge(&mut bed, 28, 1028), Verdict::Forward(B));
    assert_eq!(judge(&mut bed, 24, 1028), dropped(DropReason::L4Truncated));
    assert_eq!(judge(&mut bed, 28, 1027), dropped(DropReason::Ipv4Malformed));
}
