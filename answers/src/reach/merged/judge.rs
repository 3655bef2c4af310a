//! Groups pods that no rule distinguishes, and computes the verdicts between the groups.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::Context;
use bulkhead_control::object::PodName;
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::{ClassId, Protocol, Reachability, Side};

use super::super::{NamedEnd, askable};
use crate::args::PortProtocol;
use crate::fabric::{self, Reached};
use crate::workload::Workloads;

/// A port, and whether the question is about IPv4.
pub(super) type Question = (PortProtocol, bool);

/// Compiled policies, with and without audited ones.
pub(super) struct States {
    /// Reachability under the enforced policies.
    enforced: Reachability,
    /// Reachability if audited policies were enforced too. `None` if no policy is audited.
    whole: Option<Reachability>,
}

impl States {
    /// Compiles both variants. `pipeline` needs a mirror, and enforces all policies afterwards.
    pub(super) fn of(pipeline: &mut Pipeline) -> anyhow::Result<Self> {
        let now = |pipeline: &Pipeline| {
            let mirror = pipeline.mirror().context("the pipeline keeps no rules to be asked about")?;
            anyhow::Ok(Reachability::of(pipeline, mirror))
        };
        let enforced = now(pipeline)?;
        if pipeline.audited_policies().is_empty() {
            return Ok(Self { enforced, whole: None });
        }
        pipeline.enforce(None)?;
        Ok(Self { enforced, whole: Some(now(pipeline)?) })
    }

    fn classes(&self, address: IpAddr) -> Classes {
        let enforced = self.enforced.class_at(address);
        [enforced, self.whole.as_ref().map_or(enforced, |whole| whole.class_at(address))]
    }
}

/// The classes of an address: under the enforced policies, and under all policies.
type Classes = [ClassId; 2];

/// A pod or an external address, with all its addresses.
pub(super) struct Unit<'a> {
    pub(super) ends: Vec<(&'a NamedEnd, Classes)>,
}

impl Unit<'_> {
    pub(super) fn pod(&self) -> Option<&PodName> {
        self.ends.iter().find_map(|(end, _)| match &end.end {
            fabric::End::Pod { name, .. } => Some(name),
            fabric::End::Node { .. } | fabric::End::External(_) => None,
        })
    }
}

/// Pods of one workload that no rule distinguishes, or one external address.
pub(super) struct Bundle<'a> {
    pub(super) workload: Option<usize>,
    /// The members. Verdicts are computed for the first two only, as samples.
    pub(super) units: Vec<Unit<'a>>,
}

/// The key that groups pods: those with the same key form a bundle.
#[derive(PartialEq, Eq, Hash)]
enum Kind<'a> {
    /// Workload, classes, and the node if the table contains nodes: a pod and its own node may always talk.
    Alike(usize, Vec<Classes>, Option<&'a str>),
    /// An end that is its own group.
    Single(&'a str),
}

pub(super) fn bundles<'a>(ends: &'a [NamedEnd], states: &States, workloads: &Workloads) -> Vec<Bundle<'a>> {
    let mut units: Vec<Unit<'a>> = Vec::new();
    for of_one in ends.chunk_by(|one, other| one.name == other.name) {
        let classes = |end: &'a NamedEnd| (end, states.classes(end.end.address()));
        units.push(Unit { ends: of_one.iter().map(classes).collect() });
    }
    let is_at_node =
        |end: &NamedEnd| matches!(end.end, fabric::End::Node { .. } | fabric::End::Pod { host_network: true, .. });
    let has_nodes = ends.iter().any(is_at_node);
    let mut places: HashMap<Kind<'a>, usize> = HashMap::new();
    let mut bundles: Vec<Bundle<'a>> = Vec::new();
    for unit in units {
        let end = unit.ends[0].0;
        let workload = unit.pod().and_then(|pod| workloads.of_pod(pod));
        let kind = match (&end.end, workload) {
            (fabric::End::Pod { host_network: false, node, .. }, Some(workload)) => {
                let classes = unit.ends.iter().map(|(_, classes)| *classes).collect();
                Kind::Alike(workload, classes, has_nodes.then_some(&**node))
            }
            _ => Kind::Single(&end.name),
        };
        let at = *places.entry(kind).or_insert(bundles.len());
        match bundles.get_mut(at) {
            Some(bundle) => bundle.units.push(unit),
            None => bundles.push(Bundle { workload, units: vec![unit] }),
        }
    }
    bundles
}

/// Computes the verdicts at the requested ports.
pub(super) struct Judge<'a> {
    questions: &'a [Question],
    enforced: View<'a>,
    whole: Option<View<'a>>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(states: &'a States, questions: &'a [Question]) -> Self {
        let view = |reachability| View::new(reachability, questions);
        Self { questions, enforced: view(&states.enforced), whole: states.whole.as_ref().map(view) }
    }

    /// Appends the answers to all questions.
    pub(super) fn fill(&self, from: &Bundle<'_>, to: &Bundle<'_>, cells: &mut Vec<Option<Reached>>) {
        let from = &from.units[0];
        // Within a group, compare two different pods.
        let to = if std::ptr::eq(from, &to.units[0]) { to.units.get(1) } else { to.units.first() };
        cells.extend((0..self.questions.len()).map(|question| self.answer(question, from, to?)));
    }

    /// Returns the strictest verdict over the address pairs of the question's family. `None` if there is no such pair.
    fn answer(&self, question: usize, from: &Unit<'_>, to: &Unit<'_>) -> Option<Reached> {
        let (_, v4) = self.questions[question];
        let sources = from.ends.iter().filter(|(end, _)| end.end.address().is_ipv4() == v4);
        let pairs = sources.flat_map(|one| to.ends.iter().map(move |other| (one, other)));
        pairs
            .filter(|((one, _), (other, _))| askable(one, other))
            .map(|((one, from), (other, to))| {
                let at = |place: usize| [(one.end.address(), from[place]), (other.end.address(), to[place])];
                if !self.enforced.passes(question, at(0)) {
                    return Reached::No;
                }
                let is_audited = self.whole.as_ref().is_some_and(|whole| !whole.passes(question, at(1)));
                if is_audited { Reached::Audited } else { Reached::Yes }
            })
            .min()
    }
}

/// One variant of the policies, evaluated for the requested ports.
struct View<'a> {
    reachability: &'a Reachability,
    questions: &'a [Question],
    /// Whether a side allows the question's port. Indexed by question, then by side.
    lets_through: Vec<Vec<bool>>,
}

impl<'a> View<'a> {
    fn new(reachability: &'a Reachability, questions: &'a [Question]) -> Self {
        let sides = |&(port, _): &Question| {
            let of = |side: &Side| side.allowed().contains(port.transport.number(), port.port);
            reachability.sides().iter().map(of).collect()
        };
        Self { reachability, questions, lets_through: questions.iter().map(sides).collect() }
    }

    /// Whether policy allows the connection from the first to the second address.
    fn passes(&self, question: usize, [from, to]: [(IpAddr, ClassId); 2]) -> bool {
        if self.reachability.is_own_node(from.0, to.0) {
            let (port, _) = self.questions[question];
            let verdicts = self.reachability.verdicts(from.1, to.1, true);
            return verdicts.at(Protocol::from(port.transport), port.port).allowed();
        }
        let egress = self.reachability.side_number(from.1, Direction::Egress, to.1);
        let ingress = self.reachability.side_number(to.1, Direction::Ingress, from.1);
        let lets_through = &self.lets_through[question];
        lets_through[egress as usize] && lets_through[ingress as usize]
    }
}
