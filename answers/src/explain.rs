//! `bulkhead explain`: walks one connection through every table on its path. Prints the deciding rule, its file and line, and a remedy.
//!
//! With `--live` a running vswitch answers instead (`observe::explain`), from the Services and tables that it enforces. It knows only its
//! own node's part of the path and no file positions.

mod passes;
mod question;
pub mod remedy;
pub mod service;
pub mod step;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use bulkhead_classifier::OriginId;
use bulkhead_control::object::Denied;
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Protocol;
use bulkhead_control::renderer::mirror::Mirror;
use bulkhead_control::source::Strictness;
use bulkhead_dataplane::{Decision, DropReason};
use serde::Serialize;

use crate::args::{Asked, Explain, Target};
use crate::fabric::{End, Fabric, Hop};
use crate::output::{self, printable};
use crate::places::{Places, Written};
use crate::run::{self, Input};
use crate::translate::{Leg, Services, blocks};
use question::Question;
use service::{Judged, Translated};
use step::{Answered, Pass, Step};

/// Explains one connection in a state. Returns exit code 1 if the connection is denied.
///
/// # Errors
/// If the state cannot be read, or does not contain an end of the connection.
pub fn run(args: &Explain) -> anyhow::Result<ExitCode> {
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let is_service = matches!(args.asked.to, Target::Service(_));
    let (pipeline, objects) = run::load_with_services(&input, Some(&args.planned), is_service)?;
    let engine = Engine { pipeline, strictness: args.state.strictness() };
    let mut services = Services::new(&engine.pipeline, objects, settings);
    blocks::warnings(&engine.pipeline, &services).iter().for_each(output::warn);
    run::unknown_names(&engine.pipeline).iter().for_each(output::warn);
    let answer = engine.answer(&mut services, &args.asked)?;
    output::answer(args.output, &answer, |out| answer.write(&engine.pipeline, out))?;
    let is_allowed = answer.is_allowed();
    // The process ends now. Freeing a large state object by object would only delay that.
    std::mem::forget((services, engine));
    Ok(ExitCode::from(u8::from(!is_allowed)))
}

/// A compiled state that answers questions about connections.
pub struct Engine {
    /// The state, without tables: those of the nodes on a connection's path are compiled for each answer. After a change to it, answers
    /// refer to the new state.
    pub pipeline: Pipeline,
    /// Whether rules on the path that exceed a table's limits are errors or warnings.
    pub strictness: Strictness,
}

impl Engine {
    /// Returns what happens to a connection.
    ///
    /// # Errors
    /// If the question does not fit the state: an unknown end, or no common address family.
    pub fn answer(&self, services: &mut Services, asked: &Asked) -> anyhow::Result<Answer> {
        let pipeline = &self.pipeline;
        let (port, questions) = question::all(pipeline, services, asked)?;
        let mut asker = Asker {
            fabric: Fabric::new(pipeline, self.strictness),
            refusing: Refusing {
                origins: pipeline.refusing_origins(Denied::Drop).into_iter().collect(),
                protocol: port.protocol,
            },
            mirror: pipeline.mirror().context("a pipeline without tables has a mirror")?,
            places: Places::of(pipeline),
            pipeline,
        };
        let (mut walks, mut translated) = (Vec::new(), Vec::new());
        for question in questions {
            match question {
                Question::Plain(leg) => walks.push(asker.walk(leg)?),
                Question::Translated(from, translation) => {
                    translated.push(Translated::new(&from, *translation, |leg| asker.walk(leg).map(Some))?);
                }
            }
        }
        let is_allowed = walks.iter().all(Walk::is_allowed) && translated.iter().all(Translated::is_allowed);
        Ok(Answer {
            asked: port.protocol,
            protocol: port.protocol.name(),
            port: port.port,
            verdict: if is_allowed { "allow" } else { "deny" },
            walks,
            services: translated,
        })
    }
}

/// The verdict on each of the connections in question.
#[derive(Serialize)]
pub struct Answer {
    #[serde(skip)]
    asked: Protocol,
    protocol: Cow<'static, str>,
    port: u16,
    /// `allow` if all connections and Services are allowed.
    verdict: &'static str,
    /// Connections whose destination is not translated.
    walks: Vec<Walk>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    services: Vec<Translated<Walk>>,
}

