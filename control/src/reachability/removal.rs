//! The effect of removing rules or whole policies, for all addresses and ports.
//!
//! **Purpose.** [`Removals`] finds out whether a rule, a policy or a group of both can be removed without changing a verdict, and why. It
//! reads one compiled state instead of compiling a state without the rule, because a rule occurs in few lists and matches few classes.
//!
//! **Not its purpose.** File names, advice, and the effect of changing a rule.
//!
//! ```text
//!  rule --occurs in--> lists --sides that it matches--> same allowed services without it? no effect there
//!                                                   `--> different: does the other end allow any of them? the rule matters
//! ```
//! **Invariant.** A removal is harmless exactly if [`Difference`](super::difference::Difference) between the states with and without the
//! removed rules is empty. The state must come from [`Pipeline::with_every_rule`](crate::pipeline::Pipeline::with_every_rule). Other states
//! omit rules that other rules make redundant.
//!
//! **Domain names.** A state does not have the addresses of domain names: a rule that names domains may match any peer or none. Such rules
//! only allow, so two cases cover all combinations: none of them matches, and one of them alone matches every peer. Harmless removals
//! change nothing in any case.
//!
//! **What lost.** Compiling the state without each rule and comparing: the tests' reference, but seconds for each of thousands of rules.
//! Comparing rules in pairs, as linters do: misses two rules that together cover a third, and denials at the other end.

mod reason;
mod standing;

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use bulkhead_classifier::{OriginId, ServiceSet};

pub use self::reason::Reason;
use self::standing::{Isolations, Standing};
use super::{ClassId, Holder, ListNumber, Reachability, Side};
use crate::contract::{Peers, TierRule};
use crate::object::PolicyName;
use crate::origin::{Direction, Origin, Origins};

/// The rules and policies to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Rules, by origin number.
    pub rules: BTreeSet<OriginId>,
    /// Whole policies, with their rules and their isolation of pods. Cluster policies by their
    /// [key](crate::object::ClusterPolicyName::key).
    pub policies: BTreeSet<PolicyName>,
}

impl Removal {
    /// Returns the removal of one rule.
    pub fn of_rule(rule: OriginId) -> Self {
        Self { rules: [rule].into(), ..Self::default() }
    }
}

/// A state from which rules and policies are removed step by step.
#[derive(Debug)]
pub struct Removals<'a> {
    state: &'a Reachability,
    /// The rule lists with the pods that have them, by list number.
    lists: Vec<Occurrence>,
    /// For each of [`Reachability::sides`]: its rule list, and the indices of the list's rules that match the side's peers.
    named: Vec<(ListNumber, Box<[u32]>)>,
    /// For each of [`Reachability::sides`]: what it still allows after all removals so far.
    allowed: Vec<Allowed>,
    lists_of_rule: AHashMap<OriginId, Vec<ListNumber>>,
    lists_of_policy: AHashMap<PolicyName, BTreeSet<ListNumber>>,
    rules_of_policy: AHashMap<PolicyName, BTreeSet<OriginId>>,
    /// For each class: the number of pods' addresses in the class, and the pods' nodes.
    members: Vec<(usize, BTreeSet<Arc<str>>)>,
    removed: Removal,
}

/// The allowed protocols and ports of a side: first if no rule that names domains matches, then if only the first such rule of the list
/// matches, and so on.
type Allowed = Box<[Arc<ServiceSet>]>;

/// A rule list and the pods that have it.
#[derive(Debug)]
struct Occurrence {
    direction: Direction,
    /// The classes of pods that have the list.
    holders: Vec<ClassId>,
    isolations: Isolations,
}

/// A rule list that a removal changes, with its new allowed ports.
struct Changed {
    list: ListNumber,
    /// What sides allow after the removal, by index in [`Reachability::sides`].
    sides: AHashMap<u32, Allowed>,
    /// Whether verdicts between pods and their own nodes may change. Rules of NetworkPolicies do not affect them.
    concerns_own_nodes: bool,
}

