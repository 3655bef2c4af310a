//! An AF_XDP queue as a [`Port`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use super::error::XskError;
use super::lent::Lent;
use super::queue_config::QueueConfig;
use super::socket::{LONGEST_CHAIN, Queue, Socket};
use super::umem::{Frame, Umem};
use crate::io::{FlowSlot, FramePool, Port, PortError, PortStatistics};

/// Batch size of refilling the fill ring, at most a quarter of its frames. One batch writes the ring's index, a cache line that the
/// sender's core reads, once.
const FILL_BATCH: u32 = 32;

/// Assumed packets sent per kick: half of Linux 6.18's 32, as a margin. With the ring's size this bounds the kicks per burst.
const SENT_PER_KICK: u32 = 16;

/// Consecutive kicks without progress before the rest waits for the next burst. The first may find the device's queue full and the second
/// empty; more would waste receiving time.
const IDLE_KICKS: u32 = 3;

/// Bursts between two checks that the interface still exists. The kernel does not report its removal to a receiver. One check takes 100 ns.
const PROBE_EVERY: u32 = 1024;

/// Weight of an empty burst towards [`PROBE_EVERY`]: an idle worker has time, and polls less often.
const IDLE_BURST: u32 = 64;

/// One queue of one interface.
///
/// Dropping a port without [`close`](Port::close) loses the frames lent to the kernel.
#[derive(Debug)]
pub struct XskPort {
    /// The socket. `None` after `close`.
    socket: Option<Socket>,
    lent: Lent,
    /// Maximum number of frames lent to the kernel for receiving.
    target: u32,
    /// Number of frames lent for receiving: in the fill ring, or received and not yet taken.
    filled: u32,
    /// Number of frames lent for sending: in the transmit ring, in flight, or in the completion ring.
    sending: u32,
    /// Maximum number of kicks (system calls that start sending) per burst.
    kicks: u32,
    until_probe: u32,
    /// Whether the port received or sent since the last `service`.
    busy: bool,
    /// Frames to give to the pool at the next `service`.
    spare: Vec<Frame>,
    /// Invalid descriptors that the port has refused.
    refused: u64,
    /// The kernel's counters when the port was closed.
    last: PortStatistics,
    slot: Option<FlowSlot>,
}

impl XskPort {
    /// Opens a queue with its own socket. `frags` tells whether to request packets of several frames.
    pub(super) fn open(queue: Queue<'_>, umem: &Arc<Umem>, config: QueueConfig, frags: bool) -> Result<Self, XskError> {
        let (receive, transmit) = config.ring_sizes();
        let socket = Socket::open(queue, umem, receive, transmit, frags)?;
        Ok(Self::new(socket, umem, receive, transmit))
    }

    /// Creates a port over a socket with empty rings of these sizes.
    fn new(socket: Socket, umem: &Arc<Umem>, receive: u32, transmit: u32) -> Self {
        Self {
            socket: Some(socket),
            lent: Lent::new(Arc::clone(umem)),
            target: receive,
            filled: 0,
            sending: 0,
            kicks: transmit / SENT_PER_KICK + IDLE_KICKS,
            until_probe: PROBE_EVERY,
            busy: false,
            spare: Vec::new(),
            refused: 0,
            last: PortStatistics::default(),
            slot: None,
        }
    }

    pub(super) const fn set_slot(&mut self, slot: Option<FlowSlot>) {
        self.slot = slot;
    }

