//! Builds stand-ins for faulty objects in lenient mode.
//!
//! **Invariant.** A stand-in allows no more than any possible meaning of the faulty object. If no such stand-in exists, the object is left
//! out ([`Outcome::Nothing`]). A fault never affects other objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::address::parse_address;
use super::cluster::{whole_node, whole_pod};
use super::error::Findings;
use super::metadata;
use super::names;
use super::outcome::{Model, Outcome};
use super::path::FieldPath;
use super::policy::{port_number, transport};
use super::raw::{self, RawContainer, RawContainerPort};
use crate::object::{
    Denied, Enforcement, ISOLATION_ANNOTATION, IngressIsolation, Labels, Lifetime, NAMESPACE_NAME_LABEL, Namespace,
    NamespaceScope, Object, Peer, Pod, Policy,
};
use crate::selector::{Condition, Requirement, Selector};

/// Returns the stand-in for a faulty namespace. It has only the label with its name, and is isolated if the object may isolate it in
/// [`Model::V1beta1`]. [`Outcome::Nothing`] if the name is not a valid namespace name.
pub(super) fn namespace(value: &Value, model: Model) -> Outcome {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
    let name = value.pointer("/metadata/name").and_then(metadata::scalar);
    let Some(name) = name.filter(|name| names::is_dns_label(name)) else { return Outcome::Nothing };
    let isolates = match value.pointer("/metadata/annotations") {
        _ if model == Model::V1 => false,
        None | Some(Value::Null) => false,
        Some(Value::Object(annotations)) => annotations.contains_key(ISOLATION_ANNOTATION),
        Some(_) => true,
    };
    let is_deleted = value.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
    let terminating = is_deleted || text("/status/phase") == Some("Terminating");
    Outcome::Closed(Object::Namespace(named(name, terminating, isolates)))
}

fn named(name: Arc<str>, terminating: bool, isolates: bool) -> Namespace {
    let labels = Labels::from([(NAMESPACE_NAME_LABEL.into(), Arc::clone(&name))]);
    let isolation = if isolates { IngressIsolation::DefaultDeny } else { IngressIsolation::ClusterDefault };
    // Both annotations are unknown: send no answer to denied senders, and enforce everything.
    let (denied, enforcement) = (Some(Denied::Drop), Some(Enforcement::Enforce));
    Namespace { name, labels, terminating, isolation, denied, enforcement }
}

/// Returns a stand-in for two different namespaces with one name.
pub(super) fn either_namespace(one: &Namespace, other: &Namespace) -> Namespace {
    let isolates = [one, other].into_iter().any(|namespace| namespace.isolation == IngressIsolation::DefaultDeny);
    let stands_for_both = named(Arc::clone(&one.name), one.terminating || other.terminating, isolates);
    let denied = if one.denied == other.denied { one.denied } else { stands_for_both.denied };
    let is_same = one.enforcement == other.enforcement;
    let enforcement = if is_same { one.enforcement } else { stands_for_both.enforcement };
    Namespace { denied, enforcement, ..stands_for_both }
}

/// Excludes `unknown`, the namespaces with unknown labels, from the label selectors of the policy's peers. Otherwise a selector that
/// requires the absence of a label would match them. [`Selector::matches_unknown_namespace`] does the same for namespaces without an
/// object, but these need an object for their isolation.
pub fn exclude_namespaces(policy: &mut Policy, unknown: &BTreeSet<Arc<str>>) {
    if unknown.is_empty() {
        return;
    }
    let condition = Condition::NotIn(unknown.iter().cloned().collect());
    let others = Requirement { key: NAMESPACE_NAME_LABEL.into(), condition };
    let rules = policy.ingress.iter_mut().chain(&mut policy.egress).flatten();
    for peer in rules.filter_map(|rule| rule.peers.as_mut()).flatten() {
        let Peer::Pods(peer) = peer else { continue };
        let NamespaceScope::Selected(selector) = &mut peer.namespaces else { continue };
        if selector.requirements().iter().any(|requirement| &*requirement.key != NAMESPACE_NAME_LABEL) {
            *selector = Selector::new(selector.requirements().iter().cloned().chain([others.clone()]));
        }
    }
}

