//! What others are told of the sessions: page by page, so that no packet waits for long.

use std::net::IpAddr;

use bulkhead_classifier::OriginId;

use super::super::class::Class;
use super::super::entry::{Direction, Slot};
use super::SessionTable;
use crate::PortId;

/// Places that one page looks at. Each is a cache line: some ten microseconds, as a burst of new sessions takes.
const PAGE: usize = 1024;

/// A session as others are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Who began it: address, and port (or the identifier of a ping).
    pub initiator: (IpAddr, u16),
    /// With whom.
    pub responder: (IpAddr, u16),
    /// The IANA protocol number.
    pub protocol: u8,
    /// Its state in words: `new`, `established`, ...
    pub state: &'static str,
    /// Where the initiator's packets come in.
    pub in_port: PortId,
    /// Where they leave.
    pub out_port: PortId,
    /// Which rule has allowed it.
    pub origin: Option<OriginId>,
    /// Nanoseconds since a worker saw a packet of it. Packets that the kernel forwards by itself do not count until the flow's lease is
    /// renewed.
    pub idle: u64,
}

/// A part of a table.
#[derive(Clone, Debug, Default)]
pub struct SessionPage {
    /// Its sessions. What was refused is none.
    pub sessions: Vec<SessionInfo>,
    /// Where the next page begins; none when this was the last one.
    pub next: Option<u32>,
}

impl SessionTable {
    /// The sessions of a part of the table that begins here; 0 is the beginning. One that comes or goes between two pages may be in
    /// none, and one is never in two.
    pub(crate) fn page(&self, from: Slot, now: u64) -> SessionPage {
        let used = self.fresh as usize;
        let start = (from as usize).min(used);
        let end = (start + PAGE).min(used);
        let known = self.entries()[start..end].iter().zip((from..).take(PAGE));
        let sessions = known.filter_map(|(entry, slot)| {
            let is_session = !entry.key.is_unused() && entry.class() != Class::Refused;
            if !is_session || self.is_expired(slot, now) {
                return None;
            }
            let [initiator, responder] = entry.endpoints(Direction::Forward);
            let (in_port, out_port) = entry.ports(Direction::Forward);
            Some(SessionInfo {
                initiator,
                responder,
                protocol: entry.key.protocol(),
                state: entry.class().name(),
                in_port,
                out_port,
                origin: Some(OriginId(entry.origin)).filter(|origin| origin.0 != u32::MAX),
                idle: now.saturating_sub(entry.seen_at),
            })
        });
        let next = (end < used).then(|| Slot::try_from(end).expect("slots are numbers of this type"));
        SessionPage { sessions: sessions.collect(), next }
    }
}
