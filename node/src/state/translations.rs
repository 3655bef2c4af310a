//! Answers how the state's Services translate a connection, for clients that ask a running vswitch to explain one.

use std::net::IpAddr;

use bulkhead_control::service::Clients;

use super::LiveState;
use bulkhead_answers::args::{Destination, PortProtocol, ServiceTarget};
use bulkhead_answers::fabric::End;
use bulkhead_answers::services::nodes_and_host_ports;
use bulkhead_answers::translate::at_node::translate;
use bulkhead_answers::translate::{Translation, resolved};

/// A question: how do Services translate a connection?
pub(crate) struct Asked {
    /// The client's addresses.
    pub from: Vec<IpAddr>,
    pub to: AskedFor,
    /// The destination port. Required for an address.
    pub port: Option<PortProtocol>,
}

/// A destination that Services may translate.
#[derive(Clone)]
pub(crate) enum AskedFor {
    Address(IpAddr),
    Service(ServiceTarget),
}

/// For each client, how its connection is translated or refused. An error is a fault of the question, with its remedy.
pub(crate) type Translations = anyhow::Result<Vec<(End, Translation)>>;

impl LiveState {
    /// Returns how this node translates a connection. Empty for an address that belongs to no Service.
    ///
    /// # Errors
    /// If the Service or port does not exist, or if a Service is asked about while Services are off or not listed yet.
    pub(crate) fn translations(&self, asked: &Asked) -> Translations {
        let Some(adapter) = &self.services else {
            return match &asked.to {
                AskedFor::Address(_) => Ok(Vec::new()),
                AskedFor::Service(_) => Err(anyhow::anyhow!(
                    "Services are off on this node\n  help: add `services:` to the configuration, or ask about a pod"
                )),
            };
        };
        let resolver = adapter.resolver();
        let is_address = matches!(asked.to, AskedFor::Address(_));
        if is_address && !resolver.is_listed() {
            // Connections are not translated before Services are listed.
            return Ok(Vec::new());
        }
        let others = nodes_and_host_ports(&self.pipeline);
        let clients = Clients::new(resolver.node(), resolver.settings(), &others);
        let ends: Vec<End> = asked.from.iter().map(|&address| End::at(self.pipeline.cache(), address)).collect();
        let pairs: Vec<(End, Destination)> = match &asked.to {
            AskedFor::Address(address) => {
                let of_family = ends.into_iter().filter(|end| end.address().is_ipv4() == address.is_ipv4());
                // Services have no other protocols than TCP, UDP and SCTP.
                let port = match asked.port.map(|port| (port.protocol.transport(), port.port)) {
                    Some((None, _)) => return Ok(Vec::new()),
                    Some((Some(transport), port)) => Some((transport, port)),
                    None => None,
                };
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
