//! Packets that wait to be judged.

use crate::io::{Frame, Umem};
use crate::{PortId, Received};

/// One packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The port that it came in on.
    pub(super) port: PortId,
    /// How many frames it has.
    pub(super) count: usize,
    /// Its bytes in all of them.
    pub(super) len: usize,
}

/// Packets side by side with their frames, in order. Keeps its memory from burst to burst.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    packets: Vec<Arrival>,
    frames: Vec<Frame>,
    /// The last packet is not whole yet.
    is_open: bool,
}

impl Arrivals {
    /// How many packets there are.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Appends a frame: of the last packet when that has more to come, else of a new one.
    pub(super) fn push(&mut self, port: PortId, frame: Frame) {
        match self.packets.last_mut().filter(|_| self.is_open) {
            Some(packet) => {
                packet.count += 1;
                packet.len += frame.len();
            }
            None => self.packets.push(Arrival { port, count: 1, len: frame.len() }),
        }
        self.is_open = frame.has_more();
        self.frames.push(frame);
    }

    /// The packets as the engine wants them.
    pub(super) fn iter<'a>(&'a self, umem: &'a Umem) -> impl Iterator<Item = Received<'a>> {
        let mut first = 0;
        self.packets.iter().map(move |packet| {
            let frame = umem.bytes(&self.frames[first]);
            first += packet.count;
            Received { frame, wire_len: packet.len, in_port: packet.port }
        })
    }

    /// Takes the packets out: each with its position and its frames, all of which must be taken.
    pub(super) fn drain(
        &mut self,
        mut each: impl FnMut(Arrival, usize, std::iter::Take<&mut std::vec::Drain<'_, Frame>>),
    ) {
        let mut frames = self.frames.drain(..);
        for (at, packet) in self.packets.drain(..).enumerate() {
            each(packet, at, frames.by_ref().take(packet.count));
        }
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
        let mut taken = Vec::new();
        arrivals
            .drain(|packet, at, frames| taken.push((packet.count, at, frames.map(|f| f.len()).collect::<Vec<_>>())));
        assert_eq!(taken, [(1, 0, vec![10]), (3, 1, vec![11, 12, 13])]);
        assert_eq!(arrivals.len(), 0);
    }
}
