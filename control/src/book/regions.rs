//! Sets that combine others: the addresses that several conditions have in common, without those of further conditions ([`Region`]).
//!
//! ```text
//!  groups, nodes, quarantined addresses --addresses that a batch moved--> contained now? --> SetDelta of the region
//! ```
//! A policy that uses a region also uses the sets that it consists of, so these exist as long as the region. Whether a region contains an
//! address depends only on which of these sets contain it. A batch therefore examines only addresses that moved in one of them. The port
//! names of a region's pods are sets in the same way: of all pods with one number of the name, those in the region.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::pending::{Moves, SetKey, Sweep, fresh};
use super::{AddressBook, Anywhere, PortName, addresses_of, named};
use crate::cache::Cache;
use crate::contract::{SetDelta, SetId};
use crate::object::{Peer, PolicyName, Region};

/// A region's set, with the port names that egress rules look up on its pods.
#[derive(Debug)]
pub(super) struct RegionSet {
    pub(super) users: BTreeSet<PolicyName>,
    pub(super) named: AHashMap<PortName, NamedInRegion>,
    derived: Derived,
}

/// The numbers of a port name on the pods of a region: those of the name on all pods.
#[derive(Debug, Default)]
pub(super) struct NamedInRegion {
    pub(super) users: BTreeSet<PolicyName>,
    numbers: BTreeMap<u16, Derived>,
}

/// A set that is computed from others.
#[derive(Debug)]
struct Derived {
    set: SetId,
    /// The members as of the last commit. Empty before the first.
    members: Arc<AddressSet>,
}

impl Derived {
    fn new(set: SetId) -> Self {
        Self { set, members: Arc::default() }
    }

    /// Examines these addresses again. Returns the change of the members.
    fn follow(&mut self, touched: &BTreeSet<IpAddr>, contains: impl Fn(IpAddr) -> bool) -> Option<SetDelta> {
        let moved = |is: bool| -> AddressSet {
            let moved = touched.iter().filter(|&&address| contains(address) == is);
            moved.filter(|&&address| self.members.contains(address) != is).copied().collect()
        };
        let (added, removed) = (moved(true), moved(false));
        if added.is_empty() && removed.is_empty() {
            return None;
        }
        self.members = Arc::new(self.members.subtract(&removed).union(&added));
        Some(SetDelta { set: self.set, added: Arc::new(added), removed: Arc::new(removed) })
    }

    fn replace(&mut self, members: AddressSet) {
        self.members = Arc::new(members);
    }
}

impl RegionSet {
    /// Returns the sets' keys and identities.
    pub(super) fn keys(&self, region: &Arc<Region>) -> Vec<(SetKey, SetId)> {
        let named = self.named.iter().flat_map(|(name, named)| {
            let key = |number| SetKey::NamedInRegion(region.clone(), name.clone(), number);
            named.numbers.iter().map(move |(&number, derived)| (key(number), derived.set))
        });
        std::iter::once((SetKey::Region(region.clone()), self.derived.set)).chain(named).collect()
    }

    /// Drops the sets without users, and those of numbers that no pod has: `has` returns whether a pod has a number of a name. Returns
    /// whether a policy uses the region.
    pub(super) fn sweep(&mut self, has: impl Fn(&PortName, u16) -> bool, sweep: &mut Sweep<'_>) -> bool {
        let in_use = !self.users.is_empty();
        self.named.retain(|name, NamedInRegion { users, numbers }| {
            let is_named = in_use && !users.is_empty();
            numbers.retain(|&number, derived| {
                let stays = is_named && has(name, number);
                if !stays {
                    sweep.drop_set(derived.set);
                    sweep.pending.renumbered.extend(users.iter().cloned());
                }
                stays
            });
            is_named
        });
        if !in_use {
            sweep.drop_set(self.derived.set);
        }
        in_use
    }
}

impl AddressBook {
    /// Returns the set of a region. Panics if no policy uses the region.
    pub(crate) fn region(&self, region: &Arc<Region>) -> SetId {
        self.regions.get(region).expect("a policy's regions are made before it is compiled").derived.set
    }

