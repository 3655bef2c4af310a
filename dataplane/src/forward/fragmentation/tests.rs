//! Reassembles all fragments with etherparse, and with a reassembler that shares no code with the fragmentation.

use etherparse::defrag::IpDefragPool;
use etherparse::{Ipv4Slice, SlicedPacket};
use proptest::prelude::*;

use super::*;
use crate::testbed::v4;

const ID: [u8; 2] = [0x12, 0x34];

fn packet(options: &[u8], payload_len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..=250).cycle().take(payload_len).collect();
    let mut packet = v4("10.0.0.1", "10.0.0.2", 17, 61, &[options, &payload].concat());
    packet[0] = 0x45 + u8::try_from(options.len() / 4).unwrap();
    packet[4..6].copy_from_slice(&ID);
    packet
}

fn word(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[6], packet[7]])
}

fn set_word(packet: &mut [u8], word: u16) {
    packet[6..8].copy_from_slice(&word.to_be_bytes());
}

fn header_len(packet: &[u8]) -> usize {
    usize::from(packet[0] & 0xf) * 4
}

/// Returns the fragments as packets. `None` if the packet must not be fragmented.
fn cut(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let plan = Fragmentation::new(&packet[..header_len(packet)], mtu)?;
    let payload = &packet[header_len(packet)..];
    let whole = |number| {
        let fragment = plan.fragment(number);
        [fragment.header(), &payload[fragment.payload.clone()]].concat()
    };
    Some((0..plan.count()).map(whole).collect())
}

/// Reassembles fragments by RFC 791 alone and checks that each byte is written once. Returns the first byte's offset, the payload, and
/// whether more fragments follow.
fn reassembled(fragments: &[Vec<u8>]) -> (usize, Vec<u8>, bool) {
    let mut bytes: Vec<Option<u8>> = Vec::new();
    let mut end = None;
    for fragment in fragments {
        let start = usize::from(word(fragment) & 0x1fff) * 8;
        let payload = &fragment[header_len(fragment)..];
        bytes.resize(bytes.len().max(start + payload.len()), None);
        for (place, byte) in bytes[start..].iter_mut().zip(payload) {
            assert_eq!(place.replace(*byte), None, "a byte is there twice");
        }
        if word(fragment) & 0x2000 == 0 {
            assert_eq!(end.replace(start + payload.len()), None, "there are two ends");
        }
    }
    assert!(end.is_none_or(|end| end == bytes.len()));
    let start = bytes.iter().take_while(|byte| byte.is_none()).count();
    (start, bytes[start..].iter().map(|byte| byte.expect("a hole")).collect(), end.is_none())
}

fn check(fragments: &[Vec<u8>], of: &[u8], mtu: usize) {
    for (number, fragment) in fragments.iter().enumerate() {
        let slice = Ipv4Slice::from_slice(fragment).unwrap();
        let header = slice.header();
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        assert!(fragment.len() <= mtu, "{} bytes of {mtu}", fragment.len());
        assert_eq!(usize::from(header.total_len()), fragment.len());
        assert!(number + 1 == fragments.len() || (fragment.len() - header_len(fragment)).is_multiple_of(8));
        let same = |range: Range<usize>| assert_eq!(fragment[range.clone()], of[range]);
        // Type of service; identification; TTL and protocol; addresses.
        [1..2, 4..6, 8..10, 12..20].into_iter().for_each(same);
        assert_eq!(word(fragment) & 0xc000, word(of) & 0xc000);
    }
    let (start, payload, more) = reassembled(fragments);
    assert_eq!(start, usize::from(word(of) & 0x1fff) * 8);
    assert_eq!(payload, of[header_len(of)..]);
    assert_eq!(more, word(of) & 0x2000 != 0);
}

/// Returns the payload as reassembled by etherparse.
fn defragmented(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut pool = IpDefragPool::<(), ()>::new();
    let mut whole = None;
    for fragment in fragments {
        let sliced = SlicedPacket::from_ip(fragment).unwrap();
        assert!(whole.is_none());
        whole = pool.process_sliced_packet(&sliced, (), ()).unwrap();
    }
    whole.expect("all fragments are there").payload
}

#[test]
fn rfc_791_a_datagram_is_cut_at_multiples_of_eight_and_only_the_last_says_that_nothing_follows() {
    // RFC 791 §3.2's example: 452 bytes of data for a link of 280.
    let whole = packet(&[], 452);
    let fragments = cut(&whole, 280).unwrap();
    let shape: Vec<_> = fragments.iter().map(|part| (part.len(), word(part))).collect();
    assert_eq!(shape, [(276, 0x2000), (20 + 196, 32)]);
    check(&fragments, &whole, 280);
    assert_eq!(defragmented(&fragments), whole[20..]);
}

