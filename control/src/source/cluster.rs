//! Reads the fields of pods, namespaces and nodes that policy needs.
//!
//! Unknown fields are ignored: they vary with the Kubernetes version, and none can widen a policy. Most of these objects come from an API
//! server, which has validated the rest.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::address::{AddressFault, parse_address};
use super::enforcement;
use super::error::{Findings, quoted};
use super::metadata::{object_name, plain_name};
use super::outcome::Model;
use super::owner;
use super::path::FieldPath;
use super::policy::{block_of, port_number, transport};
use super::raw::{self, List, Mapping, RawContainer, RawContainerPort, RawNodeStatus, RawPodStatus};
use crate::object::{
    ContainerPort, DENIED_ANNOTATION, Denied, HostPort, ISOLATION_ANNOTATION, IngressIsolation, Labels, Lifetime,
    NAMESPACE_NAME_LABEL, Namespace, Node, Object, Pod, STATIC_POD_ANNOTATION, Timestamp, Transport, Uid,
};

/// The annotation in which Multus and other meta plugins list a pod's interfaces. Source: Network Plumbing Working Group, "Kubernetes
/// Network Custom Resource Definition De-facto Standard".
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// The taint of a node that the cluster autoscaler is about to delete. kube-proxy's health check fails on such nodes.
/// Source: Kubernetes "Cluster Autoscaler".
const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

pub(super) const NODE_KIND: &str = "Node";
pub(super) const POD_KIND: &str = "Pod";

/// Returns the pod, or `None` if any part of it is faulty.
pub(super) fn whole_pod(value: &Value) -> Option<Pod> {
    let mut findings = Findings::default();
    let pod = checked_pod(raw::typed(value, &FieldPath::default()).ok()?, &mut findings);
    pod.filter(|_| findings.problems.is_empty())
}

/// Returns the pod. If `findings` contains a problem, parts are missing and the pod must not be used. `None` without a valid name.
pub(super) fn checked_pod(raw: raw::RawPod, findings: &mut Findings) -> Option<Pod> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let spec = raw.spec.map(|Mapping(spec)| spec).unwrap_or_default();
    let status = raw.status.map(|Mapping(status)| status).unwrap_or_default();
    let mac = metadata.annotations.as_ref().and_then(|all| mac_of(all.get(NETWORK_STATUS)?.as_str()?));
    let known_as = metadata.annotations.as_ref().and_then(|all| all.get(STATIC_POD_ANNOTATION));
    let uid = known_as.or(metadata.uid.as_ref()).and_then(Value::as_str).and_then(Uid::of);
    let name = object_name(metadata.name, metadata.namespace, &mut findings.problems);
    let mut ports = Ports::default();
    ports.add(&spec.containers, "containers", |_| true, findings);
    // Sidecars (init containers that always restart) serve their ports for the life of the pod.
    let runs_on = |container: &RawContainer| container.restart_policy.as_deref() == Some("Always");
    ports.add(&spec.init_containers, "initContainers", runs_on, findings);
    let host_network = spec.host_network.unwrap_or(false);
    if host_network {
        ports.of_node = Vec::new();
    }
    let addresses = pod_addresses(&status, findings);
    let labels = labels_of(metadata.labels);
    Some(Pod {
        name: name?,
        owner: owner::workload(metadata.owner_references.as_ref(), &labels),
        labels,
        node: spec.node_name.filter(|node| !node.is_empty()).map(Arc::from),
        addresses,
        mac,
        service_account: spec.service_account_name.filter(|name| !matches!(&**name, "" | "default")).map(Arc::from),
        host_network,
        finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        uid,
        lifetime: Lifetime {
            terminating: metadata.deletion_timestamp.is_some(),
            running: matches!(status.phase.as_deref(), None | Some("Running")),
            started: timestamp(status.start_time.as_ref()),
            created: timestamp(metadata.creation_timestamp.as_ref()),
            attached: None,
        },
        ports: ports.named,
        host_ports: ports.of_node.into(),
        planned: false,
    })
}

/// Returns the namespace. `None` without a valid name or isolation. If `findings` contains a problem, the namespace must not be used.
pub(super) fn checked_namespace(
    raw: raw::RawNamespace,
    value: &Value,
    model: Model,
    findings: &mut Findings,
) -> Option<Object> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let name: Arc<str> = plain_name(metadata.name, &mut findings.problems)?.into();
    let mut labels = labels_of(metadata.labels);
    let given = labels.insert(NAMESPACE_NAME_LABEL.into(), Arc::clone(&name));
    if let Some(given) = given.filter(|given| *given != name) {
        let path = FieldPath::of("metadata").key("labels").key(NAMESPACE_NAME_LABEL);
        let text = format!("label is {}, but the namespace is {}", quoted(&given), quoted(&name));
        findings.problem(&path, text, "remove the label: every namespace has it, with its name as value");
    }
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ISOLATION_ANNOTATION));
    let isolation =
        annotation.map_or(Some(IngressIsolation::ClusterDefault), |text| isolation_by(model, text, findings))?;
    let denied = metadata.annotations.as_ref().and_then(|all| all.get(DENIED_ANNOTATION));
    let denied = denied.map(|text| denied_of(text, findings));
    let status = raw.status.map(|Mapping(status)| status).unwrap_or_default();
    let terminating = metadata.deletion_timestamp.is_some() || status.phase.as_deref() == Some("Terminating");
    let enforcement = enforcement::of(value, findings);
    Some(Object::Namespace(Namespace { name, labels, terminating, isolation, denied, enforcement }))
}

