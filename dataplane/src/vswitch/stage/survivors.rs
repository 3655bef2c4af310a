//! Tells the other ends of sessions whose pod is gone.

use super::Stage;
use super::departure::Chain;
use crate::Snapshot;
use crate::forward::ERROR_MAX;
use crate::session::Survivor;

/// Maximum number of survivors told in a round: 128 frames, half a burst.
const TOLD: usize = 64;

/// Maximum number of sessions ended in a round, as for a sweep of expired ones.
const ENDED: usize = 512;

impl Stage {
    /// Ends some sessions of pods that are gone, and tells their other ends. Returns false if there are none.
    #[inline]
    pub(super) fn tell_survivors(&mut self, snapshot: &Snapshot) -> bool {
        let has_gone = self.engine.has_gone();
        if has_gone {
            self.end_some(snapshot);
        }
        has_gone
    }

    #[cold]
    #[inline(never)]
    fn end_some(&mut self, snapshot: &Snapshot) {
        let mut ended = ENDED;
        for _ in 0..TOLD {
            let Some(survivor) = self.engine.next_survivor(&mut ended, self.now) else { return };
            for number in 0..self.forwarder.begin_notice(snapshot, &survivor) {
                self.tell(snapshot, &survivor, number);
            }
        }
    }

    /// Sends frame `number` of a notice. Without a free frame nothing is sent.
    fn tell(&mut self, snapshot: &Snapshot, survivor: &Survivor, number: usize) {
        let Some(mut frame) = self.pool.take() else { return };
        frame.reset(ERROR_MAX);
        let Some(notice) = self.forwarder.write_notice(snapshot, survivor, number, self.umem.bytes_mut(&mut frame))
        else {
            return self.pool.give(frame);
        };
        match notice.lacks {
            None => self.originate(notice.out, frame, notice.len),
            Some(neighbour) => {
                self.ledger.counters.originated += 1;
                frame.shorten(notice.len);
                self.hold(snapshot, neighbour, notice.out, Chain::originated(frame));
            }
        }
    }
}