    /// Returns the numbers that a port name has on any pod, each with the set of the region's addresses that have it. Panics if no policy
    /// uses the name in the region.
    pub(crate) fn named_in_region(&self, region: &Arc<Region>, name: &PortName) -> impl Iterator<Item = (u16, SetId)> {
        let named = self.regions.get(region).and_then(|region| region.named.get(name));
        let named = named.expect("a policy that uses a port name keeps it alive");
        named.numbers.iter().map(|(&number, derived)| (number, derived.set))
    }

    /// Registers `user` as a user of a region. The user already uses the groups, nodes and quarantined addresses of the region.
    pub(crate) fn acquire_region(&mut self, region: &Arc<Region>, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let known = self.regions.entry(region.clone()).or_insert_with(|| RegionSet {
            users: BTreeSet::new(),
            named: AHashMap::new(),
            derived: Derived::new(fresh(identities, pending, &SetKey::Region(region.clone()))),
        });
        known.users.insert(user.clone());
    }

    /// Registers `user` as a user of a port name on the pods of a region that it already uses, as it uses the name on all pods.
    pub(crate) fn acquire_named_in_region(&mut self, region: &Arc<Region>, name: &PortName, user: &PolicyName) {
        let known = self.regions.get_mut(region).expect("a policy that uses a region keeps it alive");
        // The commit makes the numbers' sets.
        known.named.entry(name.clone()).or_default().users.insert(user.clone());
    }

    /// Computes the regions' sets after a batch. Returns the changes of those that are not new.
    pub(super) fn follow_regions(&mut self, cache: &Cache) -> Vec<SetDelta> {
        if self.regions.is_empty() {
            return Vec::new();
        }
        let mut regions = std::mem::take(&mut self.regions);
        let mut deltas = Vec::new();
        let mut of_pods = OfPods::new();
        for (region, known) in &mut regions {
            let mut touched = self.touched(region);
            if self.pending.fresh.contains(&known.derived.set) {
                known.derived.replace(self.members_of_region(cache, region, &mut of_pods));
            } else {
                deltas.extend(known.derived.follow(&touched, |address| self.is_in_region(cache, region, address)));
            }
            for (name, named) in &mut known.named {
                let numbers: Vec<(u16, SetId)> = self.named_anywhere(&Anywhere::Everybody, name).numbers().collect();
                for (number, base) in numbers {
                    let key = SetKey::NamedInRegion(region.clone(), name.clone(), number);
                    let (identities, pending) = (&mut self.identities, &mut self.pending);
                    let derived = named.numbers.entry(number).or_insert_with(|| {
                        pending.renumbered.extend(named.users.iter().cloned());
                        Derived::new(fresh(identities, pending, &key))
                    });
                    let within = &known.derived.members;
                    if self.pending.fresh.contains(&derived.set) {
                        derived.replace(declaring(cache, name, number).intersect(within));
                        continue;
                    }
                    touched.extend(self.moved(base));
                    let has = |address| {
                        let mut pods = cache.pods_at(address).filter(|(_, pod)| pod.is_endpoint());
                        within.contains(address) && pods.any(|(_, pod)| named::declares(pod, name, number))
                    };
                    deltas.extend(derived.follow(&touched, has));
                }
            }
        }
        self.regions = regions;
        deltas
    }

    /// Returns the members of these regions' sets as of the last [`Self::follow_regions`].
    pub(super) fn region_sets(&self) -> impl Iterator<Item = (SetId, &Arc<AddressSet>)> {
        self.regions.values().flat_map(|known| {
            let named = known.named.values().flat_map(|named| named.numbers.values());
            named.chain([&known.derived]).map(|derived| (derived.set, &derived.members))
        })
    }

