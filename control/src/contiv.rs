//! The two intermediate forms that carry Contiv's names: the policy resolved to addresses, and the rule.
//!
//! A Contiv rule was a 6-tuple. Here a rule is a product of an address set and a service set, and the 6-tuples are
//! derived when someone wants to see them ([`six_tuples`]): Contiv's own stress policy (1,000 blocks with 5 excepts and
//! 20 ports) is 487,000 tuples a direction, but 24,300 blocks and 20 ports as sets.

use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::{Action, Addresses, OriginId, PortRange, Rule, Service, Services, protocol};
use ipnet::IpNet;

use crate::object::{PolicyName, PolicyVersion, Transport};

/// A policy with selectors resolved to addresses and port names to numbers, as far as they do not depend on the pod
/// that the policy is applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContivPolicy {
    /// The policy.
    pub name: PolicyName,
    /// What selecting a pod means.
    pub version: PolicyVersion,
    /// What may come in; none when the policy does not concern ingress.
    pub ingress: Option<Vec<ContivMatch>>,
    /// What may go out; none when the policy does not isolate egress.
    pub egress: Option<Vec<ContivMatch>>,
}

/// Traffic that a policy's rule allows: these peers and these services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContivMatch {
    /// The rule's position in the policy's list.
    pub rule: usize,
    /// The other end: sources of ingress, destinations of egress.
    pub peers: Addresses,
    /// Protocols and ports by number.
    pub services: Services,
    /// Ports by name, to be looked up on the pod that the policy selects (ingress only).
    pub named: Vec<(Transport, Arc<str>)>,
}

/// One rule of a pod: what happens to traffic with these peers to these services.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContivRule {
    /// The other end.
    pub peers: Addresses,
    /// Protocols and destination ports.
    pub services: Services,
    /// Allow or deny. NetworkPolicy makes only allows before the last rule; ordered tiers may put denies among them.
    pub action: Action,
    /// Which policy's rule this is.
    pub origin: OriginId,
}

/// A pod's rules for one direction, in order; the first that matches decides. The last one matches everything.
#[derive(Debug, PartialEq, Eq)]
pub struct RuleList {
    /// Distinguishes this list from every other list that ever was.
    pub revision: u64,
    /// The rules.
    pub rules: Vec<ContivRule>,
}

/// One line of Contiv's rule tables: (source, destination, protocol, destination port, action), source port any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SixTuple {
    /// Source network, none for any of both families.
    pub src: Option<IpNet>,
    /// Destination network, none for any of both families.
    pub dst: Option<IpNet>,
    /// Protocol and destination ports, none for any.
    pub service: Option<Service>,
    /// Allow or deny.
    pub action: Action,
}

impl fmt::Display for SixTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = |net: &Option<IpNet>| net.map_or_else(|| "any".into(), |net| net.to_string());
        let service = self.service.map_or_else(|| "any".into(), |service| service.to_string());
        write!(f, "{:<5} {} -> {} {service}", self.action.to_string(), network(&self.src), network(&self.dst))
    }
}

/// The 6-tuples that a rule stands for: every source prefix with every destination prefix and every service.
pub fn six_tuples(rule: &Rule) -> impl Iterator<Item = SixTuple> + '_ {
    let action = rule.action;
    prefixes(&rule.src).flat_map(move |src| {
        prefixes(&rule.dst)
            .flat_map(move |dst| services(&rule.services).map(move |service| SixTuple { src, dst, service, action }))
    })
}

fn prefixes(addresses: &Addresses) -> Box<dyn Iterator<Item = Option<IpNet>> + '_> {
    match addresses {
        Addresses::Any => Box::new(std::iter::once(None)),
        Addresses::Set(set) => Box::new(set.prefixes().map(Some)),
    }
}

fn services(services: &Services) -> Box<dyn Iterator<Item = Option<Service>> + '_> {
    match services {
        Services::Any => Box::new(std::iter::once(None)),
        Services::Set(set) => Box::new(set.services().map(Some)),
    }
}

/// The service of a transport protocol and a range of its ports.
pub(crate) fn service(transport: Transport, first: u16, last: u16) -> Service {
    let number = transport.number();
    debug_assert!(matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP));
    Service { protocols: (number, number), ports: PortRange { first, last } }
}
