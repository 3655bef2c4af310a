//! A worker's counters.

use bulkhead_classifier::OriginId;

use crate::{DropReason, PortId, Verdict};

/// Initial size of the list of origins. The list grows for higher ids, which delays a packet only a few times in a worker's life.
const ORIGINS: usize = 1024;

/// Higher ids are not counted. The control plane numbers origins from 0, so such ids do not occur.
const MAX_ORIGINS: usize = 1 << 22;

/// Packet counters of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets received on the port, forwarded or not.
    pub received: u64,
    /// Packets forwarded out of the port.
    pub sent: u64,
    /// Packets received on the port that the engine dropped.
    pub dropped: u64,
}

/// Packets by the origin of the rule that decided about them. A packet of a session counts for the rule that allowed the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginCounters {
    /// Packets that were forwarded because a rule of this origin allows them.
    pub allowed: u64,
    /// Packets dropped as [`DropReason::PolicyDenied`].
    pub denied: u64,
    /// Connections that were allowed, but that a rule of this origin would deny if all policies were enforced. Each connection counts once.
    pub audited: u64,
}

/// All counters of one worker since its creation.
///
/// [`Counters::received`] always equals [`Counters::forwarded`] plus the sum of [`Counters::drops`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    received: u64,
    forwarded: u64,
    drops: [u64; DropReason::COUNT],
    ports: Vec<PortCounters>,
    origins: Vec<OriginCounters>,
    pub(crate) sessions: SessionCounters,
    pub(crate) clients: ClientCounters,
    pub(crate) untold_audits: u64,
}

/// Counters of clients of Services with session affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Clients stored in a new place of the table, including those adopted from an earlier process. Places are never freed, so the sum over
    /// all workers is the number of places in use.
    pub remembered: u64,
    /// Clients that were overwritten by another client or could not be stored.
    pub forgotten: u64,
}

/// Counts of what happened to sessions and refusals in the session table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Sessions created.
    pub created: u64,
    /// Created sessions whose packets are translated (connections to Services).
    pub translated: u64,
    /// Sessions that ended by their idle timeout.
    pub expired: u64,
    /// Sessions that ended early to make room for new ones.
    pub recycled: u64,
    /// Sessions that could not be created because the table was full.
    pub refused: u64,
    /// Sessions that ended because a newer policy denies them.
    pub revoked: u64,
    /// Sessions replaced by a new session between the same endpoints.
    pub replaced: u64,
    /// Sessions that one policy change cut and a later one allowed again.
    pub restored: u64,
    /// Sessions that ended because the pod at one end was gone, or no longer a backend of the Service (UDP).
    pub removed: u64,
    /// Sessions adopted from an earlier process.
    pub adopted: u64,
    /// TCP resets outside of the expected sequence range, which did not end their session.
    pub doubted: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            received: 0,
            forwarded: 0,
            drops: [0; DropReason::COUNT],
            ports: Vec::new(),
            origins: vec![OriginCounters::default(); ORIGINS],
            sessions: SessionCounters::default(),
            clients: ClientCounters::default(),
            untold_audits: 0,
        }
    }
}

