//! Identities of a node: labels, ipcache and policy maps, as the test enforcer and Cilium list them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;

use bulkhead_classifier::Action;
use bulkhead_control::identity::{Identities, Identity, LabelSet};
use bulkhead_control::object::PodName;
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::identity::{Entry, IdentityRenderer};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{attributions, named, write_json};
use crate::args::{Compile, Format};
use crate::output::{Columns, printable};

/// An identity in this node's maps.
struct Known {
    number: Identity,
    labels: String,
    /// A sample address. `None` for the world: every address without an ipcache entry.
    address: Option<IpAddr>,
}

/// The printed lists: labels, ipcache and the policy maps of each pod.
struct Listing {
    identities: Vec<Known>,
    ipcache: Vec<(IpNet, Identity)>,
    pods: Vec<PodMaps>,
}

/// The printed policy maps of a pod, for both directions.
struct PodMaps {
    pod: PodName,
    addresses: Vec<IpAddr>,
    /// Keys with their actions. Identity 0 applies to all identities without a key for the service.
    maps: [(Direction, Vec<(Identity, Entry)>); 2],
}

pub(super) fn write(pipeline: &mut Pipeline, args: &Compile, out: &mut impl Write) -> anyhow::Result<()> {
    let handle = pipeline.register(IdentityRenderer::of_node(args.node.as_str().into(), 0));
    pipeline.render_all()?;
    let listing = listing(pipeline, pipeline.renderer(handle), &args.node);
    match args.output {
        Format::Text => text(pipeline, &listing, &args.node, out),
        Format::Json => write_json(&document(pipeline, &listing, &args.node), out),
    }
}

fn listing(pipeline: &Pipeline, renderer: &IdentityRenderer, node: &str) -> Listing {
    let (ipcache, identities) = numbered(pipeline, renderer);
    let local = pipeline.cache().pods().map(|(_, pod)| pod);
    let local = local.filter(|pod| pod.is_endpoint() && pod.node.as_deref() == Some(node));
    let mut pods: Vec<PodMaps> = local
        .map(|pod| PodMaps {
            pod: pod.name.clone(),
            addresses: pod.addresses.clone(),
            maps: [Direction::Ingress, Direction::Egress]
                .map(|direction| (direction, keys(renderer, &pod.name, direction, &identities))),
        })
        .collect();
    pods.sort_by(|one, other| one.pod.cmp(&other.pod));
    Listing { identities, ipcache, pods }
}

/// Returns the derived identity of each prefix, and all derived identities.
fn numbered(pipeline: &Pipeline, renderer: &IdentityRenderer) -> (Vec<(IpNet, Identity)>, Vec<Known>) {
    let (mut cluster, mut local) = (Identities::of_cluster(), Identities::of_node());
    // Engine numbers of a label set's addresses. Several if a block or a named port distinguishes its pods.
    let mut by_labels: BTreeMap<LabelSet, BTreeMap<u32, Vec<IpAddr>>> = BTreeMap::new();
    let mut whose: BTreeMap<LabelSet, &PodName> = BTreeMap::new();
    let endpoints = || pipeline.cache().pods().map(|(_, pod)| pod).filter(|pod| pod.is_endpoint());
    for pod in endpoints() {
        let labels = LabelSet::of_pod(&pod.name.namespace, &pod.labels);
        for &address in &pod.addresses {
            let of = by_labels.entry(labels.clone()).or_default();
            of.entry(renderer.identity_of(address)).or_default().push(address);
        }
        whose.insert(labels, &pod.name);
    }
    for labels in by_labels.keys() {
        cluster.add(labels);
    }
    let mut pods: BTreeMap<IpAddr, Identity> = BTreeMap::new();
    let mut all = Vec::new();
    for (labels, engine) in &by_labels {
        let mut parts: Vec<&Vec<IpAddr>> = engine.values().collect();
        parts.sort_by_key(|addresses| addresses.iter().min());
        for (part, addresses) in parts.into_iter().enumerate() {
            let pod = whose.get(labels).and_then(|name| pipeline.cache().pod(pipeline.cache().pod_key(name)?));
            let apart = match (part, pod) {
                (1.., Some(pod)) => {
                    LabelSet::of_pod_within(&pod.name.namespace, &pod.labels, &[format!("bulkhead:part={part}")])
                }
                _ => labels.clone(),
            };
            let number = if part == 0 { cluster.of(&apart) } else { local.add(&apart) };
            let (Some(number), Some(&address)) = (number, addresses.iter().min()) else { continue };
            all.push(Known { number, labels: apart.to_string(), address: Some(address) });
            pods.extend(addresses.iter().map(|&address| (address, number)));
        }
    }
    let mut others: BTreeMap<u32, Vec<IpNet>> = BTreeMap::new();
    for (prefix, _) in renderer.cache().entries() {
        let engine = renderer.identity_of(prefix.addr());
        // The engine merges neighbours of one identity into one prefix; here each pod has its own entry.
        let size = 1_u128.checked_shl(u32::from(prefix.max_prefix_len() - prefix.prefix_len()));
        let inside = pods.range(prefix.network()..=prefix.broadcast()).count() as u128;
        if size != Some(inside) {
            others.entry(engine).or_default().push(prefix);
        }
    }
    let mut ipcache: Vec<(IpNet, Identity)> =
        pods.into_iter().map(|(address, number)| (address.into(), number)).collect();
    // Split a reserved identity if a block distinguishes its addresses: otherwise one would get the keys of all.
    let mut given = BTreeSet::new();
    for prefixes in others.into_values() {
        let address = prefixes[0].addr();
        let reserved = match renderer.node_of(address) {
            (true, _) => Some((Identity::HOST, "reserved:host")),
            (_, true) => Some((Identity::REMOTE_NODE, "reserved:remote-node")),
            _ => None,
        };
        let number = match reserved {
            Some((number, name)) if given.insert(number) => Some((number, name.to_owned())),
            _ => {
                let labels = LabelSet::of_blocks(&prefixes);
                let name = reserved.map(|(_, name)| format!("{name},")).unwrap_or_default();
                local.add(&labels).map(|number| (number, format!("{name}{labels}")))
            }
        };
        if let Some((number, labels)) = number {
            all.push(Known { number, labels, address: Some(address) });
            ipcache.extend(prefixes.into_iter().map(|prefix| (prefix, number)));
        }
    }
    all.push(Known { number: Identity::WORLD, labels: "reserved:world".into(), address: None });
    all.sort_by_key(|known| known.number);
    ipcache.sort_unstable();
    (ipcache, all)
}

