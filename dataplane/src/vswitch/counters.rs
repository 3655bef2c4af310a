//! Counters of the running vswitch.

use crate::forward::ForwardCounters;
use crate::io::PortStatistics;
use crate::{Counters, DropReason, NameCounters, PortId, PortSessions};

/// Traffic of one port, in packets and in bytes of frames without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// Received packets.
    pub received: u64,
    /// Bytes of received packets.
    pub received_bytes: u64,
    /// Packets handed to the port for sending.
    pub sent: u64,
    /// Bytes of sent packets.
    pub sent_bytes: u64,
    /// Packets lost below the port.
    pub statistics: PortStatistics,
}

/// Counters of one worker since its start.
///
/// While no packet is between two workers, `received + originated`, summed over all workers, equals `sent + absorbed + held` plus all
/// drops. See [`VswitchCounters::lost`].
#[derive(Clone, Debug, Default)]
pub struct WorkerCounters {
    /// The engine's counters: verdicts, sessions, policies.
    pub engine: Counters,
    /// Whether the worker answered the request for its counters. If not, all other counters are zero.
    pub has_answered: bool,
    /// Packets received from the worker's ports.
    pub received: u64,
    /// Packets handed to the worker's ports.
    pub sent: u64,
    /// Packets created by the vswitch: ARP and neighbour discovery requests and answers, ICMP errors, TCP resets, and the additional
    /// fragments of fragmented packets.
    pub originated: u64,
    /// Packets that exceeded the MTU and were fragmented.
    pub fragmented: u64,
    /// ARP and neighbour discovery messages addressed to the vswitch, which answered them or learned from them.
    pub absorbed: u64,
    /// Current number of sessions.
    pub sessions: u64,
    /// Current number of translated connections, including those that policy denied.
    pub translated: u64,
    /// Counts of DNS messages of pods with rules that name domains.
    pub names: NameCounters,
    /// Current number of packets waiting for their next hop's MAC address.
    pub held: u64,
    /// Packets dropped outside of the engine, before or after it judged them, by [`DropReason::index`].
    pub other_drops: Vec<u64>,
    /// Counters of the forwarder.
    pub forward: ForwardCounters,
    /// Traffic of the queues that this worker owns, by port.
    pub ports: Vec<(PortId, PortTraffic)>,
    /// Rounds without work.
    pub idle_rounds: u64,
    /// Rounds with work.
    pub busy_rounds: u64,
    /// Duration of rounds with work, in nanoseconds, including system calls. A [`SteppedWorker`](super::SteppedWorker) counts by its
    /// caller's time.
    pub busy_ns: u64,
    /// How often the worker slept until packets came.
    pub sleeps: u64,
    /// How often the worker panicked and continued.
    pub restarts: u64,
    /// Packets that the tap missed because its reader was too slow.
    pub tap_missed: u64,
}

/// Counters of the whole vswitch.
#[derive(Clone, Debug, Default)]
pub struct VswitchCounters {
    /// One per worker, in the order of [`VswitchConfig::cores`](super::VswitchConfig::cores).
    pub workers: Vec<WorkerCounters>,
    /// Current sessions of each port that has some, by port id.
    pub port_sessions: Vec<(PortId, PortSessions)>,
}

impl WorkerCounters {
    pub(super) fn new() -> Self {
        Self { has_answered: true, other_drops: vec![0; DropReason::COUNT], ..Self::default() }
    }

    pub(super) fn drop_packet(&mut self, reason: DropReason) {
        self.other_drops[reason.index()] += 1;
    }

    /// Packets of this worker that were dropped for this reason, inside and outside of the engine.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.engine.dropped(reason) + self.other_drops.get(reason.index()).copied().unwrap_or_default()
    }
}

impl VswitchCounters {
    /// Packets dropped for this reason by all workers.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.workers.iter().map(|worker| worker.dropped(reason)).sum()
    }

    /// Packets dropped by all workers, for every reason.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)))
    }

    /// Returns the sum of the values that `counter` returns for each worker.
    pub fn sum(&self, counter: impl Fn(&WorkerCounters) -> u64) -> u64 {
        self.workers.iter().map(counter).sum()
    }

    /// Returns a port's traffic, over all its queues.
    pub fn port(&self, id: PortId) -> PortTraffic {
        let queues = self.workers.iter().flat_map(|worker| &worker.ports).filter(|(port, _)| *port == id);
        queues.fold(PortTraffic::default(), |sum, (_, queue)| sum.plus(queue))
    }

    /// Packets received on a port that the engine dropped, over all workers.
    pub fn port_dropped(&self, id: PortId) -> u64 {
        self.workers.iter().map(|worker| worker.engine.port(id).dropped).sum()
    }

    /// Current sessions of a port.
    pub fn sessions_of(&self, id: PortId) -> PortSessions {
        let at = self.port_sessions.binary_search_by_key(&id, |(port, _)| *port);
        at.map_or_else(|_| PortSessions::default(), |at| self.port_sessions[at].1)
    }

    /// Returns the number of packets that no counter accounts for. 0 unless packets are between two workers at the moment.
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
