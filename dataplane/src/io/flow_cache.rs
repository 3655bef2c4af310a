//! A flow cache forwards packets of established sessions without a worker.
//!
//! ```text
//!   packet -> [ cache: known, unchanged, not expired? ] --yes--> rewritten and sent by the cache
//!                              |no
//!                              `--> port -> worker: judge -> forward
//!                                                    |  a hit of a session, between two ports that the cache reaches
//!                                                    `--> FlowCache::add, for a short time
//! ```
//!
//! The session table is authoritative. A cached flow repeats a worker's decision about one packet. It is valid for a short lease
//! ([`CachedFlow::lease`]) and for one epoch of each of its two ports. After the lease, the next packet goes to a worker, which finds
//! the session, keeps it alive and adds the flow again. So an ended session or a lost entry needs no message.
//!
//! A change of a port or its policy ends the port's flows. Before that, workers judge the flows by the next snapshot without their
//! packets ([`KernelFlows::ending`]) and confirm those that it allows ([`FlowCache::confirm`]). The alternative, to judge the next packet of
//! each, sends bulk connections to the workers, which cannot carry them.
//!
//! A cache that can copy packets sends a copy to the worker before the lease ends, and the worker renews the flow
//! ([`FlowCache::renew`]). A flow in use then never returns to the worker, which could not carry a bulk connection.
//!
//! While no worker is alive, a cache may forward flows beyond their leases: until they were idle for their session's timeout
//! ([`CachedFlow::timeout`]), and soon after their TCP connection has ended.
//!
//! The cache is faster than a worker, so its packets could overtake earlier ones that a worker still holds. Therefore each added flow
//! starts behind a closed latch: its packets still go to the worker, and the latch counts them. The worker opens the latch after it has
//! sent all received packets, unless the latch has counted another packet since.
//!
//! A TCP connection needs no latch if both directions are added before its SYN or its SYN-ACK is sent, as no other packet is in flight. The
//! cache then forwards the rest of the handshake, and the first FIN of each side, which no worker sees. It records them
//! ([`FlowHandshake`]), and the worker reads the record ([`FlowCache::steps`]) before the session's handshake timeout.

use bulkhead_classifier::OriginId;

use crate::flow::Translation;
use crate::{Flow, PortId, Snapshot};

/// A port's number in the cache. Unlike its [`PortId`], it is constant while the port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowSlot(pub u16);

/// The number of a latch. While the latch is closed, its flows' packets go to workers, which keeps them in order. Flows may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowLatch(pub u16);

/// The number of a TCP handshake that ends in the cache, and of its record. Each worker has its own range and reuses a number when no flow
/// with it can be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHandshake(pub u16);

/// Number of [`FlowHandshake`]s: enough for about 87,000 connections per second, at 750 ms each.
pub const HANDSHAKES: u32 = 1 << 16;

/// The cache requests a renewal in the last eighth of a lease. That leaves a busy worker time to answer, and adds few renewals.
pub const RENEWED_IN_LAST: u64 = 8;

/// Which end of a flow initiated the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initiator {
    /// The flow's source sent the SYN.
    Source,
    /// The flow's destination sent the SYN.
    Destination,
}

/// The event after which the cache forwards a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowStart {
    /// A worker opens the latch with this number.
    Latch(FlowLatch),
    /// A segment of the initiator acknowledges the SYN-ACK ([`FlowCache::await_handshake`]). Of earlier packets, the cache forwards only the
    /// SYN-ACK, and only if it [can](FlowCache::forwards_answers).
    Handshake(FlowHandshake, Initiator),
}

/// The sequence numbers of a TCP connection's first segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstNumbers {
    /// The number after the initiator's SYN, which the SYN-ACK acknowledges.
    pub initiator: u32,
    /// The number after the SYN-ACK, which the initiator's next segment acknowledges. `None` before the SYN-ACK.
    pub responder: Option<u32>,
}

