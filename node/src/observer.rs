//! Collects what the threads of a running vswitch know, for the summary, the admin socket and the metrics.
//!
//! ```text
//!   workers, interfaces thread --asked, answer in milliseconds--.
//!   policy thread, composer ----shared values, no waiting-------+--> Observation --> summary | status | metrics
//! ```
//!
//! **Invariant.** Observing changes nothing, and no thread that enforces waits for it. Only [`Observer::end_sessions`] and
//! [`Observer::end_all_flows`] change something.

mod last_told;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bulkhead_answers::args::EndName;
use bulkhead_answers::named::Unknown;
use bulkhead_cluster::kubernetes::{Follower, SourceHealth};
use bulkhead_control::pipeline::AuditedPolicy;
use bulkhead_dataplane::vswitch::{Vswitch, VswitchCounters};
use bulkhead_dataplane::{Learned, PortId, SessionInfo, SessionSelector, Snapshot};
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
use super::remote_nodes::SharedReport;
use super::state::{Asked, StateCounters, StateCounts, Translations};
use super::stream::{Selector, StreamCounts};
use super::summary::Summary;
use bulkhead_observe::admin::{Enforcement, KeptFiles, PolicyQuestion};
use last_told::LastTold;

/// Access to a running vswitch. Clones refer to the same one.
#[derive(Clone)]
pub(super) struct Observer {
    about: Arc<About>,
    composer: Arc<Composer>,
    /// Weak, because the thread that stops the vswitch must be its last owner.
    vswitch: Weak<Vswitch>,
    interfaces: Asker,
    capture: Option<CaptureReading>,
    names: Names,
    audit: Arc<Audit>,
    last_told: Arc<LastTold>,
}

/// Facts about the vswitch that stay constant while it runs, and the counters that its threads update.
pub(super) struct About {
    pub(super) started: Instant,
    pub(super) stream: Arc<StreamCounts>,
    pub(super) node: Arc<str>,
    pub(super) origins: SharedOrigins,
    pub(super) state: Arc<StateCounts>,
    /// The API server's follower. `None` if the state comes from files.
    pub(super) follower: Option<Arc<Follower>>,
    /// Maximum age of the API server's objects for the vswitch to be ready.
    pub(super) stale_after: Duration,
    pub(super) configuration: PathBuf,
    /// The flight recorder's journal. `None` if it is off.
    pub(super) journal: Option<Journal>,
    /// The end of the validity of the Hubble server's certificate, in seconds since 1970; 0 if it cannot be read. `None` without TLS.
    pub(super) hubble_certificate_end: Option<Arc<AtomicU64>>,
    /// The ways to other nodes. `None` if the node's kernel does not keep its network card.
    pub(super) remote_nodes: Option<SharedReport>,
    /// Maximum number of sessions of all workers together.
    pub(super) session_capacity: usize,
    /// Whether all ports that could be opened at start are open.
    pub(super) is_settled: AtomicBool,
}

/// What the vswitch's threads reported at one time.
pub(super) struct Observation {
    pub(super) about: Arc<About>,
    pub(super) snapshot: Arc<Snapshot>,
    /// The node's own pod networks. Empty before a state is loaded.
    pub(super) pod_networks: Arc<[IpNet]>,
    pub(super) counters: VswitchCounters,
    pub(super) interfaces: Report,
    pub(super) state: StateCounters,
    /// Health of the connection to the API server. `None` if the state comes from files.
    pub(super) source: Option<SourceHealth>,
    pub(super) enforced: Enforced,
    /// See [`Composer::event_to_enforced`].
    pub(super) event_to_enforced: Histogram,
    pub(super) capture: Option<CaptureCounters>,
    /// Policies in audit mode. `None` until a state is loaded.
    pub(super) audited: Option<Arc<BTreeSet<AuditedPolicy>>>,
    /// Number of connections that each audited policy would have denied.
    pub(super) audit: AuditTotals,
    /// The addresses that pods have learned by name. `None` while the vswitch ends.
    pub(super) learned: Option<Arc<Learned>>,
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