impl Answer {
    /// Whether the verdict is `allow`.
    pub fn is_allowed(&self) -> bool {
        self.verdict == "allow"
    }

    /// Sets the verdict to `deny`. For a vswitch without a valid state, which drops every packet, whatever its last tables say.
    pub const fn deny(&mut self) {
        self.verdict = "deny";
    }

    /// Returns the IANA protocol number of the connection.
    pub const fn transport(&self) -> u8 {
        self.asked.number()
    }

    /// Returns verdict and reasons in one line. Two answers with different lines have different causes.
    pub fn gist(&self) -> String {
        let walks = self.walks.iter().map(Walk::because);
        let services = self.services.iter().map(|told| told.because(Walk::because));
        let reasons: BTreeSet<String> = walks.chain(services).filter(|because| !because.is_empty()).collect();
        let reasons: Vec<String> = reasons.into_iter().collect();
        let beside = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
        format!("{}{beside}", self.verdict.to_uppercase())
    }

    /// Returns the clients' addresses, and the destinations with ports: those of Services and of their backends.
    pub fn ends(&self) -> (BTreeSet<IpAddr>, BTreeSet<(IpAddr, u16)>) {
        let (mut from, mut to) = (BTreeSet::new(), BTreeSet::new());
        for walk in &self.walks {
            from.insert(walk.from_address);
            to.insert((walk.to_address, self.port));
        }
        for translated in &self.services {
            from.insert(translated.client());
            to.extend(translated.destinations());
        }
        (from, to)
    }

    /// Writes the answer for people.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn write(&self, pipeline: &Pipeline, out: &mut impl Write) -> io::Result<()> {
        for (at, walk) in self.walks.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            walk.write(pipeline, out)?;
        }
        for (at, translated) in self.services.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            translated.write(out, |walk, out| walk.write(pipeline, out))?;
        }
        Ok(())
    }
}

/// The denials that a vswitch answers with a reset or an ICMP error.
struct Refusing {
    /// The rules with such denials: their namespaces have the annotation that requests answers.
    origins: HashSet<OriginId>,
    /// Protocol of the connection.
    protocol: Protocol,
}

/// Explains connections: simulates the vswitches of all nodes and looks up the policies behind their tables.
struct Asker<'a> {
    pipeline: &'a Pipeline,
    mirror: &'a Mirror,
    places: Places<'a>,
    fabric: Fabric<'a>,
    refusing: Refusing,
}

impl Asker<'_> {
    /// Simulates one connection, and returns its path with the deciding rules.
    fn walk(&mut self, leg: Leg) -> anyhow::Result<Walk> {
        let hops = leg.hops(&mut self.fabric)?;
        let is_allowed = leg.is_allowed(&hops);
        let last = hops.last().and_then(|hop| hop.outcome.decision);
        // Policy may allow a packet that is dropped for another reason.
        let reason = hops.last().and_then(|hop| hop.outcome.verdict.drop_reason());
        let is_denied = !is_allowed && reason != Some(DropReason::NoSuchPod);
        // The other end's view belongs to another walk.
        let to = if leg.is_departure { End::External(leg.to.address()) } else { leg.to.clone() };
        Ok(Walk {
            from: leg.from.to_string(),
            from_address: leg.from.address(),
            to: leg.to.to_string(),
            to_address: leg.to.address(),
            verdict: if is_allowed { "allow" } else { "deny" },
            steps: hops.iter().map(|hop| self.told(hop)).collect(),
            passes: passes::find((self.pipeline, &self.places), self.mirror, &leg.from, &to, leg.port),
            denied_by: if is_denied { run::origin(self.pipeline, last) } else { None },
            leg,
        })
    }

    /// Converts a hop to a printable step: adds the names of ports, tables, rules and policies.
    fn told(&self, hop: &Hop) -> Step {
        let Self { pipeline, fabric, refusing, .. } = self;
        let outcome = &hop.outcome;
        let origin = run::origin(pipeline, outcome.decision);
        let tables = fabric.tables(&hop.node);
        let table =
            outcome.decision.and_then(|decision| decision.table()).and_then(|table| tables?.tables.get(table.index()));
        let rule = outcome.decision.and_then(|Decision { rule, .. }| rule);
        let port = |port| fabric.port_name(&hop.node, port);
        let in_port = port(outcome.in_port);
        let refuses = outcome
            .decision
            .and_then(|decision| decision.origin)
            .is_some_and(|origin| refusing.origins.contains(&origin));
        // The configuration's default.
        let answered = Answered { refuses, tells_unreachable: true };
        Step::new(Pass {
            node: hop.node.clone(),
            is_reply: hop.reply,
            outcome,
            out: outcome.verdict.out_port().and_then(port),
            answer: step::answer_to(outcome, in_port.as_deref(), refusing.protocol, answered),
            in_port,
            table: table.map(|table| (table.name.clone(), table.tables.rules().len())),
            decided: table.zip(rule).and_then(|(table, rule)| table.tables.rules().get(rule as usize)).cloned(),
            // A state has no learned names.
            names: None,
            at: positions(&self.places, origin.as_ref()),
            origin,
            audited: run::origin(pipeline, outcome.audited).map(|origin| {
                let at = positions(&self.places, Some(&origin));
                (origin, at)
            }),
        })
    }
}

