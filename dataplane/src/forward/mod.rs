//! # Forwarding: rewriting packets after their verdict
//!
//! **Purpose.** The engine decides which port a packet leaves through. A [`Forwarder`] prepares the packet for that link: it decrements the
//! TTL and writes MAC addresses. It resolves unknown MAC addresses (ARP, IPv6 neighbour discovery), holds packets meanwhile, answers
//! requests for the vswitch's addresses, and sends ICMP errors.
//!
//! **Not its purpose.** No I/O, no clock and no frames: it works on bytes, gets the time in nanoseconds and writes its own messages into
//! the caller's buffers. No policy.
//!
//! ```text
//!            verdict          known              resolved
//!   engine ----------> forward -----> Send(out)  <------- held packets --3 s--> Drop(no_neighbour)
//!                         |  `- unknown -> Hold ------------^   |
//!                         |                                   ask: ARP request, neighbour solicitation
//!                         |- ARP, ND: answer (rate limited), learn -> Consumed
//!                         `- Drop -> report: ICMP error or TCP reset, rate limited
//! ```
//!
//! The vswitch is a router with one MAC address per port. On pod and host ports it answers ARP and neighbour solicitations for every
//! address except the asker's own (proxy ARP), so pods may use any gateway. It announces the conventional ones on a new port. On the uplink
//! it answers only for addresses of the node and its pods. ARP, neighbour discovery and router advertisements are never forwarded. A host
//! behind the vswitch needs static routes or its own routing daemon.
//!
//! The vswitch and the host's network stack form one node, so the TTL stays between the host port and any other port. Otherwise single-hop
//! routing sessions would break (eBGP with TTL 1, RFC 5082 with TTL 255), and traceroute would show the node twice.
//!
//! **Invariant.** A frame leaves with the MAC address of its next hop, as announced by that next hop on that port. A pod's MAC address is
//! the source of its first valid packet and stays until its interface is removed. A neighbour's comes from a solicited answer only. The
//! packet path takes no lock and does not allocate, except for unresolved neighbours, answers and timeouts.

mod bucket;
mod discovery;
mod fields;
mod fragmentation;
mod gateway;
mod icmp;
mod limits;
mod message;
mod neighbour_table;
mod neighbours;
mod notice;
mod pending;
mod refusal;
mod report;
mod resolve;
pub mod rewrite;
mod segment;
mod side;
mod translate;

use std::collections::VecDeque;
use std::sync::Arc;

pub use icmp::ERROR_MAX;
pub use message::MESSAGE_MAX;
pub use neighbour_table::NeighbourId;
pub use neighbours::Neighbours;
pub use translate::{translate, translate_error};
pub(crate) use translate::{write_ends, write_plain_v4};

use crate::wire::ethernet::{self, Mac, ethertype};
use crate::{DropReason, PortId, PortKind, Snapshot, Verdict};
pub(crate) use fragmentation::Fragmentation;
use gateway::Gateway;
use limits::Limits;
use message::Message;
use neighbours::ViewReader;
use pending::PendingPackets;
use side::Side;

/// Maximum number of messages waiting to be sent: a burst of requests and their answers.
const MAX_MESSAGES: usize = 2 * crate::BURST;

/// What to do with a packet after [`Forwarder::forward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet is ready to be sent on this port.
    Send(PortId),
    /// The packet is ready for this port but exceeds its MTU and must be fragmented.
    Fragment(PortId),
    /// The packet only lacks the MAC address of this neighbour. Give it to [`Forwarder::hold`].
    Hold(NeighbourId),
    /// The packet was ARP or neighbour discovery for the vswitch itself.
    Consumed,
    /// The packet is dropped, and its bytes are unchanged. Call [`Forwarder::report`] to notify the sender.
    Drop(DropReason),
}

