//! The Neutron renderer maintains the desired groups, their rules and their ports.

mod groups;
mod shape;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::OriginId;

use self::shape::Shape;
use super::lines::{self, Line, Remote, Why};
use super::members::{Members, Moved, PortId};
use super::{Allow, GroupKey, MAX_RULES, PeerUser};
use crate::contract::{Endpoint, ListId, SetId, TieredList, Transaction};
use crate::object::{PodName, PolicyName};
use crate::origin::{Direction, Origins};
use crate::renderer::{BoxError, Instead, Refusal, Renderer};

/// A group's index in the renderer. Reused after the group is removed.
pub(super) type GroupId = usize;

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    pub(super) ports: BTreeSet<PortId>,
    /// Number of the group's ports with an IPv4 address, and with an IPv6 address.
    pub(super) families: [usize; 2],
    pub(super) lines: Result<BTreeSet<Line>, Why>,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) endpoint: Arc<Endpoint>,
    /// The groups whose rules apply to the port.
    pub(super) groups: Vec<GroupId>,
    /// The peer groups that contain the port.
    pub(super) peers: BTreeSet<Arc<[SetId]>>,
}

/// The users of a combination of sets that policies' rules name.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// For each rule that names the peer: the number of groups with the rule.
    pub(super) users: BTreeMap<PeerUser, usize>,
}

/// A rule list that at least one port has.
#[derive(Debug)]
struct Listed {
    list: Arc<TieredList>,
    shape: Shape,
    ports: usize,
}

/// The numbers of groups and ports that the last transaction changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Number of groups that were added or removed, or got other rules.
    pub groups: usize,
    /// Number of ports that were added or removed, or got other groups.
    pub ports: usize,
}

/// The renderer of a Neutron server's security groups.
#[derive(Debug)]
pub struct NeutronRenderer {
    limit: usize,
    members: Members,
    pub(super) ports: Vec<Option<Port>>,
    by_name: BTreeMap<PodName, PortId>,
    free_ports: Vec<PortId>,
    pub(super) groups: Vec<Option<Group>>,
    by_key: AHashMap<GroupKey, GroupId>,
    free_groups: Vec<GroupId>,
    groups_of_set: AHashMap<SetId, BTreeSet<GroupId>>,
    groups_of_node: AHashMap<Arc<str>, BTreeSet<GroupId>>,
    pub(super) peers: AHashMap<Arc<[SetId]>, Peer>,
    peers_of_set: AHashMap<SetId, BTreeSet<Arc<[SetId]>>>,
    lists: AHashMap<ListId, Listed>,
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// Groups whose allowed traffic ([`Line`]), and ports whose peer groups, must be computed again.
    stale_groups: BTreeSet<GroupId>,
    stale_ports: BTreeSet<PortId>,
    changed: Changed,
}

impl Default for NeutronRenderer {
    fn default() -> Self {
        Self::with_limit(MAX_RULES)
    }
}

