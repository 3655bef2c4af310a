//! The rule: three sets, an action and where it came from.

use crate::{Action, Addresses, Key, PortRange, Services};

/// An opaque mark that the rule's author put on it and gets back with the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginId(pub u32);

/// One entry of an ordered list. It matches a key when all of its four fields do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source addresses.
    pub src: Addresses,
    /// Destination addresses.
    pub dst: Addresses,
    /// Source ports; [`PortRange::ALL`] where they do not matter, as in everything that Kubernetes NetworkPolicy can say.
    pub src_ports: PortRange,
    /// Protocols and destination ports.
    pub services: Services,
    /// What happens to a packet that matches.
    pub action: Action,
    /// Who wrote the rule.
    pub origin: OriginId,
}

impl Rule {
    /// A rule that matches every packet.
    pub const fn any(action: Action, origin: OriginId) -> Self {
        Self {
            src: Addresses::Any,
            dst: Addresses::Any,
            src_ports: PortRange::ALL,
            services: Services::Any,
            action,
            origin,
        }
    }

    /// Whether the rule matches the key.
    pub fn matches(&self, key: &Key) -> bool {
        self.src_ports.contains(key.src_port())
            && self.services.contains(key.protocol(), key.dst_port())
            && self.src.contains(key.src())
            && self.dst.contains(key.dst())
    }
}
