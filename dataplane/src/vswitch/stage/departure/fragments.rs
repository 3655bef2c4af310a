//! Sends packets in fragments.

use super::super::super::stream::Mark;
use super::super::Stage;
use super::Chain;
use crate::io::{Frame, Umem};
use crate::wire::ethernet;
use crate::{DropReason, PortId};

impl Stage {
    /// Sends a packet in fragments that fit the port's MTU. All but one count as created by the vswitch.
    pub(super) fn put_fragments(&mut self, out: PortId, packet: Chain) {
        match self.cut(out, &packet) {
            Ok(mut fragments) => {
                self.ledger.counters.fragmented += 1;
                self.ledger.counters.originated += fragments.len() as u64 - 1;
                // The last fragment carries the mark: if one fragment finds no room, neither do later ones.
                if let (Some(mark), Some(last)) = (Mark::of(&packet.first), fragments.last_mut()) {
                    mark.write(last);
                }
                for fragment in fragments {
                    self.put(out, 1, std::iter::once(fragment));
                }
                self.pool.give_all(packet.into_frames());
            }
            Err(reason) => self.lose(packet, reason),
        }
    }

    /// Copies a packet into new frames, one per fragment. An error leaves no fragment, because an incomplete datagram is useless.
    fn cut(&mut self, out: PortId, packet: &Chain) -> Result<Vec<Frame>, DropReason> {
        let Self { umem, pool, forwarder, .. } = self;
        let head = umem.bytes(&packet.first);
        let plan = forwarder.fragmentation(head, out).ok_or(DropReason::PacketTooBig)?;
        let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.take_spare()).take(plan.count()).collect();
        if frames.len() < plan.count() {
            pool.give_all(frames);
            return Err(DropReason::NoBuffer);
        }
        for (number, frame) in frames.iter_mut().enumerate() {
            let fragment = plan.fragment(number);
            let payload_at = ethernet::HEADER_LEN + fragment.header().len();
            let len = payload_at + fragment.payload.len();
            frame.reset(len.max(ethernet::MIN_FRAME_LEN));
            let into = umem.bytes_mut(frame);
            into[..ethernet::HEADER_LEN].copy_from_slice(&head[..ethernet::HEADER_LEN]);
            into[ethernet::HEADER_LEN..payload_at].copy_from_slice(fragment.header());
            let from = ethernet::HEADER_LEN + plan.header_len() + fragment.payload.start;
            packet.copy(umem, from, &mut into[payload_at..len]);
            into[len..].fill(0);
        }
        Ok(frames)
    }
}

impl Chain {
    /// Copies bytes of the packet, from position `at` over all frames, until `into` is full.
    fn copy(&self, umem: &Umem, mut at: usize, mut into: &mut [u8]) {
        for frame in std::iter::once(&self.first).chain(&self.rest) {
            let bytes = umem.bytes(frame);
            let part = bytes.get(at..).unwrap_or_default();
            let len = part.len().min(into.len());
            into[..len].copy_from_slice(&part[..len]);
            into = &mut into[len..];
            at = at.saturating_sub(bytes.len());
        }
        // Packets shorter than their headers claim were dropped before.
        into.fill(0);
    }
}
