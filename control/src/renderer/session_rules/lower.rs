//! Lowers session rules to a list for the classifier, the form in which Bulkhead looks up its own session table.
//!
//! Of all matching rules, a stack with session rules applies the most specific one. Rules with equal prefix lengths and the same ports
//! cover different connections, so the first match of a list sorted by specificity gives the same verdict. Rules that differ only in the
//! remote network become one rule with a set of addresses.
//!
//! ```text
//!  1. session rules, most specific first          TCP and UDP, ports 1 to 65535
//!  2. an allow: a stack without a matching rule   the same
//!  3. 6-tuples in their order                     what has no sessions: other protocols, and port 0
//! ```
//! Session rules cannot express the third part. It comes from the tables that the session rules were encoded from, so that a pod gets
//! exactly what its policies allow.
//!
//! **Origins.** Session rules have no origin. So a rule of the list is divided into parts: one for each policy rule with the same action,
//! in the order of the policy rules. The verdict is already decided, so the parts do not change it. Between two pods of the node, a deny
//! names the first end that denies. If the pair has rules of its own, an allow names the receiver's rule.
//!
//! **Rejected alternative.** A lookup structure for session rules in the dataplane, with longest prefix match and a hash of ports. It would
//! be another engine to verify, without the classifier's bursts, bounds and deltas.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{
    Action, AddressSet, Addresses, OriginId, PortRange, Rule, Service, ServiceSet, Services, protocol,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{SessionMatch, SessionRule, SessionScope, SessionTransport};
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::contiv::tuple::{SixTuple, action_key, service_key};
use crate::renderer::plain::{PlainList, PlainPod, PlainRule};

/// The ports that session rules cover.
const PORTS: PortRange = PortRange { first: 1, last: u16::MAX };

/// The node's pods, to find the origins of rules.
pub(super) struct Ends<'a> {
    owners: BTreeMap<IpAddr, &'a PlainPod>,
    own_node: Arc<AddressSet>,
}

impl<'a> Ends<'a> {
    pub(super) fn new(pods: &'a BTreeMap<PodName, Arc<PlainPod>>, node_addresses: &[IpAddr]) -> Self {
        let owned = |pod: &'a Arc<PlainPod>| pod.addresses.iter().map(move |&address| (address, &**pod));
        Self {
            owners: pods.values().flat_map(owned).collect(),
            own_node: Arc::new(node_addresses.iter().copied().collect()),
        }
    }

    /// Converts a group of rules for a pod's outgoing traffic to table rules, each with its origin.
    pub(super) fn local(&self, pod: &PlainPod, group: &Group, networks: &[IpNet]) -> Vec<Rule> {
        let mut list = Vec::new();
        let mut others = Vec::with_capacity(networks.len());
        for network in networks {
            let host = (network.prefix_len() == network.max_prefix_len()).then(|| network.addr());
            match host.map(|host| (host, self.owners.get(&host))) {
                Some((host, _)) if pod.addresses.contains(&host) => {
                    list.push(group.rule(Addresses::Any, Addresses::prefix(*network), None, Origins::OWN_POD));
                }
                Some((host, Some(PlainPod { ingress: Some(ingress), .. }))) => {
                    list.extend(self.pair(group, pod, host, ingress));
                }
                _ => others.push(*network),
            }
        }
        if others.is_empty() && !networks.is_empty() {
            return list;
        }
        let remote = addresses(&others);
        for Part { peers, services, origin } in self.parts(group, pod.egress.as_deref(), Direction::Egress, &remote) {
            list.push(group.rule(Addresses::Any, peers, Some(services), origin));
        }
        list
    }

    /// Converts a group of rules for traffic that enters the node to table rules, each with its origin.
    pub(super) fn global(&self, group: &Group, networks: &[IpNet]) -> Vec<Rule> {
        let pod = group.local.and_then(|network| self.owners.get(&network.addr()));
        let ingress = pod.and_then(|pod| pod.ingress.as_deref());
        let local = group.local.map_or(Addresses::Any, Addresses::prefix);
        let parts = self.parts(group, ingress, Direction::Ingress, &addresses(networks));
        let rule = |Part { peers, services, origin }| group.rule(peers, local.clone(), Some(services), origin);
        parts.into_iter().map(rule).collect()
    }

