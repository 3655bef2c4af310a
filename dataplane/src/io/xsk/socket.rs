//! One AF_XDP socket: packet memory registered, four rings mapped, bound to a queue.
//! Source: `Documentation/networking/af_xdp.rst` and `include/uapi/linux/if_xdp.h` of the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::error::XskError;
use super::mapping::Mapping;
use super::ring::{Consumer, Entry, Producer};
use super::small_size;
use super::umem::{CHUNK, Umem};

/// Maximum frames of one packet: `MAX_SKB_FRAGS` + 1 (Linux's default). The kernel refuses longer chains and never returns their chunks.
pub(super) const LONGEST_CHAIN: u32 = 18;

/// Wait between two tries to bind. A queue stays busy after closing until the kernel has sent its last packet.
const BUSY_STEP: Duration = Duration::from_millis(20);
/// Maximum tries: two seconds in total. The longest busy time seen was 40 ms.
const BUSY_STEPS: u32 = 100;

/// The queue of an interface on which a socket is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue<'a> {
    /// The interface's name, for errors.
    pub(super) interface: &'a str,
    pub(super) index: u32,
    pub(super) queue: u32,
    /// Whether to wait up to two seconds until the queue is no longer busy.
    pub(super) wait: bool,
}

/// A socket with the vswitch's ends of its rings. Field order is drop order: mapped rings keep the kernel's socket alive, so closing the
/// descriptor first would leave it bound.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fill: Producer<u64>,
    pub(super) receive: Consumer<libc::xdp_desc>,
    pub(super) transmit: Producer<libc::xdp_desc>,
    pub(super) completion: Consumer<u64>,
    pub(super) descriptor: OwnedFd,
    /// Whether the socket accepts packets of several frames.
    pub(super) frags: bool,
}

