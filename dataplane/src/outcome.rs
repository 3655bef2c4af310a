//! The pipeline's input (packets) and output (verdicts and the reasons for them).

use std::num::{NonZeroU8, NonZeroU32};

use bulkhead_classifier::OriginId;

use crate::flow::{Flow, Translation};
use crate::names::NameId;
use crate::packet::LinkType;
use crate::{DropReason, PortId, TableId};

/// Maximum number of packets judged together: the size of a VPP vector. Larger bursts are not faster, because the columns no longer fit the
/// first-level caches.
pub const BURST: usize = 256;

/// A packet to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The bytes from the link header on. A capture's snap length may have cut them.
    pub frame: &'a [u8],
    /// Length of the frame on the wire, in bytes. Values below `frame.len()` count as `frame.len()`.
    pub wire_len: usize,
    /// The type of the link header.
    pub link: LinkType,
    /// The port that received the packet.
    pub in_port: PortId,
    /// Time of reception, in nanoseconds since 1970-01-01 UTC.
    pub time: u64,
}

/// An Ethernet frame of a live burst. All frames of a burst share one time.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The bytes from the Ethernet header on. For a packet in several frames, only the first frame's.
    pub frame: &'a [u8],
    /// Length of the whole packet in bytes, with its Ethernet header. Values below `frame.len()` count as `frame.len()`.
    pub wire_len: usize,
    /// The port that received the packet.
    pub in_port: PortId,
}

/// The kinds of payload that forwarding handles differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyKind {
    /// The frame could not be parsed. Such a packet is always dropped.
    Unknown,
    /// ARP.
    Arp,
    /// IPv6 neighbour discovery.
    Neighbour,
    /// Any other IPv4 or IPv6 packet.
    Ip,
}

/// The result for one packet of a live burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Output port or drop reason.
    pub verdict: Verdict,
    /// The kind of payload.
    pub body: BodyKind,
    /// Whether the packet started or belongs to a session. `None` if neither.
    pub session: Option<SessionState>,
    /// For a translated packet, the position of its new addresses and ports in the worker's translations, counted from 1.
    pub(crate) translation: Option<NonZeroU32>,
    /// The worker that must judge this packet, counted from 1, because it owns the session. The other fields are then meaningless.
    pub(crate) elsewhere: Option<NonZeroU8>,
}

impl Judged {
    /// The initial value of every packet: dropped as [`DropReason::Unjudged`].
    pub const UNJUDGED: Self = Self {
        verdict: Verdict::Drop(DropReason::Unjudged),
        body: BodyKind::Unknown,
        session: None,
        translation: None,
        elsewhere: None,
    };
}

/// Whether a packet is forwarded or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Forward through this port.
    Forward(PortId),
    /// Drop for this reason.
    Drop(DropReason),
}

impl Verdict {
    /// Returns the drop reason, or `None` if the packet is forwarded.
    pub const fn drop_reason(self) -> Option<DropReason> {
        match self {
            Self::Drop(reason) => Some(reason),
            Self::Forward(_) => None,
        }
    }

    /// Returns the output port, or `None` if the packet is dropped.
    pub const fn out_port(self) -> Option<PortId> {
        match self {
            Self::Forward(port) => Some(port),
            Self::Drop(_) => None,
        }
    }
}

/// The policy decision about a packet. A session stores the decision that created it and reports that decision for its later packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The table or the name that decided. `None` for a hairpin packet, about which no table decides, and for later packets of a session
    /// that was allowed by name and denied since.
    pub by: Option<Decider>,
    /// Position of the matching rule in the table. `None` if no rule matched.
    pub rule: Option<u32>,
    /// The origin that the control plane put on the rule or on the hairpin. `None` if no rule matched.
    pub origin: Option<OriginId>,
}

/// The table, or the destination's name, by which policy decided about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decider {
    /// A table.
    Table(TableId),
    /// The name of the destination by which a rule matched. The rule is in the table of the initiator's port whose rules name domains
    /// ([`PortConfig::named_table`](crate::PortConfig::named_table)).
    Name(NameId),
}

impl Decision {
    /// Returns the table that decided. `None` for a hairpin packet, and if a rule matched by name.
    pub const fn table(&self) -> Option<TableId> {
        match self.by {
            Some(Decider::Table(table)) => Some(table),
            Some(Decider::Name(_)) | None => None,
        }
    }

    /// Returns the destination's name by which the rule matched. `None` if the rule names no domains, or if no rule matched.
    pub const fn name(&self) -> Option<NameId> {
        match self.by {
            Some(Decider::Name(name)) => Some(name),
            Some(Decider::Table(_)) | None => None,
        }
    }
}

/// Whether a packet started a session or belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// The packet started a session.
    New,
    /// The packet belongs to an existing session: in either direction, as an ICMP error about one of its packets, or as a later fragment of
    /// a forwarded packet.
    Hit,
}

/// The full result for one packet, with the reason for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The port that received the packet.
    pub in_port: PortId,
    /// Output port or drop reason.
    pub verdict: Verdict,
    /// The policy decision. `None` if no policy was asked (a malformed packet, ARP, neighbour discovery).
    pub decision: Option<Decision>,
    /// The rule that would deny the packet if all policies were enforced. Set for the first packet of a connection that passes only because
    /// a policy is audited, and for the first packet judged so later. `None` for all others.
    pub audited: Option<Decision>,
    /// Whether the packet started or belongs to a session. `None` if neither.
    pub session: Option<SessionState>,
    /// Addresses, ports and protocol. `None` if the IP header could not be parsed.
    pub flow: Option<Flow>,
    /// The addresses and ports after translation, for a packet of a translated connection. If policy drops the packet, those that policy
    /// judged. For an ICMP error, those of the quoted packet. `None` without translation.
    pub translation: Option<Translation>,
    /// Position of the translation in the worker; see [`Judged::translation`].
    pub(crate) place: Option<NonZeroU32>,
    /// The worker that must judge the packet; see [`Judged::elsewhere`].
    pub(crate) elsewhere: Option<NonZeroU8>,
}

impl Outcome {
    /// The initial value of every packet: dropped as [`DropReason::Unjudged`].
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
