//! A worker's queue of the trunk: one queue for packets of many ports, distinguished by a tag.
//!
//! ```text
//!   destination, source | 88 a8 | slot | type, packet      on the trunk (IEEE 802.1ad)
//!                 destination, source | type, packet       in the worker: the MAC addresses moved by four bytes
//! ```
//!
//! The tag is the slot of the port that received the packet or that sends it. A pod's own VLAN tags follow it. Copies of packets that the
//! flow cache has forwarded are marked as drop eligible.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::PortTraffic;
use super::ledger::{Ledger, size};
use crate::io::{FlowSlot, Frame, FramePool, Port, PortError, Umem};
use crate::wire::ethernet::{ADDRESSES_LEN, ethertype};
use crate::wire::vlan;
use crate::{DropReason, PortId};

/// Length of the 802.1ad tag in bytes.
#[expect(clippy::cast_possible_truncation, reason = "it is four")]
const TAG: u16 = vlan::TAG_LEN as u16;
/// Length of the MAC addresses and the tag at the start of a frame, in bytes.
const TAGGED: usize = ADDRESSES_LEN + vlan::TAG_LEN;
/// Number of slots that a tag can express.
const SLOTS: usize = 1 << 12;

/// Represents frames whose tag is missing or belongs to no port.
const NOBODY: PortId = PortId(u16::MAX);

/// A worker's queue of the trunk, with the ports that use it.
pub(super) struct Trunk {
    queue: Box<dyn Port>,
    umem: Arc<Umem>,
    /// The port of each slot, which is the frame's tag. [`NOBODY`] for a free slot.
    ports: Vec<PortId>,
    /// The packets and bytes of each port, indexed by port id.
    traffic: Vec<PortTraffic>,
    /// Tagged frames to send at the end of the round.
    transmit: Vec<Frame>,
}

impl Trunk {
    pub(super) fn new(queue: Box<dyn Port>, umem: &Arc<Umem>) -> Self {
        let (ports, umem) = (vec![NOBODY; SLOTS], Arc::clone(umem));
        Self { queue, umem, ports, traffic: Vec::new(), transmit: Vec::new() }
    }

    /// Makes `slot` the port's tag on the trunk. Replaces the port's previous slot, and the slot's previous port.
    pub(super) fn attach(&mut self, id: PortId, slot: FlowSlot) {
        self.detach(id);
        if let Some(port) = self.ports.get_mut(usize::from(slot.0)) {
            *port = id;
        }
        if self.traffic.len() <= id.index() {
            self.traffic.resize(id.index() + 1, PortTraffic::default());
        }
    }

    /// Frees the port's slot. Packets with its tag then belong to no port.
    pub(super) fn detach(&mut self, id: PortId) {
        self.ports.iter_mut().filter(|port| **port == id).for_each(|port| *port = NOBODY);
    }

