//! Kinds of ends that no rule distinguishes, and the verdicts between them.
//!
//! ```text
//!  ends --classes of their addresses, under both variants of the policies--> kinds --verdicts between samples--> table of one port
//! ```
//! Verdicts come from [`Reachability`] and are computed once per pair of kinds instead of once per pair of pods. If policies are audited, a
//! second [`Reachability`] enforces them all for comparison. A pod and its own node have a verdict of their own ([`Answer`]); without that,
//! a table with nodes would need one kind per node for the same pods.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use bulkhead_classifier::ServiceSet;
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::{ClassId, Reachability, Source, Traits};

use super::ends::{NamedEnd, Place};
use crate::args::PortProtocol;
use crate::fabric::Reached;

/// Compiled policies, with and without audited ones.
pub(super) struct States {
    /// Reachability under the enforced policies.
    enforced: Reachability,
    /// Reachability if audited policies were enforced too. `None` if no policy is audited.
    whole: Option<Reachability>,
}

impl States {
    /// Evaluates both variants.
    ///
    /// # Errors
    /// If the pipeline has tables instead of a mirror.
    pub(super) fn of(pipeline: &Pipeline) -> anyhow::Result<Self> {
        let mirror = pipeline.mirror().context("the pipeline keeps no rules to be asked about")?;
        let whole = pipeline.audit_mirror().map(|mirror| Reachability::of(pipeline, &mirror));
        Ok(Self { enforced: Reachability::of(pipeline, mirror), whole })
    }

    fn both(&self) -> impl Iterator<Item = &Reachability> {
        std::iter::once(&self.enforced).chain(&self.whole)
    }
}

/// The verdict on connections between two kinds of ends, at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Answer {
    /// The verdict between ends of which neither is the other's own node.
    pub(super) elsewhere: Reached,
    /// The verdict between a pod and its own node. Equals `elsewhere` unless one kind is of pods and the other of nodes.
    pub(super) own_node: Reached,
}

impl Answer {
    /// The answer between kinds that are not askable, and about destinations that no packet reaches.
    const NONE: Self = Self::of(Reached::No);

    pub(super) const fn of(reached: Reached) -> Self {
        Self { elsewhere: reached, own_node: reached }
    }

    /// Returns the verdict between two ends with this answer.
    pub(super) fn between(self, from: &NamedEnd, to: &NamedEnd) -> Reached {
        if self.own_node != self.elsewhere && from.node == to.node { self.own_node } else { self.elsewhere }
    }

    /// Returns the lower verdict in each place. It applies to ends with several addresses.
    pub(super) fn min(self, other: Self) -> Self {
        Self { elsewhere: self.elsewhere.min(other.elsewhere), own_node: self.own_node.min(other.own_node) }
    }
}

/// Ends that no rule distinguishes.
struct Kind {
    place: Place,
    /// Whether the ends are pods, perhaps on the host network.
    is_pod: bool,
    is_ipv4: bool,
    /// The class of one end, for each variant of the policies.
    classes: Vec<ClassId>,
}

/// The kinds of all ends.
pub(super) struct Kinds<'a> {
    states: &'a States,
    all: Vec<Kind>,
    /// The kind of each end.
    of_ends: Vec<usize>,
    /// What the rules of a pod allow towards and from its own node, for each variant of the policies, by the kinds of pod and node.
    own_nodes: Vec<HashMap<(usize, usize), OwnNode>>,
}

/// The services that a pod's rules allow, towards and from its own node.
struct OwnNode {
    egress: Arc<ServiceSet>,
    ingress: Arc<ServiceSet>,
}

