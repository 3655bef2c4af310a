//! Connections to Services, as policy sees them.
//!
//! **Purpose.** `reach` and `explain` ask here what becomes of a connection to a virtual address: which backends it may be given at the
//! node where it comes in, and which ways the tables of the vswitches see.
//!
//! **Not its purpose.** It chooses no backend and judges nothing: the resolver of `control` does the first, [`Fabric`] the second.
//!
//! ```text
//!  client, address --Resolver of the node--> refused | no Service's | backends
//!                                                                       `--each--> Route: legs --Fabric--> verdict
//! ```
//! Most backends are one leg away: from the client to the backend. Where a node rewrites the client's address too, the vswitch of the
//! backend's node sees the address of that node, which is a leg of its own.
//!
//! **Invariant.** A leg ends at a backend's address and port. No table is asked about a virtual address, except on the way to the node
//! port of another node, which translates it.

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
pub use self::find::{port_text, resolved};
use crate::args::{Destination, PortProtocol};
use crate::fabric::{self, End, Fabric, Hop, Reached};
use crate::output;
use crate::resolve::Told;
use crate::run;
use crate::services::{self, Adapter, nodes_and_host_ports};

/// Services, and how each node resolves them.
pub struct Services {
    /// Services and their slices.
    objects: Vec<Object>,
    /// The nodes and the pods with host ports, as objects.
    others: Vec<Object>,
    settings: Settings,
    /// Addresses that a node would have its clients' connections leave with, if no pod or node had them.
    taken: BTreeSet<IpAddr>,
    /// By node, made when it is asked about.
    views: BTreeMap<Arc<str>, View>,
}

/// Services as one node sees them.
struct View {
    adapter: Adapter,
    clients: Clients,
}

/// What a node makes of a connection to a virtual address.
pub struct Translation {
    /// What the connection goes to.
    pub vip: Destination,
    /// The node that translates it.
    pub node: Arc<str>,
    /// The decision in words.
    pub told: Told,
    /// Why the Service refuses it; none where it has backends.
    pub refusal: Option<&'static str>,
    /// The way to that node, where it is not the client's own.
    pub before: Option<Leg>,
    /// The backends that it may be given; none where it is refused.
    pub routes: Vec<Route>,
}

/// The way to one backend.
pub struct Route {
    /// The backend.
    pub backend: SocketAddr,
    /// Its node.
    pub node: Option<Arc<str>>,
    /// Whose address the backend's is.
    pub to: End,
    /// What becomes of the client's address.
    pub source: Source,
    /// What the vswitches on the way judge, in order. Empty where none is on it.
    pub legs: Vec<Leg>,
}

/// What becomes of the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It stays.
    Kept,
    /// The client is given itself: the address is rewritten, so that the answer comes back, and no table sees that.
    Hairpin,
    /// It is rewritten behind every table: what they judge is the client's own.
    RewrittenAfterPolicy,
    /// It becomes this one, which the vswitch of the backend's node judges.
    Becomes(IpAddr),
    /// It would have to be rewritten, and the node has no address for that: its vswitch drops the connection.
    Missing,
}

/// A connection that vswitches judge.
#[derive(Clone, Debug)]
pub struct Leg {
    /// From whom.
    pub from: End,
    /// To whom.
    pub to: End,
    /// To which port.
    pub port: PortProtocol,
    /// Whether only the vswitch of the sender's node is asked.
    pub is_departure: bool,
}

/// To how many of the backends policy lets a connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// To all of them.
    All,
    /// To at least one, and not to all.
    Some,
    /// To none of them.
    None,
}

impl Extent {
    /// That of these verdicts; none of none.
    pub fn of(allowed: impl IntoIterator<Item = bool>) -> Self {
        let (mut yes, mut no) = (false, false);
        allowed.into_iter().for_each(|allowed| *if allowed { &mut yes } else { &mut no } = true);
        match (yes, no) {
            (true, false) => Self::All,
            (true, true) => Self::Some,
            (false, _) => Self::None,
        }
    }

    /// As it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "allow",
            Self::Some => "some",
            Self::None => "deny",
        }
    }
}

impl Leg {
    /// The whole way of a connection: both ends' nodes judge it.
    pub fn whole(from: &End, to: &End, port: PortProtocol) -> Self {
        Self { from: from.clone(), to: to.clone(), port, is_departure: false }
    }

