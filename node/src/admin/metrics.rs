//! Metrics in the OpenMetrics text format (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
//!
//! Names are `bulkhead_<subsystem>_<what>_<unit>`. A scrape reads the vswitch's existing counters. Ports, workers and drop reasons limit
//! the number of time series, and [`bounded`] limits it for policies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_answers::services::Counts;
use bulkhead_dataplane::{AFFINITY_CAPACITY, ClientCounters, OriginCounters};
use bulkhead_observe::admin::{NameTotals, WayState};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Registry, Unit};

use super::exposition::{Kind, Labels, Metrics, Value};
use super::names;
use super::policy_labels::{MAX_POLICIES, bounded, labels_of, plus};
use crate::interfaces::PortState;
use crate::observer::Observation;
use crate::remote_nodes::SharedReport;
use crate::summary::{Summary, dropped};

/// Maximum number of broken ways with a series of their own.
const MAX_FAULTS: usize = 100;

/// Formats all metrics as OpenMetrics text.
///
/// # Errors
/// Never: writing to a string cannot fail.
pub(super) fn render(now: &Observation) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("bulkhead");
    registry.register_collector(Box::new(Metrics::of(now)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl Metrics {
    fn of(now: &Observation) -> Self {
        let mut metrics = Self::default();
        let summary = now.summary();
        metrics.add_program(now);
        metrics.add_policy(now, &summary);
        metrics.add_audit(now);
        metrics.add_names(now);
        metrics.add_source(now);
        metrics.add_ports(now, &summary);
        metrics.add_workers(now);
        metrics.add_stream(now);
        metrics.add_journal(now);
        metrics.add_hubble(now);
        metrics.add_sessions(now, &summary);
        metrics.add_services(now, &summary);
        metrics.add_kernel(&summary);
        metrics.add_remote_nodes(now);
        metrics
    }

    fn add_program(&mut self, now: &Observation) {
        let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("node", now.about.node.to_string())];
        self.add(
            "build_info",
            "Version and node as labels; always 1",
            None,
            Kind::Gauge,
            vec![(labels, Value::Count(1))],
        );
        self.seconds("process_uptime", "Time since the process started", now.uptime);
        self.gauge("process_ready", "1 if ports are open and a policy is in force", now.is_ready().into());
    }

    fn add_policy(&mut self, now: &Observation, summary: &Summary<'_>) {
        let (enforced, state) = (now.enforced, now.state);
        self.gauge("policy_generation", "Generation of the snapshot in force", now.snapshot.generation());
        self.seconds("policy_age", "Time since the policy in force was published", enforced.since.elapsed());
        let help = "Time from detecting the last policy change until the workers used it";
        self.seconds("policy_enforce", help, enforced.took);
        let help = "Time from an API server event or a file change until the workers used it";
        self.histograms.push(("policy_event_to_enforced", help, now.event_to_enforced.clone()));
        self.gauge(
            "policy_denying",
            "1 while pod traffic is denied because no state is loaded",
            enforced.is_denying.into(),
        );
        self.gauge("policy_pending", "1 while a newer state cannot be enforced", enforced.is_refused.into());
        self.counter("policy_states_applied", "States that took effect", state.applied);
        self.counter("policy_states_refused", "States that could not be loaded or enforced", state.refused);
        self.gauge("policy_faulty_objects", "Objects that could not be parsed", state.faulty);
        self.gauge("policy_contested_addresses", "Addresses that several pods claim", state.contested_addresses);
        let help = "Kinds of objects that restrict traffic and are not enforced";
        self.gauge("policy_unenforced_kinds", help, state.unenforced_kinds);
        let help = "Tables that are too large: the previous table stays, or the port is closed";
        self.gauge("policy_refused_tables", help, state.refused_tables);
        let decided = by_policy(now, summary);
        let values = |count: fn(&OriginCounters) -> u64| {
            let all = decided.iter().map(|(labels, counters)| (labels, count(counters)));
            all.filter(|&(_, count)| count > 0).map(|(labels, count)| (labels.clone(), Value::Count(count))).collect()
        };
        let (allowed, denied) = (values(|counters| counters.allowed), values(|counters| counters.denied));
        self.add(
            "policy_allowed_packets",
            "Packets forwarded, by the policy that allowed them",
            None,
            Kind::Counter,
            allowed,
        );
        self.add(
            "policy_denied_packets",
            "Packets dropped, by the policy that denied them",
            None,
            Kind::Counter,
            denied,
        );
    }

    /// Adds the connections that audited policies would have denied. The counts survive restarts.
    fn add_audit(&mut self, now: &Observation) {
        let policies = &now.audit.policies;
        self.gauge(
            "audit_policies",
            "Policies of this node's pods that are audited instead of enforced",
            policies.len() as u64,
        );
        let mut rows: Vec<(&String, u64)> = policies.iter().map(|(name, &connections)| (name, connections)).collect();
        rows.sort_by_key(|(_, connections)| std::cmp::Reverse(*connections));
        let others: u64 = rows.iter().skip(MAX_POLICIES).map(|(_, connections)| connections).sum();
        let has_more = rows.len() > MAX_POLICIES;
        rows.truncate(MAX_POLICIES);
        let value = |name: &str, connections| (vec![("policy", name.to_owned())], Value::Count(connections));
        let mut values: Vec<_> = rows.into_iter().map(|(name, connections)| value(name, connections)).collect();
        values.extend(has_more.then(|| value("others", others)));
        let help = "Connections forwarded that an audited policy would have denied";
        self.add("audit_connections", help, None, Kind::Counter, values);
        let untold = now.counters.sum(|worker| worker.engine.untold_audits());
        let help = "Audited connections missing from the report, because too many came at once";
        self.counter("audit_untold_connections", help, untold);
        let help = "Audit files that could not be read: damaged or of another version";
        self.counter("audit_refused_files", help, now.audit.refused_files);
    }

    /// Adds the metrics about names that pods have learned. Adds nothing if no rule names domains.
    fn add_names(&mut self, now: &Observation) {
        let Some(learned) = now.learned.as_ref().filter(|_| now.snapshot.names().is_some()) else { return };
        let counts = learned.counts();
        let NameTotals { queries, answers, addresses, unasked, malformed, incomplete, full, matched, mismatched } =
            names::totals(now);
        self.gauge(
            "names",
            "Names under which pods have learned addresses, including expired ones",
            counts.names as u64,
        );
        let help = "Addresses that pods have learned, once for each pod and name, including expired ones";
        self.gauge("name_addresses", help, counts.holdings as u64);
        self.gauge("name_memory_bytes", "Memory of the learned names and addresses", counts.bytes as u64);
        let help = "Queries to trusted DNS servers from pods whose rules name domains";
        self.counter("name_queries", help, queries);
        self.counter("name_answers", "Answers to these queries about names that a rule of the pod names", answers);
        self.counter("name_learned_addresses", "Addresses learned from these answers", addresses);
        let values = [("unasked", unasked), ("malformed", malformed), ("incomplete", incomplete), ("full", full)];
        let values = values.map(|(why, count)| (vec![("reason", why.to_owned())], Value::Count(count)));
        let help = "DNS messages and addresses from which nothing was learned, by reason";
        self.add("name_unlearned", help, None, Kind::Counter, values.into());
        let values = [("match", matched), ("mismatch", mismatched)];
        let values = values.map(|(result, count)| (vec![("result", result.to_owned())], Value::Count(count)));
        let help = "Connections allowed by name, by whether their client has named an allowed server";
        self.add("name_verified_connections", help, None, Kind::Counter, values.into());
    }

    /// Adds the state of the connection to the API server. Adds nothing if the state comes from files.
    fn add_source(&mut self, now: &Observation) {
        let Some(source) = &now.source else { return };
        self.gauge("source_connected", "1 while connected to the API server", source.is_connected.into());
        if let Some(age) = source.age() {
            self.seconds("source_age", "Age of the objects from the API server", age);
        }
        if let Some(services) = &source.services {
            let help = "1 while Services and endpoint slices are watched at the API server";
            self.gauge("source_services_connected", help, services.is_connected.into());
            if let Some(age) = services.age() {
                self.seconds("source_services_age", "Age of the Services and endpoint slices from the API server", age);
            }
        }
        self.counter("source_lists", "Lists read completely from the API server", source.lists);
        self.counter("source_failures", "Failed lists and watches of the API server", source.failures);
        let objects = source
            .objects
            .iter()
            .filter_map(|&(kind, count)| Some((vec![("kind", kind.name().to_owned())], Value::Count(count? as u64))));
        let help = "Objects from the API server, by kind";
        self.add("source_objects", help, None, Kind::Gauge, objects.collect());
    }

    fn add_ports(&mut self, now: &Observation, summary: &Summary<'_>) {
        let ports = &now.interfaces.ports;
        let open = ports.iter().filter(|port| port.state == PortState::Open).count();
        let added = ports.iter().filter(|port| port.added.is_some()).count();
        self.gauge("ports_configured", "Ports in the configuration plus added ports", ports.len() as u64);
        self.gauge("ports_added", "Ports added at the admin socket", added as u64);
        self.gauge("ports_open", "Ports that are open", open as u64);
        let changes = now.interfaces.counters;
        self.counter("ports_opened", "Port openings, including reopenings", changes.opened);
        self.counter(
            "ports_removed",
            "Open ports closed because their interface disappeared or failed",
            changes.removed,
        );
        self.counter("ports_refused", "Failed attempts to open a port", changes.refused);
        let mut values: [Vec<(Labels, Value)>; 7] = Default::default();
        for (name, traffic) in summary.ports() {
            let cached = now.interfaces.cached.port(name);
            let counts = [
                traffic.received,
                traffic.received_bytes,
                traffic.sent,
                traffic.sent_bytes,
                cached.limited,
                cached.bypassed,
                now.snapshot.port_named(name).map_or(0, |id| now.counters.port_dropped(id)),
            ];
            for (values, count) in values.iter_mut().zip(counts) {
                values.push((vec![("port", name.to_owned())], Value::Count(count)));
            }
        }
        let names = [
            ("port_received_packets", "Packets received at a port", None),
            ("port_received", "Bytes received at a port", Some(Unit::Bytes)),
            ("port_sent_packets", "Packets sent at a port", None),
            ("port_sent", "Bytes sent at a port", Some(Unit::Bytes)),
            ("port_limited_packets", "Packets dropped because they exceeded slow_path", None),
            ("port_bypassed_packets", "Packets dropped because the node's kernel sent them around the vswitch", None),
            ("port_dropped_packets", "Packets received at a port and dropped by a worker", None),
        ];
        for ((name, help, unit), values) in names.into_iter().zip(values) {
            self.add(name, help, unit, Kind::Counter, values);
        }
    }

    /// Adds the number of clients of `monitor`, `trace` and `capture`, and of records that they missed.
    fn add_stream(&mut self, now: &Observation) {
        let stream = &now.about.stream;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.gauge("stream_clients", "Clients that watch", count(&stream.clients));
        let help = "Sessions and packets not streamed to clients, because a worker's queue was full";
        self.counter("stream_left_out_records", help, count(&stream.left_out));
        let help = "Sessions and packets not sent to clients that were slow or over their rate";
        self.counter("stream_unsent_records", help, count(&stream.unsent));
        let help = "Clients disconnected because they did not read";
        self.counter("stream_disconnected_clients", help, count(&stream.disconnected));
    }

    /// Adds the end of the Hubble server's certificate. The family is listed without TLS too, as alerts ask for it.
    fn add_hubble(&mut self, now: &Observation) {
        let end = now.about.hubble_certificate_end.as_ref().map(|end| end.load(Ordering::Relaxed));
        let values = end.filter(|&end| end > 0).map(|end| (Vec::new(), Value::Count(end)));
        let help = "End of the validity of the Hubble server's certificate, since 1970";
        let unit = Some(Unit::Seconds);
        self.add("hubble_certificate_end_timestamp", help, unit, Kind::Gauge, values.into_iter().collect());
    }

    fn add_remote_nodes(&mut self, now: &Observation) {
        let Some(remote) = now.about.remote_nodes.as_ref().and_then(SharedReport::read) else { return };
        let ways = [("route", remote.routed), ("tunnel", remote.tunneled)];
        let values = ways.map(|(way, count)| (vec![("way", way.to_owned())], Value::Count(count as u64)));
        let help = "Other nodes' pod networks, one for each node and address family, by the way to them";
        self.add("remote_node_ways", help, None, Kind::Gauge, values.into());
        let help = "Causes that keep packets from other nodes' pods; `bulkhead status` names them";
        self.gauge("remote_node_problems", help, remote.problems.len() as u64);
        let help = "Packets from the tunnel whose sender is no node, or not the owner of their source";
        self.counter("tunnel_dropped_packets", help, remote.tunnel_dropped);
        if remote.probes.is_some() {
            self.add_probes(now);
        }
    }

    /// Adds what probes have proven. Only broken ways have series of their own, and at most [`MAX_FAULTS`]: a thousand nodes with two families
    /// and a thousand such nodes would be millions of series.
    fn add_probes(&mut self, now: &Observation) {
        let Some(report) = &now.about.remote_nodes else { return };
        let ways = report.ways(&now.about.node).ways;
        let states = [
            ("proven", WayState::Proven),
            ("broken", WayState::Broken),
            ("waiting", WayState::Waiting),
            ("not_probed", WayState::NotProbed),
        ];
        let counts = states.map(|(name, state)| {
            let count = ways.iter().filter(|way| way.state == state).count() as u64;
            (vec![("state", name.to_owned())], Value::Count(count))
        });
        let help = "Ways to other nodes, one for each node and address family, by what probes have proven";
        self.add("remote_node_probed_ways", help, None, Kind::Gauge, counts.into());
        let faults = ways.iter().filter_map(|way| {
            let (fault, labels) = (way.fault.as_ref()?, ["node", "family", "cause"]);
            let values = [&way.node, &way.family, &fault.cause].map(String::clone);
            Some((labels.into_iter().zip(values).collect(), Value::Count(1)))
        });
        let help = "1 for each broken way to another node, at most 100; `bulkhead nodes` has the remedy";
        self.add("remote_node_fault", help, None, Kind::Gauge, faults.take(MAX_FAULTS).collect());
        let oldest = ways.iter().filter_map(|way| way.proof_age_seconds).reduce(f64::max);
        let help = "Age of the oldest of the ways' last proofs that packets arrive";
        let values = oldest.map(|age| (Vec::new(), Value::Real(age))).into_iter().collect();
        self.add("remote_node_proof_age", help, Some(Unit::Seconds), Kind::Gauge, values);
        let help = "Time from a probe to another node until its answer";
        self.histograms.push(("remote_node_round_trip", help, report.round_trips()));
    }

    fn add_journal(&mut self, now: &Observation) {
        let Some(journal) = now.about.journal.as_ref().filter(|journal| !journal.has_failed()) else { return };
        let (counts, read) = (journal.counts(), |counter: &AtomicU64| counter.load(Ordering::Relaxed));
        self.gauge("journal_size_bytes", "Maximum size of the journal", journal.size() as u64);
        self.counter("journal_written_records", "Records this process wrote to the journal", read(&counts.written));
        let help = "Sessions and dropped packets missing from the journal: over its rate or queue full";
        self.counter("journal_left_out_verdicts", help, read(&counts.left_out));
        let help = "State changes that the journal merged with the next one";
        self.counter("journal_merged_changes", help, read(&counts.merged));
        self.counter("journal_failures", "Failed writes to the journal", read(&counts.failed));
    }

    fn add_workers(&mut self, now: &Observation) {
        let workers = &now.counters.workers;
        let mut each = |name, help, kind, count: fn(&bulkhead_dataplane::vswitch::WorkerCounters) -> u64| {
            let value = |(at, worker): (usize, _)| (vec![("worker", at.to_string())], Value::Count(count(worker)));
            self.add(name, help, None, kind, workers.iter().enumerate().map(value).collect());
        };
        let help = "1 if the worker answers; if not, its other metrics keep their last values";
        each("worker_answering", help, Kind::Gauge, |worker| worker.has_answered.into());
        each("worker_received_packets", "Packets a worker received", Kind::Counter, |worker| worker.received);
        each("worker_sent_packets", "Packets a worker sent", Kind::Counter, |worker| worker.sent);
        each("worker_dropped_packets", "Packets a worker dropped", Kind::Counter, dropped);
        each("worker_restarts", "Times a worker panicked and continued", Kind::Counter, |worker| worker.restarts);
        each("worker_busy_rounds", "Polling rounds with work", Kind::Counter, |worker| worker.busy_rounds);
        each("worker_idle_rounds", "Polling rounds without work", Kind::Counter, |worker| worker.idle_rounds);
        each("worker_sessions", "Sessions of a worker", Kind::Gauge, |worker| worker.sessions);
        #[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days, and then some ns are lost")]
        let busy = |(at, worker): (usize, &bulkhead_dataplane::vswitch::WorkerCounters)| {
            (vec![("worker", at.to_string())], Value::Real(worker.busy_ns as f64 / 1e9))
        };
        let help = "Time a worker spent on rounds with work";
        self.add(
            "worker_busy",
            help,
            Some(Unit::Seconds),
            Kind::Counter,
            workers.iter().enumerate().map(busy).collect(),
        );
        let drops = now
            .counters
            .drops()
            .map(|(reason, count)| (vec![("reason", reason.name().to_owned())], Value::Count(count)));
        self.add("forward_dropped_packets", "Packets dropped, by reason", None, Kind::Counter, drops.collect());
    }

    fn add_sessions(&mut self, now: &Observation, summary: &Summary<'_>) {
        self.gauge("session_used_sessions", "Sessions in use", now.counters.sum(|worker| worker.sessions));
        let most = now.about.session_capacity as u64;
        self.gauge("session_capacity_sessions", "Capacity of the session tables", most);
        let sessions = summary.sessions();
        self.counter("session_created", "Sessions created", sessions.created);
        self.counter("session_expired", "Sessions that expired", sessions.expired);
        self.counter("session_recycled", "Sessions evicted to make room for new ones", sessions.recycled);
        self.counter("session_refused", "Sessions refused because the table was full", sessions.refused);
        self.counter("session_revoked", "Sessions ended because a newer policy denies them", sessions.revoked);
        self.counter("session_adopted", "Sessions adopted from the previous process", sessions.adopted);
    }

    /// Adds the numbers of known Services and of translations. Adds nothing if Services are off.
    fn add_services(&mut self, now: &Observation, summary: &Summary<'_>) {
        let Some(Counts { listed, services, vips, backends }) = now.state.services else { return };
        let help = "1 if all Services and endpoint slices are listed; until then nothing is translated";
        self.gauge("service_listed", help, listed.into());
        self.gauge("services", "Services, including those that are not translated", services as u64);
        self.gauge("service_vips", "Virtual addresses of Services, each with protocol and port", vips as u64);
        self.gauge("service_backends", "Backends of service ports", backends as u64);
        let translated = now.counters.sum(|worker| worker.translated);
        let help = "Tracked connections to Services, including denied ones, and masqueraded connections";
        self.gauge("service_used_sessions", help, translated);
        let help = "New connections to Services and new masqueraded connections";
        self.counter("service_connections", help, summary.sessions().translated);
        let clients = |count: fn(ClientCounters) -> u64| now.counters.sum(|worker| count(worker.engine.clients()));
        let help = "Clients with a stored backend (sessionAffinity)";
        self.gauge("service_affinity_clients", help, clients(|clients| clients.remembered));
        let help = "Maximum number of clients with a stored backend";
        self.gauge("service_affinity_capacity_clients", help, AFFINITY_CAPACITY as u64);
        let help = "Clients whose stored backend was evicted to make room for another client";
        self.counter("service_affinity_forgotten_clients", help, clients(|clients| clients.forgotten));
    }

    fn add_kernel(&mut self, summary: &Summary<'_>) {
        let cached = summary.cached;
        self.counter("flow_cache_forwarded_packets", "Packets forwarded in the kernel", cached.forwarded());
        self.counter("flow_cache_added_flows", "Flows added to the kernel's flow cache or renewed", cached.added);
        self.counter("flow_cache_refused_flows", "Flows that the kernel refused", cached.refused);
    }
}

/// Returns the packets that policies decided, by labels. Sums all rules of a policy and direction.
fn by_policy(now: &Observation, summary: &Summary<'_>) -> Vec<(Labels, OriginCounters)> {
    let mut sums: BTreeMap<Labels, OriginCounters> = BTreeMap::new();
    for (id, counters) in summary.decided() {
        let sum = sums.entry(labels_of(now.about.origins.get(id))).or_default();
        *sum = plus(*sum, counters);
    }
    bounded(sums)
}
