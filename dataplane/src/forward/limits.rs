//! Rate limits of the vswitch's own messages.
//!
//! An ICMP error must pass two buckets: one for its port, which bounds work and traffic, and one for its destination, which keeps one
//! destination from using up the port's rate. "Packet too big" has separate buckets, because connections hang if it is lost (RFC 2923
//! §2.1). A flood of packets with expired TTL must not suppress it.
//!
//! A keyed hash finds a destination's bucket in a table of fixed size. Two destinations may share a bucket, which costs them some errors.
//! The key is random and secret, so no host can choose with which destination it shares.

use std::net::IpAddr;

use ahash::RandomState;

use super::bucket::{Bucket, Rate};
use crate::PortId;

/// "Packet too big" errors per port. Linux does not limit them. A core writes a second's share in a millisecond, and the burst lets 1000
/// connections discover their MTU at once.
const TOO_BIG_PER_PORT: Rate = Rate { per_second: 2000, burst: 1000 };
/// "Packet too big" errors per destination. The burst lets 50 connections of one destination discover their MTU at once.
const TOO_BIG_PER_DESTINATION: Rate = Rate { per_second: 100, burst: 50 };
/// Other errors per port. Linux sends 1000 a second in total with a burst of 50 (`icmp_msgs_per_sec`).
const OTHERS_PER_PORT: Rate = Rate { per_second: 1000, burst: 100 };
/// Other errors per destination. Linux sends one a second with a burst of 6 (`icmp_ratelimit`), which makes parallel traceroutes lose hops.
const OTHERS_PER_DESTINATION: Rate = Rate { per_second: 10, burst: 10 };
/// Refusals per port: enough for a pod that tries a hundred denied services at once. This also bounds the policy lookups that refusals
/// need.
const REFUSALS_PER_PORT: Rate = Rate { per_second: 200, burst: 100 };
/// Notifications per port that no pod has an address. The burst tells all peers of a pod with 10,000 sessions at once, each of which takes
/// a notice and a reset. A core writes it in a few milliseconds. Then as many as Linux sends ICMP errors.
const UNREACHABLE_PER_PORT: Rate = Rate { per_second: 1000, burst: 20_000 };
/// Answered requests per port. Linux repeats a request after a second and asks for each address separately. The burst serves a host that
/// has just started and asks for 250 pods. More is a flood.
const ANSWERS_PER_PORT: Rate = Rate { per_second: 1000, burst: 256 };

/// Destination buckets per table: 8 KiB. With 100 destinations at a time, nine in ten have their own bucket.
const DESTINATIONS: usize = 1024;

/// Errors that share a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// Packet too big, fragmentation needed.
    TooBig,
    /// All other errors except refusals.
    Other,
}

