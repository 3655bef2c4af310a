//! Compares two joints: finds the ports whose verdict changes and the decisions that cause it. Caches results per pair of sides.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::ServiceSet;

use super::{Cause, Delta, Difference, Joint};
use crate::origin::Direction;
use crate::reachability::{ClassId, Holder, Protocol, Reachability, Side, Source, Verdict, Verdicts};

/// The pods' joint, the node's joint, whether the node is the pods' own node in each state, and whether the pods connect.
type OwnKey = (usize, usize, [bool; 2], bool);

/// Two states and the cached results of their comparison.
pub(super) struct Comparison<'a> {
    states: [&'a Reachability; 2],
    /// For each state and side, a number that is equal for sides that allow the same protocols and ports.
    allowed: [Vec<u32>; 2],
    /// For each state and side, a number that is equal for equal sides. Most lists have rules of few policies, so that the same sides occur in
    /// many lists.
    equal: [Vec<u32>; 2],
    /// The index of the deltas between sides, by their numbers in `equal`: egress and ingress before, egress and ingress after.
    by_sides: AHashMap<[u32; 4], usize>,
    by_own_node: AHashMap<OwnKey, usize>,
    numbers: AHashMap<Vec<Delta>, usize>,
    /// All lists of deltas except the first, which is empty.
    pub(super) deltas: Vec<Vec<Delta>>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(before: &'a Reachability, after: &'a Reachability) -> Self {
        let mut numbers: AHashMap<Arc<ServiceSet>, u32> = AHashMap::new();
        let mut allowed = |state: &Reachability| -> Vec<u32> {
            let number = |side: &Side| {
                let next = u32::try_from(numbers.len()).expect("fewer than 2^32 sides");
                *numbers.entry(side.allowed().clone()).or_insert(next)
            };
            state.sides().iter().map(number).collect()
        };
        let mut sides: AHashMap<&Side, u32> = AHashMap::new();
        let mut equal = |state: &'a Reachability| -> Vec<u32> {
            let number = |side| {
                let next = u32::try_from(sides.len()).expect("fewer than 2^32 sides");
                *sides.entry(side).or_insert(next)
            };
            state.sides().iter().map(number).collect()
        };
        Self {
            equal: [equal(before), equal(after)],
            allowed: [allowed(before), allowed(after)],
            states: [before, after],
            by_sides: AHashMap::new(),
            by_own_node: AHashMap::new(),
            numbers: AHashMap::new(),
            deltas: Vec::new(),
        }
    }

    fn classes(joint: &Joint) -> [ClassId; 2] {
        [joint.before, joint.after]
    }

    pub(super) fn is_v6(&self, joint: &Joint) -> bool {
        self.states[0].class(joint.before).sample.is_ipv6()
    }

    /// Whether the joint has rules in either state.
    pub(super) fn is_restricted(&self, joint: &Joint) -> bool {
        let classes = self.states.iter().zip(Self::classes(joint));
        let directions = [Direction::Egress, Direction::Ingress];
        classes.into_iter().any(|(state, class)| directions.iter().any(|&way| state.list_number(class, way).is_some()))
    }

    /// Returns the nodes with these addresses in each state. `None` if the addresses are not nodes'.
    pub(super) fn nodes(&self, joint: &Joint) -> [Option<&'a [Arc<str>]>; 2] {
        let [before, after] = Self::classes(joint);
        [(self.states[0], before), (self.states[1], after)].map(|(state, class)| match &state.class(class).holder {
            Holder::Nodes(names) => Some(&**names),
            Holder::Pods | Holder::Outside => None,
        })
    }

    /// Returns for each of the joints whether its decisions in this direction about any of them differ between the states.
    pub(super) fn changed(&self, joints: &[Joint], direction: Direction) -> Vec<bool> {
        let [before, after] = self.states;
        let differs = |joint: &Joint| {
            joints.iter().any(|peer| {
                let old = before.side_number(joint.before, direction, peer.before);
                let new = after.side_number(joint.after, direction, peer.after);
                self.allowed[0][old as usize] != self.allowed[1][new as usize]
            })
        };
        // Many joints share their lists.
        let mut known: AHashMap<[Option<u32>; 2], bool> = AHashMap::new();
        let is_changed = |joint: &Joint| {
            let lists = [before.list_number(joint.before, direction), after.list_number(joint.after, direction)];
            *known.entry(lists).or_insert_with(|| differs(joint))
        };
        joints.iter().map(is_changed).collect()
    }

    /// Returns the joint as the source of connections in the old and the new state.
    pub(super) fn sources(&self, from: &Joint) -> [Source<'a>; 2] {
        let [before, after] = self.states;
        [before.source(from.before), after.source(from.after)]
    }

    /// Returns the index of the deltas between two joints that are not a pod and its own node. `sources` are those of the first joint.
    pub(super) fn deltas_from(&mut self, sources: &[Source<'_>; 2], to: &Joint) -> usize {
        self.deltas_of(sources[0].side_numbers(to.before), sources[1].side_numbers(to.after))
    }

    /// Does the same as [`Self::deltas_from`] for a single destination.
    pub(super) fn deltas(&mut self, from: &Joint, to: &Joint) -> usize {
        let [before, after] = self.states;
        self.deltas_of(before.side_numbers(from.before, to.before), after.side_numbers(from.after, to.after))
    }

    /// Returns the index of the deltas between the side numbers of egress and ingress of both states.
    fn deltas_of(&mut self, (eb, ib): (u32, u32), (ea, ia): (u32, u32)) -> usize {
        let [before, after] = &self.allowed;
        if before[eb as usize] == after[ea as usize] && before[ib as usize] == after[ia as usize] {
            return Difference::NONE;
        }
        let [old, new] = &self.equal;
        let key = [old[eb as usize], old[ib as usize], new[ea as usize], new[ia as usize]];
        if let Some(&known) = self.by_sides.get(&key) {
            return known;
        }
        let [old, new] = self.states.map(Reachability::sides);
        let deltas = differences(
            &Verdicts::of(&old[eb as usize], &old[ib as usize]),
            &Verdicts::of(&new[ea as usize], &new[ia as usize]),
        );
        let number = self.number(deltas);
        self.by_sides.insert(key, number);
        number
    }

    /// Returns the index of the deltas between a pod and a node that is its own in at least one state.
    pub(super) fn own_deltas(&mut self, key: OwnKey, from: &Joint, to: &Joint) -> usize {
        if let Some(&known) = self.by_own_node.get(&key) {
            return known;
        }
        let [old, new] = self.states;
        let deltas =
            differences(&old.verdicts(from.before, to.before, key.2[0]), &new.verdicts(from.after, to.after, key.2[1]));
        let number = self.number(deltas);
        self.by_own_node.insert(key, number);
        number
    }

    fn number(&mut self, deltas: Vec<Delta>) -> usize {
        if deltas.is_empty() {
            return Difference::NONE;
        }
        let next = self.deltas.len() + 1;
        *self.numbers.entry(deltas).or_insert_with_key(|deltas| {
            self.deltas.push(deltas.clone());
            next
        })
    }
}

