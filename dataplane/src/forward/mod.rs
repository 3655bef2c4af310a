//! # Forwarding: what happens to a packet after its verdict
//!
//! **Purpose.** The engine says through which port a packet leaves. A [`Forwarder`] makes it a packet for that link: one
//! hop less, the next hop's MAC address. It finds out MAC addresses that it does not know (ARP, IPv6 neighbour
//! discovery), holds packets meanwhile, answers those who ask the vswitch, and tells senders by ICMP what cannot go on.
//!
//! **Not its purpose.** No I/O, no clock, no frames of its own: it works on bytes, time comes as nanoseconds, what is to
//! be sent besides is written into buffers that the caller gives. No policy.
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
//! The vswitch is a router with one MAC address per port. On pods' and host ports it answers for every address that is
//! not the asker's own (proxy ARP), so pods may have any gateway; on the uplink for the node's and its pods' only. ARP
//! and neighbour discovery end here and are never passed from port to port; nor are router advertisements, so a host
//! behind the vswitch has static routes or those of its own daemon.
//!
//! Vswitch and host stack together are the node: between the host port and any other the TTL stays as it is. Otherwise
//! routing daemons whose sessions live on one link (eBGP with TTL 1, RFC 5082 with 255) would break, and traceroute would
//! show the node twice.
//!
//! **Invariant.** A frame leaves with the MAC address of whoever owns its next hop, as far as that one said so itself on
//! that very port: a pod's address is the first with which it sent what it may send, and stays until its interface goes;
//! a neighbour's comes from an answer that was asked for. The packet path takes no lock and does not allocate; only
//! unresolved neighbours, answers and time-outs do.

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
mod pending;
mod refusal;
mod report;
mod resolve;
pub mod rewrite;
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

/// The most messages that wait to be sent: a burst of requests, each with its answer.
const MAX_MESSAGES: usize = 2 * crate::BURST;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is ready to be sent on this port.
    Send(PortId),
    /// It is ready to be sent on this port, but is too big for it and is to be cut into fragments.
    Fragment(PortId),
    /// It is ready but for the MAC address of this neighbour: to be given to [`Forwarder::hold`].
    Hold(NeighbourId),
    /// It was for the vswitch itself: ARP or neighbour discovery.
    Consumed,
    /// It goes nowhere; the sender may have to be told ([`Forwarder::report`]). The bytes are as they came.
    Drop(DropReason),
}

/// A packet that was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<T> {
    /// The packet.
    pub packet: T,
    /// The port that it came in on.
    pub in_port: PortId,
    /// The port that it was to leave through.
    pub out: PortId,
    /// What to write over the first 12 bytes ([`rewrite::ethernet`]) before it is sent; or why it is dropped.
    pub addresses: Result<[u8; 12], DropReason>,
}

/// What a forwarder did besides forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounters {
    /// ARP requests and neighbour solicitations that were answered.
    pub answered: u64,
    /// ARP requests and neighbour solicitations that were sent.
    pub requested: u64,
    /// MAC addresses that were learned or confirmed.
    pub learned: u64,
    /// Returns of neighbours that nobody had asked for.
    pub unsolicited: u64,
    /// Messages that found no room among those that wait to be sent.
    pub messages_lost: u64,
    /// ICMP errors that were sent.
    pub errors_sent: u64,
    /// ICMP errors that were not sent because there were too many of them.
    pub errors_suppressed: u64,
    /// Packets whose senders were told that policy denies them or that nobody serves the Service that they were for.
    pub refused: u64,
    /// Packets about which the same was not said because there were too many of them.
    pub refusals_suppressed: u64,
}

/// Whether a packet between ports of these kinds is forwarded to another machine or pod, which takes one off its TTL.
/// The node itself is where a packet begins or ends.
pub const fn is_hop(from: PortKind, to: PortKind) -> bool {
    !matches!(from, PortKind::Host) && !matches!(to, PortKind::Host)
}

/// One worker's forwarding. `T` is what the caller holds for a packet.
#[derive(Debug)]
pub struct Forwarder<T> {
    neighbours: Arc<Neighbours>,
    view: ViewReader,
    /// What `sides` and `gateways` were made from: generation, peers, view.
    made_from: Option<(u64, u64, u64)>,
    sides: Vec<Side>,
    /// By the number that the routes give them.
    gateways: Vec<Gateway>,
    now: u64,
    pending: PendingPackets<T>,
    /// Whether somebody who is waited for may have been learned.
    has_news: bool,
    released: VecDeque<Released<T>>,
    messages: VecDeque<(PortId, Mac, Message)>,
    limits: Limits,
    next_tick: u64,
    next_probe: u64,
    counters: ForwardCounters,
}

