//! What the process reports about itself with `dataplane: nftables`: ports, policies, drops and health.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_answers::args::Format;
use bulkhead_classifier::OriginId;
use bulkhead_cluster::kubernetes::{Follower, SourceHealth};
use bulkhead_control::object::PodName;
use bulkhead_observe::admin::{
    AuditStatus, DropRow, FlowCacheRow, LastError, PolicyRow, PolicyStatus, PortRow, PortTotals, SessionTotals,
    SourceStatus, Status,
};

use super::kernel::Counter;
use crate::admin::{instance, milliseconds};
use crate::config::Config;
use crate::log;
use crate::origins::SharedOrigins;
use crate::state::{LiveState, StateCounts};

/// The state of the thread that enforces policy, as the admin socket, metrics and probes report it.
pub(crate) struct Told {
    pub node: Arc<str>,
    pub(super) places: BTreeMap<Arc<str>, Option<PodName>>,
    /// The node's pods that are closed because their interface is unknown.
    pub(super) unplaced: BTreeSet<String>,
    /// Closed interfaces that belong to no pod and no configured port.
    pub(super) nobodys: BTreeSet<String>,
    /// Number of ruleset changes loaded since the process started.
    pub changes: u64,
    pub is_denying: bool,
    /// Whether the previous process's ruleset stays in force because no state is loaded yet.
    pub(super) is_kept: bool,
    /// Whether the last ruleset change could not be loaded, and is retried.
    pub is_refused: bool,
    /// Whether the process has announced that policy is in force.
    pub(super) is_settled: bool,
    pub since: Instant,
    /// Time from detecting the last change until the kernel enforced it.
    pub took: Duration,
    pub started: Instant,
    pub origins: SharedOrigins,
    pub state: Arc<StateCounts>,
    follower: Option<Arc<Follower>>,
    stale_after: Duration,
}

impl Told {
    pub(super) fn new(config: &Config, state: &LiveState) -> Self {
        Self {
            node: config.node.clone(),
            places: BTreeMap::new(),
            unplaced: BTreeSet::new(),
            nobodys: BTreeSet::new(),
            changes: 0,
            is_denying: state.is_denying(),
            is_kept: false,
            is_refused: false,
            is_settled: false,
            since: Instant::now(),
            took: Duration::ZERO,
            started: Instant::now(),
            origins: state.origins(),
            state: state.counts(),
            follower: state.follower(),
            stale_after: config.state.kubernetes.as_ref().map_or(Duration::MAX, |server| server.stale_after),
        }
    }

    /// Records a newly loaded ruleset. `seen` is when its change was detected.
    pub(super) fn enforced(&mut self, places: BTreeMap<Arc<str>, Option<PodName>>, is_denying: bool, seen: Instant) {
        (self.places, self.is_denying, self.since) = (places, is_denying, Instant::now());
        self.is_kept = false;
        self.took = seen.elapsed();
        self.changes += 1;
    }

    pub(super) fn has_lost_source(&self) -> bool {
        self.follower.as_ref().is_some_and(|follower| follower.is_dead())
    }

    pub(crate) fn source(&self) -> Option<SourceHealth> {
        self.follower.as_ref().map(|follower| follower.health())
    }

    /// Whether a ruleset compiled from a loaded state is in force, and the API server's objects are no older than `stale_after`.
    pub(crate) fn is_ready(&self) -> bool {
        let is_fresh = self.source().is_none_or(|source| source.age().is_some_and(|age| age <= self.stale_after));
        self.is_settled && !self.is_denying && !self.is_kept && is_fresh
    }

    /// Returns whether the counter's rule allows, and the rule's origin. `None` for counters that belong to no rule.
    pub(crate) fn rule(&self, counter: &Counter) -> Option<(bool, OriginId)> {
        let (action, number) = counter.name.split_once('-')?;
        let allows = match action {
            "allow" => true,
            "deny" => false,
            // Not a verdict.
            _ => return None,
        };
        Some((allows, OriginId(number.parse().ok()?)))
    }

