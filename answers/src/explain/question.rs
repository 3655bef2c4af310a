//! Resolves the ends that the user named into pairs of addresses, one per common family.

use std::net::IpAddr;

use anyhow::{Context, bail};
use bulkhead_control::object::ObjectName;
use bulkhead_control::pipeline::Pipeline;

use crate::args::{Asked, Destination, EndName, PortProtocol, ServiceTarget, Target};
use crate::contests;
use crate::fabric::{self, End};
use crate::output;
use crate::run;
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
            for (from, to) in pairs(sources, &ends(pipeline, name)?)? {
                // A node's address may have node ports.
                let translation = match name {
                    EndName::Address(_) | EndName::Node(_) => {
                        to_address(pipeline, services, asked, &from, to.address(), port)?
                    }
                    EndName::Pod(_) => None,
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
    let to = Destination { address, port: Some((port.transport, port.port)) };
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
    for from in sources {
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
    Ok((PortProtocol { port: port.port, transport: port.transport }, questions))
}

fn no_entry(pipeline: &Pipeline, what: &str) -> anyhow::Error {
    let nodes: Vec<&str> = pipeline.cache().nodes().keys().map(|name| &**name).collect();
    anyhow::anyhow!(
        "an external client can reach {what} through any node\n  help: choose the node with --node: {}",
        output::some_of(&nodes, 8)
    )
}

/// Returns the pairs of addresses with a common family.
fn pairs(sources: Vec<End>, destinations: &[End]) -> anyhow::Result<Vec<(End, End)>> {
    let mut pairs = Vec::new();
    for source in sources {
        for destination in destinations {
            if source.address().is_ipv4() == destination.address().is_ipv4() {
                pairs.push((source.clone(), destination.clone()));
            }
        }
    }
    match pairs.first() {
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

fn ends(pipeline: &Pipeline, name: &EndName) -> anyhow::Result<Vec<End>> {
    match name {
        EndName::Pod(name) => {
            let cache = pipeline.cache();
            let pod = cache.pod_key(name).and_then(|key| cache.pod(key));
            let pod =
                pod.with_context(|| format!("no pod {name} in the state\n  help: {}", similar(pipeline, name)))?;
            if pod.finished {
                bail!("pod {name} has terminated: its address may belong to another pod");
            }
            if let Some(contest) = pipeline.contests().iter().find(|contest| contest.others.contains(&pod.name)) {
                output::warn(&contests::told(contest));
            }
            if pod.addresses.is_empty() {
                bail!(
                    "pod {name} has no address\n  help: status.podIPs is empty in the state, or another pod has the same address"
                );
            }
            Ok(End::of_pod(pod).collect())
        }
        EndName::Node(node) => {
            let addresses = fabric::addresses_of_node(pipeline.cache(), node);
            let pod = EndName::of_namespace_node(node);
            if addresses.is_empty() && pipeline.cache().pod_key(&pod).is_some() {
                return ends(pipeline, &EndName::Pod(pod));
            }
            run::check_node(pipeline, node)?;
            if addresses.is_empty() {
                bail!(
                    "node {node} has no address in the state\n  help: add the output of `kubectl get nodes -o yaml` to --state"
                );
            }
            Ok(addresses.into_iter().map(|address| End::Node { node: node.clone(), address }).collect())
        }
        EndName::Address(address) => {
            if let Some(contest) = pipeline.contests().iter().find(|contest| contest.address == *address) {
                output::warn(&contests::told(contest));
            }
            Ok(vec![End::at(pipeline, *address)])
        }
    }
}

fn similar(pipeline: &Pipeline, name: &ObjectName) -> String {
    let mut names: Vec<String> = pipeline
        .cache()
        .pods()
        .map(|(_, pod)| &pod.name)
        .filter(|other| other.namespace == name.namespace || other.name == name.name)
        .map(ToString::to_string)
        .collect();
    names.sort_unstable();
    match names.as_slice() {
        [] => format!("the state has no pod in namespace {} and no pod named {}", name.namespace, name.name),
        names => format!("it has {}", output::some_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), 8)),
    }
}
