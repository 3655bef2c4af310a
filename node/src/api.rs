//! Follows the API server for the policy thread, and saves the last good state for the next start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_cluster::kubernetes::{Changes, Follower, Notice, Purpose, Settings};
use bulkhead_control::object::Object;
use bulkhead_control::source::{Options, SourceErrors};
use crossbeam_channel::Receiver;

use super::config::{StateConfig, WhenUnreachable};
use super::last_good::{self, LastGood};
use super::log;

/// How long a start waits for the server's state. With a state, opening the ports interrupts no connection. A longer wait could deadlock,
/// if the way to the server leads through this vswitch.
const PATIENCE: Duration = Duration::from_secs(5);

/// Minimum time between saving states. A state is as large as the cluster's, and a minute's delay matters little, as it is only for starts
/// without a server.
const KEEPING: Duration = Duration::from_secs(60);

/// Time until saving is tried again, if the state was changing.
const AGAIN: Duration = Duration::from_secs(1);

/// The policy thread's connection to the API server.
pub(super) struct Api {
    follower: Arc<Follower>,
    notices: Receiver<Notice>,
    /// The path of the saved state. `None` if states are not saved.
    path: Option<PathBuf>,
    node: Arc<str>,
    has_batch: bool,
    has_services: bool,
    /// The number of kinds of other products' policies that the server has and that are not read.
    unread_kinds: usize,
    /// Whether the current state is not saved yet.
    is_unkept: bool,
    next_keeping: Instant,
}