    /// Divides a group by the rules of the list behind it.
    fn parts(&self, group: &Group, list: Option<&PlainList>, direction: Direction, remote: &Addresses) -> Vec<Part> {
        let services = group.services();
        let whole = |origin| Part { peers: remote.clone(), services: services.clone(), origin };
        let Some(list) = list else { return vec![whole(Origins::not_isolated(direction))] };
        let mut parts = Vec::new();
        for (at, rule) in list.rules.iter().enumerate() {
            let own = list.own_node.iter().filter(|own| own.before == at && own.rule.action == group.action);
            for PlainRule { peers, services: of, origin, .. } in own.filter_map(|own| own.on(&self.own_node)) {
                if let (Some(peers), Some(services)) = (meet(remote, &peers), common(&services, &of)) {
                    parts.push(Part { peers, services, origin });
                }
            }
            if rule.action != group.action {
                continue;
            }
            let Some(peers) = meet(remote, &rule.peers) else { continue };
            let Some(common) = common(&services, &rule.services) else { continue };
            let is_all = peers == *remote && common == services;
            parts.push(Part { peers, services: common, origin: rule.origin });
            if is_all {
                return parts;
            }
        }
        // No traffic reaches this part. It keeps the group's verdict complete.
        let last = parts.last().map_or_else(|| Origins::not_isolated(direction), |part| part.origin);
        parts.push(whole(last));
        parts
    }

    /// Returns the rules for one address of another local pod, whose ingress list also applies.
    fn pair(&self, group: &Group, pod: &PlainPod, host: IpAddr, ingress: &PlainList) -> Vec<Rule> {
        let services = group.services();
        let own: Vec<IpAddr> = pod.addresses.iter().copied().filter(|own| own.is_ipv4() == host.is_ipv4()).collect();
        let dst = Addresses::prefix(host.into());
        let mut list = Vec::new();
        let theirs = |within: &Services, list: &mut Vec<Rule>| {
            for &address in &own {
                let src = if own.len() == 1 { Addresses::Any } else { Addresses::prefix(address.into()) };
                for (services, origin) in deciding(ingress, group.action, address, within) {
                    list.push(group.rule(src.clone(), dst.clone(), Some(services), origin));
                }
            }
        };
        match &pod.egress {
            Some(egress) if group.action == Action::Deny => {
                for rule in egress.rules.iter().filter(|rule| rule.peers.contains(host)) {
                    let Some(common) = common(&services, &rule.services) else { continue };
                    let is_all = common == services;
                    match rule.action {
                        Action::Deny => list.push(group.rule(Addresses::Any, dst.clone(), Some(common), rule.origin)),
                        // This end allows, so the other end denies.
                        Action::Allow => theirs(&common, &mut list),
                    }
                    if is_all {
                        break;
                    }
                }
            }
            _ => theirs(&services, &mut list),
        }
        // As above: no traffic reaches this rule.
        let last = list.last().map_or_else(|| Origins::not_isolated(Direction::Ingress), |rule| rule.origin);
        list.push(group.rule(Addresses::Any, dst, None, last));
        list
    }
}

/// Returns the rules of a list with this action that match the peer, in order.
fn deciding(list: &PlainList, action: Action, peer: IpAddr, within: &Services) -> Vec<(Services, OriginId)> {
    let mut deciding = Vec::new();
    for rule in list.rules.iter().filter(|rule| rule.action == action && rule.peers.contains(peer)) {
        let Some(common) = common(within, &rule.services) else { continue };
        let is_all = common == *within;
        deciding.push((common, rule.origin));
        if is_all {
            break;
        }
    }
    deciding
}

/// The part of a group with one origin.
struct Part {
    peers: Addresses,
    services: Services,
    origin: OriginId,
}

/// Rules that differ only in the remote network. Groups are evaluated in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    section: Section,
    remote_length: Length,
    local_length: Length,
    /// The sort key of the protocol and ports: fewer ports first.
    ports: (u16, u8, u8, u16, u16),
    is_allow: bool,
    pub(super) local: Option<IpNet>,
    service: Option<Service>,
    action: Action,
}

