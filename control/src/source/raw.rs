//! The serialized form of objects. An unknown field is a fault in a NetworkPolicy, and is ignored in other kinds.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::error::Problem;
use super::names;
use super::path::{FieldPath, Step};

/// A struct that is read only from a mapping. A derived struct also accepts a list of its fields' values, so that `namespaceSelector: []`
/// would select every namespace.
pub(super) struct Mapping<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Mapping<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MappingVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MappingVisitor<T> {
            type Value = Mapping<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(access)).map(Mapping)
            }
        }
        deserializer.deserialize_map(MappingVisitor(PhantomData))
    }
}

/// A list of structs. `None` if it is absent or null, which Kubernetes treats alike.
pub(super) type List<T> = Option<Vec<Mapping<T>>>;
/// A struct. `None` if it is absent or null.
pub(super) type Part<T> = Option<Mapping<T>>;

/// A NetworkPolicy. Only its spec is read with this struct.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields are named so that they are known")]
pub(super) struct RawPolicy {
    #[serde(default)]
    api_version: IgnoredAny,
    #[serde(default)]
    kind: IgnoredAny,
    #[serde(default)]
    metadata: IgnoredAny,
    #[serde(default)]
    status: IgnoredAny,
    pub(super) spec: Part<RawSpec>,
}

/// `NetworkPolicySpec`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSpec {
    pub(super) pod_selector: Part<RawSelector>,
    pub(super) ingress: List<RawIngress>,
    pub(super) egress: List<RawEgress>,
    pub(super) policy_types: Option<Vec<String>>,
}

/// `NetworkPolicyIngressRule`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawIngress {
    pub(super) from: List<RawPeer>,
    pub(super) ports: List<RawPort>,
}

/// `NetworkPolicyEgressRule`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawEgress {
    pub(super) to: List<RawPeer>,
    pub(super) ports: List<RawPort>,
}

/// `NetworkPolicyPeer`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPeer {
    pub(super) pod_selector: Part<RawSelector>,
    pub(super) namespace_selector: Part<RawSelector>,
    pub(super) ip_block: Part<RawBlock>,
}

/// `IPBlock`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawBlock {
    pub(super) cidr: String,
    pub(super) except: Option<Vec<String>>,
}

/// `NetworkPolicyPort`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPort {
    pub(super) protocol: Option<String>,
    pub(super) port: Option<PortRef>,
    pub(super) end_port: Option<i64>,
}

/// `LabelSelector`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSelector {
    pub(super) match_labels: Option<BTreeMap<String, String>>,
    pub(super) match_expressions: List<RawExpression>,
}

/// `LabelSelectorRequirement`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawExpression {
    pub(super) key: String,
    pub(super) operator: String,
    pub(super) values: Option<Vec<String>>,
}

/// `IntOrString`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PortRef {
    Number(i64),
    Name(String),
}

impl<'de> Deserialize<'de> for PortRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortVisitor;
        impl Visitor<'_> for PortVisitor {
            type Value = PortRef;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port number or a port name")
            }

            fn visit_i64<E>(self, number: i64) -> Result<PortRef, E> {
                Ok(PortRef::Number(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<PortRef, E> {
                // Neither value is a valid port.
                Ok(PortRef::Number(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            fn visit_str<E>(self, name: &str) -> Result<PortRef, E> {
                Ok(PortRef::Name(name.to_owned()))
            }
        }
        deserializer.deserialize_any(PortVisitor)
    }
}

/// The fields used of the `ObjectMeta` of other kinds than policies.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) uid: Option<Value>,
    pub(super) creation_timestamp: Option<Value>,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) annotations: Option<BTreeMap<String, Value>>,
    pub(super) owner_references: Option<Value>,
}

/// The fields used of a Namespace.
#[derive(Deserialize)]
pub(super) struct RawNamespace {
    pub(super) metadata: Part<Metadata>,
    pub(super) status: Part<RawNamespaceStatus>,
}

/// The fields used of a `NamespaceStatus`.
#[derive(Default, Deserialize)]
pub(super) struct RawNamespaceStatus {
    pub(super) phase: Option<String>,
}

/// The value of a namespace's `extensions/v1beta1` isolation annotation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIsolation {
    pub(super) ingress: Option<RawIngressIsolation>,
}

/// `NamespaceIngressPolicy` of `extensions/v1beta1`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIngressIsolation {
    pub(super) isolation: Option<String>,
}

/// The fields used of a Pod.
#[derive(Deserialize)]
pub(super) struct RawPod {
    pub(super) metadata: Part<Metadata>,
    pub(super) spec: Part<RawPodSpec>,
    pub(super) status: Part<RawPodStatus>,
}

/// The fields used of a `PodSpec`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawPodSpec {
    pub(super) node_name: Option<String>,
    pub(super) host_network: Option<bool>,
    pub(super) service_account_name: Option<String>,
    pub(super) containers: List<RawContainer>,
    pub(super) init_containers: List<RawContainer>,
}

