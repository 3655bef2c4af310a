//! Names the Service of a packet and its backend.

use std::net::SocketAddr;

use bulkhead_control::object::Transport;
use bulkhead_control::service::Vip;
use bulkhead_dataplane::Outcome;
use serde::Serialize;

use crate::services::Adapter;

/// Finds the Service of a packet by the address and port that the client used.
pub(super) struct Names {
    adapter: Option<Adapter>,
}

/// A packet of a connection to a Service, including refused ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Translated {
    /// The Service, or the pod with the host port (`pod x/a`). `None` if the address no longer belongs to a Service.
    pub(super) service: Option<String>,
    /// Destination that the client used.
    pub(super) address: SocketAddr,
    /// The backend. `None` if the connection was refused before selecting one.
    pub(super) backend: Option<SocketAddr>,
    /// The client's address as the backend sees it. `None` if not rewritten.
    pub(super) source: Option<SocketAddr>,
    /// The client's own address and port.
    #[serde(skip)]
    pub(super) client: SocketAddr,
}

impl Names {
    pub(super) const fn new(adapter: Option<Adapter>) -> Self {
        Self { adapter }
    }

    /// Returns the translation of a packet in either direction. `None` without a Service, and for ICMP errors, which belong to no
    /// connection.
    pub(super) fn of(&self, outcome: &Outcome) -> Option<Translated> {
        let flow = outcome.flow.filter(|flow| flow.icmp.is_none())?;
        let (from, to) = (SocketAddr::new(flow.src, flow.sport), SocketAddr::new(flow.dst, flow.dport));
        let Some(sent) = outcome.translation else {
            let service = self.name(flow.protocol, to)?;
            outcome.verdict.drop_reason()?;
            let service = Some(service);
            return Some(Translated { service, address: to, backend: None, source: None, client: from });
        };
        let (source, target) = (SocketAddr::new(sent.src, sent.sport), SocketAddr::new(sent.dst, sent.dport));
        // Translation rewrites the destination of the client's packets and the source of the backend's.
        let (client, seen, address, backend) =
            if target == to || source != from && self.name(flow.protocol, source).is_some() {
                (target, to, source, from)
            } else {
                (from, source, to, target)
            };
        let service = self.name(flow.protocol, address);
        let source = (seen != client).then_some(seen);
        Some(Translated { service, address, backend: Some(backend), source, client })
    }

    /// Returns the Service, or the pod with the host port, at this address. `None` if the address belongs to neither.
    fn name(&self, protocol: u8, address: SocketAddr) -> Option<String> {
        let resolver = self.adapter.as_ref()?.resolver();
        let transport =
            [Transport::Tcp, Transport::Udp, Transport::Sctp].into_iter().find(|t| t.number() == protocol)?;
        let (id, _) = resolver.vip(&Vip { address: address.ip(), transport, port: address.port() })?;
        resolver.port(id).map(|port| port.name.owner.to_string())
    }
}
