//! The thread that follows the state's files or the API server, and the node's own addresses: it reads what has changed, compiles what they
//! say, and has that enforced.
//!
//! All of it takes as long as it takes, seconds for a large cluster, for ever for a file on a server that does not answer. Nothing
//! else waits for it: interfaces are attached to, held closed and opened with the policy that was in force before.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, never, select};

use super::composer::Composer;
use super::daemon::Notice;
use super::own_addresses;
use super::state::LiveState;

/// The thread as others see it. It ends when this is dropped, or when it is done with a file that it waits for: nobody waits
/// for it.
pub(super) struct Handle {
    look: Sender<()>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Has the files looked at now.
    pub(super) fn look(&self) {
        // One that waits says the same; and an error means that it is dead, which `is_dead` tells.
        let _ = self.look.try_send(());
    }

    /// Whether it has ended though nobody has stopped it: a fault of the program.
    pub(super) fn is_dead(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts the thread with a state that was loaded and is in force.
///
/// # Errors
/// When the system refuses a thread.
pub(super) fn start(state: LiveState, composer: Arc<Composer>, notices: Sender<Notice>) -> std::io::Result<Handle> {
    let (look, asked) = crossbeam_channel::bounded(1);
    let follow = move || follow(state, &composer, &asked, &notices);
    let thread = std::thread::Builder::new().name("policy".into()).spawn(follow)?;
    Ok(Handle { look, thread })
}

fn follow(mut state: LiveState, composer: &Composer, asked: &Receiver<()>, notices: &Sender<Notice>) {
    let (mut addresses, mut server) = (own_addresses::changes(), state.notices());
    // What has changed between the first reading and now.
    let mut renumbered = true;
    loop {
        let next_look = state.next_look().saturating_duration_since(Instant::now());
        select! {
            recv(asked) -> asked => match asked {
                Ok(()) => state.hurry(),
                Err(_) => return,
            },
            recv(addresses) -> told => match told {
                Ok(()) => renumbered = true,
                Err(_) => addresses = never(),
            },
            recv(server) -> told => match told {
                Ok(notice) => state.hear(&notice),
                // The thread has died, which the main thread sees.
                Err(_) => server = never(),
            },
            default(if renumbered { Duration::ZERO } else { next_look }) => {}
        }
        let seen = Instant::now();
        let has_changed = std::mem::take(&mut renumbered) && state.renumber(own_addresses::read());
        let has_refreshed = state.refresh();
        // Of a change that is none for this node nothing is to be waited for.
        let heard = state.take_heard().filter(|_| has_refreshed);
        if has_refreshed || has_changed {
            composer.set_policy(state.policy(), seen, heard);
            if notices.send(Notice::Policy).is_err() {
                return;
            }
        }
    }
}
