//! Attaches the XDP program to an interface and opens its queues.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::bpf;
use super::error::XskError;
use super::flow_cache::{HeldSlot, KernelFlowCache};
use super::link::LinkInfo;
use super::namespace;
use super::netlink;
use super::port::XskPort;
use super::program::Program;
use super::queue_config::QueueConfig;
use super::socket::Queue;
use super::umem::{ROOM, Umem};
use super::xdp_mode::XdpMode;
use crate::io::FlowSlot;

/// `XDP_FLAGS_SKB_MODE` of `linux/if_link.h`.
const SKB_MODE: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`.
const DRV_MODE: u32 = 1 << 2;

/// Bytes of a frame that the MTU does not count: Ethernet header and one VLAN tag.
const LINK_HEADER: u32 = 18;

/// An attached interface. All its packets go to this process's AF_XDP sockets, or are dropped, until the value is dropped or the process
/// ends.
///
/// Keep the value longer than its ports, so that no packet reaches the host's stack. Ports may be closed and reopened; a queue without
/// a port drops its packets.
#[derive(Debug)]
pub struct Interface {
    info: LinkInfo,
    mode: XdpMode,
    refusal: Option<io::Error>,
    program: Program,
    /// The descriptor that attaches the program. The kernel closes it when the process dies, which detaches the program.
    link: OwnedFd,
    /// Inode number of the network namespace in which the interface was attached. `None` if it cannot be read.
    namespace: Option<u64>,
}

impl Interface {
    /// The largest MTU in bytes for a port without multi-frame packets ([`XskPort::takes_chains`]).
    pub const PLAIN_MTU: u32 = ROOM as u32 - LINK_HEADER;

    /// Attaches to an interface of the calling thread's network namespace. A queue drops its packets until it has a port.
    ///
    /// # Errors
    /// [`XskError`] if the interface is missing, down or in use, or the kernel or driver lacks support.
    pub fn open(name: &str, mode: XdpMode) -> Result<Self, XskError> {
        let info = LinkInfo::read(name)?;
        if !info.up {
            return Err(XskError::Down { interface: info.name });
        }
        Self::take(info, mode, None)
    }

    /// Like [`open`](Self::open), but also attaches to an interface that is down, so that no packet passes when it comes up. Its ports can
    /// be opened then.
    ///
    /// With a flow cache, packets of cached flows bypass the ports. If the cache has no free slot, all packets go to the ports.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn hold(name: &str, mode: XdpMode, cache: Option<&Arc<KernelFlowCache>>) -> Result<Self, XskError> {
        Self::take(LinkInfo::read(name)?, mode, cache)
    }

    fn take(info: LinkInfo, mode: XdpMode, cache: Option<&Arc<KernelFlowCache>>) -> Result<Self, XskError> {
        if !info.ethernet {
            return Err(XskError::NotEthernet { interface: info.name });
        }
        raise_limits();
        let failed = |source| XskError::system(&info.name, "load the XDP program", source);
        // Sized for the maximum number of queues, so that adding queues needs no new program.
        let slot = cache.and_then(HeldSlot::take).map(Arc::new);
        let program = Program::load(info.most_queues, slot.as_ref()).map_err(failed)?;
        let (program, link, used, refusal) = match mode {
            XdpMode::Drv | XdpMode::Skb => {
                let (program, link) = attach(program, &info, mode)?;
                (program, link, mode, None)
            }
            XdpMode::Auto => match attach(program, &info, XdpMode::Drv) {
                Ok((program, link)) => (program, link, XdpMode::Drv, None),
                Err(XskError::ModeRefused { source, .. }) => {
                    let program = Program::load(info.most_queues, slot.as_ref()).map_err(failed)?;
                    let (program, link) = attach(program, &info, XdpMode::Skb)?;
                    (program, link, XdpMode::Skb, Some(source))
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Self { info, mode: used, refusal, program, link, namespace: namespace::network_namespace() })
    }

    /// Opens a queue, whose packets go to the returned port. Must be called in the interface's network namespace. Waits up to two
    /// seconds for the kernel to release a recently closed queue.
    ///
    /// # Errors
    /// [`XskError`] if the queue does not exist or is in use, or memory is short.
    pub fn port(&self, queue: u32, umem: &Arc<Umem>, config: QueueConfig) -> Result<XskPort, XskError> {
        self.bind(queue, umem, config, true)
    }

    fn bind(&self, queue: u32, umem: &Arc<Umem>, config: QueueConfig, wait: bool) -> Result<XskPort, XskError> {
        let interface = || self.info.name.clone();
        if queue >= self.info.queues {
            return Err(XskError::NoQueue { interface: interface(), queue, queues: self.info.queues });
        }
        if self.namespace != namespace::network_namespace() {
            // The index may belong to another interface in this namespace.
            let source = io::Error::other("the calling thread and the interface are in different network namespaces");
            return Err(XskError::System { interface: interface(), operation: "open a queue", source });
        }
        if self.info.queues > self.info.transmit_queues {
            let (receive, transmit) = (self.info.queues, self.info.transmit_queues);
            return Err(XskError::TransmitQueues { interface: interface(), receive, transmit });
        }
        let place = Queue { interface: &self.info.name, index: self.info.index, queue, wait };
        let mut port = XskPort::open(place, umem, config, self.program.frags)?;
        port.set_slot(self.slot());
        // Linux 5.18 to 6.5 support multi-buffer packets in programs but not in sockets.
        if self.info.mtu > Self::PLAIN_MTU && !port.takes_chains() {
            return Err(XskError::MtuTooLarge { interface: interface(), mtu: self.info.mtu, most: Self::PLAIN_MTU });
        }
        let socket = port.socket().expect("just opened");
        self.program
            .set_socket(queue, socket.as_fd())
            .map_err(|source| XskError::system(&self.info.name, "add the socket to the XDP program's map", source))?;
        Ok(port)
    }

    /// Opens all queues, in order.
    ///
    /// # Errors
    /// As for [`port`](Self::port). No queue stays open after an error.
    pub fn ports(&self, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        (0..self.info.queues).map(|queue| self.port(queue, umem, config)).collect()
    }

    /// Attaches the program again after the number of queues has changed. On a veth (seen with Linux 6.18) the attached XDP program does
    /// not run on added queues, and their packets reach the host's stack. Sockets stay bound.
    ///
    /// # Errors
    /// [`XskError`] if the interface is gone or the kernel refuses. [`info`](Self::info) keeps the old number, so that the caller retries.
    pub fn renew(&mut self, queues: u32) -> Result<(), XskError> {
        let renewed = self.program.renew(self.link.as_fd());
        renewed.map_err(|source| XskError::system(&self.info.name, "attach the XDP program to new queues", source))?;
        self.info.queues = queues;
        Ok(())
    }

    /// Opens all current queues, in order, without waiting for busy ones. `name` is the interface's current name, which may have changed
    /// since attaching.
    ///
    /// # Errors
    /// As for [`port`](Self::port), [`XskError::QueueBusy`] immediately, and [`XskError::NoInterface`] if the name belongs to another
    /// interface. No queue stays open after an error.
    pub fn try_ports(&mut self, name: &str, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        let info = LinkInfo::read(name)?;
        if self.index().is_none_or(|index| index != info.index) {
            return Err(XskError::NoInterface { interface: info.name });
        }
        if info.queues != self.info.queues {
            self.renew(info.queues)?;
        }
        self.info = info;
        (0..self.info.queues).map(|queue| self.bind(queue, umem, config, false)).collect()
    }

    /// Returns the interface's state at attaching, or at the last [`try_ports`](Self::try_ports).
    pub const fn info(&self) -> &LinkInfo {
        &self.info
    }

    /// Returns the active mode, [`XdpMode::Drv`] or [`XdpMode::Skb`].
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Returns the driver's error if [`XdpMode::Auto`] fell back to `Skb`, else `None`.
    pub const fn drv_refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Returns the interface's slot in the flow cache. `None` without a cache or a free slot.
    pub fn slot(&self) -> Option<FlowSlot> {
        self.program.slot.as_ref().map(|held| held.slot)
    }

    /// Whether the interface still exists, under any name and in any namespace. One system call (about 1 µs), valid from any thread and
    /// namespace.
    pub fn is_alive(&self) -> bool {
        self.index().is_some()
    }

    /// Returns the interface's current index in its current namespace. `None` if it was removed. One system call.
    pub fn index(&self) -> Option<u32> {
        // The link tracks its interface across renames and moves between namespaces; name and index do not.
        bpf::attached_to(self.link.as_fd()).ok().map(|(index, _)| index).filter(|&index| index != 0)
    }

    /// Whether the interface has this index in the calling thread's namespace. Also compares the attached program, since a moved interface
    /// may have the same index in another namespace.
    pub fn is_here_as(&self, index: u32) -> bool {
        bpf::attached_to(self.link.as_fd()).is_ok_and(|(at, program)| {
            at == index && netlink::xdp_programs(index).is_ok_and(|programs| programs.contains(&program))
        })
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // Fails only if the interface is gone, and then the program is detached.
        drop(bpf::detach(self.link.as_fd()));
    }
}

/// Attaches a program in driver or generic mode. If the driver refuses a multi-buffer program, tries one without.
fn attach(program: Program, info: &LinkInfo, mode: XdpMode) -> Result<(Program, OwnedFd), XskError> {
    let flags = if mode == XdpMode::Skb { SKB_MODE } else { DRV_MODE };
    let failed = |source: io::Error| {
        let interface = info.name.clone();
        match source.raw_os_error() {
            // EBUSY for a program in the same mode, EEXIST for one in the other.
            Some(libc::EBUSY | libc::EEXIST) => XskError::ProgramPresent { interface },
            // A driver's refusals. veth returns ERANGE if the MTU needs several buffers.
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::ENOSPC | libc::E2BIG | libc::ENOMEM) => {
                XskError::ModeRefused { interface, mode, source }
            }
            _ => XskError::system(&info.name, "attach the XDP program", source),
        }
    };
    match program.attach(info.index, flags).map_err(failed) {
        Ok(link) => Ok((program, link)),
        Err(refused @ XskError::ModeRefused { .. }) if program.frags => {
            let Ok(plain) = Program::load_with(info.most_queues, program.slot.as_ref(), false) else {
                return Err(refused);
            };
            match plain.attach(info.index, flags) {
                Ok(link) => Ok((plain, link)),
                Err(_) => Err(refused),
            }
        }
        Err(error) => Err(error),
    }
}

/// Raises the process's limits on locked memory and open files.
///
/// Packet memory counts as locked memory unless the process has `CAP_IPC_LOCK`. Raising that limit needs `CAP_SYS_RESOURCE`; without
/// both, registering the memory fails later with its own error. An interface needs three descriptors plus one per queue, so the usual
/// limit of 1,024 is too low for 250 pods; the hard limit is far higher.
pub(super) fn raise_limits() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads the limit and touches no other memory.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the limit and touches no other memory.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) } == 0 {
        files.rlim_cur = files.rlim_max;
        // SAFETY: as above, reading.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two_within_bounds() {
        let sizes = |receive, transmit| QueueConfig { receive, transmit }.ring_sizes();
        assert_eq!(QueueConfig::default().ring_sizes(), (1024, 1024));
        assert_eq!(sizes(0, 1000), (32, 1024));
        assert_eq!(sizes(u32::MAX, 3), (65_536, 32));
    }
}
