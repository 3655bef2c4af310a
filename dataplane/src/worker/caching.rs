//! Tells the flow cache which flows of sessions it may forward, and for how long.

use super::Worker;
use crate::io::{FlowChange, FlowChangeKind};
use crate::packet::{self, Inner, Payload, Plain, Ports, TcpFlags};
use crate::session::{Direction, Key, Match};
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

/// The session of a connection whose SYN-ACK is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The addresses and ports of the SYN-ACK as received.
    pub(crate) flow: Flow,
    pub(crate) session: SessionKey,
    pub(crate) origin: Option<OriginId>,
    /// Timeout of the session before its handshake has ended, in nanoseconds.
    pub(crate) timeout: u64,
    /// Timeout of the session after its handshake, in nanoseconds.
    pub(crate) established: u64,
    /// Acknowledgement number of the segment that ends the handshake.
    pub(crate) acknowledgement: u32,
}

/// The key and hash that find a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionKey {
    key: Key,
    hash: u64,
}

impl Worker {
    /// Returns the session of a packet of [`Worker::openings`], if it still exists. The frame must be unchanged.
    pub(crate) fn opening(&self, frame: &[u8], in_port: PortId) -> Option<Opening> {
        let (key, from_low, _) = plain_key(frame)?;
        let session = SessionKey { key, hash: self.sessions.hash(&key) };
        let (slot, timeout) = self.sessions.begun(session.hash, &key)?;
        let entry = self.sessions.entry(slot);
        if !entry.is_session_of(self.epoch) || entry.ports(Direction::Reply).0 != in_port {
            return None;
        }
        let span = Payload::of(LinkType::Ethernet, frame, frame.len())?.segment()?;
        let (origin, flow) = (origin(entry.origin), flow(&key, from_low));
        let established = self.sessions.established_timeout();
        Some(Opening { flow, session, origin, timeout, established, acknowledgement: span.end })
    }

    /// Establishes a connection whose SYN-ACK came at `since`, although no worker has seen the segment that ended its handshake.
    pub(crate) fn end_handshake(&mut self, session: &SessionKey, since: u64, now: u64) {
        self.now.time = self.now.time.max(now);
        if let Some(slot) = self.sessions.find(session.hash, &session.key, self.now.time) {
            self.sessions.end_handshake(slot, since, self.now);
        }
    }

    /// Brings the session of a flow up to date with what the flow cache saw of its TCP connection.
    pub(crate) fn learn(&mut self, change: &FlowChange, now: u64) {
        self.now.time = self.now.time.max(now);
        let Flow { src, dst, protocol, sport, dport, .. } = change.flow;
        let (key, from_low) = Key::of(src, dst, protocol, Ports::Pair(sport, dport));
        let Some(slot) = self.sessions.find(self.sessions.hash(&key), &key, self.now.time) else { return };
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        match change.kind {
            FlowChangeKind::Established => self.sessions.end_handshake(slot, self.now.time, self.now),
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
