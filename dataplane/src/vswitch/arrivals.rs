//! Packets waiting to be judged.

use std::vec::Drain;

use super::stream::Mark;
use crate::io::{Frame, Umem};
use crate::{PortId, Received};

/// A received packet, or one from another worker, that waits to be judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The port that received it.
    pub(super) port: PortId,
    /// Number of frames that the packet consists of.
    pub(super) count: u32,
    /// Bytes in all frames of the packet, at most `u32::MAX`.
    len: u32,
}

impl Arrival {
    /// Creates the record of a packet with `count` frames that have `len` bytes together.
    pub(super) fn new(port: PortId, count: usize, len: usize) -> Self {
        let count = u32::try_from(count).expect("a region has fewer chunks");
        Self { port, count, len: u32::try_from(len).unwrap_or(u32::MAX) }
    }

    /// Bytes in all frames of the packet.
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the number of the packet's frames after the first.
    pub(super) const fn rest(&self) -> usize {
        self.count as usize - 1
    }

    fn add(&mut self, frame: &Frame) {
        *self = Self::new(self.port, self.count as usize + 1, self.len() + frame.len());
    }
}

/// Packets and their frames, in order. Keeps its memory between bursts.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    packets: Vec<Arrival>,
    frames: Vec<Frame>,
    /// Whether more frames of the last packet must follow.
    is_open: bool,
}

impl Arrivals {
    /// Returns the number of packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether more frames of the last packet must follow.
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the list to which a port appends frames. They must then be sorted into packets.
    pub(super) const fn frames(&mut self) -> &mut Vec<Frame> {
        &mut self.frames
    }

    /// Turns the frames from `first` on into packets while they are single frames, no copies, and accepted by `is_mine`. `port_of` maps an
    /// index, counted from `first`, to the receiving port. Moves all remaining frames to `rest`. Returns the number of accepted packets and
    /// their bytes.
    #[inline]
    pub(super) fn accept(
        &mut self,
        first: usize,
        port_of: impl Fn(usize) -> PortId,
        is_mine: impl Fn(PortId, &Frame) -> bool,
    ) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        for frame in &self.frames[first..] {
            let port = port_of(count);
            if !frame.is_plain() || !is_mine(port, frame) {
                break;
            }
            self.packets.push(Arrival::new(port, 1, frame.len()));
            count += 1;
            bytes += frame.len() as u64;
        }
        (count, bytes)
    }

    /// Appends a frame to the last packet if that is incomplete, otherwise to a new packet.
    #[inline]
    pub(super) fn push(&mut self, port: PortId, frame: Frame) {
        match self.packets.last_mut().filter(|_| self.is_open) {
            Some(packet) => packet.add(&frame),
            None => self.packets.push(Arrival::new(port, 1, frame.len())),
        }
        self.is_open = frame.has_more();
        self.frames.push(frame);
    }

    /// Touches every frame from `first` on, so that cache misses overlap. The headers of frames from another worker are in that worker's
    /// cache. While parsing, the CPU would overlap only a few misses.
    pub(super) fn read_ahead(&self, umem: &Umem, first: usize) {
        let bytes = self.frames[first..].iter().map(|frame| umem.bytes(frame).first().copied().unwrap_or_default());
        std::hint::black_box(bytes.fold(0, |all, byte| all ^ byte));
    }

    /// Returns the packets in the form that the engine judges.
    pub(super) fn iter<'a>(&'a self, umem: &'a Umem) -> impl ExactSizeIterator<Item = Received<'a>> + Clone {
        let mut first = 0;
        self.packets.iter().map(move |packet| {
            let frame = umem.bytes(&self.frames[first]);
            first += packet.count as usize;
            Received { frame, wire_len: packet.len(), in_port: packet.port }
        })
    }

    /// Returns the packets, and the frames of all packets in the same order.
    pub(super) fn parts_mut(&mut self) -> (&[Arrival], &mut [Frame]) {
        (&self.packets, &mut self.frames)
    }

    /// Length of a packet in bytes.
    ///
    /// # Panics
    /// If there is no such packet.
    pub(super) fn length(&self, at: usize) -> usize {
        self.packets[at].len()
    }

    /// Writes stream marks to the first frames of packets, given with the packets' positions in ascending order.
    #[cold]
    pub(super) fn mark(&mut self, marks: impl Iterator<Item = (usize, Mark)>) {
        let (mut packet, mut frame) = (0, 0);
        for (at, mark) in marks {
            frame += self.packets[packet..at].iter().map(|packet| packet.count as usize).sum::<usize>();
            packet = at;
            mark.write(&mut self.frames[frame]);
        }
    }

    /// Forgets the packets. Their frames were already removed.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }

    /// Removes the packets, and the frames of all packets in the same order.
    pub(super) fn drain(&mut self) -> (Drain<'_, Arrival>, Drain<'_, Frame>) {
        (self.packets.drain(..), self.frames.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_put_together_to_packets_and_come_out_in_order() {
        let (umem, frames) = Umem::new(4).unwrap();
        let mut arrivals = Arrivals::default();
        for (at, mut frame) in frames.into_iter().enumerate() {
            frame.reset(10 + at);
            frame.set_more(at == 1 || at == 2);
            arrivals.push(PortId(u16::from(at > 0)), frame);
        }
        let seen: Vec<_> = arrivals.iter(&umem).map(|p| (p.in_port.0, p.frame.len(), p.wire_len)).collect();
        assert_eq!(seen, [(0, 10, 10), (1, 11, 11 + 12 + 13)]);
        let (packets, mut frames) = arrivals.drain();
        let mut lengths = |count| frames.by_ref().take(count).map(|frame| frame.len()).collect::<Vec<_>>();
        let taken: Vec<_> = packets.map(|packet| (packet.rest(), lengths(packet.rest() + 1))).collect();
        assert_eq!(taken, [(0, vec![10]), (2, vec![11, 12, 13])]);
        assert_eq!(frames.next().map(|frame| frame.len()), None);
        drop(frames);
        assert_eq!(arrivals.len(), 0);
    }
}
