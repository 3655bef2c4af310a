//! What the table holds: entries, their classes, and what is known of one before it is made.

use super::Key;
use super::tcp::TcpState;
use crate::packet::{Ports, TcpFlags};
use crate::{Decision, DropReason, PortId, PortKind};

/// An entry's place in the slab.
pub(crate) type Slot = u32;

/// Which way a packet of a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// As the packet that created the session.
    Forward,
    /// The other way.
    Reply,
}

/// When a packet came. Its number orders what its time does not, and lets packets that waited for the classifier take
/// the place that they would have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    /// Nanoseconds since 1970. Never less than that of a packet with a lower number.
    pub(crate) time: u64,
    /// Counts all packets of the worker.
    pub(crate) number: u64,
}

/// What decides how long an entry lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Refused,
    Transient,
    Established,
    Idle,
    Echo,
}

impl Class {
    pub(super) const COUNT: usize = 5;
    pub(super) const ALL: [Self; Self::COUNT] =
        [Self::Refused, Self::Transient, Self::Established, Self::Idle, Self::Echo];
}

/// A session, or a refusal. There is room for a rewrite (a service's address for a backend's) beside the ports, when there are
/// services.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(super) key: Key,
    pub(super) hash: u64,
    /// When the last packet came.
    pub(super) seen_at: u64,
    /// When the entry was last put into its list.
    pub(super) queued_at: Moment,
    /// The generation of the tables that allowed it.
    pub(crate) generation: u64,
    /// What allowed or refused it.
    pub(crate) decision: Decision,
    /// Why it is a refusal and no session.
    pub(crate) refused: Option<DropReason>,
    /// Where packets in forward direction come in.
    pub(crate) in_port: PortId,
    /// What kind of port that is: ids may change from generation to generation, uplink and host do not.
    pub(crate) in_kind: PortKind,
    /// Where they leave.
    pub(crate) out_port: PortId,
    pub(super) previous: Slot,
    pub(super) next: Slot,
    pub(super) tcp: TcpState,
    pub(super) class: Class,
    pub(super) from_low: bool,
}

/// What the worker knows of a session that it wants to create.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    /// Whether the forward direction goes from the key's lower endpoint to the higher.
    pub(crate) from_low: bool,
    pub(crate) protocol: u8,
    pub(crate) ports: Ports,
    pub(crate) flags: Option<TcpFlags>,
    pub(crate) generation: u64,
    pub(crate) decision: Decision,
    pub(crate) in_port: PortId,
    pub(crate) in_kind: PortKind,
    pub(crate) out_port: PortId,
    /// Which way the packet goes that asks for it.
    pub(crate) direction: Direction,
}

impl Entry {
    /// Which way a packet goes whose key has this orientation.
    pub(crate) const fn direction(&self, from_low: bool) -> Direction {
        if self.from_low == from_low { Direction::Forward } else { Direction::Reply }
    }

    /// Whether it is a TCP connection that is over.
    pub(crate) const fn is_closed(&self) -> bool {
        self.tcp.is_closed()
    }

    /// Where packets of this direction come in, and where they leave.
    pub(crate) const fn ports(&self, direction: Direction) -> (PortId, PortId) {
        match direction {
            Direction::Forward => (self.in_port, self.out_port),
            Direction::Reply => (self.out_port, self.in_port),
        }
    }
}
