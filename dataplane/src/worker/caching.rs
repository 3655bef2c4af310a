//! What a flow cache may be told of a session.

use super::Worker;
use crate::packet::{self, Inner, Payload, Plain, TcpFlags};
use crate::session::{Direction, Key, Match};
use crate::{Flow, LinkType, PortId};

use bulkhead_classifier::{OriginId, protocol};

/// A lease is at most this part of the time that the session lives without packets: its packets are not seen meanwhile.
const LEASES_PER_TIMEOUT: u64 = 16;

/// A flow whose packets need not be judged one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cacheable {
    pub(crate) flow: Flow,
    /// The keyed hash of the session, the same for both directions.
    pub(crate) hash: u64,
    pub(crate) origin: Option<OriginId>,
    /// How long the session may go without a packet that the worker sees, in nanoseconds.
    pub(crate) lease: u64,
}

/// The session of a connection whose SYN-ACK is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// Who talks to whom in the SYN-ACK as it came in.
    pub(crate) flow: Flow,
    pub(crate) session: SessionKey,
    pub(crate) origin: Option<OriginId>,
    /// How long the session may go without a packet that the worker sees, in nanoseconds, before its handshake has ended.
    pub(crate) timeout: u64,
    /// The acknowledgement number of the segment that ends the handshake.
    pub(crate) acknowledgement: u32,
}

/// By what a session is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionKey {
    key: Key,
    hash: u64,
}

impl Worker {
    /// The session of a packet that is among [`Worker::openings`], if that is still so. The frame is as it came.
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
        Some(Opening { flow, session, origin, timeout, acknowledgement: span.end })
    }

    /// A connection whose SYN-ACK came at `since` is established, though no worker has seen the segment that ended its handshake.
    pub(crate) fn end_handshake(&mut self, session: &SessionKey, since: u64, now: u64) {
        self.now.time = self.now.time.max(now);
        if let Some(slot) = self.sessions.find(session.hash, &session.key, self.now.time) {
            self.sessions.end_handshake(slot, since, self.now);
        }
    }

    /// The flow of a packet that was judged to be a hit, when the next ones of it will be hits too, whatever they carry: UDP,
    /// and TCP between its handshake and its end. The snapshot must be the one that the packet was judged by, and the frame is as it came.
    pub(crate) fn cacheable(&self, frame: &[u8], in_port: PortId) -> Option<Cacheable> {
        let (key, from_low, flags) = plain_key(frame)?;
        let hash = self.sessions.hash(&key);
        let (slot, timeout) = self.sessions.established(hash, &key)?;
        let entry = self.sessions.entry(slot);
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        let is_plain = key.protocol() != protocol::TCP || !flags.is_control();
        let is_hit = entry.is_session_of(self.epoch) && entry.is_plain(direction);
        if !is_plain || !is_hit || entry.ports(direction).0 != in_port {
            return None;
        }
        let lease = timeout / LEASES_PER_TIMEOUT;
        Some(Cacheable { flow: flow(&key, from_low), hash, origin: origin(entry.origin), lease })
    }
}

/// As an entry has it.
fn origin(number: u32) -> Option<OriginId> {
    (number != u32::MAX).then_some(OriginId(number))
}

/// Who talks to whom.
fn flow(key: &Key, from_low: bool) -> Flow {
    let [(src, sport), (dst, dport)] = key.endpoints(from_low);
    Flow { src, dst, protocol: key.protocol(), sport, dport, icmp: None }
}

/// The key of a plain packet, whether it goes from the lower endpoint to the higher one, and its flags.
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
