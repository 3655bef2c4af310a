//! Address groups: the addresses that a pod peer stands for, kept once for all policies that name the same pods.
//!
//! A group lives as long as a policy that concerns a local pod uses it. A pod's change touches the groups that it
//! enters or leaves and no others. (The alternative, each policy with a member list of its own, costs a walk over all
//! policies per pod event; Contiv did that.) What an egress rule's port names stand for on the members is kept with the
//! group, and for rules without pod selectors with all pods of the cluster: named by somebody, or not at all.

mod named;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

pub(crate) use self::named::{Anywhere, Named, PortName};
use crate::cache::{Cache, PodKey, scope_covers};
use crate::object::{IpBlock, Namespace, NamespaceScope, Pod, PodPeer, PolicyName};
use crate::parts::{Parts, Sets};
use crate::processor::Work;

/// A group's number; given again after the group is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupId(usize);

/// The endpoints of one peer.
#[derive(Debug)]
pub(crate) struct Group {
    peer: PodPeer,
    users: BTreeSet<PolicyName>,
    members: BTreeSet<PodKey>,
    addresses: Parts,
    /// For egress rules that name ports of these pods.
    named: AHashMap<PortName, Named>,
}

impl Group {
    /// The addresses of its pods.
    pub(crate) fn addresses(&self) -> &Parts {
        &self.addresses
    }

    /// What a port name in use stands for on its pods.
    pub(crate) fn named(&self, name: &PortName) -> &Named {
        self.named.get(name).expect("a policy that uses a port name keeps it alive")
    }
}

/// What a policy uses: it stays up to date until the policy releases it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    /// A group's addresses.
    Group(GroupId),
    /// What a port name stands for on a group's pods.
    NamedIn(GroupId, PortName),
    /// What a port name stands for on any pod.
    NamedAnywhere(Anywhere, PortName),
}

/// All groups in use.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_peer: AHashMap<PodPeer, GroupId>,
    groups: Vec<Option<Group>>,
    free: Vec<GroupId>,
    /// Groups of one namespace each, by that namespace.
    own: AHashMap<Arc<str>, BTreeSet<GroupId>>,
    /// Groups whose namespaces are selected by label.
    selected: BTreeSet<GroupId>,
    anywhere: AHashMap<PortName, AHashMap<Anywhere, Named>>,
    sets: Sets,
}

impl Groups {
    /// No groups. Those that come have the same sets as these where they have the same members.
    pub(crate) fn start_over(&mut self) -> Self {
        Self { sets: std::mem::take(&mut self.sets), ..Self::default() }
    }

    /// The group of a number that is in use.
    pub(crate) fn get(&self, id: GroupId) -> &Group {
        self.groups[id.0].as_ref().expect("a policy that uses a group keeps it alive")
    }

    fn get_mut(&mut self, id: GroupId) -> &mut Group {
        self.groups[id.0].as_mut().expect("indexed groups are in use")
    }

    /// The group of a peer that a policy in use names.
    pub(crate) fn find(&self, peer: &PodPeer) -> GroupId {
        *self.by_peer.get(peer).expect("a policy's groups are made before it is compiled")
    }

    /// What a port name in use stands for on any pod.
    pub(crate) fn named_anywhere(&self, place: &Anywhere, name: &PortName) -> &Named {
        let named = self.anywhere.get(name).and_then(|places| places.get(place));
        named.expect("a policy that uses a port name keeps it alive")
    }

    /// Lets `user` use the peer's group, which is made when it is the first.
    pub(crate) fn acquire(&mut self, cache: &Cache, peer: &PodPeer, user: &PolicyName, work: &mut Work) -> GroupId {
        let id = match self.by_peer.get(peer) {
            Some(&id) => id,
            None => self.add(cache, peer.clone(), work),
        };
        self.get_mut(id).users.insert(user.clone());
        id
    }

