//! What the running vswitch counts.

use crate::forward::ForwardCounters;
use crate::io::PortStatistics;
use crate::{Counters, DropReason, PortId, PortSessions};

/// What went through one port, in packets and bytes of frames without their check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// Packets that came in.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that were handed to the port for sending.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// What was lost below the port.
    pub statistics: PortStatistics,
}

/// What one worker counted since it was started.
///
/// Over all workers, while no packet is between two of them: `received + originated` is
/// `sent + absorbed + held` plus all drops. See [`VswitchCounters::lost`].
#[derive(Clone, Debug, Default)]
pub struct WorkerCounters {
    /// What the engine counted: verdicts, sessions, policies.
    pub engine: Counters,
    /// Whether the worker has told this. All else is zero for one that does not answer, or that died.
    pub has_answered: bool,
    /// Packets taken from the worker's ports.
    pub received: u64,
    /// Packets handed to the worker's ports.
    pub sent: u64,
    /// Packets that the vswitch made itself: answers to ARP and neighbour discovery, its own questions, ICMP errors,
    /// refusals, and the fragments of a packet but one.
    pub originated: u64,
    /// Packets that were too big for their way out and were cut into fragments.
    pub fragmented: u64,
    /// Packets that were for the vswitch itself: ARP and neighbour discovery that it answered or learned from.
    pub absorbed: u64,
    /// Sessions in use now.
    pub sessions: u64,
    /// Connections to Services among what is remembered now, those that policy denies included.
    pub translated: u64,
    /// Packets that wait for their next hop's MAC address now.
    pub held: u64,
    /// Packets that were dropped outside of the engine, before it saw them or after it let them pass; by
    /// [`DropReason::index`].
    pub other_drops: Vec<u64>,
    /// What the forwarder did besides forwarding.
    pub forward: ForwardCounters,
    /// What went through each port's queues that are this worker's.
    pub ports: Vec<(PortId, PortTraffic)>,
    /// Rounds of the loop in which nothing was to do.
    pub idle_rounds: u64,
    /// Rounds in which something was.
    pub busy_rounds: u64,
    /// Nanoseconds that rounds with something to do have taken, with the kernel's calls in them. Of a worker that is told the time, by
    /// that time.
    pub busy_ns: u64,
    /// How often the worker slept until something came.
    pub sleeps: u64,
    /// How often the worker failed in the middle of something and went on.
    pub restarts: u64,
    /// Packets that the tap should have had and missed because its reader was behind.
    pub tap_missed: u64,
}

/// What the whole vswitch counted.
#[derive(Clone, Debug, Default)]
pub struct VswitchCounters {
    /// One per worker, in the order of the configuration.
    pub workers: Vec<WorkerCounters>,
    /// The sessions of each port that has some, now, by their ids.
    pub port_sessions: Vec<(PortId, PortSessions)>,
}

impl WorkerCounters {
    pub(super) fn new() -> Self {
        Self { has_answered: true, other_drops: vec![0; DropReason::COUNT], ..Self::default() }
    }

    pub(super) fn drop_packet(&mut self, reason: DropReason) {
        self.other_drops[reason.index()] += 1;
    }

    /// Packets dropped for this reason, by the engine and around it.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.engine.dropped(reason) + self.other_drops.get(reason.index()).copied().unwrap_or_default()
    }
}

impl VswitchCounters {
    /// Packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.workers.iter().map(|worker| worker.dropped(reason)).sum()
    }

    /// Packets dropped per reason, for every reason.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)))
    }

    /// The sum of a counter over the workers.
    pub fn sum(&self, counter: impl Fn(&WorkerCounters) -> u64) -> u64 {
        self.workers.iter().map(counter).sum()
    }

    /// What went through a port, over all its queues.
    pub fn port(&self, id: PortId) -> PortTraffic {
        let queues = self.workers.iter().flat_map(|worker| &worker.ports).filter(|(port, _)| *port == id);
        queues.fold(PortTraffic::default(), |sum, (_, queue)| sum.plus(queue))
    }

    /// Packets that came in at a port and were dropped when they were judged.
    pub fn port_dropped(&self, id: PortId) -> u64 {
        self.workers.iter().map(|worker| worker.engine.port(id).dropped).sum()
    }

    /// The sessions of a port.
    pub fn sessions_of(&self, id: PortId) -> PortSessions {
        let at = self.port_sessions.binary_search_by_key(&id, |(port, _)| *port);
        at.map_or_else(|_| PortSessions::default(), |at| self.port_sessions[at].1)
    }

    /// Packets that no counter accounts for: 0, unless packets are between two workers right now.
    pub fn lost(&self) -> i64 {
        let total = |counter: fn(&WorkerCounters) -> u64| i128::from(self.sum(counter));
        let dropped: i128 = self.drops().map(|(_, count)| i128::from(count)).sum();
        let came = total(|worker| worker.received) + total(|worker| worker.originated);
        let went = total(|worker| worker.sent) + total(|worker| worker.absorbed) + total(|worker| worker.held);
        i64::try_from(came - went - dropped).unwrap_or(i64::MAX)
    }
}

impl PortTraffic {
    pub(super) fn plus(self, other: &Self) -> Self {
        let (a, b) = (self.statistics, other.statistics);
        Self {
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            statistics: PortStatistics {
                receive_ring_full: a.receive_ring_full + b.receive_ring_full,
                fill_ring_empty: a.fill_ring_empty + b.fill_ring_empty,
                receive_dropped: a.receive_dropped + b.receive_dropped,
                invalid_descriptors: a.invalid_descriptors + b.invalid_descriptors,
            },
        }
    }
}
