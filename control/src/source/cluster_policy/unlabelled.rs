//! Namespaces and nodes of which not everything is known, where faults are survived.
//!
//! An Accept that does not match them is closed; a subject, a Deny or a Pass that does not is open. Nothing can stand for such an
//! object, so that the input is refused when a cluster policy asks for what is not known.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::error::{SourceError, quoted};
use crate::object::{ClusterPolicy, NAMESPACE_NAME_LABEL, NamespaceScope, Object, Peer, PodPeer, RuleAction};

/// What is wrong when a cluster policy asks namespaces for labels and those of some are not known, or names nodes and not all
/// of them are known.
pub(in crate::source) fn needs_labels<'a>(
    objects: impl Iterator<Item = &'a Object>,
    unknown: &BTreeSet<Arc<str>>,
    faulty_node: bool,
) -> Option<SourceError> {
    let fault = |policy: &ClusterPolicy| match unknown.first().filter(|_| asks_for_labels(policy)) {
        Some(name) => Some((
            format!("whether it is about namespace {} is not known: its labels could not be read", quoted(name)),
            "mend the namespace; without its labels what this policy denies could pass",
        )),
        None if faulty_node && shuts_off_nodes(policy) => Some((
            "whether it is about a node that could not be read is not known".to_owned(),
            "mend the node; without its labels and addresses what this policy denies could pass",
        )),
        None => None,
    };
    let policies = objects.filter_map(|object| match object {
        Object::ClusterPolicy(policy) => Some(policy),
        _ => None,
    });
    let (policy, (problem, help)) = policies.filter_map(|policy| Some((policy, fault(policy)?))).next()?;
    let position = policy.position.as_ref();
    Some(SourceError {
        file: position.map_or_else(|| "".into(), |position| Arc::clone(&position.file)),
        document: position.map_or(0, |position| position.document),
        line: position.map(|position| position.line),
        object: Some(policy.rank.name.to_string()),
        path: String::new(),
        problem,
        help: help.to_owned(),
    })
}

/// Whether a rule that does not accept names nodes.
fn shuts_off_nodes(policy: &ClusterPolicy) -> bool {
    policy.egress.iter().filter(|rule| rule.action != RuleAction::Accept).any(|rule| {
        let mut peers = rule.traffic.peers.iter().flatten();
        peers.any(|peer| matches!(peer, Peer::Nodes(_)))
    })
}

fn asks_for_labels(policy: &ClusterPolicy) -> bool {
    let rules = policy.ingress.iter().chain(&policy.egress);
    let peers = rules.flat_map(|rule| rule.traffic.peers.iter().flatten());
    let pods = peers.filter_map(|peer| match peer {
        Peer::Pods(pods) => Some(pods),
        Peer::Block(_) | Peer::Nodes(_) => None,
    });
    std::iter::once(&policy.subject).chain(pods).any(|PodPeer { namespaces, .. }| match namespaces {
        NamespaceScope::Own(_) => false,
        NamespaceScope::Selected(selector) => {
            selector.requirements().iter().any(|requirement| &*requirement.key != NAMESPACE_NAME_LABEL)
        }
    })
}
