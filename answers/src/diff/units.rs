//! Lists every changed pair of pods and address ranges (`--ungrouped`). A joint is a set of ends that each state treats alike.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use bulkhead_classifier::AddressSet;
use bulkhead_control::reachability::difference::{Difference, OwnNode, Unit};

use super::because::Tellings;
use super::ranges::prefixes;
use super::{ALLOW, Change, DENY, Take, family};
use crate::run::Placeholders;

/// Indexes into the list of deltas, by the joint of the other end.
type Row = BTreeMap<usize, usize>;

/// Position of a pod: the index of its joint, and its index in the joint.
type Place = (usize, usize);

struct Rows<'a> {
    difference: &'a Difference,
    placeholders: &'a Placeholders,
    tellings: &'a Tellings,
    /// The rows of sources: one per joint, by the destination's joint.
    out: Vec<Row>,
    /// The rows of destinations: one per joint, by the source's joint.
    into: Vec<Row>,
    /// The deltas between a pod and each of its own nodes. The key is the pod, and whether it is the source.
    own: HashMap<(Place, bool), Row>,
    /// Pods that have other deltas for connections from their own node, by the node's joint.
    own_into: HashMap<usize, Vec<&'a OwnNode>>,
    /// Caches the prefixes that cover the addresses of a set of joints.
    prefixes: HashMap<Vec<usize>, Rc<[String]>>,
}

/// Reports every change, ordered by source, then destination.
pub(super) fn each(
    difference: &Difference,
    placeholders: &Placeholders,
    tellings: &Tellings,
    take: &mut Take<'_>,
) -> io::Result<()> {
    let mut rows = Rows::new(difference, placeholders, tellings);
    let mut places: Vec<(&Unit, Place)> = Vec::new();
    for (joint, of) in difference.joints().iter().enumerate() {
        places.extend(of.units.iter().enumerate().map(|(at, unit)| (unit, (joint, at))));
    }
    places.sort_by(|(a, _), (b, _)| (&a.pod, a.before).cmp(&(&b.pod, b.before)));
    for &(unit, place) in &places {
        rows.rows_of_pod(unit, place, take)?;
    }
    for &(unit, place) in &places {
        rows.rows_of_addresses(unit, place, take)?;
    }
    Ok(())
}

impl<'a> Rows<'a> {
    fn new(difference: &'a Difference, placeholders: &'a Placeholders, tellings: &'a Tellings) -> Self {
        let joints = difference.joints().len();
        let (mut out, mut into) = (vec![Row::new(); joints], vec![Row::new(); joints]);
        for pair in difference.pairs() {
            out[pair.from].insert(pair.to, pair.deltas);
            into[pair.to].insert(pair.from, pair.deltas);
        }
        let mut own: HashMap<(Place, bool), Row> = HashMap::new();
        let mut own_into: HashMap<usize, Vec<&OwnNode>> = HashMap::new();
        for one in difference.own_nodes() {
            own.entry(((one.joint, one.unit), one.outgoing)).or_default().insert(one.node, one.deltas);
            if !one.outgoing {
                own_into.entry(one.node).or_default().push(one);
            }
        }
        Self { difference, placeholders, tellings, out, into, own, own_into, prefixes: HashMap::new() }
    }

    /// Returns the deltas of a pod, including those with its own nodes.
    fn row(&self, place: Place, outgoing: bool) -> Row {
        let mut row = if outgoing { self.out[place.0].clone() } else { self.into[place.0].clone() };
        row.extend(self.own.get(&(place, outgoing)).into_iter().flatten());
        row
    }

