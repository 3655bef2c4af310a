//! The summary: counts per port, worker, drop reason and policy.

mod json;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use bulkhead_classifier::OriginId;
use bulkhead_cluster::kubernetes::{ServicesHealth, SourceHealth};
use bulkhead_dataplane::forward::ForwardCounters;
use bulkhead_dataplane::io::CachedTraffic;
use bulkhead_dataplane::vswitch::{PortTraffic, VswitchCounters, WorkerCounters};
use bulkhead_dataplane::{OriginCounters, PortId, SessionCounters, Snapshot};

use super::capture::CaptureCounters;
use super::datapath::Cached;
use super::interfaces::InterfaceCounters;
use super::origins::SharedOrigins;
use super::state::StateCounters;
use super::view::is_unused;
use bulkhead_answers::output::Columns;
use bulkhead_answers::services;

/// Maximum number of policies in the text. JSON has all of them.
const MAX_POLICIES: usize = 100;

/// The data of the summary. Counters count since the process started.
pub(super) struct Summary<'a> {
    pub node: &'a str,
    pub snapshot: &'a Snapshot,
    pub counters: &'a VswitchCounters,
    /// Traffic that the flow cache forwarded without the workers.
    pub cached: &'a Cached,
    pub state: StateCounters,
    /// Health of the connection to the API server. `None` if the state comes from files.
    pub source: Option<&'a SourceHealth>,
    pub ports: InterfaceCounters,
    /// Packet counts of `--capture`. `None` without a capture.
    pub capture: Option<CaptureCounters>,
    pub uptime: Duration,
    pub origins: &'a SharedOrigins,
}

