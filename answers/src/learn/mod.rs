//! `bulkhead learn`: generates NetworkPolicies, and ClusterNetworkPolicies for domain names, that allow observed traffic, and proves it.
//!
//! ```text
//!  captures, flow logs --flows--> observed flows --evidence--> contacts: address, address, protocol, port
//!                                                   |  those that the state's own policies do not allow
//!  pods --workload--> workloads, selectors ---------+--rules--> policies --policy--> YAML
//!                                                                              |  read again, applied to the state
//!  the same flows judged <--proof-- state + learned --surplus--> connections that they allow but no flow used
//! ```
//! **Names.** A session counts with the domain names that its client had resolved to the server when it began: those of the DNS answers in
//! the capture ([`Listeners`]) or of the log. Rules that name domains match it by these, and learned rules name domains if that suffices
//! ([`names`]).
//!
//! **Invariant.** The printed text is the proven text: it is parsed again like any file. A direction of a workload without observed traffic
//! gets no policy, which would isolate it.

mod evidence;
mod judge;
mod names;
mod policy;
mod proof;
mod rules;
mod surplus;
#[cfg(test)]
mod tests;
mod workload;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::cache::{Cache, Event};
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::service::Settings;
use bulkhead_control::source::{Strictness, load_text, nearest_word};
use bulkhead_dataplane::ServerNameCheck;

use self::evidence::Evidence;
use self::judge::Rules;
use self::policy::LearnedPolicy;
use self::proof::Proof;
use self::surplus::Surplus;
use self::workload::{Workload, Workloads};
use crate::args;
use crate::args::{Learn, Learned};
use crate::flows::verdict::Judge;
use crate::flows::{Listeners, Observations, ObservedFlow};
use crate::output;
use crate::progress;
use crate::replay::logged;
use crate::run::{self, Input};

/// Prints the policies that allow the traffic in captures and flow logs.
///
/// # Errors
/// If the state or a source cannot be read, or a policy cannot be proven.
pub fn run(args: &Learn) -> anyhow::Result<ExitCode> {
    let (paths, behind) = args::without_captures(&args.state.paths);
    if behind.is_empty() && args.captures.is_empty() && args.flows.is_empty() {
        bail!(
            "no traffic to learn from\n  help: pass captures (.pcap, .pcapng) after the state, or flow logs with --flows"
        );
    }
    let state = args::State { paths, ..args.state.clone() };
    let input = Input::open(&state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let (mut pipeline, services) = run::load_with_services(&input, None, true)?;
    // The result must hold once all policies are enforced.
    run::enforce_all(&mut pipeline, "learn")?;
    let mut seen = Observations::new(args.state.lenient).by_name();
    let names = args.dns.settings(ServerNameCheck::Off);
    let mut listeners = Listeners::new(&pipeline, &services, &settings, &names);
    let captures = behind.iter().chain(&args.captures);
    logged::read(captures, &args.flows, (args.tcp_pickup, Some(&mut listeners)), &mut seen)?;
    let flows = logged::flows_of(&mut seen)?;
    let namespaces = namespaces(&args.namespaces, pipeline.cache())?;
    let wanted = Wanted { direction: args.direction, namespaces, slack: args.slack };
    let lesson = learn(State { pipeline, services, settings, strictness: state.strictness() }, &flows, wanted)?;
    let mut out = output::stdout();
    out.write_all(lesson.yaml.as_bytes())?;
    out.flush()?;
    progress::finish();
    let mut told = io::stderr().lock();
    // Ignore errors: if standard error is closed, nobody can read the proof.
    let _ = lesson.write(&mut told);
    let holds = lesson.proof.holds();
    // The process ends now. Freeing a large state object by object would only delay that.
    std::mem::forget(lesson);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Returns the namespaces to learn for.
///
/// # Errors
/// If a namespace has no pods: a misspelt name would learn nothing.
fn namespaces(names: &[String], cache: &Cache) -> anyhow::Result<BTreeSet<Arc<str>>> {
    let known: BTreeSet<Arc<str>> = cache.pods().map(|(_, pod)| pod.name.namespace.clone()).collect();
    let unknown = names.iter().find(|name| !known.contains(name.as_str()));
    if let Some(name) = unknown {
        let nearest = nearest_word(name, known.iter().map(|known| &**known));
        let help = match nearest {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => "choose a namespace that has pods".to_owned(),
        };
        bail!("--namespace {name}: the state has no pods in this namespace\n  help: {help}");
    }
    Ok(names.iter().map(|name| name.as_str().into()).collect())
}

/// The part of the traffic for which the user requests policies.
#[derive(Clone, Debug)]
struct Wanted {
    direction: Learned,
    /// Namespaces whose pods get policies. Empty means all.
    namespaces: BTreeSet<Arc<str>>,
    /// Number of unobserved (external address, port) pairs that may be added.
    slack: u64,
}

impl Wanted {
    fn covers(&self, workload: &Workload) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(&workload.namespace)
    }
}

/// The state, compiled to rules and address sets.
struct State {
    pipeline: Pipeline,
    services: Vec<Object>,
    settings: Settings,
    strictness: Strictness,
}

impl State {
    fn judge<'a>(&'a self, reachability: &'a Reachability) -> Rules<'a> {
        let packets = Judge::new(&self.pipeline, self.services.clone(), self.settings.clone(), self.strictness);
        Rules::new(packets, reachability)
    }

    fn reachability(&self) -> anyhow::Result<Reachability> {
        let mirror = self.pipeline.mirror().context("a pipeline without tables has a mirror")?;
        Ok(Reachability::of(&self.pipeline, mirror))
    }
}

/// The result: the learned policies, their verdicts on the seen flows, and what they allow beyond those flows.
struct Lesson {
    wanted: Wanted,
    yaml: String,
    policies: Vec<LearnedPolicy>,
    workloads: Workloads,
    evidence: Evidence,
    proof: Proof,
    surplus: Surplus,
}

fn learn(mut state: State, flows: &[ObservedFlow], wanted: Wanted) -> anyhow::Result<Lesson> {
    progress::step("learning from the sessions");
    let workloads = Workloads::of(state.pipeline.cache());
    let before = state.reachability()?;
    let evidence = Evidence::of(flows, &mut state.judge(&before), &workloads)?;
    let policies = rules::learned(&evidence, &before, &state.pipeline, &workloads, &wanted);
    let yaml = policy::yaml(&policies, &workloads);
    if !policies.is_empty() {
        // Parse the printed text, so that exactly this is proven.
        let learned = load_text("learned", &yaml, Strictness::Strict).map_err(|faults| anyhow::anyhow!("{faults}"))?;
        state.pipeline.apply_batch(learned.objects.into_iter().map(Event::Apply)).context("the learned policies")?;
    }
    progress::step("proving the learned policies");
    let after = state.reachability()?;
    let surplus = Surplus::of(&policies, &workloads, &evidence, &after);
    let proof = Proof::of(&evidence, &mut state.judge(&after))?;
    Ok(Lesson { wanted, yaml, policies, workloads, evidence, proof, surplus })
}
