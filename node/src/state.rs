//! The state from files or from an API server, and the policy compiled from it. If a new state is invalid, the last good one stays in
//! force.

mod counts;
mod enforcing;
mod files;
mod judging;
mod masquerade;
mod names;
mod nftables;
mod nodes;
mod own_node;
mod policies;
mod questions;
mod server;
mod services;
mod translations;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead_classifier::OriginId;
use bulkhead_control::attachments::Attachment;
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Enforcement, Node, PodName};
use bulkhead_control::pipeline::{AuditTables, AuditedPolicy, Pipeline};
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_control::service::Settings;
use bulkhead_control::source::SourceErrors;
use ipnet::IpNet;
use tokio::sync::watch;

use super::api::Api;
use super::config::{StateConfig, WhenMissing};
use super::journal::{ChangeLog, Journal};
use super::log;
use super::origins::SharedOrigins;
use super::remote_nodes::RemoteNode;
use super::watch::Watch;
use bulkhead_answers::run::NameSettings;
use bulkhead_answers::services::{Adapter, NodeHealth};
pub(super) use counts::{StateCounters, StateCounts};
pub(super) use judging::{Judged, Judging};
use masquerade::Masquerading;
pub(crate) use names::NameServers;
use nftables::KernelState;
pub(super) use nodes::Nodes;
use own_node::{nameless, without_state};
pub(super) use translations::{Asked, AskedFor, Translations};

/// How often the first read is repeated while the files keep changing: with `PAUSE`, for five seconds. Files that change for longer are
/// then used as read.
const SETTLING: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Part of log messages: which packets are forwarded without a state.
pub(super) const DENYING: &str = "only the node's own traffic to and from the uplink is forwarded";

/// The state from files or the API server, and the policy and Services compiled from it.
pub(super) struct LiveState {
    config: StateConfig,
    node: Arc<str>,
    watch: Watch,
    /// The API server. `None` if the state comes from files.
    api: Option<Api>,
    pipeline: Pipeline,
    /// The objects that the pipeline has from files, or from the stored copy of the API server's state.
    inventory: Inventory,
    /// The Services for the workers. `None` if Services are off.
    services: Option<Adapter>,
    /// Publishes the node's health and its Services' health checks, for load balancers.
    health: watch::Sender<NodeHealth>,
    /// Publishes the cluster's nodes, for Hubble relays.
    nodes: watch::Sender<Arc<Nodes>>,
    /// How pods' connections to outside the cluster are masqueraded. `None` if they are not.
    masquerading: Option<Masquerading>,
    /// The configured DNS servers and grace time of rules that name domains.
    name_settings: NameSettings,
    /// Whose DNS answers the node's pods learn from. `None` if no rule of these pods names domains.
    names: Option<Arc<NameServers>>,
    /// Services and nodes of the stored copy, until the API server sends them.
    kept_services: Inventory,
    /// Withheld source addresses for connections to Services, because a pod or a node has the address, each with that owner's name.
    taken_sources: BTreeMap<IpAddr, String>,
    origins: SharedOrigins,
    /// The tables of the last good state. If the kernel enforces, those of a node without a state.
    tables: Arc<NodeTables>,
    /// The nftables ruleset's revision that the kernel must enforce, and whether a newer, invalid state is withheld from the kernel.
    kernel: KernelState,
    /// The tables of all policies, audited ones included. `None` if no policy is audited.
    audit: Option<Arc<AuditTables>>,
    /// The audited policies.
    audited: Arc<BTreeSet<AuditedPolicy>>,
    remote_nodes: Arc<[RemoteNode]>,
    /// The node's own pod CIDRs.
    pod_networks: Arc<[IpNet]>,
    /// The node's primary address of each address family. Addresses that no interface has are absent.
    primary: Arc<[IpAddr]>,
    refusing: [Arc<[OriginId]>; 2],
    /// The tables in force without a state: only the node's own addresses, so that it can reach the API server.
    without: Arc<NodeTables>,
    /// This node's object. It has only a name if the state lacks it.
    own: Node,
    /// The addresses of the node's interfaces.
    addresses: BTreeSet<IpAddr>,
    /// Those of the node's addresses that other hosts cannot reach, because each interface with the address is set down.
    down_addresses: BTreeSet<IpAddr>,
    /// Whether pod traffic is denied: no state is loaded yet, or the newest one was refused and the configuration says to deny then.
    denied: bool,
    /// When the last change was detected. `None` after [`Self::take_heard`].
    heard: Option<Instant>,
    /// Findings that were reported for the last state, so that only new ones are reported.
    told: BTreeSet<String>,
    /// Findings about Services that were reported. Separate, as the API server's Services arrive in separate batches.
    told_of_services: BTreeSet<String>,
    counts: Arc<StateCounts>,
    /// Whether the newest state was refused, so that an older one is in force.
    is_refused: bool,
    /// Changes of the state that the journal does not have yet.
    changes: ChangeLog,
}