impl<'a> Removals<'a> {
    /// Prepares the state for removals. Removes nothing yet.
    pub fn of(state: &'a Reachability, origins: &Origins) -> Self {
        let mut members = vec![(0, BTreeSet::new()); state.classes.len()];
        for member in &state.members {
            let (count, nodes) = &mut members[member.class.index()];
            *count += 1;
            nodes.insert(member.node.clone());
        }
        let mut removals = Self {
            lists: Vec::with_capacity(state.lists.len()),
            named: vec![(ListNumber(0), [].into()); state.sides.len()],
            allowed: state.sides.iter().map(|side| [side.allowed().clone()].into()).collect(),
            lists_of_rule: AHashMap::new(),
            lists_of_policy: AHashMap::new(),
            rules_of_policy: AHashMap::new(),
            members,
            removed: Removal::default(),
            state,
        };
        for number in (0..).map(ListNumber).take(state.lists.len()) {
            removals.add_list(number, origins);
        }
        removals.find_holders();
        removals
    }

    fn add_list(&mut self, number: ListNumber, origins: &Origins) {
        let listed = &self.state.lists[number.0 as usize];
        let mut isolations = Isolations::default();
        let mut direction = Direction::Ingress;
        for rule in &listed.list.rules {
            let origin = origins.get(rule.origin);
            isolations.note(rule, origin);
            let policy = match origin {
                Some(Origin::Policy { policy, direction: of, .. }) => {
                    direction = *of;
                    policy.clone()
                }
                Some(Origin::ClusterPolicy { policy, direction: of, .. }) => {
                    direction = *of;
                    policy.key()
                }
                Some(Origin::Isolation { policies, others, direction: of, .. }) => {
                    direction = *of;
                    for policy in policies.iter().cloned().chain(others.iter().map(|policy| policy.key())) {
                        self.lists_of_policy.entry(policy).or_default().insert(number);
                    }
                    continue;
                }
                _ => continue,
            };
            let lists = self.lists_of_rule.entry(rule.origin).or_default();
            if lists.last() != Some(&number) {
                lists.push(number);
            }
            self.lists_of_policy.entry(policy.clone()).or_default().insert(number);
            self.rules_of_policy.entry(policy).or_default().insert(rule.origin);
        }
        self.lists.push(Occurrence { direction, holders: Vec::new(), isolations });
        let named = Named::of(self.state, number);
        let mut known: AHashSet<u32> = AHashSet::new();
        for (&side, class) in listed.row.iter().zip(0..) {
            if known.insert(side) {
                let positions = named.by(ClassId(class));
                if listed.list.has_names() {
                    let standing = self.standing_now(number);
                    self.allowed[side as usize] = self.allowed(number, &positions, &BTreeSet::new(), &standing);
                }
                self.named[side as usize] = (number, positions);
            }
        }
    }

    fn find_holders(&mut self) {
        for (class, at) in self.state.classes.iter().zip(0..) {
            if self.members[at as usize].0 == 0 {
                continue;
            }
            for list in [class.egress, class.ingress].into_iter().flatten() {
                self.lists[list.0 as usize].holders.push(ClassId(at));
            }
        }
    }

    /// Whether removing this, in addition to earlier removals, changes no verdict.
    pub fn is_harmless(&self, removal: &Removal) -> bool {
        let changed = self.changed(removal);
        !changed.iter().any(|one| self.is_felt(one, &changed, removal))
    }

    /// Removes the rules and policies. Later queries use the state without them.
    pub fn remove(&mut self, removal: &Removal) {
        for one in self.changed(removal) {
            for (side, allowed) in one.sides {
                self.allowed[side as usize] = allowed;
            }
        }
        self.removed.rules.extend(self.rules_in(removal));
        self.removed.policies.extend(removal.policies.iter().cloned());
    }

    /// Returns the rules in the state that come from a policy. Excludes rules without matching addresses.
    pub fn rules_of(&self, policy: &PolicyName) -> impl Iterator<Item = OriginId> {
        self.rules_of_policy.get(policy).into_iter().flatten().copied()
    }

    fn rules_in(&self, removal: &Removal) -> BTreeSet<OriginId> {
        let of_policies = removal.policies.iter().flat_map(|policy| self.rules_of(policy));
        removal.rules.iter().copied().chain(of_policies).collect()
    }

