//! Assigns packets to workers.
//!
//! Each worker owns its sessions. So both directions of a connection, the fragments of its packets and ICMP errors about them must reach
//! one worker. They only share the pair of addresses, because later fragments have no ports. The hash therefore uses the pair, with the
//! lower address first. The drawback: many connections between two hosts load one worker.

use std::net::IpAddr;

use ahash::RandomState;
use bulkhead_classifier::protocol;

use crate::LinkType;
use crate::packet::{self, Body, Ip, Transport};
use crate::session::Key;
use crate::wire::ethernet::{self, ethertype};
use crate::wire::{ipv4, ipv6};

/// The assignment of packets to workers, keyed at random, so that outsiders cannot direct all their traffic to one worker. All parts of a
/// process must use clones of one value.
///
/// Each address is mixed with two keys. The results are added, so that their order does not matter, and the sum is mixed with a third key.
/// Only multiplications and shifts are used, because the kernel program at the interfaces computes the same function.
#[derive(Clone, Debug)]
pub struct Affinity {
    keys: [u64; 3],
}

impl Affinity {
    /// Creates new random keys.
    #[expect(clippy::new_without_default, reason = "every call gives another key, which a default should not")]
    pub fn new() -> Self {
        let state = RandomState::new();
        // Odd numbers, so that the multiplication is invertible.
        Self { keys: [1_u8, 2, 3].map(|number| state.hash_one(number) | 1) }
    }

    /// Returns the keys: for an address's first half, for an address, and for the sum.
    pub(crate) const fn keys(&self) -> [u64; 3] {
        self.keys
    }

    /// Returns the worker, from 0, of an Ethernet frame. Both directions between two addresses have the same worker. An ICMP error counts
    /// as the quoted packet. Later fragments of an error do not, and are dropped, because errors are not fragmented. Returns 0 for non-IP
    /// frames, neighbour discovery and invalid frames.
    #[inline]
    pub fn worker(&self, frame: &[u8], workers: usize) -> usize {
        share(self.of(frame), workers)
    }

    #[inline]
    fn of(&self, frame: &[u8]) -> u32 {
        self.quick(frame).unwrap_or_else(|| self.thorough(frame))
    }

    /// Hashes a frame that is not ICMP and has no extension headers. `None` for other frames.
    #[inline]
    fn quick(&self, frame: &[u8]) -> Option<u32> {
        /// Length of a frame's headers with IPv4 without options, and with IPv6's fixed header.
        const V4: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN;
        const V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
        const IP: usize = ethernet::HEADER_LEN;
        let head = frame.first_chunk::<V4>()?;
        let ethertype = u16::from_be_bytes([head[ethernet::field::ETHERTYPE], head[ethernet::field::ETHERTYPE + 1]]);
        match (ethertype, head[IP] >> 4) {
            (ethertype::IPV4, 4) if head[IP + ipv4::field::PROTOCOL] != protocol::ICMP => {
                let address = |at: usize| {
                    [u64::from(u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])), 0]
                };
                let [src, dst] = [ipv4::field::SOURCE, ipv4::field::DESTINATION].map(|field| address(IP + field.start));
                Some(self.pair(src, dst))
            }
            (ethertype::IPV6, 6) if matches!(head[IP + ipv6::field::NEXT_HEADER], protocol::TCP | protocol::UDP) => {
                let head = frame.first_chunk::<V6>()?;
                let half = |at: usize| {
                    u64::from_ne_bytes(*head[at..at + 8].first_chunk().expect("the range is eight bytes long"))
                };
                let address = |at: usize| [half(at), half(at + 8)];
                let [src, dst] = [ipv6::field::SOURCE, ipv6::field::DESTINATION].map(|field| address(IP + field.start));
                Some(self.pair(src, dst))
            }
            _ => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn thorough(&self, frame: &[u8]) -> u32 {
        let parsed = packet::parse(LinkType::Ethernet, frame, frame.len());
        let pair = match parsed.body {
            Ok(Body::Ip(Ip { transport: Transport::Neighbour(_), .. }) | Body::Arp(_)) => None,
            Ok(Body::Ip(Ip { transport: Transport::IcmpError(Some(about)), .. })) => Some((about.src, about.dst)),
            Ok(Body::Ip(_)) | Err(_) => parsed.flow.map(|flow| (flow.src, flow.dst)),
        };
        pair.map_or(0, |(src, dst)| self.pair(halves(src), halves(dst)))
    }

