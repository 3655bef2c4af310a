//! Finds the changes since a time that may affect a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::IpAddr;

use anyhow::Context;
use bulkhead_control::attachments::Attachment;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Key;
use bulkhead_control::object::{Object, PodName};
use serde::Serialize;

use super::time::{clock, rfc3339};
use super::{answer, has_foreign, is_event_of_services, pipeline};
use bulkhead_control::source::Strictness;

use crate::journal::{History, StateAt};
use bulkhead_answers::args::{Asked, EndName, Target};
use bulkhead_answers::explain::{Answer, Engine};
use bulkhead_answers::output::{printable, some_of};
use bulkhead_answers::run::KnownNames;

/// Maximum number of changes after which the question is asked again. Each takes milliseconds, in a large cluster up to a second. Beyond
/// that, only the last state is evaluated.
const MOST_ASKED: usize = 1000;

/// Maximum number of changes without effect that are printed.
const MOST_SHOWN: usize = 20;

/// Maximum number of objects named per change: a restart may change the whole cluster.
const MOST_NAMED: usize = 8;

/// Verdict while the vswitch has no valid state.
const NOTHING_PASSES: &str = "DENY: no valid state, so nothing passes";

/// The changes from the requested time to the end of the journal.
#[derive(Serialize)]
pub(super) struct Changes {
    /// Changes after which the verdict differs from the one before, in order.
    decisive: Vec<Changed>,
    /// Other changes that concern the ends.
    others: Vec<Changed>,
    /// Number of changes omitted from `others`.
    more: usize,
    /// Number of changes that do not concern the ends.
    elsewhere: usize,
    /// Number of changes that were lost or merged. Their effect is part of the next one.
    untold: u64,
    /// Whether the last state is unknown because changes are lost.
    is_lost: bool,
    now: Now,
}

/// A change of the state, as printed.
#[derive(Serialize)]
struct Changed {
    time: String,
    #[serde(skip)]
    at: u64,
    generation: u64,
    /// Descriptions of the changed objects: `NetworkPolicy shop/db changed`.
    objects: Vec<String>,
    /// Verdict and reason after the change. `None` if not evaluated.
    verdict: Option<String>,
}

/// The verdict after the last change.
#[derive(Serialize)]
struct Now {
    time: String,
    #[serde(skip)]
    at: u64,
    generation: u64,
    /// `ALLOW` or `DENY` with the reason, or why the verdict is unknown.
    verdict: String,
    /// Whether this verdict differs from the one at the requested time.
    differs: bool,
}

type Attached = BTreeMap<PodName, Attachment>;

struct Ends {
    pods: BTreeSet<PodName>,
    namespaces: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Whether Services may affect the connection.
    is_service: bool,
}

impl Ends {
    fn new(engine: &Engine, answer: &Answer, asked: &Asked) -> Self {
        let (from, to) = answer.ends();
        let addresses: BTreeSet<IpAddr> = from.into_iter().chain(to.into_iter().map(|(address, _)| address)).collect();
        let cache = engine.pipeline.cache();
        let of_addresses =
            addresses.iter().flat_map(|&address| cache.pods_at(address)).map(|(_, pod)| pod.name.clone());
        let mut pods: BTreeSet<PodName> = of_addresses.collect();
        let named = [Some(&asked.from), if let Target::End(end) = &asked.to { Some(end) } else { None }];
        pods.extend(named.into_iter().flatten().filter_map(|end| match end {
            EndName::Pod(name) => Some(name.clone()),
            // The pods of these have the addresses of the answer.
            EndName::Workload(_) | EndName::Labels(_) | EndName::Node(_) | EndName::Address(_) => None,
        }));
        let mut namespaces: BTreeSet<String> = pods.iter().map(|pod| pod.namespace.to_string()).collect();
        if let Target::Service(service) = &asked.to {
            namespaces.insert(service.name.namespace.to_string());
        }
        let is_service = matches!(asked.to, Target::Service(_) | Target::End(EndName::Address(_) | EndName::Node(_)));
        Self { pods, namespaces, addresses, is_service }
    }

