//! Computes which addresses may connect, at which ports and by which rules, for all addresses and ports at once.
//!
//! **Purpose.** [`Reachability`] is a compiled state for queries. It divides the address space into classes of addresses that no rule
//! distinguishes. For two classes, it returns the allowed services and the deciding rule at either end. Callers that compare two states,
//! prove a claim or find rules without effect use it instead of sampling.
//!
//! **Not its purpose.** Routes, sessions, Services and replies: it evaluates policies for first packets only. Tables: its answers include
//! rules that a renderer refuses.
//!
//! ```text
//!  sets of the rules ---cut--> regions --alike--> classes: pods with the same lists in the same sets
//!  holders: pods, nodes --'                                nodes, each by its addresses in the same sets
//!                                                          outside: all other addresses of both families
//!  list x class --the rules that match it--> Side (services, decision), shared by all classes that the same rules match
//!  egress Side of `from` towards `to`, ingress Side of `to` towards `from` --> Verdicts
//! ```
//! A class does not tell whether a pod and a node are on the same machine, so queries state that. Pods of one class may be on different
//! nodes; otherwise each node would need its own classes.
//!
//! **Invariant.** Two addresses of one class have the same verdicts with every third address, except their own nodes. Each address is in
//! exactly one region.
//!
//! **What lost.** Probing each pair of pods at the ports in rules: exact only for those ports, and 10,000 pods are 100,000,000 pairs.
//! Binary decision diagrams over addresses and ports: they merge classes, but lose the deciding rule. Classes of pods by label: labels that
//! no policy reads split them needlessly, and address blocks do not split them.

mod classes;
pub mod difference;
mod partition;
pub mod removal;
mod side;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use self::classes::{Classes, HeldBy, Lists, Rows, holders, members};
pub use self::partition::Region;
use self::partition::{Family, class_at, cut, refine, region_at};
pub use self::side::{Decision, Protocol, Side, Verdict, Verdicts};
use self::source::OfIngress;
pub use self::source::Source;
use crate::contract::{Peers, SetId, TieredList};
use crate::object::PodName;
use crate::origin::Direction;
use crate::pipeline::Pipeline;
use crate::renderer::mirror::Mirror;

/// The number of a class in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(u32);

impl ClassId {
    /// Returns the class's index in [`Reachability::classes`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a rule list in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ListNumber(u32);

/// The owner of a class's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// Pods that policies may select.
    Pods,
    /// Nodes, by name. Several if more than one claims the address. Includes their host-network pods.
    Nodes(Arc<[Arc<str>]>),
    /// No pod or node of the cluster.
    Outside,
}

/// Addresses of one family that no rule distinguishes and whose own rules are the same.
#[derive(Clone, Debug)]
pub struct Class {
    /// The owner of the addresses.
    pub holder: Holder,
    /// An example address: the first in the class.
    pub sample: IpAddr,
    egress: Option<ListNumber>,
    ingress: Option<ListNumber>,
    /// Indices in `Reachability::sets` of the sets that contain the addresses, ascending.
    sets: Arc<[u32]>,
}

impl Class {
    fn list(&self, direction: Direction) -> Option<ListNumber> {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

/// All that decides about the addresses of a class. Two classes with equal traits have the same verdicts with every third one: nodes, which
/// have a class each, often do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traits<'a> {
    is_ipv4: bool,
    is_node: bool,
    egress: Option<ListNumber>,
    ingress: Option<ListNumber>,
    sets: &'a [u32],
}

/// A pod's address and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The pod's namespace and name.
    pub pod: PodName,
    /// One of the pod's addresses.
    pub address: IpAddr,
    /// The address's class.
    pub class: ClassId,
    /// The pod's node, or [`UNBOUND`](crate::pipeline::UNBOUND) if it has none.
    pub node: Arc<str>,
    /// Whether the pod uses its node's network. Its address is then its node's, and no policy selects the pod.
    pub host_network: bool,
}

/// A rule list and its effect on each class.
#[derive(Debug)]
struct Listed {
    list: Arc<TieredList>,
    /// For each class, an index in `sides`.
    row: Vec<u32>,
}

/// One compiled state, divided into classes of addresses.
#[derive(Debug)]
pub struct Reachability {
    classes: Vec<Class>,
    /// The regions of IPv4, then of IPv6.
    regions: [Vec<Region>; 2],
    lists: Vec<Listed>,
    /// The lists of classes that decide about ingress.
    of_ingress: OfIngress,
    /// The distinct sides of all lists and peers. The first one is that of an end without rules.
    sides: Vec<Side>,
    /// The sets that rules match, ascending.
    sets: Vec<SetId>,
    members: Vec<Member>,
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    nodes_of_pods: AHashMap<IpAddr, Arc<str>>,
}

