//! The fast path: a packet of an open session that needs no further checks.

use super::super::entry::{Entry, Moment, Slot};
use super::super::key::Key;
use super::SessionTable;
use crate::PortId;
use crate::packet::TcpFlags;

/// The fields of a plain packet that the fast path compares with its session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainHit<'a> {
    pub(crate) key: &'a Key,
    pub(crate) from_low: bool,
    pub(crate) flags: TcpFlags,
    pub(crate) in_port: PortId,
    pub(crate) epoch: u32,
}

/// The session's data that the fast path needs to forward a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) leaves: PortId,
    /// Origin of the rule that allowed the session; see [`Entry::origin`].
    pub(crate) origin: u32,
    /// Whether the session's sequence numbers are due to be sampled.
    pub(crate) is_due: bool,
}

impl Hit {
    /// Returns the hit of a packet on an entry, and the XOR of its time with that of the entry's last packet. Stores the time in the entry.
    /// Sequence numbers are due for sampling if that XOR, shifted right by `look`, is not 0.
    #[inline(always)]
    pub(super) fn of(entry: &mut Entry, leaves: PortId, look: u32, now: Moment) -> (Self, u64) {
        let past = entry.seen_at ^ now.time;
        entry.seen_at = now.time;
        (Self { leaves, origin: entry.origin, is_due: past >> look != 0 }, past)
    }
}

impl SessionTable {
    /// Handles a hit in one step: the session is in the guessed slot, of this epoch, alive and open, the packet is on the right port, its
    /// addresses were checked before, and its flags change nothing. Counts the packet. Returns `None` if the full path is needed.
    #[inline]
    pub(crate) fn hit(&mut self, guess: Slot, packet: &PlainHit<'_>, now: Moment) -> Option<Hit> {
        let entry = self.entries.records_mut().get_mut(guess as usize)?;
        let class = entry.class_index();
        let leaves = entry.plain_exit(packet.epoch, packet.in_port, packet.from_low)?;
        let good = entry.has_key_alone(packet.key)
            && now.time < entry.seen_at.saturating_add(self.timeouts[class])
            && !packet.flags.is_control();
        if !good {
            return None;
        }
        let (hit, past) = Hit::of(entry, leaves, self.looks[class], now);
        self.requeue_hit((hit, past), guess, now);
        Some(hit)
    }

    /// Moves the entry of a hit in its lists if its period is over.
    #[inline(always)]
    pub(super) fn requeue_hit(&mut self, (hit, past): (Hit, u64), slot: Slot, now: Moment) {
        if hit.is_due {
            self.requeue_if(past, slot, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn requeue_if(&mut self, past: u64, slot: Slot, now: Moment) {
        let entry = *self.entry(slot);
        if past >> self.periods[entry.class_index()] != 0 {
            self.move_to(slot, entry.class(), entry.class(), now);
        }
    }
}
