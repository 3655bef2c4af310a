//! The rule: sets of addresses and services, an action, and its origin.

use crate::{Action, Addresses, Key, NameSet, PortRange, Services};

/// An opaque mark that the rule's author sets and gets back with the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginId(pub u32);

/// An entry of an ordered list. A rule matches a key if its addresses, source ports and services contain those of the key. A rule with
/// names also needs a destination with a matching name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source addresses.
    pub src: Addresses,
    /// Destination addresses.
    pub dst: Addresses,
    /// Source ports. [`PortRange::ALL`] for all rules of Kubernetes NetworkPolicy, which cannot restrict them.
    pub src_ports: PortRange,
    /// Protocols and destination ports.
    pub services: Services,
    /// Patterns of the destination's domain names. The rule matches only in [`Tables::lookup_name`](crate::Tables::lookup_name), if a
    /// pattern matches the given name. `None` if the rule matches whatever the destination's names.
    pub names: Option<NameSet>,
    /// Whether a matching packet is allowed or denied.
    pub action: Action,
    /// The origin that is reported with the rule's verdicts.
    pub origin: OriginId,
}

impl Rule {
    /// Returns a rule that matches every packet.
    pub const fn any(action: Action, origin: OriginId) -> Self {
        Self {
            src: Addresses::Any,
            dst: Addresses::Any,
            src_ports: PortRange::ALL,
            services: Services::Any,
            names: None,
            action,
            origin,
        }
    }

    /// Whether the rule matches the key of a destination without known names. False for a rule with [`names`](Self::names).
    pub fn matches(&self, key: &Key) -> bool {
        self.names.is_none() && self.matches_named(key)
    }

    /// Whether the rule matches the key, if one of the rule's patterns matches a name of the destination.
    pub(crate) fn matches_named(&self, key: &Key) -> bool {
        self.src_ports.contains(key.src_port())
            && self.services.contains(key.protocol(), key.dst_port())
            && self.src.contains(key.src())
            && self.dst.contains(key.dst())
    }
}