    /// Returns all sets of regions with their members, computed from the cache.
    #[cfg(test)]
    pub(super) fn regions_again(&self, cache: &Cache) -> Vec<(SetId, AddressSet)> {
        let mut all = Vec::new();
        for (region, known) in &self.regions {
            let members = self.members_of_region(cache, region, &mut OfPods::new());
            for (name, named) in &known.named {
                for (&number, derived) in &named.numbers {
                    all.push((derived.set, declaring(cache, name, number).intersect(&members)));
                }
            }
            all.push((known.derived.set, members));
        }
        all
    }

    /// Returns the addresses that this batch moved in one of the sets that a region consists of.
    fn touched(&self, region: &Region) -> BTreeSet<IpAddr> {
        let of_peers = region.peers().filter_map(|peer| match peer {
            Peer::Pods(peer) => Some(self.find(peer).set),
            Peer::Nodes(selector) => Some(self.nodes(selector)),
            Peer::Block(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
        });
        let quarantine = region.excludes_pods().then(|| self.quarantine());
        of_peers.chain(quarantine).flat_map(|set| self.moved(set)).collect()
    }

    /// Returns the addresses that this batch moved in a set.
    fn moved(&self, set: SetId) -> impl Iterator<Item = IpAddr> + '_ {
        let moves = self.pending.moves.get(&set);
        moves.into_iter().flat_map(|Moves { added, removed }| added.iter().chain(removed)).copied()
    }

    fn is_in_region(&self, cache: &Cache, region: &Region, address: IpAddr) -> bool {
        let is_of = |peer: &Peer| match peer {
            Peer::Pods(peer) => {
                let group = self.find(peer);
                cache.pods_at(address).any(|(key, _)| group.members.contains(&key))
            }
            Peer::Nodes(selector) => self.nodes.get(selector).is_some_and(|nodes| nodes.addresses.contains(&address)),
            Peer::Block(block) => {
                block.cidr.contains(&address) && !block.except.iter().any(|except| except.contains(&address))
            }
            Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => false,
        };
        region.all.iter().all(|union| union.iter().any(is_of))
            && !region.none.iter().any(is_of)
            && !(region.excludes_pods() && cache.quarantined().contains(&address))
    }

    /// Returns the addresses of a region. An address that several pods claim may be an excluded pod's, so it is not among them. Many regions
    /// lack all pods: `of_pods` keeps the addresses of pods for the next region of the batch.
    fn members_of_region(&self, cache: &Cache, region: &Region, of_pods: &mut OfPods) -> AddressSet {
        let mut union = |peers: &[Peer]| -> AddressSet {
            let sets = peers.iter().map(|peer| match peer {
                Peer::Pods(peer) => {
                    let group = self.find(peer);
                    let addresses = || {
                        let pods = group.members.iter().filter_map(|&key| cache.pod(key));
                        pods.flat_map(|pod| pod.addresses.iter().copied()).collect()
                    };
                    of_pods.entry(group.set).or_insert_with(addresses).clone()
                }
                Peer::Nodes(selector) => {
                    let nodes = self.nodes.get(selector);
                    nodes.into_iter().flat_map(|nodes| nodes.addresses.iter().copied()).collect()
                }
                Peer::Block(block) => addresses_of(block),
                Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => AddressSet::default(),
            });
            sets.fold(AddressSet::default(), |all, set| all.union(&set))
        };
        let everything: AddressSet =
            [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())].into_iter().collect();
        let common = region.all.iter().fold(everything, |common, peers| common.intersect(&union(peers)));
        let mut without = union(&region.none);
        if region.excludes_pods() {
            without = without.union(&cache.quarantined().iter().copied().collect());
        }
        common.subtract(&without)
    }
}

/// The addresses of the groups of pods that regions of one batch consist of, by the groups' sets.
type OfPods = AHashMap<SetId, AddressSet>;

/// Returns the addresses of the endpoints that declare a port name with this number.
fn declaring(cache: &Cache, name: &PortName, number: u16) -> AddressSet {
    let endpoints = cache.pods().map(|(_, pod)| pod).filter(|pod| pod.is_endpoint());
    let declaring = endpoints.filter(|pod| named::declares(pod, name, number));
    declaring.flat_map(|pod| pod.addresses.iter().copied()).collect()
}
