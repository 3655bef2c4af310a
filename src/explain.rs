//! `bulkhead explain`: one connection through every table that is consulted, the rule that decides, where the policy
//! stands, and what would have to change.
//!
//! With `--live` a running vswitch is asked instead ([`live`]): it judges by the tables that it enforces at that moment, knows its own
//! node's part of the way only, and has no files to point at.

mod live;
mod passes;
mod remedy;
pub(crate) mod step;

use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bulkhead_classifier::OriginId;
use bulkhead_control::object::{Denied, ObjectName, Transport};
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::mirror::Mirror;
use bulkhead_control::source;
use bulkhead_dataplane::Decision;
use serde::Serialize;

use crate::args::{EndName, Explain, Format};
use crate::contests;
use crate::fabric::{End, Fabric, Hop};
use crate::output::{self, printable};
use crate::run;
use step::{Pass, Step};

pub(crate) fn run(args: &Explain) -> anyhow::Result<ExitCode> {
    if args.live {
        return live::run(args);
    }
    let mut pipeline = run::load(&args.state, Scope::Cluster)?;
    let mirror = pipeline.register(Mirror::default());
    pipeline.render_all()?;
    let mirror = pipeline.renderer(mirror);
    let mut fabric = Fabric::new(&pipeline)?;
    let pairs = pairs(&pipeline, &args.from, &args.to)?;
    let refusing = Refusing {
        origins: pipeline.refusing_origins(Denied::Drop).into_iter().collect(),
        transport: args.port.transport,
    };
    let mut walks = Vec::with_capacity(pairs.len());
    for (from, to) in &pairs {
        let hops = fabric.walk(from, to, args.port)?;
        let passes = passes::find(&pipeline, mirror, from, to, args.port);
        walks.push(Walk { passes, ..Walk::new(&pipeline, &fabric, &refusing, from, to, &hops) });
    }
    let mut out = BufWriter::new(io::stdout().lock());
    match args.output {
        Format::Json => {
            serde_json::to_writer_pretty(
                &mut out,
                &Answer { protocol: args.port.transport.name(), port: args.port.port, walks: &walks },
            )?;
            writeln!(out)?;
        }
        Format::Text => {
            for (at, (walk, (from, to))) in walks.iter().zip(&pairs).enumerate() {
                if at > 0 {
                    writeln!(out)?;
                }
                write_walk(walk, &format!("{} {}", args.port.transport, args.port.port), &mut out)?;
                passes::write(&walk.passes, &mut out)?;
                if let Some(origin) = &walk.denied_by {
                    remedy::write(&pipeline, from, to, args.port, origin, &mut out)?;
                }
            }
        }
    }
    out.flush()?;
    let allowed = walks.iter().all(|walk| walk.verdict == "allow");
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The pairs of addresses to ask about: one for each family that both ends have.
fn pairs(pipeline: &Pipeline, from: &EndName, to: &EndName) -> anyhow::Result<Vec<(End, End)>> {
    let (sources, destinations) = (ends(pipeline, from)?, ends(pipeline, to)?);
    let mut pairs = Vec::new();
    for source in &sources {
        for destination in &destinations {
            if source.address().is_ipv4() == destination.address().is_ipv4() {
                pairs.push((source.clone(), destination.clone()));
            }
        }
    }
    match pairs.first() {
        None => {
            bail!("the two ends have no address family in common\n  help: give an address of the other end's family")
        }
        Some((a, b)) if a.address() == b.address() => {
            bail!(
                "{} is both ends: such traffic never leaves the pod or node, and no policy can forbid it",
                a.address()
            )
        }
        Some(_) => Ok(pairs),
    }
}

fn ends(pipeline: &Pipeline, name: &EndName) -> anyhow::Result<Vec<End>> {
    match name {
        EndName::Pod(name) => {
            let cache = pipeline.cache();
            let pod = cache.pod_key(name).and_then(|key| cache.pod(key));
            let pod =
                pod.with_context(|| format!("no pod {name} in the state\n  help: {}", similar(pipeline, name)))?;
            if pod.finished {
                bail!("pod {name} has ended: its address may belong to another pod");
            }
            if let Some(contest) = pipeline.contests().iter().find(|contest| contest.others.contains(&pod.name)) {
                output::warn(&contests::told(contest));
            }
            if pod.addresses.is_empty() {
                bail!(
                    "pod {name} has no address\n  help: status.podIPs is empty in the state, or another pod has what is in it"
                );
            }
            Ok(End::of_pod(pod).collect())
        }
        EndName::Address(address) => {
            if let Some(contest) = pipeline.contests().iter().find(|contest| contest.address == *address) {
                output::warn(&contests::told(contest));
            }
            Ok(vec![End::at(pipeline, *address)])
        }
    }
}

fn similar(pipeline: &Pipeline, name: &ObjectName) -> String {
    let mut names: Vec<String> = pipeline
        .cache()
        .pods()
        .map(|(_, pod)| &pod.name)
        .filter(|other| other.namespace == name.namespace || other.name == name.name)
        .map(ToString::to_string)
        .collect();
    names.sort_unstable();
    match names.as_slice() {
        [] => format!("it has no pod in namespace {} and none named {}", name.namespace, name.name),
        names => format!("it has {}", output::some_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), 8)),
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    protocol: &'static str,
    port: u16,
    walks: &'a [Walk],
}