impl LiveState {
    /// Loads the first state. `services` is `None` if Services are off. `addresses` are those of the node's interfaces, `attached` the pods
    /// that are already attached.
    ///
    /// # Errors
    /// If no state can be loaded, unless the configuration says to wait for one.
    pub(super) fn load(
        config: &StateConfig,
        services: Option<Settings>,
        node: &Arc<str>,
        judging: Judging,
        addresses: BTreeSet<IpAddr>,
        attached: BTreeMap<PodName, Attachment>,
    ) -> anyhow::Result<Self> {
        // Before reading, so that changes during the read are detected.
        let watch = Watch::new(&config.paths);
        let isolation = config.options.semantics.default_isolation();
        let mut pipeline = judging.pipeline(node, isolation)?;
        pipeline.resync([])?;
        let mut changes = ChangeLog::default();
        changes.note_attached(&attached);
        pipeline.attach(attached)?;
        let nothing = without_state(node, &addresses)?;
        let api = Api::start(config, node)?;
        let mut state = Self {
            config: config.clone(),
            node: node.clone(),
            watch,
            api,
            pipeline,
            inventory: Inventory::default(),
            services: services.map(|settings| Adapter::new(node.clone(), settings)),
            health: watch::Sender::default(),
            nodes: watch::Sender::default(),
            masquerading: None,
            name_settings: NameSettings::default(),
            names: None,
            kept_services: Inventory::default(),
            taken_sources: BTreeMap::new(),
            origins: SharedOrigins::default(),
            tables: Arc::clone(&nothing),
            kernel: KernelState::default(),
            audit: None,
            audited: Arc::default(),
            remote_nodes: [].into(),
            pod_networks: [].into(),
            primary: [].into(),
            refusing: [[].into(), [].into()],
            without: nothing,
            own: nameless(node),
            addresses,
            down_addresses: BTreeSet::new(),
            denied: true,
            heard: None,
            told: BTreeSet::new(),
            told_of_services: BTreeSet::new(),
            counts: Arc::default(),
            is_refused: false,
            changes,
        };
        state.counts.judged(Judged::of(&state.pipeline));
        state.count_services();
        if state.api.is_some() {
            state.load_from_server();
            return Ok(state);
        }
        let mut loaded = state.load_files();
        for _ in 0..SETTLING {
            if state.watch.was_read() {
                break;
            }
            // The files are being written: policies may still be missing.
            std::thread::sleep(PAUSE);
            loaded = state.load_files();
        }
        let read = loaded.and_then(|loaded| state.take(loaded));
        match (read, config.when_missing) {
            (Ok(_), _) => {}
            (Err(error), WhenMissing::Exit) => return Err(error),
            (Err(error), WhenMissing::Deny) => {
                state.count(|counts| &counts.refused);
                log::error(&format!("no state is loaded; {DENYING} until one is\n{error:#}"));
            }
        }
        Ok(state)
    }

    /// Makes the next [`Self::refresh`] check the files, and retries failed requests to the API server now.
    pub(super) fn hurry(&mut self) {
        self.watch.hurry();
        self.api.iter_mut().for_each(Api::hurry);
    }

    /// Reads the files if they have changed, or takes the API server's changes. Returns whether anything in force changed.
    pub(super) fn refresh(&mut self) -> bool {
        if self.api.is_some() {
            return self.refresh_from_server();
        }
        if !self.watch.has_changed() {
            return false;
        }
        self.heard = Some(Instant::now());
        let loaded = self.load_files();
        if !self.watch.was_read() {
            // The files changed during the read, which may have mixed two states.
            return false;
        }
        self.settle(loaded)
    }

    /// Records this state and all later changes in the journal. Without a journal, changes are no longer collected.
    pub(super) fn record(&mut self, journal: Option<Journal>, enforcement: Enforcement) {
        let settings = bulkhead_answers::bundle::Settings {
            isolation: self.config.options.semantics.default_isolation(),
            enforcement,
            services: self.services.as_ref().map(|services| services.resolver().settings().clone()),
            program: env!("CARGO_PKG_VERSION").into(),
        };
        self.changes.tell_to(journal, settings);
    }

    /// Writes the state in force as of this generation to the journal. `is_held` is true if a newer state is known but not in force.
    pub(super) fn tell_changes(&mut self, generation: u64, is_held: bool) {
        self.changes.tell(generation, self.denied, is_held || self.is_refused);
    }

    /// Reports these findings, except those already reported for the last state or this one.
    fn tell(&mut self, findings: &BTreeSet<String>, tell: fn(&String)) {
        findings.difference(&self.told).for_each(tell);
        self.told.extend(findings.iter().cloned());
    }

    fn count(&self, of: impl Fn(&StateCounts) -> &AtomicU64) {
        of(&self.counts).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when to call [`refresh`](Self::refresh) next if no event arrives.
    pub(super) fn next_look(&self) -> Instant {
        self.api.as_ref().map_or_else(|| self.watch.next_look(), Api::next_look)
    }

    /// Returns when the last change was detected: the API server's first event of it, or the change of the files. `None` if there was no
    /// change since the last call.
    pub(super) const fn take_heard(&mut self) -> Option<Instant> {
        self.heard.take()
    }

    /// Returns the shared map from origin numbers to policies. Each later state updates it.
    pub(super) fn origins(&self) -> SharedOrigins {
        self.origins.clone()
    }

    /// Returns the counters of the state, which other threads read.
    pub(super) fn counts(&self) -> Arc<StateCounts> {
        Arc::clone(&self.counts)
    }
}

/// Converts warnings to texts. The last one counts those that are not shown.
fn told(warnings: &SourceErrors) -> BTreeSet<String> {
    let more = warnings.total() - warnings.shown().len();
    let more = (more > 0).then(|| format!("{more} more like these"));
    warnings.shown().iter().map(ToString::to_string).chain(more).collect()
}

#[cfg(test)]
mod tests;