/// Returns the keys of a map: those of identity 0, then those that differ.
fn keys(renderer: &IdentityRenderer, pod: &PodName, direction: Direction, all: &[Known]) -> Vec<(Identity, Entry)> {
    let of = |address| renderer.entries(pod, direction, address).unwrap_or_default();
    let everybody = renderer.entries_of_unknown(pod, direction).unwrap_or_default();
    let mut keys: Vec<(Identity, Entry)> = Vec::new();
    if !renderer.is_open(pod, direction) {
        for (known, address) in all.iter().filter_map(|known| Some((known, known.address?))) {
            let different = of(address).into_iter().filter(|entry| !everybody.contains(entry));
            // The other services equal those of identity 0.
            let told = |(services, action, origin): &Entry| {
                everybody
                    .iter()
                    .any(|(all, does, why)| (does, why) == (action, origin) && all.intersect(services) == *services)
            };
            keys.extend(different.filter(|entry| !told(entry)).map(|entry| (known.number, entry)));
        }
    }
    keys.extend(everybody.into_iter().map(|entry| (Identity::ANY, entry)));
    keys
}

/// Formats a key like the test enforcer: identity, protocol, port, direction.
fn key_texts(number: Identity, (services, ..): &Entry, direction: Direction) -> Vec<String> {
    if *services == bulkhead_classifier::ServiceSet::all() {
        return vec![format!("{number}:0:0:{direction}")];
    }
    services.services().map(|service| format!("{number}:{service}:{direction}")).collect()
}

fn text(pipeline: &Pipeline, listing: &Listing, node: &str, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "node {}\n", printable(node))?;
    let mut columns = Columns::new(&["IDENTITY", "LABELS"]);
    for known in &listing.identities {
        columns.row([known.number.to_string(), printable(&known.labels).to_string()]);
    }
    columns.write(out)?;
    writeln!(out, "\nipcache: {} entries, everybody else is {} (world)", listing.ipcache.len(), Identity::WORLD)?;
    let mut columns = Columns::new(&["ADDRESS", "IDENTITY"]);
    for (prefix, number) in &listing.ipcache {
        columns.row([prefix.to_string(), number.to_string()]);
    }
    columns.write(out)?;
    for PodMaps { pod, addresses, maps } in &listing.pods {
        let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        writeln!(out, "\npolicy of {} ({addresses})", printable(&pod.to_string()))?;
        for (direction, keys) in maps {
            for (number, entry) in keys {
                let origin = named(pipeline, &[entry.2]);
                for key in key_texts(*number, entry, *direction) {
                    writeln!(out, "  {key} {}  # {origin}", entry.1)?;
                }
            }
        }
    }
    Ok(())
}

fn document(pipeline: &Pipeline, listing: &Listing, node: &str) -> Value {
    let identities = listing
        .identities
        .iter()
        .map(|known| json!({ "identity": known.number.0, "labels": known.labels, "local": known.number.is_local() }));
    let ipcache = listing.ipcache.iter().map(|(prefix, number)| json!({ "prefix": prefix, "identity": number.0 }));
    let pods = listing.pods.iter().map(|PodMaps { pod, addresses, maps }| {
        let keys = maps.iter().flat_map(|(direction, keys)| keys.iter().map(move |key| (direction, key)));
        let keys = keys.map(|(direction, (number, entry))| {
            json!({
                "identity": number.0,
                "keys": key_texts(*number, entry, *direction),
                "direction": direction.name(),
                "action": if entry.1 == Action::Allow { "allow" } else { "deny" },
                "origins": attributions(pipeline, &[entry.2]),
            })
        });
        json!({ "pod": pod.to_string(), "addresses": addresses, "policy": keys.collect::<Vec<_>>() })
    });
    json!({
        "node": node,
        "renderer": "identity",
        "identities": identities.collect::<Vec<_>>(),
        "ipcache": ipcache.collect::<Vec<_>>(),
        "pods": pods.collect::<Vec<_>>(),
    })
}
