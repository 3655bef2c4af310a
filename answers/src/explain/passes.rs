//! Rules that Pass rules of cluster policies skip, and the rule of a later tier that decides instead.

use std::io::{self, Write};
use std::net::IpAddr;

use bulkhead_control::object::{PodName, RuleAction, Tier};
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::mirror::Mirror;
use serde::Serialize;

use super::positions;
use crate::args::PortProtocol;
use crate::fabric::End;
use crate::output::printable;
use crate::places::Places;
use crate::run::{self, Attribution};

/// The state, and the positions of its rules.
type Asked<'a> = (&'a Pipeline, &'a Places<'a>);

/// A Pass rule that matched at one end.
#[derive(Serialize)]
pub(super) struct Pass {
    pod: String,
    direction: &'static str,
    tier: String,
    rule: Rule,
    /// Matching rules of the same tier that were skipped.
    skipped: Vec<Rule>,
    /// First matching rule of a later tier. `None` if no later tier matches, so that the connection is allowed.
    then: Option<Rule>,
}

/// A rule that matches the connection.
#[derive(Serialize)]
struct Rule {
    action: &'static str,
    #[serde(flatten)]
    attribution: Attribution,
    origin: String,
    at: Vec<String>,
}

/// Finds the matching Pass rules: those of the source's egress, then those of the destination's ingress.
pub(super) fn find(asked: Asked<'_>, mirror: &Mirror, from: &End, to: &End, port: PortProtocol) -> Vec<Pass> {
    let ends = [(from, Direction::Egress, to), (to, Direction::Ingress, from)];
    let pods = ends.into_iter().filter_map(|(end, direction, peer)| match end {
        End::Pod { name, host_network: false, .. } => Some((name, direction, peer.address())),
        End::Pod { .. } | End::Node { .. } | End::External(_) => None,
    });
    pods.flat_map(|(pod, direction, peer)| of_end(asked, mirror, pod, direction, peer, port)).collect()
}

fn of_end(
    (pipeline, places): Asked<'_>,
    mirror: &Mirror,
    pod: &PodName,
    direction: Direction,
    peer: IpAddr,
    port: PortProtocol,
) -> Vec<Pass> {
    let matching: Vec<_> = mirror.matching(pod, direction, peer, port.protocol.number(), port.port).collect();
    let mut passes = Vec::new();
    let mut tiers: Vec<&Tier> = matching.iter().map(|rule| &rule.tier).collect();
    tiers.dedup();
    for tier in tiers {
        let of_tier = || matching.iter().copied().filter(move |rule| rule.tier == *tier);
        let Some(first) = of_tier().next() else { continue };
        if first.action != RuleAction::Pass {
            break;
        }
        let rule = |rule: &bulkhead_control::contract::TierRule| {
            let origin = pipeline.origins().get(rule.origin);
            Rule {
                action: rule.action.name(),
                attribution: run::attribution(origin),
                origin: origin.map(ToString::to_string).unwrap_or_default(),
                at: positions(places, origin),
            }
        };
        passes.push(Pass {
            pod: pod.to_string(),
            direction: direction.name(),
            tier: tier.name().to_owned(),
            rule: rule(first),
            skipped: of_tier().skip(1).map(rule).collect(),
            then: matching.iter().copied().find(|rule| rule.tier > *tier).map(rule),
        });
    }
    passes
}

pub(super) fn write(passes: &[Pass], out: &mut impl Write) -> io::Result<()> {
    for Pass { pod, direction, tier, rule, skipped, then } in passes {
        writeln!(out, "\nThe {direction} of {} passes the rest of the tier {tier}:", printable(pod))?;
        write_rule("by", rule, out)?;
        for rule in skipped {
            write_rule("skipped", rule, out)?;
        }
        match then {
            Some(rule) => write_rule("then", rule, out)?,
            None => writeln!(out, "   then: no rule of a later tier, so it is allowed")?,
        }
    }
    Ok(())
}

fn write_rule(what: &str, rule: &Rule, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "   {what}: {}: {}", printable(&rule.origin), rule.action)?;
    rule.at.iter().try_for_each(|place| writeln!(out, "     {}", printable(place)))
}
