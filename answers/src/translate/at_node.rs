//! Translation of a connection at one node, from a state or from the live state of a vswitch.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use bulkhead_control::object::Transport;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::{Answer, Client, Clients, Decision, Place, Resolver};

use super::{Leg, Route, Source, Translation};
use crate::args::{Destination, PortProtocol};
use crate::fabric::End;
use crate::resolve::Told;
use crate::services::Adapter;

/// Result of looking up a destination in a node's Services.
pub enum Found {
    /// No Service has the destination.
    NotOurs,
    /// Another proxy handles the Service.
    OtherProxy,
    /// A Service has the destination: the connection is translated to a backend or refused.
    Translated(Box<Translation>),
}

impl Found {
    /// Returns the translation. `None` if the connection keeps its destination.
    pub fn translation(self) -> Option<Translation> {
        match self {
            Self::Translated(translation) => Some(*translation),
            Self::NotOurs | Self::OtherProxy => None,
        }
    }
}

/// Translates a connection that arrives at the node of `adapter`.
///
/// # Errors
/// If the initial list of Services is incomplete.
pub fn translate(
    pipeline: &Pipeline,
    adapter: &Adapter,
    clients: &Clients,
    from: &End,
    to: Destination,
) -> anyhow::Result<Found> {
    let resolver = adapter.resolver();
    let at = resolver.node();
    let client = client(pipeline, clients, from, to.address, at);
    let decision = decide(resolver, client, to)?;
    match decision.answer {
        Answer::NotOurs => return Ok(Found::NotOurs),
        Answer::OtherProxy => return Ok(Found::OtherProxy),
        _ => {}
    }
    let told = Told::new(resolver, resolver.settings(), clients, client, to, &decision);
    let choices: &[_] = if let Answer::Backends(choices) = &decision.answer { choices } else { &[] };
    let transport = to.port.map_or(Transport::Tcp, |(transport, _)| transport);
    let mut routes = Vec::with_capacity(choices.len());
    for ((choice, &backend), node) in choices.iter().zip(&told.backends).zip(&told.places) {
        let end = End::at(pipeline.cache(), backend.ip());
        let port = PortProtocol::new(backend.port(), transport);
        let is_local = resolver.backend(choice.backend).local || end.node() == Some(at);
        let (source, legs) = route(adapter, from, &end, port, (choice.rewrites_source, is_local));
        let legs = legs.into_iter().filter(Leg::is_judged).collect();
        routes.push(Route { backend, node: node.clone(), to: end, source, legs });
    }
    Ok(Found::Translated(Box::new(Translation {
        vip: to,
        node: at.clone(),
        told,
        refusal: refusal(&decision.answer),
        before: None,
        routes,
    })))
}

pub(super) fn decide(resolver: &Resolver, client: Client, to: Destination) -> anyhow::Result<Decision> {
    resolver.decide(client, to.address, to.port).context("the Services are not known yet")
}

/// Classifies the client, seen from a node.
fn client(pipeline: &Pipeline, clients: &Clients, from: &End, to: IpAddr, node: &Arc<str>) -> Client {
    let address = from.address();
    let place = |own: &Arc<str>, here, elsewhere| if own == node { here } else { elsewhere };
    // Traffic that came through another node is identified by its address only.
    let known = match from {
        End::External(_) => End::at(pipeline.cache(), address),
        known => known.clone(),
    };
    match &known {
        End::Pod { host_network: false, node: own, .. } => {
            Client { address, place: place(own, Place::Pod, Place::OtherPod) }
        }
        End::Pod { node: own, .. } | End::Node { node: own, .. } => {
            Client { address, place: place(own, Place::Host, Place::Outside) }
        }
        End::External(_) => clients.at(address, to),
    }
}

/// Returns the source rewriting and the legs of a connection from `from` to backend `to`, as tables see them.
fn route(
    adapter: &Adapter,
    from: &End,
    to: &End,
    port: PortProtocol,
    (is_rewritten, is_local): (bool, bool),
) -> (Source, Vec<Leg>) {
    let near = adapter.resolver().node();
    let whole = || vec![Leg::whole(from, to, port)];
    let is_here = from.node() == Some(near);
    if is_here && from.address() == to.address() {
        return (Source::Hairpin, vec![Leg::hairpin(from, port)]);
    }
    if !is_rewritten {
        return (Source::Kept, whole());
    }
    if is_local {
        return (Source::RewrittenAfterPolicy, whole());
    }
    let Some(own) = adapter.services().source_for(to.address()) else { return (Source::Missing, Vec::new()) };
    let far = Leg::whole(&End::External(own), to, port);
    let legs = if is_here { vec![Leg::departure(from, to, port), far] } else { vec![far] };
    (Source::Becomes(own), legs)
}

/// Returns the refusal's name in JSON. `None` if the connection is not refused.
const fn refusal(answer: &Answer) -> Option<&'static str> {
    match answer {
        Answer::NoEndpoint => Some("no_endpoint"),
        Answer::NoLocalEndpoint => Some("no_local_endpoint"),
        Answer::SourceRange => Some("source_range"),
        Answer::UnknownPort => Some("unknown_port"),
        Answer::UnallocatedAddress(_) => Some("unallocated_address"),
        Answer::Backends(_) | Answer::OtherProxy | Answer::NotOurs => None,
    }
}
