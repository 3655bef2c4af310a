//! Refusals: notify a sender at once that policy denies its packet, that the called Service has no endpoint, or that no pod has the address.
//!
//! ```text
//!                               TCP            everything else               in the name of        told to
//!   policy, where it is wanted  SYN: reset     ICMP, "administratively       the node              pods, the node itself
//!                                              prohibited"
//!   Service without endpoints   SYN: reset     ICMP, "port unreachable"      the Service           everybody
//!   or such a port
//!   address that no pod has     reset          ICMP, "port unreachable" for  the called address,   everybody
//!                                              UDP and SCTP, otherwise       for the last the node
//!                                              "host unreachable"
//! ```
//!
//! A client then fails at once instead of after its timeout (130 s for TCP on Linux). A reset always comes from the called address, because
//! otherwise the client would ignore it.
//!
//! Policy drops silently by default. Whether a denial is refused depends on the origin of the denying rule ([`Snapshot::refusing`]), which
//! the control plane knows. A Service is open to all callers, so its clients on other machines are notified too.
//!
//! An address that no pod has is like a host without sockets: it resets any segment, so that a peer of a pod that is gone does not wait for
//! it. The engine has asked policy first.
//!
//! **Invariant.** A refusal returns to where the packet came from. Policy denials are never reported to the uplink, so outsiders learn
//! nothing. No refusals are sent about resets, fragments, ICMP errors, group addresses, and senders that do not own their address. Each port
//! has [limits](super::limits).

use super::icmp::{Cause, Report, Subject};
use super::segment::Segment;
use super::{ERROR_MAX, Forwarder};
use crate::packet::{TcpFlags, Transport};
use crate::worker::denied_by;
use crate::{Packet, PortKind, Snapshot};

impl<T> Forwarder<T> {
    /// Writes the refusal of a packet as a whole frame for the packet's receiving port. `cause` is [`Cause::Denied`], [`Cause::Port`] or
    /// [`Cause::Pod`].
    /// Returns its length. `None` if no refusal is sent or `into` is shorter than [`ERROR_MAX`].
    pub(super) fn refuse(
        &mut self,
        snapshot: &Snapshot,
        packet: &Packet<'_>,
        cause: Cause,
        into: &mut [u8],
    ) -> Option<usize> {
        let side = self.sides.get(packet.in_port.index())?;
        let is_denied = cause == Cause::Denied;
        if (is_denied && side.kind == PortKind::Uplink) || into.len() < ERROR_MAX {
            return None;
        }
        let subject = Subject::new(snapshot, side, packet).filter(|subject| is_refusable(subject, cause))?;
        // Checked before the table, so that a flood of silently denied packets costs no lookups either.
        let is_within = match cause {
            Cause::Pod => self.limits.allow_unreachable(packet.in_port, self.now),
            _ => self.limits.allow_refusal(packet.in_port, self.now),
        };
        if !is_within {
            self.counters.refusals_suppressed += 1;
            return None;
        }
        if is_denied && !snapshot.refuses(denied_by(snapshot, packet.in_port, &subject.ip.flow)?) {
            return None;
        }
        let len = match (subject.ip.transport, cause) {
            (Transport::Tcp(_), _) => Segment::reset(&subject)?.write(into)?,
            (Transport::Udp | Transport::Sctp(_), Cause::Pod) => {
                Report::new(snapshot, &subject, Cause::Port)?.write(0, into)?
            }
            _ => Report::new(snapshot, &subject, cause)?.write(0, into)?,
        };
        self.counters.refused += 1;
        Some(len)
    }
}

/// Whether a packet may be refused for this cause. ICMP errors are excluded earlier.
fn is_refusable(subject: &Subject<'_>, cause: Cause) -> bool {
    subject.ip.fragment.is_none()
        && match subject.ip.transport {
            // RFC 9293 §3.10.7.1: a reset is not answered.
            Transport::Tcp(flags) if cause == Cause::Pod => !flags.has(TcpFlags::RST),
            // Other segments belong to a connection that a new policy cuts, which continues if the policy is withdrawn in time, or to one
            // whose Service has lost its endpoints and which may be translated elsewhere.
            Transport::Tcp(flags) => flags.opens(),
            _ => true,
        }
}
