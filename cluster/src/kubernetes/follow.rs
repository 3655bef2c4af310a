//! The thread: its tasks, what they share, and what the rest of the program sees of it.

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

/// A thread that follows a server. It ends when this is dropped.
pub struct Follower {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    _stop: oneshot::Sender<()>,
}

impl Follower {
    /// Starts to follow. `tell` is called from the thread and must not wait.
    ///
    /// # Errors
    /// When the system refuses the thread or what its runtime needs. What is wrong with the server or the way to it is told instead.
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

    /// What has changed of this purpose since the last time; none where nothing has, or not everything is known yet. The first batch of
    /// Services comes when these, endpoint slices and nodes are listed, and has all of them.
    ///
    /// # Errors
    /// When an object is not understood that nothing can stand for: one that is about policy. What has changed is kept for the next time.
    pub fn take(&self, purpose: Purpose) -> Option<Result<Changes, SourceErrors>> {
        self.shared.store().take(purpose)
    }

    /// Asks for all objects as they were taken; none where the server has changed what policy depends on since. Services and endpoint
    /// slices are among them from when their first batch was taken, as they are now. The thread waits meanwhile.
    pub fn with_taken<R>(&self, ask: impl FnOnce(&mut dyn Iterator<Item = &Object>) -> R) -> Option<R> {
        let store = self.shared.store();
        let mut objects = store.taken()?;
        Some(ask(&mut objects))
    }

    /// How well the server is heard.
    pub fn health(&self) -> SourceHealth {
        let (known, counts) = {
            let store = self.shared.store();
            (Purpose::ALL.map(|purpose| store.is_known(purpose)), store.counts())
        };
        self.shared.lines().health(|purpose| known[purpose.index()], counts)
    }

    /// Has what failed tried again now.
    pub fn hurry(&self) {
        self.shared.reconnect.send_modify(|count| *count += 1);
    }

    /// Whether the thread has ended though nobody has stopped it: a fault of the program.
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

/// Says that there is a batch, once its changes have had time to come together.
async fn hand_over(purpose: Purpose, shared: &Shared) {
    loop {
        shared.changed[purpose.index()].notified().await;
        tokio::time::sleep(shared.settings.timing.gather).await;
        (shared.tell)(Notice::Changed(purpose));
    }
}

/// Follows a kind for as long as the server has it.
async fn follow_where_served(kind: Kind, shared: &Arc<Shared>) {
    let mut served = shared.served.subscribe();
    loop {
        let is_served = match served.wait_for(|served| served[kind.index()].is_some()).await {
            Ok(served) => served[kind.index()] == Some(true),
            // The sender lives as long as this.
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
