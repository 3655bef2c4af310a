//! Masquerading: pods' connections to external networks leave with the node's address, because those networks have no route to pods.
//!
//! **Purpose.** [`Masquerade`] decides which destinations are affected and which source addresses and ports are used.
//!
//! **Not its purpose.** It rewrites no packets. A masqueraded connection is a session with a rewrite, like one to a Service, except that
//! its destination stays (`worker/services.rs`).
//!
//! ```text
//!   pod:port > world --policy on these--> way out: uplink? --> world not among the kept? --> node:port > world
//! ```
//!
//! **Invariant.** Where masquerading applies, no connection of a pod leaves with the pod's address. Packets that cannot be masqueraded are
//! dropped ([`DropReason::NotMasqueraded`](crate::DropReason::NotMasqueraded)).

use std::net::IpAddr;

use bulkhead_classifier::AddressSet;
use ipnet::IpNet;

use crate::SourcePorts;

/// How connections of pods to external networks get an address and port of the node.
#[derive(Clone, Debug)]
pub struct Masquerade {
    /// The node's source addresses, at most one per address family.
    sources: Vec<IpAddr>,
    kept: AddressSet,
    ports: SourcePorts,
}

impl Masquerade {
    /// Creates the configuration. Of the sources, the first of each family is used. Connections to addresses in `kept` are not masqueraded.
    /// Source ports are taken from `ports`.
    pub fn new(
        sources: impl IntoIterator<Item = IpAddr>,
        kept: impl IntoIterator<Item = IpNet>,
        ports: impl Into<SourcePorts>,
    ) -> Self {
        let mut own: Vec<IpAddr> = Vec::new();
        for source in sources {
            if own.iter().all(|other| other.is_ipv4() != source.is_ipv4()) {
                own.push(source);
            }
        }
        Self { sources: own, kept: kept.into_iter().collect(), ports: ports.into() }
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
    pub const fn ports(&self) -> &SourcePorts {
        &self.ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_address_of_each_family_counts_and_what_is_kept_is_not_masqueraded() {
        let sources = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(ip);
        let kept = ["10.0.0.0/8", "fd00::/8"].map(|block| block.parse().unwrap());
        let masquerade = Masquerade::new(sources, kept, SourcePorts::default());
        assert_eq!(masquerade.source_for(ip("8.8.8.8")), Some(ip("192.0.2.1")));
        assert_eq!(masquerade.source_for(ip("2001:4860::8")), Some(ip("2001:db8::1")));
        assert!(masquerade.is_for(ip("8.8.8.8")) && masquerade.is_for(ip("2001:4860::8")));
        assert!(!masquerade.is_for(ip("10.9.9.9")) && !masquerade.is_for(ip("fd01::1")));
        assert_eq!(Masquerade::new([], [], SourcePorts::default()).source_for(ip("8.8.8.8")), None);
    }
}
