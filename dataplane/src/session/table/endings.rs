//! Reports ended sessions while a stream is attached.

use super::super::class::Class;
use super::super::entry::Slot;
use super::{Key, SessionInfo, SessionTable};

/// Maximum number of waiting endings: eight times what a burst sweeps. The stage reads them after each burst.
const WAITING: usize = 4096;

/// Traffic of a session, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets forwarded by workers.
    pub packets: u64,
    /// Bytes of these packets, with Ethernet headers.
    pub bytes: u64,
}

/// An ended session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// The session with its last state. `idle` is meaningless.
    pub session: SessionInfo,
    /// When a worker last saw a packet of the session, in nanoseconds since 1970.
    pub last_seen: u64,
    /// Traffic since the stream was attached, without packets forwarded by the kernel's flow cache.
    pub tally: Tally,
    /// Whether a newer policy cut the session.
    pub is_cut: bool,
}

/// Ended sessions to report, and the packet counts of all sessions, for the attached stream.
#[derive(Debug)]
pub(super) struct Endings {
    waiting: Vec<SessionEnd>,
    /// Number of ended sessions that are not reported because the list was full.
    left_out: u64,
    /// Packets and bytes by slot. Allocated as zeroed pages, so unused slots take no memory.
    tallies: Vec<[u64; 2]>,
}

impl SessionTable {
    /// Starts or stops reporting endings and counting packets.
    pub(crate) fn listen(&mut self, listens: bool) {
        let capacity = self.entries().len();
        self.endings = listens.then(|| {
            let (waiting, tallies) = (Vec::with_capacity(WAITING), vec![[0; 2]; capacity]);
            Box::new(Endings { waiting, left_out: 0, tallies })
        });
    }

    /// Counts a packet for the session with this key. `guess` is its probable slot.
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

    /// Calls `each` with the endings since the last call. Returns the number of lost endings.
    pub(crate) fn take_endings(&mut self, each: impl FnMut(SessionEnd)) -> u64 {
        let Some(endings) = &mut self.endings else { return 0 };
        endings.waiting.drain(..).for_each(each);
        std::mem::take(&mut endings.left_out)
    }

    /// Reports that the session in a slot is about to end. Ignores refusals.
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