    /// Appends received frames to `frames`, at most `limit`, and removes their tags. `in_ports` gets the receiving port of each frame.
    pub(super) fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        limit: usize,
        in_ports: &mut Vec<PortId>,
    ) -> Result<(), PortError> {
        let first = frames.len();
        let received = self.queue.receive(frames, limit);
        in_ports.clear();
        let (mut port, mut is_first) = (NOBODY, true);
        for frame in &mut frames[first..] {
            if is_first {
                port = self.take_tag(frame);
            }
            if let Some(traffic) = self.traffic.get_mut(port.index()) {
                traffic.received += u64::from(is_first);
                traffic.received_bytes += frame.len() as u64;
            }
            is_first = !frame.has_more();
            in_ports.push(port);
        }
        received
    }

    /// Removes the tag of a packet's first frame. Returns the port with this tag, or [`NOBODY`] if the tag is missing or unassigned.
    #[inline]
    fn take_tag(&self, frame: &mut Frame) -> PortId {
        let bytes = self.umem.bytes_mut(frame);
        let Some(head) = bytes.first_chunk_mut::<TAGGED>() else { return NOBODY };
        let Ok(tag) = vlan::Frame::new_checked(&*head).map(|frame| vlan::Repr::parse(&frame)) else { return NOBODY };
        if tag.protocol != ethertype::SERVICE_VLAN {
            return NOBODY;
        }
        head.copy_within(..ADDRESSES_LEN, vlan::TAG_LEN);
        frame.shorten_front(TAG);
        if tag.drop_eligible {
            frame.set_copy();
        }
        self.ports[usize::from(tag.id)]
    }

    /// Queues a packet's first frame for the port with this slot.
    #[inline]
    pub(super) fn put(&mut self, slot: FlowSlot, mut frame: Frame) {
        let (len, is_last) = (frame.len(), !frame.has_more());
        self.count_sent(slot, u64::from(is_last), len);
        // Every packet has a headroom that is longer than a tag.
        if frame.extend_front(TAG) {
            let bytes = self.umem.bytes_mut(&mut frame);
            let tag = vlan::Repr { protocol: ethertype::SERVICE_VLAN, id: slot.0, priority: 0, drop_eligible: false };
            if let Some(head) = bytes.first_chunk_mut::<TAGGED>() {
                head.copy_within(vlan::TAG_LEN.., 0);
                head[ADDRESSES_LEN..].copy_from_slice(&tag.emit());
            }
        }
        self.transmit.push(frame);
    }

    /// Queues the remaining frames of a packet.
    pub(super) fn put_rest(&mut self, slot: FlowSlot, frames: impl Iterator<Item = Frame>) {
        for frame in frames {
            self.count_sent(slot, u64::from(!frame.has_more()), frame.len());
            self.transmit.push(frame);
        }
    }

    /// Counts packets sent through the port with this slot.
    pub(super) fn count_sent(&mut self, slot: FlowSlot, packets: u64, bytes: usize) {
        let port = self.ports.get(usize::from(slot.0)).copied().unwrap_or(NOBODY);
        if let Some(traffic) = self.traffic.get_mut(port.index()) {
            traffic.sent += packets;
            traffic.sent_bytes += bytes as u64;
        }
    }

    /// Sends queued frames, and services the queue once per round.
    pub(super) fn flush(&mut self, pool: &mut FramePool, ledger: &mut Ledger) -> Result<(), PortError> {
        if self.transmit.is_empty() {
            return self.queue.service(pool);
        }
        let (packets, _) = size(&self.transmit);
        ledger.begin_to_send(&self.transmit);
        let mut sent = self.queue.send(&mut self.transmit).and_then(|()| self.queue.service(pool));
        if sent.is_ok() && !self.transmit.is_empty() {
            // The kernel may have taken frames meanwhile.
            sent = self.queue.send(&mut self.transmit).and_then(|()| self.queue.service(pool));
        }
        ledger.end_to_send(&self.transmit);
        let (left, _) = size(&self.transmit);
        ledger.counters.sent += packets - left;
        if sent.is_ok() {
            self.drop_queued(DropReason::TxFull, pool, ledger);
        }
        sent
    }

    fn drop_queued(&mut self, reason: DropReason, pool: &mut FramePool, ledger: &mut Ledger) {
        let mut is_first = true;
        let mut port = NOBODY;
        for mut frame in std::mem::take(&mut self.transmit) {
            if is_first {
                port = self.take_tag(&mut frame);
            }
            if let Some(traffic) = self.traffic.get_mut(port.index()) {
                traffic.sent -= u64::from(!frame.has_more()).min(traffic.sent);
                traffic.sent_bytes -= (frame.len() as u64).min(traffic.sent_bytes);
            }
            is_first = !frame.has_more();
            ledger.lose(frame, reason, pool);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.queue.is_waiting()
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.queue.descriptor()
    }

    /// Traffic of each port that is or was attached.
    pub(super) fn traffic(&self) -> impl Iterator<Item = (PortId, PortTraffic)> {
        let ids = (0..).map(PortId);
        ids.zip(self.traffic.iter().copied()).filter(|(_, traffic)| *traffic != PortTraffic::default())
    }

    /// Closes the queue and drops queued frames.
    pub(super) fn close(&mut self, pool: &mut FramePool, ledger: &mut Ledger) {
        self.drop_queued(DropReason::PortDown, pool, ledger);
        self.queue.close(pool);
    }
}
