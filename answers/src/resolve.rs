//! `bulkhead resolve`: backends that a new connection to a Service may be sent to, from one node, and reasons for the others.

mod told;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use bulkhead_control::cache::{Cache, Event};
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Object, Pod};
use bulkhead_control::service::{Action, Clients, Resolver};
use bulkhead_control::source::{Options, ServiceKinds, Strictness, Unenforced};

use crate::args::{Destination, EndName, Resolve, ResolveTarget};
use crate::bundle::Sources;
use crate::fabric::End;
use crate::named::Named;
use crate::translate::{resolved, service_named};
use crate::{named, output};

pub use told::Told;

/// Prints the possible backends of a new connection to a Service. Returns exit code 1 if the connection is rejected or dropped.
///
/// # Errors
/// If the state cannot be read, or lacks the node.
pub fn run(args: &Resolve) -> anyhow::Result<ExitCode> {
    let sources = Sources::open(&args.paths)?;
    let settings = sources.service_settings(args.settings.as_deref())?;
    let objects = load(args, &sources)?;
    check_node(&objects, &args.node)?;
    let node: Arc<str> = args.node.as_str().into();
    let client_ends = client_ends(&objects, &args.from)?;
    if let ResolveTarget::Service(target) = &args.to {
        service_named(&objects, &settings.service_proxy_name, &target.name)?;
    }
    let clients = Clients::new(&node, &settings, &objects);
    let mut resolver = Resolver::new(node, settings.clone());
    resolver.set_host_ports(pods(&objects).map(|pod| (pod, &*pod.addresses)));
    resolver.apply_batch(Inventory::default().replace(objects));
    resolver.listed();
    let (from, to) = connection(&resolver, &client_ends, &args.to)?;
    // A Node object may omit addresses. Assume that an unassigned destination address belongs to the node.
    if clients.may_be_nodes(to.address) {
        resolver.set_more_addresses([to.address].into());
    }
    let client = clients.at(from, to.address);
    let decision = resolver.decide(client, to.address, to.port);
    let decision = decision.context("internal error: the resolver has no Services")?;
    let told = Told::new(&resolver, &settings, &clients, client, to, &decision);
    output::answer(args.output, &told, |out| told.write(out))?;
    Ok(match decision.answer.action() {
        Action::Translate | Action::Pass => ExitCode::SUCCESS,
        Action::Reject | Action::Drop => ExitCode::from(1),
    })
}

/// Returns the addresses of the client. Of several pods, the first is the client, which a warning says.
fn client_ends(objects: &[Object], name: &EndName) -> anyhow::Result<Vec<End>> {
    let mut cache = Cache::default();
    for object in objects.iter().filter(|object| matches!(object, Object::Pod(_) | Object::Node(_))) {
        cache.apply(Event::Apply(object.clone()));
    }
    Ok(match named::find(&cache, name)? {
        Named::Address(address) => vec![End::at(&cache, address)],
        Named::Node(addresses) => addresses.into_iter().map(|address| End::at(&cache, address)).collect(),
        Named::Pods(pods) => {
            if let [first, _, ..] = &pods[..] {
                output::warn(&format!("{name} has {} pods; the client is {}", pods.len(), first.name));
            }
            pods.first().into_iter().flat_map(|pod| End::of_pod(pod)).collect()
        }
    })
}

/// Returns the client's address and the destination, of one family.
fn connection(resolver: &Resolver, clients: &[End], to: &ResolveTarget) -> anyhow::Result<(IpAddr, Destination)> {
    match to {
        ResolveTarget::Service(target) => {
            let found = resolved(resolver, target, None, clients)?;
            let first = found.first().context("internal error: the Service has no address")?;
            Ok((first.0.address(), first.1))
        }
        ResolveTarget::Address(to) => {
            let from = clients.iter().map(End::address).find(|from| from.is_ipv4() == to.address.is_ipv4());
            let from = from.with_context(|| {
                let from: Vec<String> = clients.iter().map(|client| client.address().to_string()).collect();
                format!(
                    "{} cannot connect to {}: their address families differ\n  help: use two IPv4 or two IPv6 addresses",
                    from.join(", "),
                    to.address
                )
            })?;
            Ok((from, *to))
        }
    }
}

/// Returns the pods among these objects.
pub fn pods<'a>(objects: impl IntoIterator<Item = &'a Object>) -> impl Iterator<Item = &'a Pod> {
    objects.into_iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(&**pod),
        _ => None,
    })
}

/// Reads the objects. Unenforced kinds that restrict traffic do not matter here.
fn load(args: &Resolve, sources: &Sources) -> anyhow::Result<Vec<Object>> {
    let strictness = if args.lenient { Strictness::Lenient } else { Strictness::Strict };
    let options =
        Options { strictness, unenforced: Unenforced::Report, services: ServiceKinds::Read, ..Options::default() };
    let loaded = sources.load(&options)??;
    loaded.warnings.shown().iter().for_each(output::warn);
    match loaded.warnings.total() - loaded.warnings.shown().len() {
        0 => {}
        more => output::warn(&format!("{more} more warnings of this kind")),
    }
    let has = |is: fn(&Object) -> bool| loaded.objects.iter().any(is);
    if !has(|object| matches!(object, Object::Service(_))) {
        output::warn(
            "the state has no Service\n  help: add the output of `kubectl get services -A -o yaml` to --state",
        );
    } else if !has(|object| matches!(object, Object::EndpointSlice(_))) {
        let help = "add the output of `kubectl get endpointslices -A -o yaml` to --state";
        output::warn(&format!("the state has no EndpointSlice of discovery.k8s.io/v1 or v1beta1\n  help: {help}"));
    }
    Ok(loaded.objects)
}

fn check_node(objects: &[Object], node: &str) -> anyhow::Result<()> {
    let nodes = || {
        objects.iter().filter_map(|object| match object {
            Object::Node(node) => Some(&*node.name),
            _ => None,
        })
    };
    if nodes().any(|known| known == node) {
        return Ok(());
    }
    Err(named::no_node(node, &nodes().collect::<Vec<_>>()).into())
}
