//! `bulkhead translate`: policies of Calico and Cilium, AdminNetworkPolicies and BaselineAdminNetworkPolicies as NetworkPolicies and
//! ClusterNetworkPolicies, with the proof that they mean the same.
//!
//! ```text
//!  state --control--> ranked policies --plan--> layers: Admin | NetworkPolicies | Baseline --say, objects--> objects --yaml--> text
//!    |                                            `- refused, equal in this cluster only --.                                    |
//!    `--compile--> Reachability ------------------- Difference (answers::diff) --> proof <-'         Reachability <--compile----'
//! ```
//! The proof reads the printed text again, so that it also covers the writer. It compares the verdicts on first packets in both directions
//! between all addresses, for all protocols and ports. Replies pass by their session, so they need no look of their own: the verdict on the first packet decides.
//!
//! **Invariant.** Nothing widens in silence: an Accept that the target cannot say is left out, a Deny or Pass becomes a Deny of more, and both
//! are reported. What remains is a difference of the proof.
//!
//! **What lost.** A translation per dialect: the resolved policies have the same terms for all. Enumerating the pods of each rule by name: equal
//! by this cluster's pods only, and unreadable.

mod cluster;
mod comments;
mod default_tier;
mod lists;
mod meet;
mod objects;
mod outside;
mod plan;
mod priorities;
mod proof;
mod regions;
mod report;
mod say;
mod terms;
mod yaml;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use bulkhead_answers::run::{self, Input};
use bulkhead_answers::{output, progress};
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{ClusterPolicy, Direction};
use serde_json::{Value, json};

use self::cluster::Cluster;
use self::comments::Sources;
use self::objects::Maker;
pub use self::proof::after;
use self::report::Report;
pub use self::yaml::ORIGIN_ANNOTATION;
use crate::args::{ObjectFormat, Translate};

/// A translation: the objects as text, and the remarks about it.
#[derive(Debug)]
pub struct Translation {
    /// The objects as YAML documents.
    pub yaml: String,
    /// The same objects.
    pub values: Vec<Value>,
    report: Report,
}

impl Translation {
    /// Returns the number of rules that are not translated, or not as they are written.
    pub fn refused(&self) -> usize {
        self.report.refused.len()
    }

    /// Returns what would show a difference in another cluster with the same policies. Empty if the translation is equal by construction.
    pub fn only_here(&self) -> Vec<String> {
        report::texts(self.report.only_here.iter())
    }
}

/// Prints the translated objects, and the proof. Returns exit code 1 if a verdict differs or a rule is not translated.
///
/// # Errors
/// If the state cannot be read, the target has not enough priorities, or the output cannot be written.
pub fn run(args: &Translate) -> anyhow::Result<ExitCode> {
    let input = Input::open(&args.state)?;
    let mut before = run::load(&input, Some(&args.planned))?;
    progress::step("translating the policies");
    let translation = translate(before.cache())?;
    let mut after = after(before.cache(), &translation.yaml, input.sources.enforcement(&args.state)?)?;
    progress::step("comparing the states");
    let (told, is_equal) = proof::told(&mut before, &mut after, &translation.report)?;
    let text = match args.output {
        ObjectFormat::Yaml => translation.yaml,
        ObjectFormat::Json => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": translation.values});
            format!("{}\n", serde_json::to_string_pretty(&list)?)
        }
    };
    match &args.out {
        Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?,
        None => {
            let mut out = output::stdout();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
    }
    std::io::stderr().write_all(told.as_bytes())?;
    Ok(if is_equal { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Translates the policies of a state.
///
/// # Errors
/// If the target has not enough priorities.
pub fn translate(cache: &Cache) -> anyhow::Result<Translation> {
    let mut policies: Vec<Arc<ClusterPolicy>> = cache.cluster_policies().values().cloned().collect();
    policies.sort_by(|one, other| one.rank.cmp(&other.rank));
    let (cluster, mut report) = (&Cluster::new(cache), Report::default());
    let plans =
        [Direction::Ingress, Direction::Egress].map(|direction| plan::plan(direction, &policies, cluster, &mut report));
    let numbers = policies.iter().enumerate().map(|(number, policy)| (Arc::as_ptr(policy), number)).collect();
    let objects = Maker { cluster, report: &mut report, numbers }.make(plans)?;
    let values: Vec<Value> = objects.iter().map(yaml::value).collect();
    let comments = Sources::default().comments(&objects);
    let documents: Vec<String> =
        values.iter().zip(&comments).map(|(value, comments)| yaml::text(value, comments)).collect();
    Ok(Translation { yaml: documents.join("---\n"), values, report })
}