/// The fields used of a `Container`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawContainer {
    pub(super) restart_policy: Option<String>,
    pub(super) ports: List<RawContainerPort>,
}

/// The fields used of a `ContainerPort`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawContainerPort {
    pub(super) name: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) container_port: i64,
    pub(super) host_port: Option<i64>,
    #[serde(rename = "hostIP")]
    pub(super) host_ip: Option<String>,
}

/// The fields used of a `PodStatus`.
#[derive(Default, Deserialize)]
pub(super) struct RawPodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "startTime")]
    pub(super) start_time: Option<Value>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(super) pod_ips: List<RawPodIp>,
}

/// `PodIP`.
#[derive(Deserialize)]
pub(super) struct RawPodIp {
    pub(super) ip: String,
}

/// The fields used of a Node.
#[derive(Deserialize)]
pub(super) struct RawNode {
    pub(super) metadata: Part<Metadata>,
    pub(super) spec: Part<RawNodeSpec>,
    pub(super) status: Part<RawNodeStatus>,
}

/// The fields used of a `NodeSpec`.
#[derive(Default, Deserialize)]
pub(super) struct RawNodeSpec {
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pub(super) pod_cidrs: Option<Vec<String>>,
    pub(super) taints: List<RawTaint>,
}

/// The fields used of a `Taint`.
#[derive(Deserialize)]
pub(super) struct RawTaint {
    pub(super) key: Option<String>,
}

/// The fields used of a `NodeStatus`.
#[derive(Default, Deserialize)]
pub(super) struct RawNodeStatus {
    pub(super) addresses: List<RawNodeAddress>,
}

/// `NodeAddress`.
#[derive(Deserialize)]
pub(super) struct RawNodeAddress {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) address: String,
}

/// Parses `value` as a `T`. The problem's path starts with `base`, the value's path in its object.
pub(super) fn typed<T: DeserializeOwned>(value: &Value, base: &FieldPath) -> Result<T, Problem> {
    // Tracking the path doubles the cost, so only faulty values pay for it.
    if let Ok(Mapping(typed)) = Mapping::<T>::deserialize(value) {
        return Ok(typed);
    }
    serde_path_to_error::deserialize::<_, Mapping<T>>(value)
        .map(|Mapping(typed)| typed)
        .map_err(|error| problem_of(&error, base))
}

fn problem_of(error: &serde_path_to_error::Error<serde_json::Error>, base: &FieldPath) -> Problem {
    let steps = error.path().iter().filter_map(|segment| match segment {
        serde_path_to_error::Segment::Seq { index } => Some(Step::Index(*index)),
        serde_path_to_error::Segment::Map { key } => Some(Step::Key(key.clone())),
        serde_path_to_error::Segment::Enum { variant } => Some(Step::Key(variant.clone())),
        serde_path_to_error::Segment::Unknown => None,
    });
    let path = base.join(&FieldPath::from_steps(steps.collect()));
    let text = error.inner().to_string();
    let (text, help) = explained(&text, &path);
    Problem { path, text, help }
}

/// Returns serde's message and the remedy. Tests pin the wording of the messages distinguished here.
fn explained(message: &str, path: &FieldPath) -> (String, String) {
    if message.starts_with("unknown field ") {
        let written = path.steps().iter().rev().find_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Index(_) => None,
        });
        // Odd pieces between backticks are words. The first one is the unknown field itself, which may contain anything.
        let known = message.rsplit_once("expected ").map_or("", |(_, known)| known);
        let help = match written.and_then(|written| names::nearest(written, known.split('`').skip(1).step_by(2))) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => "remove it: an unknown field could change the meaning of the policy".to_owned(),
        };
        (message.to_owned(), help)
    } else if let Some(field) = message.strip_prefix("missing field ") {
        (format!("missing field {field}"), format!("add {field}"))
    } else {
        let help = match message.rsplit_once("expected ").map(|(_, expected)| expected) {
            Some("a string") if message.contains("null") => "write a value, or \"\" for an empty one",
            Some("a string") if message.contains("sequence") || message.contains("map,") => "write a single value",
            Some("a string") => "put the value in quotes",
            Some("a mapping") if message.contains("null") => "write `{}` for an empty mapping",
            Some("a mapping") => "write `key: value` pairs, or `{}` for none",
            Some("a sequence") => "write a list, each element after a `- `",
            Some("a map") => "write `key: value` pairs, or `{}` for none",
            Some("a boolean") => "write true or false, without quotes",
            Some("i64") => "write a whole number, without quotes",
            Some("a port number or a port name") => "write a whole number from 1 to 65535, or the name of a port",
            _ => "write what the Kubernetes API defines for this field",
        };
        (message.to_owned(), help.to_owned())
    }
}
