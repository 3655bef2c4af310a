//! Finds selectors that match nothing, and port names that no pod has.

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead_control::cache::{Cache, scope_covers};
use bulkhead_control::object::{
    IpBlock, Labels, NAMESPACE_NAME_LABEL, Namespace, NamespaceScope, Peer, Pod, PodPeer, PolicyPort, Transport,
};
use bulkhead_control::origin::Direction;
use bulkhead_control::selector::{Condition, Requirement, Selector};
use bulkhead_control::source::nearest_word;

use super::finding::{
    Found, NAMED_PORT_MISSING, PEER_SELECTS_NOBODY, POLICY_SELECTS_NOBODY, RULE_NAMES_NOTHING, SEPARATE_SELECTORS,
};
use super::makers::Makers;
use super::subject::{Rule, Subject, told};
use crate::output::some_of;

/// Maximum number of names in one line.
const MAX_NAMED: usize = 5;

/// The cause shared by a policy's peers about which the state has nothing similar: it may lack the pods of all of them.
const UNKNOWN: &str = "unknown";

/// Reports a policy that selects no pod. `None` if it selects one.
pub(super) fn policy<'a>(cache: &Cache, makers: &Makers<'a>, subject: &Subject<'a>) -> Option<Found<'a>> {
    if !subject.pods.is_empty() {
        return None;
    }
    let asks_for = &subject.asks_for;
    if subject.on_host_network > 0 {
        let text = format!(
            "all pods that it selects ({asks_for}) are on the host network, and no policy is about those: it restricts nothing"
        );
        let mend = "remove the policy, or let the pods have a network of their own";
        return Some(subject.found(POLICY_SELECTS_NOBODY, text, mend));
    }
    let hint = cache.policies().get(&subject.name).and_then(|policy| {
        let pods = || cache.pods_in(&policy.name.namespace).map(|(_, pod)| &pod.labels);
        nearest_value(&policy.subject, || pods().collect())
    });
    let reason = format!("no pod is selected ({asks_for}): it restricts nothing and allows nothing");
    let mend = hint.clone().unwrap_or_else(|| "mend its selector, or remove the policy".to_owned());
    let found = subject.found(POLICY_SELECTS_NOBODY, reason, mend);
    Some(makers.beside(found, cache, &subject.selects, hint.is_some()))
}

/// Reports peers and port names of a rule that match nothing.
pub(super) fn rule<'a>(cache: &Cache, makers: &Makers<'a>, subject: &Subject<'a>, rule: &Rule<'a>) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    let mut nobody = Vec::new();
    for (at, peer) in rule.peers() {
        let Some(why) = why_nobody(cache, peer) else { continue };
        match separated(cache, rule, at) {
            Some((reason, mend)) if !subject.is_cluster() => {
                let at = subject.peer_at(rule, at);
                found.push(subject.found_in(SEPARATE_SELECTORS, rule, at, reason, mend));
            }
            _ => nobody.push((at, peer, why)),
        }
    }
    for (at, peer, Nobody { reason, mend, is_sure }) in nobody {
        let one = subject.found_in(PEER_SELECTS_NOBODY, rule, subject.peer_at(rule, at), reason, mend);
        let one = Found { cause: (!is_sure).then(|| UNKNOWN.to_owned()), ..one };
        found.push(match peer {
            Peer::Pods(peer) => makers.beside(one, cache, peer, is_sure),
            Peer::Block(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => one,
        });
    }
    found.extend(named_ports(cache, subject, rule));
    found
}

/// Reports a rule that matches no connection. `None` if findings on its peers or ports already say so.
pub(super) fn nothing<'a>(subject: &Subject<'a>, rule: &Rule<'a>, told: &[Found<'_>]) -> Option<Found<'a>> {
    let is_told =
        told.iter().any(|found| found.policy == subject.name && found.rule == Some((rule.direction, rule.at)));
    (!is_told).then(|| {
        let text = "it names no connection: no peer and port of it are anybody's";
        subject.found_in(RULE_NAMES_NOTHING, rule, subject.rule_at(rule), text, "remove the rule")
    })
}

/// Why a peer matches nothing.
struct Nobody {
    reason: String,
    mend: String,
    /// Whether the remedy is about something in the state, so that the pods are probably not missing there.
    is_sure: bool,
}

impl Nobody {
    fn sure(reason: String, mend: impl Into<String>) -> Self {
        Self { reason, mend: mend.into(), is_sure: true }
    }

    /// Uses `hint` as the remedy. Without one, the remedy is to mend `what`.
    fn hinted(reason: String, hint: Option<String>, what: &str) -> Self {
        let is_sure = hint.is_some();
        Self { reason, mend: hint.unwrap_or_else(|| format!("mend the {what}, or remove the peer")), is_sure }
    }
}

