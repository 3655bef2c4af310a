//! A port over captures: what it receives is in a file, what it sends is written to one. So the whole pipeline runs on
//! recorded traffic, without privileges and the same in every run.
//!
//! ```text
//!   capture --[is it for this port?]--> frames -> worker -> frames --> capture
//!                                          `- CaptureClock -'
//! ```
//!
//! Whoever drives the port asks [`CapturePort::next_time`] and receives with a limit of 1 to keep to the times of the
//! capture; a worker that just asks gets everything as fast as it takes it. What is sent has the time of the packet that
//! any port with the same [`CaptureClock`] received last: the answer to a packet has its time.
//!
//! A packet that the capture has only the beginning of is received as that: a frame does not know how long its packet was
//! on the wire.
//!
//! **Invariant.** A file is a stranger's input: what is in it is delivered, or the port fails with an error that says
//! where; what was before the fault is delivered before.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::segments::{fill, first, gather, needed};
use super::{CaptureError, CaptureReader, CaptureWriter, CapturedPacket, Frame, FramePool, Port, PortError, Umem};
use crate::{LinkType, PortId, Verdict};

/// Frames that wait for packets: a burst of the workers.
const STOCK: usize = crate::BURST;

/// The interface in the file that is written.
const INTERFACE: PortId = PortId(0);

/// A capture cannot be received from.
#[derive(Debug, thiserror::Error)]
pub enum CapturePortError {
    /// The file cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The frames do not begin as a port's do.
    #[error(
        "{file}: packet {number} has link type {code}, and a port takes only Ethernet (1); capture on one interface \
         and not on `any`"
    )]
    Link {
        /// The file's name.
        file: Arc<str>,
        /// The packet's number.
        number: u64,
        /// The link type's registry number.
        code: u16,
    },
}

/// The time of the packet that was received last, on any port that has a clone of this.
#[derive(Clone, Debug, Default)]
pub struct CaptureClock(Arc<AtomicU64>);

impl CaptureClock {
    /// Nanoseconds since 1970-01-01 UTC; 0 before the first packet. Never runs backwards.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn advance(&self, time: u64) {
        self.0.fetch_max(time, Ordering::Relaxed);
    }
}

/// Which packets of a capture come in on a port.
pub type CaptureFilter = Box<dyn FnMut(&CapturedPacket<'_>) -> bool + Send>;

/// A capture that a port receives from.
pub struct CaptureInput<R> {
    file: Arc<str>,
    reader: CaptureReader<R>,
    filter: CaptureFilter,
    next: Next,
}

/// What the reader found, ahead of what was received.
#[derive(Debug)]
enum Next {
    /// A packet for this port.
    Packet { time: u64, bytes: Vec<u8> },
    /// The file cannot be read further, which is still to be told.
    Fault(CapturePortError),
    /// No more packets.
    End,
}

impl<R: Read> CaptureInput<R> {
    /// Opens a capture of which the filter lets in what is for this port; a capture of several interfaces is opened once
    /// per port. `file` is what errors call the file.
    ///
    /// # Errors
    /// When the file is no capture, or damaged before the port's first packet, or when that one is not Ethernet.
    pub fn open(file: &str, read: R, filter: CaptureFilter) -> Result<Self, CapturePortError> {
        let reader = CaptureReader::new(file, read)?;
        let mut input = Self { file: file.into(), reader, filter, next: Next::End };
        input.next = input.look_ahead()?;
        Ok(input)
    }

    /// When the next packet was captured, in nanoseconds since 1970-01-01 UTC; none when nothing is to come.
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

    /// How many frames the next packet needs; none when there is no next one.
    fn needed(&self) -> Option<usize> {
        match &self.next {
            Next::Packet { bytes, .. } => Some(needed(bytes.len())),
            Next::Fault(_) | Next::End => None,
        }
    }

    /// The next packet.
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

/// A port over two captures.
#[derive(Debug)]
pub struct CapturePort<R, W> {
    input: CaptureInput<R>,
    /// None: ended.
    output: Option<CaptureWriter<W>>,
    clock: CaptureClock,
    umem: Arc<Umem>,
    /// Empty frames for packets that come, taken from the pool once per burst as by a port of the kernel.
    stock: Vec<Frame>,
    /// Frames of packets that were sent.
    spent: Vec<Frame>,
    /// The bytes of a packet that is sent.
    buffer: Vec<u8>,
}

impl<R: Read, W: Write> CapturePort<R, W> {
    /// A port that receives from one capture and writes what it sends to another, as the interface that `output` has
    /// first. There the packets are told of as whoever is at the other end of the link would: they came in. The region
    /// is the one that the pool's frames are of.
    pub const fn new(input: CaptureInput<R>, output: CaptureWriter<W>, clock: CaptureClock, umem: Arc<Umem>) -> Self {
        let output = Some(output);
        Self { input, output, clock, umem, stock: Vec::new(), spent: Vec::new(), buffer: Vec::new() }
    }

    /// When the next packet was captured, in nanoseconds since 1970-01-01 UTC; none when nothing is to come.
    pub const fn next_time(&self) -> Option<u64> {
        self.input.next_time()
    }

    /// Ends the capture of what was sent and gives the stream back; none when it was ended before. [`Port::close`] ends
    /// it as well, but has nobody to tell an error to. Nothing can be sent afterwards.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(&mut self) -> io::Result<Option<W>> {
        self.output.take().map(CaptureWriter::finish).transpose()
    }
}

impl<R: Read + Send, W: Write + Send> Port for CapturePort<R, W> {
    /// Gives nothing more after the end of the file; the port can still send then.
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let mut received = 0;
        while received < limit {
            let needed = self.input.needed();
            // A fault is told when what was before it is in the worker's hands.
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
            return Err(PortError::Gone { source: io::Error::other("the capture of what was sent is ended") });
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
        // Nobody is left to tell; `finish` is for those who want to know.
        let _unheard = self.finish();
    }
}

#[cfg(test)]
mod tests;