/// The steps of a TCP connection that a cache has forwarded without a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSteps {
    /// The number after the SYN-ACK. `None` before the SYN-ACK.
    pub answered: Option<u32>,
    /// Whether a segment of the initiator has acknowledged the SYN-ACK.
    pub has_ended: bool,
    /// Whether the initiator has sent a FIN near its first number, and whether the responder has.
    pub fins: [bool; 2],
}

/// Maximum distance of a FIN or reset from its sender's last known sequence number: 1 MiB. An interactive connection sends less between two
/// samples of its numbers. Receive windows are 64 KiB without scaling and up to 6 MiB on Linux. A random number is that near once in 2,048
/// times.
pub const NEAR: u32 = 1 << 20;

/// One direction of an established session, and the treatment of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedFlow {
    /// The ingress port's slot.
    pub from: FlowSlot,
    /// The egress port's slot.
    pub to: FlowSlot,
    /// The ingress and egress port.
    pub ports: [PortId; 2],
    /// The epochs of both ports in the snapshot that allows the flow ([`Snapshot::epoch`](crate::Snapshot::epoch)).
    pub epochs: [u64; 2],
    /// [`FlowCache::moves`] of both ports at the time the worker looked up the packet's neighbour.
    pub moves: [u16; 2],
    /// The flow's addresses and ports before translation. The protocol is TCP or UDP.
    pub flow: Flow,
    /// The received packets' MAC addresses, destination first. Packets with other MAC addresses go to a worker.
    pub received: [u8; 12],
    /// The sent packets' MAC addresses, destination first.
    pub sent: [u8; 12],
    /// Whether forwarding decrements the TTL or hop limit, as on a route to another machine or pod.
    pub is_hop: bool,
    /// The address translation. `None` if packets keep their addresses and ports.
    pub translation: Option<Translation>,
    /// The longest frame that the egress port can send, in bytes.
    pub longest: u16,
    /// The rule that allowed the session. `None` if no rule did.
    pub origin: Option<OriginId>,
    /// Validity of the flow, in nanoseconds from now.
    pub lease: u64,
    /// How long the flow may be idle while no worker is alive, in nanoseconds: its session's timeout.
    pub timeout: u64,
    /// The event after which the cache forwards the flow's packets.
    pub start: FlowStart,
}

/// What a cache saw of a flow's TCP connection and no worker did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowChange {
    /// The flow's addresses and ports before translation.
    pub flow: Flow,
    /// What happened.
    pub kind: FlowChangeKind,
}

/// A step of a TCP connection that the kernel has forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChangeKind {
    /// A segment of the initiator, which is the flow's source, has acknowledged the SYN-ACK, after which the responder's next number is
    /// this.
    Established(u32),
    /// The flow's source has sent a FIN.
    Closed,
    /// The flow's source has sent a reset, which may be forged.
    Reset,
}

/// A flow that the cache forwards, with what a worker needs for judging it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedFlow {
    /// The ingress and egress port's slots.
    pub slots: [FlowSlot; 2],
    /// The ingress port.
    pub from: PortId,
    /// The flow's addresses and ports before translation.
    pub flow: Flow,
    /// The received packets' MAC addresses, destination first.
    pub received: [u8; 12],
}

/// A forwarder of known flows in front of the workers.
pub trait FlowCache: std::fmt::Debug + Send + Sync {
    /// Whether the cache can send packets out of the port.
    fn reaches(&self, out: FlowSlot) -> bool;

    /// Adds a flow, or replaces the entry with the same key, and closes its latch if it has one. The cache may evict it at any time.
    fn add(&self, flow: &CachedFlow);

    /// Renews a flow's lease if the cache currently forwards its packets exactly as given here, except for [`CachedFlow::start`]. Otherwise
    /// returns false and changes nothing.
    fn renew(&self, flow: &CachedFlow) -> bool;

