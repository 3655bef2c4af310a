//! A flow cache: packets of established sessions that need not come to a worker any more.
//!
//! ```text
//!   packet -> [ cache: known, unchanged, not expired? ] --yes--> rewritten and sent by whoever keeps the cache
//!                              |no
//!                              `--> port -> worker: judge -> forward
//!                                                    |  a hit of a session, between two ports that the cache reaches
//!                                                    `--> FlowCache::add, for a short time
//! ```
//!
//! The session table stays the truth. A flow in the cache is a copy of what the worker has just done with a packet of it,
//! and says so for a short time ([`CachedFlow::lease`]) and for one epoch of each of its two ports: then a packet comes to the
//! worker again, which finds the session, keeps it alive and adds the flow anew. So nothing has to be told back: a session that
//! ends or an entry that is lost needs no message, and a change of a port or of its policy ends the port's flows at once.
//!
//! Where a cache can copy a packet, it sends the worker a copy before the lease ends, and the worker renews the flow
//! ([`FlowCache::renew`]). So a flow that is in use never comes back to the worker, which could not forward what a bulk connection sends.
//!
//! The cache is faster than the worker, so a packet that it forwards would overtake those of its flow that the worker still
//! has. Therefore a flow has a latch, which is closed when the flow is added: its packets still come to the worker, and are
//! counted at the latch. When the worker has sent all that had come to it, it opens the latch, if none was counted meanwhile.
//!
//! A TCP connection needs no latch when both directions are added before its SYN-ACK is sent: nothing of it is under way then. It
//! begins in the cache with the segment that ends its handshake, which no worker sees. The cache remembers that segment
//! ([`FlowHandshake`]), and the worker asks for it later, before the session's time for a handshake is up.

use bulkhead_classifier::OriginId;

use crate::flow::Translation;
use crate::{Flow, PortId, Snapshot};

/// A port's number in the cache. It stays the port's while it is open, whatever its [`PortId`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowSlot(pub u16);

/// A flow's latch, by number. Flows may share one: it is open or closed for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowLatch(pub u16);

/// A connection whose handshake ends in the cache, by number. Each worker has numbers of its own; it gives one out again when no
/// flow with it can be in use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHandshake(pub u16);

/// How many [`FlowHandshake`]s there are: some 87,000 connections a second, at 750 ms each.
pub const HANDSHAKES: u32 = 1 << 16;

/// A flow asks to be renewed when this part of its lease is left, an eighth. A worker that is held up then still has time to answer, and
/// flows are renewed hardly more often than their leases would end.
pub const RENEWED_IN_LAST: u64 = 8;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initiator {
    /// The flow goes from the end that has sent the SYN.
    Source,
    /// The flow goes to it.
    Destination,
}

/// When the packets of a flow begin to be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowStart {
    /// When the latch is opened.
    Latch(FlowLatch),
    /// When a segment of the initiator acknowledges the SYN-ACK ([`FlowCache::await_handshake`]). All before it is left to the
    /// workers.
    Handshake(FlowHandshake, Initiator),
}

/// One direction of an established session, and what is done with its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedFlow {
    /// Where its packets come in.
    pub from: FlowSlot,
    /// Where they leave.
    pub to: FlowSlot,
    /// The numbers of these two ports.
    pub ports: [PortId; 2],
    /// The epochs of these two ports in the snapshot that allows it ([`Snapshot::epoch`](crate::Snapshot::epoch)).
    pub epochs: [u64; 2],
    /// How often neighbours behind these two ports had moved ([`FlowCache::moves`]) when the packet's way was found.
    pub moves: [u16; 2],
    /// Who talks to whom as the packets come in: TCP or UDP.
    pub flow: Flow,
    /// The MAC addresses that the packets come with, destination first; packets with others are not of it.
    pub received: [u8; 12],
    /// Those that they leave with.
    pub sent: [u8; 12],
    /// Whether their TTL or hop limit becomes one less: the way leads to another machine or pod.
    pub is_hop: bool,
    /// Other addresses and ports that they leave with; none when they keep theirs.
    pub translation: Option<Translation>,
    /// The longest frame that the way out carries, in bytes.
    pub longest: u16,
    /// The rule that allowed the session.
    pub origin: Option<OriginId>,
    /// How long the copy is good, in nanoseconds from now.
    pub lease: u64,
    /// What keeps its packets in order.
    pub start: FlowStart,
}

