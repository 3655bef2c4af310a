//! The address book: the address sets that rules name, their member pods, and the changes since the last commit.
//!
//! ```text
//!  policies --acquire, release--> groups of pods, port names on pods, blocks --each has one or more sets--> SetId
//!  changed pods, namespaces ----> members enter and leave --commit--> SetDelta: addresses added and removed
//! ```
//! A set exists while a policy that selects a local pod names it. A pod event costs work only for the sets that the pod enters or leaves.
//! With a member list per policy, as in Contiv, each pod event would visit all policies. The book stores members by pod; the cache stores
//! their addresses. An address leaves a set with the last member that has it. A commit omits changes that were reverted since the last one.
//!
//! The nodes that a rule selects form one set of addresses, and so do the quarantined addresses ([`nodes`]).
//!
//! The numbers of an egress rule's port names are kept per group, or per cluster for rules without pod selectors ([`Named`]). Each number
//! of a name has its own set.

mod candidates;
mod commit;
mod named;
mod nodes;
mod pending;
mod port_name;
mod regions;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use self::candidates::Candidates;
pub(crate) use self::commit::CommittedSets;
pub(crate) use self::named::Named;
use self::nodes::Told;
use self::pending::{Identities, Pending, SetKey, fresh};
pub(crate) use self::port_name::{Anywhere, PortName};
use self::regions::RegionSet;
use crate::cache::{Cache, PodKey, passes_filter, scope_covers};
use crate::contract::SetId;
use crate::object::{IpBlock, Namespace, Pod, PodPeer, PolicyName, Region};
use crate::selector::Selector;
use crate::work::Work;

/// The index of a [`Group`] in the address book. A later group may reuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupId(usize);

/// The endpoints that one peer selects.
#[derive(Debug)]
pub(crate) struct Group {
    peer: PodPeer,
    set: SetId,
    users: BTreeSet<PolicyName>,
    members: BTreeSet<PodKey>,
    /// The port names that egress rules look up on the group's pods.
    named: AHashMap<PortName, Named>,
}

impl Group {
    /// Returns the set that holds the addresses of the group's pods.
    pub(crate) fn set(&self) -> SetId {
        self.set
    }

    /// Returns the numbers that a port name has on the group's pods. Panics if no policy uses the name.
    pub(crate) fn named(&self, name: &PortName) -> &Named {
        self.named.get(name).expect("a policy that uses a port name keeps it alive")
    }
}

/// A set of fixed addresses, which no event changes.
#[derive(Debug)]
struct Block {
    set: SetId,
    users: BTreeSet<PolicyName>,
}

/// A part of the book that a policy uses. The book keeps the part up to date until the policy releases it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    Group(GroupId),
    /// The numbers of a port name on a group's pods.
    NamedIn(GroupId, PortName),
    /// The numbers of a port name on any pod.
    NamedAnywhere(Anywhere, PortName),
    Block(Arc<AddressSet>),
    /// The addresses of the nodes that a selector matches.
    Nodes(Selector),
    Quarantine,
    Region(Arc<Region>),
    /// The numbers of a port name on the pods of a region.
    NamedInRegion(Arc<Region>, PortName),
}

/// The address sets that policies' rules name, with the policies that use each, and the changes since the last commit.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    by_peer: AHashMap<PodPeer, GroupId>,
    groups: Vec<Option<Group>>,
    free: Vec<GroupId>,
    candidates: Candidates,
    anywhere: AHashMap<PortName, AHashMap<Anywhere, Named>>,
    blocks: AHashMap<Arc<AddressSet>, Block>,
    nodes: AHashMap<Selector, Told>,
    quarantine: Option<Told>,
    regions: AHashMap<Arc<Region>, RegionSet>,
    identities: Identities,
    pending: Pending,
}

