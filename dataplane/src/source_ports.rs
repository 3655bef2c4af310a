//! The source ports of masqueraded connections: ranges that are used in order, and the share of them that a pod gets.
//!
//! A connection needs a port that no other connection to the same destination has. Ports are tried at random, in one range after another: the range that
//! the node's own connections use too comes last, and is used only when the others are nearly used up for a destination.
//!
//! **Shares.** The ports that a search tries in vain are a sample of those in use for the destination. A pod that holds three quarters of the sample gets
//! no port of the last range, and one that holds a quarter gets none of that range's reserve ([`SourcePorts::leaves`]). This takes no counters.

use std::ops::RangeInclusive;

/// Ranges of source ports, in the order of use: one to [`MOST`](Self::MOST).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePorts {
    /// The ranges in the order of use, none of them empty.
    ranges: Vec<RangeInclusive<u16>>,
    /// Ports that no connection gets although a range contains them, because the node itself receives at them. Empty if there are none.
    without: Vec<u16>,
}

/// The ports that were tried in vain for one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    /// The number of ports that were tried.
    pub(crate) ports: u16,
    /// The number of these ports that connections of the same pod use. At most `ports`.
    pub(crate) own: u16,
}

/// Number of ports that are tried in a range before the next range, and in the last of several ranges before its reserve. With 95 of 100
/// ports in use, a search of this length finds a free one seven times in ten.
const FEW: u16 = 24;
/// Number of ports that are tried in the whole last or only range. With 94 of 100 ports in use, such as 26,500 of the default's last range,
/// a search of this length finds none once in ten million times.
const MANY: u16 = 256;

impl SourcePorts {
    /// Maximum number of ranges: the kernel's programs have room for as many.
    pub const MOST: usize = 3;

    /// Creates the source ports of these ranges. Returns `None` if there are no ranges or more than [`MOST`](Self::MOST), or if one is empty.
    pub fn new(ranges: Vec<RangeInclusive<u16>>) -> Option<Self> {
        let is_valid = (1..=Self::MOST).contains(&ranges.len()) && ranges.iter().all(|range| !range.is_empty());
        is_valid.then(|| Self { ranges, without: Vec::new() })
    }

    /// Returns the ranges in the order of use.
    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.ranges
    }

    /// Leaves out these ports, at which the node itself receives. A search that arrives at one of them tries the first port of the range
    /// instead, or the first one behind the last range's reserve. So those first ports should not be left out.
    #[must_use]
    pub fn without(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.without.extend(ports);
        self
    }

    /// Returns the maximum number of ports that are tried for a connection.
    pub(crate) fn tries(&self) -> u16 {
        self.few() + MANY
    }

    /// Returns the number of ports that are tried before the reserve of the last range: [`FEW`] per range. 0 for a single range, which has
    /// no reserve.
    fn few(&self) -> u16 {
        let ranges = u16::try_from(self.ranges.len()).unwrap_or_default();
        if ranges == 1 { 0 } else { ranges * FEW }
    }

    /// Whether a pod may try another port after those in `tried`. False if the last range is next and the pod uses at least three quarters
    /// of the tried ports, or if that range's reserve is next and the pod uses at least a quarter. Always true for a single range.
    pub(crate) fn leaves(&self, tried: Tried) -> bool {
        let quarters = match (self.few(), tried.ports) {
            (0, _) => return true,
            (few, ports) if ports == few => 1,
            (few, ports) if ports + FEW == few => 3,
            _ => return true,
        };
        tried.own * 4 < tried.ports * quarters
    }

    /// Returns the source port to try after `tried` others. The first one is the client's own port, `own`, if that is in the first range. The others come
    /// in an order that outsiders cannot predict. `secret` differs for each connection.
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
    /// 61,744 ports in three ranges, without node ports (30000 to 32767 by default). The first range, of 4,536 ports, is outside the kernel's range for
    /// the node's own connections (`net.ipv4.ip_local_port_range`, 32768 to 60999 by default), and servers seldom listen there. The last range is the
    /// kernel's.
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
