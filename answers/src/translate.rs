//! Translates connections to Services, for policy.
//!
//! **Purpose.** Tells `reach` and `explain` which backends a connection to a virtual address may be sent to, and which connections the
//! vswitches' tables see then.
//!
//! **Not its purpose.** This module neither selects backends nor judges packets. The resolver of `control` selects backends; [`Fabric`]
//! judges packets.
//!
//! ```text
//!  client, address --Resolver of the node--> refused | no Service's | backends
//!                                                                       `--each--> Route: legs --Fabric--> verdict
//! ```
//! Most backends are one leg away: from client to backend. If a node also rewrites the client's address, the vswitch of the backend's node
//! sees the rewriting node's address, which is a separate leg.
//!
//! **Invariant.** A leg ends at a backend's address and port. No table sees a virtual address, except on the way to the node port of
//! another node.

pub mod at_node;
pub mod blocks;
mod find;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::object::{ClusterService, Object};
use bulkhead_control::pipeline::{Pipeline, UNBOUND};
use bulkhead_control::service::{Answer, Client, Clients, Place, Settings};

use self::at_node::{Found, decide, translate};
pub use self::find::{port_text, resolved, service_named};
use crate::args::{Destination, PortProtocol};
use crate::fabric::{self, End, Fabric, Hop, Reached};
use crate::output;
use crate::resolve::Told;
use crate::run;
use crate::services::{self, Adapter, nodes_and_host_ports};

/// Services, and each node's resolution of them.
pub struct Services {
    /// Services and EndpointSlices.
    objects: Vec<Object>,
    /// The state's Nodes, and its pods with host ports.
    others: Vec<Object>,
    settings: Settings,
    /// Source addresses of nodes that a pod or node has, and that connections must not use.
    taken: BTreeSet<IpAddr>,
    /// Each node's view of the Services, by the node's name. Created on demand.
    views: BTreeMap<Arc<str>, View>,
}

/// The Services from one node's point of view.
struct View {
    adapter: Adapter,
    clients: Clients,
}

/// A node's translation of a connection to a virtual address.
pub struct Translation {
    /// The virtual address and port that the client uses.
    pub vip: Destination,
    /// Node whose vswitch translates the connection.
    pub node: Arc<str>,
    /// The decision as `bulkhead resolve` prints it.
    pub told: Told,
    /// Reason of a refusal. `None` if the connection is translated.
    pub refusal: Option<&'static str>,
    /// The leg to the translating node. `None` if that is the client's node.
    pub before: Option<Leg>,
    /// Possible backends. Empty if the connection is refused.
    pub routes: Vec<Route>,
}

/// The path to one backend.
pub struct Route {
    /// Address and port of the backend.
    pub backend: SocketAddr,
    /// Node of the backend. `None` if unknown.
    pub node: Option<Arc<str>>,
    /// Owner of the backend's address.
    pub to: End,
    /// How the client's address is rewritten.
    pub source: Source,
    /// Connections that vswitches judge, in order. Empty if no vswitch is on the path.
    pub legs: Vec<Leg>,
}

/// How a translation rewrites the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The address is not rewritten.
    Kept,
    /// The client is its own backend. The address is rewritten to route the reply through the vswitch; tables see the original.
    Hairpin,
    /// The address is rewritten after policy, which sees the original.
    RewrittenAfterPolicy,
    /// The vswitch of the backend's node sees this address.
    Becomes(IpAddr),
    /// The address must be rewritten, but the node has no source address, so its vswitch drops the connection.
    Missing,
}

/// A connection that vswitches judge.
#[derive(Clone, Debug)]
pub struct Leg {
    /// The client, as the judging vswitches see it.
    pub from: End,
    /// The server, as the judging vswitches see it.
    pub to: End,
    /// Destination port.
    pub port: PortProtocol,
    /// Whether only the vswitch of the client's node judges the connection, because that rewrites it.
    pub is_departure: bool,
    /// Whether a pod connects to itself through a Service, so that only policies that judge such connections apply.
    pub is_hairpin: bool,
}

