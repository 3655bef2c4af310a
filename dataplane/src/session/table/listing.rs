//! What others are told of the sessions, and how they end some: page by page, so that no packet waits for long.

use std::net::IpAddr;

use bulkhead_classifier::OriginId;

use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::Slot;
use super::SessionTable;
use crate::PortId;

/// Places that one page looks at. Each is a cache line: some ten microseconds, as a burst of new sessions takes.
const PAGE: Slot = 1024;

/// A session as others are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Who began it: address, and port (or the identifier of a ping).
    pub initiator: (IpAddr, u16),
    /// With whom. For a connection to a Service the endpoint that it was given.
    pub responder: (IpAddr, u16),
    /// The Service's address and port that the initiator has used; none for a connection to no Service.
    pub service: Option<(IpAddr, u16)>,
    /// The source that the endpoint sees, where that is not the initiator.
    pub source: Option<(IpAddr, u16)>,
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

/// Sessions by what is known of them. What is not said does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSelector {
    /// Of this port, whichever side it is.
    pub port: Option<PortId>,
    /// Of this address, whichever side it is, the Service's included.
    pub address: Option<IpAddr>,
    /// To this destination port, as the initiator or as the responder has it.
    pub service: Option<u16>,
}

impl SessionSelector {
    /// Whether the session is one of them.
    pub fn selects(&self, session: &SessionInfo) -> bool {
        let ends = [Some(session.initiator), Some(session.responder), session.service, session.source];
        let has = |address: IpAddr| ends.iter().flatten().any(|end| end.0 == address);
        let is_to = |port: u16| [Some(session.responder), session.service].iter().flatten().any(|end| end.1 == port);
        self.port.is_none_or(|port| session.in_port == port || session.out_port == port)
            && self.address.is_none_or(has)
            && self.service.is_none_or(is_to)
    }
}

/// What became of a part of a table whose sessions were to end.
#[derive(Clone, Debug, Default)]
pub struct EndedSessions {
    /// The sessions that have ended.
    pub sessions: Vec<SessionInfo>,
    /// Where the next page begins; none when this was the last one.
    pub next: Option<u32>,
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
        let (slots, next) = self.slots(from);
        SessionPage { sessions: slots.filter_map(|slot| self.info(slot, now)).collect(), next }
    }

    /// Ends the sessions of such a part that are selected. Their next packets belong to none.
    pub(crate) fn end_selected(&mut self, from: Slot, selector: &SessionSelector, now: u64) -> EndedSessions {
        let (slots, next) = self.slots(from);
        let mut sessions = Vec::new();
        for slot in slots {
            if let Some(session) = self.info(slot, now).filter(|session| selector.selects(session)) {
                self.remove(slot);
                sessions.push(session);
            }
        }
        EndedSessions { sessions, next }
    }

    /// The places of a page, and where the next one begins.
    fn slots(&self, from: Slot) -> (std::ops::Range<Slot>, Option<Slot>) {
        let end = from.saturating_add(PAGE).min(self.fresh);
        (from.min(end)..end, (end < self.fresh).then_some(end))
    }

    /// The session at a place, if there is one.
    fn info(&self, slot: Slot, now: u64) -> Option<SessionInfo> {
        let entry = self.entry(slot);
        let is_session = !entry.is_free() && entry.class() != Class::Refused;
        if !is_session || self.is_expired(slot, now) {
            return None;
        }
        self.describe(slot, now)
    }

    /// What an entry is, whatever its class and time.
    pub(super) fn describe(&self, slot: Slot, now: u64) -> Option<SessionInfo> {
        let entry = self.entry(slot);
        if entry.is_free() {
            return None;
        }
        let [source, responder] = entry.endpoints(Direction::Forward);
        let rewrite = self.rewrite(slot);
        let initiator = rewrite.map_or(source, |rewrite| rewrite.client());
        let (in_port, out_port) = entry.ports(Direction::Forward);
        Some(SessionInfo {
            initiator,
            responder,
            // A masqueraded connection has its destination there; of a ping both ends have the identifier that each side knows.
            service: rewrite
                .map(|rewrite| rewrite.vip())
                .filter(|vip| if entry.key().is_echo() { vip.0 != responder.0 } else { *vip != responder }),
            source: Some(source).filter(|source| *source != initiator),
            protocol: entry.key().protocol(),
            state: entry.class().name(),
            in_port,
            out_port,
            origin: Some(OriginId(entry.origin)).filter(|origin| origin.0 != u32::MAX),
            idle: now.saturating_sub(entry.seen_at),
        })
    }
}
