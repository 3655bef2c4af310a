//! Reads Services and endpoint slices.
//!
//! Unknown fields are ignored, as in other cluster objects. A faulty Service is left out: translating a wrong reading of it would misdirect
//! traffic. A faulty slice keeps its valid endpoints.

mod raw;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;

use super::cluster::{address_of, labels_of, timestamp};
use super::error::{Findings, quoted};
use super::kinds::read;
use super::metadata::object_name;
use super::names;
use super::outcome::{Outcome, Read};
use super::path::FieldPath;
use super::policy::{block_of, port_number, transport};
use super::raw::{List, Mapping, typed};
use crate::object::{
    ClusterService, Endpoint, EndpointPort, EndpointSlice, Hints, Object, ServicePort, TrafficPolicy, Transport,
};
use raw::{RawEndpoint, RawName, RawService, RawServiceSpec, RawSlice};

pub(super) const SERVICE_KIND: &str = "Service";
pub(super) const SLICE_KIND: &str = "EndpointSlice";
/// The supported apiVersions of endpoint slices: that of Kubernetes 1.21 and later, and that of Kubernetes 1.17 to 1.24.
pub(super) const SLICE_API: &str = "discovery.k8s.io/v1";
pub(super) const OLD_SLICE_API: &str = "discovery.k8s.io/v1beta1";

/// The label with which a Service names the proxy that handles it.
/// Source: Kubernetes "Well-Known Labels, Annotations and Taints", also for the next two.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// The label of an endpoint slice that contains the name of its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The label of endpoint slices of headless Services.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// Default and maximum duration of session affinity, in seconds. Source: Kubernetes API, `ClientIPConfig`.
const DEFAULT_AFFINITY: u32 = 10_800;
const MAX_AFFINITY: i64 = 86_400;

pub(super) fn service(value: &Value) -> Read {
    let build =
        |raw, findings: &mut Findings| checked_service(raw, findings).map(|service| Object::Service(Arc::new(service)));
    read(SERVICE_KIND, true, value, build, |_| Outcome::Nothing)
}

pub(super) fn slice(value: &Value) -> Read {
    let build =
        |raw, findings: &mut Findings| checked_slice(raw, findings).map(|slice| Object::EndpointSlice(Arc::new(slice)));
    read(SLICE_KIND, true, value, build, slice_without_faults)
}

/// Returns the Service. If `findings` contains a problem, parts are missing and the Service must not be used. `None` without a valid name.
fn checked_service(raw: RawService, findings: &mut Findings) -> Option<ClusterService> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let spec = raw.spec.map(|Mapping(spec)| spec).unwrap_or_default();
    let status = raw.status.map(|Mapping(status)| status).unwrap_or_default();
    let created = timestamp(metadata.creation_timestamp.as_ref());
    let proxy = metadata.labels.as_ref().and_then(|labels| labels.get(PROXY_NAME_LABEL));
    let proxy = proxy.map(|name| name.as_str().into());
    let name = object_name(metadata.name, metadata.namespace, &mut findings.problems);
    let base = FieldPath::of("spec");
    let kinds = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    let kind = one_of(spec.r#type.as_deref(), kinds, &base.key("type"), findings);
    let external_policy = policy(spec.external_traffic_policy.as_deref(), &base.key("externalTrafficPolicy"), findings);
    let health_check_port = spec.health_check_node_port.filter(|&port| port != 0);
    let health_check_port =
        health_check_port.and_then(|port| port_number(port, || base.key("healthCheckNodePort"), findings));
    let tells_health = kind == "LoadBalancer" && external_policy == TrafficPolicy::Local;
    let cluster_ips = if kind == "ExternalName" { Vec::new() } else { cluster_ips(&spec, &base, findings) };
    let balancer = status.load_balancer.map(|Mapping(balancer)| balancer).unwrap_or_default();
    Some(ClusterService {
        name: name?,
        created,
        proxy,
        labels: labels_of(metadata.labels),
        selector: labels_of(spec.selector.clone()),
        cluster_ips,
        external_ips: addresses(spec.external_ips.iter().flatten(), &base.key("externalIPs"), findings),
        balancer_ips: balancer_ips(&balancer.ingress, findings),
        ports: service_ports(&spec, &base.key("ports"), findings),
        internal_policy: policy(spec.internal_traffic_policy.as_deref(), &base.key("internalTrafficPolicy"), findings),
        external_policy,
        affinity: affinity(&spec, &base, findings),
        source_ranges: source_ranges(&spec, &base.key("loadBalancerSourceRanges"), findings),
        health_check_port: health_check_port.filter(|_| tells_health),
    })
}