impl Counters {
    /// Packets given to the worker.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Packets that the worker forwarded.
    pub const fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Packets dropped for this reason.
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Packets dropped, by reason, for every reason.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().zip(self.drops).map(|(&reason, count)| (reason, count))
    }

    /// Packets dropped for any reason.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Returns the counters of the port. Zeros if the worker has never seen the port.
    pub fn port(&self, port: PortId) -> PortCounters {
        self.ports.get(port.index()).copied().unwrap_or_default()
    }

    /// Returns the counters of the origin. Zeros if it has never decided about a packet.
    pub fn origin(&self, origin: OriginId) -> OriginCounters {
        self.origins.get(origin.0 as usize).copied().unwrap_or_default()
    }

    /// Returns the counters of each origin that has decided about a packet, in the order of ids.
    pub fn origins(&self) -> impl Iterator<Item = (OriginId, OriginCounters)> + '_ {
        let used = |&(_, counters): &(OriginId, OriginCounters)| counters != OriginCounters::default();
        (0..).map(OriginId).zip(self.origins.iter().copied()).filter(used)
    }

    /// Returns the counts of what happened to sessions.
    pub const fn sessions(&self) -> SessionCounters {
        self.sessions
    }

    /// Counters of clients of Services with session affinity.
    pub const fn clients(&self) -> ClientCounters {
        self.clients
    }

    /// Audited connections that were not reported because the tap's reader was too slow. They are still counted by origin.
    pub const fn untold_audits(&self) -> u64 {
        self.untold_audits
    }

    /// Makes room for the ports of a snapshot. Allocates only if the number of ports exceeds all earlier ones.
    pub(crate) fn know_ports(&mut self, ports: usize) {
        if self.ports.len() < ports {
            self.ports.resize(ports, PortCounters::default());
        }
    }

    #[inline]
    pub(crate) fn count(&mut self, in_port: PortId, verdict: Verdict) {
        self.received += 1;
        if let Some(port) = self.ports.get_mut(in_port.index()) {
            port.received += 1;
        }
        match verdict {
            Verdict::Forward(out) => {
                self.forwarded += 1;
                if let Some(port) = self.ports.get_mut(out.index()) {
                    port.sent += 1;
                }
            }
            Verdict::Drop(reason) => {
                self.drops[reason.index()] += 1;
                if let Some(port) = self.ports.get_mut(in_port.index()) {
                    port.dropped += 1;
                }
            }
        }
    }

    /// Counts a packet that belongs to a session allowed by this origin, which has counted a packet before.
    #[inline]
    pub(crate) fn allow(&mut self, origin: u32) {
        if let Some(counters) = self.origins.get_mut(origin as usize) {
            counters.allowed += 1;
        }
    }

    /// Counts a packet that a policy decided about.
    pub(crate) fn decide(&mut self, origin: Option<OriginId>, verdict: Verdict) {
        let Some(counters) = self.of_origin(origin) else { return };
        match verdict {
            Verdict::Forward(_) => counters.allowed += 1,
            Verdict::Drop(DropReason::PolicyDenied) => counters.denied += 1,
            Verdict::Drop(_) => {}
        }
    }

    pub(crate) fn audit(&mut self, origin: Option<OriginId>) {
        if let Some(counters) = self.of_origin(origin) {
            counters.audited += 1;
        }
    }

    fn of_origin(&mut self, origin: Option<OriginId>) -> Option<&mut OriginCounters> {
        let index = origin.map(|origin| origin.0 as usize).filter(|&index| index < MAX_ORIGINS)?;
        if index >= self.origins.len() {
            self.origins.resize((index + 1).next_power_of_two(), OriginCounters::default());
        }
        self.origins.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_counted_once_as_forwarded_or_as_one_drop() {
        let mut counters = Counters::default();
        counters.know_ports(2);
        counters.count(PortId(0), Verdict::Forward(PortId(1)));
        counters.count(PortId(9), Verdict::Drop(DropReason::NoRoute));
        counters.count(PortId(1), Verdict::Drop(DropReason::NoRoute));
        assert_eq!((counters.received(), counters.forwarded(), counters.dropped_in_all()), (3, 1, 2));
        assert_eq!(counters.dropped(DropReason::NoRoute), 2);
        assert_eq!(counters.port(PortId(0)), PortCounters { received: 1, sent: 0, dropped: 0 });
        assert_eq!(counters.port(PortId(1)), PortCounters { received: 1, sent: 1, dropped: 1 });
        assert_eq!(counters.port(PortId(9)), PortCounters::default());
    }

    #[test]
    fn packets_are_counted_for_the_origin_that_allowed_or_denied_them() {
        let mut counters = Counters::default();
        let far = OriginId(5000);
        counters.decide(Some(OriginId(3)), Verdict::Forward(PortId(1)));
        counters.decide(Some(far), Verdict::Drop(DropReason::PolicyDenied));
        counters.decide(Some(far), Verdict::Drop(DropReason::TtlExpired));
        counters.decide(None, Verdict::Drop(DropReason::PolicyDenied));
        counters.decide(Some(OriginId(u32::MAX)), Verdict::Forward(PortId(1)));
        counters.allow(3);
        counters.allow(u32::MAX);
        let expected = [
            (OriginId(3), OriginCounters { allowed: 2, ..OriginCounters::default() }),
            (far, OriginCounters { denied: 1, ..OriginCounters::default() }),
        ];
        assert!(counters.origins().eq(expected));
        assert_eq!(counters.origin(far).denied, 1);
        assert_eq!(counters.origin(OriginId(4)), OriginCounters::default());
    }
}
