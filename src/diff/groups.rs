//! Changes as a person would say them: namespaces and ranges, where all their ends change alike.
//!
//! ```text
//!  pairs of joints with the same deltas --sources with the same destinations--> rectangles: sources x destinations
//!  each side: all pods of a namespace --> `namespace dev`; others by name; addresses as ranges, nodes by name
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::difference::Difference;

use super::because::Tellings;
use super::units::shown;
use super::{ALLOW, Change, DENY, Take, family};

/// How a pod's own node is called as the other end.
const OWN_NODE: &str = "own node";

/// What a rectangle is about: deltas, and whether pods and their own nodes are left out.
type About = (usize, bool);

/// Tells the changes by groups.
pub(super) fn each(
    difference: &Difference,
    tellings: &Tellings,
    before: &Pipeline,
    after: &Pipeline,
    take: &mut Take<'_>,
) -> io::Result<()> {
    let names = Names::new(difference, [before, after]);
    let left_out: HashSet<(usize, usize)> = difference
        .own_nodes()
        .iter()
        .map(|own| if own.outgoing { (own.joint, own.node) } else { (own.node, own.joint) })
        .collect();
    let mut by_source: BTreeMap<(About, usize), Vec<usize>> = BTreeMap::new();
    for pair in difference.pairs() {
        let except = left_out.contains(&(pair.from, pair.to));
        by_source.entry(((pair.deltas, except), pair.from)).or_default().push(pair.to);
    }
    let mut rectangles: BTreeMap<(About, Vec<usize>), Vec<usize>> = BTreeMap::new();
    for ((about, from), to) in by_source {
        rectangles.entry((about, to)).or_default().push(from);
    }
    let mut lines: Vec<Line> = Vec::new();
    for (((deltas, except), to), from) in &rectangles {
        let except = except.then_some(OWN_NODE);
        let v6 = names.is_v6(from[0]);
        // All ends of a side in one entry: their product may be a million pairs.
        let (from, to) = (names.of_joints(from).join(", "), names.of_joints(to).join(", "));
        lines.push(Line { from, to, v6, except, deltas: *deltas });
    }
    let mut own: BTreeMap<(usize, bool, bool), BTreeSet<&PodName>> = BTreeMap::new();
    for one in difference.own_nodes().iter().filter(|own| own.deltas != Difference::NONE) {
        let unit = &difference.joints()[one.joint].units[one.unit];
        own.entry((one.deltas, one.outgoing, unit.before.is_ipv6())).or_default().insert(&unit.pod);
    }
    for ((deltas, outgoing, v6), pods) in own {
        let pods = names.of_pods(&pods, v6).join(", ");
        let (from, to) = if outgoing { (pods, OWN_NODE.into()) } else { (OWN_NODE.into(), pods) };
        lines.push(Line { from, to, v6, except: None, deltas });
    }
    lines.sort_unstable();
    for line in &lines {
        line.tell(tellings, take)?;
    }
    Ok(())
}

/// One source and one destination.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    from: String,
    to: String,
    v6: bool,
    except: Option<&'static str>,
    deltas: usize,
}

impl Line {
    fn tell(&self, tellings: &Tellings, take: &mut Take<'_>) -> io::Result<()> {
        for telling in tellings.get(self.deltas) {
            let (before, after) = if telling.allowed { (DENY, ALLOW) } else { (ALLOW, DENY) };
            take(&Change {
                from: &self.from,
                to: &self.to,
                family: family(self.v6),
                protocol: telling.protocol.name(),
                ports: &telling.ports,
                before,
                after,
                except: self.except,
                because: &telling.because,
            })?;
        }
        Ok(())
    }
}

/// Who there is, to tell whether all of them are meant.
struct Names<'a> {
    difference: &'a Difference,
    /// The compared pods by family and namespace.
    pods: [BTreeMap<Arc<str>, BTreeSet<&'a PodName>>; 2],
    /// The names of nodes by address, of the new state where both know it.
    nodes: BTreeMap<std::net::IpAddr, Arc<str>>,
}

impl<'a> Names<'a> {
    fn new(difference: &'a Difference, states: [&Pipeline; 2]) -> Self {
        let mut pods: [BTreeMap<Arc<str>, BTreeSet<&PodName>>; 2] = Default::default();
        for unit in difference.joints().iter().flat_map(|joint| &joint.units) {
            let of = &mut pods[usize::from(unit.before.is_ipv6())];
            of.entry(unit.pod.namespace.clone()).or_default().insert(&unit.pod);
        }
        let mut nodes = BTreeMap::new();
        for node in states.iter().filter_map(|state| state.mirror()).flat_map(|mirror| mirror.nodes().values()) {
            nodes.extend(node.addresses.iter().map(|&address| (address, node.name.clone())));
        }
        Self { difference, pods, nodes }
    }

    fn is_v6(&self, joint: usize) -> bool {
        let joint = &self.difference.joints()[joint];
        joint.units.first().map_or_else(|| joint.addresses.v4_intervals().is_empty(), |unit| unit.before.is_ipv6())
    }

    /// The ends of joints of one family.
    fn of_joints(&self, joints: &[usize]) -> Vec<String> {
        let Some(&first) = joints.first() else { return Vec::new() };
        let all = || joints.iter().map(|&joint| &self.difference.joints()[joint]);
        let pods = all().flat_map(|joint| &joint.units).map(|unit| &unit.pod).collect();
        let mut names = self.of_pods(&pods, self.is_v6(first));
        let single = || all().flat_map(|joint| joint.addresses.prefixes().collect::<Vec<_>>());
        let node = |prefix: ipnet::IpNet| {
            (prefix.prefix_len() == prefix.max_prefix_len()).then(|| self.nodes.get(&prefix.addr())).flatten()
        };
        let nodes: Option<BTreeSet<&Arc<str>>> = single().map(node).collect();
        match nodes {
            Some(nodes) if nodes.len() > 1 && nodes.len() == self.nodes.values().collect::<BTreeSet<_>>().len() => {
                names.push("all nodes".into());
            }
            Some(nodes) => names.extend(nodes.into_iter().map(|name| format!("node {name}"))),
            None => names.extend(shown(self.difference, joints)),
        }
        names
    }

    /// Pods by namespace where all of it are meant, and all of them where that is everybody.
    fn of_pods(&self, pods: &BTreeSet<&PodName>, v6: bool) -> Vec<String> {
        let all = &self.pods[usize::from(v6)];
        let count: usize = all.values().map(BTreeSet::len).sum();
        if pods.len() > 1 && pods.len() == count && all.len() > 1 {
            return vec!["all pods".into()];
        }
        let mut by_namespace: BTreeMap<&Arc<str>, Vec<&PodName>> = BTreeMap::new();
        for pod in pods {
            by_namespace.entry(&pod.namespace).or_default().push(pod);
        }
        let of = |(namespace, pods): (&Arc<str>, Vec<&PodName>)| -> Vec<String> {
            let known = all.get(namespace).map_or(0, BTreeSet::len);
            match pods.len() > 1 && pods.len() == known {
                true => vec![format!("namespace {namespace}")],
                false => pods.into_iter().map(ToString::to_string).collect(),
            }
        };
        by_namespace.into_iter().flat_map(of).collect()
    }
}
