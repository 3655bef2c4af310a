//! What is told of sessions that end, while somebody listens.

use super::super::class::Class;
use super::super::entry::Slot;
use super::{Key, SessionInfo, SessionTable};

/// Endings that wait for the stage that reads them after each burst: eight times what a burst sweeps out.
const WAITING: usize = 4096;

/// What went through a session, both ways together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets that workers have forwarded.
    pub packets: u64,
    /// Their bytes, with the Ethernet header.
    pub bytes: u64,
}

/// A session that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// What it was; `state` is its last one, and `idle` says nothing.
    pub session: SessionInfo,
    /// When a worker last saw a packet of it, in nanoseconds since 1970.
    pub last_seen: u64,
    /// What went through it since somebody listens. Packets that the kernel's flow cache has forwarded do not count.
    pub tally: Tally,
    /// Whether a newer policy has cut it.
    pub is_cut: bool,
}

/// What is kept of sessions for whoever listens.
#[derive(Debug)]
pub(super) struct Endings {
    waiting: Vec<SessionEnd>,
    /// Endings for which there was no room.
    left_out: u64,
    /// By slot: packets and bytes. Arrays of numbers, which are asked of the system as zeros: pages that nobody writes are not there.
    tallies: Vec<[u64; 2]>,
}

impl SessionTable {
    /// Has endings told and packets counted from now on, or no more.
    pub(crate) fn listen(&mut self, listens: bool) {
        let capacity = self.entries().len();
        self.endings = listens.then(|| {
            let (waiting, tallies) = (Vec::with_capacity(WAITING), vec![[0; 2]; capacity]);
            Box::new(Endings { waiting, left_out: 0, tallies })
        });
    }

    /// Counts a packet of the session that this key finds; `guess` is where it probably is.
    pub(crate) fn tally(&mut self, guess: Slot, hash: u64, key: &Key, bytes: u64) {
        if self.endings.is_none() {
            return;
        }
        let is_right = self.entries().get(guess as usize).is_some_and(|entry| entry.has_key(key));
        let slot = if is_right { Some(guess) } else { self.lookup(hash, key) };
        let tally = slot.zip(self.endings.as_mut()).and_then(|(slot, endings)| endings.tallies.get_mut(slot as usize));
        if let Some(tally) = tally {
            tally[0] += 1;
            tally[1] += bytes;
        }
    }

    /// Gives the endings since the last call to `each`, and returns how many more there were.
    pub(crate) fn take_endings(&mut self, each: impl FnMut(SessionEnd)) -> u64 {
        let Some(endings) = &mut self.endings else { return 0 };
        endings.waiting.drain(..).for_each(each);
        std::mem::take(&mut endings.left_out)
    }

    /// The session in a slot is about to end. What was refused is none.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_end(&mut self, slot: Slot, is_cut: bool) {
        let entry = self.entry(slot);
        let (class, last_seen) = (entry.class(), entry.seen_at);
        let session = self.describe(slot, last_seen).filter(|_| class != Class::Refused);
        let Some(endings) = &mut self.endings else { return };
        let [packets, bytes] = endings.tallies.get_mut(slot as usize).map(std::mem::take).unwrap_or_default();
        let tally = Tally { packets, bytes };
        let Some(session) = session else { return };
        if endings.waiting.len() == WAITING {
            endings.left_out += 1;
        } else {
            endings.waiting.push(SessionEnd { session, last_seen, tally, is_cut });
        }
    }
}
