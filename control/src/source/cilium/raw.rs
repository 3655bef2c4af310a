//! The serialized form of Cilium's policies.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::super::raw::{List, Part, PortRef, RawSelector};

/// A policy. Its metadata and status do not affect traffic.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields are named so that they are known")]
pub(super) struct RawObject {
    api_version: IgnoredAny,
    kind: IgnoredAny,
    #[serde(default)]
    metadata: IgnoredAny,
    #[serde(default)]
    status: IgnoredAny,
    /// Beside the metadata in policies of Cilium's older guides. An API server drops it.
    #[serde(default)]
    description: IgnoredAny,
    pub(super) spec: Option<Value>,
    pub(super) specs: Option<Vec<Value>>,
}

/// `Rule`. The elements of its lists stay untyped, so that one invalid element does not affect the others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields are named so that they are known")]
pub(super) struct RawSpec {
    pub(super) endpoint_selector: Part<RawSelector>,
    pub(super) node_selector: Option<Value>,
    pub(super) ingress: Option<Vec<Value>>,
    pub(super) ingress_deny: Option<Vec<Value>>,
    pub(super) egress: Option<Vec<Value>>,
    pub(super) egress_deny: Option<Vec<Value>>,
    pub(super) enable_default_deny: Part<RawDefaultDeny>,
    #[serde(default)]
    labels: IgnoredAny,
    #[serde(default)]
    description: IgnoredAny,
    #[serde(default)]
    log: IgnoredAny,
}

/// `DefaultDenyConfig`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDefaultDeny {
    pub(super) ingress: Option<bool>,
    pub(super) egress: Option<bool>,
}

/// An element of a list of rules, with the names of `EgressRule`. Lists of rules that deny have neither `toFQDNs` nor `authentication`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEntry {
    #[serde(rename = "toEndpoints")]
    pub(super) endpoints: List<RawSelector>,
    #[serde(rename = "toRequires")]
    pub(super) requires: Option<Vec<Value>>,
    #[serde(rename = "toCIDR")]
    pub(super) cidr: Option<Vec<String>>,
    #[serde(rename = "toCIDRSet")]
    pub(super) cidr_set: List<RawCidrRule>,
    #[serde(rename = "toEntities")]
    pub(super) entities: Option<Vec<String>>,
    #[serde(rename = "toGroups")]
    pub(super) groups: Option<Vec<Value>>,
    #[serde(rename = "toNodes")]
    pub(super) nodes: Option<Vec<Value>>,
    #[serde(rename = "toServices")]
    pub(super) services: List<RawService>,
    #[serde(rename = "toFQDNs")]
    pub(super) names: List<RawName>,
    #[serde(rename = "toPorts")]
    pub(super) to_ports: List<RawPorts>,
    pub(super) icmps: List<RawIcmp>,
    pub(super) authentication: Part<RawAuthentication>,
}

/// `IngressRule`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIngress {
    #[serde(rename = "fromEndpoints")]
    endpoints: List<RawSelector>,
    #[serde(rename = "fromRequires")]
    requires: Option<Vec<Value>>,
    #[serde(rename = "fromCIDR")]
    cidr: Option<Vec<String>>,
    #[serde(rename = "fromCIDRSet")]
    cidr_set: List<RawCidrRule>,
    #[serde(rename = "fromEntities")]
    entities: Option<Vec<String>>,
    #[serde(rename = "fromGroups")]
    groups: Option<Vec<Value>>,
    #[serde(rename = "fromNodes")]
    nodes: Option<Vec<Value>>,
    #[serde(rename = "toPorts")]
    to_ports: List<RawPorts>,
    icmps: List<RawIcmp>,
    authentication: Part<RawAuthentication>,
}

impl From<RawIngress> for RawEntry {
    fn from(raw: RawIngress) -> Self {
        Self {
            endpoints: raw.endpoints,
            requires: raw.requires,
            cidr: raw.cidr,
            cidr_set: raw.cidr_set,
            entities: raw.entities,
            groups: raw.groups,
            nodes: raw.nodes,
            to_ports: raw.to_ports,
            icmps: raw.icmps,
            authentication: raw.authentication,
            services: None,
            names: None,
        }
    }
}

/// `CIDRRule`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawCidrRule {
    pub(super) cidr: Option<String>,
    pub(super) cidr_group_ref: Option<String>,
    pub(super) cidr_group_selector: Part<RawSelector>,
    pub(super) except: Option<Vec<String>>,
}

/// `Service`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawService {
    pub(super) k8s_service: Part<RawServiceName>,
    pub(super) k8s_service_selector: Part<RawServiceSelector>,
}

/// `K8sServiceNamespace`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawServiceName {
    pub(super) service_name: Option<String>,
    pub(super) namespace: Option<String>,
}

/// `K8sServiceSelectorNamespace`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawServiceSelector {
    pub(super) selector: Part<RawSelector>,
    pub(super) namespace: Option<String>,
}

/// `FQDNSelector`, and `PortRuleDNS`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawName {
    pub(super) match_name: Option<String>,
    pub(super) match_pattern: Option<String>,
}

/// `PortRule`, and `PortDenyRule`, which has only `ports`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPorts {
    pub(super) ports: List<RawPort>,
    pub(super) rules: Part<RawRules>,
    pub(super) server_names: Option<Vec<String>>,
    pub(super) listener: Option<Value>,
    #[serde(rename = "terminatingTLS")]
    pub(super) terminating_tls: Option<Value>,
    #[serde(rename = "originatingTLS")]
    pub(super) originating_tls: Option<Value>,
}

/// `PortProtocol`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPort {
    pub(super) port: String,
    pub(super) end_port: Option<i64>,
    pub(super) protocol: Option<String>,
}

/// `L7Rules`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRules {
    pub(super) http: Option<Vec<Value>>,
    pub(super) kafka: Option<Vec<Value>>,
    pub(super) dns: List<RawName>,
    pub(super) l7proto: Option<String>,
    pub(super) l7: Option<Vec<Value>>,
}

/// `ICMPRule`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIcmp {
    pub(super) fields: List<RawIcmpField>,
}

/// `ICMPField`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIcmpField {
    pub(super) family: Option<String>,
    pub(super) r#type: PortRef,
}

/// `Authentication`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAuthentication {
    pub(super) mode: Option<String>,
}

/// The fields used of a CiliumCIDRGroup.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields are named so that they are known")]
pub(super) struct RawGroup {
    api_version: IgnoredAny,
    kind: IgnoredAny,
    pub(super) metadata: Part<super::super::raw::Metadata>,
    #[serde(default)]
    status: IgnoredAny,
    pub(super) spec: Part<RawGroupSpec>,
}

/// `CiliumCIDRGroupSpec`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGroupSpec {
    #[serde(rename = "externalCIDRs")]
    pub(super) blocks: Option<Vec<String>>,
}
