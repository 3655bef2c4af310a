//! What the Services of the state make of connections, for whoever asks a running vswitch to explain one.

use std::net::IpAddr;

use bulkhead_control::service::Clients;

use super::LiveState;
use bulkhead_answers::args::{Destination, PortProtocol, ServiceTarget};
use bulkhead_answers::fabric::End;
use bulkhead_answers::services::nodes_and_host_ports;
use bulkhead_answers::translate::at_node::translate;
use bulkhead_answers::translate::{Translation, resolved};

/// What is asked.
pub(crate) struct Asked {
    /// The addresses of who begins the connection.
    pub from: Vec<IpAddr>,
    /// What it goes to.
    pub to: AskedFor,
    /// The port; needed for an address.
    pub port: Option<PortProtocol>,
}

/// What a connection goes to that may be a Service's.
pub(crate) enum AskedFor {
    /// An address.
    Address(IpAddr),
    /// A Service.
    Service(ServiceTarget),
}

/// What is translated or refused, of each client that it concerns. An error is one of the question, with its remedy.
pub(crate) type Translations = anyhow::Result<Vec<(End, Translation)>>;

impl LiveState {
    /// What this node makes of connections to Services. An address that is no Service's has none.
    ///
    /// # Errors
    /// When there is no such Service or port, and when a Service is asked about while they are off or not yet known.
    pub(crate) fn translations(&self, asked: &Asked) -> Translations {
        let Some(adapter) = &self.services else {
            return match &asked.to {
                AskedFor::Address(_) => Ok(Vec::new()),
                AskedFor::Service(_) => Err(anyhow::anyhow!(
                    "Services are off here\n  help: ask with `services:` on in the configuration, or about a pod"
                )),
            };
        };
        let resolver = adapter.resolver();
        let is_address = matches!(asked.to, AskedFor::Address(_));
        if is_address && !resolver.is_listed() {
            // What has no Services yet translates nothing.
            return Ok(Vec::new());
        }
        let others = nodes_and_host_ports(&self.pipeline);
        let clients = Clients::new(resolver.node(), resolver.settings(), &others);
        let ends: Vec<End> = asked.from.iter().map(|&address| End::at(&self.pipeline, address)).collect();
        let pairs: Vec<(End, Destination)> = match &asked.to {
            AskedFor::Address(address) => {
                let of_family = ends.into_iter().filter(|end| end.address().is_ipv4() == address.is_ipv4());
                let port = asked.port.map(|port| (port.transport, port.port));
                of_family.map(|end| (end, Destination { address: *address, port })).collect()
            }
            AskedFor::Service(target) => resolved(resolver, target, asked.port, &ends)?,
        };
        let mut found = Vec::new();
        for (from, to) in pairs {
            let translation = translate(&self.pipeline, adapter, &clients, &from, to)?.translation();
            found.extend(translation.map(|translation| (from, translation)));
        }
        Ok(found)
    }
}
