//! The proof: compares the state before with the state after the translation.

use std::fmt::Write as _;

use anyhow::Context;
use bulkhead_answers::diff::{self, Told};
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Enforcement, Object};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source::{Options, load_text};

use super::report::{self, Report};
use super::terms::is_translated;

/// The name of the translated objects' file in messages, if they are written to standard output.
pub(super) const TRANSLATED: &str = "(translated)";

/// Returns the state of a cache with the translated objects, which are read from their text as from a file, instead of the policies that they
/// were translated from.
///
/// # Errors
/// If the objects are not valid, which is a defect of this program.
pub fn after(cache: &Cache, text: &str, enforcement: Enforcement) -> anyhow::Result<Pipeline> {
    let loaded = load_text(TRANSLATED, text, Options::default())
        .map_err(|errors| anyhow::anyhow!("the translated objects are not valid: {errors}"))?;
    let mut objects: Vec<Object> = Vec::new();
    objects.extend(cache.namespaces().values().map(|namespace| Object::Namespace((**namespace).clone())));
    objects.extend(cache.nodes().values().map(|node| Object::Node((**node).clone())));
    objects.extend(cache.pods().map(|(_, pod)| Object::Pod(pod.clone())));
    objects.extend(cache.policies().values().cloned().map(Object::Policy));
    let kept = cache
        .cluster_policies()
        .values()
        .filter(|policy| !is_translated(policy) && !policy.rank.name.kind.is_foreign());
    objects.extend(kept.cloned().map(Object::ClusterPolicy));
    objects.extend(loaded.objects);
    let mut pipeline = Pipeline::without_tables(cache.default_isolation()).auditing(enforcement);
    pipeline.resync(objects).context("the translated state does not compile")?;
    Ok(pipeline)
}

/// Compares the states, and returns the whole report: what differs, what cannot be translated, what would differ elsewhere. The second value is
/// whether everything is equal and translated.
///
/// # Errors
/// If a state cannot be compared.
pub(super) fn told(before: &mut Pipeline, after: &mut Pipeline, remarks: &Report) -> anyhow::Result<(String, bool)> {
    let Told { text, changes, port_zero } = diff::tell(before, after)?;
    let mut out = String::new();
    match (changes, port_zero) {
        (0, false) => out.push_str("In this cluster: every first packet and every reply gets the same verdict.\n"),
        (0, true) => out.push_str(
            "In this cluster: every first packet and every reply gets the same verdict, except at port 0, which is reserved and which a \
             ClusterNetworkPolicy cannot name.\n",
        ),
        _ => {
            let _ = writeln!(out, "In this cluster, verdicts differ:\n{text}");
        }
    }
    if !remarks.refused.is_empty() {
        let _ = writeln!(out, "\nNot translated ({}):", remarks.refused.len());
        for (text, help) in report::texts(remarks.refused.keys()).iter().zip(remarks.refused.values()) {
            let _ = writeln!(out, "  {text}\n    help: {help}");
        }
    }
    match remarks.only_here.is_empty() {
        true => out.push_str("\nIn other clusters with the same policies: the same by construction.\n"),
        false => {
            out.push_str("\nIn other clusters with the same policies, this would show a difference:\n");
            for what in report::texts(remarks.only_here.iter()) {
                let _ = writeln!(out, "  {what}");
            }
        }
    }
    Ok((out, changes == 0 && remarks.refused.is_empty()))
}
