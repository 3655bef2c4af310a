//! One interface whose packets come to the tc data path.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::pins::Pins;
use super::{TcDatapath, how};
use crate::PortKind;
use crate::io::FlowSlot;
use crate::io::xsk::bpf::{self, Hook};
use crate::io::xsk::error::XskError;
use crate::io::xsk::link::LinkInfo;
use crate::io::xsk::{namespace, netlink};

/// An interface whose packets all come to the data path or are dropped: from `new` on, until it is dropped or the process
/// ends, in whatever way. They are dropped while the port is closed, which it is at first.
#[derive(Debug)]
pub struct TcAttachment {
    datapath: Arc<TcDatapath>,
    ingress: OwnedFd,
    /// What drops packets that the node's kernel sends to a pod.
    guard: Option<OwnedFd>,
    slot: FlowSlot,
    how: u32,
    /// The interface's number while the port is open.
    open_as: Option<u32>,
}

impl TcAttachment {
    /// Attaches the programs to an interface of the calling thread's network namespace, whether it is up or not.
    ///
    /// # Errors
    /// [`XskError`] when it is not there, is no Ethernet interface, all slots are in use, or the kernel refuses.
    pub fn new(datapath: &Arc<TcDatapath>, name: &str, kind: PortKind) -> Result<Self, XskError> {
        let info = LinkInfo::read(name)?;
        if !info.ethernet {
            return Err(XskError::NotEthernet { interface: info.name });
        }
        let failed = |operation| move |source| XskError::system(name, operation, source);
        let is_apart = netlink::has_peer_elsewhere(info.index).map_err(failed("ask for the other end"))?;
        let how = if kind == PortKind::Pod && is_apart { how::PEER } else { how::OUT };
        // A pod that is reached by `bpf_redirect` is reached the way that the node's kernel would take.
        let is_guarded = how == how::PEER;
        if let Some(slot) = datapath.left().remove(&info.index) {
            if let Some((ingress, guard)) = take_over(datapath, info.index, is_guarded) {
                let (datapath, open_as) = (Arc::clone(datapath), Some(info.index));
                return Ok(Self { datapath, ingress, guard, slot, how, open_as });
            }
            datapath.set_way(slot, 0, how::CLOSED);
            datapath.close_port(info.index).map_err(failed("close what was left open"))?;
            datapath.table.give_slot(slot);
        }
        let slot = datapath.table.take_slot().ok_or_else(|| XskError::NoSlot { interface: name.to_owned() })?;
        let links = attach(datapath, info.index, is_guarded).map_err(|source: io::Error| {
            datapath.table.give_slot(slot);
            match source.raw_os_error() {
                Some(libc::EINVAL) => XskError::NoTcx { interface: name.to_owned(), source },
                _ => XskError::system(name, "attach the tc programs", source),
            }
        });
        let (ingress, guard) = links?;
        Ok(Self { datapath: Arc::clone(datapath), ingress, guard, slot, how, open_as: None })
    }

    /// Lets its packets come to the workers, and packets leave through it. Must be called in the interface's network namespace.
    ///
    /// # Errors
    /// When the interface is gone or the kernel refuses; the port stays closed.
    pub fn open(&mut self) -> io::Result<()> {
        let index = self.index().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        if namespace::current() != self.datapath.namespace {
            return Err(io::Error::other("the calling thread is in another network namespace than the data path"));
        }
        if self.open_as != Some(index) {
            self.close();
        }
        self.datapath.open_port(index, self.slot)?;
        self.open_as = Some(index);
        self.datapath.set_way(self.slot, index, self.how);
        Ok(())
    }

    /// Drops its packets and those that would leave through it.
    pub fn close(&mut self) {
        self.datapath.set_way(self.slot, 0, how::CLOSED);
        if let Some(index) = self.open_as.take() {
            // Fails when it is not there any more, which is as well.
            let _ = self.datapath.close_port(index);
        }
    }

    /// Its place in the data path, and the tag of its packets on the trunk.
    pub const fn slot(&self) -> FlowSlot {
        self.slot
    }

    /// The interface's number now, in the namespace where it is now; none when it was removed. Asks the kernel.
    pub fn index(&self) -> Option<u32> {
        bpf::attached_to(self.ingress.as_fd()).ok().map(|(index, _)| index).filter(|&index| index != 0)
    }

    /// Whether it is the interface of this number in the calling thread's namespace. Asks for the links that are on that
    /// one, since an interface that was moved to another namespace may have the same number there.
    pub fn is_here_as(&self, index: u32) -> bool {
        let Ok(own) = bpf::link_id(self.ingress.as_fd()) else { return false };
        self.index() == Some(index) && bpf::links_of(Hook::TcIngress, index).is_ok_and(|links| links.contains(&own))
    }
}

/// The links that an earlier process has left at an interface, with our programs in them.
fn take_over(datapath: &TcDatapath, interface: u32, is_guarded: bool) -> Option<(OwnedFd, Option<OwnedFd>)> {
    let pins = datapath.pins.as_ref()?;
    let ingress = pins.take(Hook::TcIngress, interface, datapath.ingress.as_fd())?;
    let guard = is_guarded.then(|| pins.take(Hook::TcEgress, interface, datapath.guard.as_fd()));
    match guard {
        Some(None) => None,
        guard => Some((ingress, guard.flatten())),
    }
}

fn attach(datapath: &TcDatapath, interface: u32, is_guarded: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let attach = |hook, program: &OwnedFd| Pins::attach(datapath.pins.as_ref(), hook, program.as_fd(), interface);
    let ingress = attach(Hook::TcIngress, &datapath.ingress)?;
    let guard = is_guarded.then(|| attach(Hook::TcEgress, &datapath.guard));
    Ok((ingress, guard.transpose()?))
}

impl Drop for TcAttachment {
    fn drop(&mut self) {
        if self.datapath.stays() {
            return;
        }
        let interface = self.index().or(self.open_as);
        self.close();
        if let Some((pins, interface)) = self.datapath.pins.as_ref().zip(interface) {
            pins.forget(interface);
        }
        for link in [Some(&self.ingress), self.guard.as_ref()].into_iter().flatten() {
            // Fails when the interface is gone, and then there is nothing to detach from.
            drop(bpf::detach(link.as_fd()));
        }
        self.datapath.table.give_slot(self.slot);
    }
}
