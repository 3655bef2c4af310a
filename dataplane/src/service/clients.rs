//! Where a client is: what decides which backends count for it, and whether its address can stay.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Backend, Services};
use crate::address_map::AddressMap;
use crate::{PortId, PortKind, Routes};

/// Where a client is, seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Behind a pod's port.
    Pod,
    /// A pod of another node: its Services are those of a pod, but answers of other nodes' backends do not come back through here.
    OtherPod,
    /// The node itself.
    Host,
    /// Anything else, other nodes among them.
    Outside,
}

/// The node that a client is seen from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    /// The node's own port.
    pub(crate) host: Option<PortId>,
    /// The node's own addresses.
    pub(crate) addresses: &'a [IpAddr],
    pub(crate) owners: &'a AddressMap,
    pub(crate) routes: &'a Routes,
}

impl Node<'_> {
    fn owns(&self, address: IpAddr) -> bool {
        self.host.is_some_and(|host| self.owners.get(address) == Some(host))
    }
}

/// Who opens a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub(crate) address: IpAddr,
    pub(crate) place: Place,
    node: Node<'a>,
}

impl<'a> Client<'a> {
    /// The client behind a port of this kind.
    pub(crate) fn new(node: Node<'a>, services: &Services, kind: PortKind, address: IpAddr) -> Self {
        let place = match kind {
            PortKind::Pod => Place::Pod,
            PortKind::Host if node.owns(address) => Place::Host,
            // The host's port may also be the way to the rest of the world.
            _ if services.pod_networks.contains(address) => Place::OtherPod,
            _ => Place::Outside,
        };
        Self { address, place, node }
    }

    /// Whether the client may use an address with these ranges. Where they hold an address of the node, its own packets may also come
    /// with the virtual address as their source.
    pub(super) fn is_in(&self, ranges: Option<&[IpNet]>, vip: IpAddr) -> bool {
        let Some(ranges) = ranges else { return true };
        let holds = |address: IpAddr| ranges.iter().any(|range| range.contains(&address));
        holds(self.address) || self.address == vip && self.node.addresses.iter().any(|&own| holds(own))
    }

    /// Whether answers of the backend would not come back to this node, or not to the client, with the client's own address.
    pub(crate) fn needs_rewrite(&self, vip: IpAddr, backend: &Backend) -> bool {
        let address = backend.socket.ip();
        match self.place {
            // It would talk to itself.
            _ if address == self.address => true,
            Place::Pod => false,
            Place::OtherPod | Place::Outside => !backend.is_local,
            // What leaves for the node's own address with one of its own is none that the node takes, and what leaves through the node's
            // own routes is answered past the vswitch. A virtual address may be another node's too.
            Place::Host => {
                let way = self.node.routes.lookup(address);
                let leaves_to_host = way.is_some() && way == self.node.host;
                self.node.owns(address) || leaves_to_host || self.address == vip && !self.node.owns(vip)
            }
        }
    }
}
