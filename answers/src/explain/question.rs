//! Resolves the ends that the user named into pairs of addresses, one per common family.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Reachability;

use crate::args::{Asked, Destination, EndName, PortProtocol, ServiceTarget, Target};
use crate::contests;
use crate::fabric::End;
use crate::named::{self, Named};
use crate::output;
use crate::translate::{Leg, Services, Translation, port_text};

/// A question about a connection between two addresses.
pub(super) enum Question {
    /// A connection whose destination is not translated.
    Plain(Leg),
    /// A connection from this client to a Service.
    Translated(End, Box<Translation>),
}

/// Returns the destination port and the questions.
pub(super) fn all(
    pipeline: &Pipeline,
    services: &mut Services,
    asked: &Asked,
) -> anyhow::Result<(PortProtocol, Vec<Question>)> {
    let sources = ends(pipeline, &asked.from)?;
    match &asked.to {
        Target::End(name) => {
            let port = asked.port.context("--port is missing\n  help: add it, for example --port 80/TCP")?;
            let mut questions = Vec::new();
            for (from, to) in distinct(pipeline, pairs(sources, &ends(pipeline, name)?, port)?)? {
                // A node's address may have node ports.
                let translation = match name {
                    EndName::Address(_) | EndName::Node(_) => {
                        to_address(pipeline, services, asked, &from, to.address(), port)?
                    }
                    EndName::Pod(_) | EndName::Workload(_) | EndName::Labels(_) => None,
                };
                questions.push(match translation {
                    Some(translation) => Question::Translated(from, Box::new(translation)),
                    None => Question::Plain(Leg::whole(&from, &to, port)),
                });
            }
            if asked.node.is_some() && !questions.iter().any(|question| matches!(question, Question::Translated(..))) {
                bail!("--node has no effect: no Service has this address and port\n  help: omit --node");
            }
            Ok((port, questions))
        }
        Target::Service(target) => to_service(pipeline, services, asked, &sources, target),
    }
}

/// Returns the question for a connection to a Service's address. `None` if no Service has the address.
fn to_address(
    pipeline: &Pipeline,
    services: &mut Services,
    asked: &Asked,
    from: &End,
    address: IpAddr,
    port: PortProtocol,
) -> anyhow::Result<Option<Translation>> {
    // Services have no other protocols.
    let Some(transport) = port.protocol.transport() else { return Ok(None) };
    let to = Destination { address, port: Some((transport, port.port)) };
    match services.entry(pipeline, from, address, asked.node.as_deref())? {
        Some(node) => services.translate(pipeline, from, to, &node),
        None if services.is_virtual(pipeline, to)? => Err(no_entry(pipeline, &to.to_string())),
        None => Ok(None),
    }
}

