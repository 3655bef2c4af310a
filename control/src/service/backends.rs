//! The array of all backends.

use std::net::{IpAddr, SocketAddr};

use super::{BackendId, ServicePortId};

/// A backend of one service port: an endpoint's address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The destination port at the endpoint, in host byte order.
    pub port: u16,
    /// Whether the endpoint still answers. If not, the dataplane ends its UDP sessions; TCP and SCTP sessions end by themselves.
    pub serving: bool,
    /// Whether the endpoint is on this node.
    pub local: bool,
    /// The service port that the backend belongs to.
    pub service_port: ServicePortId,
    /// Distinguishes the backend from earlier ones with the same id.
    pub incarnation: u32,
}

impl Backend {
    /// Returns the backend's address and port.
    pub const fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// All backends, by id. A new backend reuses the index of a removed one.
#[derive(Debug, Default)]
pub(super) struct Backends {
    all: Vec<Backend>,
    free: Vec<BackendId>,
}

impl Backends {
    pub(super) fn get(&self, id: BackendId) -> &Backend {
        &self.all[id.index()]
    }

    pub(super) fn get_mut(&mut self, id: BackendId) -> &mut Backend {
        &mut self.all[id.index()]
    }

    /// Adds a backend and sets its incarnation.
    pub(super) fn add(&mut self, backend: Backend) -> BackendId {
        if let Some(id) = self.free.pop() {
            let place = self.get_mut(id);
            *place = Backend { incarnation: place.incarnation.wrapping_add(1), ..backend };
            return id;
        }
        let id = BackendId(u32::try_from(self.all.len()).expect("fewer than 2^32 backends at a time"));
        self.all.push(Backend { incarnation: 0, ..backend });
        id
    }

    pub(super) fn remove(&mut self, id: BackendId) {
        self.free.push(id);
    }

    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
