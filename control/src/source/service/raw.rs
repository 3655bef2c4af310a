//! The serialized form of Services and endpoint slices, with only the fields that are used.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::raw::{List, Metadata, Part};

/// The fields used of a `Service`.
#[derive(Deserialize)]
pub(super) struct RawService {
    pub(super) metadata: Part<Metadata>,
    pub(super) spec: Part<RawServiceSpec>,
    pub(super) status: Part<RawServiceStatus>,
}

/// The fields used of a `ServiceSpec`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServiceSpec {
    pub(super) r#type: Option<String>,
    pub(super) selector: Option<BTreeMap<String, String>>,
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    pub(super) cluster_ips: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    pub(super) external_ips: Option<Vec<String>>,
    pub(super) ports: List<RawServicePort>,
    pub(super) session_affinity: Option<String>,
    pub(super) session_affinity_config: Part<RawAffinityConfig>,
    pub(super) internal_traffic_policy: Option<String>,
    pub(super) external_traffic_policy: Option<String>,
    pub(super) load_balancer_source_ranges: Option<Vec<String>>,
    pub(super) health_check_node_port: Option<i64>,
}

/// The fields used of a `ServicePort`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServicePort {
    pub(super) name: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) port: i64,
    pub(super) node_port: Option<i64>,
}

/// `SessionAffinityConfig`.
#[derive(Default, Deserialize)]
pub(super) struct RawAffinityConfig {
    #[serde(rename = "clientIP")]
    pub(super) client_ip: Part<RawClientAffinity>,
}

/// `ClientIPConfig`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawClientAffinity {
    pub(super) timeout_seconds: Option<i64>,
}

/// The fields used of a `ServiceStatus`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServiceStatus {
    pub(super) load_balancer: Part<RawBalancerStatus>,
}

/// `LoadBalancerStatus`.
#[derive(Default, Deserialize)]
pub(super) struct RawBalancerStatus {
    pub(super) ingress: List<RawIngressPoint>,
}

/// The fields used of a `LoadBalancerIngress`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawIngressPoint {
    pub(super) ip: Option<String>,
    pub(super) ip_mode: Option<String>,
}

/// The fields used of an `EndpointSlice`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawSlice {
    pub(super) metadata: Part<Metadata>,
    pub(super) address_type: Option<String>,
    pub(super) endpoints: List<RawEndpoint>,
    pub(super) ports: List<RawEndpointPort>,
}

/// The fields used of an `EndpointPort`.
#[derive(Deserialize)]
pub(super) struct RawEndpointPort {
    pub(super) name: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) port: Option<i64>,
}

/// The fields used of an `Endpoint`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawEndpoint {
    pub(super) addresses: Option<Vec<String>>,
    pub(super) conditions: Part<RawConditions>,
    pub(super) node_name: Option<String>,
    pub(super) topology: Part<RawTopology>,
    pub(super) hints: Part<RawHints>,
}

/// The field used of an `Endpoint`'s `topology`, which names the node in `discovery.k8s.io/v1beta1`.
#[derive(Deserialize)]
pub(super) struct RawTopology {
    #[serde(rename = "kubernetes.io/hostname")]
    pub(super) hostname: Option<String>,
}

/// `EndpointConditions`.
#[derive(Default, Deserialize)]
pub(super) struct RawConditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

/// `EndpointHints`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawHints {
    pub(super) for_nodes: List<RawName>,
    pub(super) for_zones: List<RawName>,
}

/// `ForNode`, `ForZone`.
#[derive(Deserialize)]
pub(super) struct RawName {
    pub(super) name: String,
}
