//! The thread that follows the state's files or the API server, the node's own addresses, and which pods are attached: it reads what has
//! changed, compiles what they say, and has that enforced.
//!
//! All of it takes as long as it takes, seconds for a large cluster, for ever for a file on a server that does not answer. Nothing
//! else waits for it: interfaces are attached to, held closed and opened with the policy that was in force before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_control::attachments::Standing;
use bulkhead_control::object::PodName;
use crossbeam_channel::{Receiver, Sender, never, select};

use super::composer::{Composer, Policy};
use super::log;
use super::names::{Lookup, Names};
use super::notice::Notice;
use super::own_addresses;
use super::ports::{Attach, Event};
use super::state::{Judging, LiveState};

/// After a batch of the server's changes the thread leaves further ones alone for this many times as long as the batch took. So it takes
/// at most a third of a core. Most of the work of a batch does not grow with its changes: thousands of changes a second cost less in
/// fewer batches, and leave more of the cores to the workers.
const REST: u32 = 2;
/// The longest rest: a change that comes right after a batch is in force so much later.
const LONGEST_REST: Duration = Duration::from_millis(20);

/// What the thread is told and asked.
struct Inbox {
    look: Receiver<()>,
    attached: Receiver<Attach>,
    judging: Receiver<Judging>,
    lookups: Receiver<Lookup>,
}

/// The thread as others see it. It ends when this is dropped, or when it is done with a file that it waits for: nobody waits
/// for it.
pub(super) struct Handle {
    look: Sender<()>,
    attach: Sender<Attach>,
    judging: Sender<Judging>,
    names: Names,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Has the files looked at now.
    pub(super) fn look(&self) {
        // One that waits says the same; and an error means that it is dead, which `is_dead` tells.
        let _ = self.look.try_send(());
    }

    /// Has another engine make the tables, and other policies be audited.
    pub(super) fn judge(&self, judging: Judging) {
        // An error means that the thread is dead, which `is_dead` tells.
        let _ = self.judging.send(judging);
    }

    /// For the thread that says which pods are attached.
    pub(super) fn attach(&self) -> Sender<Attach> {
        self.attach.clone()
    }

    /// For whoever needs the addresses of pods.
    pub(super) fn names(&self) -> Names {
        self.names.clone()
    }

    /// Whether it has ended though nobody has stopped it: a fault of the program.
    pub(super) fn is_dead(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts the thread with a state that was loaded and is in force, with the pods that are attached as of change 0.
///
/// # Errors
/// When the system refuses a thread.
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
    let follow = move || follow(state, &composer, &inbox, &notices, known);
    let thread = std::thread::Builder::new().name("policy".into()).spawn(follow)?;
    Ok(Handle { look, attach, judging, names, thread })
}

/// What the thread that says which pods are attached is told of them.
struct Known {
    ports: Sender<Event>,
    /// The last change that it has told.
    change: u64,
    /// What it was told last.
    told: Option<(u64, BTreeMap<PodName, Standing>)>,
}

impl Known {
    /// Tells how far the attached pods are known, where that has changed. What is told is in force.
    fn tell(&mut self, state: &LiveState) {
        let now = (self.change, state.standings());
        if self.told.as_ref() != Some(&now) {
            // An error means that the thread is dead, which the main thread sees.
            let _ = self.ports.send(Event::Policy(now.0, now.1.clone()));
            self.told = Some(now);
        }
    }
}

fn follow(mut state: LiveState, composer: &Composer, inbox: &Inbox, notices: &Sender<Notice>, mut known: Known) {
    let (mut addresses, mut server) = (own_addresses::changes(), state.notices());
    // What has changed between the first reading and now.
    let mut renumbered = true;
    let (nothing, mut rested) = (never(), Instant::now());
    state.tell_changes(composer.current().generation(), composer.enforced().is_refused);
    loop {
        let rest = rested.saturating_duration_since(Instant::now());
        let (changes, longest) = if rest.is_zero() { (&server, Duration::MAX) } else { (&nothing, rest) };
        let next_look = state.next_look().saturating_duration_since(Instant::now()).min(longest);
        let (mut attach, mut judging) = (None, None);
        select! {
            recv(inbox.look) -> asked => match asked {
                Ok(()) => state.hurry(),
                Err(_) => return,
            },
            // Of many changes the last one says it all. Without the thread that tells them the process ends.
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
            recv(changes) -> told => match told {
                Ok(notice) => state.hear(&notice),
                // The thread has died, which the main thread sees.
                Err(_) => server = never(),
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
        let has_changed = std::mem::take(&mut renumbered) && state.renumber(own_addresses::read());
        let has_refreshed = state.refresh();
        // Of a change that is none for this node nothing is to be waited for.
        let heard = state.take_heard().filter(|_| has_refreshed);
        let has_changed = has_refreshed || has_changed;
        let services = state.take_services();
        let has_services = services.is_some();
        if has_changed || is_attached || is_judged_otherwise {
            let policy = state.policy();
            // A pod that comes is no news to a person.
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
