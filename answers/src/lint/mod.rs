//! `bulkhead lint`: finds rules that never decide, and policies that probably do not do what their author meant.
//!
//! ```text
//!  state --compile, every rule kept--> Reachability --Removals--> dead: what can be removed, why, and what together
//!    |                                      `-------------------> dns, ties, hits
//!    |--policies, pods--> nobody: selectors and port names that match nothing
//!    |                      `--custom resources--> makers: whose pods the state may lack
//!    |--policies, Services--> blocks: addresses of pods and Services, exceptions that another rule allows again
//!    `--text of the policy--> rules that policyTypes leaves out, empty lists
//!  found --join those of one cause, look up lines--> findings --report--> text, JSON, SARIF
//! ```
//! **Invariant.** A rule is dead if and only if removing it changes no verdict. Every other finding is a fact about the state; policies
//! that may be intended are not reported.

mod blocks;
mod dead;
mod dns;
mod finding;
mod hits;
mod makers;
mod nobody;
mod report;
mod subject;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::object::{PolicyName, Position};
use bulkhead_control::origin::Direction;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::reachability::removal::Removals;
use bulkhead_control::source::{SourceError, SourceErrors, nearest_word};

pub use self::finding::ids;
use self::finding::{At, Check, EMPTY_LIST, Finding, Found, RULES_WITHOUT_TYPE, UNUSED_RULE};
use self::hits::{Hits, Judges};
pub use self::hits::{ReadCounters, Running};
use self::makers::Makers;
use self::report::Report;
use self::subject::Subject;
use crate::args::{Lint, LintFormat};
use crate::output;
use crate::progress;
use crate::run::{self, Input, Whole};
use crate::translate::Services;

/// Prints the findings. Returns exit code 1 if there are any. `counters` reads a running vswitch's counters for `--hits SOCKET`.
///
/// # Errors
/// If the state or a source of hits cannot be read.
pub fn run(args: &Lint, counters: ReadCounters<'_>) -> anyhow::Result<ExitCode> {
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let whole = run::load_whole(&input, &args.planned, hits::has_sessions(args))?;
    let mirror = whole.pipeline.mirror().context("a pipeline without tables has a mirror")?;
    let state = Reachability::of(&whole.pipeline, mirror);
    let subjects = Subject::all(whole.pipeline.cache());
    let focus = Focus::of(args, &subjects)?;
    let services = Services::new(&whole.pipeline, whole.services.clone(), settings.clone());
    let judges = Judges {
        deciding: whole.deciding.as_ref(),
        strictness: args.state.strictness(),
        whole: &whole.pipeline,
        state: &state,
        services: &whole.services,
        settings: &settings,
    };
    let hits = if args.hits.is_empty() { None } else { Some(hits::read(args, &judges, counters)?) };
    progress::step("looking for dead rules and mistakes");
    let mut found = find(&whole, &state, &subjects, &services, &args.planned.pod_cidrs, hits.as_ref());
    found.retain(|one| focus.covers(one));
    let report = Report::new(finding::placed(&found), hits.map(|hits| hits.windows).unwrap_or_default());
    let mut out = BufWriter::new(output::stdout());
    match args.output {
        LintFormat::Text => report.write(&mut out)?,
        LintFormat::Json => report.json(&mut out)?,
        LintFormat::Sarif => report.sarif(&mut out)?,
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(!report.is_empty())))
}

/// Runs all checks on a state and returns their findings.
fn find<'a>(
    whole: &'a Whole,
    state: &Reachability,
    subjects: &[Subject<'a>],
    services: &Services,
    pod_cidrs: &[ipnet::IpNet],
    hits: Option<&Hits>,
) -> Vec<Found<'a>> {
    let (pipeline, cache) = (&whole.pipeline, whole.pipeline.cache());
    let mut found = written(whole);
    found.extend(blocks::of_services(pipeline, services, subjects));
    if !cache.pods().any(|(_, pod)| pod.is_endpoint()) {
        output::warn(
            "the state has no pods: only checks that need no pods are run\n  \
             help: add the output of `kubectl get pods,namespaces,nodes -A -o yaml`, or a rendered chart, to --state",
        );
        return found;
    }
    let addresses = blocks::PodAddresses::of(cache, pod_cidrs);
    let makers = Makers::new(cache, &whole.custom);
    let ports = blocks::ServicePorts::of(&whole.services);
    for subject in subjects.iter().filter(|subject| !subject.pods.is_empty()) {
        for rule in &subject.rules {
            found.extend(nobody::rule(cache, &makers, subject, rule));
            found.extend(blocks::of_pods(&addresses, subject, rule));
            found.extend(ports.confused(cache, subject, rule));
        }
        found.extend(blocks::reopened(subject, subjects));
    }
    let mut removals = Removals::of(state, pipeline.origins());
    found.extend(dns::find(cache, state, subjects));
    found.extend(dns::encrypted(state, subjects));
    found.extend(dead::ties(pipeline, &removals, subjects));
    let dead = dead::find(pipeline, &mut removals, &makers, subjects, &found);
    if let Some(hits) = hits {
        let used = subject::origins(pipeline);
        for subject in subjects.iter().filter(|subject| !subject.pods.is_empty()) {
            for rule in &subject.rules {
                let key = (subject.name.clone(), rule.direction, rule.at);
                let origin = used.get(&key).and_then(|&origin| pipeline.origins().get(origin));
                let is_used = origin.is_some_and(|origin| hits.origins.contains(&origin.to_string()));
                if is_used || dead.rules.contains(&key) {
                    continue;
                }
                let windows: Vec<String> = hits.windows.iter().map(hits::Window::told).collect();
                let text = format!("the rule decided nothing in {}", windows.join("; "));
                let mend = "observe a longer period, or remove the rule if it is not needed";
                found.push(subject.found_in(UNUSED_RULE, rule, subject.rule_at(rule), text, mend));
            }
        }
    }
    found.extend(dead.found);
    found
}

