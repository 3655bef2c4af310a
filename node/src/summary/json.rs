//! The summary as JSON, for programs.

use bulkhead_cluster::kubernetes::SourceHealth;
use bulkhead_dataplane::OriginCounters;
use bulkhead_dataplane::io::CachedTraffic;
use bulkhead_dataplane::vswitch::{PortTraffic, WorkerCounters};
use serde_json::{Map, Value, json};

use super::{Summary, dropped};
use crate::capture::CaptureCounters;

impl Summary<'_> {
    pub(crate) fn json(&self) -> Value {
        let ports: Map<String, Value> = self
            .ports()
            .map(|(name, traffic)| (name.to_owned(), port_json(&traffic, &self.cached.port(name))))
            .collect();
        let drops = self.counters.drops().filter(|(_, count)| *count > 0);
        let drops: Map<String, Value> = drops.map(|(reason, count)| (reason.name().to_owned(), count.into())).collect();
        let (sessions, forward) = (self.sessions(), self.forward());
        json!({
            "node": self.node,
            "uptime_seconds": self.uptime.as_secs(),
            "generation": self.snapshot.generation(),
            "ports": ports,
            "workers": self.counters.workers.iter().map(worker_json).collect::<Vec<_>>(),
            "dropped": drops,
            "policies": self.policies().into_iter().map(policy_json).collect::<Vec<_>>(),
            "sessions": {
                "in_use": self.counters.sum(|worker| worker.sessions),
                "created": sessions.created,
                "adopted": sessions.adopted,
                "expired": sessions.expired,
                "recycled": sessions.recycled,
                "refused": sessions.refused,
                "revoked": sessions.revoked,
                "restored": sessions.restored,
                "replaced": sessions.replaced,
                "removed": sessions.removed,
                "doubted": sessions.doubted,
            },
            "flow_cache": {
                "forwarded": self.cached.forwarded(),
                "added": self.cached.added,
                "refused": self.cached.refused,
            },
            "neighbours": {
                "answered": forward.answered,
                "requested": forward.requested,
                "learned": forward.learned,
                "unsolicited": forward.unsolicited,
                "messages_lost": forward.messages_lost,
            },
            "icmp_errors": { "sent": forward.errors_sent, "suppressed": forward.errors_suppressed },
            "fragmented": self.counters.sum(|worker| worker.fragmented),
            "refusals": { "sent": forward.refused, "suppressed": forward.refusals_suppressed },
            "capture": self.capture.map(|CaptureCounters { written, unwritten }| {
                json!({ "written": written, "unwritten": unwritten, "missed": self.capture_missed() })
            }),
            "state": self.state,
            "source": self.source.map(source_json),
            "port_changes": self.ports,
            "unaccounted": self.counters.lost(),
        })
    }
}

fn source_json(source: &SourceHealth) -> Value {
    let objects = source.objects.iter().map(|(kind, count)| (kind.name().to_owned(), json!(count)));
    json!({
        "connected": source.is_connected,
        "since_seconds": source.since.elapsed().as_secs(),
        "synced": source.is_synced,
        "age_seconds": source.age().map(|age| age.as_secs_f64()),
        "last_error": source.last_error,
        "services": source.services.as_ref().map(|services| json!({
            "connected": services.is_connected,
            "listed": services.is_listed,
            "age_seconds": services.age().map(|age| age.as_secs_f64()),
            "last_error": services.last_error,
        })),
        "objects": objects.collect::<Map<String, Value>>(),
        "lists": source.lists,
        "failures": source.failures,
    })
}

fn port_json(traffic: &PortTraffic, cached: &CachedTraffic) -> Value {
    json!({
        "received": traffic.received,
        "received_bytes": traffic.received_bytes,
        "sent": traffic.sent,
        "sent_bytes": traffic.sent_bytes,
        "receive_ring_full": traffic.statistics.receive_ring_full,
        "fill_ring_empty": traffic.statistics.fill_ring_empty,
        "receive_dropped": traffic.statistics.receive_dropped,
        "invalid_descriptors": traffic.statistics.invalid_descriptors,
        "limited": cached.limited,
        "bypassed": cached.bypassed,
    })
}

fn policy_json((name, counters): (String, OriginCounters)) -> Value {
    json!({ "origin": name, "allowed": counters.allowed, "denied": counters.denied, "audited": counters.audited })
}

fn worker_json(worker: &WorkerCounters) -> Value {
    json!({
        "received": worker.received,
        "sent": worker.sent,
        "originated": worker.originated,
        "absorbed": worker.absorbed,
        "held": worker.held,
        "dropped": dropped(worker),
        "sessions": worker.sessions,
        "busy_rounds": worker.busy_rounds,
        "idle_rounds": worker.idle_rounds,
        "sleeps": worker.sleeps,
        "restarts": worker.restarts,
        "capture_missed": worker.tap_missed,
    })
}
