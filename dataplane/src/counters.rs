//! What a worker counts.

use crate::{DropReason, Outcome, PortId, Verdict};

/// What a port received and sent, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that came in on the port, forwarded or not.
    pub received: u64,
    /// Packets that were forwarded out through the port.
    pub sent: u64,
}

/// All counters of one worker, since it was made.
///
/// [`Counters::received`] is always [`Counters::forwarded`] plus the sum of [`Counters::drops`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    received: u64,
    forwarded: u64,
    drops: [u64; DropReason::COUNT],
    ports: Vec<PortCounters>,
    pub(crate) sessions: SessionCounters,
}

/// What happened to the entries of the session table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Sessions that were created.
    pub created: u64,
    /// Sessions that ended because they were idle for too long.
    pub expired: u64,
    /// Sessions that ended early to make room for new ones.
    pub recycled: u64,
    /// Sessions that could not be created because the table was full.
    pub refused: u64,
    /// Sessions that ended because a newer policy does not allow them.
    pub revoked: u64,
    /// Sessions that a new session between the same endpoints took the place of.
    pub replaced: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            received: 0,
            forwarded: 0,
            drops: [0; DropReason::COUNT],
            ports: Vec::new(),
            sessions: SessionCounters::default(),
        }
    }
}

impl Counters {
    /// Packets that were handed to the worker.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Packets that were forwarded.
    pub const fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Packets that were dropped for this reason.
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Packets dropped per reason, for every reason.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().zip(self.drops).map(|(&reason, count)| (reason, count))
    }

    /// Packets that were dropped for any reason.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// What the port received and sent. Zeros for a port that the worker never saw.
    pub fn port(&self, port: PortId) -> PortCounters {
        self.ports.get(port.index()).copied().unwrap_or_default()
    }

    /// What happened to the entries of the session table.
    pub const fn sessions(&self) -> SessionCounters {
        self.sessions
    }

    /// Makes room for the ports of a snapshot. Allocates only when there are more of them than ever before.
    pub(crate) fn know_ports(&mut self, ports: usize) {
        if self.ports.len() < ports {
            self.ports.resize(ports, PortCounters::default());
        }
    }

    /// Counts one packet by what became of it.
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        self.received += 1;
        if let Some(port) = self.ports.get_mut(outcome.in_port.index()) {
            port.received += 1;
        }
        match outcome.verdict {
            Verdict::Forward(out) => {
                self.forwarded += 1;
                if let Some(port) = self.ports.get_mut(out.index()) {
                    port.sent += 1;
                }
            }
            Verdict::Drop(reason) => self.drops[reason.index()] += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_counted_once_as_forwarded_or_as_one_drop() {
        let mut counters = Counters::default();
        counters.know_ports(2);
        counters.count(&Outcome { verdict: Verdict::Forward(PortId(1)), ..Outcome::UNJUDGED });
        counters.count(&Outcome {
            verdict: Verdict::Drop(DropReason::NoRoute),
            in_port: PortId(9),
            ..Outcome::UNJUDGED
        });
        assert_eq!((counters.received(), counters.forwarded(), counters.dropped_in_all()), (2, 1, 1));
        assert_eq!(counters.dropped(DropReason::NoRoute), 1);
        assert_eq!(counters.port(PortId(0)), PortCounters { received: 1, sent: 0 });
        assert_eq!(counters.port(PortId(1)), PortCounters { received: 0, sent: 1 });
        assert_eq!(counters.port(PortId(9)), PortCounters::default());
    }
}
