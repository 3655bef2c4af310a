//! What the threads of a running vswitch know, for whoever asks: the summary, the admin socket, the metrics.
//!
//! ```text
//!   workers, interfaces thread --asked, answer in milliseconds--.
//!   policy thread, composer ----shared values, no waiting-------+--> Observation --> summary | status | metrics
//! ```
//!
//! **Invariant.** To observe changes nothing, and nothing that enforces waits for it. Only [`Observer::end_sessions`] changes something.

mod last_told;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bulkhead_cluster::kubernetes::{Follower, SourceHealth};
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::AuditedPolicy;
use bulkhead_dataplane::vswitch::{Vswitch, VswitchCounters};
use bulkhead_dataplane::{PortId, SessionInfo, SessionSelector, Snapshot};
use crossbeam_channel::RecvTimeoutError;
use ipnet::IpNet;
use prometheus_client::metrics::histogram::Histogram;

use super::audit::{Audit, AuditTotals};
use super::capture::{CaptureCounters, Reading as CaptureReading};
use super::composer::{Composer, Enforced};
use super::end_facts::EndFacts;
use super::interfaces::thread::{Asker, Report};
use super::journal::Journal;
use super::names::Names;
use super::origins::SharedOrigins;
use super::state::{Asked, StateCounters, StateCounts, Translations};
use super::stream::{Selector, StreamCounts};
use super::summary::Summary;
use bulkhead_observe::admin::{Enforcement, KeptFiles, PolicyQuestion};
use last_told::LastTold;

/// See the module. Clones ask the same vswitch.
#[derive(Clone)]
pub(super) struct Observer {
    about: Arc<About>,
    composer: Arc<Composer>,
    /// Whoever stops the vswitch is its last owner.
    vswitch: Weak<Vswitch>,
    interfaces: Asker,
    capture: Option<CaptureReading>,
    names: Names,
    audit: Arc<Audit>,
    last_told: Arc<LastTold>,
}

/// What does not change, and what it is read from.
pub(super) struct About {
    pub(super) started: Instant,
    pub(super) stream: Arc<StreamCounts>,
    pub(super) node: Arc<str>,
    pub(super) origins: SharedOrigins,
    pub(super) state: Arc<StateCounts>,
    /// The API server, where the state is not files.
    pub(super) follower: Option<Arc<Follower>>,
    /// How old what it has told may be for the vswitch to be called ready.
    pub(super) stale_after: Duration,
    /// The configuration's file.
    pub(super) configuration: PathBuf,
    /// The flight recorder; none where it is off.
    pub(super) journal: Option<Journal>,
    /// The most sessions that there can be.
    pub(super) session_capacity: usize,
    /// Whether all ports that could be opened at start were.
    pub(super) is_settled: AtomicBool,
}

/// What was so at one time.
pub(super) struct Observation {
    pub(super) about: Arc<About>,
    pub(super) snapshot: Arc<Snapshot>,
    /// The node's own pod networks, none before there is a state.
    pub(super) pod_networks: Arc<[IpNet]>,
    pub(super) counters: VswitchCounters,
    pub(super) interfaces: Report,
    pub(super) state: StateCounters,
    /// How well the API server is heard, where the state is not files.
    pub(super) source: Option<SourceHealth>,
    pub(super) enforced: Enforced,
    /// See [`Composer::event_to_enforced`].
    pub(super) event_to_enforced: Histogram,
    pub(super) capture: Option<CaptureCounters>,
    /// The policies that are not enforced; none while nothing is known of policy.
    pub(super) audited: Option<Arc<BTreeSet<AuditedPolicy>>>,
    /// What they would have denied.
    pub(super) audit: AuditTotals,
    pub(super) uptime: Duration,
}

impl About {
    fn is_ready(&self, enforced: Enforced, source: Option<&SourceHealth>) -> bool {
        let is_fresh = source.is_none_or(|source| source.age().is_some_and(|age| age <= self.stale_after));
        self.is_settled.load(Ordering::Relaxed) && !enforced.is_denying && is_fresh
    }
}