/// Returns the entry of `known` equal to `text`. The first entry if `text` is missing, empty, or unknown, which adds a problem.
fn one_of<const N: usize>(
    text: Option<&str>,
    known: [&'static str; N],
    path: &FieldPath,
    findings: &mut Findings,
) -> &'static str {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return known[0] };
    known.into_iter().find(|word| *word == text).unwrap_or_else(|| {
        let help = match names::nearest(text, known) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => format!("write one of {}", known.join(", ")),
        };
        findings.problem(path, format!("unknown value {}", quoted(text)), help);
        known[0]
    })
}

fn policy(text: Option<&str>, path: &FieldPath, findings: &mut Findings) -> TrafficPolicy {
    match one_of(text, ["Cluster", "Local"], path, findings) {
        "Local" => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    }
}

fn addresses<'a>(texts: impl Iterator<Item = &'a String>, path: &FieldPath, findings: &mut Findings) -> Vec<IpAddr> {
    let all = texts.enumerate().filter_map(|(at, text)| address_of(text, || path.index(at), findings));
    let mut kept = Vec::new();
    for address in all {
        if !kept.contains(&address) {
            kept.push(address);
        }
    }
    kept
}

fn cluster_ips(spec: &RawServiceSpec, base: &FieldPath, findings: &mut Findings) -> Vec<IpAddr> {
    let many = spec.cluster_ips.as_deref().filter(|all| !all.is_empty());
    let (texts, path) = match (many, &spec.cluster_ip) {
        (Some(all), _) => (all, base.key("clusterIPs")),
        (None, Some(one)) => (std::slice::from_ref(one), base.key("clusterIP")),
        (None, None) => return Vec::new(),
    };
    // Kubernetes writes `None` for a headless Service, and an empty text for a Service without an address yet.
    if texts.iter().any(|text| text.is_empty() || text == "None") {
        return Vec::new();
    }
    let all: Vec<_> = match many {
        Some(_) => addresses(texts.iter(), &path, findings),
        None => texts.iter().filter_map(|text| address_of(text, || path.clone(), findings)).collect(),
    };
    if all.iter().filter(|address| address.is_ipv4()).count() > 1
        || all.iter().filter(|address| address.is_ipv6()).count() > 1
    {
        findings.problem(&path, "two addresses of one family", "a Service has at most one of each family: remove one");
    }
    all
}

fn balancer_ips(ingress: &List<raw::RawIngressPoint>, findings: &mut Findings) -> Vec<IpAddr> {
    let base = FieldPath::of("status").key("loadBalancer").key("ingress");
    let mut kept = Vec::new();
    for (at, Mapping(point)) in ingress.iter().flatten().enumerate() {
        let path = base.index(at);
        let mode = one_of(point.ip_mode.as_deref(), ["VIP", "Proxy"], &path.key("ipMode"), findings);
        // The node does not handle a load balancer that has only a host name.
        let Some(text) = point.ip.as_ref().filter(|text| !text.is_empty()) else { continue };
        let address = address_of(text, || path.key("ip"), findings);
        kept.extend(address.filter(|address| mode == "VIP" && !kept.contains(address)));
    }
    kept
}