impl AddressBook {
    /// Returns an empty book that gives sets of the same meaning the same identities as this one.
    pub(crate) fn start_over(&mut self) -> Self {
        let mut before = AHashMap::new();
        for group in self.groups.iter().flatten() {
            before.insert(SetKey::Group(group.peer.clone()), group.set);
            for (name, named) in &group.named {
                let key = |number| SetKey::NamedIn(group.peer.clone(), name.clone(), number);
                before.extend(named.numbers().map(|(number, set)| (key(number), set)));
            }
        }
        for (name, places) in &self.anywhere {
            for (place, named) in places {
                let key = |number| SetKey::NamedAnywhere(place.clone(), name.clone(), number);
                before.extend(named.numbers().map(|(number, set)| (key(number), set)));
            }
        }
        before.extend(self.nodes.iter().map(|(selector, nodes)| (SetKey::Nodes(selector.clone()), nodes.set)));
        before.extend(self.quarantine.iter().map(|quarantine| (SetKey::Quarantine, quarantine.set)));
        before.extend(self.blocks.iter().map(|(block, Block { set, .. })| (SetKey::Block(block.clone()), *set)));
        before.extend(self.regions.iter().flat_map(|(region, known)| known.keys(region)));
        Self { identities: Identities { given: self.identities.given, before }, ..Self::default() }
    }

