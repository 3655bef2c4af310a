//! The thread: its tasks, what they share, and what the rest of the program sees of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bulkhead_control::object::Object;
use bulkhead_control::source::SourceErrors;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use super::connection::{Connection, Fault};
use super::health::{Lines, SourceHealth};
use super::kinds::{Kind, Purpose};
use super::settings::Settings;
use super::store::{Changes, Store};
use super::{discovery, list_watch};

/// How many different troubles are told before everything works again: a server can be broken in many words.
const MAX_TOLD: usize = 20;

/// What whoever follows a server is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// There is a batch to be taken.
    Changed(Purpose),
    /// Something is wrong, told once until everything of the purpose works again. What was known stays.
    Trouble(Purpose, String),
    /// Everything of the purpose works, after the start or a trouble.
    Connected(Purpose),
}

/// What the tasks share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) connection: Connection,
    store: Mutex<Store>,
    lines: Mutex<Lines>,
    told: Mutex<BTreeSet<(Purpose, String)>>,
    /// By purpose.
    changed: [Notify; Purpose::ALL.len()],
    /// Whether the server has each kind; none before it was asked.
    pub(super) served: watch::Sender<[Option<bool>; Kind::ALL.len()]>,
    /// Counts how often all connections had to be made anew.
    pub(super) reconnect: watch::Sender<u64>,
    tell: Box<dyn Fn(Notice) + Send + Sync>,
}

impl Shared {
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        // Whoever panics in here ends the thread, and with it the process.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, BTreeSet<(Purpose, String)>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known, and has it handed over if that is so.
    pub(super) fn change(&self, change: impl FnOnce(&mut Store)) {
        let mut store = self.store();
        change(&mut store);
        for purpose in Purpose::ALL {
            if store.has_changed(purpose) {
                self.changed[purpose.index()].notify_one();
            }
        }
    }

    /// The server is heard, of a kind or of which there are.
    pub(super) fn up(&self, kind: Option<Kind>) {
        self.heard(kind.map_or(Purpose::Policy, Kind::purpose), |lines| lines.up(kind));
    }

    /// Takes note of what is heard, which returns whether everything of the purpose works now that did not.
    fn heard(&self, purpose: Purpose, hear: impl FnOnce(&mut Lines) -> bool) {
        let is_new = hear(&mut self.lines());
        if is_new {
            self.told().retain(|(of, _)| *of != purpose);
            (self.tell)(Notice::Connected(purpose));
        }
    }

    /// A list is whole.
    pub(super) fn listed(&self, kind: Kind) {
        let mut lines = self.lines();
        lines.lists += 1;
        drop(lines);
        self.up(Some(kind));
    }

    /// A kind cannot be followed at the moment.
    pub(super) fn failed(&self, kind: Kind, fault: &Fault) {
        let text = fault.told(kind);
        // A place that is lost is the server's daily business.
        let is_trouble = *fault != Fault::Expired;
        self.lines().down(Some(kind), Some(&text));
        if is_trouble {
            self.trouble(kind.purpose(), text);
        }
    }

    /// The server does not say which kinds it has.
    pub(super) fn lost(&self, text: &str) {
        self.lines().down(None, Some(text));
        self.trouble(Purpose::Policy, text.to_owned());
    }

    fn trouble(&self, purpose: Purpose, text: String) {
        let mut told = self.told();
        // A trouble with Services must not keep one with policy from being told.
        let count = told.iter().filter(|(of, _)| *of == purpose).count();
        if count < MAX_TOLD && told.insert((purpose, text.clone())) {
            drop(told);
            (self.tell)(Notice::Trouble(purpose, text));
        }
    }

    /// Waits, but not for a server that is back.
    pub(super) async fn pause(&self, pause: Duration) {
        let mut reconnect = self.reconnect.subscribe();
        drop(tokio::time::timeout(pause, reconnect.changed()).await);
    }
}

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
        let shared = Arc::new(Shared {
            connection: Connection::new(settings.access.clone(), settings.timing),
            store: Mutex::new(Store::new(settings.kinds())),
            // Kinds that a server may be without count from when it says that it has them.
            lines: Mutex::new(Lines::new(settings.kinds().filter(|kind| !kind.is_optional()))),
            told: Mutex::default(),
            changed: Default::default(),
            served: watch::Sender::new([None; Kind::ALL.len()]),
            reconnect: watch::Sender::new(0),
            settings,
            tell: Box::new(tell),
        });
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
