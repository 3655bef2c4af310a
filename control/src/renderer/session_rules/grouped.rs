//! The rules of a scope in groups. Each group keeps its compiled form, so that an event lowers only the groups that it affects.
//!
//! ```text
//!  requests, 6-tuples that differ --> groups with their remote networks --stale ones: lower--> rules of each --> the list
//!  pods whose lists differ ---------------^ stale
//! ```
//!
//! **Invariant.** A group that is not stale was lowered from its present networks, and from pods whose relevant rules are the present ones.
//! So the list equals that of [`ScopeGroups::new`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, Rule};
use ipnet::IpNet;

use super::lower::Group;
use super::moved::{ListChange, Moved};
use super::{SessionRequest, SessionRule, SessionScope};
use crate::object::PodName;
use crate::renderer::contiv::table::Table;
use crate::renderer::contiv::tuple::SixTuple;
use crate::renderer::plain::PlainPod;

/// The tuple to which a table without tuples is equivalent: a stack does not apply such a table, so all traffic is allowed.
const OPEN: SixTuple = SixTuple::any(Action::Allow);

/// The session rules and 6-tuples of a scope, grouped by everything except the remote network, with their table rules.
#[derive(Debug)]
pub(super) struct ScopeGroups {
    scope: SessionScope,
    groups: BTreeMap<Group, Members>,
    /// The table whose 6-tuples are in the groups.
    table: Arc<Table>,
    /// Whether the list may have changed since the last [`ScopeGroups::settle`].
    is_stale: bool,
}

/// The remote networks of a group, and the table rules for them.
#[derive(Debug, Default)]
struct Members {
    /// Sorted networks of equal prefix length, so they are disjoint. Empty for any address.
    networks: Vec<IpNet>,
    /// The table rules of the group. `None` while the group is stale.
    rules: Option<Box<[Rule]>>,
}

impl ScopeGroups {
    /// Groups these rules, and the table's tuples that session rules cannot express. All groups are stale.
    pub(super) fn new(scope: SessionScope, rules: impl Iterator<Item = SessionRule>, table: &Arc<Table>) -> Self {
        let mut groups: BTreeMap<Group, Members> = BTreeMap::new();
        for rule in rules {
            groups.entry(Group::of_session(scope, &rule)).or_default().networks.push(rule.matches.remote.network);
        }
        groups.extend(Group::defaults().map(|group| (group, Members::default())));
        let open = table.rules.is_empty().then_some(&OPEN);
        for (group, there) in table.rules.iter().chain(open).filter_map(|tuple| Group::of_tuple(scope, tuple)) {
            groups.entry(group).or_default().networks.extend(there);
        }
        groups.values_mut().for_each(|members| members.networks.sort_unstable());
        Self { scope, groups, table: table.clone(), is_stale: true }
    }

    /// Applies requests that the session table has executed.
    pub(super) fn follow(&mut self, requests: &[SessionRequest]) {
        for request in requests {
            let (SessionRequest::Add(rule) | SessionRequest::Delete(rule)) = request;
            let group = Group::of_session(self.scope, rule);
            let network = Some(rule.matches.remote.network);
            match request {
                SessionRequest::Add(_) => self.add(group, network),
                SessionRequest::Delete(_) => self.remove(&group, network),
            }
        }
    }

    /// Replaces the table, and regroups the 6-tuples that changed.
    pub(super) fn follow_table(&mut self, table: &Arc<Table>) {
        if Arc::ptr_eq(&self.table, table) {
            return;
        }
        let old = std::mem::replace(&mut self.table, table.clone());
        let scope = self.scope;
        let (gone, come) = old.rules.difference(&table.rules);
        let [was_open, is_open] = [&old, table].map(|table| table.rules.is_empty().then_some(&OPEN));
        for (group, there) in gone.into_iter().chain(was_open).filter_map(|tuple| Group::of_tuple(scope, tuple)) {
            self.remove(&group, there);
        }
        for (group, there) in come.into_iter().chain(is_open).filter_map(|tuple| Group::of_tuple(scope, tuple)) {
            self.add(group, there);
        }
    }

    fn add(&mut self, group: Group, network: Option<IpNet>) {
        let members = self.groups.entry(group).or_default();
        if let Some(network) = network
            && let Err(at) = members.networks.binary_search(&network)
        {
            members.networks.insert(at, network);
        }
        members.rules = None;
        self.is_stale = true;
    }

    fn remove(&mut self, group: &Group, network: Option<IpNet>) {
        let Some(members) = self.groups.get_mut(group) else { return };
        if let Some(at) = network.and_then(|network| members.networks.binary_search(&network).ok()) {
            members.networks.remove(at);
        }
        members.rules = None;
        if members.networks.is_empty() {
            self.groups.remove(group);
        }
        self.is_stale = true;
    }

    /// Marks groups as stale if they depend on what has changed. `owner` is the pod of a local scope.
    pub(super) fn doubt(&mut self, moved: &Moved, owner: Option<(&PodName, &PlainPod)>) {
        if moved.is_nothing() {
            return;
        }
        for (group, members) in &mut self.groups {
            let is_stale = match owner {
                Some((name, pod)) => is_local_stale(moved, (name, pod), &members.networks),
                None => is_global_stale(moved, group, &members.networks),
            };
            if is_stale && members.rules.take().is_some() {
                self.is_stale = true;
            }
        }
    }

    /// Whether the list may have changed since it was last settled.
    pub(super) const fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Records that the caller uses the present list, so that it is no longer stale.
    pub(super) const fn settle(&mut self) {
        self.is_stale = false;
    }

    /// Returns the table rules of all groups, in order. Converts stale groups with `lower` first.
    pub(super) fn list(&mut self, lower: impl Fn(&Group, &[IpNet]) -> Vec<Rule>) -> Vec<Rule> {
        let mut list = Vec::new();
        for (group, Members { networks, rules }) in &mut self.groups {
            let rules = rules.get_or_insert_with(|| lower(group, networks).into());
            list.extend_from_slice(rules);
        }
        list
    }
}

/// Whether rules for the pod's traffic to these networks depend on what has changed.
fn is_local_stale(moved: &Moved, (name, pod): (&PodName, &PlainPod), networks: &[IpNet]) -> bool {
    if moved.is_renumbered {
        return true;
    }
    moved.pods.iter().any(|(of, change)| {
        let own = of == name && (change.is_elsewhere || change.egress.concerns(networks));
        let is_target = || change.addresses.iter().any(|&address| is_among(networks, address));
        let at_target = match &change.ingress {
            _ if change.is_elsewhere => is_target(),
            ListChange::None => false,
            ListChange::Whole => is_target(),
            ListChange::Peers(peers) => pod.addresses.iter().any(|&own| peers.contains(own)) && is_target(),
        };
        own || at_target
    })
}

/// Whether the rules of a group for traffic that enters the node depend on what has changed.
fn is_global_stale(moved: &Moved, group: &Group, networks: &[IpNet]) -> bool {
    if moved.is_renumbered {
        return true;
    }
    let Some(local) = group.local else { return false };
    moved.pods.values().any(|change| {
        change.addresses.contains(&local.addr()) && (change.is_elsewhere || change.ingress.concerns(networks))
    })
}

/// Whether one of the networks contains the address. The networks are sorted and disjoint.
fn is_among(networks: &[IpNet], address: IpAddr) -> bool {
    let end = networks.partition_point(|network| network.network() <= address);
    end > 0 && networks[end - 1].contains(&address)
}