impl<T> Forwarder<T> {
    /// A worker's forwarder; all workers of a vswitch share `neighbours`.
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
            limits: Limits::new(),
            next_tick: 0,
            next_probe: 0,
            counters: ForwardCounters::default(),
        }
    }

    /// To be called once per burst, before anything else, with the snapshot that everything else gets too. `now` is in
    /// nanoseconds and does not go back.
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

    /// What is held was allowed by tables that are no more. Nobody judges it again, so it goes; its sender repeats what
    /// matters.
    fn release_all(&mut self) {
        while let Some((neighbour, queue)) = self.pending.take_older(u64::MAX) {
            let reason = self.resolution(&neighbour).and_then(Result::err).unwrap_or(DropReason::NoNeighbour);
            self.release(neighbour, queue, Err(reason));
        }
    }

    /// Whether a frame may come in at all; to be asked before the engine sees it. Looks at the MAC addresses.
    ///
    /// # Errors
    /// [`DropReason::SpoofedSource`] for a frame that does not carry its pod's MAC address, [`DropReason::OtherHost`] for
    /// one on the uplink that is for another machine, [`DropReason::Multicast`] for a packet that the uplink's link
    /// broadcasts (RFC 1812 §5.3.4), [`DropReason::UnknownPort`].
    #[inline]
    pub fn admit(&self, in_port: PortId, frame: &[u8]) -> Result<(), DropReason> {
        self.sides.get(in_port.index()).ok_or(DropReason::UnknownPort)?.admit(frame)
    }

    /// Makes a packet ready for the link that it leaves through. To be called with every verdict: where there is no host
    /// port, the engine finds no way for ARP, but the vswitch answers all the same.
    ///
    /// `frame` is the packet's first part, beginning with the Ethernet header; it holds all headers. `wire_len` is the
    /// length of the whole, Ethernet header included.
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

    /// The common case of [`Forwarder::forward`]: a plain packet to a known pod, host or gateway is made ready. False, and
    /// nothing changed, for all that has to be looked at more closely. Learns nothing, so that a loop over many packets
    /// keeps in registers what it reads of `self`; for that it has to be a part of the loop.
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

    /// The start of a frame to a port with one machine behind it or to a gateway that answered not long ago.
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

    /// Everything but a plain packet to a known pod, host or gateway.
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
            // The engine has made all its checks before it looks for a way out.
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
            // When it is released, it is seen again whether it fits.
            Err(neighbour) => Step::Hold(neighbour),
        })
    }

    /// Whether a frame of this length, in bytes, can be sent on the port.
    pub(crate) fn fits(&self, out: PortId, frame_len: usize) -> bool {
        self.sides.get(out.index()).is_some_and(|side| side.fits(frame_len))
    }

    /// How a packet is cut for the port, if it may be; `frame` holds all its headers.
    pub(crate) fn fragmentation(&self, frame: &[u8], out: PortId) -> Option<Fragmentation> {
        let is_v4 = fields::ethertype_of(frame) == Some(ethertype::IPV4);
        let mtu = self.sides.get(out.index())?.mtu();
        Fragmentation::new(frame.get(ethernet::HEADER_LEN..).filter(|_| is_v4)?, mtu)
    }

    /// Whether [`Forwarder::write_message`] has something to write.
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Writes the next ARP or neighbour discovery message that is to be sent, a whole frame. Returns the port and the
    /// length. None when there is none, or when `into` is shorter than [`MESSAGE_MAX`].
    pub fn write_message(&mut self, into: &mut [u8]) -> Option<(PortId, usize)> {
        let (port, own, message) = *self.messages.front()?;
        let len = message.write(own, into)?;
        self.messages.pop_front();
        Some((port, len))
    }

    /// What was done besides forwarding since the forwarder was made.
    pub const fn counters(&self) -> ForwardCounters {
        self.counters
    }
}

/// Takes one hop off a plain packet, if it is one and `hop` says so. False, and nothing changed, for all that has to be
/// looked at more closely.
#[inline]
fn pass(frame: &mut [u8], hop: bool) -> bool {
    match fields::ethertype_of(frame) {
        Some(ethertype::IPV4) => !hop || rewrite::decrement_ttl(&mut frame[ethernet::HEADER_LEN..]),
        _ => fields::is_plain(frame) && (!hop || take_hop(frame)),
    }
}

/// One off the TTL or hop limit; false when it does not allow it.
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