impl Summary<'_> {
    /// Returns a port's traffic through the workers and the flow cache. `id` is `None` for a port that has no number.
    pub(super) fn port(&self, id: Option<PortId>, name: &str) -> PortTraffic {
        let traffic = id.map(|id| self.counters.port(id)).unwrap_or_default();
        let cached = self.cached.port(name);
        PortTraffic {
            received: traffic.received + cached.received,
            received_bytes: traffic.received_bytes + cached.received_bytes,
            sent: traffic.sent + cached.sent,
            sent_bytes: traffic.sent_bytes + cached.sent_bytes,
            ..traffic
        }
    }

    /// Returns the name and traffic of each port that is open or had traffic. Omits removed ports, as their number grows with the process's
    /// age.
    pub(super) fn ports(&self) -> impl Iterator<Item = (&str, PortTraffic)> {
        let ports = (0..).map(PortId).zip(self.snapshot.ports()).filter(|(_, port)| !is_unused(&port.name));
        let told = ports.map(|(id, port)| (&*port.name, port.link.is_some(), self.port(Some(id), &port.name)));
        told.filter(|(_, open, traffic)| *open || *traffic != PortTraffic::default())
            .map(|(name, _, traffic)| (name, traffic))
    }

    /// Returns the session counters, summed over all workers.
    pub(super) fn sessions(&self) -> SessionCounters {
        self.counters.workers.iter().map(|worker| worker.engine.sessions()).fold(
            SessionCounters::default(),
            |sum, more| SessionCounters {
                created: sum.created + more.created,
                translated: sum.translated + more.translated,
                expired: sum.expired + more.expired,
                recycled: sum.recycled + more.recycled,
                refused: sum.refused + more.refused,
                revoked: sum.revoked + more.revoked,
                replaced: sum.replaced + more.replaced,
                restored: sum.restored + more.restored,
                removed: sum.removed + more.removed,
                adopted: sum.adopted + more.adopted,
                doubted: sum.doubted + more.doubted,
            },
        )
    }

    /// Returns the counters of neighbour resolution, ICMP errors and refusals, summed over all workers.
    fn forward(&self) -> ForwardCounters {
        self.counters.workers.iter().map(|worker| worker.forward).fold(ForwardCounters::default(), |sum, more| {
            ForwardCounters {
                answered: sum.answered + more.answered,
                requested: sum.requested + more.requested,
                learned: sum.learned + more.learned,
                unsolicited: sum.unsolicited + more.unsolicited,
                messages_lost: sum.messages_lost + more.messages_lost,
                errors_sent: sum.errors_sent + more.errors_sent,
                errors_suppressed: sum.errors_suppressed + more.errors_suppressed,
                refused: sum.refused + more.refused,
                refusals_suppressed: sum.refusals_suppressed + more.refusals_suppressed,
            }
        })
    }

    /// Returns the number of packets that the capture lacks because its writer was too slow.
    fn capture_missed(&self) -> u64 {
        self.counters.sum(|worker| worker.tap_missed)
    }

    /// Returns the numbers of packets that each origin allowed, denied and would have denied, in the workers and the flow cache.
    pub(super) fn decided(&self) -> BTreeMap<OriginId, OriginCounters> {
        let mut sums: BTreeMap<OriginId, OriginCounters> = BTreeMap::new();
        for (id, counters) in self.counters.workers.iter().flat_map(|worker| worker.engine.origins()) {
            let sum = sums.entry(id).or_default();
            *sum = OriginCounters {
                allowed: sum.allowed + counters.allowed,
                denied: sum.denied + counters.denied,
                audited: sum.audited + counters.audited,
            };
        }
        for (&id, sum) in &mut sums {
            sum.allowed += self.cached.allowed_by(id);
        }
        sums
    }

    /// Returns the numbers of packets by the origin's name, the busiest origin first.
    pub(super) fn policies(&self) -> Vec<(String, OriginCounters)> {
        let name = |id| self.origins.get(id).map_or_else(|| "unknown".to_owned(), |origin| origin.to_string());
        let mut named: Vec<_> = self.decided().into_iter().map(|(id, counters)| (name(id), counters)).collect();
        named.sort_by_key(|(_, counters)| std::cmp::Reverse(counters.allowed + counters.denied));
        named
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let counters = self.counters;
        let uptime = humantime::format_duration(Duration::from_secs(self.uptime.as_secs()));
        writeln!(out, "node {}: {uptime}, generation {}", self.node, self.snapshot.generation())?;
        writeln!(out)?;
        let mut table = Columns::new(&["PORT", "RECEIVED", "BYTES", "SENT", "BYTES", "LOST IN KERNEL"]);
        for (name, traffic) in self.ports() {
            let numbers =
                [traffic.received, traffic.received_bytes, traffic.sent, traffic.sent_bytes, lost_below(&traffic)];
            table.row([name.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())));
        }
        table.write(out)?;
        for port in self.snapshot.ports() {
            let CachedTraffic { limited, bypassed, .. } = self.cached.port(&port.name);
            if limited > 0 {
                writeln!(out, "{}: {limited} packets dropped over the slow_path limit", port.name)?;
            }
            if bypassed > 0 {
                writeln!(
                    out,
                    "{}: {bypassed} packets dropped because the node's kernel bypassed the vswitch",
                    port.name
                )?;
            }
        }
        writeln!(out)?;
        let mut table =
            Columns::new(&["WORKER", "RECEIVED", "SENT", "MADE", "ABSORBED", "HELD", "DROPPED", "SESSIONS", "SLEEPS"]);
        for (at, worker) in counters.workers.iter().enumerate() {
            let numbers = [
                worker.received,
                worker.sent,
                worker.originated,
                worker.absorbed,
                worker.held,
                dropped(worker),
                worker.sessions,
                worker.sleeps,
            ];
            table.row([at.to_string()].into_iter().chain(numbers.map(|number| number.to_string())));
        }
        table.write(out)?;
        let total = counters.sum(dropped);
        writeln!(out, "\n{total} packets dropped")?;
        for (reason, count) in counters.drops().filter(|(_, count)| *count > 0) {
            writeln!(out, "  {count} {}: {}", reason.name(), reason.describe())?;
        }
        let policies = self.policies();
        if !policies.is_empty() {
            let mut table = Columns::new(&["ALLOWED", "DENIED", "POLICY"]);
            for (name, counters) in policies.iter().take(MAX_POLICIES) {
                table.row([counters.allowed.to_string(), counters.denied.to_string(), name.clone()]);
            }
            writeln!(out)?;
            table.write(out)?;
            match policies.len().saturating_sub(MAX_POLICIES) {
                0 => writeln!(out)?,
                more => writeln!(out, "and {more} more that decided fewer packets\n")?,
            }
        }
        self.write_rest(out)
    }

    fn write_rest(&self, out: &mut impl Write) -> io::Result<()> {
        let sessions = self.sessions();
        writeln!(
            out,
            "sessions: {} created, {} expired, {} recycled, {} refused, {} revoked, {} restored, {} replaced, {} ended with their \
             port, {} doubtful resets",
            sessions.created,
            sessions.expired,
            sessions.recycled,
            sessions.refused,
            sessions.revoked,
            sessions.restored,
            sessions.replaced,
            sessions.removed,
            sessions.doubted
        )?;
        let forward = self.forward();
        writeln!(
            out,
            "neighbours (ARP, ND): {} answered, {} requested, {} learned, {} unsolicited, {} messages lost",
            forward.answered, forward.requested, forward.learned, forward.unsolicited, forward.messages_lost
        )?;
        let cached = self.cached;
        writeln!(
            out,
            "flow cache: {} packets forwarded in the kernel; flows {} added, {} refused",
            cached.forwarded(),
            cached.added,
            cached.refused
        )?;
        writeln!(out, "ICMP errors: {} sent, {} suppressed", forward.errors_sent, forward.errors_suppressed)?;
        let fragmented = self.counters.sum(|worker| worker.fragmented);
        writeln!(out, "fragmented: {fragmented} packets")?;
        writeln!(out, "refusals: {} sent, {} suppressed", forward.refused, forward.refusals_suppressed)?;
        if let Some(CaptureCounters { written, unwritten }) = self.capture {
            writeln!(out, "capture: {written} written, {unwritten} not written, {} missed", self.capture_missed())?;
        }
        let (state, ports) = (self.state, self.ports);
        let StateCounters {
            applied,
            refused,
            faulty,
            contested_addresses,
            unenforced_kinds,
            refused_tables,
            services,
            ..
        } = state;
        writeln!(
            out,
            "state: {applied} applied, {refused} refused; {faulty} invalid objects, {contested_addresses} contested addresses, \
             {unenforced_kinds} kinds not enforced, {refused_tables} tables too large"
        )?;
        writeln!(out, "services: {}", services::told(services.as_ref()))?;
        if let Some(source) = self.source {
            writeln!(out, "{}", source_line(source))?;
        }
        writeln!(out, "ports: {} opened, {} removed, {} refused", ports.opened, ports.removed, ports.refused)?;
        match self.counters.lost() {
            0 => Ok(()),
            lost => writeln!(out, "{lost} packets are not accounted for"),
        }
    }
}