    /// Returns the number of groups, port names, blocks and node selectors in use.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let anywhere: usize = self.anywhere.values().map(|places| places.len()).sum();
        self.by_peer.len() + anywhere + self.blocks.len() + self.nodes.len() + self.regions.len()
    }

    /// Returns the group with this index. Panics if it does not exist.
    pub(crate) fn get(&self, id: GroupId) -> &Group {
        self.groups[id.0].as_ref().expect("a policy that uses a group keeps it alive")
    }

    /// Returns the group of a peer. Panics if no policy uses the peer.
    pub(crate) fn find(&self, peer: &PodPeer) -> &Group {
        self.get(*self.by_peer.get(peer).expect("a policy's groups are made before it is compiled"))
    }

    /// Returns the numbers of a port name on any pod. Panics if no policy uses the name.
    pub(crate) fn named_anywhere(&self, place: &Anywhere, name: &PortName) -> &Named {
        let named = self.anywhere.get(name).and_then(|places| places.get(place));
        named.expect("a policy that uses a port name keeps it alive")
    }

    /// Returns the set that holds exactly these fixed addresses. Panics if no policy uses them.
    pub(crate) fn block(&self, addresses: &AddressSet) -> SetId {
        self.blocks.get(addresses).expect("a policy's blocks are made before it is compiled").set
    }

    /// Returns the number of pods that a used part names. 0 for a port name in a group, whose pods count with the group.
    pub(crate) fn pods_named_by(&self, used: &Use) -> usize {
        match used {
            Use::Group(id) => self.get(*id).members.len(),
            Use::NamedAnywhere(place, name) => self.named_anywhere(place, name).pods(),
            Use::NamedIn(..) | Use::Block(_) | Use::Nodes(_) | Use::Quarantine => 0,
            // The region's groups count.
            Use::Region(_) | Use::NamedInRegion(..) => 0,
        }
    }

    /// Registers `user` as a user of the peer's group, which is created if necessary.
    pub(crate) fn acquire(&mut self, cache: &Cache, peer: &PodPeer, user: &PolicyName, work: &mut Work) -> GroupId {
        let id = match self.by_peer.get(peer) {
            Some(&id) => id,
            None => self.add(cache, peer.clone(), work),
        };
        self.groups[id.0].as_mut().expect("indexed groups are there").users.insert(user.clone());
        id
    }

    /// Registers `user` as a user of a port name on the pods of a group that it already uses.
    pub(crate) fn acquire_named(
        &mut self,
        cache: &Cache,
        id: GroupId,
        name: &PortName,
        user: &PolicyName,
        work: &mut Work,
    ) {
        let group = self.groups[id.0].as_mut().expect("a policy that uses a group keeps it alive");
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let named = group.named.entry(name.clone()).or_insert_with(|| {
            let pods = group.members.iter().filter_map(|&key| cache.pod(key)).inspect(|_| work.pods += 1);
            let key = |number| SetKey::NamedIn(group.peer.clone(), name.clone(), number);
            Named::new(None, name, pods.map(|pod| &**pod), |number| fresh(identities, pending, &key(number)))
        });
        named.users.insert(user.clone());
    }

    /// Registers `user` as a user of a port name on any pod.
    pub(crate) fn acquire_anywhere(
        &mut self,
        cache: &Cache,
        place: &Anywhere,
        name: &PortName,
        user: &PolicyName,
        work: &mut Work,
    ) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let places = self.anywhere.entry(name.clone()).or_default();
        let named = places.entry(place.clone()).or_insert_with(|| {
            let pods = cache.pods().map(|(_, pod)| &**pod).filter(|pod| pod.is_endpoint());
            let key = |number| SetKey::NamedAnywhere(place.clone(), name.clone(), number);
            let pods = pods.inspect(|_| work.pods += 1);
            Named::new(place.bounds(), name, pods, |number| fresh(identities, pending, &key(number)))
        });
        named.users.insert(user.clone());
    }

    /// Registers `user` as a user of fixed addresses.
    pub(crate) fn acquire_block(&mut self, addresses: &Arc<AddressSet>, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let block = self.blocks.entry(addresses.clone()).or_insert_with(|| Block {
            set: fresh(identities, pending, &SetKey::Block(addresses.clone())),
            users: BTreeSet::new(),
        });
        block.users.insert(user.clone());
    }

    fn add(&mut self, cache: &Cache, peer: PodPeer, work: &mut Work) -> GroupId {
        let members = cache.pods_of_peer(&peer);
        work.pods += members.len() as u64;
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            GroupId(self.groups.len() - 1)
        });
        self.candidates.insert(&peer, id);
        self.by_peer.insert(peer.clone(), id);
        let set = fresh(&mut self.identities, &mut self.pending, &SetKey::Group(peer.clone()));
        self.groups[id.0] = Some(Group { peer, set, users: BTreeSet::new(), members, named: AHashMap::new() });
        id
    }

    /// Removes `user` from the users of a part of the book. The next commit removes parts without users.
    pub(crate) fn release(&mut self, used: &Use, user: &PolicyName) {
        let users = match used {
            Use::Group(id) => self.groups[id.0].as_mut().map(|group| &mut group.users),
            Use::NamedIn(id, name) => {
                let group = self.groups[id.0].as_mut();
                group.and_then(|group| group.named.get_mut(name)).map(|named| &mut named.users)
            }
            Use::NamedAnywhere(place, name) => {
                self.anywhere.get_mut(name).and_then(|places| places.get_mut(place)).map(|named| &mut named.users)
            }
            Use::Nodes(selector) => self.nodes.get_mut(selector).map(|nodes| &mut nodes.users),
            Use::Quarantine => self.quarantine.as_mut().map(|quarantine| &mut quarantine.users),
            Use::Block(addresses) => self.blocks.get_mut(addresses).map(|block| &mut block.users),
            Use::Region(region) => self.regions.get_mut(region).map(|region| &mut region.users),
            Use::NamedInRegion(region, name) => {
                let region = self.regions.get_mut(region);
                region.and_then(|region| region.named.get_mut(name)).map(|named| &mut named.users)
            }
        };
        if let Some(users) = users {
            users.remove(user);
            self.pending.idle |= users.is_empty();
        }
    }

    /// Updates all sets that contain or should contain a changed pod.
    pub(crate) fn pod_changed(
        &mut self,
        cache: &Cache,
        key: PodKey,
        old: Option<&Pod>,
        new: Option<&Pod>,
        work: &mut Work,
    ) {
        let Some(namespace) = new.or(old).map(|pod| &pod.name.namespace) else { return };
        work.pods += 1;
        let same_shape = old.map(shape) == new.map(shape);
        let object = cache.namespaces().get(namespace).map(|namespace| &**namespace);
        let labels = object.map(|namespace| &namespace.labels);
        for id in self.candidates.of_pod(namespace, [old, new].into_iter().flatten().map(|pod| &pod.labels)) {
            let group = self.groups[id.0].as_mut().expect("indexed groups are there");
            let was = group.members.contains(&key);
            let is = new.is_some_and(|pod| {
                pod.is_endpoint()
                    && group.peer.pods.matches(&pod.labels)
                    && scope_covers(&group.peer.namespaces, namespace, labels)
                    && passes_filter(&group.peer, pod, object)
            });
            if (was || is) && !(was && is && same_shape) {
                let (old, new) = (old.filter(|_| was), new.filter(|_| is));
                group.move_pod(cache, key, old, new, &mut self.identities, &mut self.pending);
            }
        }
        let endpoint = |pod: Option<&Pod>| pod.is_some_and(Pod::is_endpoint);
        if !(same_shape && endpoint(old) == endpoint(new)) {
            self.move_anywhere(cache, key, old.filter(|pod| pod.is_endpoint()), new.filter(|pod| pod.is_endpoint()));
        }
    }

    /// Updates the port names of any pod for a changed pod.
    fn move_anywhere(&mut self, cache: &Cache, key: PodKey, old: Option<&Pod>, new: Option<&Pod>) {
        let ports = old.into_iter().chain(new).flat_map(|pod| &pod.ports);
        let names: BTreeSet<PortName> = ports.map(|port| (port.transport, port.name.clone())).collect();
        for name in names {
            for (place, named) in self.anywhere.get_mut(&name).into_iter().flatten() {
                let key_of = |number| SetKey::NamedAnywhere(place.clone(), name.clone(), number);
                let others = |address, number| {
                    let mut pods = cache.pods_at(address).filter(|(other, pod)| *other != key && pod.is_endpoint());
                    pods.any(|(_, pod)| named::declares(pod, &name, number))
                };
                named.move_pod(&name, old, new, others, &mut self.identities, &mut self.pending, key_of);
            }
        }
    }

    /// Updates the groups that a namespace enters or leaves because its labels changed.
    pub(crate) fn namespace_changed(
        &mut self,
        cache: &Cache,
        name: &Arc<str>,
        old: Option<&Namespace>,
        new: Option<&Namespace>,
        work: &mut Work,
    ) {
        for id in self.candidates.of_namespace(name) {
            let group = self.groups[id.0].as_mut().expect("indexed groups are there");
            let covered = |namespace: Option<&Namespace>| {
                scope_covers(&group.peer.namespaces, name, namespace.map(|namespace| &namespace.labels))
            };
            let is_covered = covered(new);
            let filters = group.peer.filter.as_ref().is_some_and(|filter| filter.has_namespace_labels());
            if covered(old) == is_covered && !(is_covered && filters) {
                continue;
            }
            for (key, pod) in cache.pods_in(name) {
                work.pods += 1;
                let was = group.members.contains(&key);
                let is = is_covered
                    && pod.is_endpoint()
                    && group.peer.pods.matches(&pod.labels)
                    && passes_filter(&group.peer, pod, new);
                if was != is {
                    let (old, new) = if is { (None, Some(&**pod)) } else { (Some(&**pod), None) };
                    group.move_pod(cache, key, old, new, &mut self.identities, &mut self.pending);
                }
            }
        }
    }
}

