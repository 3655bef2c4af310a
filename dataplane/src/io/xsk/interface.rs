//! An interface that this process has taken over.

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

/// Ethernet header with one VLAN tag, in bytes: what a packet has beside its MTU.
const LINK_HEADER: u32 = 18;

/// An interface whose packets all go to AF_XDP sockets of this process, or nowhere: from `open` or `hold` on, until it
/// is dropped or the process ends, in whatever way.
///
/// It must outlive its ports if no packet may reach the host's stack in between. Ports may be closed and opened again
/// as often as wanted meanwhile; a queue without one drops.
#[derive(Debug)]
pub struct Interface {
    info: LinkInfo,
    mode: XdpMode,
    refusal: Option<io::Error>,
    program: Program,
    /// Closing it detaches the program, whatever the process died of.
    link: OwnedFd,
    /// Where the interface's number means it.
    namespace: Option<u64>,
}

impl Interface {
    /// The largest MTU, in bytes, that a port without packets of several frames
    /// ([`XskPort::takes_chains`]) can carry.
    pub const PLAIN_MTU: u32 = ROOM as u32 - LINK_HEADER;

    /// Takes an interface of the calling thread's network namespace over. Its packets are dropped until its queues
    /// have ports.
    ///
    /// # Errors
    /// [`XskError`] when it is not there, down, taken already, or the kernel or the driver cannot.
    pub fn open(name: &str, mode: XdpMode) -> Result<Self, XskError> {
        let info = LinkInfo::read(name)?;
        if !info.up {
            return Err(XskError::Down { interface: info.name });
        }
        Self::take(info, mode, None)
    }