    /// Makes a flow that an older snapshot allowed valid for this snapshot too, if the cache has it exactly as given here, except for its
    /// epochs, times and [`CachedFlow::start`], which stay. Otherwise changes nothing.
    fn confirm(&self, flow: &CachedFlow);

    /// Whether the cache can forward SYN-ACKs, so that a connection can be added at its SYN.
    fn forwards_answers(&self) -> bool;

    /// Prepares a handshake and empties its record. Must precede adding its flows.
    fn await_handshake(&self, handshake: FlowHandshake, numbers: FirstNumbers);

    /// Returns what the cache has forwarded of the connection since [`await_handshake`](Self::await_handshake). A SYN-ACK that was known
    /// then counts too.
    fn steps(&self, handshake: FlowHandshake) -> FlowSteps;

    /// Returns how many packets the cache has left to the workers because the latch was closed.
    fn passed(&self, latch: FlowLatch) -> u64;

    /// Returns how often [`moved`](Self::moved) was called for the port since it was opened, modulo 65,536.
    fn moves(&self, port: PortId) -> u16;

    /// Ends all flows from and to the port, because a neighbour's MAC address changed or sessions ended. Flows added with an earlier
    /// [`moves`](Self::moves) stay unused.
    fn moved(&self, port: PortId);

    /// Returns a counter that increases whenever [`moves`](Self::moves) of any port changes. Must be read before the snapshot.
    fn endings(&self) -> u64;

    /// Opens a latch. With `Some`, only if [`passed`](Self::passed) still equals that number. Returns whether the latch is open.
    fn open(&self, latch: FlowLatch, passed: Option<u64>) -> bool;
}

/// The control thread's view of a flow cache in the kernel.
pub trait KernelFlows: FlowCache {
    /// Prepares for workers that confirm flows for a snapshot which is about to be published.
    fn expect(&self, snapshot: &Snapshot);

    /// Returns the flows that [`enter`](Self::enter) would end, first those in use, and the number of these.
    fn ending(&self, snapshot: &Snapshot) -> (Vec<ForwardedFlow>, usize);

    /// Ends the flows that older snapshots allowed and nobody has confirmed ([`FlowCache::confirm`]), of all ports whose epochs the snapshot
    /// changes ([`Snapshot::after`]). Must be called before publishing the snapshot, so that flows added by the old snapshot stay unused.
    fn enter(&self, snapshot: &Snapshot);

    /// Ends all flows from and to a port until [`enter`](Self::enter) sees another epoch of it.
    fn leave(&self, port: PortId);

    /// Returns the traffic of the slot's port, which the cache forwarded or dropped, since the port got the slot.
    fn traffic(&self, slot: FlowSlot) -> CachedTraffic;

    /// Packets that the cache forwarded for sessions allowed by this origin's rule. Always 0 for origins after a process's first 65,534,
    /// which lasts days at ten new policies a minute.
    fn allowed_by(&self, origin: OriginId) -> u64;

    /// Returns the number of flows added or renewed.
    fn added(&self) -> u64;

    /// Returns the number of flows that the kernel refused. Their packets go through the workers.
    fn failed(&self) -> u64;
}

/// A port's packets that a cache forwarded or dropped without a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedTraffic {
    /// Packets received on the port and forwarded.
    pub received: u64,
    /// Bytes of these packets, each counted as its IP length plus the Ethernet header.
    pub received_bytes: u64,
    /// Packets forwarded out of the port.
    pub sent: u64,
    /// Bytes of these packets, each counted as its IP length plus the Ethernet header.
    pub sent_bytes: u64,
    /// Packets from the port that were dropped because the port exceeded its limit of packets to the workers.
    pub limited: u64,
    /// Packets dropped because the node's kernel sent them to the port without the vswitch.
    pub bypassed: u64,
}

impl CachedTraffic {
    /// Returns the sum of both counters.
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

    /// Returns the difference to earlier counters of the slot, each at least 0.
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
