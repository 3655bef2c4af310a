//! Attaches an interface to the tc data path.

use std::io;
use std::sync::Arc;

use super::attached::Attached;
use super::filter::Filter;
use super::pins::AttachPoint;
use super::{TcDatapath, how};
use crate::PortKind;
use crate::io::FlowSlot;
use crate::io::xsk::bpf::Hook;
use crate::io::xsk::error::XskError;
use crate::io::xsk::link::LinkInfo;
use crate::io::xsk::{namespace, netlink};

/// The key of the port to other nodes in the map of ports, which no interface has as its index.
pub(super) const NODES: u32 = 0;

/// An interface attached to the data path, until this is dropped or the process ends. The port is closed at first; a closed port drops all
/// packets.
#[derive(Debug)]
pub struct TcAttachment {
    datapath: Arc<TcDatapath>,
    ingress: Attached,
    /// The attached program that drops packets which the node's kernel sends directly to a pod. `None` if the port needs no guard.
    guard: Option<Attached>,
    slot: FlowSlot,
    how: u32,
    /// The slot of the port to other nodes, which shares the host port's interface. `None` for other ports, and without such a port.
    nodes: Option<FlowSlot>,
    /// The interface's index when the port was opened. `None` while the port is closed.
    open_as: Option<u32>,
}

impl TcAttachment {
    /// Attaches the programs to an interface of the calling thread's network namespace, whether it is up or down.
    ///
    /// # Errors
    /// [`XskError`] if the interface is missing or not Ethernet, all slots are in use, or the kernel refuses.
    pub fn new(datapath: &Arc<TcDatapath>, name: &str, kind: PortKind) -> Result<Self, XskError> {
        let info = LinkInfo::read(name)?;
        if !info.ethernet {
            return Err(XskError::NotEthernet { interface: info.name });
        }
        let failed = |operation| move |source| XskError::system(name, operation, source);
        let is_apart = netlink::has_peer_elsewhere(info.index).map_err(failed("read the veth's peer"))?;
        let how = if kind == PortKind::Pod && is_apart { how::PEER } else { how::OUT };
        // No guard with `bpf_redirect`: those packets pass the egress hook like the node kernel's.
        let is_guarded = how == how::PEER;
        if let Some(slot) = datapath.ports.left().remove(&info.index) {
            if let Some((ingress, guard)) = take_over(datapath, info.index, is_guarded) {
                let (datapath, open_as) = (Arc::clone(datapath), Some(info.index));
                return Ok(Self { datapath, ingress, guard, slot, how, nodes: None, open_as });
            }
            datapath.set_way(slot, 0, how::CLOSED);
            datapath.ports.close(info.index).map_err(failed("close what was left open"))?;
            datapath.table.give_slot(slot);
        }
        let slot = datapath.table.take_slot().ok_or_else(|| XskError::NoSlot { interface: name.to_owned() })?;
        let links = attach(datapath, info.index, is_guarded).map_err(|source: io::Error| {
            datapath.table.give_slot(slot);
            XskError::at_tc(name, source)
        });
        let (ingress, guard) = links?;
        Ok(Self { datapath: Arc::clone(datapath), ingress, guard, slot, how, nodes: None, open_as: None })
    }

    /// Makes the interface, which must be the host port's, also that of the port to other nodes. `name` is for the error.
    ///
    /// # Errors
    /// [`XskError::NoSlot`] if all slots are in use.
    pub fn add_nodes(&mut self, name: &str) -> Result<(), XskError> {
        let left = self.datapath.ports.left().remove(&NODES);
        let slot = left.or_else(|| self.datapath.table.take_slot());
        self.nodes = Some(slot.ok_or_else(|| XskError::NoSlot { interface: name.to_owned() })?);
        Ok(())
    }

    /// Opens the port in both directions. Must be called in the interface's network namespace.
    ///
    /// # Errors
    /// If the interface is gone or the kernel refuses. The port stays closed.
    pub fn open(&mut self) -> io::Result<()> {
        let index = self.index().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        if namespace::network_namespace() != self.datapath.namespace {
            return Err(io::Error::other("the calling thread and the data path are in different network namespaces"));
        }
        if self.open_as != Some(index) {
            self.close();
        }
        self.datapath.ports.open(index, self.slot)?;
        self.open_as = Some(index);
        self.datapath.set_way(self.slot, index, self.how);
        Ok(())
    }

