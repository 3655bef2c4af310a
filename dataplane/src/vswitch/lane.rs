//! Lanes: how packets change workers.
//!
//! Every ordered pair of workers has a queue of its own, with one end each. So no two workers ever wait for each other
//! over a slot, and a packet changes hands with one write and one read of 24 bytes.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::PortId;
use crate::io::Frame;

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
    /// Whether something was put in since the other worker was last woken.
    pub(super) is_news: bool,
}

/// Where a worker finds what one other worker put in.
#[derive(Debug)]
pub(super) struct Incoming {
    lane: Consumer<Parcel>,
}

/// A lane's two ends.
pub(super) fn lane() -> (Outgoing, Incoming) {
    let (producer, consumer) = RingBuffer::new(LANE_FRAMES);
    (Outgoing { lane: producer, is_news: false }, Incoming { lane: consumer })
}

impl Outgoing {
    /// Whether a packet of so many frames fits. Only this end fills the lane, so the answer stays true.
    pub(super) fn has_room(&self, frames: usize) -> bool {
        self.lane.slots() >= frames
    }

    /// Puts a packet of so many frames in. The other end sees it whole or not at all.
    ///
    /// # Panics
    /// Without room, or when `frames` has fewer than `count`.
    pub(super) fn push(&mut self, count: usize, frames: impl Iterator<Item = Frame>, errand: Errand) {
        self.is_news = true;
        let chunk = self.lane.write_chunk_uninit(count).expect("has_room was asked");
        let filled = chunk.fill_from_iter(frames.take(count).map(|frame| Parcel { frame, errand }));
        assert_eq!(filled, count, "a packet has as many frames as were counted");
    }
}

impl Incoming {
    /// Whether nothing is in the lane.
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }

    /// Takes frames out, whole packets only, until about `limit` frames were taken.
    pub(super) fn take(&mut self, limit: usize, mut each: impl FnMut(Frame, Errand)) {
        let mut taken = 0;
        while let Ok(Parcel { frame, errand }) = self.lane.pop() {
            let is_last = !frame.has_more();
            each(frame, errand);
            taken += 1;
            if is_last && taken >= limit {
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
        out.push(3, &mut frames, Errand::Judge(PortId(1)));
        out.push(3, &mut frames, Errand::Judge(PortId(1)));
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
        let (mut out, _into) = lane();
        for frame in frames {
            assert!(out.has_room(1));
            out.push(1, std::iter::once(frame), Errand::Send(PortId(0)));
        }
        assert!(!out.has_room(1));
    }
}
