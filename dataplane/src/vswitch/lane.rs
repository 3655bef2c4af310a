//! Lanes: how packets change workers, and why they do.
//!
//! Every ordered pair of workers has a queue of its own, with one end each. So no two workers ever wait for each other
//! over a slot, and a packet changes hands with one write and one read of 24 bytes. Packets wait in the worker until it has
//! sorted a burst, and then go in as one: the cache lines that say how full the lane is change cores once per burst.
//!
//! # Changing hands, or one table for all workers
//!
//! `bulkhead-bench pipeline --workers 2 --spread ...`, two cores with one L3, 64 bytes, 1,000 rules, 10,000 flows, medians of
//! three runs; nanoseconds that a worker spends per packet:
//!
//! | `--spread` | | ns | Mpps of both |
//! |---|---|---|---|
//! | `own` | every packet comes to the worker that has its session | 30 | 66 |
//! | `any` | half of them come to the other worker and change hands | 52 | 38 |
//! | `unshared` | own sessions, and each hit writes one more cache line, the worker's own | 30 | 67 |
//! | `shared` | the same, but the line is shared: plain loads and stores | 30 | 67 |
//! | `locked` | the same, and the line has a lock | 35 | 58 |
//!
//! A packet that changes hands costs some 45 ns more than one that does not, most of it because its header is in the other
//! core's cache. That is more than what hits on a shared table cost at the least, 0 to 5 ns: the misses overlap, as the engine
//! reads ahead. So hits alone would speak for a shared table. It was not taken, for what these lines leave out:
//!
//! * A hit is not the whole of it. A new session takes an entry, a place in the index, in a list of its class and port and in
//!   its port's quota; an old one is swept out or recycled. All of that is one worker's own now, and 5 million a second on
//!   each. Shared it needs locks around the lists, or a lock-free reclamation, on the path that a flood of SYNs takes.
//! * What the engine promises is sequential: a burst has the outcomes of its packets one by one, a request is judged before its
//!   reply, a later fragment after the first one, TCP's state follows the order of arrival. One worker per pair of addresses
//!   keeps that without a word; with a shared table each of these is a race to be thought through.
//!
//! What it means: of N workers' packets (N - 1) / N change hands, however the ports are laid out, since the hash is keyed. Two
//! workers so judge and forward together hardly more than one. What they share out is what ports cost, which with AF_XDP on
//! veths (copies, system calls) is several times all of this. Whether a complete shared table would keep the distance of its
//! lower bound was not measured.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::io::Frame;
use crate::{BURST, PortId};

/// Frames that a lane holds: eight bursts. A worker that is that far behind is overloaded, and a longer queue would
/// only make its packets older.
const LANE_FRAMES: usize = 2048;

/// What the worker at the other end is to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// It came in on this port, and its sessions are the other worker's.
    Judge(PortId),
    /// It leaves through this port, whose queue is the other worker's.
    Send(PortId),
}

#[derive(Debug)]
struct Parcel {
    frame: Frame,
    errand: Errand,
}

/// Where a worker puts packets for one other worker.
#[derive(Debug)]
pub(super) struct Outgoing {
    lane: Producer<Parcel>,
    /// What goes in with the next [`Outgoing::post`].
    waiting: Vec<Parcel>,
    /// How many frames fit in, as far as was looked.
    room: usize,
}

/// Where a worker finds what one other worker put in.
#[derive(Debug)]
pub(super) struct Incoming {
    lane: Consumer<Parcel>,
}

/// A lane's two ends.
pub(super) fn lane() -> (Outgoing, Incoming) {
    let (producer, consumer) = RingBuffer::new(LANE_FRAMES);
    (Outgoing { lane: producer, waiting: Vec::with_capacity(BURST), room: LANE_FRAMES }, Incoming { lane: consumer })
}

impl Outgoing {
    /// Whether a packet of so many frames fits. Only this end fills the lane, so the answer stays true.
    #[inline]
    pub(super) fn has_room(&mut self, frames: usize) -> bool {
        let needed = self.waiting.len() + frames;
        if self.room < needed {
            self.room = self.lane.slots();
        }
        self.room >= needed
    }

    /// Puts a packet of some frames in, for which there is room.
    #[inline]
    pub(super) fn push(&mut self, frames: impl Iterator<Item = Frame>, errand: Errand) {
        self.waiting.extend(frames.map(|frame| Parcel { frame, errand }));
    }

    /// Lets the other end have what was put in: a packet whole or not at all. False when that is nothing.
    ///
    /// # Panics
    /// When there was no room.
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
    /// Whether nothing is in the lane.
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }

    /// Takes frames out, whole packets only, until about `limit` frames were taken.
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