    /// Returns the packets that each origin allowed and denied, the busiest first. Omits origins without packets.
    pub(super) fn policies(&self, counters: &[Counter]) -> Vec<PolicyRow> {
        let mut rows: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for counter in counters.iter().filter(|counter| counter.packets > 0) {
            let Some((allows, origin)) = self.rule(counter) else { continue };
            let name = self.origins.get(origin).map_or_else(|| "unknown".to_owned(), |origin| origin.to_string());
            let row = rows.entry(name).or_default();
            *(if allows { &mut row.0 } else { &mut row.1 }) += counter.packets;
        }
        let row = |(origin, (allowed, denied))| PolicyRow { origin, allowed, denied, audited: 0, not_enforced: false };
        let rows = rows.into_iter().map(row);
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.allowed + row.denied));
        rows
    }

    /// Returns the dropped packets by reason, the most frequent first. Omits reasons without packets.
    pub(super) fn drops(&self, counters: &[Counter]) -> Vec<DropRow> {
        let denied = counters.iter().filter(|counter| self.rule(counter).is_some_and(|(allows, _)| !allows));
        let denied = ("policy_denied", "No rule allows the packet.", denied.map(|counter| counter.packets).sum());
        let others = reasons(counters).filter(|(_, _, packets)| *packets > 0);
        let all = others.chain((denied.2 > 0).then_some(denied));
        let row = |(reason, means, packets): (&str, &str, u64)| DropRow {
            reason: reason.to_owned(),
            means: means.to_owned(),
            packets,
        };
        let mut rows: Vec<DropRow> = all.map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
        rows
    }

    /// Formats the summary that is printed on SIGUSR1 and at the end.
    pub(super) fn summary(&self, format: Format, counters: &[Counter]) -> String {
        if format == Format::Json {
            let (policies, dropped) = (self.policies(counters), self.drops(counters));
            let summary = serde_json::json!({ "node": self.node, "policies": policies, "dropped": dropped });
            return format!("{summary}\n");
        }
        let mut text = format!("node {}: verdicts of the kernel\n", self.node);
        for PolicyRow { origin, allowed, denied, .. } in self.policies(counters) {
            writeln!(text, "  {origin}: {allowed} allowed, {denied} denied").expect("a text takes anything");
        }
        for DropRow { reason, packets, .. } in self.drops(counters) {
            writeln!(text, "  dropped, {reason}: {packets}").expect("a text takes anything");
        }
        text
    }

    pub(super) fn status(&self, counters: &[Counter]) -> Status {
        let state = self.state.read();
        let ports = self.ports();
        let late: Vec<PortRow> = ports.iter().filter(|port| port.state != "open").cloned().collect();
        Status {
            program: env!("CARGO_PKG_VERSION").into(),
            node: self.node.to_string(),
            pod_networks: Vec::new(),
            ready: self.is_ready(),
            denying: self.is_denying,
            judging: state.judging(),
            uptime_seconds: self.started.elapsed().as_secs(),
            uptime_ms: Some(milliseconds(self.started.elapsed())),
            instance: Some(instance()),
            generation: self.changes,
            policy: PolicyStatus {
                age_seconds: self.since.elapsed().as_secs_f64(),
                enforce_seconds: self.took.as_secs_f64(),
                refused: self.is_refused,
                states_applied: state.applied,
                states_refused: state.refused,
                faulty_objects: state.faulty,
                contested_addresses: state.contested_addresses,
                unenforced_kinds: state.unenforced_kinds,
                refused_tables: state.refused_tables,
            },
            audit: AuditStatus::default(),
            source: self.source().map(|source| SourceStatus {
                connected: source.is_connected,
                since_seconds: source.since.elapsed().as_secs(),
                age_seconds: source.age().map(|age| age.as_secs_f64()),
                last_error: source.last_error,
            }),
            services: None,
            service_health: None,
            ports: PortTotals {
                configured: ports.len(),
                added: 0,
                open: ports.iter().filter(|port| port.state == "open").count(),
            },
            remote_nodes: None,
            late,
            workers: Vec::new(),
            sessions: SessionTotals { used: 0, capacity: 0, refused: 0, created: None },
            dropped: self.drops(counters),
            flow_cache: FlowCacheRow { forwarded: 0, added: 0, refused: 0 },
            last_error: log::last_error().map(|(at, text)| LastError { at, text }),
        }
    }

    /// Returns the interfaces with policy, then pods without an interface, then interfaces that belong to no pod.
    pub(crate) fn ports(&self) -> Vec<PortRow> {
        let row = |name: String, interface: &str, state: &str, why: Option<&str>| {
            let count = |what| statistic(interface, what).unwrap_or(0);
            PortRow {
                kind: if name.contains('/') { "pod" } else { "uplink" }.into(),
                name,
                interface: interface.to_owned(),
                container: None,
                state: state.to_owned(),
                why: why.map(str::to_owned),
                addresses: Vec::new(),
                received: count("rx_packets"),
                received_bytes: count("rx_bytes"),
                sent: count("tx_packets"),
                sent_bytes: count("tx_bytes"),
                limited: 0,
                bypassed: 0,
                dropped: None,
                sessions_started: None,
                sessions_reached: None,
                epoch: self.changes,
            }
        };
        let placed = self.places.iter().map(|(interface, pod)| {
            let name = pod.as_ref().map_or_else(|| interface.to_string(), ToString::to_string);
            match statistic(interface, "rx_packets") {
                Some(_) => row(name, interface, "open", None),
                None => row(name, interface, "absent", Some("no interface has this name")),
            }
        });
        let unplaced = self.unplaced.iter().map(|pod| {
            let why = "the node has no host route to its address, and no port of the configuration names it";
            row(pod.clone(), "", "closed", Some(why))
        });
        let nobodys = self.nobodys.iter().map(|interface| {
            let why = "it belongs to no pod of this node and to no port of the configuration";
            PortRow { kind: "unknown".into(), ..row(interface.clone(), interface, "closed", Some(why)) }
        });
        placed.chain(unplaced).chain(nobodys).collect()
    }
}

/// Returns the drops for other reasons than policy: name, description and number of packets.
pub(crate) fn reasons(counters: &[Counter]) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    use bulkhead_control::renderer::nftables::REASONS;
    let count = |name| counters.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.packets);
    REASONS.iter().map(move |&(name, why)| (name, why, count(name)))
}

/// Reads the interface counter `what` from `/sys/class/net`. `None` if the interface does not exist.
fn statistic(interface: &str, what: &str) -> Option<u64> {
    if interface.is_empty() {
        return None;
    }
    fs::read_to_string(format!("/sys/class/net/{interface}/statistics/{what}")).ok()?.trim().parse().ok()
}
