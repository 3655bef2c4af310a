//! Rates computed from samples.

#[cfg(test)]
mod tests;
mod tracker;

use std::cmp::Ordering;

use serde::Serialize;

use crate::admin::Condition;
pub(super) use tracker::Tracker;

/// The vswitch's activity in an interval, and its totals. Rates are per second, `None` (null in JSON) if unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Picture {
    pub(super) node: String,
    /// State as in `bulkhead status`: `ready`, `starting`, ...
    pub(super) condition: Condition,
    /// Seconds since the start of the vswitch's process.
    pub(super) uptime_seconds: u64,
    /// Generation of the snapshot in force.
    pub(super) generation: u64,
    /// The engine that judges packets, as `bulkhead status` names it. `None` if the program does not report it.
    pub(super) judged: Option<String>,
    /// Whether the node's kernel judges packets. There are then no workers, sessions and flow cache.
    pub(super) in_kernel: bool,
    /// Length of the interval in seconds. `None` for the first picture of a process.
    pub(super) seconds: Option<f64>,
    /// The reason why this picture has no rates. `None` if it has rates.
    pub(super) note: Option<&'static str>,
    /// All packets and bytes, of workers and of the kernel's flow cache.
    pub(super) total: Traffic,
    /// Use of the session table.
    pub(super) sessions: SessionRates,
    /// Packets by workers and by the flow cache.
    pub(super) path: PathRates,
    /// Rates of each worker thread.
    pub(super) workers: Vec<WorkerRates>,
    /// Drops by reason, highest rate first.
    pub(super) dropped: Vec<DropRates>,
    /// Denials by policy, highest rate first.
    pub(super) denied: Vec<DenyRates>,
    /// Ports, in the vswitch's order.
    pub(super) ports: Vec<PortRates>,
}

/// Traffic of a port, or of all ports, per second. A rate is `None` if the interval is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Traffic {
    pub(super) packets_in: Option<f64>,
    pub(super) packets_out: Option<f64>,
    pub(super) bits_in: Option<f64>,
    pub(super) bits_out: Option<f64>,
    /// Packets dropped. For a port, those it received: dropped when judged, by `slow_path` limits, or because they bypassed the vswitch.
    pub(super) dropped: Option<f64>,
    /// Packets dropped since the start.
    pub(super) dropped_total: u64,
}

impl Traffic {
    /// Returns received plus sent packets per second. 0 if unknown.
    pub(super) fn packets(&self) -> f64 {
        both(self.packets_in, self.packets_out)
    }

    /// Returns received plus sent bits per second. 0 if unknown.
    pub(super) fn bits(&self) -> f64 {
        both(self.bits_in, self.bits_out)
    }

    pub(super) const fn drops(&self) -> Counted {
        Counted { packets: self.dropped, packets_total: self.dropped_total }
    }
}

fn both(one: Option<f64>, other: Option<f64>) -> f64 {
    one.unwrap_or(0.0) + other.unwrap_or(0.0)
}

/// A rate and its total. The rate is `None` if the interval is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Counted {
    /// Packets per second.
    pub(super) packets: Option<f64>,
    /// Packets since the start.
    pub(super) packets_total: u64,
}

impl Counted {
    /// Compares by rate, then by total, in descending order.
    pub(super) fn most_first(&self, other: &Self) -> Ordering {
        let rate = |counted: &Self| counted.packets.unwrap_or(0.0);
        rate(other).total_cmp(&rate(self)).then(other.packets_total.cmp(&self.packets_total))
    }
}

/// Use of the session table. Rates are per second, `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct SessionRates {
    pub(super) used: u64,
    /// Maximum number of sessions.
    pub(super) capacity: u64,
    pub(super) created: Option<f64>,
    /// Sessions refused because the table was full.
    pub(super) refused: Option<f64>,
}

/// Packets per second: by workers, which see the first packets of each flow, and by the kernel. A rate is `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct PathRates {
    /// Packets that workers received (the slow path).
    pub(super) slow: Option<f64>,
    /// Packets forwarded by the kernel's flow cache.
    pub(super) cached: Option<f64>,
    /// Share of packets that the flow cache forwarded, 0 to 1. `None` without packets.
    pub(super) cached_share: Option<f64>,
}

/// Rates of a worker thread, per second. A rate is `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct WorkerRates {
    /// Packets that the worker received from its queues.
    pub(super) received: Option<f64>,
    /// Packets that this worker judged, whichever worker received them.
    pub(super) judged: Option<f64>,
    pub(super) dropped: Option<f64>,
    /// Working time in nanoseconds per received or judged packet, whichever are more. `None` without packets.
    pub(super) ns_per_packet: Option<f64>,
    /// Share of the interval that the worker spent working, 0 to 1.
    pub(super) busy: Option<f64>,
    /// Sessions owned by the worker.
    pub(super) sessions: u64,
    /// Number of restarts after a failure.
    pub(super) restarts: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct DropRates {
    /// Name of the reason, as in `bulkhead status`.
    pub(super) reason: String,
    /// Meaning of the reason.
    pub(super) means: String,
    #[serde(flatten)]
    pub(super) counted: Counted,
}

/// Packets that a policy denied, or connections that an audited policy would deny.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct DenyRates {
    /// The policy, as in `bulkhead policies` and `bulkhead monitor`.
    pub(super) origin: String,
    #[serde(flatten)]
    pub(super) counted: Counted,
    /// Whether the policy is audited, so that nothing was denied.
    pub(super) not_enforced: bool,
}

/// Traffic and sessions of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct PortRates {
    pub(super) name: String,
    /// State of the port: `open`, `closed`, `absent` or `unprotected`.
    pub(super) state: String,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
    /// Sessions with this port at either end. `None` if not counted.
    pub(super) sessions: Option<u64>,
}
