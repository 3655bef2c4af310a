//! What a flow cache may be told of a session.

use super::Worker;
use crate::io::Translation;
use crate::packet::{self, Inner, Plain, Ports, TcpFlags};
use crate::session::{Key, Match};
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

impl Worker {
    /// The flow of a packet that was judged to be a hit, when the next ones of it will be hits too, whatever they carry: UDP,
    /// and TCP between its handshake and its end. The snapshot must be the one that the packet was judged by.
    ///
    /// `received` is what the packet came with, where other addresses have been written into it.
    pub(crate) fn cacheable(&self, frame: &[u8], in_port: PortId, received: Option<&Translation>) -> Option<Cacheable> {
        let (key, from_low, flags) = plain_key(frame)?;
        let protocol = key.protocol();
        let (key, from_low) = match received {
            Some(&Translation { src, dst, sport, dport }) => Key::of(src, dst, protocol, Ports::Pair(sport, dport)),
            None => (key, from_low),
        };
        let hash = self.sessions.hash(&key);
        let (slot, timeout) = self.sessions.established(hash, &key)?;
        let entry = self.sessions.entry(slot);
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        let is_plain = protocol != protocol::TCP || !flags.is_control();
        let is_hit = entry.is_session_of(self.epoch) && entry.is_plain(direction);
        if !is_plain || !is_hit || entry.ports(direction).0 != in_port {
            return None;
        }
        let [(src, sport), (dst, dport)] = key.endpoints(from_low);
        let lease = timeout / LEASES_PER_TIMEOUT;
        let origin = (entry.origin != u32::MAX).then_some(OriginId(entry.origin));
        Some(Cacheable { flow: Flow { src, dst, protocol, sport, dport, icmp: None }, hash, origin, lease })
    }
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
