//! `bulkhead resolve`: which backends a new connection to a Service may be given, seen from one node, and why no others.

mod told;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Object, Pod};
use bulkhead_control::service::{Action, Clients, Resolver, Settings};
use bulkhead_control::source::{Options, ServiceKinds, Strictness, Unenforced};

use crate::args::Resolve;
use crate::{bundle, output};

pub use told::Told;

/// No settings are as long as that: what is longer is another file.
const MAX_SETTINGS_LEN: u64 = 1 << 20;

/// Prints which endpoints a new connection to a Service may be given. Exit code 1 if there is none.
///
/// # Errors
/// When the state cannot be read, or does not have what the question names.
pub fn run(args: &Resolve) -> anyhow::Result<ExitCode> {
    if args.from.is_ipv4() != args.to.address.is_ipv4() {
        bail!(
            "{} cannot connect to {}: they are of two families\n  help: give an address of the other one's family",
            args.from,
            args.to.address
        );
    }
    let settings = bundle::service_settings(args.settings.as_deref(), &args.paths)?;
    let objects = load(args)?;
    check_node(&objects, &args.node)?;
    let node: Arc<str> = args.node.as_str().into();
    let clients = Clients::new(&node, &settings, &objects);
    let mut resolver = Resolver::new(node, settings.clone());
    resolver.set_host_ports(pods(&objects).map(|pod| (pod, &*pod.addresses)));
    resolver.apply_batch(Inventory::default().replace(objects));
    // A node's object tells some of its addresses. What is asked for and nobody else's is taken to be one of the others.
    if clients.may_be_nodes(args.to.address) {
        resolver.set_more_addresses([args.to.address].into());
    }
    resolver.listed();
    let client = clients.at(args.from, args.to.address);
    let decision = resolver.decide(client, args.to.address, args.to.port);
    let decision = decision.context("nothing is listed, a fault of the program")?;
    let told = Told::new(&resolver, &settings, &clients, client, args.to, &decision);
    output::answer(args.output, &told, |out| told.write(out))?;
    Ok(match decision.answer.action() {
        Action::Translate | Action::Pass => ExitCode::SUCCESS,
        Action::Reject | Action::Drop => ExitCode::from(1),
    })
}

/// The pods among these objects.
pub fn pods<'a>(objects: impl IntoIterator<Item = &'a Object>) -> impl Iterator<Item = &'a Pod> {
    objects.into_iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(&**pod),
        _ => None,
    })
}

/// The settings of a file, the defaults without one.
///
/// # Errors
/// When it cannot be read, or holds something else.
pub fn settings(path: Option<&Path>) -> anyhow::Result<Settings> {
    path.map_or_else(|| Ok(Settings::default()), read_settings)
}

fn read_settings(path: &Path) -> anyhow::Result<Settings> {
    let file = path.display().to_string();
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_SETTINGS_LEN) {
        bail!(
            "{file}: the file has more than {MAX_SETTINGS_LEN} bytes\n  help: name the settings; objects go to --state"
        );
    }
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("{file}: cannot be read\n  help: name a JSON or YAML file, or leave --settings out")
    })?;
    Ok(Settings::parse(&file, &text)?)
}

/// The objects. What restricts traffic and is not enforced is of no interest here.
fn load(args: &Resolve) -> anyhow::Result<Vec<Object>> {
    let strictness = if args.lenient { Strictness::Lenient } else { Strictness::Strict };
    let options =
        Options { strictness, unenforced: Unenforced::Report, services: ServiceKinds::Read, ..Options::default() };
    let loaded = bundle::load(&args.paths, &options)??;
    loaded.warnings.shown().iter().for_each(output::warn);
    match loaded.warnings.total() - loaded.warnings.shown().len() {
        0 => {}
        more => output::warn(&format!("{more} more of such")),
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
    let known: Vec<&str> = nodes().collect();
    let help = match known.as_slice() {
        [] => "add the output of `kubectl get nodes -o yaml` to --state".to_owned(),
        known => format!("it has {}", output::some_of(known, 8)),
    };
    bail!("no node `{}` in the state\n  help: {help}", output::printable(node))
}