/// Returns the isolation that the `extensions/v1beta1` annotation sets. In [`Model::V1`] it has no effect, so an annotation that would
/// isolate adds a warning: the author may believe that the pods are isolated.
fn isolation_by(model: Model, annotation: &Value, findings: &mut Findings) -> Option<IngressIsolation> {
    if model == Model::V1beta1 {
        return isolation_of(annotation, findings);
    }
    if isolation_of(annotation, &mut Findings::default()) != Some(IngressIsolation::ClusterDefault) {
        let path = FieldPath::of("metadata").key("annotations").key(ISOLATION_ANNOTATION);
        let help = "isolate its pods by a NetworkPolicy with `podSelector: {}` and no rules, and remove the annotation; \
                    or use --policy-semantics v1beta1, the semantics of 2016";
        findings.warning(&path, "the annotation has no effect: Kubernetes ignores it since 1.7", help);
    }
    Some(IngressIsolation::ClusterDefault)
}

/// Parses the `extensions/v1beta1` annotation, `{"ingress": {"isolation": "DefaultDeny"}}`. `None` and a problem if it is invalid.
fn isolation_of(annotation: &Value, findings: &mut Findings) -> Option<IngressIsolation> {
    let path = FieldPath::of("metadata").key("annotations").key(ISOLATION_ANNOTATION);
    let parsed = annotation.as_str().and_then(|text| serde_json::from_str::<raw::RawIsolation>(text).ok());
    let isolation = parsed.map(|isolation| isolation.ingress.and_then(|ingress| ingress.isolation));
    match isolation.as_ref().map(Option::as_deref) {
        Some(None) => Some(IngressIsolation::ClusterDefault),
        Some(Some("DefaultDeny")) => Some(IngressIsolation::DefaultDeny),
        _ => {
            let help = r#"write {"ingress": {"isolation": "DefaultDeny"}}, or remove the annotation"#;
            findings.problem(&path, "invalid annotation", help);
            None
        }
    }
}

/// Parses [`DENIED_ANNOTATION`]. An invalid value is only a warning, since no policy depends on it, and means [`Denied::Drop`]: senders of
/// denied packets get no answer.
fn denied_of(annotation: &Value, findings: &mut Findings) -> Denied {
    annotation.as_str().and_then(Denied::from_name).unwrap_or_else(|| {
        let path = FieldPath::of("metadata").key("annotations").key(DENIED_ANNOTATION);
        findings.warning(&path, "invalid annotation, treated as drop", "write refuse or drop");
        Denied::Drop
    })
}

/// Returns the node, or `None` if any part of it is faulty.
pub(super) fn whole_node(value: &Value) -> Option<Node> {
    let mut findings = Findings::default();
    let node = checked_node(raw::typed(value, &FieldPath::default()).ok()?, &mut findings);
    node.filter(|_| findings.problems.is_empty())
}

/// Returns the node. If `findings` contains a problem, parts are missing and the node must not be used. `None` without a valid name.
pub(super) fn checked_node(raw: raw::RawNode, findings: &mut Findings) -> Option<Node> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let spec = raw.spec.map(|Mapping(spec)| spec).unwrap_or_default();
    let status = raw.status.map(|Mapping(status)| status).unwrap_or_default();
    let name = plain_name(metadata.name, &mut findings.problems);
    let addresses = node_addresses(&status, findings);
    let base = FieldPath::of("spec");
    let many = spec.pod_cidrs.iter().flatten().enumerate().map(|(at, text)| (base.key("podCIDRs").index(at), text));
    let mut blocks: Vec<_> = many.collect();
    if blocks.is_empty() {
        blocks.extend(spec.pod_cidr.iter().filter(|text| !text.is_empty()).map(|text| (base.key("podCIDR"), text)));
    }
    let pod_cidrs = blocks.into_iter().filter_map(|(path, text)| block_of(text, &path, findings)).collect();
    let terminating = metadata.deletion_timestamp.is_some()
        || spec.taints.iter().flatten().any(|Mapping(taint)| taint.key.as_deref() == Some(TO_BE_DELETED_TAINT));
    Some(Node { name: name?.into(), labels: labels_of(metadata.labels), addresses, pod_cidrs, terminating })
}