/// Formats the line about the connection to the API server.
fn source_line(source: &SourceHealth) -> String {
    let (how, since) =
        (if source.is_connected { "connected" } else { "not connected" }, source.since.elapsed().as_secs());
    let age = source.age().map_or_else(|| "no state".to_owned(), |age| format!("the state is {} s old", age.as_secs()));
    let error = source.last_error.as_deref().map(|error| format!("; {}", error.lines().next().unwrap_or_default()));
    let services = source.services.as_ref().map(services_text).unwrap_or_default();
    format!(
        "kubernetes: {how} for {since} s, {age}, {} lists, {} failures{}{services}",
        source.lists,
        source.failures,
        error.unwrap_or_default()
    )
}

/// Formats the end of that line, about Services.
fn services_text(services: &ServicesHealth) -> String {
    let how = if services.is_connected { "connected" } else { "not connected" };
    let age = services.age().map_or_else(|| "never listed".to_owned(), |age| format!("{} s old", age.as_secs()));
    let error = services.last_error.as_deref().map(|error| format!(": {}", error.lines().next().unwrap_or_default()));
    format!("; Services: {how}, {age}{}", error.unwrap_or_default())
}

/// Returns the number of packets that the kernel lost before the vswitch received them.
fn lost_below(traffic: &PortTraffic) -> u64 {
    let statistics = traffic.statistics;
    statistics.receive_ring_full + statistics.fill_ring_empty + statistics.receive_dropped
}