/// Whoever forwards packets of known flows before they come to a worker.
pub trait FlowCache: std::fmt::Debug + Send + Sync {
    /// Whether packets can be sent out of a port from there.
    fn reaches(&self, out: FlowSlot) -> bool;

    /// Takes a flow, in place of what it had for its packets, and closes its latch if it has one. May forget it at any time.
    fn add(&self, flow: &CachedFlow);

    /// Gives a flow a new lease if the cache forwards its packets exactly as it is given here, however it has begun: no packet of it is
    /// under way through a worker then. Returns false, and changes nothing, if it does not.
    fn renew(&self, flow: &CachedFlow) -> bool;

    /// Prepares a handshake, before flows are added with it: it ends with a segment that has this acknowledgement number.
    fn await_handshake(&self, handshake: FlowHandshake, acknowledgement: u32);

    /// Whether such a segment was forwarded since.
    fn has_ended(&self, handshake: FlowHandshake) -> bool;

    /// How many packets of flows that it has were left to the workers because the latch is closed.
    fn passed(&self, latch: FlowLatch) -> u64;

    /// How often the flows of a port were [ended](Self::moved), modulo 65,536, since the port's epoch is what it is.
    fn moves(&self, port: PortId) -> u16;

    /// Ends all flows from and to the port: a neighbour behind it has another MAC address, or sessions of it have ended. Flows that are
    /// added with the earlier number of [`moves`](Self::moves) are not used.
    fn moved(&self, port: PortId);

    /// Moves on whenever [`moves`](Self::moves) of any port has changed. To be asked before the snapshot is read.
    fn endings(&self) -> u64;

    /// Opens a latch; with a number only if [`passed`](Self::passed) still says so. Whether it is open now.
    fn open(&self, latch: FlowLatch, passed: Option<u64>) -> bool;
}

/// The control thread's end of a cache in the kernel.
pub trait KernelFlows: FlowCache {
    /// Ends the flows of all ports whose epochs the snapshot changes ([`Snapshot::after`]). To be called before the snapshot
    /// is published: what workers add by the old one then is not used any more.
    fn enter(&self, snapshot: &Snapshot);

    /// Ends all flows from and to a port, until a snapshot with another epoch of it is [entered](Self::enter).
    fn leave(&self, port: PortId);

    /// What was forwarded from and to the port that has the slot, since it has it.
    fn traffic(&self, slot: FlowSlot) -> CachedTraffic;

    /// Packets of sessions that the rule with this origin has allowed. Of origins beyond the first 65,534 of a process, which
    /// is days of new policies at ten a minute, it does not know.
    fn allowed_by(&self, origin: OriginId) -> u64;

    /// How many times a flow was added or renewed.
    fn added(&self) -> u64;

    /// How many times the kernel refused one; its packets go through the workers.
    fn failed(&self) -> u64;
}

/// Packets that a cache has forwarded past the workers, or dropped in front of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedTraffic {
    /// That came in on the port.
    pub received: u64,
    /// Their length in bytes by their IP headers, with the Ethernet header.
    pub received_bytes: u64,
    /// That left through it.
    pub sent: u64,
    /// As above.
    pub sent_bytes: u64,
    /// Packets from the port that were dropped because it had sent more to the workers than it may.
    pub limited: u64,
    /// Packets that the node's own kernel sent to the port past the vswitch, and that were dropped.
    pub bypassed: u64,
}

impl CachedTraffic {
    /// Both together.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            limited: self.limited + other.limited,
            bypassed: self.bypassed + other.bypassed,
        }
    }

    /// What came since the counters were like that.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            received: self.received.saturating_sub(before.received),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            sent: self.sent.saturating_sub(before.sent),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            limited: self.limited.saturating_sub(before.limited),
            bypassed: self.bypassed.saturating_sub(before.bypassed),
        }
    }
}
