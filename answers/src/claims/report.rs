//! The result of each claim: whether it holds, else a counterexample, the deciding rules and a fix.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::Pod;
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::{Decision, Protocol};
use serde::Serialize;

use super::file::{Claim, Kind};
use super::judge::{Outcome, Witness};
use crate::args::PortProtocol;
use crate::explain::remedy;
use crate::fabric::End;
use crate::output::printable;
use crate::places::{Places, Written};

/// The results of all claims.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) claims: Vec<Line>,
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) vacuous: usize,
}

/// Result of one claim.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    /// Kind of the claim: `never`, `always` or `only`.
    pub(super) claim: &'static str,
    pub(super) file: Arc<str>,
    pub(super) line: usize,
    /// Result: `pass`, `fail` or `vacuous`.
    pub(super) result: &'static str,
    /// Why the claim is vacuous. `None` if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) witness: Option<Told>,
}

/// A counterexample: a connection that violates the claim.
#[derive(Serialize)]
pub(super) struct Told {
    pub(super) from: String,
    pub(super) from_address: IpAddr,
    pub(super) to: String,
    pub(super) to_address: IpAddr,
    pub(super) family: &'static str,
    /// Protocol: `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, `protocol 47` or `other`.
    pub(super) protocol: Cow<'static, str>,
    #[serde(skip)]
    kind: Protocol,
    /// Destination port. For ICMP, the type times 256 plus the code. 0 for a protocol without ports.
    pub(super) port: u16,
    /// Verdict on the connection: `allow` or `deny`.
    pub(super) verdict: &'static str,
    pub(super) because: Vec<Because>,
    /// Suggested change.
    pub(super) remedy: String,
}

/// The decision that the policies of one end make on the connection.
#[derive(Serialize)]
pub(super) struct Because {
    /// `egress` at the source, `ingress` at the destination.
    pub(super) direction: &'static str,
    /// The deciding rule, the isolating policies, or a note that nothing isolates.
    pub(super) rule: String,
    /// The policies of the rule or isolation, with file and line.
    pub(super) at: Vec<Place>,
}

/// Position of a policy or rule.
#[derive(Clone, Serialize)]
pub(super) struct Place {
    pub(super) policy: String,
    pub(super) file: String,
    pub(super) line: usize,
}

impl Report {
    pub(super) fn new<'a>(
        pipeline: &Pipeline,
        judged: impl Iterator<Item = (&'a Claim, Outcome)>,
    ) -> anyhow::Result<Self> {
        let places = Places::of(pipeline);
        let mut report = Self { claims: Vec::new(), passed: 0, failed: 0, vacuous: 0 };
        for (claim, outcome) in judged {
            let (result, count, reason, witness) = match outcome {
                Outcome::Holds => ("pass", &mut report.passed, None, None),
                Outcome::Vacuous(reason) => ("vacuous", &mut report.vacuous, Some(reason), None),
                Outcome::Fails(witness) => {
                    ("fail", &mut report.failed, None, Some(told(pipeline, &places, claim.kind, &witness)?))
                }
            };
            *count += 1;
            let (name, file, line) = (claim.name.clone(), claim.file.clone(), claim.line);
            report.claims.push(Line { name, claim: claim.kind.name(), file, line, result, reason, witness });
        }
        Ok(report)
    }

    /// Writes the results for people.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for line in &self.claims {
            let (word, name) = (line.result.to_uppercase(), printable(&line.name));
            match (&line.reason, &line.witness) {
                (None, None) => writeln!(out, "{word} {name}")?,
                _ => writeln!(out, "{word} {name} ({}:{})", printable(&line.file), line.line)?,
            }
            for part in line.details() {
                writeln!(out, "  {}", printable(&part))?;
            }
        }
        writeln!(
            out,
            "\n{} of {} claims hold; {} fail, {} are about nobody",
            self.passed,
            self.claims.len(),
            self.failed,
            self.vacuous
        )
    }
}

impl Line {
    /// Returns the lines that explain why the claim fails. Empty if it holds.
    pub(super) fn details(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.reason.iter().cloned().collect();
        if let Some(witness) = &self.witness {
            lines.push(witness.headline());
            for because in &witness.because {
                let places: Vec<String> =
                    because.at.iter().map(|place| format!("{}:{}", place.file, place.line)).collect();
                let places = if places.is_empty() { String::new() } else { format!(" ({})", places.join(", ")) };
                lines.push(format!("by {}{places}", because.rule));
            }
            lines.extend(witness.remedy.lines().map(str::to_owned));
        }
        lines
    }
}

impl Told {
    /// Returns connection and verdict in one line: `shop/web -> shop/db TCP 5432 over IPv4: ALLOW`.
    pub(super) fn headline(&self) -> String {
        let port = match self.kind {
            Protocol::Other => String::new(),
            Protocol::Number(_) if !self.kind.is_icmp() => String::new(),
            protocol => format!(" {}", PortProtocol { port: self.port, protocol }.number()),
        };
        let (protocol, verdict) = (&self.protocol, self.verdict.to_uppercase());
        format!("{} -> {} {protocol}{port} over {}: {verdict}", self.from, self.to, self.family)
    }
}

