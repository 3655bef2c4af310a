//! Whether a policy is in force.

use bulkhead_control::object::ClusterPolicyKind;
use serde::{Deserialize, Serialize};

/// Which policy is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyQuestion {
    /// The kind of a cluster policy; absent for a NetworkPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<ClusterPolicyKind>,
    /// The NetworkPolicy's namespace; of no meaning for others.
    #[serde(default)]
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

/// How far the policy is enforced on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Enforcement {
    /// Whether the vswitch knows a policy of this name.
    pub(crate) known: bool,
    /// Its `metadata.uid`, where its object says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// Its `metadata.generation`, where its object says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u64>,
    /// Why it is not understood. It then isolates the pods that it selects, and allows nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
    /// Whether it is audited: it is counted what it would deny, and nothing of it is enforced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) audited: bool,
    /// Whether the state that the vswitch knows, with or without the policy, holds for every packet from now on.
    pub(crate) enforced: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pending: Vec<String>,
    /// Whether what the vswitch knows may be older than what was applied: the API server is not heard.
    pub(crate) stale: bool,
    /// The generation of the vswitch's tables.
    pub(crate) tables_generation: u64,
}
