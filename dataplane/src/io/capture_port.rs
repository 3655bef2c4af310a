//! A port that receives from a capture file and writes sent packets to another. The whole pipeline then runs on recorded traffic,
//! without privileges and reproducibly.
//!
//! ```text
//!   capture --[is it for this port?]--> frames -> worker -> frames --> capture
//!                                          `- CaptureClock -'
//! ```
//!
//! A caller that follows the capture's times reads [`CapturePort::next_time`] and receives with a limit of 1. A worker receives packets
//! as fast as it polls. A sent packet gets the time of the last packet that any port with the same [`CaptureClock`] received.
//!
//! A packet that the capture has cut is received cut: frames do not record a length on the wire.
//!
//! **Invariant.** Capture files are untrusted input. The port delivers all packets before a fault, then fails with an error that names
//! the position.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::segments::{fill, first, gather, needed};
use super::{CaptureError, CaptureReader, CaptureWriter, CapturedPacket, Frame, FramePool, Port, PortError, Umem};
use crate::{LinkType, PortId, Verdict};

/// Empty frames kept ready for received packets: one worker burst.
const STOCK: usize = crate::BURST;

/// The port number of the output file's only interface.
const INTERFACE: PortId = PortId(0);

/// An error of opening a capture, or of reading it further.
#[derive(Debug, thiserror::Error)]
pub enum CapturePortError {
    /// The file is no capture, or is damaged.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The packet is no Ethernet frame.
    #[error(
        "{file}: packet {number} has link type {code}, but a port accepts only Ethernet (1); capture on one interface, \
         not on `any`"
    )]
    Link {
        /// The file's name.
        file: Arc<str>,
        /// The packet's position in the file, counted from 1.
        number: u64,
        /// The link type's registry number.
        code: u16,
    },
}

/// The time of the last received packet, shared by all ports with a clone of this clock.
#[derive(Clone, Debug, Default)]
pub struct CaptureClock(Arc<AtomicU64>);

impl CaptureClock {
    /// Nanoseconds since 1970-01-01 UTC; 0 before the first packet. Never decreases.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn advance(&self, time: u64) {
        self.0.fetch_max(time, Ordering::Relaxed);
    }
}

