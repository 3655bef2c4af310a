//! A worker's counters and stream: the one place that accounts for the end of each packet.
//!
//! A packet selected by a tracepoint ends exactly once: it is sent, absorbed or lost. Therefore code that releases a frame must report it
//! here instead of only counting it.

use super::WorkerCounters;
use super::stream::{Known, Lost, Mark, StreamWriter};
use crate::io::{Frame, FramePool, Umem};
use crate::{DropReason, Received};

/// A worker's counters and its attached stream.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) counters: WorkerCounters,
    pub(super) stream: Option<Box<StreamWriter>>,
    /// The frames received so far of a lost packet whose last frame has not arrived.
    lost: Vec<Frame>,
    /// Marks of the packets that a port is sending. Empty at other times.
    leaving: Vec<Mark>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { counters: WorkerCounters::new(), stream: None, lost: Vec::new(), leaving: Vec::new() }
    }

    /// Whether the outcome of a held packet must be kept, because a stream reports it if the packet is lost.
    pub(super) fn wants_losses(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.wants_losses())
    }

    /// Drops a frame of a packet that policy allowed. The packet is counted and reported with its last frame.
    pub(super) fn lose(&mut self, frame: Frame, reason: DropReason, pool: &mut FramePool) {
        self.lose_as(frame, reason, pool, Known::LetThrough);
    }

    /// Like [`Ledger::lose`]. `known` is the data about the packet that the stream reports.
    #[cold]
    #[inline(never)]
    pub(super) fn lose_as(&mut self, frame: Frame, reason: DropReason, pool: &mut FramePool, known: Known) {
        let is_last = !frame.has_more();
        self.lost.push(frame);
        if is_last {
            let len = self.lost.iter().map(Frame::len).sum();
            self.counters.drop_packet(reason);
            if let (Some(stream), Some(first)) = (&mut self.stream, self.lost.first()) {
                let (frame, mark) = (pool.umem().bytes(first), Mark::of(first));
                stream.lose(&Lost { frame, mark, len, reason }, known);
            }
            pool.give_all(self.lost.drain(..));
        }
    }

    /// Counts and reports a packet dropped before it was judged. The caller releases its frames.
    pub(super) fn tell_arrived(&mut self, packet: &Received<'_>, reason: DropReason) {
        self.counters.drop_packet(reason);
        if let Some(stream) = &mut self.stream {
            let lost = Lost { frame: packet.frame, mark: None, len: packet.wire_len, reason };
            stream.lose(&lost, Known::Arrived(packet.in_port));
        }
    }

    /// Counts and reports a lost packet. The caller releases its frames.
    pub(super) fn tell_loss(&mut self, umem: &Umem, first: &Frame, len: usize, reason: DropReason, known: Known) {
        self.counters.drop_packet(reason);
        if let Some(stream) = &mut self.stream {
            let (frame, mark) = (umem.bytes(first), Mark::of(first));
            stream.lose(&Lost { frame, mark, len, reason }, known);
        }
    }

    /// Reports that the packet with this first frame was sent or absorbed.
    pub(super) fn leave(&mut self, first: &Frame) {
        if let (Some(mark), Some(stream)) = (Mark::of(first), &mut self.stream) {
            stream.end(mark, None);
        }
    }

    /// Forgets a packet whose fate is unknown because the worker panicked.
    pub(super) fn forget(&mut self, frame: &Frame) {
        if let (Some(mark), Some(stream)) = (Mark::of(frame), &mut self.stream) {
            stream.forget(mark);
        }
    }

    /// Cleans up after a panic: frees the frames of lost packets, and forgets the marks of packets that were being sent.
    pub(super) fn recover(&mut self, pool: &mut FramePool) {
        pool.give_all(self.lost.drain(..));
        self.leaving.clear();
    }

    /// Records the packets that a port is about to send, so that [`Ledger::end_to_send`] can report those it has sent.
    #[inline]
    pub(super) fn begin_to_send(&mut self, frames: &[Frame]) {
        if self.stream.as_ref().is_some_and(|stream| stream.has_marks()) {
            self.leaving.extend(frames.iter().filter_map(Mark::of));
        }
    }

    /// Reports all packets of [`Ledger::begin_to_send`] as sent, except those of the frames in `left`, which the port has not taken.
    #[inline]
    pub(super) fn end_to_send(&mut self, left: &[Frame]) {
        if self.leaving.is_empty() {
            return;
        }
        let sent = self.leaving.len() - left.iter().filter_map(Mark::of).count();
        if let Some(stream) = &mut self.stream {
            self.leaving.drain(..sent).for_each(|mark| stream.end(mark, None));
        }
        self.leaving.clear();
    }
}

/// Returns the number of packets and the number of bytes in these frames.
pub(super) fn size(frames: &[Frame]) -> (u64, u64) {
    frames
        .iter()
        .fold((0, 0), |(packets, bytes), frame| (packets + u64::from(!frame.has_more()), bytes + frame.len() as u64))
}
