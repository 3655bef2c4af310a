//! Notices: tell the other end of a session at once that its pod is gone.
//!
//! The other end may only read, and would wait until its own timeout, or forever.
//!
//! ```text
//!   vswitch                                         other end
//!      | ACK, not acceptable, in the pod's name -------> |
//!      | <--- ACK with the present sequence numbers ---- |    RFC 9293 §3.10.7.4
//!      | RST with exactly these ----------------------> |    the refusal of a segment to an address that no pod has
//! ```
//!
//! **TCP.** A peer believes only a reset with exactly the next sequence number (RFC 5961 §3), which the vswitch does not know: the kernel
//! forwards busy sessions. So it makes the peer speak. A segment outside of the receive window is answered with an acknowledgement, and the
//! answer is refused like any segment to an address that no pod has. A window is at most 2^30 bytes, so of two sequence numbers that are
//! 2^31 apart at least one is outside of it, however old the known number is. The first probe is a keepalive's, one below the known number:
//! stateful firewalls on the way let it pass. Probes carry no data, so that no reader gets a byte from the vswitch.
//!
//! A SYN as the probe would do without sequence numbers (RFC 5961 §4), but other nodes' policies may deny it. A client whose SYN was not
//! answered gets its reset at once: the SYN's number is known.
//!
//! **UDP.** The peer gets the ICMP error that its next datagram would cause.
//!
//! **Invariant.** Each notice counts against its port's limit. Without a link to the peer, or beyond the limit, nothing is sent, and the
//! peer learns the session's end when it next sends.

use bulkhead_classifier::protocol;

use super::icmp::{Cause, Link, Report};
use super::segment::Segment;
use super::{Forwarder, NeighbourId, rewrite};
use crate::PortId;
use crate::Snapshot;
use crate::probe::{Probe, ProbeKind};
use crate::session::Survivor;
use crate::wire::tcp::{self, flags};

/// Half of the sequence numbers.
const HALF: u32 = 1 << 31;

/// A notice that was written as a whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The port to send it on.
    pub(crate) out: PortId,
    /// Its length in bytes.
    pub(crate) len: usize,
    /// The neighbour whose MAC address the frame lacks. `None` if the frame is ready to be sent.
    pub(crate) lacks: Option<NeighbourId>,
}

impl<T> Forwarder<T> {
    /// Takes a token for telling the survivor that its session has ended. Returns the number of frames that tells it. 0 if no survivors are
    /// told, if the port towards it is closed, or beyond the port's rate limit.
    pub(crate) fn begin_notice(&mut self, snapshot: &Snapshot, survivor: &Survivor) -> usize {
        let out = snapshot.routes().lookup(survivor.own.0).filter(|_| snapshot.tells_unreachable());
        let Some(out) = out.filter(|out| self.sides.get(out.index()).is_some_and(|side| side.has_link())) else {
            return 0;
        };
        if !self.limits.allow_unreachable(out, self.now) {
            self.counters.refusals_suppressed += 1;
            return 0;
        }
        self.counters.refused += 1;
        let is_probed = survivor.protocol == protocol::TCP && survivor.was_answered;
        if is_probed { 2 } else { 1 }
    }

    /// Writes frame `number`, from 0, of a notice that [`begin_notice`](Self::begin_notice) allowed. `None` if the survivor has no route, or
    /// if `into` is shorter than [`ERROR_MAX`](super::ERROR_MAX).
    pub(crate) fn write_notice(
        &mut self,
        snapshot: &Snapshot,
        survivor: &Survivor,
        number: usize,
        into: &mut [u8],
    ) -> Option<Notice> {
        let out = snapshot.routes().lookup(survivor.own.0)?;
        let len = match survivor.protocol {
            protocol::TCP => segment(survivor, number).write(into)?,
            _ => write_error(survivor, into)?,
        };
        let to = *self.sides.get(out.index())?;
        let lacks = match self.find(snapshot, &to, out, survivor.own.0) {
            Ok(addresses) => {
                rewrite::ethernet(into, &addresses);
                None
            }
            Err(neighbour) => Some(neighbour),
        };
        Some(Notice { out, len, lacks })
    }
}

/// Returns probe `number` of a connection, or the reset of one whose SYN was not answered.
fn segment(survivor: &Survivor, number: usize) -> Segment {
    let [own, other] = survivor.next;
    let (sequence, flags) = match (survivor.was_answered, number) {
        (false, _) => (0, flags::RST | flags::ACK),
        (true, 0) => (other.wrapping_sub(1), flags::ACK),
        (true, _) => (other.wrapping_sub(1).wrapping_add(HALF), flags::ACK),
    };
    let header = tcp::Repr {
        source_port: survivor.other.1,
        destination_port: survivor.own.1,
        sequence,
        acknowledgement: own,
        flags,
        window: u16::MAX,
    };
    Segment { addresses: (survivor.other.0, survivor.own.0), header, link: Link::UNKNOWN }
}

/// Writes "port unreachable" about a datagram of the survivor. Returns the frame's length in bytes.
fn write_error(survivor: &Survivor, into: &mut [u8]) -> Option<usize> {
    let ((src, sport), (dst, dport)) = (survivor.own, survivor.other);
    let datagram = Probe { src, dst, kind: ProbeKind::Udp, sport, dport }.request().ok()?;
    Report::between(Cause::Port, (dst, src), &datagram, Link::UNKNOWN)?.write(0, into)
}
