//! Packets selected by tracepoints whose fate is not known yet.
//!
//! ```text
//!   judged: selected --> a place here, and its number as a mark on the packet's frame
//!                                        |  over lanes, in queues, wherever the frame goes
//!   sent, consumed or lost by whichever worker has it --> the true end is written here --> end of the round: that worker's ring
//! ```
//!
//! A record written at the verdict would report a packet as forwarded that is lost later. Two records, joined by the reader, were rejected:
//! the second one may find the ring full, and the reader would wait for it forever. This way a packet is reported once and completely, or
//! counted once.
//!
//! Marks cost nothing while no packet has one.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::Judgement;
use crate::io::Frame;
use crate::{Outcome, PortId};

/// Maximum number of packets under way per worker: sixteen bursts, more than a round receives from one queue for all ports. With long
/// packets they take about 16 MB.
const PER_WORKER: usize = 4096;

/// Maximum number of places that a mark can number, without [`Mark::UNTOLD`].
const MOST: usize = u16::MAX as usize;

/// A mark on a packet's first frame: the number of a place in [`Traces`], and of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vswitch) struct Mark(NonZeroU32);

impl Mark {
    /// The place number of a selected packet for which no place was free. The packet is already counted as left out.
    const UNTOLD: u16 = u16::MAX;
    /// Number of distinct stream numbers. A stream number may be reused because no packet stays in the vswitch while this number of streams
    /// is opened.
    const STREAMS: u32 = Frame::LAST_MARK >> 16;

    fn new(stream: NonZeroU32, place: u16) -> Self {
        // The upper half is not 0, so the whole is not 0.
        NonZeroU32::new(stream.get() << 16 | u32::from(place)).map(Self).expect("the stream's number is not 0")
    }

    /// Returns the mark of a packet's first frame. `None` if no tracepoint selected the packet.
    #[inline]
    pub(in crate::vswitch) fn of(frame: &Frame) -> Option<Self> {
        frame.mark().map(Self)
    }

    /// Writes the mark to a packet's first frame.
    pub(in crate::vswitch) const fn write(self, frame: &mut Frame) {
        frame.set_mark(self.0);
    }

    const fn stream(self) -> u32 {
        self.0.get() >> 16
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
    const fn place(self) -> u16 {
        self.0.get() as u16
    }
}

/// A packet that a tracepoint selected and whose fate is not known yet.
#[derive(Debug)]
pub(super) struct Trace {
    /// Sequence number among the packets selected by the same worker.
    pub(super) number: u64,
    /// Bits of tracepoints whose filters match. Reduced to those that want the packet's fate once it is known.
    pub(super) tracepoints: u64,
    /// The record to report. Contains the tables' verdict until the fate is known.
    pub(super) judgement: Judgement,
    /// The output port of an allowed packet that was lost. `None` otherwise.
    pub(super) meant_for: Option<PortId>,
    /// The packet's first bytes as received.
    pub(super) bytes: Vec<u8>,
}

/// Selected packets of all workers whose fate is not known yet, in numbered places.
#[derive(Debug)]
pub(super) struct Traces {
    stream: NonZeroU32,
    /// Only the worker that has the packet accesses its place, so taking the lock never waits.
    places: Box<[Mutex<Trace>]>,
    free: ArrayQueue<u16>,
}

impl Traces {
    pub(super) fn new(workers: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % Mark::STREAMS;
        let count = (PER_WORKER * workers).clamp(1, MOST);
        let outcome = Outcome::UNJUDGED;
        let judgement = Judgement { time: 0, generation: 0, len: 0, tcp_flags: None, outcome };
        let trace = || Trace { number: 0, tracepoints: 0, judgement, meant_for: None, bytes: Vec::new() };
        let free = ArrayQueue::new(count);
        for place in (0..u16::MAX).take(count) {
            free.push(place).expect("there is room for all");
        }
        let places = (0..count).map(|_| Mutex::new(trace())).collect();
        Self { stream: NonZeroU32::MIN.saturating_add(number), places, free }
    }

    /// Whether any packet is under way.
    #[inline]
    pub(super) fn has_some(&self) -> bool {
        !self.free.is_full()
    }

    /// Returns the number of packets under way.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Reserves a place and returns its number. `None` if all places are in use.
    pub(super) fn take(&self) -> Option<u16> {
        self.free.pop()
    }

    /// Returns the packet at a place.
    ///
    /// # Panics
    /// If there is no such place.
    pub(super) fn at(&self, place: u16) -> MutexGuard<'_, Trace> {
        // A worker that panicked left the place complete or will overwrite it.
        self.places[usize::from(place)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a place, so that another packet can use it.
    pub(super) fn give(&self, place: u16) {
        self.free.push(place).expect("no place is given back twice");
    }

    /// Returns the mark of a place, or [`Mark::UNTOLD`] for `None`.
    pub(super) fn mark(&self, place: Option<u16>) -> Mark {
        Mark::new(self.stream, place.unwrap_or(Mark::UNTOLD))
    }

    /// Returns the place of a mark of this stream. `None` for other streams.
    pub(super) fn place(&self, mark: Mark) -> Option<u16> {
        (mark.stream() == self.stream.get() && mark.place() != Mark::UNTOLD).then_some(mark.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_leads_to_its_place_in_its_own_stream_alone() {
        let [one, other] = [1, 16].map(Traces::new);
        assert_eq!((one.places.len(), other.places.len()), (PER_WORKER, MOST));
        for place in [0, 1, 4095] {
            let mark = one.mark(Some(place));
            assert!(mark.0.get() <= Frame::LAST_MARK);
            assert_eq!((one.place(mark), other.place(mark)), (Some(place), None));
        }
        assert_eq!(one.place(one.mark(None)), None);
        let last = Traces { stream: NonZeroU32::new(Mark::STREAMS).unwrap(), ..one };
        assert!(last.mark(None).0.get() <= Frame::LAST_MARK);
    }

    #[test]
    fn places_are_taken_and_given_back() {
        let traces = Traces::new(1);
        let taken: Vec<u16> = std::iter::from_fn(|| traces.take()).collect();
        assert_eq!((taken.len(), traces.len(), traces.has_some()), (PER_WORKER, PER_WORKER, true));
        taken.into_iter().for_each(|place| traces.give(place));
        assert_eq!((traces.len(), traces.has_some()), (0, false));
    }
}
