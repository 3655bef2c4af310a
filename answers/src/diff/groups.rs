//! Groups changes whose ends all change alike. A joint is a set of ends that each state treats alike.
//!
//! ```text
//!  pairs of joints with the same deltas --sources with the same destinations--> rectangles: sources x destinations
//!  each side --names--> namespaces, workloads, pods; ranges of addresses; nodes
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::difference::Difference;

use super::because::Tellings;
use super::names::{Ends, Names};
use super::{ALLOW, Change, DENY, Take, family};
use crate::run::Placeholders;

/// Name of a pod's own node as the other end.
const OWN_NODE: &str = "own node";

/// What all pairs of a group of sources and a group of destinations share: the index of their deltas, and whether own nodes are excluded.
type About = (usize, bool);

/// Reports the changes by groups.
pub(super) fn each(
    difference: &Difference,
    placeholders: &Placeholders,
    tellings: &Tellings,
    states: [&Pipeline; 2],
    take: &mut Take<'_>,
) -> io::Result<()> {
    let names = Names::new(difference, placeholders, states);
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
        // One entry lists all ends of a side: their product may be a million pairs.
        let (from, to) = (names.of_joints(from), names.of_joints(to));
        lines.push(Line { from, to, v6, except, deltas: *deltas });
    }
    let mut own: BTreeMap<(usize, bool, bool), BTreeSet<&PodName>> = BTreeMap::new();
    for one in difference.own_nodes().iter().filter(|own| own.deltas != Difference::NONE) {
        let unit = &difference.joints()[one.joint].units[one.unit];
        own.entry((one.deltas, one.outgoing, unit.before.is_ipv6())).or_default().insert(&unit.pod);
    }
    for ((deltas, outgoing, v6), pods) in own {
        let (pods, node) = (Ends::exactly(names.of_pods(&pods, v6)), Ends::exactly(vec![OWN_NODE.to_owned()]));
        let (from, to) = if outgoing { (pods, node) } else { (node, pods) };
        lines.push(Line { from, to, v6, except: None, deltas });
    }
    lines.sort_unstable();
    for line in &lines {
        line.tell(tellings, take)?;
    }
    Ok(())
}

/// An entry of the output: a set of sources and a set of destinations with the same change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    from: Ends,
    to: Ends,
    v6: bool,
    except: Option<&'static str>,
    deltas: usize,
}

impl Line {
    fn tell(&self, tellings: &Tellings, take: &mut Take<'_>) -> io::Result<()> {
        let (from, to) = (self.from.exact.join(", "), self.to.exact.join(", "));
        for telling in tellings.get(self.deltas, self.v6) {
            let (before, after) = if telling.allowed { (DENY, ALLOW) } else { (ALLOW, DENY) };
            take(&Change {
                from: &from,
                to: &to,
                family: family(self.v6),
                kind: telling.protocol,
                protocol: telling.protocol.name(),
                except_protocols: &telling.except,
                ports: &telling.ports,
                before,
                after,
                except: self.except,
                because: &telling.because,
                told: [&self.from.told, &self.to.told],
            })?;
        }
        Ok(())
    }
}
