//! Refuses cluster policies that depend on a namespace, pod or node that could not be read completely, in lenient mode.
//!
//! Such an object may not match selectors that it should match. An Accept then fails closed, but a subject, a Deny or a Pass fails open. No
//! stand-in for the object avoids that, so the input is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::error::{SourceError, quoted};
use crate::object::{ClusterPolicy, NAMESPACE_NAME_LABEL, NamespaceScope, Object, Peer, PodPeer, RuleAction};

/// The objects that could not be read completely.
#[derive(Debug, Default)]
pub struct Unknown {
    /// The names of namespaces whose labels are unknown.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Whether the labels, addresses or ports of any pod are unknown.
    pub is_pod: bool,
    /// Whether the labels or addresses of any node are unknown.
    pub is_node: bool,
}

/// Returns the error of the first cluster policy that depends on unknown properties of an object. `None` if there is no such policy.
pub fn needs_labels<'a>(objects: impl Iterator<Item = &'a Object>, unknown: &Unknown) -> Option<SourceError> {
    let fault = |policy: &ClusterPolicy| match unknown.namespaces.first().filter(|_| asks_for_labels(policy)) {
        Some(name) => Some((
            format!(
                "cannot tell whether the policy applies to namespace {}: the namespace's labels could not be read",
                quoted(name)
            ),
            "correct the namespace: without its labels, traffic that this policy denies could pass",
        )),
        None if unknown.is_pod && shuts_off_pods(policy) => Some((
            "cannot tell whether the policy applies to a pod that could not be read".to_owned(),
            "correct the pod: without its labels, addresses and ports, traffic that this policy denies could pass",
        )),
        None if unknown.is_node && shuts_off_nodes(policy) => Some((
            "cannot tell whether the policy applies to a node that could not be read".to_owned(),
            "correct the node: without its labels and addresses, traffic that this policy denies could pass",
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

/// Whether a Deny or Pass rule has a node peer, or an Accept rule excepts one.
fn shuts_off_nodes(policy: &ClusterPolicy) -> bool {
    shuts_off(policy, |peer| matches!(peer, Peer::Nodes(_)))
}

/// Whether a Deny or Pass rule has a pod peer, or an Accept rule excepts one.
fn shuts_off_pods(policy: &ClusterPolicy) -> bool {
    shuts_off(policy, |peer| matches!(peer, Peer::Pods(_)))
}

fn shuts_off(policy: &ClusterPolicy, is_such: impl Fn(&Peer) -> bool) -> bool {
    policy.ingress.iter().chain(&policy.egress).any(|rule| {
        let mut peers = rule.traffic.peers.iter().flatten();
        peers.any(|peer| match peer {
            Peer::Region(region) if rule.action == RuleAction::Accept => region.none.iter().any(&is_such),
            Peer::Region(region) => region.all.iter().flatten().any(&is_such),
            peer => rule.action != RuleAction::Accept && is_such(peer),
        })
    })
}

/// Whether the policy depends on labels of namespaces other than their names.
fn asks_for_labels(policy: &ClusterPolicy) -> bool {
    let rules = policy.ingress.iter().chain(&policy.egress);
    let peers = rules.flat_map(|rule| rule.traffic.peers.iter().flatten());
    asks(&policy.subject) || peers.flat_map(parts).any(|peer| matches!(peer, Peer::Pods(pods) if asks(pods)))
}

fn asks(PodPeer { namespaces, filter, .. }: &PodPeer) -> bool {
    let selects_by_labels = match namespaces {
        NamespaceScope::Own(_) => false,
        NamespaceScope::Selected(selector) => {
            selector.requirements().iter().any(|requirement| &*requirement.key != NAMESPACE_NAME_LABEL)
        }
    };
    selects_by_labels || filter.as_ref().is_some_and(|filter| filter.has_namespace_labels())
}

/// Returns the peers of a region, or the peer itself if it is no region.
pub(in crate::source) fn parts(peer: &Peer) -> Box<dyn Iterator<Item = &Peer> + '_> {
    match peer {
        Peer::Region(region) => Box::new(region.all.iter().flatten().chain(&region.none)),
        peer => Box::new(std::iter::once(peer)),
    }
}