/// What senders are told of what policy denies.
struct Refusing {
    /// The rules whose denials are refused, by their namespaces' annotations.
    origins: HashSet<OriginId>,
    /// The packets' protocol.
    transport: Transport,
}

/// One connection's way.
#[derive(Serialize)]
struct Walk {
    from: String,
    from_address: IpAddr,
    to: String,
    to_address: IpAddr,
    verdict: &'static str,
    steps: Vec<Step>,
    /// What rules with the action Pass have skipped.
    passes: Vec<passes::Pass>,
    #[serde(skip)]
    denied_by: Option<Origin>,
}

impl Walk {
    fn new(pipeline: &Pipeline, fabric: &Fabric, refusing: &Refusing, from: &End, to: &End, hops: &[Hop]) -> Self {
        let allowed = hops.last().is_some_and(|hop| hop.reply && hop.outcome.verdict.drop_reason().is_none());
        let last = hops.last().and_then(|hop| hop.outcome.decision);
        Self {
            from: from.to_string(),
            from_address: from.address(),
            to: to.to_string(),
            to_address: to.address(),
            verdict: if allowed { "allow" } else { "deny" },
            steps: hops.iter().map(|hop| told(pipeline, fabric, refusing, hop)).collect(),
            passes: Vec::new(),
            denied_by: if allowed { None } else { run::origin(pipeline, last) },
        }
    }
}

/// A hop as it is told.
fn told(pipeline: &Pipeline, fabric: &Fabric, refusing: &Refusing, hop: &Hop) -> Step {
    let outcome = &hop.outcome;
    let origin = run::origin(pipeline, outcome.decision);
    let tables = fabric.tables(&hop.node);
    let table =
        outcome.decision.and_then(|decision| decision.table).and_then(|table| tables?.tables.get(table.index()));
    let rule = outcome.decision.and_then(|Decision { rule, .. }| rule);
    let port = |port| fabric.port_name(&hop.node, port);
    let in_port = port(outcome.in_port);
    let refuses =
        outcome.decision.and_then(|decision| decision.origin).is_some_and(|origin| refusing.origins.contains(&origin));
    Step::new(Pass {
        node: hop.node.clone(),
        is_reply: hop.reply,
        outcome,
        out: outcome.verdict.out_port().and_then(port),
        answer: step::answer_to(outcome, in_port.as_deref(), refusing.transport, refuses),
        in_port,
        table: table.map(|table| (table.name.clone(), table.tables.rules().len())),
        decided: table.zip(rule).and_then(|(table, rule)| table.tables.rules().get(rule as usize)).cloned(),
        at: positions(pipeline, origin.as_ref()),
        origin,
    })
}

/// Where the policies behind an origin stand: `web.yaml:14`.
fn positions(pipeline: &Pipeline, origin: Option<&Origin>) -> Vec<String> {
    let place = |policy: &ObjectName, path: &str| {
        let position = run::position(pipeline, policy)?;
        let line = source::line_of(position, path).unwrap_or(position.line);
        Some(format!("{policy} at {}:{line}", position.file))
    };
    match origin {
        Some(Origin::Policy { policy, direction, rule }) => {
            place(policy, &format!("spec.{}[{rule}]", direction.name())).into_iter().collect()
        }
        Some(Origin::ClusterPolicy { policy, direction, rule, .. }) => {
            let known = pipeline.cache().cluster_policies().get(policy);
            let position = known.and_then(|policy| policy.position.as_ref());
            let place = position.map(|position| {
                let path = format!("spec.{}[{rule}]", direction.name());
                let line = source::line_of(position, &path).unwrap_or(position.line);
                format!("{policy} at {}:{line}", position.file)
            });
            place.into_iter().collect()
        }
        Some(Origin::Isolation { policies, .. }) => policies.iter().filter_map(|policy| place(policy, "")).collect(),
        _ => Vec::new(),
    }
}

fn write_walk(walk: &Walk, service: &str, out: &mut impl Write) -> io::Result<()> {
    let verdict = walk.verdict.to_uppercase();
    let (from, to) = (end_text(&walk.from, walk.from_address), end_text(&walk.to, walk.to_address));
    writeln!(out, "{from} -> {to} {service}: {verdict}")?;
    for (at, step) in walk.steps.iter().enumerate() {
        step.write(at + 1, out)?;
    }
    Ok(())
}

/// `x/a (10.0.0.1)`; an external end is its address once.
fn end_text(name: &str, address: IpAddr) -> String {
    let text = address.to_string();
    if name == text { text } else { format!("{} ({text})", printable(name)) }
}