/// The rate limits of one worker's messages.
#[derive(Debug)]
pub(super) struct Limits {
    ports: Vec<PortBuckets>,
    hasher: RandomState,
    too_big: Box<[Bucket; DESTINATIONS]>,
    others: Box<[Bucket; DESTINATIONS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PortBuckets {
    too_big: Bucket,
    others: Bucket,
    refusals: Bucket,
    unreachable: Bucket,
    answers: Bucket,
}

impl Limits {
    pub(super) fn new() -> Self {
        let none = || Box::new([Bucket::default(); DESTINATIONS]);
        Self { ports: Vec::new(), hasher: RandomState::new(), too_big: none(), others: none() }
    }

    /// Makes room for port ids below `ports`.
    pub(super) fn know_ports(&mut self, ports: usize) {
        if self.ports.len() < ports {
            self.ports.resize(ports, PortBuckets::default());
        }
    }

    /// Takes tokens for an ICMP error to the destination on the port. Returns false if a limit is reached. `now` is in nanoseconds.
    pub(super) fn allow_error(&mut self, class: ErrorClass, port: PortId, destination: IpAddr, now: u64) -> bool {
        let at = self.bucket_of(port, destination);
        let Some(buckets) = self.ports.get_mut(port.index()) else { return false };
        // From both or neither. Otherwise a destination would use up its port's tokens, and a flood from many sources would use up those of
        // all destinations.
        match class {
            ErrorClass::TooBig => Bucket::take_both(
                &mut self.too_big[at],
                TOO_BIG_PER_DESTINATION,
                &mut buckets.too_big,
                TOO_BIG_PER_PORT,
                now,
            ),
            ErrorClass::Other => Bucket::take_both(
                &mut self.others[at],
                OTHERS_PER_DESTINATION,
                &mut buckets.others,
                OTHERS_PER_PORT,
                now,
            ),
        }
    }

    /// Returns the index of a destination's bucket in its table.
    fn bucket_of(&self, port: PortId, destination: IpAddr) -> usize {
        (self.hasher.hash_one((port, destination)) >> 32) as usize % DESTINATIONS
    }

    /// Takes a token for a refusal on the port. Returns false if the limit is reached.
    pub(super) fn allow_refusal(&mut self, port: PortId, now: u64) -> bool {
        self.ports.get_mut(port.index()).is_some_and(|port| port.refusals.take(REFUSALS_PER_PORT, now))
    }

    /// Takes a token for a notification on the port that no pod has an address. Returns false if the limit is reached.
    pub(super) fn allow_unreachable(&mut self, port: PortId, now: u64) -> bool {
        self.ports.get_mut(port.index()).is_some_and(|port| port.unreachable.take(UNREACHABLE_PER_PORT, now))
    }

    /// Takes a token for an answer to ARP or neighbour discovery on the port. Returns false if the limit is reached.
    pub(super) fn allow_answer(&mut self, port: PortId, now: u64) -> bool {
        self.ports.get_mut(port.index()).is_some_and(|port| port.answers.take(ANSWERS_PER_PORT, now))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const NOW: u64 = 1_000_000_000_000;
    const PORT: PortId = PortId(1);

    fn begun() -> Limits {
        let mut limits = Limits::new();
        limits.know_ports(2);
        limits
    }

    fn address(n: u32) -> IpAddr {
        Ipv4Addr::from(n).into()
    }

    fn allowed(limits: &mut Limits, class: ErrorClass, port: PortId, to: impl Iterator<Item = u32>) -> usize {
        to.filter(|&n| limits.allow_error(class, port, address(n), NOW)).count()
    }

    #[test]
    fn one_destination_cannot_use_up_what_the_port_has_for_the_others() {
        let mut limits = begun();
        for (class, burst) in [(ErrorClass::Other, 10), (ErrorClass::TooBig, 50)] {
            assert_eq!(allowed(&mut limits, class, PORT, std::iter::repeat_n(1, 100_000)), burst);
            // Some destinations may share the first one's bucket.
            assert!(allowed(&mut limits, class, PORT, 2..52) >= 45);
        }
    }

    #[test]
    fn errors_about_ttl_do_not_silence_packet_too_big_on_the_same_port_or_to_the_same_destination() {
        let mut limits = begun();
        let burst = OTHERS_PER_PORT.burst as usize;
        assert_eq!(allowed(&mut limits, ErrorClass::Other, PORT, 0..1_000_000), burst);
        assert_eq!(allowed(&mut limits, ErrorClass::Other, PORT, std::iter::once(7)), 0);
        assert!(limits.allow_error(ErrorClass::TooBig, PORT, address(7), NOW));
    }

    #[test]
    fn many_destinations_together_are_bounded_by_their_port_and_ports_are_apart() {
        let mut limits = begun();
        for (class, rate) in [(ErrorClass::Other, OTHERS_PER_PORT), (ErrorClass::TooBig, TOO_BIG_PER_PORT)] {
            assert_eq!(allowed(&mut limits, class, PORT, 0..1_000_000), rate.burst as usize);
            assert!(allowed(&mut limits, class, PortId(0), 0..10) > 0);
            assert_eq!(allowed(&mut limits, class, PortId(2), 0..10), 0, "a port that is not known");
        }
    }

    #[test]
    fn where_destinations_share_a_bucket_differs_from_process_to_process() {
        let (one, other) = (begun(), begun());
        let at = |limits: &Limits, n| limits.bucket_of(PORT, address(n));
        let same = (0..10_000).filter(|&n| at(&one, n) == at(&other, n)).count();
        assert!(same < 100, "{same} of 10,000 in the same place");
    }

    #[test]
    fn refusals_and_answers_are_limited_per_port() {
        let mut limits = begun();
        let refusals = |limits: &mut Limits, port| (0..10_000).filter(|_| limits.allow_refusal(port, NOW)).count();
        assert_eq!((refusals(&mut limits, PORT), refusals(&mut limits, PortId(0))), (100, 100));
        let unreachable = (0..100_000).filter(|_| limits.allow_unreachable(PORT, NOW)).count();
        assert_eq!(unreachable, 20_000, "apart from refusals");
        let answers = |limits: &mut Limits, port| (0..10_000).filter(|_| limits.allow_answer(port, NOW)).count();
        assert_eq!((answers(&mut limits, PORT), answers(&mut limits, PortId(0))), (256, 256));
    }
}
