//! Enforces the limit of addresses that one holder may have under one name.
//!
//! A count for each holder and name would need as much memory as the addresses. So the table counts the addresses of each name over all
//! holders. A name is *crowded* while this count is at least the limit of one holder. Only then are addresses counted for each holder: the
//! holder's first answer counts them, and later answers use up the [`Room`] that this count has found.

use std::net::IpAddr;

use super::names::{Claim, Crowd, Names, Room};
use super::seats::Seat;
use super::sliced::Key;
use super::validity::seconds;
use super::{Answer, Full, Learned, NameId, Obstacle, World, lock, read};

/// Claims room for another address of the answer's holder under a crowded name. Returns `None` if the address may be stored, else why not.
pub(super) fn claim(names: &Names, id: NameId, crowd: Crowd, answer: &Answer<'_>) -> Option<Obstacle> {
    match names.claim(id, answer.holder, crowd, seconds(answer.time), answer.window.first) {
        Claim::Granted => None,
        Claim::Refused => Some(Obstacle::Full(Full::Addresses)),
        Claim::Uncounted => Some(Obstacle::Uncounted(id)),
    }
}

impl Learned {
    /// Counts the addresses that the answer's holder has under a crowded name, and stores the [`Room`] that is left. Removes expired ones.
    /// Does nothing if no count is needed any more. Takes a tenth of a millisecond for 1,024 addresses.
    pub(super) fn count(&self, answer: &Answer<'_>, id: NameId) {
        let (holder, now) = (answer.holder, seconds(answer.time));
        let _counting = lock(&self.counting);
        let uncounted = read(&self.world).names.uncounted(id, holder, now);
        let Some((crowd, addresses)) = uncounted else { return };
        let mut room = Room { crowd, left: self.limits.addresses, until: u32::MAX };
        // A part at a time, so that threads that need the exclusive lock do not wait long.
        for part in addresses.chunks(64) {
            let world = read(&self.world);
            let Some(seat) = world.seats.get(holder) else { return };
            for end in part.iter().filter_map(|&address| self.valid_end(&world, seat, id, address, now)) {
                (room.left, room.until) = (room.left.saturating_sub(1), room.until.min(end));
            }
        }
        read(&self.world).names.set_room(id, holder, room);
    }

    /// Returns the end of a valid holding in seconds since 1970. Removes an expired holding. `None` if no valid one exists.
    fn valid_end(&self, world: &World, seat: Seat, id: NameId, address: IpAddr, now: u32) -> Option<u32> {
        let key = Key { id, chunk: seat.chunk };
        let mut shard = lock(self.shard(address));
        let entry = shard.get_mut(&address)?;
        let end = entry.table(key.chunk)?.end(key, seat.lane)?;
        if end > now {
            return Some(end);
        }
        let is_known = entry.change(key.chunk, |table| {
            table.remove(key, seat.lane);
            table.contains(key)
        });
        world.seats.subtract(seat.chunk, 1 << seat.lane);
        if !is_known {
            world.names.release(id, address);
        }
        if entry.is_empty() {
            shard.remove(&address);
        }
        None
    }
}
