//! The source ports of masqueraded connections: ranges that are used in order, and the share of them that a pod gets.
//!
//! A connection needs a port that no other connection to the same destination has. Ports are tried at random, in one range after another, so that the
//! ranges which the node's own connections use too are touched only when the others are nearly used up for a destination.
//!
//! **Shares.** What the tries in vain find is a sample of who holds the destination's ports. A pod that holds most of the sample gets no port of the last
//! range, and one that holds a quarter gets none of that range's reserve: [`SourcePorts::leaves`]. Nobody counts connections.

use std::ops::RangeInclusive;

/// Ranges of source ports, in the order of use: one to [`MOST`](Self::MOST).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePorts {
    ranges: Vec<RangeInclusive<u16>>,
    /// Ports that are not used.
    without: Vec<u16>,
}

/// The tries in vain for one connection: how many, and how many of the ports the same pod holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    pub(crate) ports: u16,
    pub(crate) own: u16,
}

/// Tries in a range that another one follows. With 95 of 100 ports in use, a free one is found seven times in ten.
const FEW: u16 = 24;
/// Tries in the last of several ranges, with its reserve, and in a single range. With 94 of 100 ports in use, as with 60,000 of the default's, none is found once in 10 million times.
const MANY: u16 = 256;

impl SourcePorts {
    /// Maximum number of ranges: the kernel's programs have room for as many.
    pub const MOST: usize = 3;

    /// Returns the ranges. `None` if there are none or more than [`MOST`](Self::MOST), or if one is empty.
    pub fn new(ranges: Vec<RangeInclusive<u16>>) -> Option<Self> {
        let is_valid = (1..=Self::MOST).contains(&ranges.len()) && ranges.iter().all(|range| !range.is_empty());
        is_valid.then(|| Self { ranges, without: Vec::new() })
    }

    /// Returns the ranges in the order of use.
    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.ranges
    }

    /// Leaves these ports out, which the node itself needs. The first port of a range, or behind its reserve, should not be one.
    #[must_use]
    pub fn without(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.without.extend(ports);
        self
    }

    /// Returns the number of tries for a connection.
    pub(crate) fn tries(&self) -> u16 {
        self.few() + MANY
    }

    /// Returns the number of tries before those in the whole last range: in each range but its reserve. 0 for a single range, which has no reserve.
    fn few(&self) -> u16 {
        let ranges = u16::try_from(self.ranges.len()).unwrap_or_default();
        if ranges == 1 { 0 } else { ranges * FEW }
    }

    /// Whether the pod may try the next port, after these tries in vain. False before the last range if the pod holds three quarters of the ports that
    /// were tried, and before its reserve if it holds a quarter. Always true for a single range.
    pub(crate) fn leaves(&self, tried: Tried) -> bool {
        let quarters = match (self.few(), tried.ports) {
            (0, _) => return true,
            (few, ports) if ports == few => 1,
            (few, ports) if ports + FEW == few => 3,
            _ => return true,
        };
        tried.own * 4 < tried.ports * quarters
    }

    /// Returns a source port to try. The first attempt returns the client's own port if it is in the first range. Later attempts return ports in
    /// an order that outsiders cannot predict. `secret` differs for each connection.
    pub(crate) fn port(&self, own: u16, secret: u64, tried: u16) -> u16 {
        /// An odd number whose multiples spread over all bits: 2^64 divided by the golden ratio.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let last = self.ranges.len() - 1;
        let at = usize::from(tried / FEW).min(last);
        let range = &self.ranges[at];
        // The lowest eighth of the last range.
        let has_reserve = at == last && tried < self.few();
        let reserve = if has_reserve { (range.end() - range.start()) / 8 } else { 0 };
        if tried == 0 && range.contains(&own) && !self.without.contains(&own) {
            return own;
        }
        let (first, last) = (u64::from(range.start() + reserve), u64::from(*range.end()));
        let random = (secret ^ u64::from(tried).wrapping_mul(SPREAD)).wrapping_mul(SPREAD) >> 32;
        let offset = (random * (last.saturating_sub(first) + 1)) >> 32;
        let port = u16::try_from(first + offset).unwrap_or(*range.end());
        if self.without.contains(&port) { range.start() + reserve } else { port }
    }
}

impl Default for SourcePorts {
    /// 61,744 ports. The first 4,536 overlap neither with the kernel's local ports (`net.ipv4.ip_local_port_range`, 32768 to 60999 by default) nor with
    /// node ports of Services (30000 to 32767 by default), nor do servers of nodes listen there. The kernel's own come last.
    fn default() -> Self {
        Self { ranges: vec![61_000..=65_535, 1_024..=29_999, 32_768..=60_999], without: Vec::new() }
    }
}

impl From<RangeInclusive<u16>> for SourcePorts {
    /// One range, which must not be empty.
    fn from(range: RangeInclusive<u16>) -> Self {
        Self { ranges: vec![range], without: Vec::new() }
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
    fn a_pod_with_most_of_the_ports_leaves_the_last_range_to_others() {
        let leaves = |ports, own| SourcePorts::default().leaves(Tried { ports, own });
        assert!(leaves(24, 24) && leaves(48, 35) && leaves(72, 17) && leaves(100, 100));
        assert!(!leaves(48, 36) && !leaves(72, 18));
        assert!(SourcePorts::from(1..=9).leaves(Tried { ports: 24, own: 24 }), "there is no next range");
    }
}
