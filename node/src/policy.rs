//! The policy thread. It follows the state's files or the API server, the node's addresses and the attached pods, compiles policy, and has
//! it published.
//!
//! Compiling takes seconds in a large cluster, and a read takes forever if a file server does not answer. No other thread waits for this
//! one: the interfaces thread opens and closes ports with the policy in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_control::attachments::Standing;
use bulkhead_control::object::PodName;
use bulkhead_dataplane::io::Watched;
use crossbeam_channel::{Receiver, Sender, never, select};

use super::changes;
use super::composer::{Composer, Policy};
use super::log;
use super::names::{Lookup, Names};
use super::notice::{Notice, Obituary};
use super::own_addresses;
use super::ports::{Attach, Event};
use super::state::{Judging, LiveState};

/// Length of the rest after a batch of the API server's changes, in multiples of the batch's duration. It limits the thread to a third of a
/// core. Most of a batch's cost does not depend on its size, so fewer batches leave more of the cores to the workers.
const REST: u32 = 2;
/// Longest rest, by which a change right after a batch is delayed.
const LONGEST_REST: Duration = Duration::from_millis(20);

/// The channels from which the policy thread reads.
struct Inbox {
    look: Receiver<()>,
    attached: Receiver<Attach>,
    judging: Receiver<Judging>,
    lookups: Receiver<Lookup>,
}

/// A handle to the policy thread. Dropping it ends the thread without waiting, as a file read may block the thread.
pub(super) struct Handle {
    look: Sender<()>,
    attach: Sender<Attach>,
    judging: Sender<Judging>,
    names: Names,
}

impl Handle {
    /// Makes the thread check the files now.
    pub(super) fn look(&self) {
        // A full channel already has this request. A closed one means that the thread is dead: see `Notice::Died`.
        let _ = self.look.try_send(());
    }

    /// Makes the thread compile with another engine, and audit or enforce policies by another default.
    pub(super) fn judge(&self, judging: Judging) {
        // An error means that the thread is dead: see `Notice::Died`.
        let _ = self.judging.send(judging);
    }

    /// Returns the channel on which the ports thread sends the attached pods.
    pub(super) fn attach(&self) -> Sender<Attach> {
        self.attach.clone()
    }

    /// Returns a client for lookups of names and addresses at this thread.
    pub(super) fn names(&self) -> Names {
        self.names.clone()
    }
}

/// Starts the thread with a state that is already in force, and with the attached pods of change 0.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn start(
    state: LiveState,
    composer: Arc<Composer>,
    notices: Sender<Notice>,
    ports: Sender<Event>,
) -> std::io::Result<Handle> {
    let (look, asked) = crossbeam_channel::bounded(1);
    let (attach, attached) = crossbeam_channel::unbounded();
    let (judging, selected) = crossbeam_channel::unbounded();
    let (names, lookups) = Names::new();
    let known = Known { ports, change: 0, told: None };
    let inbox = Inbox { look: asked, attached, judging: selected, lookups };
    let follow = move || {
        let _obituary = Obituary { who: "the policy thread has", notices: notices.clone() };
        follow(state, &composer, &inbox, &notices, known);
    };
    std::thread::Builder::new().name("policy".into()).spawn(follow)?;
    Ok(Handle { look, attach, judging, names })
}

/// What this thread last reported to the ports thread about the attached pods.
struct Known {
    ports: Sender<Event>,
    /// Number of the last change of the attached pods that the ports thread sent.
    change: u64,
    /// The last report to the ports thread. `None` before the first one.
    told: Option<(u64, BTreeMap<PodName, Standing>)>,
}

impl Known {
    /// Reports to the ports thread whether policy knows each attached pod, if that has changed. The reported state is in force.
    fn tell(&mut self, state: &LiveState) {
        let now = (self.change, state.standings());
        if self.told.as_ref() != Some(&now) {
            // An error means that the thread is dead, which the main thread detects.
            let _ = self.ports.send(Event::Policy(now.0, now.1.clone()));
            self.told = Some(now);
        }
    }
}

fn follow(mut state: LiveState, composer: &Composer, inbox: &Inbox, notices: &Sender<Notice>, mut known: Known) {
    let (mut addresses, mut server) = (changes::of(Watched::Addresses), state.notices());
    // The addresses may have changed since the first read.
    let mut renumbered = true;
    let (nothing, mut rested) = (never(), Instant::now());
    state.tell_changes(composer.current().generation(), composer.enforced().is_refused);
    loop {
        let rest = rested.saturating_duration_since(Instant::now());
        let (changes, longest) = if rest.is_zero() { (&server, Duration::MAX) } else { (&nothing, rest) };
        let next_look = state.next_look().saturating_duration_since(Instant::now()).min(longest);
        let files = state.file_events();
        let (mut attach, mut judging) = (None, None);
        select! {
            recv(inbox.look) -> asked => match asked {
                Ok(()) => state.hurry(),
                Err(_) => return,
            },
            // The last message replaces earlier ones. If the ports thread dies, the process ends.
            recv(inbox.attached) -> told => attach = told.ok().map(|told| inbox.attached.try_iter().last().unwrap_or(told)),
            recv(inbox.judging) -> told => judging = told.ok().map(|told| inbox.judging.try_iter().last().unwrap_or(told)),
            recv(inbox.lookups) -> asked => {
                if let Ok(lookup) = asked {
                    lookup.answer(&state);
                }
                continue;
            },
            recv(addresses) -> told => match told {
                Ok(()) => renumbered = true,
                Err(_) => addresses = never(),
            },
            recv(files) -> event => state.hear_of_files(event),
            recv(changes) -> told => match told {
                Ok(notice) => state.hear(&notice),
                Err(_) => {
                    server = never();
                    // Fails only if the main thread has ended.
                    let _ = notices.send(Notice::Died("the kubernetes thread has"));
                }
            },
            default(if renumbered { Duration::ZERO } else { next_look }) => {}
        }
        let seen = Instant::now();
        let mut is_attached = false;
        if let Some(Attach { change, pods }) = attach {
            known.change = change;
            is_attached = state.attach(pods);
        }
        let is_judged_otherwise = judging.is_some_and(|judging| state.judge(&judging));
        let has_changed = std::mem::take(&mut renumbered) && {
            let has_other_sources = own_addresses::read_down().is_ok_and(|down| state.set_down_addresses(down));
            state.renumber(own_addresses::read()) || has_other_sources
        };
        let has_refreshed = state.refresh();
        // A change without effect on this node has no latency to measure.
        let heard = state.take_heard().filter(|_| has_refreshed);
        let (services, has_other_names) = state.take_services();
        let has_services = services.is_some();
        let has_changed = has_refreshed || has_changed || has_other_names;
        if has_changed || is_attached || is_judged_otherwise {
            let policy = state.policy();
            // New pods are not logged.
            composer.set_policy(Policy { is_told: policy.is_told && has_changed, ..policy }, services, seen, heard);
            if notices.send(Notice::Policy).is_err() {
                return;
            }
        } else if let Some(services) = services {
            composer.set_services(services);
            if notices.send(Notice::Services).is_err() {
                return;
            }
            if state.policy().is_told {
                log::info("the new Services are in force; policy has not changed");
            }
        }
        state.tell_changes(composer.current().generation(), composer.enforced().is_refused);
        known.tell(&state);
        if has_refreshed || has_services {
            rested = Instant::now() + (seen.elapsed() * REST).min(LONGEST_REST);
        }
    }
}
