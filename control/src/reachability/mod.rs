//! Who reaches whom, at which ports, by which rules: answered by sets for all addresses and ports at once.
//!
//! **Purpose.** [`Reachability`] is one compiled state, ready to be asked. It cuts the address space into classes of addresses that no
//! rule can tell apart, and says for two classes which services get through and which rule decides on either side. What compares two
//! states, proves a claim, or looks for rules without effect, asks this and never samples.
//!
//! **Not its purpose.** No routes, sessions, Services or replies: it is what the policies say to first packets. No tables either, so
//! that rules that a renderer refuses are answered for as they are written.
//!
//! ```text
//!  sets of the rules ---cut--> regions --alike--> classes: pods with the same lists in the same sets
//!  holders: pods, nodes --'                                nodes, each by its addresses in the same sets
//!                                                          outside: everything else, both families whole
//!  list x class --the rules that name it--> Side (services, decision), shared by all classes that the same rules name
//!  egress Side of `from` towards `to`, ingress Side of `to` towards `from` --> Verdicts
//! ```
//! Traffic between a pod and its own node is the one thing that a class does not tell: each question says whether it is that.
//! Pods of one class may be on different nodes, else every node would have classes of its own.
//!
//! **Invariant.** Two addresses of one class have the same verdicts with every third address, but for own nodes. The regions cover
//! every address once.
//!
//! **What lost.** Probing each pair of pods with packets at the ports that rules name: exact only for the ports asked, and 10,000 pods
//! are 100,000,000 pairs. Binary decision diagrams over addresses and ports: they join what classes keep apart, but an answer has to
//! be turned back into rules and ranges, and the rule that decides is lost. Classes of pods by label: labels that no policy reads
//! split them, and addresses in blocks do not.

mod classes;
pub mod difference;
mod partition;
pub mod removal;
mod side;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use self::classes::{Classes, HeldBy, Lists, Rows, holders, members};
pub use self::partition::Region;
use self::partition::{Family, class_at, cut, refine, region_at};
pub use self::side::{Decision, Protocol, Side, Verdict, Verdicts};
use crate::contract::{Peers, SetId, TieredList};
use crate::object::PodName;
use crate::origin::Direction;
use crate::pipeline::Pipeline;
use crate::renderer::mirror::Mirror;

/// A class's number in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(u32);

impl ClassId {
    /// As a place in [`Reachability::classes`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A list's number in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ListNumber(u32);

/// Whose the addresses of a class are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// Pods that policies may select.
    Pods,
    /// These nodes, by name; more than one where several say that the address is theirs. Pods in the network of a node have its addresses.
    Nodes(Arc<[Arc<str>]>),
    /// Nobody in the cluster.
    Outside,
}

/// Addresses of one family that no rule can tell apart, and whose own rules are the same.
#[derive(Clone, Debug)]
pub struct Class {
    /// Whose they are.
    pub holder: Holder,
    /// One of them, for a question that needs an address.
    pub sample: IpAddr,
    egress: Option<ListNumber>,
    ingress: Option<ListNumber>,
    /// The sets that they are in, as places among those of the state.
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

/// An address of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The pod.
    pub pod: PodName,
    /// The address.
    pub address: IpAddr,
    /// Its class.
    pub class: ClassId,
    /// The pod's node; [`UNBOUND`](crate::pipeline::UNBOUND) for a pod without.
    pub node: Arc<str>,
    /// Whether it shares the node's network: then the address is its node's, and no policy selects it.
    pub host_network: bool,
}

/// A rule list with what it says to each class.
#[derive(Debug)]
struct Listed {
    list: Arc<TieredList>,
    /// A place in `sides` for each class.
    row: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Reachability {
    classes: Vec<Class>,
    /// IPv4, IPv6.
    regions: [Vec<Region>; 2],
    lists: Vec<Listed>,
    /// The first is that of an end without rules.
    sides: Vec<Side>,
    /// The sets that rules name, ascending.
    sets: Vec<SetId>,
    members: Vec<Member>,
    /// The addresses of each node.
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    nodes_of_pods: AHashMap<IpAddr, Arc<str>>,
}

impl Reachability {
    /// The state of a pipeline that has a mirror: [`Pipeline::without_tables`], or one with which a mirror is registered.
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
        Self {
            members: members(pipeline.cache(), &regions),
            nodes: mirror.nodes().iter().map(|(name, node)| (name.clone(), node.addresses.clone())).collect(),
            nodes_of_pods: addresses.collect(),
            classes: with_samples(&classes, &regions),
            regions,
            lists: rows,
            sides,
            sets: lists.sets,
        }
    }