fn service_ports(spec: &RawServiceSpec, base: &FieldPath, findings: &mut Findings) -> Vec<ServicePort> {
    let mut ports: Vec<ServicePort> = Vec::new();
    for (at, Mapping(raw)) in spec.ports.iter().flatten().enumerate() {
        let path = base.index(at);
        let name: Arc<str> = raw.name.as_deref().unwrap_or_default().into();
        let transport = transport(raw.protocol.as_deref(), || path.key("protocol"), findings);
        let port = port_number(raw.port, || path.key("port"), findings);
        let node_port = raw.node_port.filter(|&port| port != 0);
        let node_port = node_port.and_then(|port| port_number(port, || path.key("nodePort"), findings));
        let (Some(transport), Some(port)) = (transport, port) else { continue };
        if ports.iter().any(|other| other.name == name) {
            let text = format!("a second port named {}", quoted(&name));
            findings.problem(&path, text, "give each port a unique name: endpoints refer to it");
        } else if ports.iter().any(|other| (other.transport, other.port) == (transport, port)) {
            findings.problem(&path, format!("a second port {port}/{transport}"), "remove one of the two");
        } else {
            ports.push(ServicePort { name, transport, port, node_port });
        }
    }
    ports
}

fn affinity(spec: &RawServiceSpec, base: &FieldPath, findings: &mut Findings) -> Option<u32> {
    let kind = one_of(spec.session_affinity.as_deref(), ["None", "ClientIP"], &base.key("sessionAffinity"), findings);
    let config = spec.session_affinity_config.as_ref().and_then(|Mapping(config)| config.client_ip.as_ref());
    let Some(seconds) = config.and_then(|Mapping(config)| config.timeout_seconds) else {
        return (kind == "ClientIP").then_some(DEFAULT_AFFINITY);
    };
    let checked = u32::try_from(seconds).ok().filter(|_| (1..=MAX_AFFINITY).contains(&seconds));
    if checked.is_none() {
        let path = base.key("sessionAffinityConfig").key("clientIP").key("timeoutSeconds");
        let help = format!("write a number of seconds from 1 to {MAX_AFFINITY}");
        findings.problem(&path, format!("invalid session affinity timeout {seconds}"), help);
    }
    checked.filter(|_| kind == "ClientIP")
}

/// Returns the load balancer's source ranges, without surrounding blanks and empty texts. `None` if no range is given.
fn source_ranges(spec: &RawServiceSpec, path: &FieldPath, findings: &mut Findings) -> Option<Vec<IpNet>> {
    let texts = spec.load_balancer_source_ranges.iter().flatten().map(|text| text.trim()).enumerate();
    let mut texts = texts.filter(|(_, text)| !text.is_empty()).peekable();
    texts.peek()?;
    Some(texts.filter_map(|(at, text)| block_of(text, &path.index(at), findings)).collect())
}

/// Returns the slice. If `findings` contains a problem, parts are missing and the slice must not be used. `None` without a valid name.
fn checked_slice(raw: RawSlice, findings: &mut Findings) -> Option<EndpointSlice> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let service = label(SERVICE_NAME_LABEL).filter(|name| !name.is_empty()).map(|name| name.as_str().into());
    let headless = label(HEADLESS_LABEL).is_some();
    let name = object_name(metadata.name, metadata.namespace, &mut findings.problems);
    let known = ["IPv4", "IPv6", "FQDN"];
    let path = FieldPath::of("addressType");
    if raw.address_type.is_none() {
        findings.problem(&FieldPath::default(), "missing field `addressType`", "add `addressType: IPv4` or IPv6");
    }
    let family = one_of(raw.address_type.as_deref(), known, &path, findings);
    let endpoints = raw.endpoints.iter().flatten().enumerate();
    let endpoints = endpoints.filter(|_| family != "FQDN").filter_map(|(at, Mapping(endpoint))| {
        checked_endpoint(endpoint, family == "IPv4", &FieldPath::of("endpoints").index(at), findings)
    });
    Some(EndpointSlice {
        endpoints: endpoints.collect(),
        name: name?,
        service,
        headless,
        ports: slice_ports(&raw.ports, findings),
    })
}

