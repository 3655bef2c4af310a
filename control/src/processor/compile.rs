//! From a policy to matches in addresses and numbers, with the sets that the groups keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashSet;
use bulkhead_classifier::{AddressSet, Addresses, ServiceSet, Services};

use super::Work;
use crate::cache::Cache;
use crate::contiv::{ContivMatch, ContivPolicy, service};
use crate::group::{Anywhere, Groups, Named, PortName, Use, addresses_of};
use crate::object::{Peer, Policy, PolicyPort, PolicyRule, Transport};
use crate::origin::Direction;
use crate::parts::join;

/// Lets a policy use the groups and port names that it is compiled from, which are made where nobody used them yet.
pub(super) fn acquire(groups: &mut Groups, cache: &Cache, policy: &Policy, work: &mut Work) -> AHashSet<Use> {
    let user = &policy.name;
    let mut uses = AHashSet::new();
    for (direction, _, rule) in rules(policy) {
        let named = if direction == Direction::Egress { named_ports(rule) } else { Vec::new() };
        for peer in rule.peers.iter().flatten() {
            if let Peer::Pods(peer) = peer {
                let id = groups.acquire(cache, peer, user, work);
                uses.insert(Use::Group(id));
                for name in &named {
                    groups.acquire_named(cache, id, name, user, work);
                    uses.insert(Use::NamedIn(id, name.clone()));
                }
            }
        }
        for name in &named {
            for place in places(rule) {
                groups.acquire_anywhere(cache, &place, name, user, work);
                uses.insert(Use::NamedAnywhere(place, name.clone()));
            }
        }
    }
    uses
}

/// The address blocks of a policy's rules, which no event changes.
#[derive(Debug)]
pub(super) struct Blocks(BTreeMap<(Direction, usize), Arc<AddressSet>>);

impl Blocks {
    pub(super) fn of(policy: &Policy) -> Self {
        let blocks = |rule: &PolicyRule| -> Option<Arc<AddressSet>> {
            let sets = rule.peers.iter().flatten().filter_map(|peer| match peer {
                Peer::Pods(_) => None,
                Peer::Block(block) => Some(addresses_of(block)),
            });
            sets.reduce(|all, set| all.union(&set)).map(Arc::new)
        };
        Self(rules(policy).filter_map(|(direction, at, rule)| Some(((direction, at), blocks(rule)?))).collect())
    }
}