    /// Lets `user` use a port name of a group's pods, a group that it uses.
    pub(crate) fn acquire_named(
        &mut self,
        cache: &Cache,
        id: GroupId,
        name: &PortName,
        user: &PolicyName,
        work: &mut Work,
    ) {
        let group = self.groups[id.0].as_mut().expect("a policy that uses a group keeps it alive");
        if !group.named.contains_key(name) {
            let pods = group.members.iter().filter_map(|&key| cache.pod(key));
            let named = Named::new(None, name, pods.map(|pod| &**pod), &mut self.sets, work);
            group.named.insert(name.clone(), named);
        }
        group.named.get_mut(name).expect("just found or made").users.insert(user.clone());
    }

    /// Lets `user` use a port name of pods anywhere.
    pub(crate) fn acquire_anywhere(
        &mut self,
        cache: &Cache,
        place: &Anywhere,
        name: &PortName,
        user: &PolicyName,
        work: &mut Work,
    ) {
        let places = self.anywhere.entry(name.clone()).or_default();
        let named = places.entry(place.clone()).or_insert_with(|| {
            let within = match place {
                Anywhere::Everybody => None,
                Anywhere::Block(block) => Some(addresses_of(block)),
            };
            let pods = cache.pods().map(|(_, pod)| &**pod).filter(|pod| pod.is_endpoint());
            Named::new(within, name, pods, &mut self.sets, work)
        });
        named.users.insert(user.clone());
    }

    fn add(&mut self, cache: &Cache, peer: PodPeer, work: &mut Work) -> GroupId {
        let members = cache.pods_of_peer(&peer);
        work.pods += members.len() as u64;
        let pods = members.iter().filter_map(|&key| cache.pod(key));
        let addresses = Parts::new(pods.flat_map(|pod| pod.addresses.iter().copied()), &mut self.sets, work);
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            GroupId(self.groups.len() - 1)
        });
        match &peer.namespaces {
            NamespaceScope::Own(namespace) => self.own.entry(namespace.clone()).or_default().insert(id),
            NamespaceScope::Selected(_) => self.selected.insert(id),
        };
        self.by_peer.insert(peer.clone(), id);
        let named = AHashMap::new();
        self.groups[id.0] = Some(Group { peer, users: BTreeSet::new(), members, addresses, named });
        id
    }

    /// Ends `user`'s use of something; the last one removes it.
    pub(crate) fn release(&mut self, used: &Use, user: &PolicyName) {
        match used {
            Use::Group(id) => self.release_group(*id, user),
            Use::NamedIn(id, name) => {
                // The group may be gone before its names.
                if let Some(group) = self.groups[id.0].as_mut() {
                    release_named(&mut group.named, name, user);
                }
            }
            Use::NamedAnywhere(place, name) => {
                let Some(places) = self.anywhere.get_mut(name) else { return };
                release_named(places, place, user);
                if places.is_empty() {
                    self.anywhere.remove(name);
                }
            }
        }
    }

    fn release_group(&mut self, id: GroupId, user: &PolicyName) {
        let Some(group) = self.groups[id.0].as_mut() else { return };
        group.users.remove(user);
        if !group.users.is_empty() {
            return;
        }
        self.by_peer.remove(&group.peer);
        match &group.peer.namespaces {
            NamespaceScope::Own(namespace) => {
                if let Some(ids) = self.own.get_mut(namespace) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.own.remove(namespace);
                    }
                }
            }
            NamespaceScope::Selected(_) => {
                self.selected.remove(&id);
            }
        }
        self.groups[id.0] = None;
        self.free.push(id);
    }

    /// Moves a changed pod between the groups. Returns the policies that use something that changed.
    pub(crate) fn pod_changed(
        &mut self,
        cache: &Cache,
        key: PodKey,
        old: Option<&Pod>,
        new: Option<&Pod>,
        work: &mut Work,
    ) -> BTreeSet<PolicyName> {
        let Some(namespace) = new.or(old).map(|pod| &pod.name.namespace) else { return BTreeSet::new() };
        work.pods += 1;
        let shape = |pod: Option<&Pod>| pod.map(|pod| (pod.addresses.clone(), pod.ports.clone()));
        let same_shape = shape(old) == shape(new);
        let mut users = BTreeSet::new();
        let candidates: Vec<_> = self.own.get(namespace).into_iter().flatten().chain(&self.selected).copied().collect();
        for id in candidates {
            let group = self.groups[id.0].as_mut().expect("indexed groups are in use");
            let was = group.members.contains(&key);
            let is = new.is_some_and(|pod| {
                pod.is_endpoint()
                    && group.peer.pods.matches(&pod.labels)
                    && cache.scope_covers(&group.peer.namespaces, namespace)
            });
            if (was || is) && !(was && is && same_shape) {
                group.move_pod(key, old.filter(|_| was), new.filter(|_| is), &mut self.sets, work);
                users.extend(group.users.iter().cloned());
            }
        }
        let endpoint = |pod: Option<&'_ Pod>| pod.is_some_and(Pod::is_endpoint);
        if !(same_shape && endpoint(old) == endpoint(new)) {
            let (old, new) = (old.filter(|pod| pod.is_endpoint()), new.filter(|pod| pod.is_endpoint()));
            self.move_anywhere(old, new, &mut users, work);
        }
        self.sets.end_event();
        users
    }

    /// Follows a pod where port names of any pod are in use.
    fn move_anywhere(
        &mut self,
        old: Option<&Pod>,
        new: Option<&Pod>,
        users: &mut BTreeSet<PolicyName>,
        work: &mut Work,
    ) {
        let ports = old.into_iter().chain(new).flat_map(|pod| &pod.ports);
        let names: BTreeSet<PortName> = ports.map(|port| (port.transport, port.name.clone())).collect();
        for name in names {
            for named in self.anywhere.get_mut(&name).into_iter().flat_map(|places| places.values_mut()) {
                named.move_pod(&name, old, new, &mut self.sets, work);
                users.extend(named.users.iter().cloned());
            }
        }
    }

    /// Takes a namespace's pods into or out of the groups that its labels enter or leave. Returns the policies that use
    /// these groups.
    pub(crate) fn namespace_changed(
        &mut self,
        cache: &Cache,
        name: &Arc<str>,
        old: Option<&Namespace>,
        new: Option<&Namespace>,
        work: &mut Work,
    ) -> BTreeSet<PolicyName> {
        let mut users = BTreeSet::new();
        for &id in &self.selected {
            let group = self.groups[id.0].as_mut().expect("indexed groups are in use");
            let covered = |namespace: Option<&Namespace>| {
                scope_covers(&group.peer.namespaces, name, namespace.map(|namespace| &namespace.labels))
            };
            let (was, is) = (covered(old), covered(new));
            if was == is {
                continue;
            }
            let mut moved = false;
            for (key, pod) in cache.pods_in(name) {
                work.pods += 1;
                if pod.is_endpoint() && group.peer.pods.matches(&pod.labels) {
                    group.move_pod(key, was.then_some(&**pod), is.then_some(&**pod), &mut self.sets, work);
                    moved = true;
                }
            }
            if moved {
                users.extend(group.users.iter().cloned());
            }
        }
        self.sets.end_event();
        users
    }
}