    /// Hashes a session's addresses.
    fn of_session(&self, key: &Key) -> u32 {
        let [(src, _), (dst, _)] = key.endpoints(true);
        self.pair(halves(src), halves(dst))
    }

    pub(crate) fn worker_of_session(&self, key: &Key, workers: usize) -> usize {
        share(self.of_session(key), workers)
    }

    /// Returns the worker of packets between two addresses.
    pub(crate) fn worker_of_pair(&self, one: IpAddr, other: IpAddr, workers: usize) -> usize {
        share(self.pair(halves(one), halves(other)), workers)
    }

    /// Hashes a pair of addresses, given as two halves of eight bytes in memory order. An IPv4 address is in the first half.
    #[inline]
    fn pair(&self, one: [u64; 2], other: [u64; 2]) -> u32 {
        let [first, both, sum] = self.keys;
        let mixed = |[one, other]: [u64; 2]| {
            let mixed = one.wrapping_mul(first).wrapping_add(other).wrapping_mul(both);
            mixed ^ (mixed >> 32)
        };
        (mixed(one).wrapping_add(mixed(other)).wrapping_mul(sum) >> 32) as u32
    }
}

/// Maps a hash to a worker, from 0. The upper part of the product is as uniform as a remainder, and cheaper.
const fn share(number: u32, workers: usize) -> usize {
    ((number as u64 * workers as u64) >> 32) as usize
}

fn halves(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => [u64::from(u32::from_ne_bytes(address.octets())), 0],
        IpAddr::V6(address) => {
            let octets = address.octets();
            [0, 8].map(|at| u64::from_ne_bytes(*octets[at..].first_chunk().expect("half of sixteen bytes")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Probe, ProbeKind};
    use crate::testbed::*;

    fn frame(packet: &[u8]) -> Vec<u8> {
        ethernet(A_MAC, if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, packet)
    }

    const PAIRS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];

    #[test]
    fn all_packets_between_two_addresses_go_to_one_worker() {
        let affinity = Affinity::new();
        for (src, dst) in PAIRS {
            let first = affinity.of(&frame(&udp(src, dst, 53)));
            assert_ne!(first, 0);
            for kind in [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho] {
                for sport in [1, 40_000] {
                    let probe = Probe { sport, ..probe(kind, src, dst, 80) };
                    assert_eq!(affinity.of(&frame(&probe.request().unwrap())), first, "{kind:?}");
                    assert_eq!(affinity.of(&frame(&probe.reply().unwrap())), first, "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn fragments_and_errors_go_where_their_packets_go() {
        let affinity = Affinity::new();
        for (src, dst) in PAIRS {
            let packet = [udp(src, dst, 53), vec![0; 40]].concat();
            let expected = affinity.of(&frame(&packet));
            let parts = if src.contains(':') { fragments_v6(&packet, 7, 16) } else { fragments_v4(&packet, 7, 16) };
            assert!(parts.len() > 2);
            for part in parts {
                assert_eq!(affinity.of(&frame(&part)), expected);
            }
            let router = if src.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
            assert_eq!(affinity.of(&frame(&error_about(&udp(src, dst, 53), router, src))), expected);
        }
    }

    #[test]
    fn pairs_spread_over_workers_and_differently_in_every_process() {
        let (one, other) = (Affinity::new(), Affinity::new());
        let mut workers = [0u32; 4];
        let mut moved = 0;
        for host in 0..=255u8 {
            let frame = frame(&udp("10.0.0.1", &format!("10.0.1.{host}"), 53));
            workers[one.worker(&frame, 4)] += 1;
            moved += u32::from(one.worker(&frame, 4) != other.worker(&frame, 4));
        }
        assert!(workers.iter().all(|&count| count > 20), "{workers:?}");
        assert!(moved > 64, "{moved}");
    }

    #[test]
    fn what_is_not_ip_goes_to_the_first_worker() {
        let affinity = Affinity::new();
        let solicitation =
            v6("fd00::1", "ff02::1:ff00:2", 58, 255, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0xfd; 16]].concat());
        for frame in [
            vec![],
            vec![0; 14],
            ethernet(A_MAC, 0x0806, &[0; 28]),
            ethernet(A_MAC, 0x8100, &[0; 60]),
            frame(&solicitation),
        ] {
            assert_eq!(affinity.of(&frame), 0);
        }
    }
}
