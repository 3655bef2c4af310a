//! What is shown: rates from samples.

#[cfg(test)]
mod tests;
mod tracker;

use std::cmp::Ordering;

use serde::Serialize;

use crate::admin::Condition;
pub(super) use tracker::Tracker;

/// What the vswitch did in an interval, and what it has counted until its end. Rates are per second; null where there is none to tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Picture {
    /// The node whose vswitch it is.
    pub(super) node: String,
    /// The word of `bulkhead status`: `ready`, `starting`, ...
    pub(super) condition: Condition,
    /// Since when it runs.
    pub(super) uptime_seconds: u64,
    /// The snapshot in force.
    pub(super) generation: u64,
    /// What judges packets.
    pub(super) judged: Option<String>,
    /// Whether the node's kernel judges them: then there are no workers, no sessions and no flow cache to tell of.
    pub(super) in_kernel: bool,
    /// How long the interval was; null for the first picture of a process.
    pub(super) seconds: Option<f64>,
    /// Why there are no rates, where they should be.
    pub(super) note: Option<&'static str>,
    /// All packets and bytes, by workers and by the kernel's flow cache.
    pub(super) total: Traffic,
    /// The session table.
    pub(super) sessions: SessionRates,
    /// Who forwards.
    pub(super) path: PathRates,
    /// The threads that forward.
    pub(super) workers: Vec<WorkerRates>,
    /// Drops by reason, those of most packets a second first.
    pub(super) dropped: Vec<DropRates>,
    /// What policy has denied, by who denies it, in the same order.
    pub(super) denied: Vec<DenyRates>,
    /// The ports, in the vswitch's order.
    pub(super) ports: Vec<PortRates>,
}

/// What went through a port, or through all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Traffic {
    /// Packets that came in.
    pub(super) packets_in: Option<f64>,
    /// Packets that went out.
    pub(super) packets_out: Option<f64>,
    /// Bits that came in.
    pub(super) bits_in: Option<f64>,
    /// Bits that went out.
    pub(super) bits_out: Option<f64>,
    /// Packets that were dropped. Of a port those that came in there: when they were judged, as more than `slow_path` allows, or as they had
    /// bypassed the vswitch.
    pub(super) dropped: Option<f64>,
    /// The same since the start.
    pub(super) dropped_total: u64,
}

impl Traffic {
    /// Packets both ways.
    pub(super) fn packets(&self) -> f64 {
        both(self.packets_in, self.packets_out)
    }

    /// Bits both ways.
    pub(super) fn bits(&self) -> f64 {
        both(self.bits_in, self.bits_out)
    }

    /// What was dropped.
    pub(super) const fn drops(&self) -> Counted {
        Counted { packets: self.dropped, packets_total: self.dropped_total }
    }
}

fn both(one: Option<f64>, other: Option<f64>) -> f64 {
    one.unwrap_or(0.0) + other.unwrap_or(0.0)
}

/// Packets that had the same fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Counted {
    /// How many.
    pub(super) packets: Option<f64>,
    /// The same since the start.
    pub(super) packets_total: u64,
}

impl Counted {
    /// The most a second first, then the most of all.
    pub(super) fn most_first(&self, other: &Self) -> Ordering {
        let rate = |counted: &Self| counted.packets.unwrap_or(0.0);
        rate(other).total_cmp(&rate(self)).then(other.packets_total.cmp(&self.packets_total))
    }
}

/// The session table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct SessionRates {
    /// In use.
    pub(super) used: u64,
    /// The most that there can be.
    pub(super) capacity: u64,
    /// New ones.
    pub(super) created: Option<f64>,
    /// Not created, as there was no room.
    pub(super) refused: Option<f64>,
}

/// Who forwards: the workers, which see the first packets of everything, or the kernel by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct PathRates {
    /// Packets that came to the workers.
    pub(super) slow: Option<f64>,
    /// Packets that the kernel's flow cache has forwarded.
    pub(super) cached: Option<f64>,
    /// Which part of all that is, 0 to 1; null while nothing comes.
    pub(super) cached_share: Option<f64>,
}

/// A thread that forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct WorkerRates {
    /// Packets that it took in.
    pub(super) received: Option<f64>,
    /// Packets that it judged, those that others took in for it included.
    pub(super) judged: Option<f64>,
    /// Packets that it dropped.
    pub(super) dropped: Option<f64>,
    /// Nanoseconds of work for each packet that it took in or judged, whichever are more; null while there are none.
    pub(super) ns_per_packet: Option<f64>,
    /// Which part of the interval it had something to do, 0 to 1.
    pub(super) busy: Option<f64>,
    /// Sessions that are its own.
    pub(super) sessions: u64,
    /// How often it has failed and gone on.
    pub(super) restarts: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct DropRates {
    /// Its name, as in `bulkhead status`.
    pub(super) reason: String,
    /// What it means.
    pub(super) means: String,
    /// How many.
    #[serde(flatten)]
    pub(super) counted: Counted,
}

/// Packets that a policy has denied, or connections that it would deny if it were enforced.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct DenyRates {
    /// Who denies, as in `bulkhead policies` and `bulkhead monitor`.
    pub(super) origin: String,
    /// How many.
    #[serde(flatten)]
    pub(super) counted: Counted,
    /// Whether it is audited: nothing of that was denied.
    pub(super) not_enforced: bool,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct PortRates {
    /// Its name.
    pub(super) name: String,
    /// `open`, `closed`, `absent` or `unprotected`.
    pub(super) state: String,
    /// What went through it.
    #[serde(flatten)]
    pub(super) traffic: Traffic,
    /// Sessions that have it at one of their ends.
    pub(super) sessions: Option<u64>,
}