impl Api {
    /// Starts to follow the server. `None` if the state is files.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(config: &StateConfig, node: &Arc<str>) -> anyhow::Result<Option<Self>> {
        let Some(kubernetes) = &config.kubernetes else { return Ok(None) };
        let (tell, notices) = crossbeam_channel::unbounded();
        let access = kubernetes.access.clone();
        let Options { ignored, services, foreign, .. } = config.options.clone();
        let settings = Settings { access, ignored, services, foreign, ..Settings::default() };
        // At shutdown, nobody receives notices any more.
        let follower = Follower::start(settings, move |notice| drop(tell.send(notice)))?;
        let is_kept = kubernetes.when_unreachable == WhenUnreachable::LastGood;
        Ok(Some(Self {
            follower: Arc::new(follower),
            notices,
            path: is_kept.then(|| last_good::path(&kubernetes.folder, node)),
            node: node.clone(),
            has_batch: false,
            has_services: false,
            unread_kinds: 0,
            is_unkept: false,
            next_keeping: Instant::now(),
        }))
    }

    /// Waits up to [`PATIENCE`] for the first state.
    pub(super) fn wait(&mut self) {
        let end = Instant::now() + PATIENCE;
        while !self.has_batch {
            match self.notices.recv_deadline(end) {
                Ok(notice) => self.hear(&notice),
                Err(_) => return,
            }
        }
    }

    /// Returns the channel on which the follower reports changes and connection errors. Pass each notice to [`hear`](Self::hear).
    pub(super) fn notices(&self) -> Receiver<Notice> {
        self.notices.clone()
    }

    /// Returns the follower, which reports the connection's health.
    pub(super) fn follower(&self) -> Arc<Follower> {
        Arc::clone(&self.follower)
    }

    /// Records which objects a notice reports as changed, and logs connections and connection errors.
    pub(super) fn hear(&mut self, notice: &Notice) {
        match notice {
            Notice::Changed(Purpose::Policy) => self.has_batch = true,
            Notice::Changed(Purpose::Services) => self.has_services = true,
            Notice::Connected(Purpose::Policy) => {
                log::info("kubernetes: connected; all policy objects are listed and watched");
            }
            Notice::Connected(Purpose::Services) => log::info("kubernetes: all Services are listed and watched"),
            Notice::Unread(counts) => {
                self.unread_kinds = counts.len();
                let counts = counts.iter().map(|(kind, count)| (kind.name(), *count));
                log::warn(&format!("kubernetes: {}", unread_policies(counts)));
            }
            Notice::Trouble(Purpose::Services, text) => {
                let then = match self.follower.health().services.and_then(|services| services.age()) {
                    Some(age) => format!("the Services of {} s ago stay in force", age.as_secs()),
                    None => "waiting for the first complete list of Services".to_owned(),
                };
                log::error(&format!("kubernetes: {then}; policy is not affected\n{text}"));
            }
            Notice::Trouble(Purpose::Policy, text) => {
                let health = self.follower.health();
                let then = match health.age() {
                    Some(age) if health.is_synced => {
                        format!("the last good state, {} s old, stays in force", age.as_secs())
                    }
                    _ => "waiting for the first complete state of the server".to_owned(),
                };
                log::error(&format!("kubernetes: {then}\n{text}"));
            }
        }
    }

    /// Returns the number of kinds of other products' policies that the server has and that are not read.
    pub(super) const fn unread_kinds(&self) -> usize {
        self.unread_kinds
    }

    /// Makes the follower retry all failed requests now.
    pub(super) fn hurry(&mut self) {
        self.follower.hurry();
        (self.has_batch, self.has_services) = (true, true);
    }

    /// Returns the changes of Services and nodes since the last call, or the objects' errors. `None` if nothing changed.
    pub(super) fn take_services(&mut self) -> Option<Result<Changes, SourceErrors>> {
        std::mem::take(&mut self.has_services).then(|| self.follower.take(Purpose::Services)).flatten()
    }

    /// Returns the changes of policy objects since the last call, or the objects' errors. `None` if nothing changed.
    pub(super) fn take(&mut self) -> Option<Result<Changes, SourceErrors>> {
        std::mem::take(&mut self.has_batch).then(|| self.follower.take(Purpose::Policy)).flatten()
    }

    /// Marks the state that was last taken as valid, so that [`keep`](Self::keep) saves it.
    pub(super) const fn was_good(&mut self) {
        self.is_unkept = true;
    }

    /// Returns when to call [`keep`](Self::keep) if no notice arrives before.
    pub(super) fn next_look(&self) -> Instant {
        let is_waiting = self.is_unkept && self.path.is_some();
        if is_waiting { self.next_keeping } else { Instant::now() + KEEPING }
    }

    /// Returns the state that an earlier process saved. `None` if none was saved or saving is off, or if the file is invalid (logged).
    pub(super) fn last_good(&self) -> Option<LastGood> {
        let path = self.path.as_ref()?;
        last_good::read(path, &self.node).unwrap_or_else(|error| {
            log::error(&format!("the last good state is not used: {}: {error:#}", path.display()));
            None
        })
    }

    /// Saves the current state if that is due. Another thread writes the file, so a slow disk does not delay the policy thread.
    pub(super) fn keep(&mut self) {
        let Some(path) = self.path.clone().filter(|_| self.is_unkept && Instant::now() >= self.next_keeping) else {
            return;
        };
        let encode = |objects: &mut dyn Iterator<Item = &Object>| last_good::encode(&self.node, objects);
        let Some(text) = self.follower.with_taken(encode) else {
            // The state has changed since, and the next one follows soon.
            self.next_keeping = Instant::now() + AGAIN;
            return;
        };
        (self.is_unkept, self.next_keeping) = (false, Instant::now() + KEEPING);
        let write = move || {
            let written = text.and_then(|text| last_good::write(&path, &text));
            if let Err(error) = written {
                log::error(&format!("cannot save the last good state: {}: {error:#}", path.display()));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("last-good".into()).spawn(write) {
            log::error(&format!("cannot save the last good state: no thread could be started: {error}"));
        }
    }
}

/// Returns the warning about policies of other products that are not read, by kind. A number is `None` if it is unknown.
pub(super) fn unread_policies<'a>(counts: impl Iterator<Item = (&'a str, Option<usize>)>) -> String {
    let text = |(kind, count): (&str, Option<usize>)| match count {
        Some(count) => format!("{count} {kind}"),
        None => kind.to_owned(),
    };
    let counts: Vec<String> = counts.map(text).collect();
    format!(
        "policies of other products have no effect: {}\n  \
         help: set state.foreign_policies to audit or enforce (docs/foreign-policies.md), or name the kinds in state.ignore",
        counts.join(", ")
    )
}
