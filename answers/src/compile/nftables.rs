//! The nftables ruleset of a node.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer, remember};
use bulkhead_control::source;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::write_json;
use crate::args::{Compile, Format};

/// Maximum length of an interface name in bytes. Source: Linux, `IFNAMSIZ` is 16 including the terminator.
const LONGEST: usize = 15;

/// Writes the ruleset as a script for `nft -f`.
pub(super) fn write(pipeline: &mut Pipeline, args: &Compile, out: &mut impl Write) -> anyhow::Result<()> {
    let handle = pipeline.register(NftRenderer::of_node(args.node.as_str().into()));
    pipeline.render_all()?;
    let pods: Vec<PodName> = pipeline.renderer(handle).pods().map(|(pod, _)| pod.clone()).collect();
    let interfaces = match &args.interfaces {
        Some(path) => read(path, &pods)?,
        None => named_after(&pods),
    };
    pipeline.renderer_mut(handle).set_interfaces(interfaces.clone());
    // An epoch that depends on the ruleset: loading it makes the kernel judge earlier connections again.
    let of_none = pipeline.renderer(handle).full(Epoch::any(0), pipeline.origins());
    let epoch = Epoch::any(number(&of_none));
    let script = pipeline.renderer(handle).full(epoch, pipeline.origins()) + &remember(epoch);
    match args.output {
        Format::Text => out.write_all(script.as_bytes())?,
        Format::Json => {
            let interfaces: serde_json::Map<_, _> = interfaces
                .iter()
                .map(|(name, pod)| (name.to_string(), json!(pod.as_ref().map(ToString::to_string))))
                .collect();
            let document =
                json!({ "node": args.node, "renderer": "nftables", "interfaces": interfaces, "script": script });
            write_json(&document, out)?;
        }
    }
    Ok(())
}

/// Hashes text to the number of an epoch.
fn number(text: &str) -> u64 {
    Sha256::digest(text).iter().take(size_of::<u64>()).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Names interfaces after pods if the name fits and is unique, else with a digest.
fn named_after(pods: &[PodName]) -> BTreeMap<Arc<str>, Option<PodName>> {
    let fits = |pod: &PodName| {
        let namesakes = pods.iter().filter(|other| other.name == pod.name).count();
        pod.name.len() <= LONGEST && namesakes == 1
    };
    let named = pods.iter().map(|pod| {
        let name = if fits(pod) {
            pod.name.clone()
        } else {
            let digits: String =
                Sha256::digest(pod.to_string())[..5].iter().map(|byte| format!("{byte:02x}")).collect();
            format!("veth-{digits}").into()
        };
        (name, Some(pod.clone()))
    });
    named.collect()
}

/// Reads the map of pods to interfaces.
fn read(path: &Path, pods: &[PodName]) -> anyhow::Result<BTreeMap<Arc<str>, Option<PodName>>> {
    let file = path.display();
    let help = "write an object that maps pods to their interfaces on the node: default/web: veth-13dd25c5cb";
    let text = source::text_of_file(path)
        .map_err(|(problem, help)| anyhow::anyhow!("the interface map {file}: {problem}\n  help: {help}"))?;
    let read: BTreeMap<String, String> = serde_saphyr::from_str(&text)
        .map_err(|error| anyhow::anyhow!("{file} is not an interface map: {error}\n  help: {help}"))?;
    let mut interfaces = BTreeMap::new();
    for (pod, interface) in read {
        let Some(name) = pods.iter().find(|name| name.to_string() == pod) else {
            bail!("{file}: the node has no pod `{pod}`\n  help: {help}");
        };
        if interface.is_empty() || interface.len() > LONGEST {
            bail!("{file}: `{interface}` of pod {pod} is not a valid interface name\n  help: {help}");
        }
        if let Some(Some(other)) = interfaces.insert(interface.as_str().into(), Some(name.clone())) {
            bail!("{file}: pods {other} and {pod} have the same interface {interface}\n  help: {help}");
        }
    }
    Ok(interfaces)
}
