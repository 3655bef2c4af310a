//! All backends in one array.

use std::net::{IpAddr, SocketAddr};

use super::{BackendId, ServicePortId};

/// An endpoint as a backend of one service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether it still answers. Where it does not, sessions of UDP with it end; those of TCP and SCTP end by themselves.
    pub serving: bool,
    /// Whether it is on this node.
    pub local: bool,
    /// Whose backend it is.
    pub service_port: ServicePortId,
    /// Tells it from earlier ones with its id.
    pub incarnation: u32,
}

impl Backend {
    /// Its address and port.
    pub const fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// The array. The place of a backend that is gone is given to another one.
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

    /// Adds one; its incarnation is set here.
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
