//! The source ports of masqueraded connections: ranges that are used in order, and the share of them that a pod gets.
//!
//! A connection needs a port that no other connection to the same destination has. Ports are tried at random, in one range after another, so that the
//! ranges which the node's own connections use too are touched only when the others are nearly used up for a destination.
//!
//! **Shares.** What the tries in vain find is a sample of who holds the destination's ports. A pod that holds most of the sample gets no port of the next
//! range: [`SourcePorts::leaves`]. So a pod with many connections leaves ports to others, and nobody counts connections.

use std::ops::RangeInclusive;

/// Ranges of source ports, in the order of use: one to [`MOST`](Self::MOST).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePorts(Vec<RangeInclusive<u16>>);

/// The tries in vain for one connection: how many, and how many of the ports the same pod holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    pub(crate) ports: u16,
    pub(crate) own: u16,
}

/// Tries in a range that another one follows. With 95 of 100 ports in use, a free one is found seven times in ten.
const FEW: u16 = 24;
/// Tries before the third range.
const TWICE: u16 = 2 * FEW;
/// Tries in the last range. With 94 of 100 ports in use, as with 60,000 of the default's, none is found once in 10 million times.
const MANY: u16 = 256;

impl SourcePorts {
    /// Maximum number of ranges: the kernel's programs have room for as many.
    pub const MOST: usize = 3;

    /// Returns the ranges. `None` if there are none or more than [`MOST`](Self::MOST), or if one is empty.
    pub fn new(ranges: Vec<RangeInclusive<u16>>) -> Option<Self> {
        let is_valid = (1..=Self::MOST).contains(&ranges.len()) && ranges.iter().all(|range| !range.is_empty());
        is_valid.then_some(Self(ranges))
    }

    /// Returns the ranges in the order of use.
    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.0
    }

    /// Returns the number of tries for a connection.
    pub(crate) fn tries(&self) -> u16 {
        u16::try_from(self.0.len() - 1).unwrap_or_default() * FEW + MANY
    }

    /// Whether the pod may try the next port, after these tries in vain. False if it is of another range than the one before, and the pod holds three
    /// quarters of the ports that were tried, or a quarter before the third range.
    pub(crate) const fn leaves(&self, tried: Tried) -> bool {
        let most = match tried.ports {
            FEW if self.0.len() > 1 => FEW / 4 * 3,
            TWICE if self.0.len() > 2 => FEW / 2,
            _ => return true,
        };
        tried.own < most
    }

    /// Returns a source port to try. The first attempt returns the client's own port if it is in the first range. Later attempts return ports in
    /// an order that outsiders cannot predict. `secret` differs for each connection.
    pub(crate) fn port(&self, own: u16, secret: u64, tried: u16) -> u16 {
        /// An odd number whose multiples spread over all bits: 2^64 divided by the golden ratio.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let at = usize::from(tried / FEW).min(self.0.len() - 1);
        let range = &self.0[at];
        if tried == 0 && range.contains(&own) {
            return own;
        }
        let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
        let random = (secret ^ u64::from(tried).wrapping_mul(SPREAD)).wrapping_mul(SPREAD) >> 32;
        let offset = (random * (last.saturating_sub(first) + 1)) >> 32;
        u16::try_from(first + offset).unwrap_or(*range.end())
    }
}

impl Default for SourcePorts {
    /// 61,744 ports. The first 4,536 overlap neither with the kernel's local ports (`net.ipv4.ip_local_port_range`, 32768 to 60999 by default) nor with
    /// node ports of Services (30000 to 32767 by default), nor do servers of nodes listen there. The kernel's own come last.
    fn default() -> Self {
        Self(vec![61_000..=65_535, 1_024..=29_999, 32_768..=60_999])
    }
}

impl From<RangeInclusive<u16>> for SourcePorts {
    /// One range, which must not be empty.
    fn from(range: RangeInclusive<u16>) -> Self {
        Self(vec![range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_of_the_range_the_clients_own_first_and_all_of_them_are_tried() {
        let ports = SourcePorts::from(61_000..=61_015);
        assert_eq!(ports.port(61_007, 5, 0), 61_007);
        for secret in 0..1000 {
            let tried: BTreeSet<u16> =
                (0..ports.tries()).map(|tried| ports.port(40_000, secret * 0x1234_5678_9abc, tried)).collect();
            assert!(tried.iter().all(|port| (61_000..=61_015).contains(port)));
            assert!(tried.len() >= 14, "{}", tried.len());
        }
        let only = SourcePorts::from(65_535..=65_535);
        assert!((0..9).all(|tried| only.port(1, 7, tried) == 65_535));
    }

    #[test]
    fn ranges_are_tried_in_order_and_node_ports_are_in_none() {
        let ports = SourcePorts::default();
        assert_eq!(ports.ranges().iter().map(ExactSizeIterator::len).sum::<usize>(), 61_744);
        for secret in 0..1000 {
            let at = |tried| ports.port(40_000, secret * 0x1234_5678_9abc, tried);
            for (range, tries) in ports.ranges().iter().zip([0..FEW, FEW..2 * FEW, 2 * FEW..ports.tries()]) {
                assert!(tries.into_iter().all(|tried| range.contains(&at(tried))));
            }
        }
        assert_eq!(SourcePorts::new(vec![1..=2; 4]), None);
        assert_eq!(SourcePorts::new(vec![]), None);
    }

    #[test]
    fn a_pod_with_most_of_the_ports_leaves_the_next_range_to_others() {
        let leaves = |ports, own| SourcePorts::default().leaves(Tried { ports, own });
        assert!(leaves(23, 23) && leaves(24, 17) && leaves(48, 11) && leaves(100, 100));
        assert!(!leaves(24, 18) && !leaves(48, 12));
        assert!(SourcePorts::from(1..=9).leaves(Tried { ports: 24, own: 24 }), "there is no next range");
    }
}