    /// Whether a pod may affect the connection.
    fn concern_pod<'a>(&self, name: &PodName, mut addresses: impl Iterator<Item = &'a IpAddr>) -> bool {
        // A pod of the namespace may become a backend.
        self.pods.contains(name)
            || (self.is_service && self.namespaces.contains(&*name.namespace))
            || addresses.any(|address| self.addresses.contains(address))
    }

    /// Whether the attachments of relevant pods differ.
    fn concern_attached(&self, before: &Attached, now: &Attached) -> bool {
        let is_other = |name: &PodName| before.get(name) != now.get(name);
        let addresses =
            |name| [before, now].into_iter().filter_map(move |pods| pods.get(name)).flat_map(|pod| &pod.addresses);
        before.keys().chain(now.keys()).any(|name| is_other(name) && self.concern_pod(name, addresses(name)))
    }

    /// Whether an object may affect the connection.
    fn concern(&self, event: &Event, before: Option<&Object>) -> bool {
        match Key::of_event(event) {
            Key::Pod(name) => {
                let now = if let Event::Apply(object) = event { Some(object) } else { None };
                let addresses = now.into_iter().chain(before).flat_map(|object| match object {
                    Object::Pod(pod) => &*pod.addresses,
                    _ => &[],
                });
                self.concern_pod(&name, addresses)
            }
            Key::Policy(name) => self.namespaces.contains(&*name.namespace),
            Key::Namespace(name) => self.namespaces.contains(&*name),
            Key::Node(_) | Key::ClusterPolicy(_) | Key::Foreign(_) => true,
            Key::Service(_) => self.is_service,
            Key::EndpointSlice(name) => self.is_service && self.namespaces.contains(&*name.namespace),
        }
    }
}

/// Returns an event as text: `NetworkPolicy shop/db changed`.
fn became(event: &Event, before: Option<&Object>) -> String {
    let what = match (event, before) {
        (Event::Apply(_), None) => "added",
        (Event::Apply(_), Some(_)) => "changed",
        _ => "removed",
    };
    format!("{} {what}", Key::of_event(event))
}

