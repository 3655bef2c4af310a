//! What one node makes of a connection: for the offline answers from a state, for a running vswitch from what its policy thread knows.

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

/// What a node's Services say of a destination.
pub enum Found {
    /// It is no Service's.
    NotOurs,
    /// It is that of a Service that is left to another proxy.
    OtherProxy,
    /// It is translated, or refused.
    Translated(Box<Translation>),
}

impl Found {
    /// The translation; none where the connection keeps its destination.
    pub fn translation(self) -> Option<Translation> {
        match self {
            Self::Translated(translation) => Some(*translation),
            Self::NotOurs | Self::OtherProxy => None,
        }
    }
}

/// What the node of `adapter` makes of a connection that comes in there.
///
/// # Errors
/// Before all Services have been listed.
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
        let end = End::at(pipeline, backend.ip());
        let port = PortProtocol { port: backend.port(), transport };
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

/// Who the client is to a node.
fn client(pipeline: &Pipeline, clients: &Clients, from: &End, to: IpAddr, node: &Arc<str>) -> Client {
    let address = from.address();
    let place = |own: &Arc<str>, here, elsewhere| if own == node { here } else { elsewhere };
    // What came over another node is named by its address alone.
    let known = match from {
        End::External(_) => End::at(pipeline, address),
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

/// What tables see of a connection from `from` to the backend `to` that the node of `adapter` translates.
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
        return (Source::Hairpin, whole());
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

/// Why a Service refuses a connection, as programs are told.
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