/// Returns the number of packets that a worker dropped, for all reasons.
pub(super) fn dropped(worker: &WorkerCounters) -> u64 {
    worker.engine.dropped_in_all() + worker.other_drops.iter().sum::<u64>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use bulkhead_dataplane::{DropReason, Link, PortConfig, PortKind, Routes};

    use bulkhead_cluster::kubernetes::Kind;

    use super::*;

    #[test]
    fn the_summary_tells_ports_workers_reasons_and_changes_in_both_forms() {
        let link = Some(Link { mac: [2, 0, 0, 0, 0, 1], mtu: 1500 });
        let port = |name: &str, kind| PortConfig { link, ..PortConfig::new(name, kind) };
        let ports = vec![port("x/a", PortKind::Pod), port("uplink", PortKind::Uplink)];
        let snapshot = Snapshot::new(7, ports, Vec::new(), Routes::default()).unwrap();
        let traffic = PortTraffic { received: 10, received_bytes: 600, ..PortTraffic::default() };
        let mut other_drops = vec![0; DropReason::COUNT];
        other_drops[DropReason::PortDown.index()] = 10;
        let forward =
            ForwardCounters { answered: 3, requested: 1, errors_suppressed: 5, refused: 2, ..Default::default() };
        let worker = WorkerCounters {
            received: 10,
            fragmented: 3,
            other_drops,
            forward,
            ports: vec![(PortId(0), traffic)],
            ..Default::default()
        };
        let other = WorkerCounters { forward, ..Default::default() };
        let forwarded = CachedTraffic { received: 5, received_bytes: 300, ..CachedTraffic::default() };
        let cached = Cached { ports: [("x/a".into(), forwarded)].into(), added: 2, ..Cached::default() };
        let summary = Summary {
            node: "node-1",
            snapshot: &snapshot,
            counters: &VswitchCounters { workers: vec![worker, other], ..VswitchCounters::default() },
            cached: &cached,
            state: StateCounters {
                applied: 2,
                refused: 1,
                faulty: 3,
                contested_addresses: 4,
                unenforced_kinds: 5,
                refused_tables: 6,
                services: Some(services::Counts { listed: false, services: 7, vips: 8, backends: 9 }),
                ..StateCounters::default()
            },
            source: Some(&SourceHealth {
                is_connected: false,
                since: std::time::Instant::now(),
                is_synced: true,
                last_contact: Some(std::time::Instant::now()),
                last_error: Some("away".to_owned()),
                services: Some(ServicesHealth {
                    is_connected: false,
                    is_listed: false,
                    last_contact: None,
                    last_error: Some("forbidden\n  help: a rule".to_owned()),
                }),
                objects: vec![(Kind::Pod, Some(3)), (Kind::AdminNetworkPolicy, None)],
                lists: 4,
                failures: 6,
            }),
            ports: InterfaceCounters { opened: 2, ..InterfaceCounters::default() },
            capture: Some(CaptureCounters { written: 7, unwritten: 2 }),
            uptime: Duration::from_secs(61),
            origins: &SharedOrigins::default(),
        };
        let mut text = Vec::new();
        summary.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            "node node-1: 1m 1s, generation 7",
            "x/a",
            "uplink",
            "10 port_down",
            "state: 2 applied, 1 refused; 3 invalid objects, 4 contested addresses, 5 kinds not enforced, 6 tables too large",
            "kubernetes: not connected for 0 s, the state is 0 s old, 4 lists, 6 failures; away; Services: not connected, never listed: forbidden",
            "services: 7 Services, 8 VIPs and 9 backends; not all are listed",
            "6 answered, 2 requested",
            "ICMP errors: 0 sent, 10 suppressed",
            "refusals: 4 sent, 0 suppressed",
            "fragmented: 3 packets",
            "flow cache: 5 packets forwarded in the kernel; flows 2 added, 0 refused",
            "capture: 7 written, 2 not written, 0 missed",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("not accounted for"), "{text}");
        let json = summary.json();
        assert_eq!((&json["ports"]["x/a"]["received"], &json["dropped"]["port_down"]), (&15.into(), &10.into()));
        assert_eq!(
            (&json["ports"]["x/a"]["received_bytes"], &json["flow_cache"]["forwarded"]),
            (&900.into(), &5.into())
        );
        assert_eq!((&json["neighbours"]["answered"], &json["icmp_errors"]["suppressed"]), (&6.into(), &10.into()));
        assert_eq!(json["capture"]["unwritten"], 2);
        let services = json!({"connected": false, "listed": false, "age_seconds": null, "last_error": "forbidden\n  help: a rule"});
        assert_eq!(json["source"]["services"], services);
        assert_eq!(json["source"]["objects"], json!({"Pod": 3, "AdminNetworkPolicy": null}));
        assert_eq!((&json["refusals"]["sent"], &json["fragmented"]), (&4.into(), &3.into()));
        assert_eq!((&json["workers"][0]["dropped"], &json["unaccounted"]), (&10.into(), &0.into()));
    }
}
