//! The thread that follows a server, and its interface to the rest of the program.

use std::sync::Arc;
use std::thread::JoinHandle;

use bulkhead_control::object::Object;
use bulkhead_control::source::SourceErrors;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::health::SourceHealth;
use super::kinds::{Kind, Purpose};
use super::settings::Settings;
use super::shared::{Notice, Shared};
use super::store::Changes;
use super::{discovery, list_watch};

/// A thread that follows an API server. Dropping it ends the thread.
pub struct Follower {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    _stop: oneshot::Sender<()>,
}

impl Follower {
    /// Starts the thread. `tell` is called on that thread and must not block.
    ///
    /// # Errors
    /// If the system cannot create the thread or its runtime. Problems of the server are sent as [`Notice::Trouble`] instead.
    pub fn start(settings: Settings, tell: impl Fn(Notice) + Send + Sync + 'static) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared::new(settings, tell));
        let (stop, stopped) = oneshot::channel::<()>();
        let tasks = Arc::clone(&shared);
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    // Only a task that has panicked ends.
                    () = run(&tasks) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("kubernetes".into()).spawn(run)?;
        Ok(Self { shared, thread, _stop: stop })
    }

    /// Returns what has changed for a purpose since the last call. `None` if nothing has, or if the first lists are not complete. The first
    /// batch of Services contains all Services, endpoint slices and nodes.
    ///
    /// # Errors
    /// If an object that affects policy is malformed and no safe substitute exists. The changes stay pending for the next call.
    pub fn take(&self, purpose: Purpose) -> Option<Result<Changes, SourceErrors>> {
        self.shared.store().take(purpose)
    }

    /// Calls `ask` with all objects of the batches taken so far. `None` if policy objects have changed since. Services and endpoint slices
    /// are included once their first batch was taken, in their current state. The thread is blocked during the call.
    pub fn with_taken<R>(&self, ask: impl FnOnce(&mut dyn Iterator<Item = &Object>) -> R) -> Option<R> {
        let store = self.shared.store();
        let mut objects = store.taken()?;
        Some(ask(&mut objects))
    }

    /// Returns the health of the connection.
    pub fn health(&self) -> SourceHealth {
        let (known, counts) = {
            let store = self.shared.store();
            (Purpose::ALL.map(|purpose| store.is_known(purpose)), store.counts())
        };
        self.shared.lines().health(|purpose| known[purpose.index()], counts)
    }

    /// Retries everything that failed, without waiting for its pause.
    pub fn hurry(&self) {
        self.shared.reconnect.send_modify(|count| *count += 1);
    }

    /// Whether the thread has ended without being stopped, which is a bug.
    pub fn is_dead(&self) -> bool {
        self.thread.is_finished()
    }
}

async fn run(shared: &Arc<Shared>) {
    let mut tasks = JoinSet::new();
    for kind in shared.settings.kinds() {
        let shared = Arc::clone(shared);
        tasks.spawn(async move {
            if kind.is_optional() {
                follow_where_served(kind, &shared).await;
            } else {
                list_watch::follow(kind, &shared).await;
            }
        });
    }
    let own = Arc::clone(shared);
    tasks.spawn(async move { discovery::follow(&own).await });
    for purpose in Purpose::ALL {
        let own = Arc::clone(shared);
        tasks.spawn(async move { hand_over(purpose, &own).await });
    }
    tasks.join_next().await;
}

/// Sends [`Notice::Changed`] after changes, once the time to gather a batch has passed.
async fn hand_over(purpose: Purpose, shared: &Shared) {
    loop {
        shared.changed[purpose.index()].notified().await;
        tokio::time::sleep(shared.settings.timing.gather).await;
        (shared.tell)(Notice::Changed(purpose));
    }
}

/// Follows an optional kind while the server has it.
async fn follow_where_served(kind: Kind, shared: &Arc<Shared>) {
    let mut served = shared.served.subscribe();
    loop {
        let is_served = match served.wait_for(|served| served[kind.index()].is_some()).await {
            Ok(served) => served[kind.index()] == Some(true),
            // The sender lives as long as `shared`.
            Err(_) => return,
        };
        if !is_served {
            shared.change(|store| store.set_absent(kind));
            shared.heard(kind.purpose(), |lines| lines.forget(kind));
        }
        if served.wait_for(|served| served[kind.index()] == Some(true)).await.is_err() {
            return;
        }
        shared.heard(kind.purpose(), |lines| lines.expect(kind));
        tokio::select! {
            () = list_watch::follow(kind, shared) => {}
            _ = served.wait_for(|served| served[kind.index()] == Some(false)) => {}
        }
    }
}
