//! The serialized form of cluster policies. One set of structs covers both API versions; the readers refuse fields of the other version.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::super::raw::{List, Part, RawSelector};

/// A cluster policy. Its metadata and status do not affect traffic.
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
    pub(super) spec: Option<Value>,
}

/// `ClusterNetworkPolicySpec`, `AdminNetworkPolicySpec`, `BaselineAdminNetworkPolicySpec`. Rules stay untyped, so that one invalid rule
/// does not affect the others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSpec {
    pub(super) tier: Option<String>,
    pub(super) priority: Option<i64>,
    pub(super) subject: Option<Value>,
    pub(super) ingress: Option<Vec<Value>>,
    pub(super) egress: Option<Vec<Value>>,
}

/// `ClusterNetworkPolicySubject`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSubject {
    pub(super) namespaces: Part<RawSelector>,
    pub(super) pods: Part<RawPods>,
}

/// `NamespacedPod`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPods {
    pub(super) namespace_selector: Part<RawSelector>,
    pub(super) pod_selector: Part<RawSelector>,
}

/// A rule of either direction.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawRule {
    pub(super) name: Option<String>,
    pub(super) action: Option<String>,
    pub(super) from: List<RawPeer>,
    pub(super) to: List<RawPeer>,
    pub(super) protocols: List<RawProtocol>,
    pub(super) ports: List<RawPort>,
}

/// A peer of either direction.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPeer {
    pub(super) namespaces: Part<RawSelector>,
    pub(super) pods: Part<RawPods>,
    pub(super) networks: Option<Vec<String>>,
    pub(super) nodes: Part<RawSelector>,
    pub(super) domain_names: Option<Vec<String>>,
}

impl RawPeer {
    /// Returns the names of the fields that are set.
    pub(super) fn fields(&self) -> Vec<&'static str> {
        let fields = [
            ("namespaces", self.namespaces.is_some()),
            ("pods", self.pods.is_some()),
            ("networks", self.networks.is_some()),
            ("nodes", self.nodes.is_some()),
            ("domainNames", self.domain_names.is_some()),
        ];
        fields.into_iter().filter(|(_, there)| *there).map(|(field, _)| field).collect()
    }

    /// Whether the peer selects something other than pods, which has no named container ports.
    pub(super) fn names_no_pods(&self) -> bool {
        self.networks.is_some() || self.nodes.is_some() || self.domain_names.is_some()
    }
}

/// `ClusterNetworkPolicyProtocol` of v1alpha2.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawProtocol {
    pub(super) tcp: Part<RawTransport>,
    pub(super) udp: Part<RawTransport>,
    pub(super) sctp: Part<RawTransport>,
    pub(super) destination_named_port: Option<String>,
}

/// `ClusterNetworkPolicyProtocolTCP`, and the same for UDP and SCTP.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawTransport {
    pub(super) destination_port: Part<RawDestinationPort>,
}

/// `Port` of v1alpha2.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawDestinationPort {
    pub(super) number: Option<i64>,
    pub(super) range: Part<RawRange>,
}

/// `PortRange`. Only v1alpha1 has `protocol`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawRange {
    pub(super) protocol: Option<String>,
    pub(super) start: Option<i64>,
    pub(super) end: Option<i64>,
}

/// `AdminNetworkPolicyPort` of v1alpha1.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPort {
    pub(super) port_number: Part<RawPortNumber>,
    pub(super) port_range: Part<RawRange>,
    pub(super) named_port: Option<String>,
}

/// `Port` of v1alpha1.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPortNumber {
    pub(super) protocol: Option<String>,
    pub(super) port: Option<i64>,
}