/// Returns the addresses of a node: internal, external, then others. The first of each family is the primary address.
fn node_addresses(status: &RawNodeStatus, findings: &mut Findings) -> Vec<IpAddr> {
    let (mut internal, mut external, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for (at, Mapping(entry)) in status.addresses.iter().flatten().enumerate() {
        let path = || FieldPath::of("status").key("addresses").index(at).key("address");
        match entry.kind.as_str() {
            "InternalIP" => internal.extend(address_of(&entry.address, path, findings)),
            "ExternalIP" => external.extend(address_of(&entry.address, path, findings)),
            // The `Hostname` of a node without a host name is an address.
            _ => rest.extend(parse_address(&entry.address)),
        }
    }
    let mut addresses: Vec<IpAddr> = internal.into_iter().chain(external).collect();
    for address in rest {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Parses a timestamp. `None` if it is missing or invalid: it only decides which of two pods owns a shared address.
pub(super) fn timestamp(value: Option<&Value>) -> Option<Timestamp> {
    Timestamp::parse(value?.as_str()?)
}

pub(super) fn labels_of(labels: Option<BTreeMap<String, String>>) -> Labels {
    labels.into_iter().flatten().map(|(key, value)| (key.into(), value.into())).collect()
}

/// Parses an address. `None` and a problem at `path` if it is invalid.
pub(super) fn address_of(text: &str, path: impl FnOnce() -> FieldPath, findings: &mut Findings) -> Option<IpAddr> {
    match parse_address(text) {
        Ok(address) => Some(address),
        Err(AddressFault { text, help }) => {
            findings.problem(&path(), text, help);
            None
        }
    }
}

/// Returns the addresses of a pod, at most one per family.
fn pod_addresses(status: &RawPodStatus, findings: &mut Findings) -> Vec<IpAddr> {
    let many = status.pod_ips.iter().flatten().enumerate();
    let mut texts: Vec<(Option<usize>, &String)> = many.map(|(at, Mapping(entry))| (Some(at), &entry.ip)).collect();
    if texts.is_empty() {
        texts.extend(status.pod_ip.iter().filter(|text| !text.is_empty()).map(|text| (None, text)));
    }
    let path = |at: Option<usize>| match at {
        Some(at) => FieldPath::of("status").key("podIPs").index(at).key("ip"),
        None => FieldPath::of("status").key("podIP"),
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for (at, text) in texts {
        let Some(address) = address_of(text, || path(at), findings) else { continue };
        match addresses.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
            None => addresses.push(address),
            Some(other) => {
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let text = format!("a second {family} address {address}, after {other}");
                findings.problem(&path(at), text, "a pod has at most one address of each family: remove one");
            }
        }
    }
    addresses
}

/// The container ports that have a name or a host port.
#[derive(Default)]
struct Ports {
    named: Vec<ContainerPort>,
    /// Ports that are mapped to a port of the node.
    of_node: Vec<HostPort>,
}

impl Ports {
    /// Adds the ports of `containers` that `serves` accepts. Checks all ports.
    fn add(
        &mut self,
        containers: &List<RawContainer>,
        key: &str,
        serves: impl Fn(&RawContainer) -> bool,
        findings: &mut Findings,
    ) {
        for (at, Mapping(container)) in containers.iter().flatten().enumerate() {
            for (port_at, Mapping(raw)) in container.ports.iter().flatten().enumerate() {
                if serves(container) {
                    findings.declared_ports.extend(declared(raw));
                }
                let name = raw.name.as_deref().filter(|name| !name.is_empty());
                // Programs write 0 for no host port.
                let number = raw.host_port.filter(|&number| number != 0);
                if name.is_none() && number.is_none() {
                    continue;
                }
                let path = || FieldPath::of("spec").key(key).index(at).key("ports").index(port_at);
                let transport = transport(raw.protocol.as_deref(), || path().key("protocol"), findings);
                let port = port_number(raw.container_port, || path().key("containerPort"), findings);
                let number = number.map(|number| port_number(number, || path().key("hostPort"), findings));
                let address = raw.host_ip.as_deref().filter(|text| number.is_some() && !text.is_empty());
                let address = address.map(|text| address_of(text, || path().key("hostIP"), findings));
                let (Some(transport), Some(port), true) = (transport, port, serves(container)) else { continue };
                self.named.extend(name.map(|name| ContainerPort { name: name.into(), transport, port }));
                // An invalid address means no host port. `None` would mean all addresses of the node.
                if let (Some(Some(number)), None | Some(Some(_))) = (number, address) {
                    self.of_node.push(HostPort { address: address.flatten(), transport, number, port });
                }
            }
        }
    }
}

/// Returns a container port. `None` if it is invalid, which is a problem only for a port with a name or a host port.
fn declared(raw: &RawContainerPort) -> Option<(u16, Transport)> {
    let port = u16::try_from(raw.container_port).ok().filter(|&port| port > 0)?;
    Some((port, Transport::from_name(raw.protocol.as_deref().unwrap_or("TCP"))?))
}

/// Returns the MAC address of a pod's default interface. `None` if the annotation does not contain a valid one. That is no error: the
/// annotation is a third party's free text, and policy does not depend on it.
fn mac_of(annotation: &str) -> Option<[u8; 6]> {
    #[derive(Deserialize)]
    struct Status {
        #[serde(default)]
        default: bool,
        mac: Option<String>,
    }
    let all: Vec<Status> = serde_json::from_str(annotation).ok()?;
    let text = all.into_iter().find(|status| status.default)?.mac?;
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}