/// Decides for each packet of a capture whether the port receives it.
pub type CaptureFilter = Box<dyn FnMut(&CapturedPacket<'_>) -> bool + Send>;

/// A capture file from which a port receives its packets.
pub struct CaptureInput<R> {
    file: Arc<str>,
    reader: CaptureReader<R>,
    filter: CaptureFilter,
    next: Next,
}

/// The result of reading ahead by one packet.
#[derive(Debug)]
enum Next {
    /// The next packet that the port receives, with its capture time in nanoseconds since 1970.
    Packet { time: u64, bytes: Vec<u8> },
    /// The fault after the last received packet, which the next `take` returns.
    Fault(CapturePortError),
    /// The file has no more packets for the port.
    End,
}

impl<R: Read> CaptureInput<R> {
    /// Opens a capture. The filter selects this port's packets; open a capture of several interfaces once per port. `file` is the
    /// file's name in errors.
    ///
    /// # Errors
    /// If the file is no capture, is damaged before the port's first packet, or that packet is not Ethernet.
    pub fn open(file: &str, read: R, filter: CaptureFilter) -> Result<Self, CapturePortError> {
        let reader = CaptureReader::new(file, read)?;
        let mut input = Self { file: file.into(), reader, filter, next: Next::End };
        input.next = input.look_ahead()?;
        Ok(input)
    }

    /// Capture time of the next packet in nanoseconds since 1970-01-01 UTC. `None` at the end of the file and before a fault.
    pub const fn next_time(&self) -> Option<u64> {
        match &self.next {
            Next::Packet { time, .. } => Some(*time),
            Next::Fault(_) | Next::End => None,
        }
    }

    fn look_ahead(&mut self) -> Result<Next, CapturePortError> {
        while let Some(packet) = self.reader.next_packet()? {
            if !(self.filter)(&packet) {
                continue;
            }
            let CapturedPacket { number, time, link, data, .. } = packet;
            if link != LinkType::Ethernet {
                return Err(CapturePortError::Link { file: self.file.clone(), number, code: link.code() });
            }
            return Ok(Next::Packet { time, bytes: data.to_vec() });
        }
        Ok(Next::End)
    }

    /// Returns the number of frames that the next packet needs. `None` without a next packet.
    fn needed(&self) -> Option<usize> {
        match &self.next {
            Next::Packet { bytes, .. } => Some(needed(bytes.len())),
            Next::Fault(_) | Next::End => None,
        }
    }

    fn take(&mut self) -> Result<Option<(u64, Vec<u8>)>, PortError> {
        match std::mem::replace(&mut self.next, Next::End) {
            Next::Packet { time, bytes } => {
                self.next = self.look_ahead().unwrap_or_else(Next::Fault);
                Ok(Some((time, bytes)))
            }
            Next::Fault(fault) => Err(PortError::Failed { source: io::Error::other(fault) }),
            Next::End => Ok(None),
        }
    }
}

impl<R> fmt::Debug for CaptureInput<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureInput").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A port that receives from an input capture and writes sent packets to an output capture.
#[derive(Debug)]
pub struct CapturePort<R, W> {
    input: CaptureInput<R>,
    /// The output capture. `None` after `finish` or `close`.
    output: Option<CaptureWriter<W>>,
    clock: CaptureClock,
    umem: Arc<Umem>,
    /// Empty frames for received packets, refilled from the pool once per burst, as a kernel port does.
    stock: Vec<Frame>,
    /// Frames of sent packets, which the next `service` returns to the pool.
    spent: Vec<Frame>,
    /// The bytes of the packet that `send` writes.
    buffer: Vec<u8>,
}

impl<R: Read, W: Write> CapturePort<R, W> {
    /// Creates a port that receives from `input` and writes sent packets to the first interface of `output`. The output records them as
    /// inbound, as the peer of the link would capture them. `umem` is the region of the pool's frames.
    pub const fn new(input: CaptureInput<R>, output: CaptureWriter<W>, clock: CaptureClock, umem: Arc<Umem>) -> Self {
        let output = Some(output);
        Self { input, output, clock, umem, stock: Vec::new(), spent: Vec::new(), buffer: Vec::new() }
    }

    /// Capture time of the next packet in nanoseconds since 1970-01-01 UTC. `None` at the end of the file and before a fault.
    pub const fn next_time(&self) -> Option<u64> {
        self.input.next_time()
    }

    /// Finishes the output capture and returns its stream. `None` if it is already finished. [`Port::close`] finishes it too, but ignores
    /// errors. Sending fails afterwards.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(&mut self) -> io::Result<Option<W>> {
        self.output.take().map(CaptureWriter::finish).transpose()
    }
}

impl<R: Read + Send, W: Write + Send> Port for CapturePort<R, W> {
    /// Receives nothing after the end of the file. The port can still send.
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let mut received = 0;
        while received < limit {
            let needed = self.input.needed();
            // Reports a fault only in a call that has received no packet before it.
            if needed.is_none() && received > 0 {
                break;
            }
            let is_over_limit = needed.is_some_and(|needed| received > 0 && received + needed > limit);
            if is_over_limit || needed.is_some_and(|needed| needed > self.stock.len()) {
                break;
            }
            let Some((time, bytes)) = self.input.take()? else { break };
            self.clock.advance(time);
            let before = frames.len();
            fill(&self.umem, &bytes, std::iter::from_fn(|| self.stock.pop()), frames);
            received += frames.len() - before;
        }
        Ok(())
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        let Some(output) = &mut self.output else {
            return Err(PortError::Gone { source: io::Error::other("the output capture is finished") });
        };
        while let Some(count) = first(&*frames) {
            self.buffer.clear();
            gather(&self.umem, &frames[..count], &mut self.buffer);
            let packet = CapturedPacket {
                number: 0,
                time: self.clock.now(),
                link: LinkType::Ethernet,
                interface: None,
                direction: None,
                data: &self.buffer,
                original_len: self.buffer.len(),
            };
            let written = output.write(&packet, INTERFACE, Verdict::Forward(INTERFACE), "");
            written.map_err(|source| PortError::Failed { source })?;
            self.spent.extend(frames.drain(..count));
        }
        Ok(())
    }

    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        pool.give_all(self.spent.drain(..));
        let wanted = STOCK.max(self.input.needed().unwrap_or(0));
        let missing = wanted.saturating_sub(self.stock.len());
        self.stock.extend(std::iter::from_fn(|| pool.take()).take(missing));
        Ok(())
    }

    fn close(&mut self, pool: &mut FramePool) {
        pool.give_all(self.spent.drain(..).chain(self.stock.drain(..)));
        // `close` cannot return an error; callers that need it call `finish`.
        let _unheard = self.finish();
    }
}

#[cfg(test)]
mod tests;
