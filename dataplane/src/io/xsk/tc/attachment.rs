//! One interface whose packets come to the tc data path.

use std::io;
use std::sync::Arc;

use super::attached::Attached;
use super::{TcDatapath, how};
use crate::PortKind;
use crate::io::FlowSlot;
use crate::io::xsk::bpf::Hook;
use crate::io::xsk::error::XskError;
use crate::io::xsk::link::LinkInfo;
use crate::io::xsk::{namespace, netlink};

/// An interface whose packets all come to the data path or are dropped: from `new` on, until it is dropped or the process
/// ends, in whatever way. They are dropped while the port is closed, which it is at first.
#[derive(Debug)]
pub struct TcAttachment {
    datapath: Arc<TcDatapath>,
    ingress: Attached,
    /// What drops packets that the node's kernel sends to a pod.
    guard: Option<Attached>,
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
            XskError::at_tc(name, source)
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
        self.ingress.interface()
    }

    /// Whether it is the interface of this number in the calling thread's namespace. Asks for the links that are on that
    /// one, since an interface that was moved to another namespace may have the same number there.
    pub fn is_here_as(&self, index: u32) -> bool {
        self.ingress.is_here_as(Hook::TcIngress, index)
    }

    /// Attaches filters again that somebody has removed. To be called for an interface that is known to be still the same, in its network
    /// namespace. Returns whether any was gone: its packets went past the vswitch since.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn restore(&mut self) -> io::Result<bool> {
        let ingress = self.ingress.restore(&self.datapath, Hook::TcIngress)?;
        let guard = self.guard.as_mut().map(|guard| guard.restore(&self.datapath, Hook::TcEgress)).transpose()?;
        Ok(ingress | guard.unwrap_or(false))
    }

    /// Whether filters are left that links can take the place of.
    pub fn wants_links(&self) -> bool {
        self.datapath.has_links() && !(self.ingress.is_link() && self.guard.as_ref().is_none_or(Attached::is_link))
    }

    /// Puts a link in the place of one filter, which takes some ten milliseconds. The programs see each packet meanwhile. Must be called
    /// in the interface's network namespace.
    ///
    /// # Errors
    /// When the interface is gone or the kernel refuses; the filter stays.
    pub fn use_link(&mut self) -> io::Result<()> {
        if !self.ingress.is_link() {
            return self.ingress.use_link(&self.datapath, Hook::TcIngress);
        }
        self.guard.as_mut().map_or(Ok(()), |guard| guard.use_link(&self.datapath, Hook::TcEgress))
    }
}

/// What an earlier process has left at an interface, with our programs in it.
fn take_over(datapath: &TcDatapath, interface: u32, is_guarded: bool) -> Option<(Attached, Option<Attached>)> {
    let ingress = Attached::take_over(datapath, Hook::TcIngress, interface)?;
    let guard = is_guarded.then(|| Attached::take_over(datapath, Hook::TcEgress, interface));
    match guard {
        Some(None) => None,
        guard => Some((ingress, guard.flatten())),
    }
}

fn attach(datapath: &TcDatapath, interface: u32, is_guarded: bool) -> io::Result<(Attached, Option<Attached>)> {
    let ingress = Attached::new(datapath, Hook::TcIngress, interface)?;
    let guard = is_guarded.then(|| Attached::new(datapath, Hook::TcEgress, interface)).transpose();
    match guard {
        Ok(mut guard) => {
            guard.iter_mut().for_each(|guard| guard.share_qdisc(&ingress));
            Ok((ingress, guard))
        }
        Err(error) => {
            ingress.detach();
            Err(error)
        }
    }
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
        // The second one takes the queueing discipline with it.
        [self.guard.as_ref(), Some(&self.ingress)].into_iter().flatten().for_each(Attached::detach);
        self.datapath.table.give_slot(self.slot);
    }
}