/// The sections of the list (see the module).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Sessions,
    Default,
    Tuples,
}

/// The sort key of a network: longer prefixes first, no network last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Length(bool, Reverse<u8>);

impl Length {
    fn of(network: Option<IpNet>) -> Self {
        Self(network.is_none(), Reverse(network.map_or(0, |network| network.prefix_len())))
    }
}

impl Group {
    fn new(
        section: Section,
        (local, remote): (Option<IpNet>, Option<IpNet>),
        service: Option<Service>,
        action: Action,
    ) -> Self {
        Self {
            section,
            remote_length: Length::of(remote),
            local_length: Length::of(local),
            ports: service_key(service),
            is_allow: action_key(action),
            local,
            service,
            action,
        }
    }

    fn services(&self) -> Services {
        self.service.map_or(Services::Any, |service| ServiceSet::from_iter([service]).into())
    }

    /// Returns a rule of the group, for these protocols and ports. `None` for all of the group's.
    fn rule(&self, src: Addresses, dst: Addresses, services: Option<Services>, origin: OriginId) -> Rule {
        let services = services.unwrap_or_else(|| self.services());
        Rule { src, dst, services, ..Rule::any(self.action, origin) }
    }
}

impl Group {
    pub(super) fn of_session(scope: SessionScope, SessionRule { matches, action }: &SessionRule) -> Self {
        let SessionMatch { transport, local, remote, .. } = matches;
        let is_global = scope == SessionScope::Global;
        let port = if is_global { local.port } else { remote.port };
        let ports = if port == 0 { PORTS } else { PortRange::one(port) };
        let here = is_global.then_some(local.network);
        Self::new(Section::Sessions, (here, Some(remote.network)), Some(of(*transport, ports)), *action)
    }

    /// Returns the groups of connections that no session rule matches. A stack allows these.
    pub(super) fn defaults() -> [Self; 2] {
        SessionTransport::ALL
            .map(|transport| Self::new(Section::Default, (None, None), Some(of(transport, PORTS)), Action::Allow))
    }

    /// Returns the group of a 6-tuple in this scope, and the tuple's remote network. `None` if session rules express the tuple completely.
    pub(super) fn of_tuple(scope: SessionScope, tuple: &SixTuple) -> Option<(Self, Option<IpNet>)> {
        if is_of_sessions(tuple.service) {
            return None;
        }
        let &SixTuple { src, dst, service, action } = tuple;
        let (here, there) = if scope == SessionScope::Global { (dst, src) } else { (src, dst) };
        Some((Self::new(Section::Tuples, (here, there), service, action), there))
    }
}

const fn of(transport: SessionTransport, ports: PortRange) -> Service {
    Service { protocols: (transport.number(), transport.number()), ports }
}

/// Whether session rules can express the protocols and ports completely.
fn is_of_sessions(service: Option<Service>) -> bool {
    service.is_some_and(|Service { protocols, ports }| {
        [(protocol::TCP, protocol::TCP), (protocol::UDP, protocol::UDP)].contains(&protocols) && ports.first > 0
    })
}

/// Returns the addresses of these networks. Any address if the slice is empty.
fn addresses(networks: &[IpNet]) -> Addresses {
    let [v4, v6] = [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
    let set = AddressSet::from_iter(networks.iter().copied());
    if networks.is_empty() || set == AddressSet::from_iter([v4, v6]) { Addresses::Any } else { set.into() }
}

/// Returns the intersection. `None` if it is empty.
fn meet(one: &Addresses, other: &Addresses) -> Option<Addresses> {
    match (one.members(), other.members()) {
        (_, None) => Some(one.clone()),
        (None, Some(set)) => (!set.is_empty()).then(|| other.clone()),
        (Some(a), Some(b)) => {
            let both = a.intersect(b);
            if both == *a {
                return Some(one.clone());
            }
            (!both.is_empty()).then(|| both.into())
        }
    }
}

/// Returns the intersection. `None` if it is empty.
fn common(one: &Services, other: &Services) -> Option<Services> {
    match one.intersect(other) {
        Services::Set(set) if set.is_empty() => None,
        both => Some(both),
    }
}
