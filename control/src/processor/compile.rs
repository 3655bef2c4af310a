//! Compiles a policy to matches that name the address book's sets.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::{NameSet, PortRange, Service, ServiceSet, Services};

use super::acquire::{Blocks, named_ports, places, regions};
use super::governing::{Governing, denies_quarantined};
use crate::book::{AddressBook, PortName};
use crate::contract::{Peers, SetId};
use crate::object::{
    ClusterRule, Isolation, Peer, PolicyName, PolicyPort, PolicyRule, PolicyVersion, Rank, RuleAction, Transport,
};
use crate::origin::Direction;

/// A policy with sets instead of selectors, and with numbers instead of port names, except names that depend on the selected pod (ingress).
/// Adding or removing pods does not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledPolicy {
    /// The policy's name.
    pub name: PolicyName,
    /// The API version, which decides whether the policy isolates the pods that it selects.
    pub version: PolicyVersion,
    /// The rank of a cluster policy. `None` for a NetworkPolicy.
    pub rank: Option<Rank>,
    /// The matches of the ingress rules, in the policy's order. `None` if the policy does not concern ingress.
    pub ingress: Option<Vec<Match>>,
    /// The matches of the egress rules, in the policy's order. `None` if the policy does not concern egress.
    pub egress: Option<Vec<Match>>,
    /// The directions in which a cluster policy isolates its pods. NetworkPolicies isolate by their version.
    pub isolates: Isolation,
    /// Whether the rules that deny come before all other rules of the tier.
    pub is_union: bool,
    /// Whether the policy is audited instead of enforced.
    pub is_audited: bool,
}

impl CompiledPolicy {
    /// Returns the matches of the policy's rules for a direction. `None` if the policy does not concern that direction.
    pub fn matches(&self, direction: Direction) -> Option<&[Match]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// A compiled part of a policy's rule: the traffic that it matches, and the rule's action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The rule's position in the policy's list.
    pub rule: usize,
    /// The rule's name. `None` for NetworkPolicies and unnamed rules.
    pub name: Option<Arc<str>>,
    /// The rule's action. Accept for NetworkPolicies.
    pub action: RuleAction,
    /// What else decides about traffic that the rule accepts. `None` if nothing does.
    pub then: Option<Arc<str>>,
    /// The other end: sources of ingress, destinations of egress.
    pub peers: Peers,
    /// Protocols and numeric ports.
    pub services: Services,
    /// Ports by name, which are looked up on the pod that the policy selects. Empty for egress.
    pub named: Vec<PortName>,
}

/// Compiles one policy: replaces its selectors by the address sets that [`acquire`](super::acquire::acquire) has created, and port names by numbers.
pub(super) struct Compiler<'a> {
    pub(super) book: &'a AddressBook,
    pub(super) blocks: &'a Blocks,
}