/// Returns the properties of a pod on which sets depend, except its labels: addresses and container ports.
fn shape(pod: &Pod) -> (&[IpAddr], &[crate::object::ContainerPort]) {
    (&pod.addresses, &pod.ports)
}

/// Returns the addresses of an `ipBlock` without its `except` blocks.
pub(crate) fn addresses_of(block: &IpBlock) -> AddressSet {
    let except: AddressSet = block.except.iter().copied().collect();
    AddressSet::from_iter([block.cidr]).subtract(&except)
}

impl Group {
    /// Replaces the pod's contribution to the group's sets.
    fn move_pod(
        &mut self,
        cache: &Cache,
        key: PodKey,
        old: Option<&Pod>,
        new: Option<&Pod>,
        identities: &mut Identities,
        pending: &mut Pending,
    ) {
        if new.is_some() {
            self.members.insert(key);
        } else {
            self.members.remove(&key);
        }
        let members = &self.members;
        let others = |address| cache.pods_at(address).filter(|(other, _)| *other != key && members.contains(other));
        let of = |pod: Option<&'_ Pod>| pod.map(|pod| pod.addresses.clone()).unwrap_or_default();
        pending.shift(self.set, &of(old), &of(new), |address| others(address).next().is_some());
        for (name, named) in &mut self.named {
            let key_of = |number| SetKey::NamedIn(self.peer.clone(), name.clone(), number);
            let declares = |address, number| others(address).any(|(_, pod)| named::declares(pod, name, number));
            named.move_pod(name, old, new, declares, identities, pending, key_of);
        }
    }
}