    /// The classes; a [`ClassId`] is a place among them.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The class of a number of this state.
    pub fn class(&self, id: ClassId) -> &Class {
        &self.classes[id.index()]
    }

    /// The class of an address.
    pub fn class_at(&self, address: IpAddr) -> ClassId {
        class_at(&self.regions[Family::of(address) as usize], address)
    }

    /// The whole address space in order, IPv4 first.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().flatten()
    }

    /// The place of an address's region among [`Reachability::regions`].
    pub fn region_at(&self, address: IpAddr) -> usize {
        let before = if address.is_ipv4() { 0 } else { self.regions[0].len() };
        before + region_at(&self.regions[Family::of(address) as usize], address)
    }

    /// The whole address space cut where either state is, IPv4 first: first and last address, the class here and the class there.
    pub fn refined<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (IpAddr, IpAddr, ClassId, ClassId)> + 'a {
        self.regions.iter().zip(&other.regions).flat_map(|(one, other)| refine(one, other))
    }

    /// The addresses of nobody in the cluster: no pod's, no node's.
    pub fn outside(&self) -> AddressSet {
        let outside = self.regions().filter(|region| self.class(region.class).holder == Holder::Outside);
        AddressSet::of_ranges(outside.map(|region| (region.first, region.last)))
    }

    /// The addresses of all pods that run, by pod; those in the network of their node too. Pods without an address or, in a node's
    /// network, without a node are not among them.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The addresses of a pod.
    pub fn members_of(&self, pod: &PodName) -> &[Member] {
        let first = self.members.partition_point(|member| member.pod < *pod);
        let count = self.members[first..].partition_point(|member| member.pod == *pod);
        &self.members[first..first + count]
    }

    /// The addresses of each node.
    pub fn nodes(&self) -> &BTreeMap<Arc<str>, Vec<IpAddr>> {
        &self.nodes
    }

    /// Whether one is a pod's address and the other one an address of its node.
    pub fn is_own_node(&self, one: IpAddr, other: IpAddr) -> bool {
        let is = |pod, node| {
            let of = self.nodes_of_pods.get(&pod).and_then(|name| self.nodes.get(name));
            of.is_some_and(|addresses| addresses.contains(&node))
        };
        is(one, other) || is(other, one)
    }

    /// What the rules of `class` in a direction say to `peer`, as a number: equal numbers are equal sides. Not for a pod and its own
    /// node.
    pub fn side_number(&self, class: ClassId, direction: Direction, peer: ClassId) -> u32 {
        match self.class(class).list(direction) {
            Some(list) => self.lists[list.0 as usize].row[peer.index()],
            None => 0,
        }
    }

    /// The sides by number.
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// The number of the rule list of a class, where it has one: classes of the same list say the same to everybody.
    pub fn list_number(&self, class: ClassId, direction: Direction) -> Option<u32> {
        self.class(class).list(direction).map(|list| list.0)
    }

    /// What the rules of `class` say to an address that is its own node's, of the class `node`.
    pub fn own_node_side(&self, class: ClassId, direction: Direction, node: ClassId) -> Side {
        let Some(list) = self.class(class).list(direction) else { return Side::open() };
        let list = &self.lists[list.0 as usize];
        Side::of_rules(list.list.rules.iter().filter(|rule| match &rule.peers {
            Peers::Any | Peers::OwnNode => true,
            Peers::Sets(sets) => sets.iter().any(|&set| self.is_in(node, set)),
        }))
    }

    fn is_in(&self, class: ClassId, set: SetId) -> bool {
        let at = self.sets.binary_search(&set).ok().and_then(|at| u32::try_from(at).ok());
        at.is_some_and(|at| self.class(class).sets.binary_search(&at).is_ok())
    }

    /// The verdicts between two classes of one family. `own_node` says that one end is the other one's node.
    pub fn verdicts(&self, from: ClassId, to: ClassId, own_node: bool) -> Verdicts {
        if own_node {
            let egress = self.own_node_side(from, Direction::Egress, to);
            return Verdicts::of(&egress, &self.own_node_side(to, Direction::Ingress, from));
        }
        let egress = self.side_number(from, Direction::Egress, to);
        let ingress = self.side_number(to, Direction::Ingress, from);
        Verdicts::of(&self.sides[egress as usize], &self.sides[ingress as usize])
    }

    /// The verdicts between two addresses; none where there is nothing to ask: the addresses are of two families, or the same.
    pub fn between(&self, from: IpAddr, to: IpAddr) -> Option<Verdicts> {
        let is_askable = from != to && from.is_ipv4() == to.is_ipv4();
        is_askable.then(|| self.verdicts(self.class_at(from), self.class_at(to), self.is_own_node(from, to)))
    }
}

/// The classes as they are told, each with its first address as the sample.
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
