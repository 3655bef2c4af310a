//! What happens to a new connection to a Service, for people and tests.

use std::net::SocketAddr;

use bulkhead_classifier::protocol;

use crate::service::{Answer, Client};
use crate::{Backend, DropReason, Flow, PortKind, Services, Snapshot};

impl Services {
    /// What becomes of a new connection that comes in on a port of this kind, with the source and destination of the flow: for people
    /// and tests, as packets are.
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

/// What becomes of a new connection; see [`Services::explain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explained {
    /// It is no Service's.
    NotOurs,
    /// It goes nowhere.
    Drop(DropReason),
    /// It goes to one of these; its source is rewritten where that is said.
    Backends(Vec<(SocketAddr, bool)>),
}