impl NeutronRenderer {
    /// Creates a renderer that refuses groups with more than `limit` rules of a family ([`MAX_RULES`]).
    pub fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            members: Members::default(),
            ports: Vec::new(),
            by_name: BTreeMap::new(),
            free_ports: Vec::new(),
            groups: Vec::new(),
            by_key: AHashMap::new(),
            free_groups: Vec::new(),
            groups_of_set: AHashMap::new(),
            groups_of_node: AHashMap::new(),
            peers: AHashMap::new(),
            peers_of_set: AHashMap::new(),
            lists: AHashMap::new(),
            nodes: BTreeMap::new(),
            stale_groups: BTreeSet::new(),
            stale_ports: BTreeSet::new(),
            changed: Changed::default(),
        }
    }

    /// Returns the numbers of groups and ports that the last transaction changed.
    pub fn changed(&self) -> &Changed {
        &self.changed
    }

    pub(super) fn named_ports(&self) -> impl Iterator<Item = (&PodName, &Port)> {
        self.by_name.iter().filter_map(|(name, &id)| Some((name, self.ports[id].as_ref()?)))
    }

    /// Whether any of these sets is exact, so that a group represents it.
    pub(super) fn is_group(&self, sets: &[SetId]) -> bool {
        sets.iter().any(|set| self.members.is_exact(*set))
    }

    /// Returns the rules of a list, to derive its name. `None` if the list is not in use.
    pub(super) fn rules_of(&self, list: ListId) -> Option<&TieredList> {
        self.lists.get(&list).map(|listed| &*listed.list)
    }

    fn follow(&mut self, transaction: &Transaction, origins: &Origins) {
        self.changed = Changed::default();
        if transaction.resync {
            *self = Self::with_limit(self.limit);
        }
        for (name, node) in &transaction.nodes {
            let addresses = node.as_ref().map(|node| node.addresses.clone());
            let same = self.nodes.get(name) == addresses.as_ref();
            match addresses {
                Some(addresses) => self.nodes.insert(name.clone(), addresses),
                None => self.nodes.remove(name),
            };
            if !same {
                self.stale_groups.extend(self.groups_of_node.get(name).into_iter().flatten());
            }
        }
        self.take_endpoints(transaction, origins);
        for delta in &transaction.sets {
            self.members.change(delta);
        }
        for set in &transaction.dropped {
            self.members.drop_set(*set);
        }
        let Moved { sets, ports } = self.members.end();
        self.stale_ports.extend(ports);
        for (set, was_exact) in sets {
            let is_exact = self.members.is_exact(set);
            if was_exact != is_exact {
                self.stale_ports.extend(self.members.ports_in(set));
            }
            // Rules of policies name an exact set by its group, so a change of its ports does not affect them.
            let by_members = |id: &&GroupId| {
                let key = self.groups[**id].as_ref().map(|group| &group.key);
                !(was_exact && is_exact) || matches!(key, Some(GroupKey::Whole { .. }))
            };
            let groups = self.groups_of_set.get(&set).into_iter().flatten();
            self.stale_groups.extend(groups.filter(by_members));
        }
        self.write();
    }

    fn take_endpoints(&mut self, transaction: &Transaction, origins: &Origins) {
        // Ports that release addresses come first, because another pod may take them.
        for (name, new) in &transaction.endpoints {
            let Some(&id) = self.by_name.get(name) else { continue };
            let old = &self.ports[id].as_ref().expect("named").endpoint;
            if new.as_ref().is_none_or(|new| new.addresses != old.addresses) {
                self.members.remove_port(id);
            }
        }
        for (name, new) in &transaction.endpoints {
            match new {
                Some(new) => self.put(name, new, origins),
                None => self.remove(name),
            }
        }
    }

    fn put(&mut self, name: &PodName, new: &Arc<Endpoint>, origins: &Origins) {
        let families_of = |id: &PortId| self.ports[*id].as_ref().map(|port| families(&port.endpoint));
        if self.by_name.get(name).and_then(families_of).is_some_and(|before| before != families(new)) {
            self.remove(name);
        }
        let known = self.by_name.get(name).copied();
        let id = known.unwrap_or_else(|| self.free_ports.pop().unwrap_or(self.ports.len()));
        let old = known.and_then(|id| self.ports[id].take());
        if old.as_ref().is_none_or(|old| old.endpoint.addresses != new.addresses) {
            self.members.put_port(id, &new.addresses);
        }
        for list in new.rules.lists() {
            let listed = self.lists.entry(list.id);
            let listed =
                listed.or_insert_with(|| Listed { list: list.clone(), shape: Shape::of(list, origins), ports: 0 });
            listed.ports += 1;
        }
        let keys = self.keys(new);
        let groups: Vec<GroupId> = keys.into_iter().map(|key| self.enter(key, id, new)).collect();
        if let Some(old) = &old {
            self.leave(old, id, &groups);
        }
        if old.as_ref().is_none_or(|old| old.groups != groups) {
            self.changed.ports += 1;
        }
        let peers = old.map(|old| old.peers).unwrap_or_default();
        let port = Port { endpoint: new.clone(), groups, peers };
        if id == self.ports.len() {
            self.ports.push(None);
        }
        self.ports[id] = Some(port);
        self.by_name.insert(name.clone(), id);
    }

    fn remove(&mut self, name: &PodName) {
        let Some(id) = self.by_name.remove(name) else { return };
        self.members.remove_port(id);
        let Some(old) = self.ports[id].take() else { return };
        self.leave(&old, id, &[]);
        self.free_ports.push(id);
        self.changed.ports += 1;
    }

    /// Returns the groups that a pod's rules need.
    fn keys(&self, endpoint: &Endpoint) -> Vec<GroupKey> {
        let mut keys = Vec::new();
        let mut policies: BTreeMap<&PolicyName, [Option<Arc<[Allow]>>; 2]> = BTreeMap::new();
        for (at, direction) in DIRECTIONS.into_iter().enumerate() {
            let list = match direction {
                Direction::Ingress => &endpoint.rules.ingress,
                Direction::Egress => &endpoint.rules.egress,
            };
            let Some(list) = list else {
                keys.push(GroupKey::Open(direction));
                continue;
            };
            match &self.lists[&list.id].shape {
                Shape::Policies { policies: of, own_node } => {
                    for (policy, rules) in of {
                        policies.entry(policy).or_default()[at] = Some(rules.clone());
                    }
                    if *own_node {
                        keys.push(GroupKey::Node(endpoint.node.clone(), direction));
                    }
                }
                Shape::Whole { own_node } => {
                    let node = own_node.then(|| endpoint.node.clone());
                    keys.push(GroupKey::Whole { direction, list: list.id, node });
                }
            }
        }
        keys.extend(policies.into_iter().map(|(policy, [ingress, egress])| GroupKey::Policy {
            policy: policy.clone(),
            ingress,
            egress,
        }));
        keys
    }

    /// Computes the allowed traffic of stale groups and the peer groups of stale ports.
    fn write(&mut self) {
        for id in std::mem::take(&mut self.stale_groups) {
            let Some(group) = &self.groups[id] else { continue };
            let lines = self.lines(&group.key);
            let group = self.groups[id].as_mut().expect("looked at above");
            if group.lines != lines {
                group.lines = lines;
                self.changed.groups += 1;
            }
        }
        for id in std::mem::take(&mut self.stale_ports) {
            let Some(Some(_)) = self.ports.get(id) else { continue };
            let sets = self.members.sets_of(id);
            let exact = sets.iter().filter(|set| self.members.is_exact(**set));
            let peers = exact.flat_map(|set| self.peers_of_set.get(set).into_iter().flatten()).cloned().collect();
            let port = self.ports[id].as_mut().expect("looked at above");
            if port.peers != peers {
                port.peers = peers;
                self.changed.ports += 1;
            }
        }
    }

    fn lines(&self, key: &GroupKey) -> Result<BTreeSet<Line>, Why> {
        let node = |name: &Arc<str>| self.nodes.get(name).map_or(&[][..], |addresses| addresses);
        match key {
            GroupKey::Open(direction) => {
                Ok([Line { direction: *direction, service: None, remote: Remote::Any }].into())
            }
            GroupKey::Node(name, direction) => {
                let line = |address: &IpAddr| Line {
                    direction: *direction,
                    service: None,
                    remote: Remote::Prefix((*address).into()),
                };
                Ok(node(name).iter().map(line).collect())
            }
            GroupKey::Policy { ingress, egress, .. } => {
                let mut all = BTreeSet::new();
                for (direction, rules) in [(Direction::Ingress, ingress), (Direction::Egress, egress)] {
                    let rules = rules.as_deref().unwrap_or_default();
                    lines::of_policy(&self.members, direction, rules, self.limit, &mut all)?;
                }
                Ok(all)
            }
            GroupKey::Whole { direction, list, node: own } => {
                let own = own.as_ref().map_or(&[][..], node);
                lines::of_tiers(&self.members, *direction, &self.lists[list].list, own, self.limit)
            }
        }
    }
}

