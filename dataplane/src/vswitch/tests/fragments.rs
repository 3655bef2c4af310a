//! Packets that exceed the MTU of their egress port.

use super::*;

/// Returns the testbed's ports. B's link has an MTU of 1500, the others 9000.
pub(super) fn narrow_ports() -> Vec<PortConfig> {
    let mut ports = live_ports();
    ports[B.index()].link = Some(Link { mac: own_mac(3), mtu: 1500 });
    ports
}

/// Receives B's frames until a datagram is complete. Returns its payload and the number of frames.
fn datagram(node: &mut Node) -> (Vec<u8>, usize) {
    let (mut bytes, mut end, mut frames) = (Vec::new(), None, 0);
    let mut seen = 0;
    while end != Some(seen) {
        let frame = node.receive(B);
        frames += 1;
        assert!(frame.len() <= 1514 && frame.len() >= 60);
        assert_eq!((&frame[..6], &frame[6..12]), (&B_MAC[..], &own_mac(3)[..]));
        let header = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap();
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        assert_eq!(header.ttl(), 63, "one hop less");
        let payload = &frame[14 + header.slice().len()..14 + usize::from(header.total_len())];
        let start = usize::from(header.fragments_offset().value()) * 8;
        bytes.resize(bytes.len().max(start + payload.len()), 0);
        bytes[start..start + payload.len()].copy_from_slice(payload);
        seen += payload.len();
        if !header.more_fragments() {
            end = Some(start + payload.len());
        }
    }
    (bytes, frames)
}

fn payload(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn issue_10_6i_a_packet_that_may_be_cut_arrives_in_fragments_whether_it_came_in_one_frame_or_in_several() {
    for workers in [1, 2] {
        let mut node = Node::start(workers, snapshot_of(1, narrow_ports()));
        for (len, fragments) in [(1473, 2), (1493, 2), (3000, 3), (8900, 7)] {
            node.send(A, &from_a(&jumbo(&payload(len))));
            let (got, frames) = datagram(&mut node);
            assert_eq!((&got[8..], frames), (&payload(len)[..], fragments), "{len}");
        }
        // A packet that fits is sent as it is.
        node.send(A, &from_a(&with_ttl(jumbo(&payload(1472)), 64)));
        assert_eq!(datagram(&mut node).1, 1);
        let counters = node.stop();
        assert_eq!((counters.port(A).received, counters.port(B).sent), (5, 15));
        assert_eq!((counters.sum(|worker| worker.fragmented), counters.sum(|worker| worker.originated)), (4, 10));
    }
}

#[test]
fn a_packet_that_may_not_be_cut_is_answered_with_the_mtu() {
    let mut node = Node::start(1, snapshot_of(1, narrow_ports()));
    let mut packet = jumbo(&payload(8000));
    packet[6] = 0x40;
    node.send(A, &from_a(&packet));
    let error = node.receive(A);
    assert_eq!((&error[34..36], &error[40..42]), (&[3, 4][..], &1500u16.to_be_bytes()[..]));
    let counters = node.stop();
    assert_eq!((counters.dropped(DropReason::PacketTooBig), counters.port(B).sent), (1, 0));
}

#[test]
fn a_packet_that_waits_for_its_neighbour_is_cut_when_that_is_known() {
    let mut ports = narrow_ports();
    ports[B.index()].mac = None;
    let mut node = Node::start(1, snapshot_of(1, ports));
    for len in [3000, 8000] {
        node.send(A, &from_a(&jumbo(&payload(len))));
    }
    node.receive(B);
    let answer = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &B_MAC, &[10, 0, 0, 2], &own_mac(3), &[0; 4]].concat();
    node.send(B, &ethernet(B_MAC, 0x0806, &answer));
    for (len, fragments) in [(3000, 3), (8000, 6)] {
        let (got, frames) = datagram(&mut node);
        assert_eq!((&got[8..], frames), (&payload(len)[..], fragments));
    }
    node.stop();
}
