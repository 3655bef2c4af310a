//! Which Service a packet was for, and what it was given.

use std::net::SocketAddr;

use bulkhead_control::object::Transport;
use bulkhead_control::service::Vip;
use bulkhead_dataplane::Outcome;
use serde::Serialize;

use crate::services::Adapter;

/// Finds the Services of packets.
pub(super) struct Names {
    adapter: Option<Adapter>,
}

/// A packet of a connection to a Service, or one that the Service has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Translated {
    /// The Service, or the pod whose host port it is (`pod x/a`); none where its address is no Service's any more.
    pub(super) service: Option<String>,
    /// The address that the client has used.
    pub(super) address: SocketAddr,
    /// The backend; none for what was refused before one was chosen.
    pub(super) backend: Option<SocketAddr>,
    /// The client as its backend sees it, where that is not its own address and port.
    pub(super) source: Option<SocketAddr>,
    /// Who has opened the connection.
    #[serde(skip)]
    pub(super) client: SocketAddr,
}

impl Names {
    pub(super) const fn new(adapter: Option<Adapter>) -> Self {
        Self { adapter }
    }

    /// Of a packet of either direction; none for one that has nothing to do with a Service. Of ICMP errors there is nothing to tell:
    /// they are no part of a connection.
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
        // What the client sends changes at its destination, and what the backend sends at its source.
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

    /// The Service, or the pod, that has an address.
    fn name(&self, protocol: u8, address: SocketAddr) -> Option<String> {
        let resolver = self.adapter.as_ref()?.resolver();
        let transport =
            [Transport::Tcp, Transport::Udp, Transport::Sctp].into_iter().find(|t| t.number() == protocol)?;
        let (id, _) = resolver.vip(&Vip { address: address.ip(), transport, port: address.port() })?;
        resolver.port(id).map(|port| port.name.owner.to_string())
    }
}
