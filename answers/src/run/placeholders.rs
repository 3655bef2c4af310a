//! Addresses that represent domain names, for comparing states that do not have the names' addresses.
//!
//! Each pattern of a rule gets one address of each family, which matches the pattern's rules and rules about all addresses, and no others.
//! What a state allows for that address, it allows for an address that a pod has learned by the name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_classifier::AddressSet;
use bulkhead_control::cache::{Cache, Event};
use bulkhead_control::object::{IpBlock, Object, Peer, PolicyRule};
use bulkhead_control::pipeline::Pipeline;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::known_names::KnownNames;

/// The domain names by the addresses that represent them. Empty if no rule names domains.
#[derive(Clone, Debug, Default)]
pub struct Placeholders {
    names: BTreeMap<IpAddr, String>,
    /// Addresses that no narrower rule matches either, one of each family, and that represent no name.
    unnamed: Vec<IpAddr>,
}

impl Placeholders {
    /// Replaces the domain names in the rules of both states by addresses, which are the same in both.
    ///
    /// # Errors
    /// If a state does not compile.
    pub fn add_to(states: [&mut Pipeline; 2]) -> anyhow::Result<Self> {
        let patterns: BTreeSet<String> = states
            .iter()
            .flat_map(|state| egress(state.cache()))
            .flat_map(|rule| rule.names())
            .map(ToString::to_string)
            .collect();
        let mut placeholders = Self::default();
        if patterns.is_empty() {
            return Ok(placeholders);
        }
        let everything: AddressSet = [IpNet::from(Ipv4Net::default()), Ipv6Net::default().into()].into_iter().collect();
        let taken = states.iter().fold(AddressSet::default(), |all, state| all.union(&taken(state.cache())));
        let mut known = KnownNames::default();
        for free in widest(&everything.subtract(&taken)) {
            let mut free = free.into_iter();
            placeholders.unnamed.extend(free.next());
            for (pattern, address) in patterns.iter().zip(free) {
                known.insert(pattern, address);
                placeholders.names.insert(address, pattern.clone());
            }
        }
        for state in states {
            let policies = state.cache().cluster_policies().values();
            let named = policies.filter(|policy| policy.egress.iter().any(|rule| rule.traffic.has_names()));
            let resolved = named.map(|policy| known.resolve(Object::ClusterPolicy(policy.clone())));
            let events: Vec<Event> = resolved.map(Event::Apply).collect();
            state.apply_batch(events)?;
        }
        Ok(placeholders)
    }

    /// Returns all addresses that represent names.
    pub fn addresses(&self) -> AddressSet {
        self.names.keys().copied().collect()
    }

    /// Divides a set of addresses into names and addresses. Returns no names if the addresses include those that only rules about all
    /// addresses match.
    pub fn divide(&self, set: &AddressSet) -> (Vec<String>, AddressSet) {
        let rest = set.subtract(&self.addresses());
        let is_all = self.unnamed.iter().any(|&address| rest.contains(address));
        let names = self.names.iter().filter(|(address, _)| !is_all && set.contains(**address));
        (names.map(|(_, name)| format!("name {name}")).collect(), rest)
    }
}

fn egress(cache: &Cache) -> impl Iterator<Item = &PolicyRule> {
    cache.cluster_policies().values().flat_map(|policy| &policy.egress).map(|rule| &rule.traffic)
}

/// Returns the addresses of pods and nodes, and those that rules match by a block narrower than all addresses.
fn taken(cache: &Cache) -> AddressSet {
    let policies = cache.policies().values().flat_map(|policy| [&policy.ingress, &policy.egress]);
    let ingress = cache.cluster_policies().values().flat_map(|policy| &policy.ingress).map(|rule| &rule.traffic);
    let rules = policies.flatten().flatten().chain(ingress).chain(egress(cache));
    let blocks = rules.flat_map(|rule| rule.peers.iter().flatten()).filter_map(|peer| match peer {
        Peer::Block(IpBlock { cidr, except }) => Some(std::iter::once(cidr).chain(except)),
        Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
    });
    let blocks = blocks.flatten().copied().filter(|block| block.prefix_len() > 0);
    let pods = cache.pods().flat_map(|(_, pod)| pod.addresses.iter().copied());
    let nodes = cache.nodes().values().flat_map(|node| node.addresses.iter().copied());
    blocks.chain(pods.chain(nodes).map(IpNet::from)).collect()
}

/// Returns the second half of the widest interval of each family. Empty for a family without addresses.
fn widest(free: &AddressSet) -> [Vec<IpAddr>; 2] {
    /// Maximum number of addresses per family.
    const MOST: u32 = 1 << 16;
    let v4 = free.v4_intervals().iter().max_by_key(|(first, last)| last - first);
    let v6 = free.v6_intervals().iter().max_by_key(|(first, last)| last - first);
    let v4 = v4.into_iter().flat_map(|(first, last)| (first + (last - first) / 2..=*last).take(MOST as usize));
    let v6 = v6.into_iter().flat_map(|(first, last)| (first + (last - first) / 2..=*last).take(MOST as usize));
    [v4.map(|bits| IpAddr::V4(bits.into())).collect(), v6.map(|bits| IpAddr::V6(bits.into())).collect()]
}
