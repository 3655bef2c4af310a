//! Warnings about a compiled state: what its policies leave open, and what the state lacks.

use std::collections::BTreeSet;

use bulkhead_control::object::{ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ENFORCEMENT_ANNOTATION};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::Refusal;
use bulkhead_control::ties::{self, Tie};

use crate::output;

/// Maximum number of policies named in one line.
const MAX_NAMED: usize = 8;

/// Returns the names of the audited policies, shortened if they are many. `None` if there are none.
pub(super) fn audited(pipeline: &Pipeline) -> Option<String> {
    some_of(pipeline.audited_policies().iter().map(ToString::to_string))
}

/// Returns the texts as one line, shortened if they are many. `None` if there are none.
pub(super) fn some_of(texts: impl Iterator<Item = String>) -> Option<String> {
    let texts: Vec<String> = texts.collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    (!texts.is_empty()).then(|| output::some_of(&texts, MAX_NAMED))
}

/// Returns warnings about policies that are enforced despite an audit annotation, because the enforcement point cannot audit. Each has the
/// policy's position and a remedy.
pub fn unaudited(pipeline: &Pipeline) -> Vec<String> {
    let unaudited = pipeline.unaudited_policies();
    let more = unaudited.len().saturating_sub(MAX_REFUSALS);
    let told = unaudited.iter().take(MAX_REFUSALS).map(|(policy, position)| {
        let place = position.as_ref().map(|position| format!("{position}: ")).unwrap_or_default();
        format!(
            "{place}{policy} is enforced, though its {ENFORCEMENT_ANNOTATION}, or its namespace's, says audit: with `enforce: source` and \
             `dataplane: nftables` nothing is audited\n  help: remove the annotation, or use the vswitch with `enforce: destination`"
        )
    });
    told.chain((more > 0).then(|| format!("and {more} more warnings of this kind"))).collect()
}

/// Returns warnings about rules that exceed a table's limits, with what is in force instead, and a remedy.
pub fn refusals(pipeline: &Pipeline) -> Vec<String> {
    told_refusals(&pipeline.refusals())
}

pub(super) fn told_refusals(refusals: &[Refusal]) -> Vec<String> {
    let more = refusals.len().saturating_sub(MAX_REFUSALS);
    let told = |refusal: &Refusal| {
        format!("{refusal}\n  help: reduce the number of rules, or their overlaps, in the policies of these pods")
    };
    let told = refusals.iter().take(MAX_REFUSALS).map(told);
    told.chain((more > 0).then(|| format!("and {more} more warnings of this kind"))).collect()
}

/// Refusals printed one by one. The rest is only counted.
const MAX_REFUSALS: usize = 10;

/// Returns warnings about orders of cluster policies that the API leaves undefined, and how they are resolved.
pub fn left_open(pipeline: &Pipeline) -> Vec<String> {
    let cache = pipeline.cache();
    let tie = |tie: &Tie| {
        format!(
            "{tie}: the API leaves open which is asked first; here it is the former, by its name\n  \
             help: give one of them another priority"
        )
    };
    let mut told: Vec<String> = ties::ties(cache).iter().take(MAX_TIES).map(tie).collect();
    let is_new = |name: &ClusterPolicyName| name.kind == ClusterPolicyKind::ClusterNetworkPolicy;
    let names = || cache.cluster_policies().keys().filter(|name| !name.kind.is_foreign());
    if names().any(is_new) && !names().all(is_new) {
        let text = "there are policies of policy.networking.k8s.io/v1alpha1 and v1alpha2: all of a tier are asked by priority, a \
                    BaselineAdminNetworkPolicy last\n  help: write them in one version";
        told.push(text.into());
    }
    told
}

/// Returns a warning that lists the policies with domain names in rules, which allow nothing. `target` is what enforces them without
/// reading DNS answers, such as `the node's kernel`. `None` if no policy has such rules.
pub fn unlearned(pipeline: &Pipeline, target: &str) -> Option<String> {
    let policies = policies_with_names(pipeline)?;
    Some(format!(
        "{policies}: rules with domain names allow nothing, because {target} does not read DNS answers\n  \
         help: name networks instead, or enforce with `dataplane: vswitch`"
    ))
}

/// Returns a warning that lists the policies with domain names whose addresses neither the state nor `--names` has. `None` if there are no
/// such policies.
pub fn unknown_names(pipeline: &Pipeline) -> Option<String> {
    let policies = policies_with_names(pipeline)?;
    Some(format!(
        "{policies}: addresses of domain names are unknown, so rules with these names match no address here\n  \
         help: give the addresses of the names with --names FILE (docs/names.md)"
    ))
}

/// Returns the names of the policies with domain names in rules. `None` if no policy has such rules.
fn policies_with_names(pipeline: &Pipeline) -> Option<String> {
    let is_named = |policy: &ClusterPolicy| policy.egress.iter().any(|rule| rule.traffic.has_names());
    let policies = pipeline.cache().cluster_policies().values().filter(|policy| is_named(policy));
    some_of(policies.map(|policy| policy.rank.name.to_string()))
}

/// Maximum number of ties printed.
const MAX_TIES: usize = 10;

/// Warns about namespaces without an object: their pods match only selectors by name or for all namespaces.
pub(super) fn warn_of_missing_namespaces(pipeline: &Pipeline) {
    let cache = pipeline.cache();
    let used: BTreeSet<_> = cache.pods().map(|(_, pod)| &pod.name.namespace).collect();
    let missing: Vec<&str> =
        used.into_iter().filter(|name| !cache.namespaces().contains_key(*name)).map(|name| &**name).collect();
    let has_policies = !cache.policies().is_empty() || !cache.cluster_policies().is_empty();
    if !missing.is_empty() && has_policies {
        let names = output::some_of(&missing, 5);
        output::warn(&format!(
            "no Namespace object for {names}: a namespaceSelector by label does not match their pods\n  \
             help: add the output of `kubectl get namespaces -o yaml` to --state"
        ));
    }
}

/// Warns about nodes without an object, whose own addresses are unknown.
pub(super) fn warn_of_missing_nodes(pipeline: &Pipeline) {
    let cache = pipeline.cache();
    let used: BTreeSet<_> = cache.pods().filter_map(|(_, pod)| pod.node.as_ref()).collect();
    let missing: Vec<&str> =
        used.into_iter().filter(|name| !cache.nodes().contains_key(*name)).map(|name| &**name).collect();
    let is_about_nodes = cache.cluster_policies().keys().any(|name| name.kind.is_foreign());
    if !missing.is_empty() && (is_about_nodes || !cache.policies().is_empty()) {
        let names = output::some_of(&missing, 5);
        output::warn(&format!(
            "no Node object for {names}: traffic between pods and their own node, which is always allowed, is not known as such\n  \
             help: add the output of `kubectl get nodes -o yaml` to --state"
        ));
    }
}
