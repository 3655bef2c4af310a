//! Tells the flow cache which flows of sessions it may forward, and for how long.

use super::Worker;
use crate::io::{FirstNumbers, FlowChange, FlowChangeKind, FlowSteps, Initiator};
use crate::packet::{self, Inner, Payload, Plain, Ports, TcpFlags};
use crate::session::{Direction, Key, Match, Slot};
use crate::{Flow, LinkType, PortId};

use bulkhead_classifier::{OriginId, protocol};

/// A lease is at most this fraction (1/n) of the session's timeout, because workers do not see its packets meanwhile.
const LEASES_PER_TIMEOUT: u64 = 16;

/// A session's flow whose packets the flow cache may forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cacheable {
    pub(crate) flow: Flow,
    /// Keyed hash of the session, equal in both directions.
    pub(crate) hash: u64,
    pub(crate) origin: Option<OriginId>,
    /// The longest time for which the cache may forward the flow without a packet at a worker, in nanoseconds.
    pub(crate) lease: u64,
    /// The session's idle timeout in nanoseconds.
    pub(crate) timeout: u64,
}

/// The session of a connection whose SYN or SYN-ACK is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The addresses and ports of the packet as received.
    pub(crate) flow: Flow,
    /// The end of that flow which has sent the SYN.
    pub(crate) initiator: Initiator,
    pub(crate) session: Opened,
    pub(crate) origin: Option<OriginId>,
    /// Timeout of the session before its handshake has ended, in nanoseconds.
    pub(crate) timeout: u64,
    /// Timeout of the session after its handshake, in nanoseconds.
    pub(crate) established: u64,
    pub(crate) numbers: FirstNumbers,
    /// Whether workers must read the client's server name.
    pub(crate) is_unchecked: bool,
}

/// A session as an [`Opening`] has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The session's slot in the session table.
    pub(crate) slot: Slot,
    key: Key,
}

impl Worker {
    /// Returns the session of a SYN or SYN-ACK, if the session still exists and is not established. The frame must be unchanged.
    pub(crate) fn opening(&self, frame: &[u8], in_port: PortId) -> Option<Opening> {
        let (key, from_low, flags) = plain_key(frame)?;
        if key.protocol() != protocol::TCP || !flags.has(TcpFlags::SYN) {
            return None;
        }
        let (slot, timeout) = self.sessions.begun(self.sessions.hash(&key), &key)?;
        let entry = self.sessions.entry(slot);
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        let is_mine = entry.is_session_of(self.epoch) && entry.ports(direction).0 == in_port;
        if !is_mine {
            return None;
        }
        let span = Payload::of(LinkType::Ethernet, frame, frame.len())?.segment()?;
        let (initiator, numbers) = match direction {
            // Without the data of a TCP Fast Open, which the SYN-ACK need not acknowledge (RFC 7413 §3).
            Direction::Forward if flags.opens() => (Initiator::Source, (span.seq.wrapping_add(1), None)),
            Direction::Forward => return None,
            Direction::Reply => (Initiator::Destination, (span.ack?, Some(span.end))),
        };
        Some(Opening {
            flow: flow(&key, from_low),
            initiator,
            session: Opened { slot, key },
            origin: origin(entry.origin),
            timeout,
            established: self.sessions.established_timeout(),
            numbers: FirstNumbers { initiator: numbers.0, responder: numbers.1 },
            is_unchecked: self.sessions.is_unchecked(slot),
        })
    }

    /// Returns the slot of the session of a SYN, FIN or reset, and whether it is a SYN that opens a connection. `None` for all other packets
    /// and without a session.
    pub(crate) fn controlled(&self, frame: &[u8]) -> Option<(Slot, bool)> {
        let (key, _, flags) = plain_key(frame).filter(|(_, _, flags)| flags.is_control())?;
        let slot = self.sessions.lookup(self.sessions.hash(&key), &key)?;
        Some((slot, flags.opens()))
    }

