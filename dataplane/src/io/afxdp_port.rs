//! The `afxdp` crate as a port, to be held against [`XskPort`](super::XskPort). Cargo feature `afxdp`; building it needs
//! a C compiler, make, pkg-config, libelf and zlib with their headers (the crate brings libbpf 0.3 along).
//!
//! What the crate cannot do, and what this port does about it:
//!
//! | the crate, version 0.4.0                             | here                                                      |
//! |------------------------------------------------------|-----------------------------------------------------------|
//! | has packet memory of its own                         | packets are copied, both ways                             |
//! | sends 32 packets per call and has no other way to    | never gives it more than 32 at once                       |
//! | wake the kernel; what is left then waits             |                                                           |
//! | attaches a program by netlink that stays after the   | [`Interface`] attaches ours first; libbpf finds it, and   |
//! | process is gone and passes packets to the host       | its map by the name, and adds the socket to it            |
//! | panics when a packet is sent and the interface gone  | the panic is caught                                       |
//! | keeps its descriptor to itself                       | no sleeping ([`Port::descriptor`] is none), no statistics |
//! | has no packets of several frames                     | such packets are dropped and counted                      |
//!
//! The alternative for the third, letting the crate attach its program and removing that at exit by netlink
//! (`IFLA_XDP_FD` -1), would leave it behind after `kill -9`, and pass packets to the host's stack while it is there.

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

/// A buffer of the crate's memory. Nothing of ours is attached to it.
type Buffer = BufMmap<'static, ()>;
type Buffers = ArrayDeque<[Buffer; PENDING_LEN], Wrapping>;

/// Bytes of one buffer, of which the kernel keeps 256 free: as in our own memory, so that packets fit both.
const BUFFER: usize = 4096;

/// The most that the kernel sends per call; a 33rd would wait until the next packet is sent.
const SENT_PER_CALL: usize = 32;

/// The most packets that are received at once; so many empty frames are kept at hand.
const BURST: usize = 256;

/// One question in this many bursts whether the interface is still there: nothing else tells when nothing is sent.
const PROBE_EVERY: u32 = 1024;

/// A queue that was just closed is busy for some milliseconds; as in [`XskPort`](super::XskPort).
const BUSY_STEP: Duration = Duration::from_millis(20);
/// Two seconds in all.
const BUSY_STEPS: u32 = 100;

/// One queue of one interface by way of the crate.
pub struct AfxdpPort {
    /// None after `close`.
    ends: Option<Ends>,
    interface: Arc<Interface>,
    umem: Arc<Umem>,
    /// Empty, to receive into.
    empty: Vec<Frame>,
    /// Sent or refused, for the pool.
    spare: Vec<Frame>,
    refused: u64,
    until_probe: u32,
}

/// The crate's half. Its buffers point into the area and must not outlive it, which the crate leaves to its user: they
/// stay in here, and the area goes last.
struct Ends {
    receive: SocketRx<'static, ()>,
    transmit: SocketTx<'static, ()>,
    fill: UmemFillQueue<'static, ()>,
    completion: UmemCompletionQueue<'static, ()>,
    /// Received, to be copied.
    received: Box<Buffers>,
    /// Copied, to be filled again.
    used: Vec<Buffer>,
    /// To be sent from. The crate gives no more back than its capacity allows.
    free: Vec<Buffer>,
    /// To be sent.
    waiting: Box<Buffers>,
    _area: Arc<MmapArea<'static, ()>>,
}

impl AfxdpPort {
    /// Opens a queue of an interface that was taken over. Must be called in the interface's network namespace.
    ///
    /// # Errors
    /// [`XskError`] when the crate or the kernel refuses, or when the interface's packets do not fit a buffer.
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
        // The crate moves packets through a queue of this many.
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

    /// Sends what waits, as far as the ring has room. False when the crate has panicked.
    fn flush(&mut self) -> bool {
        while !self.waiting.is_empty() {
            let Self { transmit, waiting, .. } = self;
            // The crate panics for any error number that it does not know, such as that of an interface which is gone.
            // What it leaves behind then is only dropped.
            match catch_unwind(AssertUnwindSafe(|| transmit.try_send(waiting, SENT_PER_CALL))) {
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// libbpf's errors are negative, and the crate does not turn them.
fn as_given(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO).abs())
}

impl Port for AfxdpPort {
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let Some(ends) = &mut self.ends else { return Ok(()) };
        if ends.received.is_empty() {
            // It has no errors to give.
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
                // As many buffers as the queue has room for, so that none is pushed out.
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
        // Neither has errors to give.
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