/// A packet that was held for its neighbour's MAC address, and is now to be sent or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<T> {
    /// The packet, as the caller gave it to [`Forwarder::hold`].
    pub packet: T,
    /// The port that received it.
    pub in_port: PortId,
    /// The output port.
    pub out: PortId,
    /// The 12 bytes to write to the start of the frame ([`rewrite::ethernet`]), or the reason to drop the packet.
    pub addresses: Result<[u8; 12], DropReason>,
}

/// Counters of a forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounters {
    /// ARP requests and neighbour solicitations answered.
    pub answered: u64,
    /// ARP requests and neighbour solicitations sent.
    pub requested: u64,
    /// MAC addresses learned or confirmed.
    pub learned: u64,
    /// Received ARP replies and neighbour advertisements that answered no open request.
    pub unsolicited: u64,
    /// Messages dropped because the queue of outgoing messages was full.
    pub messages_lost: u64,
    /// ICMP errors sent.
    pub errors_sent: u64,
    /// ICMP errors suppressed by the rate limit.
    pub errors_suppressed: u64,
    /// Senders notified that policy denies a packet, that a Service has no endpoint or that no pod has an address. Peers of sessions whose
    /// pod is gone count too, once when they are notified first and once for a reset.
    pub refused: u64,
    /// Notifications of refused packets and ended sessions that the rate limit suppressed.
    pub refusals_suppressed: u64,
}

/// Whether forwarding between ports of these kinds decrements the TTL. The node itself is no hop.
pub const fn is_hop(from: PortKind, to: PortKind) -> bool {
    !matches!(from, PortKind::Host) && !matches!(to, PortKind::Host)
}

/// A worker's forwarder. `T` is the caller's type of a held packet.
#[derive(Debug)]
pub struct Forwarder<T> {
    neighbours: Arc<Neighbours>,
    view: ViewReader,
    /// The state from which `sides` and `gateways` were built: generation, number of peer changes, and version of the view.
    made_from: Option<(u64, u64, u64)>,
    sides: Vec<Side>,
    /// The routes' gateways, indexed by their number in the routes.
    gateways: Vec<Gateway>,
    now: u64,
    pending: PendingPackets<T>,
    /// Whether a neighbour may have been resolved for which packets are held.
    has_news: bool,
    released: VecDeque<Released<T>>,
    messages: VecDeque<(PortId, Mac, Message)>,
    /// Ports on which the conventional gateways are not announced yet.
    unannounced: VecDeque<PortId>,
    limits: Limits,
    next_tick: u64,
    next_probe: u64,
    counters: ForwardCounters,
}

impl<T> Forwarder<T> {
    /// Creates a worker's forwarder. All workers of a vswitch share `neighbours`.
    pub fn new(neighbours: Arc<Neighbours>) -> Self {
        Self {
            view: neighbours.reader(),
            neighbours,
            made_from: None,
            sides: Vec::new(),
            gateways: Vec::new(),
            now: 0,
            pending: PendingPackets::new(),
            has_news: false,
            released: VecDeque::new(),
            messages: VecDeque::with_capacity(MAX_MESSAGES),
            unannounced: VecDeque::new(),
            limits: Limits::new(),
            next_tick: 0,
            next_probe: 0,
            counters: ForwardCounters::default(),
        }
    }

    /// Begins a burst. Call it before all other methods, with the same snapshot. `now` is in nanoseconds and must not decrease.
    pub fn begin(&mut self, snapshot: &Snapshot, now: u64) {
        self.now = self.now.max(now);
        let made_from = (snapshot.generation(), self.neighbours.peer_changes(), self.view.load().version);
        if self.made_from == Some(made_from) {
            return;
        }
        let is_new = self.made_from.is_some_and(|(generation, ..)| generation != made_from.0);
        self.made_from = Some(made_from);
        side::refresh(&mut self.sides, snapshot, &self.neighbours);
        self.limits.know_ports(self.sides.len());
        gateway::refresh(&mut self.gateways, snapshot, &self.sides, self.view.load());
        self.has_news = true;
        if is_new {
            self.release_all();
        }
    }