/// The path of one connection: the steps of its first packet and of the reply through the vswitches.
#[derive(Serialize)]
struct Walk {
    from: String,
    from_address: IpAddr,
    to: String,
    to_address: IpAddr,
    verdict: &'static str,
    steps: Vec<Step>,
    /// Rules with the action Pass that matched, each with the rules that it skipped.
    passes: Vec<passes::Pass>,
    #[serde(skip)]
    denied_by: Option<Origin>,
    #[serde(skip)]
    leg: Leg,
}

impl Judged for Walk {
    fn is_allowed(&self) -> bool {
        self.verdict == "allow"
    }
}

impl Walk {
    /// Returns the origin that denies the connection or, if it is allowed, the origins that allow it.
    fn because(&self) -> String {
        let first = self.steps.iter().filter(|step| !step.is_reply());
        match self.steps.last() {
            Some(last) if !self.is_allowed() => last.because(),
            _ => {
                let mut reasons: Vec<String> = first.map(Step::because).filter(|because| !because.is_empty()).collect();
                reasons.dedup();
                reasons.join(", ")
            }
        }
    }

    fn write(&self, pipeline: &Pipeline, out: &mut impl Write) -> io::Result<()> {
        let verdict = self.verdict.to_uppercase();
        let text = |end: &End, name: &str, address| match planned_as(pipeline, end) {
            Some(workload) => format!("{} (by the template of {workload})", printable(name)),
            None => end_text(name, address),
        };
        let from = text(&self.leg.from, &self.from, self.from_address);
        let to = text(&self.leg.to, &self.to, self.to_address);
        let beside =
            if self.steps.iter().any(Step::is_audited) { ", because a policy is audited and not enforced" } else { "" };
        writeln!(out, "{from} -> {to} {} {}: {verdict}{beside}", self.leg.port.protocol, self.leg.port.number())?;
        for (number, step) in (1..).zip(&self.steps) {
            step.write(number, out)?;
        }
        passes::write(&self.passes, out)?;
        if let Some(origin) = &self.denied_by {
            remedy::write(pipeline, &self.leg.from, &self.leg.to, self.leg.port, origin, out)?;
        }
        Ok(())
    }
}

/// Returns the policies behind an origin with file and line: `web at web.yaml:14`.
fn positions(places: &Places<'_>, origin: Option<&Origin>) -> Vec<String> {
    let told = |Written { policy, file, line }: Written| format!("{policy} at {file}:{line}");
    places.of_origin(origin).into_iter().map(told).collect()
}

/// Returns the workload, such as `Deployment web`, whose template represents a future pod. `None` for an existing pod.
fn planned_as(pipeline: &Pipeline, end: &End) -> Option<String> {
    let End::Pod { name, .. } = end else { return None };
    let cache = pipeline.cache();
    let pod = cache.pod(cache.pod_key(name)?)?;
    pod.planned.then(|| printable(&pod.workload().to_string()))
}

/// Returns name and address of an end: `x/a (10.0.0.1)`. If the name is the address, only the address.
pub fn end_text(name: &str, address: IpAddr) -> String {
    let text = address.to_string();
    if name == text { text } else { format!("{} ({text})", printable(name)) }
}