/// How many backends policy allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Policy allows all backends.
    All,
    /// Policy allows at least one backend, but not all.
    Some,
    /// Policy allows no backend.
    None,
}

impl Extent {
    /// Summarises the verdicts on backends: true for allowed. [`Extent::None`] for an empty list.
    pub fn of(allowed: impl IntoIterator<Item = bool>) -> Self {
        let (mut yes, mut no) = (false, false);
        allowed.into_iter().for_each(|allowed| *if allowed { &mut yes } else { &mut no } = true);
        match (yes, no) {
            (true, false) => Self::All,
            (true, true) => Self::Some,
            (false, _) => Self::None,
        }
    }

    /// Returns the verdict as printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "allow",
            Self::Some => "some",
            Self::None => "deny",
        }
    }
}

impl Leg {
    /// Returns a leg that both ends' nodes judge.
    pub fn whole(from: &End, to: &End, port: PortProtocol) -> Self {
        Self { from: from.clone(), to: to.clone(), port, is_departure: false, is_hairpin: false }
    }

    fn departure(from: &End, to: &End, port: PortProtocol) -> Self {
        Self { is_departure: true, ..Self::whole(from, to, port) }
    }

    fn hairpin(of: &End, port: PortProtocol) -> Self {
        Self { is_hairpin: true, ..Self::whole(of, of, port) }
    }

    /// Returns all hops in order.
    pub fn hops(&self, fabric: &mut Fabric<'_>) -> anyhow::Result<Vec<Hop>> {
        if self.is_hairpin {
            fabric.hairpin(&self.from, self.port)
        } else if self.is_departure {
            fabric.depart(&self.from, &self.to, self.port)
        } else {
            fabric.walk(&self.from, &self.to, self.port)
        }
    }

    /// Whether the hops show that the leg is allowed.
    pub fn is_allowed(&self, hops: &[Hop]) -> bool {
        hops.last().is_some_and(|hop| fabric::arrived(hop) && (hop.reply || self.is_departure))
    }

    /// Whether policy allows the leg.
    pub fn reached(&self, fabric: &mut Fabric<'_>) -> anyhow::Result<Reached> {
        let hops = self.hops(fabric)?;
        Ok(Reached::of(&hops, self.is_allowed(&hops)))
    }

    /// Whether a vswitch is on the path. False between two users of one node's network.
    fn is_judged(&self) -> bool {
        let is_inside = self.from.node().is_some() || self.to.node().is_some();
        let is_pod = |end: &End| matches!(end, End::Pod { host_network: false, .. });
        is_inside && (!self.from.is_same(&self.to) || is_pod(&self.from))
    }
}

impl Route {
    /// Whether policy allows the connection to this backend, and its replies.
    pub fn reached(&self, fabric: &mut Fabric<'_>) -> anyhow::Result<Reached> {
        if self.source == Source::Missing {
            return Ok(Reached::No);
        }
        self.legs.iter().try_fold(Reached::Yes, |reached, leg| Ok(reached.min(leg.reached(fabric)?)))
    }
}

impl Services {
    /// Returns the Services among these objects.
    pub fn new(pipeline: &Pipeline, objects: Vec<Object>, settings: Settings) -> Self {
        let others = nodes_and_host_ports(pipeline);
        let taken = services::taken_sources(pipeline, &settings);
        Self { objects, others, settings, taken, views: BTreeMap::new() }
    }

    /// Returns all Services in input order.
    pub fn all(&self) -> impl Iterator<Item = &ClusterService> {
        self.objects.iter().filter_map(|object| match object {
            Object::Service(service) => Some(&**service),
            _ => None,
        })
    }

