//! Plain packets.

use super::*;

const PAIRS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];

#[test]
fn a_packet_between_pods_goes_one_hop_to_the_mac_address_of_the_other_pod() {
    for (a, b) in PAIRS {
        let mut node = Node::acquainted();
        let before = udp_frame(A_MAC, A, a, b);
        let mut frame = before.clone();
        assert_eq!(node.step(A, &mut frame), Step::Send(B));
        assert_eq!((destination(&frame), source(&frame)), (B_MAC, own(B)));
        assert_eq!(hop_limit(&frame), hop_limit(&before) - 1);
        let mut undone = frame.clone();
        undone[..12].copy_from_slice(&before[..12]);
        let differing: Vec<usize> = (0..frame.len()).filter(|&at| undone[at] != before[at]).collect();
        let expected: &[usize] = if before[14] >> 4 == 4 { &[22, 24] } else { &[21] };
        assert_eq!(differing, expected);
    }
}

#[test]
fn a_pod_reaches_itself_through_the_vswitch() {
    let mut node = Node::acquainted();
    let mut frame = udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.1");
    assert_eq!(node.step(A, &mut frame), Step::Send(A));
    assert_eq!((destination(&frame), source(&frame), hop_limit(&frame)), (A_MAC, own(A), 63));
}

#[test]
fn to_and_from_the_host_is_no_hop() {
    for (ours, pod) in [("192.168.0.1", "10.0.0.1"), ("fd00:1::1", "fd00::1")] {
        let mut node = Node::acquainted();
        let mut to = udp_frame(A_MAC, A, pod, ours);
        assert_eq!((node.step(A, &mut to), hop_limit(&to)), (Step::Send(HOST), 64));
        assert_eq!((destination(&to), source(&to)), (HOST_MAC, own(HOST)));
        let mut from = udp_frame(HOST_MAC, HOST, ours, pod);
        assert_eq!((node.step(HOST, &mut from), hop_limit(&from)), (Step::Send(A), 64));
    }
    assert!(is_hop(PortKind::Pod, PortKind::Uplink) && is_hop(PortKind::Uplink, PortKind::Pod));
    assert!(!is_hop(PortKind::Host, PortKind::Uplink) && !is_hop(PortKind::Uplink, PortKind::Host));
}

#[test]
fn a_ttl_of_1_is_not_sent_on_and_stays_as_it_is() {
    let mut node = Node::acquainted();
    let before = framed(A_MAC, A, &v4("10.0.0.1", "10.0.0.2", 253, 1, &[0; 8]));
    let mut frame = before.clone();
    node.forwarder.begin(&node.snapshot, node.now);
    let step = node.forwarder.forward(&node.snapshot, &mut frame, 42, A, Verdict::Forward(B));
    assert_eq!((step, frame), (dropped(DropReason::TtlExpired), before));
}

#[test]
fn what_the_next_link_does_not_carry_is_too_big_and_stays_as_it_is() {
    for (src, dst) in [("10.0.0.1", "8.8.8.8"), ("fd00::1", "2001:db8::1")] {
        let mut node = Node::acquainted();
        let header = if src.contains(':') { 40 } else { 20 };
        let packet = |len: usize| {
            let payload = vec![0; len - header];
            if header == 40 { v6(src, dst, 253, 64, &payload) } else { v4(src, dst, 253, 64, &payload) }
        };
        let mut fits = framed(A_MAC, A, &packet(1400));
        assert!(matches!(node.step(A, &mut fits), Step::Hold(_)));
        let mut before = framed(A_MAC, A, &packet(1401));
        if header == 20 {
            let mut may_be_cut = before.clone();
            assert!(matches!(node.step(A, &mut may_be_cut), Step::Hold(_)));
            // Don't fragment.
            before[20] = 0x40;
        }
        let mut frame = before.clone();
        assert_eq!(node.step(A, &mut frame), dropped(DropReason::PacketTooBig));
        assert_eq!(frame, before);
    }
}