impl Observer {
    pub(super) fn new(
        about: About,
        composer: Arc<Composer>,
        vswitch: &Arc<Vswitch>,
        interfaces: Asker,
        capture: Option<CaptureReading>,
        names: Names,
        audit: Arc<Audit>,
    ) -> Self {
        let (about, vswitch) = (Arc::new(about), Arc::downgrade(vswitch));
        Self { about, composer, vswitch, interfaces, capture, names, audit, last_told: Arc::default() }
    }

    /// The account of what audited policies would have denied.
    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Asks everybody. Waits for their answers, some milliseconds when all is well, a few seconds at most. A worker that does not answer has
    /// the numbers that it told last.
    pub(super) fn observe(&self) -> Observation {
        let vswitch = self.vswitch.upgrade();
        let mut counters = vswitch.as_ref().map(|vswitch| vswitch.counters()).unwrap_or_default();
        drop(vswitch);
        self.last_told.fill(&mut counters);
        let capture = self.capture.as_ref().map(CaptureReading::counters);
        self.with(counters, self.interfaces.report(), capture)
    }

    /// The same, where this is what they have counted.
    pub(super) fn with(
        &self,
        counters: VswitchCounters,
        interfaces: Report,
        capture: Option<CaptureCounters>,
    ) -> Observation {
        Observation {
            about: Arc::clone(&self.about),
            snapshot: self.composer.current(),
            pod_networks: self.composer.pod_networks(),
            counters,
            interfaces,
            state: self.about.state.read(),
            source: self.about.follower.as_ref().map(|follower| follower.health()),
            enforced: self.composer.enforced(),
            event_to_enforced: self.composer.event_to_enforced().clone(),
            capture,
            audited: self.composer.audited(),
            audit: self.audit.totals(),
            uptime: self.about.started.elapsed(),
        }
    }

    /// Tells all sessions to `each`, until that says to stop. False when a worker does not answer.
    pub(super) fn sessions(&self, each: impl FnMut(SessionInfo) -> ControlFlow<()>) -> bool {
        self.vswitch.upgrade().is_none_or(|vswitch| vswitch.sessions(each))
    }

    /// Ends the selected sessions, and tells them to `each`. False when a worker does not answer.
    pub(super) fn end_sessions(&self, selector: &SessionSelector, mut each: impl FnMut(&SessionInfo)) -> bool {
        let mut ports = BTreeSet::new();
        let answered = self.vswitch.upgrade().is_none_or(|vswitch| {
            vswitch.end_sessions(selector, |session| {
                ports.extend([session.in_port, session.out_port]);
                each(&session);
            })
        });
        // Afterwards: what a worker adds from now on is of sessions that are there.
        self.composer.end_flows_of_sessions(ports);
        answered
    }

    /// The addresses of a pod of the state, none when there is no such pod. An error when the policy thread is busy for longer than
    /// `patience`.
    pub(super) fn addresses_of(
        &self,
        pod: &PodName,
        patience: Duration,
    ) -> Result<Option<Vec<IpAddr>>, RecvTimeoutError> {
        self.names.addresses(pod, patience)
    }

    /// What the state's Services make of connections. An error as above.
    pub(super) fn translations(&self, asked: Asked, patience: Duration) -> Result<Translations, RecvTimeoutError> {
        self.names.translations(asked, patience)
    }

    /// What the state says of addresses, in their order. An error as above.
    pub(super) fn ends_of(
        &self,
        addresses: Vec<IpAddr>,
        patience: Duration,
    ) -> Result<Vec<EndFacts>, RecvTimeoutError> {
        self.names.ends(addresses, patience)
    }

    /// The addresses of the pods that are selected. An error as above.
    pub(super) fn addresses_of_selected(
        &self,
        selector: Selector,
        patience: Duration,
    ) -> Result<HashSet<IpAddr>, RecvTimeoutError> {
        self.names.selected(selector, patience)
    }

    /// The vswitch, until somebody stops it. Not to be kept.
    pub(super) fn vswitch(&self) -> Option<Arc<Vswitch>> {
        self.vswitch.upgrade()
    }

    /// Ends all flows in the kernel: packets of established sessions come to the workers, which add their flows again.
    pub(super) fn end_all_flows(&self) {
        let ports = (0..=u16::MAX).map(PortId).take(self.composer.current().ports().len());
        self.composer.end_flows_of_sessions(ports);
    }

