//! Address groups: the addresses that a pod peer stands for, kept once for all policies that name the same pods.
//!
//! A group lives as long as a policy that concerns a local pod uses it. A pod's change touches the groups that it
//! enters or leaves and no others. (The alternative, each policy with a member list of its own, costs a walk over all
//! policies per pod event; Contiv did that.)

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use crate::cache::{Cache, PodKey, scope_covers};
use crate::object::{Namespace, NamespaceScope, Pod, PodPeer, PolicyName};

/// A group's number; given again after the group is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupId(usize);

/// The endpoints of one peer.
#[derive(Debug)]
pub(crate) struct Group {
    peer: PodPeer,
    users: BTreeSet<PolicyName>,
    members: BTreeSet<PodKey>,
    addresses: Arc<AddressSet>,
}

impl Group {
    /// The policies that use it.
    pub(crate) fn users(&self) -> &BTreeSet<PolicyName> {
        &self.users
    }

    /// Its pods.
    pub(crate) fn members(&self) -> &BTreeSet<PodKey> {
        &self.members
    }

    /// The addresses of its pods.
    pub(crate) fn addresses(&self) -> &Arc<AddressSet> {
        &self.addresses
    }
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
}

impl Groups {
    /// The group of a number that is in use.
    pub(crate) fn get(&self, id: GroupId) -> &Group {
        self.groups[id.0].as_ref().expect("a policy that uses a group keeps it alive")
    }

    /// The group of a peer that a policy in use names.
    pub(crate) fn find(&self, peer: &PodPeer) -> GroupId {
        *self.by_peer.get(peer).expect("a policy's groups are made before it is compiled")
    }

    /// Lets `user` use the peer's group, which is made when it is the first.
    pub(crate) fn acquire(&mut self, cache: &Cache, peer: &PodPeer, user: &PolicyName) -> GroupId {
        let id = match self.by_peer.get(peer) {
            Some(&id) => id,
            None => self.add(cache, peer.clone()),
        };
        self.groups[id.0].as_mut().expect("just found or made").users.insert(user.clone());
        id
    }

    fn add(&mut self, cache: &Cache, peer: PodPeer) -> GroupId {
        let members = cache.pods_of_peer(&peer);
        let pods = members.iter().filter_map(|&key| cache.pod(key));
        let addresses = Arc::new(pods.flat_map(|pod| pod.addresses.iter().copied()).collect());
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            GroupId(self.groups.len() - 1)
        });
        match &peer.namespaces {
            NamespaceScope::Own(namespace) => self.own.entry(namespace.clone()).or_default().insert(id),
            NamespaceScope::Selected(_) => self.selected.insert(id),
        };
        self.by_peer.insert(peer.clone(), id);
        self.groups[id.0] = Some(Group { peer, users: BTreeSet::new(), members, addresses });
        id
    }

    /// Ends `user`'s use of a group; the last one removes it.
    pub(crate) fn release(&mut self, id: GroupId, user: &PolicyName) {
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

    /// Moves a changed pod between the groups. Answers the groups whose members, or their addresses or ports, changed.
    pub(crate) fn pod_changed(
        &mut self,
        cache: &Cache,
        key: PodKey,
        old: Option<&Pod>,
        new: Option<&Pod>,
    ) -> Vec<GroupId> {
        let Some(namespace) = new.or(old).map(|pod| &pod.name.namespace) else { return Vec::new() };
        let candidates: Vec<_> = self.own.get(namespace).into_iter().flatten().chain(&self.selected).copied().collect();
        let shape = |pod: Option<&Pod>| pod.map(|pod| (pod.addresses.clone(), pod.ports.clone()));
        let same_shape = shape(old) == shape(new);
        let mut changed = Vec::new();
        for id in candidates {
            let group = self.groups[id.0].as_mut().expect("indexed groups are in use");
            let was = group.members.contains(&key);
            let is = new.is_some_and(|pod| {
                pod.is_endpoint()
                    && group.peer.pods.matches(&pod.labels)
                    && cache.scope_covers(&group.peer.namespaces, namespace)
            });
            if (was || is) && !(was && is && same_shape) {
                group.move_pod(cache, key, old.filter(|_| was), new.filter(|_| is));
                changed.push(id);
            }
        }
        changed
    }

    /// Takes a namespace's pods into or out of the groups that its labels enter or leave. Answers those groups.
    pub(crate) fn namespace_changed(
        &mut self,
        cache: &Cache,
        name: &Arc<str>,
        old: Option<&Namespace>,
        new: Option<&Namespace>,
    ) -> Vec<GroupId> {
        let mut changed = Vec::new();
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
                if pod.is_endpoint() && group.peer.pods.matches(&pod.labels) {
                    group.move_pod(cache, key, was.then_some(&**pod), is.then_some(&**pod));
                    moved = true;
                }
            }
            if moved {
                changed.push(id);
            }
        }
        changed
    }
}

impl Group {
    /// Replaces what a pod contributes. The cache already holds the pod as it is now.
    fn move_pod(&mut self, cache: &Cache, key: PodKey, old: Option<&Pod>, new: Option<&Pod>) {
        if new.is_some() {
            self.members.insert(key);
        } else {
            self.members.remove(&key);
        }
        let before: &[IpAddr] = old.map_or(&[], |pod| &pod.addresses);
        let after: &[IpAddr] = new.map_or(&[], |pod| &pod.addresses);
        // An address that another member has too stays: it passes from an ended pod to the next one in either order.
        let gone = before.iter().copied().filter(|&address| {
            !after.contains(&address) && !cache.pods_at(address).any(|(key, _)| self.members.contains(&key))
        });
        let gone: AddressSet = gone.collect();
        let come: AddressSet = after.iter().copied().collect();
        let addresses = self.addresses.subtract(&gone).union(&come);
        if *self.addresses != addresses {
            self.addresses = Arc::new(addresses);
        }
    }
}
