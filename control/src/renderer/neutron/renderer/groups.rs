//! The groups: their ports, and the sets that their rules name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;

use super::{Group, GroupId, NeutronRenderer, Port, families};
use crate::contract::{Endpoint, Peers, SetId};
use crate::origin::Direction;
use crate::renderer::neutron::members::PortId;
use crate::renderer::neutron::{Allow, GroupKey, PeerUser};

impl NeutronRenderer {
    /// Adds a port to a group. Creates the group for its first port.
    pub(super) fn enter(&mut self, key: GroupKey, port: PortId, endpoint: &Endpoint) -> GroupId {
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => self.add(key),
        };
        let group = self.groups[id].as_mut().expect("indexed by its key");
        if group.ports.insert(port) {
            for (count, has) in group.families.iter_mut().zip(families(endpoint)) {
                *count += usize::from(has);
            }
        }
        id
    }

    fn add(&mut self, key: GroupKey) -> GroupId {
        let id = self.free_groups.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        for set in self.sets_of(&key) {
            self.groups_of_set.entry(set).or_default().insert(id);
        }
        if let Some(node) = key.node() {
            self.groups_of_node.entry(node.clone()).or_default().insert(id);
        }
        for (user, sets) in peers_of(&key) {
            let is_new = !self.peers.contains_key(&sets);
            *self.peers.entry(sets.clone()).or_default().users.entry(user).or_default() += 1;
            if is_new {
                for set in sets.iter() {
                    self.peers_of_set.entry(*set).or_default().insert(sets.clone());
                    self.stale_ports.extend(self.members.ports_in(*set));
                }
            }
        }
        self.by_key.insert(key.clone(), id);
        self.groups[id] = Some(Group { key, ports: BTreeSet::new(), families: [0; 2], lines: Ok(BTreeSet::new()) });
        self.stale_groups.insert(id);
        self.changed.groups += 1;
        id
    }

    /// Removes a port from its groups and lists, except from the groups in `kept`.
    pub(super) fn leave(&mut self, old: &Port, port: PortId, kept: &[GroupId]) {
        for &id in old.groups.iter().filter(|id| !kept.contains(id)) {
            let group = self.groups[id].as_mut().expect("a port is in existing groups");
            group.ports.remove(&port);
            for (count, has) in group.families.iter_mut().zip(families(&old.endpoint)) {
                *count -= usize::from(has);
            }
            if group.ports.is_empty() {
                self.drop_group(id);
            }
        }
        for list in old.endpoint.rules.lists() {
            let Some(listed) = self.lists.get_mut(&list.id) else { continue };
            listed.ports -= 1;
            if listed.ports == 0 {
                self.lists.remove(&list.id);
            }
        }
    }

    fn drop_group(&mut self, id: GroupId) {
        let Some(Group { key, .. }) = self.groups[id].take() else { return };
        for set in self.sets_of(&key) {
            forget(&mut self.groups_of_set, &set, &id);
        }
        if let Some(node) = key.node() {
            forget(&mut self.groups_of_node, node, &id);
        }
        for (user, sets) in peers_of(&key) {
            let Some(peer) = self.peers.get_mut(&sets) else { continue };
            let last = peer.users.get_mut(&user).is_some_and(|count| {
                *count -= 1;
                *count == 0
            });
            if last {
                peer.users.remove(&user);
            }
            if !peer.users.is_empty() {
                continue;
            }
            self.peers.remove(&sets);
            for set in sets.iter() {
                forget(&mut self.peers_of_set, set, &sets);
                self.stale_ports.extend(self.members.ports_in(*set));
            }
        }
        self.by_key.remove(&key);
        self.stale_groups.remove(&id);
        self.free_groups.push(id);
        self.changed.groups += 1;
    }

    /// Returns the sets that a group's rules name.
    fn sets_of(&self, key: &GroupKey) -> BTreeSet<SetId> {
        let named = |peers: &Peers| match peers {
            Peers::Sets(sets) => sets.to_vec(),
            Peers::Any | Peers::OwnNode | Peers::Names { .. } => Vec::new(),
        };
        match key {
            GroupKey::Open(_) | GroupKey::Node(..) => BTreeSet::new(),
            GroupKey::Policy { ingress, egress, .. } => {
                let rules = ingress.iter().chain(egress).flat_map(|rules| rules.iter());
                rules.flat_map(|rule| named(&rule.peers)).collect()
            }
            GroupKey::Whole { list, .. } => {
                let rules = self.lists.get(list).into_iter().flat_map(|listed| &listed.list.rules);
                rules.flat_map(|rule| named(&rule.peers)).collect()
            }
        }
    }
}

fn forget<K: std::hash::Hash + Eq, V: Ord>(index: &mut AHashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

/// Returns the combinations of sets that a group's rules name, each with the rule that may give the peer group its name.
fn peers_of(key: &GroupKey) -> Vec<(PeerUser, Arc<[SetId]>)> {
    let GroupKey::Policy { policy, ingress, egress } = key else { return Vec::new() };
    let mut all = Vec::new();
    for (direction, rules) in [(Direction::Ingress, ingress), (Direction::Egress, egress)] {
        let mut nth: BTreeMap<usize, usize> = BTreeMap::new();
        for Allow { rule, peers, .. } in rules.iter().flat_map(|rules| rules.iter()) {
            let Peers::Sets(sets) = peers else { continue };
            let at = nth.entry(*rule).or_default();
            all.push((PeerUser { policy: policy.clone(), direction, rule: *rule, nth: *at }, sets.clone()));
            *at += 1;
        }
    }
    all
}
