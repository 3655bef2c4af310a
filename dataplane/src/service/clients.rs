//! Classifies clients by location. The location decides which backends apply and whether the source must be rewritten.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Backend, Services};
use crate::address_map::AddressMap;
use crate::{PortId, PortKind, Routes};

/// A client's location, relative to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Pod,
    /// A pod of another node. It uses the same backends as local pods, but answers of remote backends do not return through this node.
    OtherPod,
    /// The node itself.
    Host,
    /// Any other client, including other nodes.
    Outside,
}

/// The parts of the node's snapshot that Services use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    /// The host port. `None` if the node has none.
    pub(crate) host: Option<PortId>,
    /// The uplink that shares the host port's interface, to which the node's own packets do not go. `None` without one.
    pub(crate) shared_uplink: Option<PortId>,
    /// Addresses of the host port.
    pub(crate) addresses: &'a [IpAddr],
    pub(crate) owners: &'a AddressMap,
    pub(crate) routes: &'a Routes,
}

impl Node<'_> {
    fn owns(&self, address: IpAddr) -> bool {
        self.host.is_some_and(|host| self.owners.get(address) == Some(host))
    }
}

/// The initiator of a connection to a Service, classified by location.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub(crate) address: IpAddr,
    pub(crate) place: Place,
    node: Node<'a>,
}

impl<'a> Client<'a> {
    /// Classifies the client with this address behind a port of this kind.
    pub(crate) fn new(node: Node<'a>, services: &Services, kind: PortKind, address: IpAddr) -> Self {
        let place = match kind {
            PortKind::Pod => Place::Pod,
            PortKind::Host if node.owns(address) => Place::Host,
            // External traffic may also arrive on the host port.
            _ if services.pod_networks.contains(address) => Place::OtherPod,
            _ => Place::Outside,
        };
        Self { address, place, node }
    }

    /// Whether the source ranges admit the client. Without ranges (`None`), all clients are admitted. If a range contains an address of the
    /// node, the node's own packets may carry the VIP as their source.
    pub(super) fn is_in(&self, ranges: Option<&[IpNet]>, vip: IpAddr) -> bool {
        let Some(ranges) = ranges else { return true };
        let holds = |address: IpAddr| ranges.iter().any(|range| range.contains(&address));
        holds(self.address) || self.address == vip && self.node.addresses.iter().any(|&own| holds(own))
    }

    /// Whether the source must be rewritten, because the backend's answers would otherwise bypass this node or not reach the client.
    pub(crate) fn needs_rewrite(&self, vip: IpAddr, backend: &Backend) -> bool {
        let address = backend.socket.ip();
        match self.place {
            // The client would receive its own packet.
            _ if address == self.address => true,
            Place::Pod => false,
            Place::OtherPod | Place::Outside => !backend.is_local,
            // The kernel drops packets to one of the node's addresses that have another one as their source. Answers to packets that leave
            // over the node's own routes bypass the vswitch. The VIP may also be assigned to another node.
            Place::Host => {
                let way = self.node.routes.lookup(address);
                let leaves_to_host = way.is_some() && (way == self.node.host || way == self.node.shared_uplink);
                self.node.owns(address) || leaves_to_host || self.address == vip && !self.node.owns(vip)
            }
        }
    }
}
