//! What goes into the pipeline and what comes out of it.

use std::num::{NonZeroU8, NonZeroU32};

use bulkhead_classifier::OriginId;

use crate::flow::{Flow, Translation};
use crate::packet::LinkType;
use crate::{DropReason, PortId, TableId};

/// The most packets that are judged together: what VPP takes as one vector. More gains nothing, as the columns would
/// no longer fit the first cache levels.
pub const BURST: usize = 256;

/// One frame on its way in.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The bytes, beginning with the link header. May be cut short by a capture's snap length.
    pub frame: &'a [u8],
    /// How long the frame was on the wire, in bytes. A value below `frame.len()` counts as `frame.len()`.
    pub wire_len: usize,
    /// How the frame begins.
    pub link: LinkType,
    /// The port that it came in on.
    pub in_port: PortId,
    /// When it came in, in nanoseconds since 1970-01-01 UTC.
    pub time: u64,
}

/// One Ethernet frame of a live burst. The burst has one time for all.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The bytes from the Ethernet header on; of a packet in several segments the first one's.
    pub frame: &'a [u8],
    /// How long the whole packet is, in bytes with its Ethernet header. A value below `frame.len()` counts as that.
    pub wire_len: usize,
    /// The port that it came in on.
    pub in_port: PortId,
}

/// What a frame carries, as far as that matters for what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyKind {
    /// Nothing that was understood; such a packet is always dropped.
    Unknown,
    /// ARP.
    Arp,
    /// IPv6 neighbour discovery.
    Neighbour,
    /// Any other IPv4 or IPv6 packet.
    Ip,
}

/// What became of one packet of a live burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Where it goes.
    pub verdict: Verdict,
    /// What it carries.
    pub body: BodyKind,
    /// What it had to do with the session table.
    pub session: Option<SessionState>,
    /// The place of its other addresses and ports among [`Worker::translations`](crate::Worker), for a packet of a connection to a
    /// Service.
    pub(crate) translation: Option<NonZeroU32>,
    /// Another worker that is to judge it, from 1: it has the session, or is to have it. Then all else means nothing.
    pub(crate) elsewhere: Option<NonZeroU8>,
}

impl Judged {
    /// What every packet starts with: dropped until a stage says otherwise.
    pub const UNJUDGED: Self = Self {
        verdict: Verdict::Drop(DropReason::Unjudged),
        body: BodyKind::Unknown,
        session: None,
        translation: None,
        elsewhere: None,
    };
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Out through this port.
    Forward(PortId),
    /// Nowhere.
    Drop(DropReason),
}

impl Verdict {
    /// The reason when the packet is dropped.
    pub const fn drop_reason(self) -> Option<DropReason> {
        match self {
            Self::Drop(reason) => Some(reason),
            Self::Forward(_) => None,
        }
    }

    /// The port when the packet is forwarded.
    pub const fn out_port(self) -> Option<PortId> {
        match self {
            Self::Forward(port) => Some(port),
            Self::Drop(_) => None,
        }
    }
}

/// Which policy decided. A session remembers the decision that created it, and its hits report that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The table that was asked; none for a hairpin, which no table decides.
    pub table: Option<TableId>,
    /// The position of the deciding rule in the table; none when no rule matched.
    pub rule: Option<u32>,
    /// What the control plane wrote on the rule (or on the hairpin); none when no rule matched.
    pub origin: Option<OriginId>,
}

/// What a packet had to do with the session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// The packet started a session.
    New,
    /// The packet belongs to a session: in its direction, in the reply direction, as an ICMP error about one of its
    /// packets, or as a later fragment of a packet that passed.
    Hit,
}

/// What became of one packet, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The port that the packet came in on.
    pub in_port: PortId,
    /// Where it goes.
    pub verdict: Verdict,
    /// The policy decision; none when no policy was asked (a malformed packet, ARP, neighbour discovery).
    pub decision: Option<Decision>,
    /// What would deny it if all policies were enforced, for the first packet of a connection that passes only because some are audited,
    /// or the first one that is judged so. None for all others.
    pub audited: Option<Decision>,
    /// What it had to do with the session table.
    pub session: Option<SessionState>,
    /// Who talks to whom, as far as the packet could be parsed.
    pub flow: Option<Flow>,
    /// The addresses and ports that it leaves with, for a packet of a connection to a Service; where policy drops it, those with which it
    /// was judged. Of an ICMP error about one: those of the packet that it quotes.
    pub translation: Option<Translation>,
    /// As in [`Judged::translation`].
    pub(crate) place: Option<NonZeroU32>,
    /// As in [`Judged::elsewhere`].
    pub(crate) elsewhere: Option<NonZeroU8>,
}

impl Outcome {
    /// What every packet starts with: dropped until a stage says otherwise.
    pub const UNJUDGED: Self = Self {
        in_port: PortId(0),
        verdict: Verdict::Drop(DropReason::Unjudged),
        decision: None,
        audited: None,
        session: None,
        flow: None,
        translation: None,
        place: None,
        elsewhere: None,
    };
}

impl Default for Outcome {
    fn default() -> Self {
        Self::UNJUDGED
    }
}