    /// As [`open`](Self::open), whether it is up or not. What is held while it is down gives no packet away when it
    /// comes up; its ports can be opened then.
    ///
    /// With a flow cache, packets of the flows in it do not come to the ports; without a free place in the cache all do.
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
        // Room for every queue that it can be given, so that the program need not be replaced then.
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
        Ok(Self { info, mode: used, refusal, program, link, namespace: namespace::current() })
    }

    /// Opens one of its queues; the packets on it go to the port from then on. Must be called in the interface's
    /// network namespace. When the queue was just closed it takes up to two seconds for the kernel to let go of it.
    ///
    /// # Errors
    /// [`XskError`] when there is no such queue, it is in use, or there is no memory for it.
    pub fn port(&self, queue: u32, umem: &Arc<Umem>, config: QueueConfig) -> Result<XskPort, XskError> {
        self.bind(queue, umem, config, true)
    }

    fn bind(&self, queue: u32, umem: &Arc<Umem>, config: QueueConfig, wait: bool) -> Result<XskPort, XskError> {
        let interface = || self.info.name.clone();
        if queue >= self.info.queues {
            return Err(XskError::NoQueue { interface: interface(), queue, queues: self.info.queues });
        }
        if self.namespace != namespace::current() {
            // Its number may be another interface's here.
            let source = io::Error::other("the calling thread is in another network namespace than the interface");
            return Err(XskError::System { interface: interface(), operation: "open a queue", source });
        }
        if self.info.queues > self.info.transmit_queues {
            let (receive, transmit) = (self.info.queues, self.info.transmit_queues);
            return Err(XskError::TransmitQueues { interface: interface(), receive, transmit });
        }
        let place = Queue { interface: &self.info.name, index: self.info.index, queue, wait };
        let mut port = XskPort::open(place, umem, config, self.program.frags)?;
        port.set_slot(self.slot());
        // The program may take chains where the socket cannot (Linux 5.18 to 6.5).
        if self.info.mtu > Self::PLAIN_MTU && !port.takes_chains() {
            return Err(XskError::MtuTooLarge { interface: interface(), mtu: self.info.mtu, most: Self::PLAIN_MTU });
        }
        let socket = port.socket().expect("just opened");
        self.program
            .set_socket(queue, socket.as_fd())
            .map_err(|source| XskError::system(&self.info.name, "add the socket to the XDP program's map", source))?;
        Ok(port)
    }

    /// Opens all its queues, in order.
    ///
    /// # Errors
    /// As for one; none stays open then.
    pub fn ports(&self, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        (0..self.info.queues).map(|queue| self.port(queue, umem, config)).collect()
    }

    /// Takes a changed number of queues over. On a veth (seen with Linux 6.18) the XDP program does not run on queues that
    /// were added while it is attached: their packets go to the host's stack until the program is put in place again, and
    /// that is what this does. Sockets stay where they are.
    ///
    /// # Errors
    /// [`XskError`] when the interface is gone or the kernel refuses. The number is as before then, so that the caller
    /// sees that it is to be tried again.
    pub fn renew(&mut self, queues: u32) -> Result<(), XskError> {
        let renewed = self.program.renew(self.link.as_fd());
        renewed.map_err(|source| XskError::system(&self.info.name, "attach the XDP program to new queues", source))?;
        self.info.queues = queues;
        Ok(())
    }

    /// Opens all its queues as they are now, in order, without waiting for one that is busy. `name` is how it is called
    /// now, which may be another name than when it was taken.
    ///
    /// # Errors
    /// As for [`port`](Self::port), [`XskError::QueueBusy`] at once, and [`XskError::NoInterface`] when the name is
    /// another interface's; none stays open then.
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

    /// What it was like when it was opened, or when [`try_ports`](Self::try_ports) was called last.
    pub const fn info(&self) -> &LinkInfo {
        &self.info
    }

    /// The mode in use, [`XdpMode::Drv`] or [`XdpMode::Skb`].
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Why the driver's mode is not in use, when [`XdpMode::Auto`] was asked for and `Skb` is what came of it.
    pub const fn drv_refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Its place in the flow cache, when it has one.
    pub fn slot(&self) -> Option<FlowSlot> {
        self.program.slot.as_ref().map(|held| held.slot)
    }

    /// Whether the interface is still there, under whatever name and in whatever namespace. Asks the kernel (about a
    /// microsecond); can be called from any thread and namespace.
    pub fn is_alive(&self) -> bool {
        self.index().is_some()
    }

    /// The interface's number now, in the namespace where it is now; none when it was removed. Asks the kernel as
    /// [`is_alive`](Self::is_alive) does.
    pub fn index(&self) -> Option<u32> {
        // The link knows its interface and forgets it when that is unregistered. A name could be another interface's by
        // now, and the number changes when the interface is moved to another namespace.
        bpf::attached_to(self.link.as_fd()).ok().map(|(index, _)| index).filter(|&index| index != 0)
    }

    /// Whether it is the interface of this number in the calling thread's namespace. Asks for the program that is on
    /// that one, since an interface that was moved to another namespace may have the same number there.
    pub fn is_here_as(&self, index: u32) -> bool {
        bpf::attached_to(self.link.as_fd()).is_ok_and(|(at, program)| {
            at == index && netlink::xdp_programs(index).is_ok_and(|programs| programs.contains(&program))
        })
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // Fails when the interface is gone, and then there is nothing to detach from.
        drop(bpf::detach(self.link.as_fd()));
    }
}

/// Attaches a program in driver or generic mode. When the driver does not take the program for packets in several
/// buffers, one for whole packets is tried.
fn attach(program: Program, info: &LinkInfo, mode: XdpMode) -> Result<(Program, OwnedFd), XskError> {
    let flags = if mode == XdpMode::Skb { SKB_MODE } else { DRV_MODE };
    let failed = |source: io::Error| {
        let interface = info.name.clone();
        match source.raw_os_error() {
            // EBUSY for a program in the same mode, EEXIST for one in the other.
            Some(libc::EBUSY | libc::EEXIST) => XskError::ProgramPresent { interface },
            // A driver says by one of these that it cannot; ERANGE is veth's for an MTU that needs several buffers.
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

/// Packet memory counts as locked memory unless the process has `CAP_IPC_LOCK`. Raising the limit needs
/// `CAP_SYS_RESOURCE`; without either, registering the memory fails later, with an error that says so.
///
/// An interface takes three descriptors, and one for each queue: the usual 1,024 are not enough for a node of 250 pods,
/// and the hard limit is far above.
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
