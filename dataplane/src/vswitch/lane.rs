//! Lanes: queues that pass packets between workers.
//!
//! Every ordered pair of workers has its own single-producer queue, so workers never contend for a slot. Passing a packet takes one write
//! and one read of 24 bytes. A worker collects packets while it sorts a burst and posts them together, so the cache lines with the fill
//! level change cores once per burst.
//!
//! # Passing packets, or one table for all workers
//!
//! `bulkhead-bench pipeline --workers 2 --spread ...`, two cores with one L3, 64 bytes, 1,000 rules, 10,000 flows, medians of three runs;
//! nanoseconds of a worker per packet:
//!
//! | `--spread` | | ns | Mpps of both |
//! |---|---|---|---|
//! | `own` | every packet arrives at the worker that owns its session | 30 | 66 |
//! | `any` | half of them arrive at the other worker and are passed on | 52 | 38 |
//! | `unshared` | own sessions, and each hit writes one more cache line, the worker's own | 30 | 67 |
//! | `shared` | the same, but the line is shared: plain loads and stores | 30 | 67 |
//! | `locked` | the same, and the line has a lock | 35 | 58 |
//!
//! A packet that changes workers costs about 45 ns more, mostly because its header is in the other core's cache. Hits on a shared table
//! would cost only 0 to 5 ns more, because the engine prefetches and misses overlap. Hits alone would favour a shared table. It was
//! rejected for two other reasons:
//!
//! * New sessions update an entry, the index, the lists of class and port, and the port's quota. Old ones are swept or evicted. One worker
//!   does this 5 million times a second on its own data. Shared lists would need locks or lock-free reclamation, on the path that a SYN
//!   flood takes.
//! * The engine's guarantees are sequential: a burst has the outcomes of its packets one by one, a request is judged before its reply, a
//!   later fragment after the first, and TCP state follows the order of arrival. With one worker per pair of addresses all this holds
//!   without synchronisation.
//!
//! With N workers, (N - 1) / N of all packets change workers whatever the layout of ports, because the hash is keyed. So two workers judge
//! and forward hardly more than one. What they share is the cost of ports, which with AF_XDP on veths (copies, system calls) is several
//! times higher. Whether a complete shared table would stay near its lower bound was not measured.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::io::Frame;
use crate::{BURST, PortId};

/// Capacity of a lane in frames: eight bursts. A worker that is further behind is overloaded, and a longer queue would only add delay.
const LANE_FRAMES: usize = 2048;

/// What the receiving worker does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// Judge it: it came in on this port, and the worker owns its session.
    Judge(PortId),
    /// Send it through this port, whose queue the worker owns.
    Send(PortId),
}

#[derive(Debug)]
struct Parcel {
    frame: Frame,
    errand: Errand,
}

/// The sending end of a lane.
#[derive(Debug)]
pub(super) struct Outgoing {
    lane: Producer<Parcel>,
    /// Frames for the next [`Outgoing::post`].
    waiting: Vec<Parcel>,
    /// Lower bound of the number of free frames in the lane, as of the last check.
    room: usize,
}

/// The receiving end of a lane.
#[derive(Debug)]
pub(super) struct Incoming {
    lane: Consumer<Parcel>,
}

/// Creates a lane and returns both ends.
pub(super) fn lane() -> (Outgoing, Incoming) {
    let (producer, consumer) = RingBuffer::new(LANE_FRAMES);
    (Outgoing { lane: producer, waiting: Vec::with_capacity(BURST), room: LANE_FRAMES }, Incoming { lane: consumer })
}

impl Outgoing {
    /// Whether a packet of this many frames fits. Only this end fills the lane, so the answer stays valid.
    #[inline]
    pub(super) fn has_room(&mut self, frames: usize) -> bool {
        let needed = self.waiting.len() + frames;
        if self.room < needed {
            self.room = self.lane.slots();
        }
        self.room >= needed
    }

    /// Adds a packet's frames. Check [`Outgoing::has_room`] first.
    #[inline]
    pub(super) fn push(&mut self, frames: impl Iterator<Item = Frame>, errand: Errand) {
        self.waiting.extend(frames.map(|frame| Parcel { frame, errand }));
    }

    /// Makes the added packets visible to the receiver. Returns false if there are none.
    ///
    /// # Panics
    /// If there is not enough room.
    pub(super) fn post(&mut self) -> bool {
        let count = self.waiting.len();
        if count == 0 {
            return false;
        }
        let chunk = self.lane.write_chunk_uninit(count).expect("has_room was asked");
        chunk.fill_from_iter(self.waiting.drain(..));
        self.room -= count;
        true
    }
}

impl Incoming {
    /// Whether the lane is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }

    /// Takes whole packets, until at least `limit` frames were taken or the lane is empty. Calls `each` with every frame.
    pub(super) fn take(&mut self, limit: usize, mut each: impl FnMut(Frame, Errand)) {
        let waiting = self.lane.slots();
        let chunk = self.lane.read_chunk(waiting).expect("that many are there, and nobody else takes them");
        for (at, Parcel { frame, errand }) in chunk.into_iter().enumerate() {
            let is_last = !frame.has_more();
            each(frame, errand);
            if is_last && at + 1 >= limit {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Umem;

    #[test]
    fn a_packet_of_several_frames_is_never_taken_in_parts() {
        let (_umem, frames) = Umem::new(6).unwrap();
        let (mut out, mut into) = lane();
        let mut frames = frames.into_iter().enumerate().map(|(at, mut frame)| {
            frame.set_more(at % 3 != 2);
            frame
        });
        out.push(frames.by_ref().take(3), Errand::Judge(PortId(1)));
        out.push(frames.by_ref().take(3), Errand::Judge(PortId(1)));
        assert!(into.is_empty());
        assert!(out.post() && !out.post());
        let mut taken = Vec::new();
        into.take(1, |frame, _| taken.push(frame));
        assert_eq!(taken.len(), 3);
        into.take(4, |frame, _| taken.push(frame));
        assert_eq!(taken.len(), 6);
        assert!(into.is_empty());
    }

    #[test]
    fn a_full_lane_says_so() {
        let (_umem, frames) = Umem::new(u32::try_from(LANE_FRAMES).unwrap()).unwrap();
        let (mut out, mut into) = lane();
        for frame in frames {
            assert!(out.has_room(1));
            out.push(std::iter::once(frame), Errand::Send(PortId(0)));
        }
        assert!(!out.has_room(1), "what waits takes room as well");
        assert!(out.post());
        assert!(!out.has_room(1));
        into.take(3, |_, _| {});
        assert!(out.has_room(3) && !out.has_room(4));
    }
}