fn told(pipeline: &Pipeline, places: &Places<'_>, kind: Kind, witness: &Witness) -> anyhow::Result<Told> {
    let [from, to] = [witness.from, witness.to].map(|address| End::at(pipeline.cache(), address));
    let verdict = witness.verdict;
    let sides = [(Direction::Egress, verdict.egress), (Direction::Ingress, verdict.ingress)];
    // The first end that denies is the reason. If both allow, both are.
    let deciding = verdict.deciding().count();
    let of_interest = if verdict.allowed() || !verdict.egress.allowed { 0 } else { 1 };
    let because: Vec<Because> = sides
        .iter()
        .skip(of_interest)
        .take(deciding)
        .filter(|(direction, _)| is_judged(pipeline, if *direction == Direction::Egress { &from } else { &to }))
        .map(|&(direction, decision)| because(pipeline, places, direction, decision))
        .collect();
    let remedy = match kind {
        Kind::Always => open(pipeline, &from, &to, witness)?,
        Kind::Never | Kind::Only => close(pipeline, &from, &to, witness),
    };
    Ok(Told {
        from: from.to_string(),
        from_address: witness.from,
        to: to.to_string(),
        to_address: witness.to,
        family: if witness.from.is_ipv4() { "IPv4" } else { "IPv6" },
        kind: witness.protocol,
        protocol: witness.protocol.name(),
        port: witness.port,
        verdict: if verdict.allowed() { "allow" } else { "deny" },
        because,
        remedy,
    })
}

/// Whether the end is a pod to which policies apply.
fn is_judged(pipeline: &Pipeline, end: &End) -> bool {
    pod_of(pipeline, end).is_some_and(Pod::is_endpoint)
}

fn pod_of<'a>(pipeline: &'a Pipeline, end: &End) -> Option<&'a Pod> {
    let End::Pod { name, .. } = end else { return None };
    let cache = pipeline.cache();
    cache.pod(cache.pod_key(name)?).map(|pod| &**pod)
}

fn origin(pipeline: &Pipeline, decision: Decision) -> Option<Origin> {
    pipeline.origins().get(decision.origin?).cloned()
}

fn because(pipeline: &Pipeline, places: &Places<'_>, direction: Direction, decision: Decision) -> Because {
    let origin = origin(pipeline, decision);
    let rule = match &origin {
        Some(origin) => origin.to_string(),
        None => format!("no {direction} isolation: no policy decides"),
    };
    let place = |Written { policy, file, line }: Written| Place { policy, file: file.to_string(), line };
    let at = places.of_origin(origin.as_ref()).into_iter().map(place).collect();
    Because { direction: direction.name(), rule, at }
}

/// Suggests a change that allows a connection.
fn open(pipeline: &Pipeline, from: &End, to: &End, witness: &Witness) -> anyhow::Result<String> {
    let decision = if witness.verdict.egress.allowed { witness.verdict.ingress } else { witness.verdict.egress };
    let Some(origin) = origin(pipeline, decision) else { return Ok(String::new()) };
    let Some(transport) = witness.protocol.transport() else {
        return Ok(
            "mend: a rule without `ports` allows it; protocols other than TCP, UDP and SCTP have no names in policies"
                .into(),
        );
    };
    let mut text = Vec::new();
    let port = PortProtocol::new(witness.port, transport);
    remedy::write(pipeline, from, to, port, &origin, &mut text)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Suggests a change that denies a connection: at the destination if policies apply there, else at the source.
fn close(pipeline: &Pipeline, from: &End, to: &End, witness: &Witness) -> String {
    let at_destination = is_judged(pipeline, to);
    let (subject, peer, decision, direction) = match at_destination {
        true => (to, from, witness.verdict.ingress, Direction::Ingress),
        false => (from, to, witness.verdict.egress, Direction::Egress),
    };
    let (list, kind) = match direction {
        Direction::Ingress => ("from", "Ingress"),
        Direction::Egress => ("to", "Egress"),
    };
    match origin(pipeline, decision) {
        Some(Origin::Policy { policy, rule, .. }) => {
            format!(
                "mend: narrow rule {rule} of {policy} {direction}, so that its `{list}` and `ports` leave out {peer}"
            )
        }
        Some(Origin::ClusterPolicy { policy, rule, tier, .. }) => {
            format!("mend: narrow rule {rule} of {policy} {direction}, or deny before it in the tier {}", tier.name())
        }
        _ => {
            let labels = pod_of(pipeline, subject).map(|pod| remedy::selector(&pod.labels)).unwrap_or_default();
            format!(
                "mend: nothing isolates {subject}: add a NetworkPolicy to its namespace with podSelector: {labels} and policyTypes: [{kind}], \
                 and with a rule for each peer that is meant"
            )
        }
    }
}
