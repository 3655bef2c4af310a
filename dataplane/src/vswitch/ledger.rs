//! What a worker counts, and whom it tells of packets: the one place where a packet ends.
//!
//! A packet that a tracepoint has selected ends once: it leaves, it was for the vswitch itself, or it is lost. So whoever lets a frame go
//! says so here, and not only to a counter.

use super::WorkerCounters;
use super::stream::{Known, Lost, Mark, StreamWriter};
use crate::io::{Frame, FramePool, Umem};
use crate::{DropReason, Received};

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) counters: WorkerCounters,
    pub(super) stream: Option<Box<StreamWriter>>,
    /// Frames of a packet that is being lost and whose last one has not come.
    lost: Vec<Frame>,
    /// Marks of the packets that a port is about to send. Empty but while it does.
    leaving: Vec<Mark>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { counters: WorkerCounters::new(), stream: None, lost: Vec::new(), leaving: Vec::new() }
    }

    /// Whether what is known of a packet is worth keeping while it is held.
    pub(super) fn wants_losses(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.wants_losses())
    }

    /// Takes a frame of a packet that was let through and is lost: the packet is counted and told with its last frame.
    pub(super) fn lose(&mut self, frame: Frame, reason: DropReason, pool: &mut FramePool) {
        self.lose_as(frame, reason, pool, Known::LetThrough);
    }

    /// The same of a packet of which this is known.
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

    /// Counts and tells that a packet is dropped before a worker has judged it. Its frames are the caller's to give back.
    pub(super) fn tell_arrived(&mut self, packet: &Received<'_>, reason: DropReason) {
        self.counters.drop_packet(reason);
        if let Some(stream) = &mut self.stream {
            let lost = Lost { frame: packet.frame, mark: None, len: packet.wire_len, reason };
            stream.lose(&lost, Known::Arrived(packet.in_port));
        }
    }

    /// Counts and tells that a packet is lost. Its frames are the caller's to give back.
    pub(super) fn tell_loss(&mut self, umem: &Umem, first: &Frame, len: usize, reason: DropReason, known: Known) {
        self.counters.drop_packet(reason);
        if let Some(stream) = &mut self.stream {
            let (frame, mark) = (umem.bytes(first), Mark::of(first));
            stream.lose(&Lost { frame, mark, len, reason }, known);
        }
    }

    /// The packet that begins with this frame has left, or was for the vswitch itself.
    pub(super) fn leave(&mut self, first: &Frame) {
        if let (Some(mark), Some(stream)) = (Mark::of(first), &mut self.stream) {
            stream.end(mark, None);
        }
    }

    /// Nobody knows what becomes of the packet: the worker has failed.
    pub(super) fn forget(&mut self, frame: &Frame) {
        if let (Some(mark), Some(stream)) = (Mark::of(frame), &mut self.stream) {
            stream.forget(mark);
        }
    }

    /// The worker has failed in the middle of something.
    pub(super) fn recover(&mut self, pool: &mut FramePool) {
        pool.give_all(self.lost.drain(..));
        self.leaving.clear();
    }

    /// A port is about to send these packets.
    #[inline]
    pub(super) fn begin_to_send(&mut self, frames: &[Frame]) {
        if self.stream.as_ref().is_some_and(|stream| stream.has_marks()) {
            self.leaving.extend(frames.iter().filter_map(Mark::of));
        }
    }

    /// It has sent all but these, which are the last ones.
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

/// How many packets and bytes.
pub(super) fn size(frames: &[Frame]) -> (u64, u64) {
    frames
        .iter()
        .fold((0, 0), |(packets, bytes), frame| (packets + u64::from(!frame.has_more()), bytes + frame.len() as u64))
}
