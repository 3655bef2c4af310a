//! The differences between the verdicts of two states, for all addresses and ports.
//!
//! **Purpose.** [`Difference`] pairs the classes of two states. It keeps pairs whose verdicts differ, with the ports and the decisions that
//! cause the difference.
//!
//! **Not its purpose.** Names of policies, files or workloads, and pods that only one state has.
//!
//! ```text
//!  old classes x new classes --members and addresses in both--> joints --from x to--> same allowed services? no delta
//!                                                                                 `-> Delta: protocol, ports, decisions
//! ```
//! A pod is compared with the pod of the same name, per family, so its address may change. Each other address is compared with itself,
//! unless it is a pod's in either state.
//!
//! **Invariant.** A connection whose two ends exist in both states is in exactly one delta if its verdict differs, and otherwise in none.

mod comparison;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use self::comparison::Comparison;
use super::{ClassId, Decision, Holder, Member, Protocol, Reachability};
use crate::object::PodName;
use crate::origin::Direction;

/// A pod that exists in both states, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The pod's namespace and name.
    pub pod: PodName,
    /// The pod's address in the old state.
    pub before: IpAddr,
    /// The pod's address in the new state.
    pub after: IpAddr,
    nodes: [Arc<str>; 2],
}

/// An intersection of two classes: the pods and addresses that share a class in the old state and a class in the new state.
#[derive(Clone, Debug)]
pub struct Joint {
    /// The class in the old state.
    pub before: ClassId,
    /// The class in the new state.
    pub after: ClassId,
    /// The pods of both classes, sorted by name.
    pub units: Vec<Unit>,
    /// Addresses of nodes or outside the cluster, which are no pod's in either state.
    pub addresses: AddressSet,
}

/// The first and last address of a range.
type AddressRange = (IpAddr, IpAddr);

/// Ports of one protocol whose verdict differs, all in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delta {
    /// The protocol of the ports.
    pub protocol: Protocol,
    /// Inclusive ranges, ascending and disjoint. All ports for protocols without ports.
    pub ports: Vec<(u16, u16)>,
    /// True if the new state allows and the old state denies connections to the ports; false for the reverse.
    pub allowed: bool,
    /// The ends whose decision changed.
    pub because: Vec<Cause>,
    /// If the protocol is `Other`: protocols that rules name, which do not differ in the same way. They have deltas of their own, or none.
    pub except: Vec<Protocol>,
}

/// An end of a connection whose decision changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause {
    /// Egress if the source's rules decide, ingress if the destination's do.
    pub direction: Direction,
    /// The decision in the old state.
    pub before: Decision,
    /// The decision in the new state.
    pub after: Decision,
}

/// Two joints between which the verdicts of the two states differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The [`Joint`] of the sources, as an index in [`Difference::joints`].
    pub from: usize,
    /// The [`Joint`] of the destinations, as an index in [`Difference::joints`].
    pub to: usize,
    /// The differences, as an index in [`Difference::deltas`]. Not valid between a pod and its own node if an [`OwnNode`] exists for them.
    pub deltas: usize,
}

/// The deltas between a pod and its own node, if they are not the same as between the pod and other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnNode {
    /// The [`Joint`] that contains the pod, as an index in [`Difference::joints`].
    pub joint: usize,
    /// The pod, as an index in [`Joint::units`].
    pub unit: usize,
    /// The [`Joint`] that contains the addresses of the pod's node, as an index in [`Difference::joints`].
    pub node: usize,
    /// Whether the pod connects to the node, not the node to the pod.
    pub outgoing: bool,
    /// The differences, as an index in [`Difference::deltas`].
    pub deltas: usize,
}

/// The connections whose verdicts differ between two states, by groups of pods and addresses.
#[derive(Debug)]
pub struct Difference {
    joints: Vec<Joint>,
    deltas: Vec<Vec<Delta>>,
    pairs: Vec<Pair>,
    own_nodes: Vec<OwnNode>,
    only_before: Vec<(PodName, IpAddr)>,
    only_after: Vec<(PodName, IpAddr)>,
    pods: AddressSet,
}

impl Difference {
    /// The index of the empty list of deltas.
    pub const NONE: usize = 0;

    /// Compares the verdicts of two states for all addresses and ports.
    pub fn of(before: &Reachability, after: &Reachability) -> Self {
        let mut difference = Self {
            joints: Vec::new(),
            deltas: vec![Vec::new()],
            pairs: Vec::new(),
            own_nodes: Vec::new(),
            only_before: Vec::new(),
            only_after: Vec::new(),
            pods: AddressSet::default(),
        };
        difference.join(before, after);
        let mut comparison = Comparison::new(before, after);
        difference.compare(&mut comparison);
        difference.compare_own_nodes(&mut comparison);
        difference.drop_pairs_of_own_nodes();
        difference.deltas.append(&mut comparison.deltas);
        difference
    }

    /// Returns the intersections of the states' classes. Each pod of both states is in one joint per family, and each other address in one.
    pub fn joints(&self) -> &[Joint] {
        &self.joints
    }

    /// Returns the lists of deltas to which [`Pair`] and [`OwnNode`] refer. The first one, [`Difference::NONE`], is empty.
    pub fn deltas(&self) -> &[Vec<Delta>] {
        &self.deltas
    }

    /// Returns the pairs of joints whose verdicts differ, sorted by `from`, then `to`.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns the pods and own nodes to which [`Difference::pairs`] does not apply.
    pub fn own_nodes(&self) -> &[OwnNode] {
        &self.own_nodes
    }

