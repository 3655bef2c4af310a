//! What has changed since, as far as it may matter to a connection.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::IpAddr;

use anyhow::Context;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Key;
use bulkhead_control::object::{Object, PodName};
use serde::Serialize;

use super::time::{clock, rfc3339};
use super::{answer, is_event_of_services, pipeline};
use crate::args::{Asked, EndName, Target};
use crate::explain::{Answer, Engine};
use crate::journal::{History, StateAt};
use crate::output::printable;

/// Changes after each of which it is asked again: of more, the last state alone is. Each takes some milliseconds, in a large cluster a second.
const MOST_ASKED: usize = 1000;

/// Changes without effect that are shown one by one.
const MOST_SHOWN: usize = 20;

/// What has changed since.
#[derive(Serialize)]
pub(super) struct Changes {
    /// Those that decide otherwise than what was so before, in their order.
    decisive: Vec<Changed>,
    /// Others that concern the ends.
    others: Vec<Changed>,
    /// How many more of these there were.
    more: usize,
    /// How many changes concern nobody of these.
    elsewhere: usize,
    /// Changes that the journal has lost or told together: what they did is in the next one.
    untold: u64,
    /// Whether the last state is not known, because changes are lost.
    is_lost: bool,
    now: Now,
}

/// A change.
#[derive(Serialize)]
struct Changed {
    time: String,
    #[serde(skip)]
    at: u64,
    generation: u64,
    /// The objects: `NetworkPolicy shop/db changed`.
    objects: Vec<String>,
    /// Verdict and reason after it; none where it was not asked.
    verdict: Option<String>,
}

/// What is so at the end.
#[derive(Serialize)]
struct Now {
    time: String,
    #[serde(skip)]
    at: u64,
    generation: u64,
    /// `ALLOW` or `DENY` with the reason; or why there is none.
    verdict: String,
    /// Whether that is other than it was then.
    differs: bool,
}

/// Whom a connection concerns.
struct Ends {
    pods: BTreeSet<PodName>,
    namespaces: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Whether Services may matter.
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
            EndName::Address(_) => None,
        }));
        let mut namespaces: BTreeSet<String> = pods.iter().map(|pod| pod.namespace.to_string()).collect();
        if let Target::Service(service) = &asked.to {
            namespaces.insert(service.name.namespace.to_string());
        }
        let is_service = matches!(asked.to, Target::Service(_) | Target::End(EndName::Address(_)));
        Self { pods, namespaces, addresses, is_service }
    }

    /// Whether an object may have to do with the connection.
    fn concern(&self, event: &Event, before: Option<&Object>) -> bool {
        let has_address = |object: &Object| match object {
            Object::Pod(pod) => pod.addresses.iter().any(|address| self.addresses.contains(address)),
            _ => false,
        };
        match Key::of_event(event) {
            Key::Pod(name) => {
                let now = if let Event::Apply(object) = event { Some(object) } else { None };
                // A backend of a Service may be a pod that was none.
                self.pods.contains(&name)
                    || (self.is_service && self.namespaces.contains(&*name.namespace))
                    || now.into_iter().chain(before).any(has_address)
            }
            Key::Policy(name) => self.namespaces.contains(&*name.namespace),
            Key::Namespace(name) => self.namespaces.contains(&*name),
            Key::Node(_) | Key::ClusterPolicy(_) => true,
            Key::Service(_) => self.is_service,
            Key::EndpointSlice(name) => self.is_service && self.namespaces.contains(&*name.namespace),
        }
    }
}

/// In words: what became of an object.
fn became(event: &Event, before: Option<&Object>) -> String {
    let what = match (event, before) {
        (Event::Apply(_), None) => "added",
        (Event::Apply(_), Some(_)) => "changed",
        _ => "removed",
    };
    format!("{} {what}", Key::of_event(event))
}

/// Follows the state to the end, and asks again after each change that may matter.
pub(super) fn find(
    history: &History<'_>,
    (state, mut engine): (&mut StateAt, Engine),
    then: &Answer,
    asked: &Asked,
    end: u64,
) -> anyhow::Result<Changes> {
    let (ends, first) = (Ends::new(&engine, then, asked), then.gist());
    let mut last = first.clone();
    let (mut decisive, mut others) = (Vec::new(), Vec::new());
    let (mut elsewhere, mut untold, mut asked_so_far, mut more) = (0, 0, 0, 0);
    let (mut attached, mut settings) = (state.attached.clone(), state.settings.clone());
    while let Some(step) = history.follow(state) {
        untold += step.missing + (step.merged - 1);
        let concerned = step.events.iter().filter(|(event, before)| ends.concern(event, before.as_ref()));
        let mut objects: Vec<String> = concerned.map(|(event, before)| became(event, before.as_ref())).collect();
        if (&attached, &settings) == (&state.attached, &state.settings) {
            let events = step.events.into_iter().map(|(event, _)| event);
            let applied = engine.pipeline.apply_batch(events.filter(|event| !is_event_of_services(event)));
            applied.with_context(|| format!("the state of {} does not compile", rfc3339(step.time)))?;
        } else {
            let beside =
                if settings == state.settings { "the addresses of attached pods" } else { "the configuration" };
            objects.push(format!("{beside} changed"));
            (attached, settings) = (state.attached.clone(), state.settings.clone());
            engine = Engine::new(pipeline(state)?)?;
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

/// What is so in this state, in a line. That an end is not there any more is an answer as well.
fn verdict(engine: &Engine, state: &StateAt, asked: &Asked) -> String {
    let beside = if state.is_denying { "; there is no state that makes sense, so nothing passes" } else { "" };
    match answer(engine, state, asked) {
        Ok(answer) => format!("{}{beside}", answer.gist()),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

impl Changes {
    pub(super) fn write(&self, about: u64, out: &mut impl Write) -> io::Result<()> {
        let Self { decisive, others, more, elsewhere, untold, is_lost, now } = self;
        writeln!(out, "\nWhat changed since:")?;
        if decisive.is_empty() {
            writeln!(out, "   nothing that decides this connection otherwise")?;
        }
        for changed in decisive {
            changed.write(about, out)?;
            writeln!(out, "      then {}", printable(changed.verdict.as_deref().unwrap_or_default()))?;
        }
        if !others.is_empty() {
            writeln!(out, "   without effect on it:")?;
            others.iter().try_for_each(|changed| changed.write(about, out))?;
        }
        if *more > 0 {
            writeln!(out, "   and {more} more of such")?;
        }
        match elsewhere {
            0 => {}
            1 => writeln!(out, "   1 change was of others")?,
            more => writeln!(out, "   {more} changes were of others")?,
        }
        if *untold > 0 {
            writeln!(out, "   not recorded one by one: {untold}; what they did is in the next of the above")?;
        }
        if *is_lost {
            writeln!(out, "   the last changes are lost: what is said of now may be older")?;
        }
        let still = if now.differs { "Now" } else { "Still so" };
        let verdict = printable(&now.verdict);
        writeln!(out, "\n{still} ({}, generation {}): {verdict}", clock(now.at, about), now.generation)
    }
}

impl Changed {
    fn write(&self, about: u64, out: &mut impl Write) -> io::Result<()> {
        let objects = if self.objects.is_empty() { "what is not recorded".to_owned() } else { self.objects.join(", ") };
        writeln!(out, "   {}  {}", clock(self.at, about), printable(&objects))
    }
}
