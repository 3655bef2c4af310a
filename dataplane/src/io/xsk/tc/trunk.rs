//! The trunk: a veth pair between the tc programs and the workers.
//!
//! ```text
//!   programs --> first end: a queue per worker, a qdisc that keeps what does not fit a ring, no offloads
//!                   ~ second end: XDP program, an AF_XDP socket per queue
//!   first end, tc ingress <-- what workers send
//! ```
//!
//! The first end has no transmit checksum offload: so the kernel finishes checksums and cuts segments before packets reach the
//! sockets, which know neither. It inserts no VLAN tags either, as a tag beside a packet would not reach a socket.
//!
//! Without a qdisc, a ring of 256 frames is all that is between the two ends, and one packet of 64 KiB is 45 frames.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

use ahash::RandomState;

use crate::io::xsk::bpf::{self, BEFORE, Hook};
use crate::io::xsk::error::XskError;
use crate::io::xsk::link::{self, LinkInfo};
use crate::io::xsk::port::XskPort;
use crate::io::xsk::umem::Umem;
use crate::io::xsk::{Interface, QueueConfig, XdpMode, netlink_write, set_transmit_checksum_offload};

/// The most that a veth carries: the ports' MTUs decide, and one tag more than the ports' own must fit.
const MTU: u32 = 65_535;

/// The offloads of the first end that would keep tags beside packets.
const TAG_OFFLOADS: [&str; 2] = ["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];

/// See the module. Gone when it is dropped.
#[derive(Debug)]
pub(super) struct Trunk {
    first: LinkInfo,
    /// The sockets' end. None while this is dropped.
    second: Option<Interface>,
    _deliver: OwnedFd,
    /// Says that this namespace has a vswitch: a name that goes with the process.
    _claim: UnixListener,
}

impl Trunk {
    /// Makes the pair in the calling thread's network namespace, in place of one that a process has left behind that does not run
    /// any more.
    pub(super) fn new(names: &[String; 2], workers: u32, deliver: BorrowedFd<'_>) -> Result<Self, XskError> {
        let [first, second] = names;
        let failed = |operation| move |source| XskError::system(first, operation, source);
        let claim = claim(first)?;
        match LinkInfo::read(first) {
            Ok(left) => netlink_write::delete_link(left.index).map_err(failed("remove an old trunk"))?,
            Err(XskError::NoInterface { .. }) => {}
            Err(error) => return Err(error),
        }
        netlink_write::make_veth([first, second], draw_number(), workers, MTU).map_err(failed("make the trunk"))?;
        let made = Self::set_up(names, workers, deliver);
        let (first, second, deliver) = made.inspect_err(|_| {
            if let Ok(left) = LinkInfo::read(first) {
                let _ = netlink_write::delete_link(left.index);
            }
        })?;
        Ok(Self { first, second: Some(second), _deliver: deliver, _claim: claim })
    }

    fn set_up(
        [first, second]: &[String; 2],
        workers: u32,
        deliver: BorrowedFd<'_>,
    ) -> Result<(LinkInfo, Interface, OwnedFd), XskError> {
        let failed = |operation| move |source| XskError::system(first, operation, source);
        for name in [first, second] {
            // A node without IPv6 has no such file, and then nothing speaks.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        }
        set_transmit_checksum_offload(first, false)?;
        link::turn_off(first, &TAG_OFFLOADS)?;
        let info = LinkInfo::read(first)?;
        let queues = if workers == 1 { c"pfifo_fast" } else { c"mq" };
        netlink_write::set_root_qdisc(info.index, queues).map_err(failed("give the trunk a queue"))?;
        let deliver = bpf::attach(Hook::TcIngress, deliver, info.index, BEFORE).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EINVAL) => XskError::NoTcx { interface: first.clone(), source },
                _ => XskError::system(first, "attach a tc program", source),
            }
        })?;
        let interface = Interface::hold(second, XdpMode::Auto, None)?;
        for index in [info.index, interface.info().index] {
            netlink_write::set_up(index).map_err(failed("set the trunk up"))?;
        }
        Ok((LinkInfo::read(first)?, interface, deliver))
    }

    /// The number of the end that programs send to.
    pub(super) const fn first(&self) -> u32 {
        self.first.index
    }

    /// Opens the queues of the other end.
    pub(super) fn ports(&self, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        self.second.as_ref().map_or_else(|| Ok(Vec::new()), |second| second.ports(umem, config))
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        // First the program, then the interface that it is on.
        drop(self.second.take());
        let _ = netlink_write::delete_link(self.first.index);
    }
}

/// A number for the trunk's first end that no interface of any other namespace is likely to have: the kernel counts up from 1.
fn draw_number() -> u32 {
    const LOWEST: u32 = 1 << 30;
    #[expect(clippy::cast_possible_truncation, reason = "any 30 bits of it are as random")]
    let random = RandomState::new().hash_one(LOWEST) as u32;
    LOWEST | random & (LOWEST - 1)
}

/// Takes a name that one process of a network namespace can have at a time.
fn claim(trunk: &str) -> Result<UnixListener, XskError> {
    let failed = |source: io::Error| XskError::system(trunk, "claim the trunk", source);
    let address = SocketAddr::from_abstract_name(format!("bulkhead/{trunk}")).map_err(failed)?;
    UnixListener::bind_addr(&address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => XskError::TrunkInUse { trunk: trunk.to_owned() },
        _ => failed(source),
    })
}