    fn rules(&self, list: ListNumber) -> &'a [TierRule] {
        &self.state.lists[list.0 as usize].list.rules
    }

    fn occurrence(&self, list: ListNumber) -> &Occurrence {
        &self.lists[list.0 as usize]
    }

    /// Returns what the remaining rules at these indices allow.
    fn allowed(&self, list: ListNumber, positions: &[u32], gone: &BTreeSet<OriginId>, standing: &Standing) -> Allowed {
        let allowed = |name| Side::of_rules(self.left(list, positions, name, gone, standing)).allowed().clone();
        std::iter::once(None).chain(self.names(list, positions).map(Some)).map(allowed).collect()
    }

    /// As [`Removals::allowed`], for the pods' own nodes.
    fn allowed_to_own_node(
        &self,
        list: ListNumber,
        positions: &[u32],
        gone: &BTreeSet<OriginId>,
        standing: &Standing,
    ) -> Allowed {
        let allowed = |name| {
            let left = self.left(list, positions, name, gone, standing);
            Side::of_rules(self.with_own_node(list, left, standing).iter()).allowed().clone()
        };
        std::iter::once(None).chain(self.names(list, positions).map(Some)).map(allowed).collect()
    }

    /// Returns the indices of those rules that name domains.
    fn names(&self, list: ListNumber, positions: &[u32]) -> impl Iterator<Item = u32> {
        positions.iter().copied().filter(move |&at| names_domains(&self.rules(list)[at as usize]))
    }

    fn changed(&self, removal: &Removal) -> Vec<Changed> {
        let gone = self.rules_in(removal);
        let of_rules = removal.rules.iter().filter_map(|rule| self.lists_of_rule.get(rule)).flatten();
        let of_policies = removal.policies.iter().filter_map(|policy| self.lists_of_policy.get(policy)).flatten();
        let lists: BTreeSet<ListNumber> = of_rules.chain(of_policies).copied().collect();
        let changed = lists.into_iter().map(|list| self.changed_list(list, removal, &gone));
        changed.filter(|one| !one.sides.is_empty() || one.concerns_own_nodes).collect()
    }

    fn changed_list(&self, list: ListNumber, removal: &Removal, gone: &BTreeSet<OriginId>) -> Changed {
        let (before, standing) = (self.standing_now(list), self.standing(list, removal, gone));
        let opens = before != standing;
        let mut sides = AHashMap::new();
        let mut seen = AHashSet::new();
        for &side in &self.state.lists[list.0 as usize].row {
            if !seen.insert(side) {
                continue;
            }
            let (_, named) = &self.named[side as usize];
            let goes = || named.iter().any(|&at| gone.contains(&self.rules(list)[at as usize].origin));
            if !opens && !goes() {
                continue;
            }
            let after = self.allowed(list, named, gone, &standing);
            if after != self.allowed[side as usize] {
                sides.insert(side, after);
            }
        }
        let isolations = &self.occurrence(list).isolations;
        let concerns_own_node =
            |rule: &TierRule| gone.contains(&rule.origin) && !isolations.exempts_own_nodes(rule, &before);
        Changed { list, sides, concerns_own_nodes: opens || self.rules(list).iter().any(concerns_own_node) }
    }

    /// Whether any connection of a pod that has the list gets another verdict.
    fn is_felt(&self, one: &Changed, all: &[Changed], removal: &Removal) -> bool {
        let Occurrence { direction, holders, .. } = self.occurrence(one.list);
        let mut same: AHashSet<(u32, u32)> = AHashSet::new();
        let row = &self.state.lists[one.list.0 as usize].row;
        for (side, peer) in row.iter().zip((0..).map(ClassId)) {
            let Some(after) = one.sides.get(side) else { continue };
            for &pod in holders.iter().filter(|&&pod| self.is_connection(pod, peer)) {
                let other = self.state.side_number(peer, direction.opposite(), pod);
                if same.contains(&(*side, other)) {
                    continue;
                }
                let opposite = &self.allowed[other as usize];
                let opposite_after = all.iter().find_map(|one| one.sides.get(&other)).unwrap_or(opposite);
                let both = |one: &Allowed, other: &Allowed| -> Vec<ServiceSet> {
                    one.iter().flat_map(|one| other.iter().map(|other| one.intersect(other))).collect()
                };
                if both(&self.allowed[*side as usize], opposite) != both(after, opposite_after) {
                    return true;
                }
                same.insert((*side, other));
            }
        }
        one.concerns_own_nodes && holders.iter().any(|&pod| self.is_felt_at_own_node(one.list, pod, removal))
    }

    /// Whether two classes contain two ends of one family that may connect and are not a pod and its own node.
    fn is_connection(&self, pod: ClassId, peer: ClassId) -> bool {
        let (one, other) = (self.state.class(pod), self.state.class(peer));
        one.sample.is_ipv4() == other.sample.is_ipv4()
            && match &other.holder {
                Holder::Outside => true,
                Holder::Pods => self.members[peer.index()].0 > usize::from(pod == peer),
                Holder::Nodes(names) => self.members[pod.index()].1.iter().any(|node| !names.contains(node)),
            }
    }

    fn is_felt_at_own_node(&self, list: ListNumber, pod: ClassId, removal: &Removal) -> bool {
        let gone = self.rules_in(removal);
        let named = Named::of(self.state, list);
        self.own_nodes(pod).any(|node| {
            let positions: Vec<u32> = named.by_own_node(node).collect();
            let allowed = |gone: &BTreeSet<OriginId>, removal| {
                self.allowed_to_own_node(list, &positions, gone, &self.standing(list, removal, gone))
            };
            allowed(&BTreeSet::new(), &Removal::default()) != allowed(&gone, removal)
        })
    }

    /// Returns the classes of addresses of these pods' own nodes, in the pods' family.
    fn own_nodes(&self, pod: ClassId) -> impl Iterator<Item = ClassId> {
        let is_v4 = self.state.class(pod).sample.is_ipv4();
        let nodes = self.members[pod.index()].1.iter().filter_map(|node| self.state.nodes.get(node));
        let addresses = nodes.flatten().filter(move |address| address.is_ipv4() == is_v4);
        let classes = addresses.map(|&address| self.state.class_at(address));
        classes.filter(|&class| matches!(self.state.class(class).holder, Holder::Nodes(_)))
    }
}