/// Compiles a policy from what is in use.
pub(super) struct Compiler<'a> {
    groups: &'a Groups,
    blocks: &'a Blocks,
    work: &'a mut Work,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(groups: &'a Groups, blocks: &'a Blocks, work: &'a mut Work) -> Self {
        Self { groups, blocks, work }
    }

    pub(super) fn compile(&mut self, policy: &Policy) -> ContivPolicy {
        self.work.policies += 1;
        let mut matches = |rules: &Vec<PolicyRule>, direction| {
            let rules = rules.iter().enumerate();
            rules.flat_map(|(at, rule)| self.matches(direction, at, rule)).collect::<Vec<_>>()
        };
        ContivPolicy {
            name: policy.name.clone(),
            version: policy.version,
            ingress: policy.ingress.as_ref().map(|rules| matches(rules, Direction::Ingress)),
            egress: policy.egress.as_ref().map(|rules| matches(rules, Direction::Egress)),
        }
    }

    /// One match for each set of peers; for egress, also one for each set of destinations on which a port name stands
    /// for the same number. What can match nothing, whatever pod it is applied to, is left out.
    fn matches(&mut self, direction: Direction, at: usize, rule: &PolicyRule) -> Vec<ContivMatch> {
        let named = named_ports(rule);
        let services = numbered_services(rule);
        let (here, looked_up) = match direction {
            Direction::Ingress => (named, Vec::new()),
            Direction::Egress => (Vec::new(), named),
        };
        let mut matches = Vec::new();
        if !is_nothing(&services) || !here.is_empty() {
            let peers = self.peers(direction, at, rule);
            let entry = |peers| ContivMatch { rule: at, peers, services: services.clone(), named: here.clone() };
            matches.extend(peers.into_iter().map(entry));
        }
        for ((transport, number), sets) in self.destinations(rule, &looked_up) {
            let services: Services = ServiceSet::from_iter([service(transport, number, number)]).into();
            let entry = |set| ContivMatch {
                rule: at,
                peers: Addresses::Set(set),
                services: services.clone(),
                named: Vec::new(),
            };
            matches.extend(join(sets, self.work).into_iter().map(entry));
        }
        matches
    }

    /// The addresses of a rule's peers, as sets none of which is empty.
    fn peers(&mut self, direction: Direction, at: usize, rule: &PolicyRule) -> Vec<Addresses> {
        let Some(peers) = &rule.peers else { return vec![Addresses::Any] };
        let mut sets: Vec<_> = self.blocks.0.get(&(direction, at)).cloned().into_iter().collect();
        for peer in peers {
            if let Peer::Pods(peer) = peer {
                sets.extend(self.groups.get(self.groups.find(peer)).addresses().sets().cloned());
            }
        }
        join(sets, self.work).into_iter().map(Addresses::Set).collect()
    }

    /// The destinations of an egress rule's port names, by the number that the name has on each.
    fn destinations(&self, rule: &PolicyRule, names: &[PortName]) -> BTreeMap<(Transport, u16), Vec<Arc<AddressSet>>> {
        let mut destinations: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for name in names {
            let mut take = |named: &Named| {
                for (number, parts) in named.numbers() {
                    destinations.entry((name.0, number)).or_default().extend(parts.sets().cloned());
                }
            };
            for place in places(rule) {
                take(self.groups.named_anywhere(&place, name));
            }
            for peer in rule.peers.iter().flatten() {
                if let Peer::Pods(peer) = peer {
                    take(self.groups.get(self.groups.find(peer)).named(name));
                }
            }
        }
        destinations
    }
}

fn is_nothing(services: &Services) -> bool {
    matches!(services, Services::Set(set) if set.is_empty())
}

/// All rules with their direction and position.
fn rules(policy: &Policy) -> impl Iterator<Item = (Direction, usize, &PolicyRule)> {
    let ingress = policy.ingress.iter().flatten().enumerate().map(|(at, rule)| (Direction::Ingress, at, rule));
    let egress = policy.egress.iter().flatten().enumerate().map(|(at, rule)| (Direction::Egress, at, rule));
    ingress.chain(egress)
}

/// Where an egress rule's port names are looked up on pods that no selector of the rule names.
fn places(rule: &PolicyRule) -> Vec<Anywhere> {
    let Some(peers) = &rule.peers else { return vec![Anywhere::Everybody] };
    let block = |peer: &Peer| match peer {
        Peer::Pods(_) => None,
        Peer::Block(block) => Some(Anywhere::Block(block.clone())),
    };
    peers.iter().filter_map(block).collect()
}

fn named_ports(rule: &PolicyRule) -> Vec<PortName> {
    let ports = rule.ports.iter().flatten();
    ports
        .filter_map(|port| match port {
            PolicyPort::Named { transport, name } => Some((*transport, name.clone())),
            PolicyPort::All(_) | PolicyPort::Range { .. } => None,
        })
        .collect()
}

/// The services that a rule names by number; everything when it names no ports at all.
fn numbered_services(rule: &PolicyRule) -> Services {
    let Some(ports) = &rule.ports else { return Services::Any };
    let numbered = ports.iter().filter_map(|port| match port {
        PolicyPort::All(transport) => Some(service(*transport, 0, u16::MAX)),
        PolicyPort::Range { transport, first, last } => Some(service(*transport, *first, *last)),
        PolicyPort::Named { .. } => None,
    });
    numbered.collect::<ServiceSet>().into()
}