#[test]
fn fragments_of_a_fragment_keep_its_place_and_say_that_more_follow_where_it_did() {
    let whole = packet(&[], 4000);
    let mut all = Vec::new();
    for part in cut(&whole, 1500).unwrap() {
        let smaller = cut(&part, 576).unwrap();
        assert!(smaller.len() >= 2);
        check(&smaller, &part, 576);
        all.extend(smaller);
    }
    assert_eq!(all.iter().filter(|part| word(part) & 0x2000 == 0).count(), 1);
    check(&all, &whole, 576);
    all.reverse();
    assert_eq!(defragmented(&all), whole[20..]);
}

#[test]
fn rfc_791_options_are_in_all_fragments_if_their_type_says_so_and_else_in_the_first() {
    // Record route (not copied), a no-op, router alert (copied), a security option of 5 bytes (copied), end.
    let (record, alert, security) = ([7, 7, 4, 0, 0, 0, 0], [148, 4, 0, 0], [130, 5, 1, 2, 3]);
    let options = [&record[..], &[1], &alert, &security, &[0, 0, 0]].concat();
    let whole = packet(&options, 3000);
    let fragments = cut(&whole, 576).unwrap();
    check(&fragments, &whole, 576);
    assert_eq!(fragments[0][20..40], options);
    let copied = [&alert[..], &security, &[0, 0, 0]].concat();
    for later in &fragments[1..] {
        assert_eq!((header_len(later), &later[20..32]), (32, &copied[..]));
    }
    // Later fragments have room for more data.
    assert_eq!((fragments[0].len(), fragments[1].len()), (40 + 536, 32 + 544));
    assert_eq!(defragmented(&fragments).len(), 3000);
    // All options of a later fragment are copied ones.
    let again = cut(&fragments[1], 300).unwrap();
    check(&again, &fragments[1], 300);
    assert!(again.iter().all(|part| part[20..32] == copied));
}

#[test]
fn what_may_not_be_cut_is_not() {
    let whole = packet(&[], 2000);
    let refused = |change: &dyn Fn(&mut Vec<u8>), mtu| {
        let mut changed = whole.clone();
        change(&mut changed);
        Fragmentation::new(&changed, mtu).is_none()
    };
    assert!(!refused(&|_| {}, 1500));
    assert!(refused(&|packet| set_word(packet, 0x4000), 1500), "don't fragment");
    assert!(refused(&|packet| packet[0] = 0x65, 1500), "not IPv4");
    assert!(refused(&|packet| packet[0] = 0x44, 1500), "a short header");
    assert!(refused(&|packet| packet[2..4].fill(0), 1500), "a length below the header's");
    assert!(refused(&|packet| packet.truncate(19), 1500));
    assert!(refused(&|_| {}, 27) && !refused(&|_| {}, 60), "no room for a unit");
    // The limit is 64 fragments of 32 bytes, which is 2048.
    assert!(refused(&|_| {}, 20 + 31) && !refused(&|_| {}, 20 + 32));
    for options in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 9, 0, 0], [1, 1, 1, 7]] {
        assert_eq!(cut(&packet(&options, 2000), 1500), None, "{options:?}");
    }
}

#[test]
fn a_fragment_is_never_longer_than_a_packet_buffer() {
    let whole = packet(&[], 30_000);
    let fragments = cut(&whole, 9000).unwrap();
    assert!(fragments.iter().all(|part| ethernet::HEADER_LEN + part.len() <= Umem::ROOM));
    check(&fragments, &whole, 9000);
}

#[test]
fn the_largest_datagram_is_cut_for_the_least_mtu_of_ipv6() {
    let whole = packet(&[], 65_515);
    let fragments = cut(&whole, 1280).unwrap();
    check(&fragments, &whole, 1280);
    assert_eq!(fragments.len(), 53);
}

proptest! {
    #[test]
    fn whatever_is_cut_is_the_same_when_it_is_put_together(
        payload_len in 0usize..9000,
        mtu in 68usize..2000,
        options in prop::collection::vec(prop_oneof![
            Just(vec![1]),
            (3usize..9, any::<u8>()).prop_map(|(len, kind)| {
                let mut option = vec![kind.max(2); len];
                option[1] = u8::try_from(len).unwrap();
                option
            }),
        ], 0..5),
        place in 0u16..100,
        more in any::<bool>(),
        second_mtu in 68usize..600,
    ) {
        let mut options = options.concat();
        options.resize(options.len().next_multiple_of(4).min(40), 0);
        let payload_len = if more { payload_len.next_multiple_of(8) } else { payload_len };
        let mut whole = packet(&options, payload_len);
        set_word(&mut whole, place | if more { 0x2000 } else { 0 });
        if let Some(fragments) = cut(&whole, mtu) {
            check(&fragments, &whole, mtu);
            for part in &fragments {
                if let Some(parts) = cut(part, second_mtu) {
                    check(&parts, part, second_mtu);
                }
            }
        } else {
            // Refused only if there were too many fragments.
            prop_assert!(payload_len > 63 * ((mtu - 60) / 8 * 8));
        }
    }
}
