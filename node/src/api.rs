//! The policy thread's view of the API server: changes to apply, and the last good state saved for the next start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_cluster::kubernetes::{Changes, Follower, Notice, Purpose, Settings};
use bulkhead_control::object::Object;
use bulkhead_control::source::SourceErrors;
use crossbeam_channel::Receiver;

use super::config::{StateConfig, WhenUnreachable};
use super::last_good::{self, LastGood};
use super::log;

/// How long a start waits for the server's state. A node that has one before its ports are opened cuts nobody off; one that waits
/// for longer may wait for packets that it would have to forward itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the state is kept at most: it is as large as the cluster, and a minute more or less is nothing to a state that is for
/// the time without a server.
const KEEPING: Duration = Duration::from_secs(60);

/// How often to look whether the state is to be kept.
const LOOK: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Api {
    follower: Arc<Follower>,
    notices: Receiver<Notice>,
    /// Where the state is kept, if it is.
    path: Option<PathBuf>,
    node: Arc<str>,
    has_batch: bool,
    has_services: bool,
    /// Whether there is a state that is not kept yet.
    is_unkept: bool,
    next_keeping: Instant,
}

impl Api {
    /// Starts to follow the server; none where the state is files.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(super) fn start(config: &StateConfig, node: &Arc<str>) -> anyhow::Result<Option<Self>> {
        let Some(kubernetes) = &config.kubernetes else { return Ok(None) };
        let (tell, notices) = crossbeam_channel::unbounded();
        let access = kubernetes.access.clone();
        let (ignored, services) = (config.options.ignored.clone(), config.options.services);
        let settings = Settings { access, ignored, services, ..Settings::default() };
        // Nobody listens any more when the process ends.
        let follower = Follower::start(settings, move |notice| drop(tell.send(notice)))?;
        let is_kept = kubernetes.when_unreachable == WhenUnreachable::LastGood;
        Ok(Some(Self {
            follower: Arc::new(follower),
            notices,
            path: is_kept.then(|| last_good::path(&kubernetes.folder, node)),
            node: node.clone(),
            has_batch: false,
            has_services: false,
            is_unkept: false,
            next_keeping: Instant::now(),
        }))
    }

    /// Waits for the first state, but not for ever.
    pub(super) fn wait(&mut self) {
        let end = Instant::now() + PATIENCE;
        while !self.has_batch {
            match self.notices.recv_deadline(end) {
                Ok(notice) => self.hear(&notice),
                Err(_) => return,
            }
        }
    }

    /// What the server is to be heard with.
    pub(super) fn notices(&self) -> Receiver<Notice> {
        self.notices.clone()
    }

    /// How well the server is heard, for whoever wants to know.
    pub(super) fn follower(&self) -> Arc<Follower> {
        Arc::clone(&self.follower)
    }

    /// Takes note of what was told.
    pub(super) fn hear(&mut self, notice: &Notice) {
        match notice {
            Notice::Changed(Purpose::Policy) => self.has_batch = true,
            Notice::Changed(Purpose::Services) => self.has_services = true,
            Notice::Connected(Purpose::Policy) => {
                log::info("kubernetes: connected; all policy objects are listed and watched");
            }
            Notice::Connected(Purpose::Services) => log::info("kubernetes: all Services are listed and watched"),
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

    /// Has everything that failed tried again.
    pub(super) fn hurry(&mut self) {
        self.follower.hurry();
        (self.has_batch, self.has_services) = (true, true);
    }

    /// What has changed of Services, and of the nodes that they depend on.
    pub(super) fn take_services(&mut self) -> Option<Result<Changes, SourceErrors>> {
        std::mem::take(&mut self.has_services).then(|| self.follower.take(Purpose::Services)).flatten()
    }

    /// What has changed.
    pub(super) fn take(&mut self) -> Option<Result<Changes, SourceErrors>> {
        std::mem::take(&mut self.has_batch).then(|| self.follower.take(Purpose::Policy)).flatten()
    }

    /// The state that was taken last is good.
    pub(super) const fn was_good(&mut self) {
        self.is_unkept = true;
    }

    /// When to look again, if nothing is told.
    pub(super) fn next_look(&self) -> Instant {
        Instant::now() + LOOK
    }

    /// What an earlier process has kept, where it is wanted.
    pub(super) fn last_good(&self) -> Option<LastGood> {
        let path = self.path.as_ref()?;
        last_good::read(path, &self.node).unwrap_or_else(|error| {
            log::error(&format!("the last good state is not used: {}: {error:#}", path.display()));
            None
        })
    }

    /// Keeps the state, if it is time to. Writing may take as long as the disk likes: nobody waits for it.
    pub(super) fn keep(&mut self) {
        let Some(path) = self.path.clone().filter(|_| self.is_unkept && Instant::now() >= self.next_keeping) else {
            return;
        };
        let encode = |objects: &mut dyn Iterator<Item = &Object>| last_good::encode(&self.node, objects);
        // Where the server has changed it since, there is another one in a moment.
        let Some(text) = self.follower.with_taken(encode) else { return };
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