    /// The flight recorder; none where it is off or its file could not be opened.
    pub(super) fn journal(&self) -> Option<&Journal> {
        self.about.journal.as_ref().filter(|journal| !journal.has_failed())
    }

    /// Which files there are. The journal's has what was told to it until now, if that takes no longer than `patience`.
    pub(super) fn kept_files(&self, patience: Duration) -> KeptFiles {
        self.journal().inspect(|journal| journal.flush(patience));
        KeptFiles {
            node: self.about.node.to_string(),
            configuration: self.about.configuration.clone(),
            // It may have turned out by now that there is none.
            journal: self.journal().map(Journal::path),
        }
    }

    /// What became of those who watch.
    pub(super) fn stream(&self) -> &Arc<StreamCounts> {
        &self.about.stream
    }

    /// How long the vswitch has run.
    pub(super) fn uptime(&self) -> Duration {
        self.about.started.elapsed()
    }

    /// The node's name.
    pub(super) fn node(&self) -> &Arc<str> {
        &self.about.node
    }

    /// How far a policy is in force. An error as above.
    pub(super) fn enforcement(
        &self,
        asked: PolicyQuestion,
        patience: Duration,
    ) -> Result<Enforcement, RecvTimeoutError> {
        // In this order: what the policy thread knows is published when it answers, and what is published the workers confirm.
        let mut told = self.names.enforcement(asked, patience)?;
        let enforced = self.composer.enforced();
        told.tables_generation = self.composer.current().generation();
        if enforced.is_refused {
            told.pending.push("a newer state or other ports cannot be put into force, and are tried again".into());
        }
        if enforced.keeps_flows {
            told.pending.push("flows of an earlier process go on until all ports are open".into());
        }
        if !self.vswitch.upgrade().is_some_and(|vswitch| vswitch.confirm()) {
            told.pending.push("a worker does not answer".into());
        }
        told.stale = self.about.follower.as_ref().is_some_and(|follower| !follower.health().is_connected);
        told.enforced = told.pending.is_empty();
        Ok(told)
    }

    /// What is in force now.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.composer.current()
    }

    /// What numbers of rules stand for.
    pub(super) fn origins(&self) -> &SharedOrigins {
        &self.about.origins
    }

    /// All ports that can be opened at start were.
    pub(super) fn settle(&self) {
        self.about.is_settled.store(true, Ordering::Relaxed);
    }

    /// Whether the node's pods are served as they should be: the ports were opened, and there is a policy to judge them by that is not
    /// too old. Asks nobody.
    pub(super) fn is_ready(&self) -> bool {
        let health = self.about.follower.as_ref().map(|follower| follower.health());
        self.about.is_ready(self.composer.enforced(), health.as_ref())
    }

    /// Whether what load balancers send here is served: the ports were opened, the threads run, and there is a policy to judge by. However
    /// old that is: a server that no node reaches must not have balancers leave all of them. Asks nobody.
    pub(super) fn is_serving(&self) -> bool {
        self.about.is_settled.load(Ordering::Relaxed) && !self.composer.enforced().is_denying && self.is_alive()
    }

    /// Whether an API server should be followed and is not any more: a fault of the program.
    pub(super) fn has_lost_source(&self) -> bool {
        self.about.follower.as_ref().is_some_and(|follower| follower.is_dead())
    }

    /// Whether all threads that forward run. Asks nobody.
    pub(super) fn is_alive(&self) -> bool {
        self.vswitch.upgrade().is_none_or(|vswitch| vswitch.dead_workers() == 0)
    }
}

impl Observation {
    /// See [`Observer::is_ready`].
    pub(super) fn is_ready(&self) -> bool {
        self.about.is_ready(self.enforced, self.source.as_ref())
    }

    /// What is told of it.
    pub(super) fn summary(&self) -> Summary<'_> {
        Summary {
            node: &self.about.node,
            snapshot: &self.snapshot,
            counters: &self.counters,
            cached: &self.interfaces.cached,
            state: self.state,
            source: self.source.as_ref(),
            ports: self.interfaces.counters,
            capture: self.capture,
            uptime: self.uptime,
            origins: &self.about.origins,
        }
    }
}
