//! Finds the ends of an observed flow in a state.

use std::collections::HashMap;
use std::net::IpAddr;

use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::Settings;
use ipnet::IpNet;

use super::{Conversation, SeenEnd};
use crate::args::{Destination, PortProtocol};
use crate::fabric::End;
use crate::translate::{Services, Translation};

/// A connection between two ends of the state, over a protocol that policies can match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client.
    pub from: End,
    /// The server.
    pub to: End,
    /// Protocol and port of the server.
    pub port: PortProtocol,
}

/// What a flow corresponds to in the state.
pub enum Resolved {
    /// A connection without translation.
    Direct(Connection),
    /// A connection to a Service with its possible backends.
    Translated(Connection, Box<Translation>),
    /// The flow cannot be resolved, with the reason.
    Unknown(String),
}

/// Finds the ends of flows in a state.
pub struct Finder<'a> {
    pub(super) pipeline: &'a Pipeline,
    services: Services,
    /// CIDRs of pods. An address in one of them belonged to a pod, even if no pod of the state has it.
    blocks: Vec<(IpNet, String)>,
    ends: HashMap<IpAddr, Result<End, String>>,
}

impl<'a> Finder<'a> {
    /// Returns a finder for a state with its Services.
    pub fn new(pipeline: &'a Pipeline, services: Vec<Object>, settings: Settings) -> Self {
        let of_nodes =
            pipeline.cache().nodes().values().flat_map(|node| {
                node.pod_cidrs.iter().map(|&block| (block, format!("the pods of node {}", node.name)))
            });
        let of_cluster = settings.cluster_cidrs.iter().map(|&block| (block, "the cluster's pods".to_owned()));
        let blocks = of_nodes.chain(of_cluster).collect();
        let services = Services::new(pipeline, services, settings);
        Self { pipeline, services, blocks, ends: HashMap::new() }
    }

    /// Returns the end that a log names. `like` is the other end's address, to choose the family. `Err` holds the reason if the end is
    /// unknown.
    pub fn end(&mut self, seen: &SeenEnd, like: Option<IpAddr>) -> Result<End, String> {
        if let Some(name) = &seen.pod {
            let cache = self.pipeline.cache();
            let pod = cache.pod_key(name).and_then(|key| cache.pod(key)).filter(|pod| !pod.finished);
            let pod = pod.ok_or_else(|| format!("pod {name} is not in the state"))?;
            let wanted = seen.address.or(like);
            let of_family = |end: &End| wanted.is_none_or(|wanted| wanted.is_ipv4() == end.address().is_ipv4());
            let exact = End::of_pod(pod).find(|end| Some(end.address()) == seen.address);
            let end = exact.or_else(|| End::of_pod(pod).find(of_family));
            return end.ok_or_else(|| format!("pod {name} has no address in the state"));
        }
        let Some(address) = seen.address else {
            return Err("the log gives neither the address nor the pod of one end".to_owned());
        };
        if let Some(known) = self.ends.get(&address) {
            return known.clone();
        }
        let end = match End::at(self.pipeline.cache(), address) {
            End::External(_) => match self.blocks.iter().find(|(block, _)| block.contains(&address)) {
                Some((_, whose)) => Err(format!("{address} is in a CIDR of {whose}, but no pod of the state has it")),
                None => Ok(End::External(address)),
            },
            known => Ok(known),
        };
        self.ends.insert(address, end.clone());
        end
    }

    /// Returns what a flow corresponds to in the state.
    ///
    /// # Errors
    /// Only on internal errors.
    pub fn resolve(&mut self, conversation: &Conversation) -> anyhow::Result<Resolved> {
        if let Some(missing) = conversation.missing {
            return Ok(Resolved::Unknown(missing.to_string()));
        }
        let Some((transport, port)) = conversation.transport().zip(conversation.port) else {
            let why = format!("{}: NetworkPolicy rules cannot match this protocol", conversation.service_name());
            return Ok(Resolved::Unknown(why));
        };
        let ends = self.end(&conversation.from, conversation.to.address).and_then(|from| {
            let to = self.end(&conversation.to, Some(from.address()))?;
            Ok((from, to))
        });
        let (from, to) = match ends {
            Ok(ends) => ends,
            Err(why) => return Ok(Resolved::Unknown(why)),
        };
        if from.address().is_ipv4() != to.address().is_ipv4() {
            return Ok(Resolved::Unknown(format!("{from} and {to} have no address family in common")));
        }
        let connection = Connection { from, to, port: PortProtocol::new(port, transport) };
        if matches!(connection.to, End::External(_) | End::Node { .. }) {
            let asked = Destination { address: connection.to.address(), port: Some((transport, port)) };
            if self.services.is_virtual(self.pipeline, asked)? {
                return self.through_service(connection, asked);
            }
        }
        if connection.from.node().is_none() && connection.to.node().is_none() {
            return Ok(Resolved::Unknown("both ends are outside the cluster".to_owned()));
        }
        if connection.from.host().is_some() && connection.from.is_same(&connection.to) {
            let Connection { from, to, .. } = connection;
            return Ok(Resolved::Unknown(format!(
                "{from} and {to} are on one node's network, where no vswitch judges"
            )));
        }
        Ok(Resolved::Direct(connection))
    }

    fn through_service(&mut self, connection: Connection, asked: Destination) -> anyhow::Result<Resolved> {
        let Some(at) = self.services.entry(self.pipeline, &connection.from, asked.address, None)? else {
            let why = format!(
                "{asked} is an address of a Service, and the log does not name the node where the client's connection arrived"
            );
            return Ok(Resolved::Unknown(why));
        };
        let translated = self.services.translate(self.pipeline, &connection.from, asked, &at)?;
        Ok(match translated {
            Some(translation) => Resolved::Translated(connection, Box::new(translation)),
            None => Resolved::Direct(connection),
        })
    }
}