    /// Brings the session of an [`Opening`] of the time `since` up to date with what the flow cache has forwarded of its connection. Returns
    /// false if the session has ended.
    pub(crate) fn follow_steps(&mut self, opened: &Opened, steps: &FlowSteps, since: u64, now: u64) -> bool {
        self.now.time = self.now.time.max(now);
        let is_alive = self.sessions.is_alive(opened.slot, &opened.key, self.now.time);
        if is_alive {
            self.sessions.follow_steps(opened.slot, steps, since, self.now);
        }
        is_alive
    }

    /// Brings the session of a flow up to date with what the flow cache saw of its TCP connection.
    pub(crate) fn learn(&mut self, change: &FlowChange, now: u64) {
        self.now.time = self.now.time.max(now);
        let Flow { src, dst, protocol, sport, dport, .. } = change.flow;
        let (key, from_low) = Key::of(src, dst, protocol, Ports::Pair(sport, dport));
        let Some(slot) = self.sessions.find(self.sessions.hash(&key), &key, self.now.time) else { return };
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        match change.kind {
            FlowChangeKind::Established(next) => {
                let steps = FlowSteps { answered: Some(next), has_ended: true, fins: [false; 2] };
                self.sessions.follow_steps(slot, &steps, self.now.time, self.now);
            }
            FlowChangeKind::Closed => {
                self.sessions.touch(slot, direction, Some(TcpFlags(TcpFlags::FIN | TcpFlags::ACK)), self.now);
            }
            FlowChangeKind::Reset => self.sessions.doubt_open(slot, self.now),
        }
    }

    /// Returns the flow of a hit if its next packets will be hits too, whatever they contain: UDP, and TCP between its handshake and its
    /// end. The snapshot must be the one that judged the packet, and the frame must be unchanged.
    pub(crate) fn cacheable(&self, frame: &[u8], in_port: PortId) -> Option<Cacheable> {
        let (key, from_low, flags) = plain_key(frame)?;
        let hash = self.sessions.hash(&key);
        let (slot, shortest) = self.sessions.established(hash, &key)?;
        let entry = self.sessions.entry(slot);
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        let is_plain = key.protocol() != protocol::TCP || !flags.is_control();
        let is_hit = entry.is_session_of(self.epoch) && entry.is_plain(direction);
        if !is_plain || !is_hit || entry.ports(direction).0 != in_port {
            return None;
        }
        let (lease, timeout) = (shortest / LEASES_PER_TIMEOUT, self.sessions.timeout(slot));
        Some(Cacheable { flow: flow(&key, from_low), hash, origin: origin(entry.origin), lease, timeout })
    }
}

/// Returns an entry's origin. `None` for the number that represents no origin.
fn origin(number: u32) -> Option<OriginId> {
    (number != u32::MAX).then_some(OriginId(number))
}

/// Returns the flow of a packet with this key. `from_low` tells whether its source is the lower endpoint.
fn flow(key: &Key, from_low: bool) -> Flow {
    let [(src, sport), (dst, dport)] = key.endpoints(from_low);
    Flow { src, dst, protocol: key.protocol(), sport, dport, icmp: None }
}

/// Returns a plain packet's key, whether its source is the lower endpoint, and its flags.
fn plain_key(frame: &[u8]) -> Option<(Key, bool, TcpFlags)> {
    let ((key, from_low), flags) = match packet::open(LinkType::Ethernet, frame, frame.len())?.0 {
        Inner::V4(packet) => {
            let Plain { src, dst, protocol, sport, dport, flags, .. } = packet::parse_plain_v4(packet)?;
            (Key::v4(src, dst, protocol, sport, dport), flags)
        }
        Inner::V6(packet) => {
            let Plain { src, dst, protocol, sport, dport, flags, .. } = packet::parse_plain_v6(packet)?;
            (Key::v6(src, dst, protocol, sport, dport), flags)
        }
    };
    Some((key, from_low, flags))
}
