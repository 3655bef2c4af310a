//! What the tasks share: the store, the connection, how well the server is heard, and notices to the rest of the program.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::connection::{Connection, Fault};
use super::health::Lines;
use super::kinds::{Kind, Purpose};
use super::settings::Settings;
use super::store::Store;

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
    pub(super) changed: [Notify; Purpose::ALL.len()],
    /// Whether the server has each kind; none before it was asked.
    pub(super) served: watch::Sender<[Option<bool>; Kind::ALL.len()]>,
    /// Counts how often all connections had to be made anew.
    pub(super) reconnect: watch::Sender<u64>,
    pub(super) tell: Box<dyn Fn(Notice) + Send + Sync>,
}

impl Shared {
    pub(super) fn new(settings: Settings, tell: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self {
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
        }
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        // Whoever panics in here ends the thread, and with it the process.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
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
    pub(super) fn heard(&self, purpose: Purpose, hear: impl FnOnce(&mut Lines) -> bool) {
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
