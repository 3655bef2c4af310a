//! Lists and ends sessions page by page, so that packets do not wait long.

use std::net::IpAddr;

use bulkhead_classifier::OriginId;

use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::Slot;
use super::SessionTable;
use crate::PortId;

/// Slots per page. Each is a cache line: about ten microseconds, like a burst of new sessions.
const PAGE: Slot = 1024;

/// A session, as reported to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The initiator's address and port, or the identifier of a ping.
    pub initiator: (IpAddr, u16),
    /// The responder's address and port. For a connection to a Service, the endpoint.
    pub responder: (IpAddr, u16),
    /// The Service's address and port that the initiator used. `None` without a Service.
    pub service: Option<(IpAddr, u16)>,
    /// The source that the endpoint sees. `None` if it is the initiator's.
    pub source: Option<(IpAddr, u16)>,
    /// IANA protocol number.
    pub protocol: u8,
    /// The state's name: `new`, `established`, ...
    pub state: &'static str,
    /// The port that receives the initiator's packets.
    pub in_port: PortId,
    /// The port that sends the initiator's packets.
    pub out_port: PortId,
    /// The origin of the rule that allowed the session. `None` if no rule did.
    pub origin: Option<OriginId>,
    /// Nanoseconds since a worker saw a packet. Packets forwarded by the kernel count when the flow's lease is renewed.
    pub idle: u64,
}

/// Selects sessions. Fields that are `None` match every session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSelector {
    /// Match sessions that enter or leave the vswitch through this port.
    pub port: Option<PortId>,
    /// Match this address on either side, or as the Service's address.
    pub address: Option<IpAddr>,
    /// Match this destination port, before or after translation.
    pub service: Option<u16>,
}

impl SessionSelector {
    /// Whether the session matches.
    pub fn selects(&self, session: &SessionInfo) -> bool {
        let ends = [Some(session.initiator), Some(session.responder), session.service, session.source];
        let has = |address: IpAddr| ends.iter().flatten().any(|end| end.0 == address);
        let is_to = |port: u16| [Some(session.responder), session.service].iter().flatten().any(|end| end.1 == port);
        self.port.is_none_or(|port| session.in_port == port || session.out_port == port)
            && self.address.is_none_or(has)
            && self.service.is_none_or(is_to)
    }
}

/// The sessions of one page that matched a selector and were ended.
#[derive(Clone, Debug, Default)]
pub struct EndedSessions {
    /// The sessions that were ended.
    pub sessions: Vec<SessionInfo>,
    /// The slot at which the next page begins. `None` after the last page.
    pub next: Option<u32>,
}

/// A page of sessions: those in a range of consecutive slots.
#[derive(Clone, Debug, Default)]
pub struct SessionPage {
    /// The sessions, without refusals.
    pub sessions: Vec<SessionInfo>,
    /// The slot at which the next page begins. `None` after the last page.
    pub next: Option<u32>,
}

impl SessionTable {
    /// Returns the sessions of the page that begins at slot `from`; 0 is the first page. A session that begins or ends between two pages
    /// may be missing. No session is in two pages.
    pub(crate) fn page(&self, from: Slot, now: u64) -> SessionPage {
        let (slots, next) = self.slots(from);
        SessionPage { sessions: slots.filter_map(|slot| self.info(slot, now)).collect(), next }
    }

    /// Ends the sessions that match `selector` in the page that begins at slot `from`.
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

    /// Returns the slots of a page and the start of the next page.
    fn slots(&self, from: Slot) -> (std::ops::Range<Slot>, Option<Slot>) {
        let end = from.saturating_add(PAGE).min(self.fresh);
        (from.min(end)..end, (end < self.fresh).then_some(end))
    }

    /// Returns the session in a slot. `None` for free slots, refusals and expired sessions.
    fn info(&self, slot: Slot, now: u64) -> Option<SessionInfo> {
        let entry = self.entry(slot);
        let is_session = !entry.is_free() && entry.class() != Class::Refused;
        if !is_session || self.is_expired(slot, now) {
            return None;
        }
        self.describe(slot, now)
    }

    /// Describes the entry in a slot, which may be a refusal or have expired. `None` if the slot is free.
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
            // For a masqueraded connection the VIP is the destination. Both ends of a ping have their own identifier.
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