/// Returns the findings of the state's parser (rules outside `policyTypes`, empty lists), with their lines.
fn written(whole: &Whole) -> Vec<Found<'static>> {
    let of = |check: &'static Check, errors: &SourceErrors| {
        match errors.total() - errors.shown().len() {
            0 => {}
            more => output::warn(&format!("{}: {more} more findings of this kind", check.id)),
        }
        errors.shown().iter().map(|error| remarked(check, error)).collect::<Vec<_>>()
    };
    let mut found = of(RULES_WITHOUT_TYPE, &whole.idle_rules);
    found.extend(of(EMPTY_LIST, &whole.empty_lists));
    found
}

fn remarked(check: &'static Check, error: &SourceError) -> Found<'static> {
    let object = error.object.as_deref().unwrap_or_default();
    let name = object.split_once(' ').map_or(object, |(_, name)| name);
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let (direction, rule) = match error.path.split_once("gress[") {
        Some((start, rest)) => {
            let direction = if start.ends_with("in") { Direction::Ingress } else { Direction::Egress };
            (Some(direction), rest.split(']').next().and_then(|number| number.parse().ok()))
        }
        None => (None, None),
    };
    Found {
        check,
        policy: PolicyName::new(namespace, name),
        rule: direction.zip(rule),
        at: At { text: object.to_owned(), position: None::<&Position>, path: error.path.clone() },
        reason: error.problem.clone(),
        mend: error.help.clone(),
        cause: None,
        by: Vec::new(),
        together: None,
        line: error.line.map(|line| (error.file.to_string(), line)),
    }
}

/// Which findings the command line selects.
struct Focus<'a> {
    only: &'a [String],
    allow: &'a [String],
    namespaces: BTreeSet<&'a str>,
    policies: BTreeSet<PolicyName>,
}

impl<'a> Focus<'a> {
    /// Reads the selection from the arguments. An error if a named policy does not exist, or a named namespace has no policies: the result
    /// would be empty whatever is wrong.
    fn of(args: &'a Lint, subjects: &[Subject<'_>]) -> anyhow::Result<Self> {
        let spaces: BTreeSet<&Arc<str>> = subjects.iter().map(|subject| &subject.name.namespace).collect();
        for name in &args.namespaces {
            if !spaces.iter().any(|known| ***known == **name) {
                let near = nearest_word(name, spaces.iter().map(|known| &***known));
                let help = near.map_or("choose a namespace that has policies".to_owned(), |near| {
                    format!("did you mean `{near}`?")
                });
                bail!("--namespace {name}: the state has no policies in this namespace\n  help: {help}");
            }
        }
        let mut policies = BTreeSet::new();
        for name in &args.policies {
            let named = |subject: &&Subject<'_>| {
                subject.name.to_string() == *name
                    || (subject.is_cluster() && subject.name.name.split('/').nth(1) == Some(name.as_str()))
            };
            let known: Vec<&Subject<'_>> = subjects.iter().filter(named).collect();
            if known.is_empty() {
                let labels: Vec<String> = subjects.iter().map(|subject| subject.name.to_string()).collect();
                let near = nearest_word(name, labels.iter().map(String::as_str));
                let help = near.map_or("write NAMESPACE/NAME".to_owned(), |near| format!("did you mean `{near}`?"));
                bail!("--policy {name}: the state has no such policy\n  help: {help}");
            }
            policies.extend(known.into_iter().map(|subject| subject.name.clone()));
        }
        let namespaces = args.namespaces.iter().map(String::as_str).collect();
        Ok(Self { only: &args.only, allow: &args.allow, namespaces, policies })
    }

    fn covers(&self, found: &Found<'_>) -> bool {
        let is = |id: &String| *id == found.check.id;
        let is_named = self.policies.contains(&found.policy) || self.namespaces.contains(&*found.policy.namespace);
        (self.only.is_empty() || self.only.iter().any(is))
            && !self.allow.iter().any(is)
            && ((self.policies.is_empty() && self.namespaces.is_empty()) || is_named)
    }
}

fn count(findings: &[Finding], of: finding::Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == of).count()
}