    fn rows_of_pod(&mut self, unit: &Unit, place: Place, take: &mut Take<'_>) -> io::Result<()> {
        let row = self.row(place, true);
        let from = unit.pod.to_string();
        let mut targets: Vec<(String, usize)> = Vec::new();
        let joints = self.difference.joints();
        for (&joint, &deltas) in &row {
            for (at, other) in joints[joint].units.iter().enumerate() {
                // This pod may be on the host network of the other one's node.
                let own = self.own.get(&((joint, at), false)).and_then(|row| row.get(&place.0));
                targets.extend(askable(unit, other).then(|| (other.pod.to_string(), own.copied().unwrap_or(deltas))));
            }
        }
        for own in self.own_into.get(&place.0).into_iter().flatten().filter(|own| !row.contains_key(&own.joint)) {
            let other = &joints[own.joint].units[own.unit];
            targets.extend(askable(unit, other).then(|| (other.pod.to_string(), own.deltas)));
        }
        targets.sort_unstable();
        let v6 = unit.before.is_ipv6();
        for (to, deltas) in &targets {
            self.tell((&from, to), v6, *deltas, take)?;
        }
        for (prefix, deltas) in self.ranges(&row) {
            self.tell((&from, &prefix), v6, deltas, take)?;
        }
        Ok(())
    }

    fn rows_of_addresses(&mut self, unit: &Unit, place: Place, take: &mut Take<'_>) -> io::Result<()> {
        let row = self.row(place, false);
        let to = unit.pod.to_string();
        for (prefix, deltas) in self.ranges(&row) {
            self.tell((&prefix, &to), unit.before.is_ipv6(), deltas, take)?;
        }
        Ok(())
    }

    /// Returns the external addresses of a row as prefixes, with their deltas.
    fn ranges(&mut self, row: &Row) -> Vec<(String, usize)> {
        let mut by_deltas: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (&joint, &deltas) in row {
            if deltas != Difference::NONE && !self.difference.joints()[joint].addresses.is_empty() {
                by_deltas.entry(deltas).or_default().push(joint);
            }
        }
        let mut all = Vec::new();
        for (deltas, joints) in by_deltas {
            let shown = match self.prefixes.get(&joints) {
                Some(known) => known.clone(),
                None => {
                    let shown: Rc<[String]> = shown(self.difference, self.placeholders, &joints).into();
                    self.prefixes.insert(joints, shown.clone());
                    shown
                }
            };
            all.extend(shown.iter().map(|prefix| (prefix.clone(), deltas)));
        }
        all
    }

    fn tell(&self, (from, to): (&str, &str), v6: bool, deltas: usize, take: &mut Take<'_>) -> io::Result<()> {
        let ends = [from.to_owned(), to.to_owned()];
        for telling in self.tellings.get(deltas, v6) {
            let (before, after) = if telling.allowed { (DENY, ALLOW) } else { (ALLOW, DENY) };
            take(&Change {
                from,
                to,
                family: family(v6),
                kind: telling.protocol,
                protocol: telling.protocol.name(),
                except_protocols: &telling.except,
                ports: &telling.ports,
                before,
                after,
                except: None,
                because: &telling.because,
                told: [&ends[..1], &ends[1..]],
            })?;
        }
        Ok(())
    }
}

/// Whether connections between two pods are possible: they must differ and not share an address.
fn askable(one: &Unit, other: &Unit) -> bool {
    one.pod != other.pod && one.before != other.before && one.after != other.after
}

/// Returns the external addresses of these joints as names and prefixes.
fn shown(difference: &Difference, placeholders: &Placeholders, joints: &[usize]) -> Vec<String> {
    let (names, set) = placeholders.divide(&together(difference, joints));
    let free = difference.pods().union(&placeholders.addresses());
    names.into_iter().chain(prefixes(&set, &free).iter().map(ToString::to_string)).collect()
}

/// Returns the external addresses of these joints.
pub(super) fn together(difference: &Difference, joints: &[usize]) -> AddressSet {
    let sets = joints.iter().map(|&joint| &difference.joints()[joint].addresses);
    let v4 = |set: &AddressSet| -> Vec<(IpAddr, IpAddr)> {
        set.v4_intervals().iter().map(|&(first, last)| (IpAddr::V4(first.into()), IpAddr::V4(last.into()))).collect()
    };
    let v6 = |set: &AddressSet| -> Vec<(IpAddr, IpAddr)> {
        set.v6_intervals().iter().map(|&(first, last)| (IpAddr::V6(first.into()), IpAddr::V6(last.into()))).collect()
    };
    AddressSet::of_ranges(sets.flat_map(|set| v4(set).into_iter().chain(v6(set))))
}
