//! A port over the `afxdp` crate, for comparison with [`XskPort`](super::XskPort). Cargo feature `afxdp`; building it needs
//! a C compiler, make, pkg-config, libelf and zlib with their headers (the crate bundles libbpf 0.3).
//!
//! Limitations of the crate, and the workarounds of this port:
//!
//! | crate version 0.4.0                                  | this port                                                 |
//! |------------------------------------------------------|-----------------------------------------------------------|
//! | uses its own packet memory                           | copies packets in both directions                         |
//! | sends 32 packets per call and cannot wake the kernel | passes at most 32 packets per call                        |
//! | for the rest, which then waits                       |                                                           |
//! | attaches a program by netlink, which outlives the    | [`Interface`] attaches its own program first; libbpf      |
//! | process and passes packets to the host               | finds its map by name and adds the socket to it           |
//! | panics when sending on a removed interface           | catches the panic                                         |
//! | does not expose its descriptor                       | [`Port::descriptor`] is `None`; no statistics             |
//! | supports no packets of several frames                | drops and counts such packets                             |
//!
//! The alternative for the third limitation lost: the crate's program, removed by netlink at exit (`IFLA_XDP_FD` -1), would stay
//! attached after `kill -9` and pass packets to the host's stack.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use afxdp::PENDING_LEN;
use afxdp::buf::Buf;
use afxdp::buf_mmap::BufMmap;
use afxdp::mmap_area::{MmapArea, MmapAreaOptions};
use afxdp::socket::{Socket, SocketNewError, SocketOptions, SocketRx, SocketTx};
use afxdp::umem::{Umem as CrateUmem, UmemCompletionQueue, UmemFillQueue, UmemNewError};
use arraydeque::{ArrayDeque, Wrapping};

use super::{Frame, FramePool, Interface, Port, PortError, PortStatistics, QueueConfig, Umem, XskError};

/// A buffer of the crate's memory, without user data.
type Buffer = BufMmap<'static, ()>;
type Buffers = ArrayDeque<[Buffer; PENDING_LEN], Wrapping>;

/// Bytes of one buffer, of which the kernel keeps 256 as headroom. Equal to a chunk of [`Umem`], so packets fit both.
const BUFFER: usize = 4096;

/// Packets that the kernel sends per call. A 33rd would wait until the next call.
const SENT_PER_CALL: usize = 32;

/// Maximum packets received at once, and number of empty frames kept ready for them.
const BURST: usize = 256;

/// Number of bursts between two checks that the interface still exists. A port that only receives gets no error from the kernel.
const PROBE_EVERY: u32 = 1024;

/// Wait before retrying a busy queue. A queue stays busy for some milliseconds after it was closed.
const BUSY_STEP: Duration = Duration::from_millis(20);
/// Maximum number of retries: two seconds in total.
const BUSY_STEPS: u32 = 100;

/// One queue of one interface, driven by the crate.
pub struct AfxdpPort {
    /// The crate's socket ends. `None` after `close`.
    ends: Option<Ends>,
    interface: Arc<Interface>,
    umem: Arc<Umem>,
    /// Empty frames to receive into.
    empty: Vec<Frame>,
    /// Frames of sent and refused packets, which the next `service` returns to the pool.
    spare: Vec<Frame>,
    refused: u64,
    until_probe: u32,
}

/// The crate's objects. Buffers point into the area and must not outlive it, which the crate does not enforce: so the area is the
/// last field and is dropped last.
struct Ends {
    receive: SocketRx<'static, ()>,
    transmit: SocketTx<'static, ()>,
    fill: UmemFillQueue<'static, ()>,
    completion: UmemCompletionQueue<'static, ()>,
    /// Received buffers, before the copy to frames.
    received: Box<Buffers>,
    /// Buffers whose packets were copied to frames, to be returned to the fill ring.
    used: Vec<Buffer>,
    /// Free transmit buffers. The crate returns no more than this vector's capacity.
    free: Vec<Buffer>,
    /// Transmit buffers with packets, to be sent at the next flush.
    waiting: Box<Buffers>,
    _area: Arc<MmapArea<'static, ()>>,
}

impl AfxdpPort {
    /// Opens a queue of an attached interface. Must be called in the interface's network namespace.
    ///
    /// # Errors
    /// [`XskError`] if the crate or the kernel refuses, or if a packet of the interface's MTU does not fit a buffer.
    pub fn open(
        interface: &Arc<Interface>,
        queue: u32,
        umem: &Arc<Umem>,
        config: QueueConfig,
    ) -> Result<Self, XskError> {
        let info = interface.info();
        // Ethernet header and one VLAN tag.
        let most = u32::try_from(Umem::ROOM - 18).expect("less than a chunk");
        if info.mtu > most {
            return Err(XskError::MtuTooLarge { interface: info.name.clone(), mtu: info.mtu, most });
        }
        let mut steps = 0;
        let ends = loop {
            match Ends::open(&info.name, queue, config) {
                Ok(ends) => break ends,
                Err((_, error)) if error.raw_os_error() == Some(libc::EBUSY) && steps < BUSY_STEPS => {
                    steps += 1;
                    std::thread::sleep(BUSY_STEP);
                }
                Err((operation, error)) => return Err(XskError::system(&info.name, operation, error)),
            }
        };
        Ok(Self {
            ends: Some(ends),
            interface: Arc::clone(interface),
            umem: Arc::clone(umem),
            empty: Vec::with_capacity(BURST),
            spare: Vec::with_capacity(BURST),
            refused: 0,
            until_probe: PROBE_EVERY,
        })
    }