    /// Opens the port to other nodes, if the interface has one. The host port must be open. `addresses` are the MAC addresses of frames that
    /// the node's kernel sends to the host port, destination first. Returns the port's slot.
    ///
    /// # Errors
    /// If the kernel refuses. The port stays closed.
    pub fn open_to_nodes(&self, addresses: [u8; 12]) -> io::Result<Option<FlowSlot>> {
        let (Some(slot), Some(index)) = (self.nodes, self.open_as) else { return Ok(None) };
        self.datapath.ports.open(NODES, slot)?;
        self.datapath.set_nodes_addresses(addresses);
        self.datapath.set_way(slot, index, how::NODES);
        self.datapath.set_nodes_slot(slot);
        Ok(Some(slot))
    }

    /// Closes the port, and the one to other nodes. The programs then drop its packets in both directions.
    pub fn close(&mut self) {
        if let Some(slot) = self.nodes {
            self.datapath.set_nodes_slot(FlowSlot(0));
            self.datapath.set_way(slot, 0, how::CLOSED);
            // As below.
            let _ = self.datapath.ports.close(NODES);
        }
        self.datapath.set_way(self.slot, 0, how::CLOSED);
        if let Some(index) = self.open_as.take() {
            // Fails only if the entry is already gone.
            let _ = self.datapath.ports.close(index);
        }
    }

    /// Returns the port's slot, which is also the VLAN tag of its packets on the trunk.
    pub const fn slot(&self) -> FlowSlot {
        self.slot
    }

    /// Returns the interface's current index in its current namespace. `None` if it was removed. One system call.
    pub fn index(&self) -> Option<u32> {
        self.ingress.interface()
    }

    /// Whether the interface has this index in the calling thread's namespace. Also compares the attached links, since a moved interface
    /// may have the same index in another namespace.
    pub fn is_here_as(&self, index: u32) -> bool {
        self.ingress.is_at(AttachPoint::Port(Hook::TcIngress, index))
    }

    /// Attaches filters again that another program has removed. Must be called in the interface's network namespace, and only for the same
    /// interface. Returns true if a filter was missing, so that packets have bypassed the vswitch.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore(&mut self) -> io::Result<bool> {
        let ingress = self.ingress.restore(&self.datapath, Hook::TcIngress)?;
        let guard = self.guard.as_mut().map(|guard| guard.restore(&self.datapath, Hook::TcEgress)).transpose()?;
        Ok(ingress | guard.unwrap_or(false))
    }

    /// Whether the port has filters that [`use_links`](Self::use_links) can replace by links.
    pub fn wants_links(&self) -> bool {
        self.datapath.has_links() && !(self.ingress.is_link() && self.guard.as_ref().is_none_or(Attached::is_link))
    }

    /// Replaces the filters by links, which takes about 10 ms for each. The programs see every packet meanwhile. Must be called in the
    /// interface's network namespace.
    ///
    /// # Errors
    /// If the interface is gone or the kernel refuses. The filter stays.
    pub fn use_links(&mut self) -> io::Result<()> {
        let mut replaced = Vec::new();
        let mut done = self.ingress.use_link(&self.datapath, Hook::TcIngress).map(|filter| replaced.extend(filter));
        if let (Ok(()), Some(guard)) = (&done, &mut self.guard) {
            done = guard.use_link(&self.datapath, Hook::TcEgress).map(|filter| replaced.extend(filter));
        }
        replaced.iter().for_each(Filter::detach_alone);
        done
    }
}

/// Adopts a previous process's attachments at an interface, with this process's programs. `None` if they are incomplete.
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
            for hook in [Hook::TcIngress, Hook::TcEgress] {
                pins.forget(AttachPoint::Port(hook, interface));
            }
        }
        // Detaching the last filter also removes the queueing discipline.
        [self.guard.as_ref(), Some(&self.ingress)].into_iter().flatten().for_each(Attached::detach);
        self.datapath.table.give_slot(self.slot);
        self.nodes.iter().for_each(|&slot| self.datapath.table.give_slot(slot));
    }
}
