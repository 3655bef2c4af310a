//! Ends the sessions of a port whose pod is gone, and finds out whom to tell.
//!
//! Only the pod's end counts, which the control plane reports: sessions of a port that is merely closed stay, because its pod continues when
//! the interface returns. So do those of uplink and host.
//!
//! The other end of such a session may wait for data and never send again, so it must be told. Sessions therefore end one by one, each
//! with the data for a [notice](Survivor), and the caller decides how many at a time.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::super::budget::Side;
use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::{Moment, NONE, Slot};
use super::SessionTable;
use super::tracking::{at, opposite};
use crate::{PortId, PortKind};

/// The end of a session that remains when the pod at the other end is gone, as it sees the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survivor {
    /// IANA protocol number: TCP or UDP.
    pub(crate) protocol: u8,
    /// The survivor's address and port.
    pub(crate) own: (IpAddr, u16),
    /// The address and port that it sends to. For a client of a Service, the Service's.
    pub(crate) other: (IpAddr, u16),
    /// TCP: the next sequence number of the survivor and of the other end, as last sampled. 0 if unknown.
    pub(crate) next: [u32; 2],
    /// TCP: whether the other end has sent anything.
    pub(crate) was_answered: bool,
}

impl SessionTable {
    /// Makes [`SessionTable::end_next_of_gone`] end the sessions of a port whose pod is gone. Ignores uplink and host.
    pub(crate) fn end_port(&mut self, port: PortId) {
        let is_pod = self.kind(port) == PortKind::Pod;
        if is_pod && port.index() < self.lists.ports() && !self.is_ending(port) {
            self.gone.push(port);
        }
    }

    /// Whether sessions of this port wait to be ended.
    pub(crate) fn is_ending(&self, port: PortId) -> bool {
        self.gone.contains(&port)
    }

    /// Whether sessions of any port wait to be ended.
    pub(crate) const fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Ends the next session of the ports that are gone, or finds that one has no more. Returns the session's other end if it must be told.
    pub(crate) fn end_next_of_gone(&mut self, epoch: u32, now: Moment) -> Option<Survivor> {
        let &port = self.gone.first()?;
        // Refusals pass nothing and end by their timeout.
        let classes = Class::ALL.into_iter().filter(|class| *class != Class::Refused);
        let mut all = classes.flat_map(|class| Side::BOTH.map(|side| self.lists.first_of(side, port, class)));
        let Some(slot) = all.find(|&slot| slot != NONE) else {
            self.gone.remove(0);
            return None;
        };
        let survivor = self.survivor(slot, port).filter(|_| !self.is_expired(slot, now.time));
        if matches!(self.entry(slot).class(), Class::Closed | Class::Echo) {
            self.counts.removed += 1;
            self.remove(slot);
        } else {
            let decision = self.decision(slot);
            self.abandon(slot, epoch, &decision, now);
        }
        survivor
    }

    /// Returns the other end of a session of the port. `None` if that is the port itself, or if nothing can be told in time: no protocol but
    /// TCP and UDP has a notice, and a closed connection has no reader.
    fn survivor(&self, slot: Slot, port: PortId) -> Option<Survivor> {
        let entry = self.entry(slot);
        let is_open = !matches!(entry.class(), Class::Closed | Class::Echo);
        let protocol = entry.key().protocol();
        let (in_port, out_port) = entry.ports(Direction::Forward);
        if in_port == out_port || !is_open || !matches!(protocol, protocol::TCP | protocol::UDP) {
            return None;
        }
        // The survivor's packets have this direction.
        let direction = if out_port == port { Direction::Forward } else { Direction::Reply };
        let [own, other] = match (direction, self.rewrite(slot)) {
            (Direction::Forward, Some(rewrite)) => [rewrite.client(), rewrite.vip()],
            (direction, _) => entry.endpoints(direction),
        };
        let next = self.links.records()[slot as usize].next;
        let next = [next[at(direction)], next[at(opposite(direction))]];
        Some(Survivor { protocol, own, other, next, was_answered: entry.seen.has_sent(opposite(direction)) })
    }
}
