//! `bulkhead resolve`: backends that a new connection to a Service may be sent to, from one node, and reasons for the others.

mod told;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Object, Pod};
use bulkhead_control::service::{Action, Clients, Resolver};
use bulkhead_control::source::{Options, ServiceKinds, Strictness, Unenforced};

use crate::args::Resolve;
use crate::bundle::Sources;
use crate::{named, output};

pub use told::Told;

/// Prints the possible backends of a new connection to a Service. Returns exit code 1 if the connection is rejected or dropped.
///
/// # Errors
/// If the state cannot be read, or lacks the node.
pub fn run(args: &Resolve) -> anyhow::Result<ExitCode> {
    if args.from.is_ipv4() != args.to.address.is_ipv4() {
        bail!(
            "{} cannot connect to {}: their address families differ\n  help: use two IPv4 or two IPv6 addresses",
            args.from,
            args.to.address
        );
    }
    let sources = Sources::open(&args.paths)?;
    let settings = sources.service_settings(args.settings.as_deref())?;
    let objects = load(args, &sources)?;
    check_node(&objects, &args.node)?;
    let node: Arc<str> = args.node.as_str().into();
    let clients = Clients::new(&node, &settings, &objects);
    let mut resolver = Resolver::new(node, settings.clone());
    resolver.set_host_ports(pods(&objects).map(|pod| (pod, &*pod.addresses)));
    resolver.apply_batch(Inventory::default().replace(objects));
    // A Node object may omit addresses. Assume that an unassigned destination address belongs to the node.
    if clients.may_be_nodes(args.to.address) {
        resolver.set_more_addresses([args.to.address].into());
    }
    resolver.listed();
    let client = clients.at(args.from, args.to.address);
    let decision = resolver.decide(client, args.to.address, args.to.port);
    let decision = decision.context("internal error: the resolver has no Services")?;
    let told = Told::new(&resolver, &settings, &clients, client, args.to, &decision);
    output::answer(args.output, &told, |out| told.write(out))?;
    Ok(match decision.answer.action() {
        Action::Translate | Action::Pass => ExitCode::SUCCESS,
        Action::Reject | Action::Drop => ExitCode::from(1),
    })
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
        output::warn(&format!("the state has no EndpointSlice of discovery.k8s.io/v1\n  help: {help}"));
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
