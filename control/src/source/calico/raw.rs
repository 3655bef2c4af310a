//! The serialized form of Calico's objects.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::super::raw::{Part, PortRef};

/// An object. Its metadata is read separately, and its status does not affect traffic.
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

/// `NetworkPolicySpec`, `GlobalNetworkPolicySpec` and their staged forms. Rules stay untyped, so that one invalid rule does not affect the
/// others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSpec {
    pub(super) tier: Option<String>,
    pub(super) order: Option<f64>,
    pub(super) ingress: Option<Vec<Value>>,
    pub(super) egress: Option<Vec<Value>>,
    pub(super) selector: Option<String>,
    pub(super) namespace_selector: Option<String>,
    pub(super) service_account_selector: Option<String>,
    pub(super) types: Option<Vec<String>>,
    pub(super) do_not_track: Option<bool>,
    #[serde(rename = "preDNAT")]
    pub(super) pre_dnat: Option<bool>,
    pub(super) apply_on_forward: Option<bool>,
    #[expect(dead_code, reason = "a hint never changes what the policy means")]
    pub(super) performance_hints: Option<Vec<String>>,
    pub(super) staged_action: Option<String>,
}

/// `Rule`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields are named so that they are known")]
pub(super) struct RawRule {
    pub(super) action: Option<String>,
    pub(super) ip_version: Option<i64>,
    pub(super) protocol: Option<PortRef>,
    pub(super) not_protocol: Option<PortRef>,
    pub(super) icmp: Part<RawIcmp>,
    #[serde(rename = "notICMP")]
    pub(super) not_icmp: Part<RawIcmp>,
    pub(super) source: Part<RawEntity>,
    pub(super) destination: Part<RawEntity>,
    pub(super) http: Part<RawHttp>,
    metadata: Option<IgnoredAny>,
}

/// `ICMPFields`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawIcmp {
    #[serde(rename = "type")]
    pub(super) kind: Option<i64>,
    pub(super) code: Option<i64>,
}

/// `HTTPMatch`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "HTTP requests are not evaluated")]
pub(super) struct RawHttp {
    methods: Option<IgnoredAny>,
    paths: Option<IgnoredAny>,
}

/// `EntityRule`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawEntity {
    pub(super) nets: Option<Vec<String>>,
    pub(super) not_nets: Option<Vec<String>>,
    pub(super) selector: Option<String>,
    pub(super) not_selector: Option<String>,
    pub(super) namespace_selector: Option<String>,
    /// Of Calico's commercial products.
    pub(super) domains: Option<Vec<String>>,
    pub(super) services: Part<RawService>,
    pub(super) service_accounts: Part<RawAccounts>,
    pub(super) ports: Option<Vec<PortRef>>,
    pub(super) not_ports: Option<Vec<PortRef>>,
}

/// `ServiceMatch`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawService {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
}

/// `ServiceAccountMatch`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawAccounts {
    pub(super) names: Option<Vec<String>>,
    pub(super) selector: Option<String>,
}

/// `TierSpec`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawTier {
    pub(super) order: Option<f64>,
    pub(super) default_action: Option<String>,
}

/// `NetworkSetSpec` and `GlobalNetworkSetSpec`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawNetworkSet {
    pub(super) nets: Option<Vec<String>>,
    /// Of Calico's commercial products.
    pub(super) allowed_egress_domains: Option<Vec<String>>,
}

/// The fields used of a `HostEndpointSpec`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawHostEndpoint {
    #[serde(rename = "expectedIPs")]
    pub(super) expected_ips: Option<Vec<String>>,
}