impl<'a> Kinds<'a> {
    pub(super) fn of(ends: &[NamedEnd], states: &'a States) -> Self {
        let mut numbers: HashMap<(Place, bool, Vec<Traits<'_>>), usize> = HashMap::new();
        let mut all: Vec<Kind> = Vec::new();
        let of_ends = ends.iter().map(|end| {
            let address: IpAddr = end.end.address();
            let classes: Vec<ClassId> = states.both().map(|state| state.class_at(address)).collect();
            let traits = states.both().zip(&classes).map(|(state, &class)| state.traits(class)).collect();
            let next = all.len();
            *numbers.entry((end.place, end.is_pod(), traits)).or_insert_with(|| {
                all.push(Kind { place: end.place, is_pod: end.is_pod(), is_ipv4: address.is_ipv4(), classes });
                next
            })
        });
        let of_ends = of_ends.collect();
        let own_nodes = states.both().enumerate().map(|(variant, state)| own_nodes(&all, variant, state)).collect();
        Self { states, all, of_ends, own_nodes }
    }

    /// Returns the kind of an end, by the end's index.
    pub(super) fn of_end(&self, end: usize) -> usize {
        self.of_ends[end]
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_ipv4(&self, kind: usize) -> bool {
        self.all[kind].is_ipv4
    }

    /// Whether policy can concern connections between different ends of these kinds.
    pub(super) fn are_askable(&self, from: usize, to: usize) -> bool {
        let (from, to) = (&self.all[from], &self.all[to]);
        from.is_ipv4 == to.is_ipv4 && (from.is_pod || to.is_pod)
    }

    /// Computes the answers between all kinds at one port.
    pub(super) fn table(&self, port: PortProtocol) -> Table {
        let views: Vec<View<'_>> =
            self.states.both().zip(&self.own_nodes).enumerate().map(|(at, of)| View::new(at, of, port)).collect();
        let count = self.count();
        let mut answers = Vec::with_capacity(count * count);
        for from in 0..count {
            let is_of_family = port.is_of_family(self.is_ipv4(from));
            let sources: Vec<Source<'_>> = views.iter().map(|view| view.source(&self.all[from])).collect();
            answers.extend((0..count).map(|to| match is_of_family && self.are_askable(from, to) {
                true => self.answer(&views, &sources, from, to),
                false => Answer::NONE,
            }));
        }
        Table { count, answers }
    }

    fn answer(&self, views: &[View<'_>], sources: &[Source<'_>], from: usize, to: usize) -> Answer {
        let (source, destination) = (&self.all[from], &self.all[to]);
        if destination.place == Place::Nowhere {
            return Answer::NONE;
        }
        let elsewhere = reached(views.iter().zip(sources).map(|(view, source)| view.passes(source, destination)));
        let own_node = |pair, way| reached(views.iter().map(|view| view.passes_own_node(pair, way)));
        let own_node = match (source.place, destination.place) {
            (Place::Pod, Place::Host) => own_node((from, to), Direction::Egress),
            (Place::Host, Place::Pod) => own_node((to, from), Direction::Ingress),
            _ => elsewhere,
        };
        Answer { elsewhere, own_node }
    }
}

/// Returns the verdict on a connection. `passes` yields whether it passes under the enforced policies, then under each other variant.
fn reached(mut passes: impl Iterator<Item = bool>) -> Reached {
    match (passes.next() == Some(true), passes.all(|passes| passes)) {
        (false, _) => Reached::No,
        (true, false) => Reached::Audited,
        (true, true) => Reached::Yes,
    }
}

fn own_nodes(kinds: &[Kind], variant: usize, state: &Reachability) -> HashMap<(usize, usize), OwnNode> {
    let of_place = |place| kinds.iter().enumerate().filter(move |(_, kind)| kind.place == place);
    let mut own_nodes = HashMap::new();
    for (pod, kind) in of_place(Place::Pod) {
        let class = kind.classes[variant];
        for (node, of_node) in of_place(Place::Host).filter(|(_, of_node)| of_node.is_ipv4 == kind.is_ipv4) {
            let side = |direction| state.own_node_side(class, direction, of_node.classes[variant]).allowed().clone();
            let (egress, ingress) = (side(Direction::Egress), side(Direction::Ingress));
            own_nodes.insert((pod, node), OwnNode { egress, ingress });
        }
    }
    own_nodes
}

/// One variant of the policies, evaluated for one port.
struct View<'a> {
    /// Index of the variant in [`Kind::classes`].
    variant: usize,
    state: &'a Reachability,
    own_nodes: &'a HashMap<(usize, usize), OwnNode>,
    port: PortProtocol,
    /// Whether each side allows the port.
    lets_through: Vec<bool>,
}

impl<'a> View<'a> {
    fn new(
        variant: usize,
        (state, own_nodes): (&'a Reachability, &'a HashMap<(usize, usize), OwnNode>),
        port: PortProtocol,
    ) -> Self {
        let lets = |allowed: &ServiceSet| allowed.contains(port.protocol.number(), port.port);
        let lets_through = state.sides().iter().map(|side| lets(side.allowed())).collect();
        Self { variant, state, own_nodes, port, lets_through }
    }

    /// Returns ends of this kind as the source of connections.
    fn source(&self, from: &Kind) -> Source<'a> {
        self.state.source(from.classes[self.variant])
    }

    /// Whether policy allows a connection between ends of these kinds, of which neither is the other's own node.
    fn passes(&self, from: &Source<'_>, to: &Kind) -> bool {
        let (egress, ingress) = from.side_numbers(to.classes[self.variant]);
        self.lets_through[egress as usize] && self.lets_through[ingress as usize]
    }

    /// Whether policy allows a connection between a pod and its own node, which has no rules itself. `direction` is the pod's.
    fn passes_own_node(&self, pair: (usize, usize), direction: Direction) -> bool {
        self.own_nodes.get(&pair).is_some_and(|own| {
            let allowed = if direction == Direction::Egress { &own.egress } else { &own.ingress };
            allowed.contains(self.port.protocol.number(), self.port.port)
        })
    }
}

/// The answers between all kinds at one port.
pub(super) struct Table {
    count: usize,
    answers: Vec<Answer>,
}

impl Table {
    /// Returns the answer for connections between two kinds, by their numbers. It has a meaning only if the kinds are askable.
    pub(super) fn answer(&self, from: usize, to: usize) -> Answer {
        self.answers[from * self.count + to]
    }
}