    pub(super) const fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Whether the port receives and sends packets of several frames.
    pub fn takes_chains(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.frags)
    }

    /// Returns the number of frames that are lent to the kernel, for receiving or sending.
    pub const fn lent(&self) -> u32 {
        self.filled + self.sending
    }

    /// Takes the packet of `count` frames that begins `at` entries ahead in the receive ring. Drops a packet with an invalid descriptor.
    fn take_packet(&mut self, at: u32, count: u32, frames: &mut Vec<Frame>) {
        let Some(socket) = &self.socket else { return };
        let start = frames.len();
        let mut whole = true;
        for ahead in at..at + count {
            match self.lent.take(socket.receive.peek(ahead)) {
                Some(frame) => frames.push(frame),
                None => {
                    self.refused += 1;
                    whole = false;
                }
            }
        }
        self.filled = self.filled.saturating_sub(u32::try_from(frames.len() - start).unwrap_or(count));
        if !whole {
            self.spare.extend(frames.drain(start..));
        }
    }

    /// Returns the frames of sent packets to the pool.
    fn reap(&mut self, pool: &mut FramePool) {
        let Some(socket) = self.socket.as_mut().filter(|_| self.sending > 0) else { return };
        let count = socket.completion.available(self.sending);
        for ahead in 0..count {
            let descriptor = libc::xdp_desc { addr: socket.completion.peek(ahead), len: 0, options: 0 };
            match self.lent.take(descriptor) {
                Some(frame) => {
                    self.sending = self.sending.saturating_sub(1);
                    pool.give(frame);
                }
                None => self.refused += 1,
            }
        }
        if count > 0 {
            socket.completion.release(count);
        }
    }

    /// Kicks the kernel until the transmit ring is empty, or without progress.
    fn kick(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        if self.sending == 0 {
            return Ok(());
        }
        self.busy = true;
        let mut idle = 0;
        for _ in 0..self.kicks {
            let Some(socket) = &self.socket else { break };
            let pending = socket.transmit.pending();
            if pending == 0 || !socket.transmit.needs_wakeup() {
                break;
            }
            if let Err(error) = socket.kick_transmit() {
                try_again(error)?;
            }
            idle = if socket.transmit.pending() == pending { idle + 1 } else { 0 };
            // Makes room in the completion ring, without which the kernel does not send.
            self.reap(pool);
            if idle == IDLE_KICKS {
                break;
            }
        }
        Ok(())
    }

    /// Lends frames to the kernel for receiving.
    fn refill(&mut self, pool: &mut FramePool) {
        let Some(socket) = &mut self.socket else { return };
        let wanted = self.target - self.filled;
        if wanted < FILL_BATCH.min(self.target / 4).max(1) {
            return;
        }
        let mut given = 0;
        while given < wanted && socket.fill.room(wanted - given) > 0 {
            let Some(mut frame) = pool.take_spare() else { break };
            frame.reset(0);
            socket.fill.push(self.lent.lend(frame).addr);
            given += 1;
        }
        if given > 0 {
            socket.fill.publish();
            self.filled += given;
        }
    }

    /// Wakes a driver that waits for frames, and periodically checks that the interface exists.
    fn probe(&mut self) -> Result<(), PortError> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let bursts = if std::mem::take(&mut self.busy) { 1 } else { IDLE_BURST };
        self.until_probe = self.until_probe.saturating_sub(bursts);
        if self.until_probe > 0 && !socket.fill.needs_wakeup() {
            return Ok(());
        }
        self.until_probe = PROBE_EVERY;
        socket.kick_receive().or_else(try_again)
    }

    fn read_statistics(&self) -> Option<PortStatistics> {
        let counted = self.socket.as_ref()?.statistics().ok()?;
        Some(PortStatistics {
            receive_ring_full: counted.rx_ring_full,
            fill_ring_empty: counted.rx_fill_ring_empty_descs,
            // The kernel's `rx_dropped` includes packets that found the fill ring empty.
            receive_dropped: counted.rx_dropped.saturating_sub(counted.rx_fill_ring_empty_descs),
            invalid_descriptors: counted.rx_invalid_descs + counted.tx_invalid_descs,
        })
    }
}