#[test]
fn a_jumbo_packet_counts_by_its_length_on_the_wire() {
    let mut node = Node::acquainted();
    let mut frame = udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.2");
    node.forwarder.begin(&node.snapshot, node.now);
    let too_long = node.forwarder.forward(&node.snapshot, &mut frame, 1515, A, Verdict::Forward(B));
    assert_eq!(too_long, dropped(DropReason::PacketTooBig));
    let fits = node.forwarder.forward(&node.snapshot, &mut frame, 1514, A, Verdict::Forward(B));
    assert_eq!(fits, Step::Send(B));
}

#[test]
fn an_ipv4_packet_that_is_too_big_and_may_be_cut_is_made_ready_like_any_other() {
    let mut node = Node::acquainted();
    let mut frame = framed(A_MAC, A, &v4("10.0.0.1", "10.0.0.2", 253, 64, &[0; 30]));
    node.forwarder.begin(&node.snapshot, node.now);
    let step = node.forwarder.forward(&node.snapshot, &mut frame, 9014, A, Verdict::Forward(B));
    assert_eq!((step, destination(&frame), source(&frame)), (Step::Fragment(B), B_MAC, own(B)));
    assert_eq!(frame[14 + 8], 63);
}

#[test]
fn a_port_without_an_interface_is_down() {
    let mut node = Node::acquainted();
    let mut ports = linked_ports();
    ports[B.index()].link = None;
    node.snapshot = linked_snapshot(2, ports);
    assert_eq!(node.receive(A, &udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.2")), dropped(DropReason::PortDown));
}

#[test]
fn a_new_generation_with_another_mac_or_link_is_followed_at_once() {
    let mut node = Node::acquainted();
    let mut frame = udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1");
    assert_eq!((node.step(B, &mut frame), destination(&frame)), (Step::Send(A), A_MAC));
    let mut ports = linked_ports();
    ports[A.index()].mac = Some([2, 0, 0, 0, 0, 0x77]);
    ports[A.index()].link = Some(Link { mac: [2, 0, 0, 0, 0, 0x78], mtu: 1500 });
    node.snapshot = linked_snapshot(2, ports);
    let mut frame = udp_frame(B_MAC, B, "10.0.0.2", "10.0.0.1");
    assert_eq!(node.step(B, &mut frame), Step::Send(A));
    assert_eq!((destination(&frame)[5], source(&frame)[5]), (0x77, 0x78));
}

#[test]
fn drops_of_the_engine_stay_drops() {
    let mut node = Node::acquainted();
    let mut frame = udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.2");
    for &reason in DropReason::ALL {
        let step = node.forwarder.forward(&node.snapshot, &mut frame, 42, A, Verdict::Drop(reason));
        assert_eq!(step, dropped(reason));
    }
    assert_eq!(frame, udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.2"));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_send_to_a_port_that_was_not_said(
        mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120),
        ethertype in proptest::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8100]),
        next in proptest::sample::select(vec![0u8, 6, 17, 43, 44, 58, 60]),
        ports in (0u16..5, 0u16..5),
    ) {
        if let Some(slot) = bytes.get_mut(12..14) {
            slot.copy_from_slice(&ethertype.to_be_bytes());
        }
        if let Some(slot) = bytes.get_mut(20) {
            *slot = next;
        }
        let mut node = Node::acquainted();
        node.forwarder.begin(&node.snapshot, node.now);
        let (in_port, out) = (PortId(ports.0), PortId(ports.1));
        let _ = node.forwarder.admit(in_port, &bytes);
        let len = bytes.len();
        match node.forwarder.forward(&node.snapshot, &mut bytes, len, in_port, Verdict::Forward(out)) {
            Step::Send(to) | Step::Fragment(to) => proptest::prop_assert_eq!(to, out),
            Step::Hold(neighbour) => proptest::prop_assert_eq!(neighbour.port, out),
            Step::Consumed => proptest::prop_assert!(ethertype != 0x0800),
            Step::Drop(reason) => drop(node.report(in_port, &bytes, Some(out), reason)),
        }
    }
}