fn release_named<K: std::hash::Hash + Eq>(named: &mut AHashMap<K, Named>, at: &K, user: &PolicyName) {
    if let Some(entry) = named.get_mut(at) {
        entry.users.remove(user);
        if entry.users.is_empty() {
            named.remove(at);
        }
    }
}

/// A block without its exceptions.
pub(crate) fn addresses_of(block: &IpBlock) -> AddressSet {
    let except: AddressSet = block.except.iter().copied().collect();
    AddressSet::from_iter([block.cidr]).subtract(&except)
}

impl Group {
    /// Replaces what a pod contributes.
    fn move_pod(&mut self, key: PodKey, old: Option<&Pod>, new: Option<&Pod>, sets: &mut Sets, work: &mut Work) {
        if new.is_some() {
            self.members.insert(key);
        } else {
            self.members.remove(&key);
        }
        // First the new: an address that stays, or that another member has too, is then only counted.
        let of = |pod: Option<&Pod>| -> Vec<IpAddr> { pod.map_or_else(Vec::new, |pod| pod.addresses.clone()) };
        of(new).into_iter().for_each(|address| self.addresses.insert(address, sets, work));
        of(old).into_iter().for_each(|address| self.addresses.remove(address, sets, work));
        for (name, named) in &mut self.named {
            named.move_pod(name, old, new, sets, work);
        }
    }
}
