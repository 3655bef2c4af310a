//! What senders of dropped packets are told, and how often.

use super::Forwarder;
use super::icmp::{Cause, Report, Subject};
use super::side::Side;
use crate::{DropReason, Packet, PortId, Snapshot};

impl<T> Forwarder<T> {
    /// Whether senders are told of such drops at all. Policy's drops are silent unless the snapshot
    /// [refuses](Snapshot::refusing) some, and nearly all others are. Those of Services that nobody serves never are.
    pub fn reports(snapshot: &Snapshot, reason: DropReason) -> bool {
        match reason {
            DropReason::PolicyDenied => snapshot.refuses_any(),
            _ => Cause::of(reason).is_some(),
        }
    }

    /// Writes what the sender of a dropped packet is told, a whole frame to be sent on the port that the packet came in
    /// on: an ICMP error, or a TCP reset for a SYN that is refused. Returns its length; none when nothing is to be said
    /// (see [`Forwarder::reports`]; errors about errors, fragments, groups and strangers; too many errors; no address of
    /// the node), or when `into` is shorter than [`ERROR_MAX`](super::ERROR_MAX). The packet is as it came in: untranslated.
    ///
    /// `out` is the port that the engine gave the packet: it says what is too big.
    pub fn report(
        &mut self,
        snapshot: &Snapshot,
        packet: &Packet<'_>,
        out: Option<PortId>,
        reason: DropReason,
        into: &mut [u8],
    ) -> Option<usize> {
        let cause = Cause::of(reason)?;
        if matches!(cause, Cause::Denied | Cause::Port) {
            return self.refuse(snapshot, packet, cause, into);
        }
        let side = self.sides.get(packet.in_port.index())?;
        let report = Report::new(snapshot, &Subject::new(snapshot, side, packet)?, cause)?;
        if !self.limits.allow_error(report.class(), packet.in_port, report.destination(), self.now) {
            self.counters.errors_suppressed += 1;
            return None;
        }
        let mtu = out.and_then(|out| self.sides.get(out.index())).map_or(0, Side::mtu);
        let len = report.write(mtu, into)?;
        self.counters.errors_sent += 1;
        Some(len)
    }
}