impl Reachability {
    /// Reads the state of a pipeline with a mirror, such as [`Pipeline::without_tables`].
    pub fn of(pipeline: &Pipeline, mirror: &Mirror) -> Self {
        let lists = Lists::of(mirror);
        let mut classes = Classes::new();
        let holders = holders(mirror, &lists, &mut classes);
        let none = AddressSet::default();
        let sets = || lists.sets.iter().map(|&set| mirror.sets().get(set).unwrap_or(&none));
        let regions = Family::ALL
            .map(|family| cut(family, sets(), &holders, |inside, holder| classes.class(family, inside, holder)));
        let (rows, sides) = Rows::new(&lists.sets, &classes).fill(lists.all);
        let addresses = mirror
            .endpoints()
            .values()
            .flat_map(|pod| pod.addresses.iter().map(|&address| (address, pod.node.clone())));
        let classes = with_samples(&classes, &regions);
        Self {
            of_ingress: OfIngress::of(&classes),
            members: members(pipeline.cache(), &regions),
            nodes: mirror.nodes().iter().map(|(name, node)| (name.clone(), node.addresses.clone())).collect(),
            nodes_of_pods: addresses.collect(),
            classes,
            regions,
            lists: rows,
            sides,
            sets: lists.sets,
        }
    }

    /// Returns all classes of addresses, which together cover the address space. [`ClassId::index`] is an index in this slice.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Returns the class with this number. Panics if the number is from another state and too large.
    pub fn class(&self, id: ClassId) -> &Class {
        &self.classes[id.index()]
    }

