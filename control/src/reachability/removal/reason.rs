//! Explains why a rule has no effect.

use std::collections::BTreeSet;

use bulkhead_classifier::{OriginId, ServiceSet, Services};

use super::{ClassId, Holder, ListNumber, Removals};
use crate::contract::TierRule;
use crate::object::PolicyName;
use crate::reachability::Side;

/// The reasons why a removable rule has no effect. Several may be true, each for different connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    /// Whether the rule matches any peer address for any pod with the rule.
    pub names_somebody: bool,
    /// Whether the rule is ever the first of its tier to match. Not necessary for a rule of a NetworkPolicy, because those have no order.
    pub is_reached: bool,
    /// The rules that decide instead for the same pods.
    pub by: BTreeSet<OriginId>,
    /// Whether no rule decides without this one, so that the connection passes anyway.
    pub by_default: bool,
    /// Rules and isolations that deny the connection at its other end.
    pub blocked_by: BTreeSet<OriginId>,
    /// Whether the rule matches the only pod that has the rule.
    pub only_itself: bool,
    /// Whether the rule matches pods' own nodes, with which connections always pass.
    pub only_own_node: bool,
}

impl Removals<'_> {
    /// Returns the reasons why a rule has no effect. [`Removals::is_harmless`] must be true for the rule.
    pub fn reason(&self, rule: OriginId) -> Reason {
        let mut reason = Reason::default();
        for &list in self.lists_of_rule.get(&rule).into_iter().flatten() {
            let mut seen = BTreeSet::new();
            for &side in &self.state.lists[list.0 as usize].row {
                if seen.insert(side) {
                    self.add_side(&mut reason, rule, list, side);
                }
            }
        }
        reason
    }

    /// Returns a rule of each of two cluster policies of one tier that decide differently about the same connection, if no earlier rule
    /// decides. The order of the two policies then matters. `None` if there are no such rules.
    pub fn disagreement(&self, one: &PolicyName, other: &PolicyName) -> Option<(OriginId, OriginId)> {
        let lists = |policy: &PolicyName| self.lists_of_policy.get(policy).cloned().unwrap_or_default();
        let both: Vec<ListNumber> = lists(one).intersection(&lists(other)).copied().collect();
        let [ones, others] = [one, other].map(|policy| self.rules_of(policy).collect::<BTreeSet<_>>());
        for list in both {
            let mut seen = BTreeSet::new();
            for &side in &self.state.lists[list.0 as usize].row {
                if !seen.insert(side) || !self.has_peers(list, side) {
                    continue;
                }
                let (_, named) = &self.named[side as usize];
                // The first matches of each policy without the other one.
                let standing = self.standing_now(list);
                let hits = |of: &BTreeSet<OriginId>, gone: &BTreeSet<OriginId>| {
                    let mut hits: Vec<(&TierRule, ServiceSet)> = Vec::new();
                    let left = self.left(list, named, None, gone, &standing);
                    Side::watched(left, |entry, hit| {
                        if of.contains(&entry.origin) {
                            hits.push((entry, hit.clone()));
                        }
                    });
                    hits
                };
                let (first, second) = (hits(&ones, &others), hits(&others, &ones));
                for (a, services) in &first {
                    let differs = |(b, other): &&(&TierRule, ServiceSet)| {
                        a.action != b.action && !services.intersect(other).is_empty()
                    };
                    if let Some((b, _)) = second.iter().find(differs) {
                        return Some((a.origin, b.origin));
                    }
                }
            }
        }
        None
    }

    fn add_side(&self, reason: &mut Reason, rule: OriginId, list: ListNumber, side: u32) {
        let (_, named) = &self.named[side as usize];
        let own = |at: &u32| self.rules(list)[*at as usize].origin == rule;
        if !named.iter().any(own) || !self.has_peers(list, side) {
            return;
        }
        reason.names_somebody = true;
        let mut services = ServiceSet::default();
        for entry in named.iter().filter(|at| own(at)).map(|&at| &self.rules(list)[at as usize]) {
            services = services.union(&match &entry.services {
                Services::Any => ServiceSet::all(),
                Services::Set(set) => (**set).clone(),
            });
        }
        let nothing = BTreeSet::new();
        let standing = self.standing_now(list);
        let with = self.left(list, named, None, &nothing, &standing);
        let with = Side::watched(with, |entry, _| reason.is_reached |= entry.origin == rule);
        let gone = BTreeSet::from([rule]);
        let mut hits: Vec<(&TierRule, ServiceSet)> = Vec::new();
        let without = self.left(list, named, None, &gone, &standing);
        let without = Side::watched(without, |entry, hit| hits.push((entry, hit.clone())));
        let (before, after) = (with.allowed(), without.allowed());
        let delta = before.subtract(after).union(&after.subtract(before));
        let same = services.subtract(&delta);
        let instead = hits.into_iter().filter(|(_, hit)| !hit.intersect(&same).is_empty());
        reason.by.extend(instead.map(|(entry, _)| entry.origin));
        let open = without.pieces().iter().filter(|(_, decision)| decision.origin.is_none());
        reason.by_default |= open.into_iter().any(|(open, _)| !open.intersect(&same).is_empty());
        if !delta.is_empty() {
            self.add_other_ends(reason, list, side, &delta);
        }
    }

    /// Whether the list decides about any peer by the [`Side`] with the index `side`.
    fn has_peers(&self, list: ListNumber, side: u32) -> bool {
        self.pairs(list, side).next().is_some()
    }

    /// Returns the pairs of a class of pods that have the list and a class of peers of the same family with this side.
    fn pairs(&self, list: ListNumber, side: u32) -> impl Iterator<Item = (ClassId, ClassId)> {
        let row = self.state.lists[list.0 as usize].row.iter().zip((0..).map(ClassId));
        let peers = row.filter(move |(of, _)| **of == side).map(|(_, class)| class);
        peers.flat_map(move |peer| {
            let other = self.state.class(peer);
            let is_there = other.holder != Holder::Pods || self.members[peer.index()].0 > 0;
            let holders = self.occurrence(list).holders.iter().copied();
            let family = move |pod: &ClassId| self.state.class(*pod).sample.is_ipv4() == other.sample.is_ipv4();
            holders.filter(move |pod| is_there && family(pod)).map(move |pod| (pod, peer))
        })
    }

    /// Adds the reasons at other ends why connections keep their verdict although this end's decision changes.
    fn add_other_ends(&self, reason: &mut Reason, list: ListNumber, side: u32, delta: &ServiceSet) {
        let direction = self.occurrence(list).direction.opposite();
        let mut seen = BTreeSet::new();
        for (pod, peer) in self.pairs(list, side) {
            if !self.is_connection(pod, peer) {
                reason.only_itself |= pod == peer;
                reason.only_own_node |= pod != peer;
                continue;
            }
            let other = self.state.side_number(peer, direction, pod);
            if seen.insert(other) {
                let denies = self.state.sides[other as usize].pieces().iter();
                let denies =
                    denies.filter(|(services, decision)| !decision.allowed && !services.intersect(delta).is_empty());
                reason.blocked_by.extend(denies.filter_map(|(_, decision)| decision.origin));
            }
        }
    }
}
