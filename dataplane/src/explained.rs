//! Explains how a new connection to a Service is handled, for the offline commands and tests.

use std::net::SocketAddr;

use bulkhead_classifier::protocol;

use crate::service::{Answer, Client};
use crate::{Backend, DropReason, Flow, PortKind, Services, Snapshot};

impl Services {
    /// Returns how a new connection is handled that comes in on a port of this kind with the flow's source and destination.
    pub fn explain(&self, snapshot: &Snapshot, kind: PortKind, flow: &Flow) -> Explained {
        let client = Client::new(snapshot.node(), self, kind, flow.src);
        let has_ports = matches!(flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        match self.answer(&client, flow, has_ports) {
            Answer::NotOurs => Explained::NotOurs,
            Answer::Drop(reason) => Explained::Drop(reason),
            Answer::Choose(eligible) => {
                let rewrites = |backend: &Backend| eligible.rewrites_all || client.needs_rewrite(flow.dst, backend);
                let backends = eligible.list.as_slice().iter();
                Explained::Backends(backends.map(|backend| (backend.socket, rewrites(backend))).collect())
            }
        }
    }
}

/// The handling of a new connection; see [`Services::explain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explained {
    /// The destination belongs to no Service that this node translates.
    NotOurs,
    /// The connection is dropped for this reason.
    Drop(DropReason),
    /// The connection goes to one of these backends. The flag tells whether its source address is rewritten.
    Backends(Vec<(SocketAddr, bool)>),
}