/// Returns the stand-in for a faulty pod: the pod without its invalid ports, which only serve named ports in rules, and without unreadable
/// annotations, which policy does not need. With any other fault the pod is left out, because the policies that select it are unknown. On
/// its own node, its interface then belongs to no pod and passes no traffic, and no rule allows its traffic by labels.
pub(super) fn pod(value: &Value) -> Outcome {
    let mut rest = value.clone();
    for key in ["containers", "initContainers"] {
        if let Some(containers) = rest.pointer_mut("/spec").and_then(|spec| spec.get_mut(key)) {
            keep_valid_ports(containers);
        }
    }
    if let Some(metadata) = rest.get_mut("metadata").and_then(Value::as_object_mut)
        && metadata.get("annotations").is_some_and(|annotations| !annotations.is_object())
    {
        metadata.remove("annotations");
    }
    match whole_pod(&rest) {
        Some(pod) => Outcome::Closed(pod.into()),
        None => Outcome::Nothing,
    }
}

fn keep_valid_ports(containers: &mut Value) {
    let Value::Array(list) = containers else {
        *containers = Value::Null;
        return;
    };
    for container in list.iter_mut() {
        match container.get_mut("ports") {
            Some(Value::Array(ports)) => ports.retain(is_valid_port),
            Some(ports) => *ports = Value::Null,
            None => {}
        }
    }
    list.retain(|container| raw::typed::<RawContainer>(container, &FieldPath::default()).is_ok());
}

fn is_valid_port(port: &Value) -> bool {
    let here = FieldPath::default();
    let Ok(port) = raw::typed::<RawContainerPort>(port, &here) else { return false };
    let mut findings = Findings::default();
    transport(port.protocol.as_deref(), || here.clone(), &mut findings).is_some()
        && port_number(port.container_port, || here.clone(), &mut findings).is_some()
        && port
            .host_port
            .is_none_or(|number| number == 0 || port_number(number, || here.clone(), &mut findings).is_some())
        && port.host_ip.is_none_or(|text| text.is_empty() || parse_address(&text).is_ok())
}

/// Returns the stand-in for a faulty node: its name and its readable addresses and blocks. Routes to the node's pods and the treatment of
/// the node's own traffic depend on them.
pub(super) fn node(value: &Value) -> Outcome {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
    let Some(name) = text("/metadata/name").filter(|name| names::is_dns_subdomain(name)) else {
        return Outcome::Nothing;
    };
    let mut rest = serde_json::json!({ "metadata": { "name": name } });
    for (list, fields) in [("/status/addresses", ["status", "addresses"]), ("/spec/podCIDRs", ["spec", "podCIDRs"])] {
        for element in value.pointer(list).and_then(Value::as_array).into_iter().flatten() {
            let one = serde_json::json!({ "metadata": { "name": name }, fields[0]: { fields[1]: [element] } });
            if whole_node(&one).is_some() {
                let part = rest.as_object_mut().and_then(|rest| {
                    let part = rest.entry(fields[0]).or_insert_with(|| serde_json::json!({ fields[1]: [] }));
                    part.get_mut(fields[1])?.as_array_mut()
                });
                part.into_iter().for_each(|part| part.push(element.clone()));
            }
        }
    }
    whole_node(&rest).map_or(Outcome::Nothing, |node| Outcome::Closed(Object::Node(node)))
}

/// Returns the stand-in for two pods with one name that differ only in ports and in properties that policy does not need. It has the ports
/// common to both. `None` if the pods differ in more.
pub(super) fn either_pod(one: &Pod, other: &Pod) -> Option<Pod> {
    let ports = one.ports.iter().filter(|port| other.ports.contains(port)).cloned().collect();
    let host_ports: Vec<_> = one.host_ports.iter().filter(|port| other.host_ports.contains(port)).copied().collect();
    let mac = one.mac.filter(|_| one.mac == other.mac);
    let lifetime = if one.lifetime == other.lifetime { one.lifetime } else { Lifetime::default() };
    let uid = one.uid.filter(|_| one.uid == other.uid);
    let owner = one.owner.clone().filter(|_| one.owner == other.owner);
    let common = |pod: &Pod| {
        let (ports, host_ports) = (Vec::clone(&ports), host_ports.clone().into());
        Pod { ports, host_ports, mac, uid, lifetime, owner: owner.clone(), ..pod.clone() }
    };
    let (one, other) = (common(one), common(other));
    (one == other).then_some(one)
}