    /// Drops held packets after a change of generation: the tables that allowed them are no longer in force, and they are not judged again.
    fn release_all(&mut self) {
        while let Some((neighbour, queue)) = self.pending.take_older(u64::MAX) {
            let reason = self.resolution(&neighbour).and_then(Result::err).unwrap_or(DropReason::NoNeighbour);
            self.release(neighbour, queue, Err(reason));
        }
    }

    /// Checks a frame's MAC addresses before the engine judges it.
    ///
    /// # Errors
    /// [`DropReason::SpoofedSource`] if the source is not the pod's MAC address, [`DropReason::OtherHost`] for a frame on the uplink to
    /// another machine, [`DropReason::Multicast`] for an IP unicast in a link broadcast on the uplink (RFC 1812 §5.3.4),
    /// [`DropReason::UnknownPort`].
    #[inline]
    pub fn admit(&self, in_port: PortId, frame: &[u8]) -> Result<(), DropReason> {
        self.sides.get(in_port.index()).ok_or(DropReason::UnknownPort)?.admit(frame)
    }

    /// Prepares a packet for its output link. Call it for every verdict: without a host port the engine drops ARP as `no_route`, but the
    /// vswitch still answers it.
    ///
    /// `frame` is the packet's first frame from the Ethernet header on and contains all headers. `wire_len` is the length of the whole
    /// packet with its Ethernet header.
    #[inline]
    pub fn forward(
        &mut self,
        snapshot: &Snapshot,
        frame: &mut [u8],
        wire_len: usize,
        in_port: PortId,
        verdict: Verdict,
    ) -> Step {
        match verdict {
            Verdict::Forward(out) if self.pass(snapshot, frame, wire_len, in_port, out) => Step::Send(out),
            _ => self.forward_any(snapshot, frame, wire_len, in_port, verdict),
        }
    }

    /// The fast path of [`Forwarder::forward`] for plain packets to a known pod, host or gateway. Returns false, without changes, if the
    /// packet needs the slow path. Changes no state, so that an inlined loop keeps fields of `self` in registers.
    #[inline(always)]
    pub(crate) fn pass(
        &self,
        snapshot: &Snapshot,
        frame: &mut [u8],
        wire_len: usize,
        in_port: PortId,
        out: PortId,
    ) -> bool {
        if let (Some(from), Some(to)) = (self.sides.get(in_port.index()), self.sides.get(out.index()))
            && to.fits(wire_len)
            && from.has_sent(frame)
            && let Some(addresses) = self.known_addresses(snapshot, to, out, frame)
            && pass(frame, is_hop(from.kind, to.kind))
        {
            rewrite::ethernet(frame, addresses);
            return true;
        }
        false
    }