impl Socket {
    /// Opens a socket on a queue. Ring sizes must be powers of two. The fill ring is as large as the receive ring, so that the receive ring
    /// cannot overflow. The completion ring is as large as the transmit ring, so that it has room for every sent packet.
    pub(super) fn open(
        queue: Queue<'_>,
        umem: &Umem,
        receive: u32,
        transmit: u32,
        frags: bool,
    ) -> Result<Self, XskError> {
        let failed = |operation| move |source| XskError::system(queue.interface, operation, source);
        let descriptor = create().map_err(failed("create an AF_XDP socket"))?;
        let fd = descriptor.as_fd();
        register(fd, umem).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                XskError::PacketMemory { interface: queue.interface.to_owned(), bytes: umem.memory().len(), source }
            }
            _ => failed("register packet memory")(source),
        })?;
        let sizes = [
            (libc::XDP_UMEM_FILL_RING, receive),
            (libc::XDP_UMEM_COMPLETION_RING, transmit),
            (libc::XDP_RX_RING, receive),
            (libc::XDP_TX_RING, transmit),
        ];
        for (ring, size) in sizes {
            set_option(fd, ring, &size).map_err(failed("make a ring"))?;
        }
        let at = offsets(fd).map_err(failed("ask where the rings are"))?;
        let map = failed("map a ring");
        // SAFETY: the kernel is the other end, and this is the only mapping of each ring.
        let fill = unsafe { Producer::new(ring::<u64>(fd, at.fr, receive, FILL).map_err(map)?, at.fr, receive) };
        // SAFETY: as above.
        let completion =
            unsafe { Consumer::new(ring::<u64>(fd, at.cr, transmit, COMPLETION).map_err(map)?, at.cr, transmit) };
        let (rx, tx) = (libc::XDP_PGOFF_RX_RING, libc::XDP_PGOFF_TX_RING);
        // SAFETY: as above.
        let receive =
            unsafe { Consumer::new(ring::<libc::xdp_desc>(fd, at.rx, receive, rx).map_err(map)?, at.rx, receive) };
        // SAFETY: as above.
        let transmit =
            unsafe { Producer::new(ring::<libc::xdp_desc>(fd, at.tx, transmit, tx).map_err(map)?, at.tx, transmit) };
        let frags = bind(fd, queue, frags)?;
        Ok(Self { fill, receive, transmit, completion, descriptor, frags })
    }

    /// Makes the kernel send packets of the transmit ring. It sends up to 32 (Linux 6.18) and returns `EAGAIN` if more remain.
    pub(super) fn kick_transmit(&self) -> io::Result<()> {
        // SAFETY: no bytes are passed.
        let sent = unsafe { libc::sendto(self.raw(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Wakes a sleeping driver to read the fill ring. Fails if the interface is removed or down.
    pub(super) fn kick_receive(&self) -> io::Result<()> {
        let none = std::ptr::null_mut();
        // SAFETY: the buffer has length 0, and the pointer for the address is null.
        let received = unsafe { libc::recvfrom(self.raw(), none, 0, libc::MSG_DONTWAIT, none.cast(), none.cast()) };
        if received < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the kernel's counters since the socket was bound.
    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        let mut statistics = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        // SAFETY: six integers, which is what the option gives; older kernels write fewer.
        unsafe { get_option(self.as_fd(), libc::XDP_STATISTICS, &mut statistics) }?;
        Ok(statistics)
    }

    fn raw(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The address family in the type of `sockaddr_xdp`.
#[expect(clippy::cast_possible_truncation, reason = "it is 44")]
const FAMILY: u16 = libc::AF_XDP as u16;
/// The `mmap` offset of the fill ring.
const FILL: libc::off_t = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
/// The `mmap` offset of the completion ring.
const COMPLETION: libc::off_t = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;

fn create() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor and touches no memory.
    let descriptor = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Registers the packet memory with this socket. The alternative, sharing a first socket's registration (`XDP_SHARED_UMEM`), would require
/// one socket to outlive all others. The price: each socket pins the region, which counts once per socket against the locked memory limit
/// of a process without `CAP_IPC_LOCK`. Sharing would not save the kernel's 170 bytes per chunk and socket, mostly the per-queue buffer
/// pool (`xp_create_and_assign_umem`).
fn register(socket: BorrowedFd<'_>, umem: &Umem) -> io::Result<()> {
    let memory = umem.memory();
    let region = libc::xdp_umem_reg {
        addr: memory.start().as_ptr().expose_provenance() as u64,
        len: memory.len() as u64,
        chunk_size: u32::from(CHUNK),
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket, libc::XDP_UMEM_REG, &region)
}

fn offsets(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    const NONE: libc::xdp_ring_offset = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let mut offsets = libc::xdp_mmap_offsets { rx: NONE, tx: NONE, fr: NONE, cr: NONE };
    // SAFETY: integers only, which is what the option gives.
    unsafe { get_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets) }?;
    Ok(offsets)
}

fn ring<T: Entry>(
    socket: BorrowedFd<'_>,
    offsets: libc::xdp_ring_offset,
    size: u32,
    place: libc::off_t,
) -> io::Result<Arc<Mapping>> {
    let start = usize::try_from(offsets.desc).map_err(io::Error::other)?;
    Mapping::of(socket, place, start + size as usize * size_of::<T>()).map(Arc::new)
}

/// Binds the socket to the queue. Returns whether it supports packets of several frames.
fn bind(socket: BorrowedFd<'_>, queue: Queue<'_>, frags: bool) -> Result<bool, XskError> {
    // Forces copy mode. Zero-copy mode replaces the queue's memory by the socket's and is untested with this program; veth has none.
    let mut flags = libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | if frags { libc::XDP_USE_SG } else { 0 };
    let mut steps = 0;
    loop {
        let address = libc::sockaddr_xdp {
            sxdp_family: FAMILY,
            sxdp_flags: flags,
            sxdp_ifindex: queue.index,
            sxdp_queue_id: queue.queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = small_size::<libc::sockaddr_xdp>();
        // SAFETY: an address of the socket's family with its size.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
            return Ok(flags & libc::XDP_USE_SG != 0);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EBUSY) if queue.wait && steps < BUSY_STEPS => {
                steps += 1;
                std::thread::sleep(BUSY_STEP);
            }
            Some(libc::EBUSY) => {
                return Err(XskError::QueueBusy { interface: queue.interface.to_owned(), queue: queue.queue });
            }
            // Kernels before 6.6 do not know the flag.
            Some(libc::EINVAL | libc::EOPNOTSUPP) if flags & libc::XDP_USE_SG != 0 => flags &= !libc::XDP_USE_SG,
            _ => return Err(XskError::system(queue.interface, "bind an AF_XDP socket", error)),
        }
    }
}

fn set_option<T>(socket: BorrowedFd<'_>, option: i32, value: &T) -> io::Result<()> {
    let len = small_size::<T>();
    // SAFETY: the kernel reads `len` bytes of a value of that size.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw const *value).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// # Safety
/// Every bit pattern must be a value of `T`.
unsafe fn get_option<T>(socket: BorrowedFd<'_>, option: i32, value: &mut T) -> io::Result<()> {
    let mut len = small_size::<T>();
    // SAFETY: the kernel writes at most `len` bytes, and whatever it writes is a value.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw mut *value).cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
