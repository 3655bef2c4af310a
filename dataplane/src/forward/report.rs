//! Notifies senders of dropped packets, within rate limits.

use super::Forwarder;
use super::icmp::{Cause, Report, Subject};
use super::side::Side;
use crate::{DropReason, Packet, PortId, Snapshot};

impl<T> Forwarder<T> {
    /// Whether drops for this reason are reported. Policy drops are silent unless the snapshot [refuses](Snapshot::refusing) some. Most
    /// other drops are silent too. Drops of Services without endpoints are always reported, those of addresses that no pod has unless the
    /// snapshot [says otherwise](Snapshot::telling_unreachable).
    pub fn reports(snapshot: &Snapshot, reason: DropReason) -> bool {
        match reason {
            DropReason::PolicyDenied => snapshot.refuses_any(),
            DropReason::NoSuchPod => snapshot.tells_unreachable(),
            _ => Cause::of(reason).is_some(),
        }
    }

    /// Writes the notification of a dropped packet's sender, as a whole frame for the packet's receiving port: an ICMP error, or a TCP
    /// reset for a refused segment. Returns its length. `None` if no notification is sent (see [`Forwarder::reports`]; errors about errors,
    /// fragments, groups and foreign senders; rate limit; no address of the node), or if `into` is shorter than
    /// [`ERROR_MAX`](super::ERROR_MAX). The packet must be as received, untranslated.
    ///
    /// `out` is the packet's output port, whose MTU is reported.
    pub fn report(
        &mut self,
        snapshot: &Snapshot,
        packet: &Packet<'_>,
        out: Option<PortId>,
        reason: DropReason,
        into: &mut [u8],
    ) -> Option<usize> {
        let cause = Cause::of(reason).filter(|_| Self::reports(snapshot, reason))?;
        if matches!(cause, Cause::Denied | Cause::Port | Cause::Pod) {
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
