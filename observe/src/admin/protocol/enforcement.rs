//! Whether a policy is enforced.

use bulkhead_control::object::ClusterPolicyKind;
use serde::{Deserialize, Serialize};

/// Identifies the policy whose enforcement a client requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyQuestion {
    /// Kind of a cluster policy. `None` for a NetworkPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ClusterPolicyKind>,
    /// Namespace of a NetworkPolicy. Ignored for cluster policies.
    #[serde(default)]
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
}

/// State of a policy on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforcement {
    /// Whether the vswitch has a policy of this name.
    pub known: bool,
    /// `metadata.uid`. `None` if the object has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// `metadata.generation`. `None` if the object has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Parse error. The policy then isolates the pods that it selects and allows nothing. `None` if the policy was parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Whether the policy is audited: the vswitch counts what the policy would deny, but does not enforce it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub audited: bool,
    /// Whether the vswitch's state, with or without the policy, applies to every packet from now on.
    pub enforced: bool,
    /// The reasons why the state is not enforced yet. Empty if `enforced`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<String>,
    /// Whether the vswitch's state may be outdated because the connection to the API server is lost.
    pub stale: bool,
    /// Generation of the vswitch's tables.
    pub tables_generation: u64,
}