/// Returns why a peer matches nothing. `None` if it matches something.
fn why_nobody(cache: &Cache, peer: &Peer) -> Option<Nobody> {
    match peer {
        Peer::Block(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
        Peer::Nodes(selector) => {
            let is_any = cache.nodes().values().any(|node| selector.matches(&node.labels));
            (!is_any && !cache.nodes().is_empty())
                .then(|| Nobody::hinted(format!("no node is {selector}"), None, "selector"))
        }
        Peer::Pods(peer) => (!cache.has_pod_of_peer(peer)).then(|| why_no_pod(cache, peer)),
    }
}

fn why_no_pod(cache: &Cache, peer: &PodPeer) -> Nobody {
    let pods = || cache.pods().map(|(_, pod)| pod).filter(|pod| !pod.finished);
    let in_scope = |pod: &&Arc<Pod>| cache.scope_covers(&peer.namespaces, &pod.name.namespace);
    let named = told(peer);
    if pods().filter(in_scope).any(|pod| pod.host_network && peer.pods.matches(&pod.labels)) {
        let text = format!("{named}: these are on the host network, and are known by their nodes' addresses alone");
        return Nobody::sure(text, "name the nodes' addresses by ipBlock");
    }
    match &peer.namespaces {
        NamespaceScope::Own(_) => {
            let elsewhere: BTreeSet<&str> = pods()
                .filter(|pod| pod.is_endpoint() && peer.pods.matches(&pod.labels))
                .map(|pod| &*pod.name.namespace)
                .collect();
            if peer.pods != Selector::everything() && !elsewhere.is_empty() {
                let names = some_of(&elsewhere.into_iter().collect::<Vec<_>>(), MAX_NAMED);
                let text = format!(
                    "no pod: {named}. A podSelector alone looks in the policy's own namespace; such pods are in {names}"
                );
                return Nobody::sure(text, "add a namespaceSelector to the same peer");
            }
        }
        NamespaceScope::Selected(selector) => {
            let covered =
                |namespace: &&Arc<Namespace>| scope_covers(&peer.namespaces, &namespace.name, Some(&namespace.labels));
            let known = !cache.namespaces().is_empty();
            if known && !cache.namespaces().values().any(|namespace| covered(&namespace)) {
                let hint = namespace_name(cache, selector)
                    .or_else(|| nearest_value(selector, || cache.namespaces().values().map(|of| &of.labels).collect()));
                return Nobody::hinted(format!("no namespace is {selector}"), hint, "namespaceSelector");
            }
        }
    }
    let hint = nearest_value(&peer.pods, || pods().filter(in_scope).map(|pod| &pod.labels).collect());
    Nobody::hinted(format!("no pod: {named}"), hint, "selector")
}

/// Suggests the label with a namespace's name. `None` unless the selector's label is unknown but its value is a namespace's name.
fn namespace_name(cache: &Cache, selector: &Selector) -> Option<String> {
    let meant = selector.requirements().iter().find_map(|Requirement { key, condition }| {
        let Condition::In(values) = condition else { return None };
        let is_known = cache.namespaces().values().any(|namespace| namespace.labels.contains_key(key));
        let value = values.iter().find(|value| cache.namespaces().contains_key(*value))?;
        (!is_known).then_some(value)
    });
    meant.map(|value| format!("write `{NAMESPACE_NAME_LABEL}: {value}`, the label that every namespace has"))
}

/// Suggests an existing label or label value similar to an unknown one. `None` if none is similar.
fn nearest_value<'a>(selector: &Selector, labels: impl Fn() -> Vec<&'a Labels>) -> Option<String> {
    selector.requirements().iter().find_map(|Requirement { key, condition }| {
        let Condition::In(values) = condition else { return None };
        let all = labels();
        let known: BTreeSet<&str> = all.iter().filter_map(|labels| labels.get(key)).map(|value| &**value).collect();
        if values.iter().any(|value| known.contains(&**value)) {
            return None;
        }
        if known.is_empty() {
            let keys: BTreeSet<&str> = all.iter().flat_map(|labels| labels.keys()).map(|key| &**key).collect();
            let near = nearest_word(key, keys)?;
            return Some(format!("did you mean the label `{near}`?"));
        }
        let near = values.iter().find_map(|value| nearest_word(value, known.iter().copied()))?;
        Some(format!("did you mean `{key}: {near}`?"))
    })
}

