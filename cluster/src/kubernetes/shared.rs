//! State that the tasks share, and notices to the rest of the program.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::connection::{Connection, Fault};
use super::health::Lines;
use super::kinds::{Kind, Purpose};
use super::settings::Settings;
use super::store::Store;

/// Upper bound of distinct troubles reported per purpose until everything works again.
const MAX_TOLD: usize = 20;

/// A notice to the owner of a [`Follower`](super::Follower).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A batch can be taken.
    Changed(Purpose),
    /// A problem, reported once until everything of the purpose works again. The known state stays in force.
    Trouble(Purpose, String),
    /// Everything of the purpose works: after the start, or again after a trouble.
    Connected(Purpose),
    /// The kinds of policies of other products that the server has and that are not read, each with the number of objects. The number is
    /// `None` if it is unknown, for example without the right to list them. Sent at most once.
    Unread(Vec<(Kind, Option<usize>)>),
}

/// State that the tasks share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) connection: Connection,
    store: Mutex<Store>,
    lines: Mutex<Lines>,
    told: Mutex<BTreeSet<(Purpose, String)>>,
    /// Signals that a batch can be taken. Indexed by purpose.
    pub(super) changed: [Notify; Purpose::ALL.len()],
    /// Whether the server has each optional kind. `None` before the first discovery.
    pub(super) served: watch::Sender<[Option<bool>; Kind::ALL.len()]>,
    /// Incremented to make all watches reconnect.
    pub(super) reconnect: watch::Sender<u64>,
    pub(super) tell: Box<dyn Fn(Notice) + Send + Sync>,
}

impl Shared {
    pub(super) fn new(settings: Settings, tell: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self {
            connection: Connection::new(settings.access.clone(), settings.timing),
            store: Mutex::new(Store::new(settings.kinds(), settings.reads_foreign())),
            // Optional kinds are added once discovery has found them.
            lines: Mutex::new(Lines::new(settings.kinds().filter(|kind| !kind.is_optional()))),
            told: Mutex::default(),
            changed: Default::default(),
            served: watch::Sender::new([None; Kind::ALL.len()]),
            reconnect: watch::Sender::new(0),
            settings,
            tell: Box::new(tell),
        }
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        // A panic while the store is locked ends the thread, and with it the process.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, BTreeSet<(Purpose, String)>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the store, and signals that a batch can be taken.
    pub(super) fn change(&self, change: impl FnOnce(&mut Store)) {
        let mut store = self.store();
        change(&mut store);
        for purpose in Purpose::ALL {
            if store.has_changed(purpose) {
                self.changed[purpose.index()].notify_one();
            }
        }
    }

    /// Records a sign of life: of a kind, or of discovery if `kind` is `None`.
    pub(super) fn up(&self, kind: Option<Kind>) {
        self.heard(kind.map_or(Purpose::Policy, Kind::purpose), |lines| lines.up(kind));
    }

    /// Updates the health with `hear`. If it returns true, everything of the purpose works again: sends [`Notice::Connected`].
    pub(super) fn heard(&self, purpose: Purpose, hear: impl FnOnce(&mut Lines) -> bool) {
        let is_new = hear(&mut self.lines());
        if is_new {
            self.told().retain(|(of, _)| *of != purpose);
            (self.tell)(Notice::Connected(purpose));
        }
    }

    /// Counts a completed list, and records a sign of life of its kind.
    pub(super) fn listed(&self, kind: Kind) {
        let mut lines = self.lines();
        lines.lists += 1;
        drop(lines);
        self.up(Some(kind));
    }

    /// Records that a kind cannot be followed at the moment, and reports why.
    pub(super) fn failed(&self, kind: Kind, fault: &Fault) {
        let text = fault.told(kind);
        // An expired version is routine.
        let is_trouble = *fault != Fault::Expired;
        self.lines().down(Some(kind), Some(&text));
        if is_trouble {
            self.trouble(kind.purpose(), text);
        }
    }

    /// Records that discovery failed, and reports why.
    pub(super) fn lost(&self, text: &str) {
        self.lines().down(None, Some(text));
        self.trouble(Purpose::Policy, text.to_owned());
    }

    fn trouble(&self, purpose: Purpose, text: String) {
        let mut told = self.told();
        // The limit is per purpose: problems with Services must not hide one with policy.
        let count = told.iter().filter(|(of, _)| *of == purpose).count();
        if count < MAX_TOLD && told.insert((purpose, text.clone())) {
            drop(told);
            (self.tell)(Notice::Trouble(purpose, text));
        }
    }

    /// Waits for `pause`. Returns early if all watches must reconnect.
    pub(super) async fn pause(&self, pause: Duration) {
        let mut reconnect = self.reconnect.subscribe();
        drop(tokio::time::timeout(pause, reconnect.changed()).await);
    }
}