fn slice_ports(raw: &List<raw::RawEndpointPort>, findings: &mut Findings) -> Vec<EndpointPort> {
    let mut ports = Vec::new();
    for (at, Mapping(raw)) in raw.iter().flatten().enumerate() {
        let path = FieldPath::of("ports").index(at);
        let transport: Option<Transport> = transport(raw.protocol.as_deref(), || path.key("protocol"), findings);
        // A port without a name or number belongs to no Service port. kube-proxy ignores it too.
        let (Some(name), Some(number)) = (&raw.name, raw.port.filter(|&number| number != 0)) else { continue };
        let port = port_number(number, || path.key("port"), findings);
        if let (Some(transport), Some(port)) = (transport, port) {
            ports.push(EndpointPort { name: name.as_str().into(), transport, port });
        }
    }
    ports
}

fn checked_endpoint(raw: &RawEndpoint, v4: bool, path: &FieldPath, findings: &mut Findings) -> Option<Endpoint> {
    let path = path.key("addresses");
    let Some(text) = raw.addresses.as_ref().and_then(|all| all.first()) else {
        findings.problem(&path, "an endpoint without an address", "add its address, or remove the endpoint");
        return None;
    };
    let address = address_of(text, || path.index(0), findings)?;
    if address.is_ipv4() != v4 {
        let text = format!("{address} does not match the slice's addressType");
        findings.problem(&path.index(0), text, "put endpoints of another family into a separate slice");
        return None;
    }
    let conditions = raw.conditions.as_ref().map(|Mapping(conditions)| conditions);
    let is = |condition: Option<bool>, default| condition.unwrap_or(default);
    let names = |list: &List<RawName>| -> Vec<Arc<str>> {
        list.iter().flatten().map(|Mapping(RawName { name })| name.as_str().into()).collect()
    };
    let hints = raw
        .hints
        .as_ref()
        .map(|Mapping(hints)| Hints { nodes: names(&hints.for_nodes), zones: names(&hints.for_zones) });
    let topology = raw.topology.as_ref().and_then(|Mapping(topology)| topology.hostname.as_deref());
    let nodes = [raw.node_name.as_deref(), topology].into_iter().flatten();
    Some(Endpoint {
        address,
        node: nodes.filter(|node| !node.is_empty()).map(Arc::from).next(),
        ready: is(conditions.and_then(|all| all.ready), true),
        serving: is(conditions.and_then(|all| all.serving), true),
        terminating: is(conditions.and_then(|all| all.terminating), false),
        hints: hints.filter(|hints| *hints != Hints::default()).map(Box::new),
    })
}

/// Returns the stand-in for a faulty slice: the slice without its faulty endpoints. A slice with any other fault is left out.
fn slice_without_faults(value: &Value) -> Outcome {
    let mut rest = value.clone();
    let whole = |value: &Value| {
        let mut findings = Findings::default();
        let slice = typed(value, &FieldPath::default()).ok().and_then(|raw| checked_slice(raw, &mut findings));
        slice.filter(|_| findings.problems.is_empty())
    };
    let Some(endpoints) = rest.get_mut("endpoints").map(Value::take) else { return Outcome::Nothing };
    // The rest of the slice must have no fault.
    if whole(&rest).is_none() {
        return Outcome::Nothing;
    }
    let v4 = rest.get("addressType").is_some_and(|family| family == "IPv4");
    let is_readable = |endpoint: &Value| {
        let mut findings = Findings::default();
        let path = FieldPath::default();
        typed(endpoint, &path).is_ok_and(|raw| checked_endpoint(&raw, v4, &path, &mut findings).is_some())
    };
    let Value::Array(endpoints) = endpoints else { return Outcome::Nothing };
    rest["endpoints"] = endpoints.into_iter().filter(is_readable).collect();
    whole(&rest).map_or(Outcome::Nothing, |slice| Outcome::Closed(Object::EndpointSlice(Arc::new(slice))))
}