impl Renderer for NeutronRenderer {
    fn name(&self) -> String {
        "neutron".into()
    }

    /// Applies the transaction. Never fails. As the origins are unknown, each list becomes one group.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        self.render_with(transaction, &Origins::default())
    }

    fn render_with(&mut self, transaction: &Transaction, origins: &Origins) -> Result<(), BoxError> {
        self.follow(transaction, origins);
        Ok(())
    }

    fn refusals(&self) -> Vec<Refusal> {
        let refused = self.groups.iter().flatten().filter_map(|group| {
            let why = group.lines.as_ref().err()?.clone();
            let pods = group.ports.iter().filter_map(|&port| Some(self.ports[port].as_ref()?.endpoint.pod.to_string()));
            let mut pods: Vec<String> = pods.collect();
            pods.sort_unstable();
            let more = pods.len().saturating_sub(SHOWN_PODS);
            pods.truncate(SHOWN_PODS);
            pods.extend((more > 0).then(|| format!("{more} more")));
            let subject = format!("{} for {}", group.key, pods.join(", "));
            Some(Refusal { subject, instead: Instead::Closed, why })
        });
        refused.collect()
    }

    fn origins(&self) -> HashSet<OriginId> {
        self.lists.values().flat_map(|listed| listed.list.rules.iter().map(|rule| rule.origin)).collect()
    }
}

/// Maximum number of pods named in a refusal.
const SHOWN_PODS: usize = 5;

fn families(endpoint: &Endpoint) -> [bool; 2] {
    [false, true].map(|v6| endpoint.addresses.iter().any(|address| address.is_ipv6() == v6))
}