    /// Returns the addresses that pods have learned by name. `None` while the vswitch ends.
    pub(super) fn learned(&self) -> Option<Arc<Learned>> {
        self.vswitch.upgrade().map(|vswitch| Arc::clone(vswitch.learned()))
    }

    /// Returns the counts of connections that audited policies would have denied.
    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Queries all threads. Takes some milliseconds, at most a few seconds. For a worker that does not answer, the result has its last
    /// known counters.
    pub(super) fn observe(&self) -> Observation {
        let vswitch = self.vswitch.upgrade();
        let mut counters = vswitch.as_ref().map(|vswitch| vswitch.counters()).unwrap_or_default();
        drop(vswitch);
        self.last_told.fill(&mut counters);
        let capture = self.capture.as_ref().map(CaptureReading::counters);
        self.with(counters, self.interfaces.report(), capture)
    }

    /// Like [`Self::observe`], but with the given counters instead of queries to the workers, the interfaces thread and the capture.
    pub(super) fn with(
        &self,
        counters: VswitchCounters,
        interfaces: Report,
        capture: Option<CaptureCounters>,
    ) -> Observation {
        let snapshot = self.composer.current();
        Observation {
            about: Arc::clone(&self.about),
            learned: self.learned(),
            snapshot,
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

    /// Passes all sessions to `each` until it breaks. Returns false if a worker does not answer.
    pub(super) fn sessions(&self, each: impl FnMut(SessionInfo) -> ControlFlow<()>) -> bool {
        self.vswitch.upgrade().is_none_or(|vswitch| vswitch.sessions(each))
    }

    /// Ends the selected sessions and passes them to `each`. Returns false if a worker does not answer.
    pub(super) fn end_sessions(&self, selector: &SessionSelector, mut each: impl FnMut(&SessionInfo)) -> bool {
        let mut ports = BTreeSet::new();
        let answered = self.vswitch.upgrade().is_none_or(|vswitch| {
            vswitch.end_sessions(selector, |session| {
                ports.extend([session.in_port, session.out_port]);
                each(&session);
            })
        });
        // After the sessions: flows that a worker adds from now on belong to remaining sessions.
        self.composer.end_flows_of_sessions(ports);
        answered
    }

    /// Returns the addresses of each pod that a name means, or those of its node, or why the state has none. An error if the policy thread is
    /// busy for longer than `patience`.
    pub(super) fn addresses_of(
        &self,
        name: &EndName,
        patience: Duration,
    ) -> Result<Result<Vec<Vec<IpAddr>>, Unknown>, RecvTimeoutError> {
        self.names.addresses(name, patience)
    }

    /// Returns how the state's Services translate connections. An error as for [`Self::addresses_of`].
    pub(super) fn translations(&self, asked: Asked, patience: Duration) -> Result<Translations, RecvTimeoutError> {
        self.names.translations(asked, patience)
    }

    /// Returns the pod or node of each address, in the order of `addresses`. An error as for [`Self::addresses_of`].
    pub(super) fn ends_of(
        &self,
        addresses: Vec<IpAddr>,
        patience: Duration,
    ) -> Result<Vec<EndFacts>, RecvTimeoutError> {
        self.names.ends(addresses, patience)
    }

    /// Returns the parts of a selector that select no pod, node or address. An error as for [`Self::addresses_of`].
    pub(super) fn selecting_nobody(
        &self,
        selector: Selector,
        patience: Duration,
    ) -> Result<Vec<String>, RecvTimeoutError> {
        self.names.nobody(selector, patience)
    }

    /// Returns the selected addresses. An error as for [`Self::addresses_of`].
    pub(super) fn addresses_of_selected(
        &self,
        selector: Selector,
        patience: Duration,
    ) -> Result<HashSet<IpAddr>, RecvTimeoutError> {
        self.names.selected(selector, patience)
    }

    /// Returns the vswitch. `None` once it is stopped. Callers must not keep the reference, as stopping needs the last one.
    pub(super) fn vswitch(&self) -> Option<Arc<Vswitch>> {
        self.vswitch.upgrade()
    }

    /// Ends all flows in the kernel. Packets of established sessions then reach the workers, which add their flows again.
    pub(super) fn end_all_flows(&self) {
        let ports = (0..=u16::MAX).map(PortId).take(self.composer.current().ports().len());
        self.composer.end_flows_of_sessions(ports);
    }

    /// Returns the flight recorder's journal. `None` if it is off or its file could not be opened.
    pub(super) fn journal(&self) -> Option<&Journal> {
        self.about.journal.as_ref().filter(|journal| !journal.has_failed())
    }

    /// Returns the paths of the configuration and the journal. Flushes the journal first, for at most `patience`.
    pub(super) fn kept_files(&self, patience: Duration) -> KeptFiles {
        self.journal().inspect(|journal| journal.flush(patience));
        KeptFiles {
            node: self.about.node.to_string(),
            configuration: self.about.configuration.clone(),
            // The flush may have shown that the journal has failed.
            journal: self.journal().map(Journal::path),
        }
    }

    /// Returns the counters of clients that watch flows, packets or Hubble.
    pub(super) fn stream(&self) -> &Arc<StreamCounts> {
        &self.about.stream
    }

    /// Returns the time since the vswitch started.
    pub(super) fn uptime(&self) -> Duration {
        self.about.started.elapsed()
    }

    pub(super) fn node(&self) -> &Arc<str> {
        &self.about.node
    }

    /// Reports whether a policy is known, compiled, and used by all workers. An error as for [`Self::addresses_of`].
    pub(super) fn enforcement(
        &self,
        asked: PolicyQuestion,
        patience: Duration,
    ) -> Result<Enforcement, RecvTimeoutError> {
        // In this order: the policy thread answers after it has published what it knows, and the workers confirm what is published.
        let mut told = self.names.enforcement(asked, patience)?;
        let enforced = self.composer.enforced();
        told.tables_generation = self.composer.current().generation();
        if enforced.is_refused {
            told.pending.push("a newer state or port change could not be published; bulkhead retries".into());
        }
        if enforced.keeps_flows {
            told.pending.push("flows of the previous process remain until all ports are open".into());
        }
        if !self.vswitch.upgrade().is_some_and(|vswitch| vswitch.confirm()) {
            told.pending.push("a worker does not answer".into());
        }
        told.stale = self.about.follower.as_ref().is_some_and(|follower| !follower.health().is_connected);
        told.enforced = told.pending.is_empty();
        Ok(told)
    }

    /// Returns the snapshot in force.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.composer.current()
    }

    /// Returns the map from origin numbers to policies and rules.
    pub(super) fn origins(&self) -> &SharedOrigins {
        &self.about.origins
    }

    /// Records that all ports that could be opened at start are open.
    pub(super) fn settle(&self) {
        self.about.is_settled.store(true, Ordering::Relaxed);
    }

    /// Whether the vswitch is ready: ports are open, and a policy is in force that is not too old. Does not wait for other threads.
    pub(super) fn is_ready(&self) -> bool {
        let health = self.about.follower.as_ref().map(|follower| follower.health());
        self.about.is_ready(self.composer.enforced(), health.as_ref())
    }

    /// Whether load balancers should use this node: ports are open, the workers run, and a policy is in force. The policy's age does not
    /// count: while the API server is unreachable, balancers must not leave all nodes. Does not wait for other threads.
    pub(super) fn is_serving(&self) -> bool {
        self.about.is_settled.load(Ordering::Relaxed) && !self.composer.enforced().is_denying && self.is_alive()
    }

    /// Whether all workers run. Does not wait for them.
    pub(super) fn is_alive(&self) -> bool {
        self.vswitch.upgrade().is_none_or(|vswitch| vswitch.dead_workers() == 0)
    }
}

impl Observation {
    /// Whether the vswitch was ready at that time; see [`Observer::is_ready`].
    pub(super) fn is_ready(&self) -> bool {
        self.about.is_ready(self.enforced, self.source.as_ref())
    }

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