    fn departure(from: &End, to: &End, port: PortProtocol) -> Self {
        Self { is_departure: true, ..Self::whole(from, to, port) }
    }

    /// Every pass through a vswitch, in order.
    pub fn hops(&self, fabric: &mut Fabric) -> anyhow::Result<Vec<Hop>> {
        if self.is_departure {
            fabric.depart(&self.from, &self.to, self.port)
        } else {
            fabric.walk(&self.from, &self.to, self.port)
        }
    }

    /// Whether these passes are all that there should be.
    pub fn is_allowed(&self, hops: &[Hop]) -> bool {
        hops.last().is_some_and(|hop| fabric::arrived(hop) && (hop.reply || self.is_departure))
    }

    /// Whether policy lets it pass.
    pub fn reached(&self, fabric: &mut Fabric) -> anyhow::Result<Reached> {
        let hops = self.hops(fabric)?;
        Ok(Reached::of(&hops, self.is_allowed(&hops)))
    }

    /// Whether a vswitch is on the way, and the two ends are not one address of a node.
    fn is_judged(&self) -> bool {
        let is_inside = self.from.node().is_some() || self.to.node().is_some();
        let is_pod = |end: &End| matches!(end, End::Pod { host_network: false, .. });
        is_inside && (self.from.address() != self.to.address() || is_pod(&self.from))
    }
}

impl Route {
    /// Whether policy lets the connection go to this backend, and its answers back.
    pub fn reached(&self, fabric: &mut Fabric) -> anyhow::Result<Reached> {
        if self.source == Source::Missing {
            return Ok(Reached::No);
        }
        self.legs.iter().try_fold(Reached::Yes, |reached, leg| Ok(reached.min(leg.reached(fabric)?)))
    }
}

impl Services {
    /// The Services among these objects.
    pub fn new(pipeline: &Pipeline, objects: Vec<Object>, settings: Settings) -> Self {
        let others = nodes_and_host_ports(pipeline);
        let taken = services::taken_sources(pipeline, &settings);
        Self { objects, others, settings, taken, views: BTreeMap::new() }
    }

    /// All Services, in the order of the input.
    pub fn all(&self) -> impl Iterator<Item = &ClusterService> {
        self.objects.iter().filter_map(|object| match object {
            Object::Service(service) => Some(&**service),
            _ => None,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The node at which the connection comes in: the client's own; of a client outside the one that is `chosen`, that has the address,
    /// or that is alone. None where it has to be chosen.
    ///
    /// # Errors
    /// When another node than the client's own is chosen, or one that is not known.
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
        if let End::Node { node, .. } = End::at(pipeline, address) {
            return Ok(Some(node));
        }
        let mut nodes = pipeline.cache().nodes().keys();
        match (nodes.next(), nodes.next()) {
            (None, _) => Ok(Some(UNBOUND.into())),
            (Some(only), None) => Ok(Some(only.clone())),
            (Some(_), Some(_)) => Ok(None),
        }
    }

    /// Whether a Service has the destination: a node port at the node whose address it is, anything else wherever it is asked.
    pub fn is_virtual(&mut self, pipeline: &Pipeline, to: Destination) -> anyhow::Result<bool> {
        let node = match End::at(pipeline, to.address) {
            End::Node { node, .. } => node,
            _ => UNBOUND.into(),
        };
        let client = Client { address: to.address, place: Place::Outside };
        let decision = decide(self.view(&node)?.adapter.resolver(), client, to)?;
        Ok(!matches!(decision.answer, Answer::NotOurs | Answer::OtherProxy))
    }

    /// What becomes of a connection that comes in at node `at`. None where its destination is no Service's and goes on unchanged.
    ///
    /// # Errors
    /// None but faults of the program.
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
        let (End::Node { node, .. }, Some((transport, port))) = (End::at(pipeline, to.address), to.port) else {
            return Ok(None);
        };
        if node == *at || from.node() != Some(at) {
            return Ok(None);
        }
        // To the client's own node that is an address like any other.
        let arrived = End::External(from.address());
        let Some(translation) = self.translate_at(pipeline, &arrived, to, &node)? else { return Ok(None) };
        let before = Leg::departure(from, &End::at(pipeline, to.address), PortProtocol { port, transport });
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
