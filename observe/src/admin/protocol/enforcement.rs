//! Whether a policy is in force.

use bulkhead_control::object::ClusterPolicyKind;
use serde::{Deserialize, Serialize};

/// Which policy is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyQuestion {
    /// The kind of a cluster policy; absent for a NetworkPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ClusterPolicyKind>,
    /// The NetworkPolicy's namespace; of no meaning for others.
    #[serde(default)]
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// How far the policy is enforced on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforcement {
    /// Whether the vswitch knows a policy of this name.
    pub known: bool,
    /// Its `metadata.uid`, where its object says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its `metadata.generation`, where its object says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Why it is not understood. It then isolates the pods that it selects, and allows nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Whether it is audited: it is counted what it would deny, and nothing of it is enforced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub audited: bool,
    /// Whether the state that the vswitch knows, with or without the policy, holds for every packet from now on.
    pub enforced: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<String>,
    /// Whether what the vswitch knows may be older than what was applied: the API server is not heard.
    pub stale: bool,
    /// The generation of the vswitch's tables.
    pub tables_generation: u64,
}