    /// Returns the MAC addresses of a frame to the next hop: the port's only peer, or a recently confirmed gateway. `None` for others.
    #[inline]
    fn known_addresses<'a>(
        &'a self,
        snapshot: &Snapshot,
        to: &'a Side,
        out: PortId,
        frame: &[u8],
    ) -> Option<&'a [u8; 12]> {
        if to.is_known {
            return Some(to.addresses());
        }
        let destination = fields::destination_of(frame)?;
        if fields::is_link_local(destination) {
            return None;
        }
        let hop = snapshot.routes().find(destination)?;
        self.gateways.get(usize::from(hop.gateway))?.addresses(out, self.now)
    }

    /// The slow path of [`Forwarder::forward`].
    #[inline(never)]
    fn forward_any(
        &mut self,
        snapshot: &Snapshot,
        frame: &mut [u8],
        wire_len: usize,
        in_port: PortId,
        verdict: Verdict,
    ) -> Step {
        let step = match verdict {
            // The engine looks for a route only after all other checks.
            Verdict::Forward(_) | Verdict::Drop(DropReason::NoRoute) if !fields::is_plain(frame) => {
                self.receive(snapshot, frame, wire_len, in_port)
            }
            _ => Ok(None),
        };
        match (step, verdict) {
            (Ok(Some(step)), _) => step,
            (Err(reason), _) | (Ok(None), Verdict::Drop(reason)) => Step::Drop(reason),
            (Ok(None), Verdict::Forward(out)) => {
                self.forward_packet(snapshot, frame, wire_len, in_port, out).unwrap_or_else(Step::Drop)
            }
        }
    }

    fn forward_packet(
        &mut self,
        snapshot: &Snapshot,
        frame: &mut [u8],
        wire_len: usize,
        in_port: PortId,
        out: PortId,
    ) -> Result<Step, DropReason> {
        self.learn_source(in_port, frame)?;
        let from = self.sides.get(in_port.index()).ok_or(DropReason::UnknownPort)?.kind;
        let to = *self.sides.get(out.index()).ok_or(DropReason::UnknownPort)?;
        if !to.has_link() {
            return Err(DropReason::PortDown);
        }
        let is_whole = to.fits(wire_len);
        if !is_whole && self.fragmentation(frame, out).is_none() {
            return Err(DropReason::PacketTooBig);
        }
        let destination = fields::destination_of(frame).ok_or(DropReason::UnknownEthertype)?;
        if is_hop(from, to.kind) && !take_hop(frame) {
            return Err(DropReason::TtlExpired);
        }
        Ok(match self.find(snapshot, &to, out, destination) {
            Ok(addresses) => {
                rewrite::ethernet(frame, &addresses);
                if is_whole { Step::Send(out) } else { Step::Fragment(out) }
            }
            // The MTU is checked again when the packet is released.
            Err(neighbour) => Step::Hold(neighbour),
        })
    }

    /// Whether a frame of this length in bytes fits the port's MTU.
    pub(crate) fn fits(&self, out: PortId, frame_len: usize) -> bool {
        self.sides.get(out.index()).is_some_and(|side| side.fits(frame_len))
    }

    /// Returns how to fragment a packet for the port. `None` if fragmentation is not allowed. `frame` contains all headers.
    pub(crate) fn fragmentation(&self, frame: &[u8], out: PortId) -> Option<Fragmentation> {
        let is_v4 = fields::ethertype_of(frame) == Some(ethertype::IPV4);
        let mtu = self.sides.get(out.index())?.mtu();
        Fragmentation::new(frame.get(ethernet::HEADER_LEN..).filter(|_| is_v4)?, mtu)
    }

    /// Whether [`Forwarder::write_message`] has a message to write.
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Writes the next outgoing ARP or neighbour discovery message as a whole frame. Returns the port and the length. `None` if no message
    /// waits, or if `into` is shorter than [`MESSAGE_MAX`].
    pub fn write_message(&mut self, into: &mut [u8]) -> Option<(PortId, usize)> {
        let (port, own, message) = *self.messages.front()?;
        let len = message.write(own, into)?;
        self.messages.pop_front();
        Some((port, len))
    }

    /// Returns the counters since the forwarder's creation.
    pub const fn counters(&self) -> ForwardCounters {
        self.counters
    }
}

/// Decrements the TTL of a plain packet if `hop` is set. Returns false, without changes, if the packet needs the slow path.
#[inline]
fn pass(frame: &mut [u8], hop: bool) -> bool {
    match fields::ethertype_of(frame) {
        Some(ethertype::IPV4) => !hop || rewrite::decrement_ttl(&mut frame[ethernet::HEADER_LEN..]),
        _ => fields::is_plain(frame) && (!hop || take_hop(frame)),
    }
}

/// Decrements the TTL or hop limit. Returns false if it is too low.
#[inline]
fn take_hop(frame: &mut [u8]) -> bool {
    match fields::ethertype_of(frame) {
        Some(ethertype::IPV4) => rewrite::decrement_ttl(&mut frame[ethernet::HEADER_LEN..]),
        Some(ethertype::IPV6) => rewrite::decrement_hop_limit(&mut frame[ethernet::HEADER_LEN..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