impl Port for XskPort {
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let limit = u32::try_from(limit).unwrap_or(u32::MAX).max(1);
        // The kernel publishes whole packets. Looking ahead by the longest chain finds the end of a packet that begins within the limit.
        let available = socket.receive.available(limit.saturating_add(LONGEST_CHAIN));
        self.busy |= available > 0;
        let mut taken = 0;
        while taken < limit {
            let Some(count) = packet_at(self.socket.as_ref(), taken, available) else { break };
            if taken > 0 && taken + count > limit {
                break;
            }
            self.take_packet(taken, count, frames);
            taken += count;
        }
        if let Some(socket) = self.socket.as_mut().filter(|_| taken > 0) {
            socket.receive.release(taken);
        }
        Ok(())
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let room = socket.transmit.room(u32::try_from(frames.len()).unwrap_or(u32::MAX));
        // Counts the frames of whole packets that fit.
        let (mut whole, mut begins, mut sendable) = (0, 0, true);
        let longest = if socket.frags { LONGEST_CHAIN } else { 1 };
        for (frame, count) in frames.iter().zip(1..=room) {
            sendable &= !frame.is_empty();
            if !frame.has_more() {
                whole = count;
                sendable &= whole - begins <= longest;
                begins = whole;
            }
        }
        if sendable {
            for frame in frames.drain(..whole as usize) {
                socket.transmit.push(self.lent.lend(frame));
            }
            self.sending += whole;
        } else {
            self.send_some(frames, whole, longest);
        }
        if let Some(socket) = self.socket.as_mut().filter(|_| whole > 0) {
            socket.transmit.publish();
        }
        Ok(())
    }

    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        pool.give_all(self.spare.drain(..));
        self.reap(pool);
        self.kick(pool)?;
        self.refill(pool);
        self.probe()
    }

    fn close(&mut self, pool: &mut FramePool) {
        // Tries to send the accepted packets. `close` cannot report an error.
        drop(self.kick(pool));
        self.last = self.read_statistics().unwrap_or_default();
        // The kernel unbinds the socket and waits for receivers before this returns, so it no longer writes to the packet memory.
        // Unsent packets were copied, except with IFF_TX_SKB_NO_LINEAR drivers, which may send later contents of the chunks.
        drop(self.socket.take());
        // SAFETY: the socket is closed.
        pool.give_all(unsafe { self.lent.take_all() });
        pool.give_all(self.spare.drain(..));
        (self.filled, self.sending) = (0, 0);
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.socket.as_ref().map(|socket| socket.as_fd().as_raw_fd())
    }

    fn is_waiting(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| self.filled == 0 || socket.transmit.pending() > 0)
    }

    fn slot(&self) -> Option<FlowSlot> {
        self.slot
    }

    fn statistics(&self) -> PortStatistics {
        let mut statistics = self.read_statistics().unwrap_or(self.last);
        statistics.invalid_descriptors += self.refused;
        statistics
    }
}

impl XskPort {
    /// Sends the packets of the first `whole` frames, except those with an empty frame or too many frames. The kernel would refuse those
    /// and keep their chunks.
    fn send_some(&mut self, frames: &mut Vec<Frame>, whole: u32, longest: u32) {
        let Some(socket) = &mut self.socket else { return };
        let mut packet: Vec<Frame> = Vec::new();
        for frame in frames.drain(..whole as usize) {
            let more = frame.has_more();
            packet.push(frame);
            if more {
                continue;
            }
            if packet.len() > longest as usize || packet.iter().any(Frame::is_empty) {
                self.refused += 1;
                self.spare.append(&mut packet);
                continue;
            }
            for frame in packet.drain(..) {
                socket.transmit.push(self.lent.lend(frame));
                self.sending += 1;
            }
        }
    }
}

/// Returns the number of frames of the packet that begins at entry `at` of the receive ring. `None` if its end is missing.
fn packet_at(socket: Option<&Socket>, at: u32, available: u32) -> Option<u32> {
    let goes_on = |ahead| socket.is_some_and(|socket| socket.receive.peek(ahead).options & libc::XDP_PKT_CONTD != 0);
    (at..available).find(|&ahead| !goes_on(ahead)).map(|last| last - at + 1)
}

/// Classifies the error of a kick: `Ok` if a later kick can succeed.
fn try_again(source: io::Error) -> Result<(), PortError> {
    match source.raw_os_error() {
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Ok(()),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Err(PortError::Gone { source }),
        _ => Err(PortError::Failed { source }),
    }
}

#[cfg(test)]
mod tests;
