//! The trunk: a veth pair between the tc programs and the workers.
//!
//! ```text
//!   programs --> first end: a queue per worker, a qdisc that buffers behind a full ring, no offloads
//!                   ~ second end: XDP program, an AF_XDP socket per queue
//!   first end, tc ingress <-- packets from workers
//! ```
//!
//! The first end has no transmit checksum offload, so the kernel completes checksums and segments packets before they reach the sockets,
//! which support neither. It has no VLAN offload, as a tag outside of the packet data would not reach a socket.
//!
//! Without a qdisc, only a ring of 256 frames buffers packets, and one packet of 64 KiB has 45 frames.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ahash::RandomState;

use super::TcConfig;
use super::attached::Attached;
use super::pins::Pins;
use crate::io::xsk::error::XskError;
use crate::io::xsk::link::{self, LinkInfo};
use crate::io::xsk::port::XskPort;
use crate::io::xsk::umem::Umem;
use crate::io::xsk::{Interface, QueueConfig, XdpMode, netlink_write, set_transmit_checksum_offload};

/// A veth's maximum MTU. The ports' MTUs are the limit, and packets carry one additional tag.
const MTU: u32 = 65_535;

/// The offloads of the first end that would keep VLAN tags outside of the packet data.
const TAG_OFFLOADS: [&str; 2] = ["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];

/// The trunk. Dropping it removes the veth pair, unless [`stay`](Self::stay) was called.
#[derive(Debug)]
pub(super) struct Trunk {
    first: LinkInfo,
    /// The attached end with the workers' sockets. `None` only during `drop`.
    second: Option<Interface>,
    deliver: Attached,
    /// An abstract socket name, which ends with the process, as the claim that a vswitch runs in this namespace.
    _claim: UnixListener,
    /// Whether dropping keeps the pair for the next process.
    stays: AtomicBool,
}

impl Trunk {
    /// Adopts a previous process's pair whose first end has the index `known`. Otherwise creates the pair in the calling thread's network
    /// namespace, and removes an interface of the same name first.
    pub(super) fn new(
        config: &TcConfig,
        deliver: BorrowedFd<'_>,
        pins: Option<&Pins>,
        known: u32,
        claim: UnixListener,
    ) -> Result<Self, XskError> {
        let TcConfig { trunk: names, workers, .. } = config;
        let [first, second] = names;
        let stays = AtomicBool::new(false);
        if let Some((info, deliver)) = Self::take_over(config, deliver, pins, known) {
            let second = Interface::hold(second, XdpMode::Auto, None)?;
            return Ok(Self { first: info, second: Some(second), deliver, _claim: claim, stays });
        }
        remove(first)?;
        let failed = |operation| move |source| XskError::system(first, operation, source);
        netlink_write::make_veth([first, second], draw_number(), *workers, MTU).map_err(failed("make the trunk"))?;
        let made = Self::set_up(config, deliver, pins);
        let (info, second, deliver) = made.inspect_err(|_| {
            let _ = remove(first);
        })?;
        Ok(Self { first: info, second: Some(second), deliver, _claim: claim, stays })
    }

    /// Adopts an existing pair. `None` if there is none or it does not fit the settings.
    fn take_over(
        config: &TcConfig,
        deliver: BorrowedFd<'_>,
        pins: Option<&Pins>,
        known: u32,
    ) -> Option<(LinkInfo, Attached)> {
        let TcConfig { trunk: [first, second], workers, links, .. } = config;
        let [info, other] = [first, second].map(|name| LinkInfo::read(name).ok());
        let (info, other) = (info?, other?);
        let fits = |end: &LinkInfo| end.up && (end.queues, end.transmit_queues) == (*workers, *workers);
        if info.index != known || !fits(&info) || !fits(&other) {
            return None;
        }
        let deliver = Attached::to_trunk(pins, *links, deliver, info.index).ok()?;
        Some((info, deliver))
    }

    fn set_up(
        config: &TcConfig,
        deliver: BorrowedFd<'_>,
        pins: Option<&Pins>,
    ) -> Result<(LinkInfo, Interface, Attached), XskError> {
        let TcConfig { trunk: [first, second], workers, links, .. } = config;
        let failed = |operation| move |source| XskError::system(first, operation, source);
        for name in [first, second] {
            // Fails without IPv6, and then the kernel sends no IPv6 packets.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        }
        set_transmit_checksum_offload(first, false)?;
        link::turn_off(first, &TAG_OFFLOADS)?;
        let info = LinkInfo::read(first)?;
        let queues = if *workers == 1 { c"pfifo_fast" } else { c"mq" };
        netlink_write::set_root_qdisc(info.index, queues).map_err(failed("give the trunk a queue"))?;
        let deliver = Attached::to_trunk(pins, *links, deliver, info.index);
        let deliver = deliver.map_err(|source| XskError::at_tc(first, source))?;
        let interface = Interface::hold(second, XdpMode::Auto, None)?;
        for index in [info.index, interface.info().index] {
            netlink_write::set_up(index).map_err(failed("set the trunk up"))?;
        }
        Ok((LinkInfo::read(first)?, interface, deliver))
    }

    /// Keeps the veth pair for the next process when this value is dropped.
    pub(super) fn stay(&self) {
        self.stays.store(true, Ordering::SeqCst);
    }

    /// Whether a link attaches the program: the kernel has links, and the settings want them.
    pub(super) const fn has_link(&self) -> bool {
        self.deliver.is_link()
    }

    /// Returns the index of the end that programs send to.
    pub(super) const fn first(&self) -> u32 {
        self.first.index
    }

    /// Opens the AF_XDP queues of the trunk's second end, one per worker.
    pub(super) fn ports(&self, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        self.second.as_ref().map_or_else(|| Ok(Vec::new()), |second| second.ports(umem, config))
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        // Detaches the program before removing its interface.
        drop(self.second.take());
        if !self.stays.load(Ordering::SeqCst) {
            let _ = netlink_write::delete_link(self.first.index);
        }
    }
}

/// Removes the pair whose first end has this name. Returns whether it existed.
pub(super) fn remove(first: &str) -> Result<bool, XskError> {
    match LinkInfo::read(first) {
        Ok(left) => {
            let removed = netlink_write::delete_link(left.index);
            removed.map(|()| true).map_err(|source| XskError::system(first, "remove the trunk", source))
        }
        Err(XskError::NoInterface { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Draws a random index for the trunk's first end, far above those that the kernel assigns from 1. So no interface of another namespace is
/// likely to have it.
fn draw_number() -> u32 {
    const LOWEST: u32 = 1 << 30;
    #[expect(clippy::cast_possible_truncation, reason = "any 30 bits of it are as random")]
    let random = RandomState::new().hash_one(LOWEST) as u32;
    LOWEST | random & (LOWEST - 1)
}

/// Returns a connection to the process that has claimed the trunk with this first end. Nothing is sent on it, and it ends with that
/// process's claim. `None` if no process in the calling thread's network namespace has claimed the trunk.
pub fn claimant(trunk: &str) -> Option<UnixStream> {
    UnixStream::connect_addr(&name_of(trunk).ok()?).ok()
}

/// Whether a process in the calling thread's network namespace has claimed the trunk with this first end. Unlike [`claimant`], this leaves
/// no connection in the listener's queue.
///
/// # Errors
/// If `/proc/net/unix` cannot be read.
pub fn is_claimed(trunk: &str) -> io::Result<bool> {
    // The file lists the namespace's sockets. The name is the last column, with `@` for the first byte of an abstract one.
    let name = format!("@bulkhead/{trunk}");
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    Ok(sockets.lines().any(|line| line.rsplit(' ').next() == Some(&name)))
}

fn name_of(trunk: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("bulkhead/{trunk}"))
}

/// Claims the trunk with this first end: binds an abstract socket name, which only one process per network namespace can. The claim ends
/// with the listener.
///
/// # Errors
/// [`XskError::TrunkInUse`] if another process has claimed it, or if the system refuses.
pub fn claim(trunk: &str) -> Result<UnixListener, XskError> {
    let failed = |source: io::Error| XskError::system(trunk, "claim the trunk", source);
    let address = name_of(trunk).map_err(failed)?;
    UnixListener::bind_addr(&address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => XskError::TrunkInUse { trunk: trunk.to_owned() },
        _ => failed(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_seen_by_others_for_as_long_as_it_lasts() {
        let trunk = format!("test-{}", std::process::id());
        assert!(!is_claimed(&trunk).unwrap() && claimant(&trunk).is_none());
        let own = claim(&trunk).unwrap();
        assert!(is_claimed(&trunk).unwrap() && claimant(&trunk).is_some());
        assert!(!is_claimed(&trunk[..trunk.len() - 1]).unwrap(), "another name");
        assert!(matches!(claim(&trunk), Err(XskError::TrunkInUse { .. })));
        drop(own);
        assert!(!is_claimed(&trunk).unwrap() && claim(&trunk).is_ok());
    }
}