/// Replays the changes to the end, and asks again after each relevant one. `known` has the addresses of domain names in policies.
pub(super) fn find(
    history: &History<'_>,
    (state, mut engine, known): (&mut StateAt, Engine, &KnownNames),
    then: &Answer,
    asked: &Asked,
    end: u64,
) -> anyhow::Result<Changes> {
    let ends = Ends::new(&engine, then, asked);
    let first = if state.is_denying { NOTHING_PASSES.to_owned() } else { then.gist() };
    let mut last = first.clone();
    let (mut decisive, mut others) = (Vec::new(), Vec::new());
    let (mut elsewhere, mut untold, mut asked_so_far, mut more) = (0, 0_u64, 0, 0);
    let (mut attached, mut settings) = (state.attached.clone(), state.settings.clone());
    let mut is_denying = state.is_denying;
    while let Some(step) = history.follow(state) {
        untold = step.missing.saturating_add(step.merged - 1).saturating_add(untold);
        let concerned = step.events.iter().filter(|(event, before)| ends.concern(event, before.as_ref()));
        let mut objects: Vec<String> = concerned.map(|(event, before)| became(event, before.as_ref())).collect();
        if is_denying != state.is_denying {
            is_denying = state.is_denying;
            let what = if is_denying { "the state became invalid" } else { "the state became valid again" };
            objects.push(what.to_owned());
        }
        if settings == state.settings {
            let events = step.events.into_iter().map(|(event, _)| match event {
                Event::Apply(object) => Event::Apply(known.resolve(object)),
                other => other,
            });
            let needs_services = has_foreign(state);
            let events = events.filter(|event| needs_services || !is_event_of_services(event));
            let applied = engine.pipeline.apply_batch(events);
            // Attach only if necessary: it recompiles the pipeline, which takes a second in a large cluster.
            let followed = match attached == state.attached {
                true => applied,
                false => applied.and_then(|()| engine.pipeline.attach(state.attached.clone())),
            };
            followed.with_context(|| format!("the state of {} does not compile", rfc3339(step.time)))?;
            if ends.concern_attached(&attached, &state.attached) {
                objects.push("the addresses of attached pods changed".to_owned());
            }
        } else {
            objects.push("the configuration changed".to_owned());
            settings = state.settings.clone();
            engine = Engine { pipeline: pipeline(state, known)?, strictness: Strictness::Lenient };
        }
        if attached != state.attached {
            attached = state.attached.clone();
        }
        if objects.is_empty() && step.missing == 0 {
            elsewhere += 1;
            continue;
        }
        asked_so_far += 1;
        let verdict = (asked_so_far <= MOST_ASKED).then(|| verdict(&engine, state, asked));
        let is_decisive = verdict.as_ref().is_some_and(|verdict| *verdict != last);
        let (time, generation) = (rfc3339(step.time), step.generation);
        let changed = Changed { time, at: step.time, generation, objects, verdict };
        if is_decisive {
            last = changed.verdict.clone().unwrap_or(last);
            decisive.push(changed);
        } else if others.len() < MOST_SHOWN {
            others.push(changed);
        } else {
            more += 1;
        }
    }
    let verdict = verdict(&engine, state, asked);
    let differs = verdict != first;
    let now = Now { time: rfc3339(end), at: end, generation: state.generation, verdict, differs };
    Ok(Changes { decisive, others, more, elsewhere, untold, is_lost: !history.is_last(state), now })
}

/// Returns the verdict in one line. A missing end is also an answer.
fn verdict(engine: &Engine, state: &StateAt, asked: &Asked) -> String {
    if state.is_denying {
        return NOTHING_PASSES.to_owned();
    }
    match answer(engine, state, asked) {
        Ok(answer) => answer.gist(),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

impl Changes {
    pub(super) fn write(&self, about: u64, out: &mut impl Write) -> io::Result<()> {
        let Self { decisive, others, more, elsewhere, untold, is_lost, now } = self;
        writeln!(out, "\nWhat changed since:")?;
        if decisive.is_empty() {
            writeln!(out, "   nothing that changes the verdict on this connection")?;
        }
        for changed in decisive {
            changed.write(about, out)?;
            writeln!(out, "      then {}", printable(changed.verdict.as_deref().unwrap_or_default()))?;
        }
        if !others.is_empty() {
            writeln!(out, "   without effect on this connection:")?;
            others.iter().try_for_each(|changed| changed.write(about, out))?;
        }
        if *more > 0 {
            writeln!(out, "   and {more} more")?;
        }
        match elsewhere {
            0 => {}
            1 => writeln!(out, "   1 change concerned other objects")?,
            more => writeln!(out, "   {more} changes concerned other objects")?,
        }
        if *untold > 0 {
            writeln!(out, "   not recorded one by one: {untold}; what they did is in the next of the above")?;
        }
        if *is_lost {
            writeln!(out, "   the last changes are lost: the current verdict may be based on an older state")?;
        }
        let still = if now.differs { "Now" } else { "Still so" };
        let verdict = printable(&now.verdict);
        writeln!(out, "\n{still} ({}, generation {}): {verdict}", clock(now.at, about), now.generation)
    }
}

impl Changed {
    fn write(&self, about: u64, out: &mut impl Write) -> io::Result<()> {
        let objects: Vec<&str> = self.objects.iter().map(String::as_str).collect();
        let objects =
            if objects.is_empty() { "what is not recorded".to_owned() } else { some_of(&objects, MOST_NAMED) };
        writeln!(out, "   {}  {objects}", clock(self.at, about))
    }
}