    /// Returns the settings of Services.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the node where the connection arrives: the client's own node; for an external client the `chosen` one, the owner of the
    /// address, or the only node. `None` if the user must choose.
    ///
    /// # Errors
    /// If `chosen` is unknown, or is not the node of an internal client.
    pub fn entry(
        &self,
        pipeline: &Pipeline,
        from: &End,
        address: IpAddr,
        chosen: Option<&str>,
    ) -> anyhow::Result<Option<Arc<str>>> {
        if let Some(chosen) = chosen {
            run::check_node(pipeline, chosen)?;
        }
        match (from.node(), chosen) {
            (Some(own), Some(chosen)) if **own != *chosen => {
                bail!("{from} is at node `{own}`, not at `{chosen}`\n  help: --node is for clients outside the cluster")
            }
            (Some(own), _) => return Ok(Some(own.clone())),
            (None, Some(chosen)) => return Ok(Some(chosen.into())),
            (None, None) => {}
        }
        if let End::Node { node, .. } = End::at(pipeline.cache(), address) {
            return Ok(Some(node));
        }
        let mut nodes = pipeline.cache().nodes().keys();
        match (nodes.next(), nodes.next()) {
            (None, _) => Ok(Some(UNBOUND.into())),
            (Some(only), None) => Ok(Some(only.clone())),
            (Some(_), Some(_)) => Ok(None),
        }
    }

    /// Whether a Service has the destination. A node port is looked up at the owner of the address, all others independently of the node.
    pub fn is_virtual(&mut self, pipeline: &Pipeline, to: Destination) -> anyhow::Result<bool> {
        let node = match End::at(pipeline.cache(), to.address) {
            End::Node { node, .. } => node,
            _ => UNBOUND.into(),
        };
        let client = Client { address: to.address, place: Place::Outside };
        let decision = decide(self.view(&node)?.adapter.resolver(), client, to)?;
        Ok(!matches!(decision.answer, Answer::NotOurs | Answer::OtherProxy))
    }

    /// Translates a connection that arrives at node `at`. `None` if no Service has the destination.
    ///
    /// # Errors
    /// Only on internal errors.
    pub fn translate(
        &mut self,
        pipeline: &Pipeline,
        from: &End,
        to: Destination,
        at: &Arc<str>,
    ) -> anyhow::Result<Option<Translation>> {
        if let Some(translation) = self.translate_at(pipeline, from, to, at)? {
            return Ok(Some(translation));
        }
        let (End::Node { node, .. }, Some((transport, port))) = (End::at(pipeline.cache(), to.address), to.port) else {
            return Ok(None);
        };
        if node == *at || from.node() != Some(at) {
            return Ok(None);
        }
        // The client's own node sees that as an external address.
        let arrived = End::External(from.address());
        let Some(translation) = self.translate_at(pipeline, &arrived, to, &node)? else { return Ok(None) };
        let before = Leg::departure(from, &End::at(pipeline.cache(), to.address), PortProtocol::new(port, transport));
        Ok(Some(Translation { before: Some(before), ..translation }))
    }

    fn translate_at(
        &mut self,
        pipeline: &Pipeline,
        from: &End,
        to: Destination,
        at: &Arc<str>,
    ) -> anyhow::Result<Option<Translation>> {
        let View { adapter, clients } = self.view(at)?;
        let found = translate(pipeline, adapter, clients, from, to)?;
        if matches!(found, Found::OtherProxy) {
            output::warn(&format!(
                "{to} is an address of a Service that another proxy handles: the answer is for packets that keep this destination"
            ));
        }
        Ok(found.translation())
    }

    fn view(&mut self, node: &Arc<str>) -> anyhow::Result<&View> {
        if !self.views.contains_key(node) {
            let all = self.objects.iter().chain(&self.others);
            let mut adapter = Adapter::of(node.clone(), self.settings.clone(), all);
            adapter.withhold(self.taken.clone());
            let clients = Clients::new(node, &self.settings, &self.others);
            self.views.insert(node.clone(), View { adapter, clients });
        }
        self.views.get(node).context("a view that was just made is there")
    }
}