impl Compiler<'_> {
    pub(super) fn compile(&self, policy: &Governing, is_audited: bool) -> CompiledPolicy {
        match policy {
            Governing::Namespaced(policy) => {
                let matches = |rules: &Vec<PolicyRule>, direction| {
                    let rules = rules.iter().enumerate();
                    rules.flat_map(|(at, rule)| self.matches(direction, at, rule)).collect()
                };
                CompiledPolicy {
                    name: policy.name.clone(),
                    version: policy.version,
                    rank: None,
                    ingress: policy.ingress.as_ref().map(|rules| matches(rules, Direction::Ingress)),
                    egress: policy.egress.as_ref().map(|rules| matches(rules, Direction::Egress)),
                    isolates: Isolation::default(),
                    is_union: false,
                    is_audited,
                }
            }
            Governing::Cluster(policy) => CompiledPolicy {
                name: policy.rank.name.key(),
                version: PolicyVersion::V1,
                rank: Some(policy.rank.clone()),
                ingress: self.cluster_matches(Direction::Ingress, &policy.ingress, policy.isolates),
                egress: self.cluster_matches(Direction::Egress, &policy.egress, policy.isolates),
                isolates: policy.isolates,
                is_union: policy.is_union,
                is_audited,
            },
        }
    }

    /// Returns the matches of a cluster policy's rules. `None` if the policy has no rules and does not isolate: it does not concern the
    /// direction.
    fn cluster_matches(&self, direction: Direction, rules: &[ClusterRule], isolates: Isolation) -> Option<Vec<Match>> {
        let mut all = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let first = all.len();
            if denies_quarantined(rule) {
                all.push(self.quarantined(direction, at, rule));
            }
            let matches = self.matches(direction, at, &rule.traffic).into_iter();
            let (name, then) = (&rule.name, &rule.then);
            all.extend(matches.map(|entry| Match {
                name: name.clone(),
                action: rule.action,
                then: then.clone(),
                ..entry
            }));
            all[first..].iter_mut().for_each(|entry| entry.rule = rule.at.unwrap_or(at));
        }
        (!rules.is_empty() || isolates.of(direction)).then_some(all)
    }

    /// Returns the match that denies the rule's protocols and ports to quarantined addresses.
    fn quarantined(&self, direction: Direction, at: usize, rule: &ClusterRule) -> Match {
        let mut named = named_ports(&rule.traffic);
        let mut services = numbered_services(&rule.traffic);
        if direction == Direction::Egress && !named.is_empty() {
            // The pods at these addresses are unknown, so the name may map to any number.
            let all: ServiceSet = named.drain(..).map(|(transport, _)| transport.service(0, u16::MAX)).collect();
            services = match services {
                Services::Any => Services::Any,
                Services::Set(numbered) => numbered.union(&all).into(),
            };
        }
        let peers = Peers::Sets([self.book.quarantine()].into());
        Match { rule: at, name: rule.name.clone(), action: RuleAction::Deny, then: None, peers, services, named }
    }

    /// Returns one match for the rule's peers and, for egress, one for each number of a port name, with the destinations that use this
    /// number. Omits matches that match nothing.
    fn matches(&self, direction: Direction, at: usize, rule: &PolicyRule) -> Vec<Match> {
        let named = named_ports(rule);
        let services = numbered_services(rule);
        let (here, looked_up) = match direction {
            Direction::Ingress => (named, Vec::new()),
            Direction::Egress => (Vec::new(), named),
        };
        let mut matches = Vec::new();
        if !is_nothing(&services) || !here.is_empty() {
            let peers = self.peers(direction, at, rule);
            let of = |peers, services: &Services, named| Match {
                rule: at,
                name: None,
                action: RuleAction::Accept,
                then: None,
                peers,
                services: services.clone(),
                named,
            };
            // Named ports are ports of pods, so they add nothing for domain names.
            let by_name = domain_names(rule).map(|names| Peers::Names { names, within: None });
            let by_names = by_name.into_iter().chain(self.names_in_regions(rule));
            matches.extend(by_names.map(|peers| of(peers, &services, Vec::new())));
            if rule.peers.iter().flatten().any(|peer| *peer == Peer::OwnNode) {
                matches.push(of(Peers::OwnNode, &services, here.clone()));
            }
            matches.push(of(peers, &services, here));
        }
        for ((transport, number), sets) in self.destinations(rule, &looked_up) {
            let services = ServiceSet::from_iter([transport.service(number, number)]).into();
            let peers = named_sets(sets);
            matches.push(Match {
                rule: at,
                name: None,
                action: RuleAction::Accept,
                then: None,
                peers,
                services,
                named: Vec::new(),
            });
        }
        matches.retain(|entry| !matches!(&entry.peers, Peers::Sets(sets) if sets.is_empty()));
        matches
    }

    /// Returns the sets of the rule's peers, blocks first.
    fn peers(&self, direction: Direction, at: usize, rule: &PolicyRule) -> Peers {
        let Some(peers) = &rule.peers else { return Peers::Any };
        let blocks = self.blocks.0.get(&(direction, at)).map(|block| self.book.block(block));
        let groups = peers.iter().filter_map(|peer| match peer {
            Peer::Pods(peer) => Some(self.book.find(peer).set()),
            Peer::Nodes(selector) => Some(self.book.nodes(selector)),
            Peer::Region(region) if region.names().is_some() => None,
            Peer::Region(region) => Some(self.book.region(region)),
            Peer::Block(_) | Peer::OwnNode | Peer::Names(_) => None,
        });
        named_sets(blocks.into_iter().chain(groups))
    }

    /// Returns the peers of the rule's regions that have a condition on domain names.
    fn names_in_regions(&self, rule: &PolicyRule) -> impl Iterator<Item = Peers> {
        let regions = rule.peers.iter().flatten().filter_map(|peer| match peer {
            Peer::Region(region) => region.names(),
            _ => None,
        });
        regions.map(|(names, rest)| Peers::Names {
            names: names.iter().filter_map(|name| name.parse().ok()).collect(),
            within: Some([self.book.region(&Arc::new(rest))].into()),
        })
    }

    /// Returns the destinations of an egress rule's port names, by the number that the name maps to on each destination.
    fn destinations(&self, rule: &PolicyRule, names: &[PortName]) -> BTreeMap<(Transport, u16), Vec<SetId>> {
        let mut destinations: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for name in names {
            let mut take = |numbers: &mut dyn Iterator<Item = (u16, SetId)>| {
                for (number, set) in numbers {
                    destinations.entry((name.0, number)).or_default().push(set);
                }
            };
            for place in places(rule) {
                take(&mut self.book.named_anywhere(&place, name).numbers());
            }
            for region in regions(rule) {
                take(&mut self.book.named_in_region(region, name));
            }
            for peer in rule.peers.iter().flatten() {
                if let Peer::Pods(peer) = peer {
                    take(&mut self.book.find(peer).named(name).numbers());
                }
            }
        }
        destinations
    }
}

/// Returns the patterns of domain names among an egress rule's peers. `None` if no peer is a list of domain names.
fn domain_names(rule: &PolicyRule) -> Option<NameSet> {
    let names = rule.peers.iter().flatten().filter_map(|peer| match peer {
        Peer::Names(names) => Some(names),
        Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Block(_) | Peer::Region(_) => None,
    });
    let mut names = names.peekable();
    names.peek()?;
    Some(names.flat_map(|names| names.iter()).filter_map(|name| name.parse().ok()).collect())
}

/// Removes duplicates and keeps the order. The order depends on the policy; an order by identity would depend on events.
fn named_sets(sets: impl IntoIterator<Item = SetId>) -> Peers {
    let mut named: Vec<SetId> = Vec::new();
    for set in sets {
        if !named.contains(&set) {
            named.push(set);
        }
    }
    Peers::Sets(named.into())
}

fn is_nothing(services: &Services) -> bool {
    matches!(services, Services::Set(set) if set.is_empty())
}

/// Returns the protocols and ports that a rule names by number. All of them if the rule has no list of ports.
fn numbered_services(rule: &PolicyRule) -> Services {
    let Some(ports) = &rule.ports else { return Services::Any };
    let numbered = ports.iter().filter_map(|port| match port {
        PolicyPort::All(transport) => Some(transport.service(0, u16::MAX)),
        PolicyPort::Range { transport, first, last } => Some(transport.service(*first, *last)),
        PolicyPort::Numbers { protocols, first, last } => {
            Some(Service { protocols: *protocols, ports: PortRange { first: *first, last: *last } })
        }
        PolicyPort::Named { .. } => None,
    });
    numbered.collect::<ServiceSet>().into()
}
