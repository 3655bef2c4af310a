//! Masquerading: pods' connections to external networks leave with the node's address, because those networks have no route to pods.
//!
//! **Purpose.** [`Masquerade`] decides which destinations are affected and which source addresses and ports are used.
//!
//! **Not its purpose.** It rewrites no packets. A masqueraded connection is a session with a rewrite, like one to a Service, except that
//! its destination stays (`worker/services.rs`).
//!
//! ```text
//!   pod:port > world --policy on these--> way out: uplink? --> world not among the kept? --> node:61000..65535 > world
//! ```
//!
//! **Invariant.** Where masquerading applies, no connection of a pod leaves with the pod's address. Packets that cannot be masqueraded are
//! dropped ([`DropReason::NotMasqueraded`](crate::DropReason::NotMasqueraded)).

use std::net::IpAddr;
use std::ops::RangeInclusive;

use bulkhead_classifier::AddressSet;
use ipnet::IpNet;

/// How connections of pods to external networks get an address and port of the node.
#[derive(Clone, Debug)]
pub struct Masquerade {
    /// The node's source addresses, at most one per address family.
    sources: Vec<IpAddr>,
    kept: AddressSet,
    ports: RangeInclusive<u16>,
}

impl Masquerade {
    /// Default source ports of masqueraded connections: 4,536 per destination address and port. They overlap neither with the kernel's
    /// local ports (`net.ipv4.ip_local_port_range`, 32768 to 60999 by default) nor with node ports of Services (30000 to 32767 by default).
    /// So a pod never receives an answer meant for the node.
    pub const PORTS: RangeInclusive<u16> = 61_000..=65_535;

    /// Creates the configuration. Of the sources, the first of each family is used. Connections to addresses in `kept` are not masqueraded.
    /// Source ports are taken from `ports`.
    pub fn new(
        sources: impl IntoIterator<Item = IpAddr>,
        kept: impl IntoIterator<Item = IpNet>,
        ports: RangeInclusive<u16>,
    ) -> Self {
        let mut own: Vec<IpAddr> = Vec::new();
        for source in sources {
            if own.iter().all(|other| other.is_ipv4() != source.is_ipv4()) {
                own.push(source);
            }
        }
        Self { sources: own, kept: kept.into_iter().collect(), ports }
    }

    /// Whether connections to this address are masqueraded if they leave the node.
    pub fn is_for(&self, destination: IpAddr) -> bool {
        !self.kept.contains(destination)
    }

    /// Returns the source address for connections to this destination. `None` if the node has no address of its family.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == destination.is_ipv4())
    }

    /// Returns the source addresses, at most one per family.
    pub fn sources(&self) -> &[IpAddr] {
        &self.sources
    }

    /// Returns the source ports.
    pub const fn ports(&self) -> &RangeInclusive<u16> {
        &self.ports
    }

    /// Returns a source port to try. The first attempt returns the client's own port if it is in the range. Later attempts return ports in
    /// an order that outsiders cannot predict. `secret` differs for each connection.
    pub(crate) fn port(&self, own: u16, secret: u64, tried: u16) -> u16 {
        /// An odd number whose multiples spread over all bits: 2^64 divided by the golden ratio.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        if tried == 0 && self.ports.contains(&own) {
            return own;
        }
        let (first, last) = (u64::from(*self.ports.start()), u64::from(*self.ports.end()));
        let random = (secret ^ u64::from(tried).wrapping_mul(SPREAD)).wrapping_mul(SPREAD) >> 32;
        let offset = (random * (last.saturating_sub(first) + 1)) >> 32;
        u16::try_from(first + offset).unwrap_or(*self.ports.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_address_of_each_family_counts_and_what_is_kept_is_not_masqueraded() {
        let sources = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(ip);
        let kept = ["10.0.0.0/8", "fd00::/8"].map(|block| block.parse().unwrap());
        let masquerade = Masquerade::new(sources, kept, Masquerade::PORTS);
        assert_eq!(masquerade.source_for(ip("8.8.8.8")), Some(ip("192.0.2.1")));
        assert_eq!(masquerade.source_for(ip("2001:4860::8")), Some(ip("2001:db8::1")));
        assert!(masquerade.is_for(ip("8.8.8.8")) && masquerade.is_for(ip("2001:4860::8")));
        assert!(!masquerade.is_for(ip("10.9.9.9")) && !masquerade.is_for(ip("fd01::1")));
        assert_eq!(Masquerade::new([], [], Masquerade::PORTS).source_for(ip("8.8.8.8")), None);
    }

    #[test]
    fn ports_are_of_the_range_the_clients_own_first_and_all_of_them_are_tried() {
        let masquerade = Masquerade::new([], [], 61_000..=61_015);
        assert_eq!(masquerade.port(61_007, 5, 0), 61_007);
        assert!(Masquerade::PORTS.contains(&Masquerade::new([], [], Masquerade::PORTS).port(40_000, 5, 0)));
        for secret in 0..1000 {
            let tried: BTreeSet<u16> =
                (0..200).map(|tried| masquerade.port(40_000, secret * 0x1234_5678_9abc, tried)).collect();
            assert!(tried.iter().all(|port| (61_000..=61_015).contains(port)));
            assert!(tried.len() >= 14, "{}", tried.len());
        }
        let only = Masquerade::new([], [], 65_535..=65_535);
        assert!((0..9).all(|tried| only.port(1, 7, tried) == 65_535));
    }
}