    fn gone(code: i32) -> PortError {
        PortError::Gone { source: io::Error::from_raw_os_error(code) }
    }
}

impl Ends {
    fn open(interface: &str, queue: u32, config: QueueConfig) -> Result<Self, (&'static str, io::Error)> {
        // The crate moves packets through a queue of 4,096 entries.
        let size = |wanted: u32| wanted.clamp(1, 4096).next_power_of_two();
        let (receive_ring, transmit_ring) = (size(config.receive), size(config.transmit));
        let buffers = receive_ring as usize + transmit_ring as usize;
        let (area, mut free) = MmapArea::<()>::new(buffers, BUFFER, MmapAreaOptions { huge_tlb: false })
            .map_err(|_| ("map the crate's packet memory", io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let (umem, completion, fill) =
            CrateUmem::new(Arc::clone(&area), transmit_ring, receive_ring).map_err(|error| match error {
                UmemNewError::Create(error) => ("register the crate's packet memory", as_given(&error)),
                UmemNewError::RingNotPowerOfTwo => ("make a ring", io::Error::from_raw_os_error(libc::EINVAL)),
            })?;
        let options = SocketOptions { copy_mode: true, ..SocketOptions::default() };
        let (_, receive, transmit) = Socket::new(umem, interface, queue as usize, receive_ring, transmit_ring, options)
            .map_err(|error| match error {
                SocketNewError::Create(error) => ("open an AF_XDP socket with the crate", as_given(&error)),
                SocketNewError::RingNotPowerOfTwo => ("make a ring", io::Error::from_raw_os_error(libc::EINVAL)),
            })?;
        let used = free.split_off(transmit_ring as usize);
        let (received, waiting) = (Box::new(Buffers::new()), Box::new(Buffers::new()));
        Ok(Self { receive, transmit, fill, completion, received, used, free, waiting, _area: area })
    }

    /// Sends the waiting buffers that fit the ring. Returns false if the crate panics.
    fn flush(&mut self) -> bool {
        while !self.waiting.is_empty() {
            let Self { transmit, waiting, .. } = self;
            // The crate panics for unknown error numbers, such as that of a removed interface. Its state is only dropped afterwards.
            match catch_unwind(AssertUnwindSafe(|| transmit.try_send(waiting, SENT_PER_CALL))) {
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Converts libbpf's negative error numbers, which the crate passes on unchanged.
fn as_given(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO).abs())
}

impl Port for AfxdpPort {
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let Some(ends) = &mut self.ends else { return Ok(()) };
        if ends.received.is_empty() {
            // Returns no errors.
            drop(ends.receive.try_recv(&mut ends.received, limit.min(BURST), ()));
        }
        for _ in 0..limit {
            if ends.received.is_empty() {
                break;
            }
            let Some(mut frame) = self.empty.pop() else { break };
            let Some(buffer) = ends.received.pop_front() else { break };
            let len = usize::from(buffer.get_len());
            frame.reset(len);
            self.umem.bytes_mut(&mut frame).copy_from_slice(&buffer.get_data()[..len]);
            frames.push(frame);
            ends.used.push(buffer);
        }
        Ok(())
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        let Some(ends) = &mut self.ends else { return Ok(()) };
        let mut taken = 0;
        for packet in frames.split_inclusive(|frame| !frame.has_more()) {
            let [frame] = packet else {
                if packet.last().is_some_and(Frame::has_more) {
                    break;
                }
                self.refused += 1;
                taken += packet.len();
                continue;
            };
            if frame.has_more() {
                break;
            }
            if frame.is_empty() {
                self.refused += 1;
            } else {
                let Some(mut buffer) = ends.free.pop() else { break };
                buffer.get_data_mut()[..frame.len()].copy_from_slice(self.umem.bytes(frame));
                buffer.set_len(u16::try_from(frame.len()).expect("less than a chunk"));
                // There are at most as many buffers as queue entries, so `push_back` evicts none.
                drop(ends.waiting.push_back(buffer));
            }
            taken += 1;
        }
        self.spare.extend(frames.drain(..taken));
        Ok(())
    }

    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        pool.give_all(self.spare.drain(..));
        let Some(ends) = &mut self.ends else { return Ok(()) };
        while self.empty.len() < BURST {
            let Some(frame) = pool.take() else { break };
            self.empty.push(frame);
        }
        // Neither call returns errors.
        drop(ends.completion.service(&mut ends.free, usize::MAX));
        let used = ends.used.len();
        drop(ends.fill.fill(&mut ends.used, used));
        if !ends.flush() {
            return Err(Self::gone(libc::ENXIO));
        }
        self.until_probe -= 1;
        if self.until_probe == 0 {
            self.until_probe = PROBE_EVERY;
            if !self.interface.is_alive() {
                return Err(Self::gone(libc::ENODEV));
            }
        }
        Ok(())
    }

    fn close(&mut self, pool: &mut FramePool) {
        drop(self.ends.take());
        pool.give_all(self.empty.drain(..));
        pool.give_all(self.spare.drain(..));
    }

    fn statistics(&self) -> PortStatistics {
        PortStatistics { invalid_descriptors: self.refused, ..PortStatistics::default() }
    }
}