    /// Returns the pods that have an address of a family only in the old state, with that address. They are not compared.
    pub fn only_before(&self) -> &[(PodName, IpAddr)] {
        &self.only_before
    }

    /// Returns the pods that have an address of a family only in the new state, with that address. They are not compared.
    pub fn only_after(&self) -> &[(PodName, IpAddr)] {
        &self.only_after
    }

    /// Returns the addresses that are a pod's in either state. No [`Joint::addresses`] contains them.
    pub fn pods(&self) -> &AddressSet {
        &self.pods
    }

    /// Whether no verdict differs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.own_nodes.iter().all(|own| own.deltas == Self::NONE)
    }

    fn join(&mut self, before: &Reachability, after: &Reachability) {
        let mut joints: BTreeMap<(ClassId, ClassId), (Vec<Unit>, Vec<AddressRange>)> = BTreeMap::new();
        let mut news: BTreeMap<(&PodName, bool), Vec<&Member>> = BTreeMap::new();
        for member in after.members() {
            news.entry((&member.pod, member.address.is_ipv6())).or_default().push(member);
        }
        // If a pod has several addresses of a family, they are paired in order.
        news.values_mut().for_each(|members| members.reverse());
        for old in before.members() {
            match news.get_mut(&(&old.pod, old.address.is_ipv6())).and_then(Vec::pop) {
                Some(new) => joints.entry((old.class, new.class)).or_default().0.push(Unit {
                    pod: old.pod.clone(),
                    before: old.address,
                    after: new.address,
                    nodes: [old.node.clone(), new.node.clone()],
                }),
                None => self.only_before.push((old.pod.clone(), old.address)),
            }
        }
        let left = news.into_values().flatten();
        self.only_after.extend(left.map(|new| (new.pod.clone(), new.address)));
        let mut pods = Vec::new();
        for (first, last, old, new) in before.refined(after) {
            let is_pod = [before.class(old), after.class(new)].iter().any(|class| class.holder == Holder::Pods);
            match is_pod {
                true => pods.push((first, last)),
                false => joints.entry((old, new)).or_default().1.push((first, last)),
            }
        }
        self.pods = AddressSet::of_ranges(pods);
        self.joints = joints
            .into_iter()
            .map(|((before, after), (units, ranges))| Joint {
                before,
                after,
                units,
                addresses: AddressSet::of_ranges(ranges),
            })
            .collect();
    }

    fn compare(&mut self, comparison: &mut Comparison<'_>) {
        // Most changes are small, so most pairs need no look.
        let [egress, ingress] =
            [Direction::Egress, Direction::Ingress].map(|way| comparison.changed(&self.joints, way));
        let families: Vec<bool> = self.joints.iter().map(|joint| comparison.is_v6(joint)).collect();
        let is_some_changed = ingress.contains(&true);
        for (from, source) in self.joints.iter().enumerate().filter(|(from, _)| egress[*from] || is_some_changed) {
            let sources = comparison.sources(source);
            for (to, destination) in self.joints.iter().enumerate() {
                if !(egress[from] || ingress[to]) || families[from] != families[to] {
                    continue;
                }
                let alone = from == to && source.units.len() == 1 && source.addresses.is_empty();
                let deltas = comparison.deltas_from(&sources, destination);
                if deltas != Self::NONE && !alone {
                    self.pairs.push(Pair { from, to, deltas });
                }
            }
        }
    }

    /// Compares each pod with its own nodes of both states.
    fn compare_own_nodes(&mut self, comparison: &mut Comparison<'_>) {
        let mut by_node: AHashMap<(usize, Arc<str>), Vec<usize>> = AHashMap::new();
        for (at, joint) in self.joints.iter().enumerate() {
            for (state, names) in comparison.nodes(joint).into_iter().enumerate() {
                for name in names.into_iter().flatten() {
                    by_node.entry((state, name.clone())).or_default().push(at);
                }
            }
        }
        let none = Vec::new();
        for (joint, pods) in self.joints.iter().enumerate() {
            if !comparison.is_restricted(pods) {
                continue;
            }
            for (unit, pod) in pods.units.iter().enumerate() {
                let of = |state: usize| by_node.get(&(state, pod.nodes[state].clone())).unwrap_or(&none);
                let mut nodes: Vec<usize> = of(0).iter().chain(of(1)).copied().collect();
                nodes.sort_unstable();
                nodes.dedup();
                for node in nodes {
                    let place = &self.joints[node];
                    if comparison.is_v6(pods) != comparison.is_v6(place) {
                        continue;
                    }
                    let own = [of(0).contains(&node), of(1).contains(&node)];
                    for outgoing in [true, false] {
                        let (from, to) = if outgoing { (pods, place) } else { (place, pods) };
                        let alike = comparison.deltas(from, to);
                        let deltas = comparison.own_deltas((joint, node, own, outgoing), from, to);
                        if deltas != alike {
                            self.own_nodes.push(OwnNode { joint, unit, node, outgoing, deltas });
                        }
                    }
                }
            }
        }
    }

    /// Drops a pair of pods and a node if all these pods are on that node, because `own_nodes` lists each of them.
    fn drop_pairs_of_own_nodes(&mut self) {
        let mut told: AHashMap<(usize, usize, bool), usize> = AHashMap::new();
        for own in &self.own_nodes {
            *told.entry((own.joint, own.node, own.outgoing)).or_default() += 1;
        }
        let all = |joint: usize, node, outgoing| {
            told.get(&(joint, node, outgoing)).is_some_and(|&count| count == self.joints[joint].units.len())
        };
        self.pairs.retain(|pair| !all(pair.from, pair.to, true) && !all(pair.to, pair.from, false));
    }
}
