//! The rules responsible for a change, with file positions.

use std::collections::HashMap;

use bulkhead_classifier::OriginId;
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::difference::{Delta, Difference};
use bulkhead_control::reachability::{Decision, Protocol, Verdict};
use serde::Serialize;

use super::{ALLOW, DENY};
use crate::places::{Places, Written};
use crate::run::{self, Attribution};

/// Why a verdict changed: the decisions at the ends that decide differently in the two states.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Because {
    /// The decisions in the old state.
    pub(super) before: Vec<Reason>,
    /// The decisions in the new state.
    pub(super) after: Vec<Reason>,
}

impl Because {
    /// Returns the responsible rules of both states for one port.
    pub(super) fn of(before: &Verdict, after: &Verdict, reasons: &mut [Reasons<'_>; 2]) -> Self {
        let ends =
            [(Direction::Egress, before.egress, after.egress), (Direction::Ingress, before.ingress, after.ingress)];
        let [old, new] = reasons;
        let mut because = Self::default();
        for (direction, was, is) in ends.into_iter().filter(|(_, was, is)| was.allowed != is.allowed) {
            because.before.push(old.get(direction, was));
            because.after.push(new.get(direction, is));
        }
        because
    }
}

/// The decision at one end, and the rule that made it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Reason {
    /// `egress` for the source's rules, `ingress` for the destination's.
    pub(super) direction: &'static str,
    verdict: &'static str,
    /// The rule, or the policies that isolate, as printed.
    pub(super) text: String,
    #[serde(flatten)]
    attribution: Attribution,
    /// Positions of the rule or policies.
    pub(super) at: Vec<Place>,
}

impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        (self.direction, self.verdict, &self.text) == (other.direction, other.verdict, &other.text)
    }
}

/// A line in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    pub(super) file: String,
    /// Line number, from 1.
    pub(super) line: usize,
}

impl Reason {
    /// Returns the reason as text: `ingress allowed by shop/open ingress[1] (web.yaml:14)`.
    pub(super) fn told(&self) -> String {
        let places: Vec<String> = self.at.iter().map(|place| format!("{}:{}", place.file, place.line)).collect();
        let at = if places.is_empty() { String::new() } else { format!(" ({})", places.join(", ")) };
        format!("{}{at}", self.text)
    }
}

/// A report: the ports of one protocol whose verdict changes in the same way, and the reasons.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) protocol: Protocol,
    pub(super) ports: Vec<(u16, u16)>,
    pub(super) allowed: bool,
    pub(super) because: Because,
    /// For `other`: the protocols that rules name and that do not change in this way.
    pub(super) except: Vec<String>,
}

/// The reports of each list of deltas, by its index in [`Difference::deltas`].
#[derive(Debug)]
pub(super) struct Tellings(Vec<Vec<Telling>>);

impl Tellings {
    pub(super) fn of(difference: &Difference, reasons: &mut [Reasons<'_>; 2]) -> Self {
        Self(difference.deltas().iter().map(|deltas| tellings(deltas, reasons)).collect())
    }

    /// Returns the reports of one address family.
    pub(super) fn get(&self, deltas: usize, is_v6: bool) -> impl Iterator<Item = &Telling> {
        self.0[deltas].iter().filter(move |telling| telling.protocol.is_of_family(!is_v6))
    }
}

/// Returns one report per protocol and verdict.
fn tellings(deltas: &[Delta], reasons: &mut [Reasons<'_>; 2]) -> Vec<Telling> {
    let mut all: Vec<Telling> = Vec::new();
    for delta in deltas {
        let same = |telling: &Telling| (telling.protocol, telling.allowed) == (delta.protocol, delta.allowed);
        let telling = match all.iter().position(same) {
            Some(at) => &mut all[at],
            None => {
                let because = Because::default();
                let except = delta.except.iter().map(ToString::to_string).collect();
                all.push(Telling {
                    protocol: delta.protocol,
                    ports: Vec::new(),
                    allowed: delta.allowed,
                    because,
                    except,
                });
                all.last_mut().expect("it was pushed")
            }
        };
        telling.ports.extend(&delta.ports);
        for cause in &delta.because {
            let [before, after] = reasons;
            add(&mut telling.because.before, before.get(cause.direction, cause.before));
            add(&mut telling.because.after, after.get(cause.direction, cause.after));
        }
    }
    for telling in &mut all {
        telling.ports.sort_unstable();
        telling.ports.dedup_by(|next, last| {
            let touches = last.1.checked_add(1) == Some(next.0);
            if touches {
                last.1 = next.1;
            }
            touches
        });
    }
    all
}

fn add(reasons: &mut Vec<Reason>, reason: Reason) {
    if !reasons.contains(&reason) {
        reasons.push(reason);
    }
}

/// Caches the reasons of one state, because line lookups read files.
pub(super) struct Reasons<'a> {
    pipeline: &'a Pipeline,
    places: Places<'a>,
    known: HashMap<(Direction, bool, Option<OriginId>), Reason>,
}

impl<'a> Reasons<'a> {
    pub(super) fn of(pipeline: &'a Pipeline) -> Self {
        Self { pipeline, places: Places::of(pipeline), known: HashMap::new() }
    }

    fn get(&mut self, direction: Direction, decision: Decision) -> Reason {
        let Decision { allowed, origin } = decision;
        let (pipeline, places) = (self.pipeline, &self.places);
        let reason = || {
            let origin = origin.and_then(|id| pipeline.origins().get(id));
            let way = direction.name();
            let text = match origin {
                None => format!("no {way} isolation"),
                Some(Origin::Policy { .. } | Origin::ClusterPolicy { .. }) if allowed => {
                    format!("{way} allowed by {}", origin.map(ToString::to_string).unwrap_or_default())
                }
                Some(origin @ Origin::ClusterPolicy { .. }) => format!("{way} denied by {origin}"),
                Some(Origin::OwnNode) => format!("{way} allowed, its own node"),
                Some(origin) => origin.to_string(),
            };
            let verdict = if allowed { ALLOW } else { DENY };
            let place = |Written { file, line, .. }: Written| Place { file: file.to_string(), line };
            Reason {
                direction: way,
                verdict,
                text,
                attribution: run::attribution(origin),
                at: places.of_origin(origin).into_iter().map(place).collect(),
            }
        };
        self.known.entry((direction, allowed, origin)).or_insert_with(reason).clone()
    }
}