/// Returns fault and fix if a namespace and a pod selector are two peers, but only their combination matches pods. Else `None`.
fn separated(cache: &Cache, rule: &Rule<'_>, at: usize) -> Option<(String, String)> {
    let peers = rule.traffic.peers.as_ref()?;
    let Peer::Pods(PodPeer { namespaces: NamespaceScope::Own(_), pods, filter: None }) = &peers[at] else {
        return None;
    };
    let neighbours = [at.checked_sub(1), at.checked_add(1)].into_iter().flatten().filter_map(|at| peers.get(at));
    neighbours.into_iter().find_map(|neighbour| {
        let Peer::Pods(PodPeer { namespaces: namespaces @ NamespaceScope::Selected(selector), pods: all, filter: None }) = neighbour
        else {
            return None;
        };
        let both = PodPeer { namespaces: namespaces.clone(), pods: pods.clone(), filter: None };
        let is_meant = *all == Selector::everything() && cache.has_pod_of_peer(&both);
        is_meant.then(|| {
            let text = format!(
                "two peers name every pod of namespaces {selector}, and pods {pods} of the policy's own namespace, of which there is \
                 none. As one peer they name pods {pods} of namespaces {selector}, which there are"
            );
            (text, "remove the `- ` before the second selector".to_owned())
        })
    })
}

/// Reports port names that no destination pod has. Names without a similar port share a cause if they have the same remedy.
fn named_ports<'a>(cache: &Cache, subject: &Subject<'a>, rule: &Rule<'a>) -> Vec<Found<'a>> {
    let names: Vec<(usize, Transport, &Arc<str>)> = rule
        .ports()
        .filter_map(|(at, port)| match port {
            PolicyPort::Named { transport, name } => Some((at, *transport, name)),
            PolicyPort::All(_) | PolicyPort::Range { .. } | PolicyPort::Numbers { .. } => None,
        })
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let pods = destinations(cache, subject, rule);
    let ports = || pods.iter().flat_map(|pod| &pod.ports);
    let mut missing: Vec<&Arc<str>> = Vec::new();
    let mut found = Vec::new();
    for (at, transport, name) in names {
        let other = ports().find(|port| port.name == *name);
        let is_there = ports().any(|port| port.name == *name && port.transport == transport);
        // A named port of a cluster policy covers all protocols.
        if pods.is_empty() || is_there || (subject.is_cluster() && (other.is_some() || missing.contains(&name))) {
            continue;
        }
        missing.push(name);
        let declared: BTreeSet<&str> = ports().map(|port| &*port.name).collect();
        let near = nearest_word(name, declared.iter().copied());
        let is_sure = other.is_some() || near.is_some();
        let mend = match (other, near) {
            (Some(port), _) => format!("it is a port of {}: write `protocol: {}`", port.transport, port.transport),
            (None, Some(near)) => format!("did you mean `{near}`?"),
            (None, None) if declared.is_empty() => "declare the port in the pods, or write its number".to_owned(),
            (None, None) => {
                format!("the pods declare {}", some_of(&declared.into_iter().collect::<Vec<_>>(), MAX_NAMED))
            }
        };
        let whose = match rule.direction {
            Direction::Ingress => "no pod that the policy selects",
            Direction::Egress => "no pod that the rule names",
        };
        let text = format!("{whose} has a {transport} port of the name `{name}`: it allows nothing");
        // Names that resemble no port have one cause: the pods do not declare their ports, or others.
        let cause = (!is_sure).then(|| format!("{whose}: {mend}"));
        let one = subject.found_in(NAMED_PORT_MISSING, rule, subject.port_at(rule, at), text, mend);
        found.push(Found { cause, ..one });
    }
    found
}

pub(super) fn destinations<'a>(cache: &'a Cache, subject: &Subject<'a>, rule: &Rule<'_>) -> Vec<&'a Arc<Pod>> {
    if rule.direction == Direction::Ingress {
        return subject.pods.clone();
    }
    let endpoints = || cache.pods().map(|(_, pod)| pod).filter(|pod| pod.is_endpoint());
    if rule.traffic.peers.is_none() {
        return endpoints().collect();
    }
    let by_label = rule.pod_peers().flat_map(|(_, peer)| cache.pods_of_peer(peer));
    let mut pods: Vec<&Arc<Pod>> = by_label.filter_map(|key| cache.pod(key)).collect();
    let blocks: Vec<_> = rule.blocks().map(|(_, block)| block).collect();
    if !blocks.is_empty() {
        let is_in = |pod: &&Arc<Pod>| {
            pod.addresses.iter().any(|address| {
                let holds = |block: &IpBlock| {
                    block.cidr.contains(address) && !block.except.iter().any(|except| except.contains(address))
                };
                blocks.iter().any(|block| holds(block))
            })
        };
        pods.extend(endpoints().filter(is_in));
    }
    pods
}