/// Whether a rule matches peers by their domain names.
const fn names_domains(rule: &TierRule) -> bool {
    matches!(rule.peers, Peers::Names { .. })
}

/// Finds the rules of a list that match a peer. A rule that names domains may match every peer.
struct Named<'a> {
    state: &'a Reachability,
    rules: &'a [TierRule],
    /// For each rule, the indices of its sets in `Reachability::sets`.
    places: Vec<Vec<u32>>,
}

impl<'a> Named<'a> {
    fn of(state: &'a Reachability, list: ListNumber) -> Self {
        let rules = &state.lists[list.0 as usize].list.rules;
        let place = |set| state.sets.binary_search(set).ok().and_then(|at| u32::try_from(at).ok());
        let places = rules
            .iter()
            .map(|rule| rule.peers.sets().into_iter().flat_map(|sets| sets.iter().filter_map(place)).collect());
        Self { state, rules, places: places.collect() }
    }

    fn names(&self, at: usize, class: ClassId) -> bool {
        let sets = &self.state.class(class).sets;
        match self.rules[at].peers {
            Peers::Any | Peers::Names { within: None, .. } => true,
            Peers::OwnNode => false,
            Peers::Sets(_) | Peers::Names { within: Some(_), .. } => {
                self.places[at].iter().any(|place| sets.binary_search(place).is_ok())
            }
        }
    }

    /// Returns the indices of the rules that match addresses of `class`, which are not those of the pod's own node.
    fn by(&self, class: ClassId) -> Box<[u32]> {
        (0..).zip(0..self.rules.len()).filter(|&(_, at)| self.names(at, class)).map(|(number, _)| number).collect()
    }

    /// Returns the indices of the rules that match addresses of `class`, which are those of the pod's own node.
    fn by_own_node(&self, class: ClassId) -> impl Iterator<Item = u32> {
        let names = move |at: usize| self.rules[at].peers == Peers::OwnNode || self.names(at, class);
        (0..).zip(0..self.rules.len()).filter(move |&(_, at)| names(at)).map(|(number, _)| number)
    }
}