    /// Returns what distinguishes the class in verdicts.
    pub fn traits(&self, id: ClassId) -> Traits<'_> {
        let Class { holder, sample, egress, ingress, sets } = self.class(id);
        let is_node = matches!(holder, Holder::Nodes(_));
        Traits { is_ipv4: sample.is_ipv4(), is_node, egress: *egress, ingress: *ingress, sets }
    }

    /// Returns the class that contains the address.
    pub fn class_at(&self, address: IpAddr) -> ClassId {
        class_at(&self.regions[Family::of(address) as usize], address)
    }

    /// Returns all regions in address order, IPv4 first. They cover the whole address space.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().flatten()
    }

    /// Returns the index of an address's region in [`Reachability::regions`].
    pub fn region_at(&self, address: IpAddr) -> usize {
        let before = if address.is_ipv4() { 0 } else { self.regions[0].len() };
        before + region_at(&self.regions[Family::of(address) as usize], address)
    }

    /// Splits the address space at both states' borders, IPv4 first. Yields first and last address, class in this state, class in `other`.
    pub fn refined<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (IpAddr, IpAddr, ClassId, ClassId)> + 'a {
        self.regions.iter().zip(&other.regions).flat_map(|(one, other)| refine(one, other))
    }

    /// Returns the addresses outside the cluster: of no pod and no node.
    pub fn outside(&self) -> AddressSet {
        let outside = self.regions().filter(|region| self.class(region.class).holder == Holder::Outside);
        AddressSet::of_ranges(outside.map(|region| (region.first, region.last)))
    }

    /// Returns the addresses of all unfinished pods, sorted by pod and address. Includes host-network pods unless they have no node.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the addresses of a pod. Empty if the pod is unknown.
    pub fn members_of(&self, pod: &PodName) -> &[Member] {
        let first = self.members.partition_point(|member| member.pod < *pod);
        let count = self.members[first..].partition_point(|member| member.pod == *pod);
        &self.members[first..first + count]
    }

    /// Returns the addresses of each node, by the node's name.
    pub fn nodes(&self) -> &BTreeMap<Arc<str>, Vec<IpAddr>> {
        &self.nodes
    }

    /// Whether one address is a pod's and the other is its node's.
    pub fn is_own_node(&self, one: IpAddr, other: IpAddr) -> bool {
        let is = |pod, node| {
            let of = self.nodes_of_pods.get(&pod).and_then(|name| self.nodes.get(name));
            of.is_some_and(|addresses| addresses.contains(&node))
        };
        is(one, other) || is(other, one)
    }

    /// Returns the index in [`Reachability::sides`] of the decisions of `class` about `peer`. Not valid between a pod and its own node.
    pub fn side_number(&self, class: ClassId, direction: Direction, peer: ClassId) -> u32 {
        match self.class(class).list(direction) {
            Some(list) => self.lists[list.0 as usize].row[peer.index()],
            None => 0,
        }
    }

    /// Returns the indices in [`Reachability::sides`] of the decisions of `from` and of `to` about connections from the one to the other. Not
    /// valid between a pod and its own node.
    pub fn side_numbers(&self, from: ClassId, to: ClassId) -> (u32, u32) {
        (self.side_number(from, Direction::Egress, to), self.side_number(to, Direction::Ingress, from))
    }

    /// Returns the class as the source of connections, which answers [`Reachability::side_numbers`] for many destinations. Takes time in
    /// proportion to the number of ingress lists.
    pub fn source(&self, class: ClassId) -> Source<'_> {
        Source::new(self, class)
    }

    /// Returns the distinct sides of all rule lists and peers. [`Reachability::side_number`] returns indices in this slice.
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// Returns an identifier of a class's rule list: classes with equal identifiers decide alike about every peer. `None` if the class has no
    /// rules in this direction.
    pub fn list_number(&self, class: ClassId, direction: Direction) -> Option<u32> {
        self.class(class).list(direction).map(|list| list.0)
    }

    /// Returns what the rules of `class` decide about an address of the pod's own node. `node` is the class of that address.
    pub fn own_node_side(&self, class: ClassId, direction: Direction, node: ClassId) -> Side {
        self.side_by(class, direction, node, |peers| *peers == Peers::OwnNode)
    }

    /// Returns the side of `class` about `peer` if its rules with sets of addresses match as usual, and others if `is_match` returns true.
    fn side_by(&self, class: ClassId, direction: Direction, peer: ClassId, is_match: impl Fn(&Peers) -> bool) -> Side {
        let Some(list) = self.class(class).list(direction) else { return Side::open() };
        let list = &self.lists[list.0 as usize];
        Side::of_rules(list.list.rules.iter().filter(|rule| match &rule.peers {
            Peers::Any => true,
            Peers::Sets(sets) => sets.iter().any(|&set| self.is_in(peer, set)),
            other => is_match(other),
        }))
    }

    fn is_in(&self, class: ClassId, set: SetId) -> bool {
        let at = self.sets.binary_search(&set).ok().and_then(|at| u32::try_from(at).ok());
        at.is_some_and(|at| self.class(class).sets.binary_search(&at).is_ok())
    }

    /// Returns the verdicts between two classes of one family. `own_node` is true if one end is the other's node.
    pub fn verdicts(&self, from: ClassId, to: ClassId, own_node: bool) -> Verdicts {
        if own_node {
            let egress = self.own_node_side(from, Direction::Egress, to);
            return Verdicts::of(&egress, &self.own_node_side(to, Direction::Ingress, from));
        }
        let (egress, ingress) = self.side_numbers(from, to);
        Verdicts::of(&self.sides[egress as usize], &self.sides[ingress as usize])
    }

    /// Returns the verdicts between two addresses. `None` if the addresses are equal or differ in family.
    pub fn between(&self, from: IpAddr, to: IpAddr) -> Option<Verdicts> {
        let is_askable = from != to && from.is_ipv4() == to.is_ipv4();
        is_askable.then(|| self.verdicts(self.class_at(from), self.class_at(to), self.is_own_node(from, to)))
    }

    /// Does the same as [`Self::between`] for a pod that has resolved these names to `to`. Names are in lower case without a final dot.
    pub fn between_by_name(&self, from: IpAddr, to: IpAddr, names: &BTreeSet<Arc<str>>) -> Option<Verdicts> {
        let verdicts = self.between(from, to)?;
        let (client, server, own_node) = (self.class_at(from), self.class_at(to), self.is_own_node(from, to));
        let list = self.class(client).list(Direction::Egress).map(|list| &self.lists[list.0 as usize].list);
        if names.is_empty() || !list.is_some_and(|list| list.has_names()) {
            return Some(verdicts);
        }
        let egress = self.side_by(client, Direction::Egress, server, |peers| match peers {
            Peers::Names { names: of, within } => {
                let is_within = within.as_ref().is_none_or(|sets| sets.iter().any(|&set| self.is_in(server, set)));
                is_within && of.patterns().iter().any(|of| names.iter().any(|name| of.matches(name)))
            }
            other => own_node && *other == Peers::OwnNode,
        });
        let ingress = match own_node {
            true => self.own_node_side(server, Direction::Ingress, client),
            false => self.sides[self.side_number(server, Direction::Ingress, client) as usize].clone(),
        };
        Some(Verdicts::of(&egress, &ingress))
    }
}

/// Builds the public classes, each with its first address as the sample.
fn with_samples(classes: &Classes, regions: &[Vec<Region>; 2]) -> Vec<Class> {
    let mut samples: Vec<Option<IpAddr>> = vec![None; classes.keys.len()];
    for region in regions.iter().flatten() {
        samples[region.class.index()].get_or_insert(region.first);
    }
    let class = |(&(signature, holder), sample): (&(u32, u32), Option<IpAddr>)| {
        let HeldBy { holder, egress, ingress } = classes.holders[holder as usize].clone();
        let sample = sample.expect("a class is made of regions");
        Class { holder, sample, egress, ingress, sets: classes.signatures[signature as usize].clone() }
    };
    classes.keys.iter().zip(samples).map(class).collect()
}