fn to_service(
    pipeline: &Pipeline,
    services: &mut Services,
    asked: &Asked,
    sources: &[End],
    target: &ServiceTarget,
) -> anyhow::Result<(PortProtocol, Vec<Question>)> {
    let named: Vec<PortProtocol> = asked.port.into_iter().collect();
    let ports = services.ports(target, &named)?;
    let [port] = &ports[..] else {
        let texts: Vec<String> = ports.iter().map(port_text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        bail!(
            "Service {} has several matching ports\n  help: choose one of {} with --port, or after a colon",
            target.name,
            output::some_of(&texts, 8)
        );
    };
    let mut questions = Vec::new();
    for from in &distinct_sources(pipeline, sources)? {
        let is_outside = from.node().is_none();
        let family = (from.address().is_ipv4(), is_outside);
        let node = services.entry(pipeline, from, from.address(), asked.node.as_deref())?;
        let node = node.ok_or_else(|| no_entry(pipeline, &format!("Service {}", target.name)))?;
        for to in services.addresses(&target.name, port, &node, family)? {
            if let Some(translation) = services.translate(pipeline, from, to, &node)? {
                questions.push(Question::Translated(from.clone(), Box::new(translation)));
            }
        }
    }
    if questions.is_empty() {
        bail!(
            "Service {} has no address of the client's family\n  help: use a client address of the other family",
            target.name
        );
    }
    Ok((PortProtocol::new(port.port, port.transport), questions))
}

fn no_entry(pipeline: &Pipeline, what: &str) -> anyhow::Error {
    let nodes: Vec<&str> = pipeline.cache().nodes().keys().map(|name| &**name).collect();
    anyhow::anyhow!(
        "an external client can reach {what} through any node\n  help: choose the node with --node: {}",
        output::some_of(&nodes, 8)
    )
}

/// Returns the pairs of addresses with a common family, whose packets can have the protocol.
fn pairs(sources: Vec<End>, destinations: &[End], port: PortProtocol) -> anyhow::Result<Vec<(End, End)>> {
    let mut pairs = Vec::new();
    for source in sources {
        for destination in destinations {
            if source.address().is_ipv4() == destination.address().is_ipv4() {
                pairs.push((source.clone(), destination.clone()));
            }
        }
    }
    let is_alien: Vec<_> = pairs.extract_if(.., |(from, _)| !port.is_of_family(from.address().is_ipv4())).collect();
    // Pods of one workload connect to each other, and to themselves without policy.
    if pairs.iter().any(|(a, b)| !a.is_same(b)) {
        pairs.retain(|(a, b)| !a.is_same(b));
    }
    match pairs.first() {
        None if !is_alien.is_empty() => {
            bail!(
                "packets of {port} are not of the address family that the two ends have in common\n  help: write for example 8/ICMP for IPv4, 128/ICMPv6 for IPv6"
            )
        }
        None => {
            bail!("the two ends have no address family in common\n  help: use an address of the other end's family")
        }
        Some((a, b)) if a.is_same(b) => {
            let both = match (a.address() == b.address(), a.host()) {
                (true, _) => format!("{} is both client and server", a.address()),
                (false, Some(node)) => format!("{} and {} are both node {node}", a.address(), b.address()),
                (false, None) => format!("{a} is both client and server"),
            };
            bail!("{both}: this traffic never leaves the pod or node, and policy cannot deny it")
        }
        Some(_) => Ok(pairs),
    }
}

/// Returns the ends that a name means, one for each address.
fn ends(pipeline: &Pipeline, name: &EndName) -> anyhow::Result<Vec<End>> {
    let cache = pipeline.cache();
    Ok(match named::find(cache, name)? {
        Named::Pods(pods) => {
            for contest in pipeline.contests() {
                if pods.iter().any(|pod| contest.others.contains(&pod.name)) {
                    output::warn(&contests::told(&contest));
                }
            }
            let ends: Vec<End> = pods.iter().flat_map(|pod| End::of_pod(pod)).collect();
            if ends.is_empty() {
                bail!(
                    "{} has no address\n  help: status.podIPs is empty in the state, or another pod has the same address",
                    if let [pod] = &pods[..] { format!("pod {}", pod.name) } else { format!("no pod of {name}") }
                );
            }
            ends
        }
        Named::Node(addresses) => {
            let node: Arc<str> = if let EndName::Node(node) = name { node.clone() } else { name.to_string().into() };
            addresses.into_iter().map(|address| End::Node { node: node.clone(), address }).collect()
        }
        Named::Address(address) => {
            if let Some(contest) = pipeline.contests().iter().find(|contest| contest.address == address) {
                output::warn(&contests::told(contest));
            }
            vec![End::at(pipeline.cache(), address)]
        }
    })
}

/// Keeps one of all connections that policy cannot distinguish: between ends of the same classes, on one node or on two. Says how many it
/// leaves out.
fn distinct(pipeline: &Pipeline, mut pairs: Vec<(End, End)>) -> anyhow::Result<Vec<(End, End)>> {
    // A pod of two families has two pairs.
    if pairs.len() <= 2 {
        return Ok(pairs);
    }
    let mirror = pipeline.mirror().context("a pipeline without tables has a mirror")?;
    let state = Reachability::of(pipeline, mirror);
    let all = pairs.len();
    let mut seen = HashSet::new();
    pairs.retain(|(from, to)| {
        let kind = |end: &End| {
            // Each address of a node may have node ports of its own.
            let own = if let End::Pod { .. } = end { None } else { Some(end.address()) };
            (state.class_at(end.address()), end.host().is_some(), own)
        };
        seen.insert((kind(from), kind(to), from.node() == to.node()))
    });
    tell_of_others(all - pairs.len(), "connections");
    Ok(pairs)
}

/// Keeps one of all clients that neither policy nor a Service can distinguish: those of one class on one node.
fn distinct_sources(pipeline: &Pipeline, sources: &[End]) -> anyhow::Result<Vec<End>> {
    let mut kept = sources.to_vec();
    if kept.len() <= 2 {
        return Ok(kept);
    }
    let mirror = pipeline.mirror().context("a pipeline without tables has a mirror")?;
    let state = Reachability::of(pipeline, mirror);
    let mut seen = HashSet::new();
    kept.retain(|from| {
        let own = if let End::Pod { .. } = from { None } else { Some(from.address()) };
        seen.insert((state.class_at(from.address()), from.node().cloned(), from.host().is_some(), own))
    });
    tell_of_others(sources.len() - kept.len(), "clients");
    Ok(kept)
}

fn tell_of_others(count: usize, what: &str) {
    if count > 0 {
        output::note(&format!("{count} more {what} have the same answers: no policy distinguishes them"));
    }
}