fn differences(before: &Verdicts, after: &Verdicts) -> Vec<Delta> {
    let named: BTreeSet<Protocol> = before.protocols().chain(after.protocols()).collect();
    let of = |protocol| differences_of(protocol, before.of_protocol(protocol), after.of_protocol(protocol));
    let mut others = of(Protocol::Other);
    let mut deltas = Vec::new();
    for protocol in named.into_iter().filter(|&protocol| protocol != Protocol::Other) {
        let its = of(protocol);
        if !matches!(protocol, Protocol::Number(_)) {
            deltas.extend(its);
            continue;
        }
        let alone: Vec<Delta> = its.iter().map(|delta| Delta { protocol: Protocol::Other, ..delta.clone() }).collect();
        let is_alike = others.iter().map(|delta| Delta { except: Vec::new(), ..delta.clone() }).eq(alone);
        if !is_alike {
            others.iter_mut().for_each(|delta| delta.except.push(protocol));
            deltas.extend(its);
        }
    }
    deltas.extend(others);
    deltas
}

fn differences_of(protocol: Protocol, before: &[Verdict], after: &[Verdict]) -> Vec<Delta> {
    let mut deltas: Vec<Delta> = Vec::new();
    let (mut old, mut new, mut first) = (0, 0, 0);
    while let (Some(one), Some(other)) = (before.get(old), after.get(new)) {
        let last = one.ports.last.min(other.ports.last);
        if one.allowed() != other.allowed() {
            add(&mut deltas, protocol, (first, last), one, other);
        }
        old += usize::from(one.ports.last == last);
        new += usize::from(other.ports.last == last);
        first = last.saturating_add(1);
    }
    deltas
}

/// Adds ports to the delta with the same causes, or creates a delta.
fn add(deltas: &mut Vec<Delta>, protocol: Protocol, ports: (u16, u16), before: &Verdict, after: &Verdict) {
    let ends = [(Direction::Egress, before.egress, after.egress), (Direction::Ingress, before.ingress, after.ingress)];
    let causes = ends.into_iter().filter(|(_, before, after)| before.allowed != after.allowed);
    let because: Vec<_> = causes.map(|(direction, before, after)| Cause { direction, before, after }).collect();
    let same = |delta: &&mut Delta| delta.protocol == protocol && delta.because == because;
    match deltas.iter_mut().find(same) {
        Some(delta) => match delta.ports.last_mut() {
            Some(last) if last.1.checked_add(1) == Some(ports.0) => last.1 = ports.1,
            _ => delta.ports.push(ports),
        },
        None => {
            let allowed = after.allowed();
            deltas.push(Delta { protocol, ports: vec![ports], allowed, because, except: Vec::new() });
        }
    }
}
