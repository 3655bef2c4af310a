//! Policies of the cluster's administrator, which apply before and after NetworkPolicy: ClusterNetworkPolicy and its predecessors
//! AdminNetworkPolicy and BaselineAdminNetworkPolicy.
//!
//! Source: sigs.k8s.io/network-policy-api, "API Overview", and the types of `policy.networking.k8s.io` v1alpha2 and v1alpha1.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Enforcement, PodPeer, PolicyName, PolicyRule, Position};

/// The layer of a rule, in order of evaluation. Source: sigs.k8s.io/network-policy-api, "API Overview".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// Administrator's rules that take precedence over NetworkPolicy.
    Admin,
    /// NetworkPolicy. Its verdict is final for a pod that it isolates.
    NetworkPolicy,
    /// Administrator's rules for traffic that no NetworkPolicy isolates.
    Baseline,
}

impl Tier {
    /// All tiers in order of evaluation.
    pub const ALL: [Self; 3] = [Self::Admin, Self::NetworkPolicy, Self::Baseline];

    /// Returns the tier's name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "Admin",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::Baseline => "Baseline",
        }
    }
}

/// The action of a rule. In each tier, the first rule that matches the traffic decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RuleAction {
    /// Allows the traffic.
    Accept,
    /// Denies the traffic.
    Deny,
    /// Leaves the decision to the next tier.
    Pass,
}

impl RuleAction {
    /// Returns the action's name in `policy.networking.k8s.io/v1alpha2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        }
    }
}

/// The kinds of policies without a namespace. With equal tier and priority, rules of an earlier kind come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClusterPolicyKind {
    /// A ClusterNetworkPolicy of `policy.networking.k8s.io/v1alpha2`.
    ClusterNetworkPolicy,
    /// An AdminNetworkPolicy of `policy.networking.k8s.io/v1alpha1`, in the tier Admin.
    AdminNetworkPolicy,
    /// A BaselineAdminNetworkPolicy of `policy.networking.k8s.io/v1alpha1`, in the tier Baseline.
    BaselineAdminNetworkPolicy,
}

impl ClusterPolicyKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::ClusterNetworkPolicy, Self::AdminNetworkPolicy, Self::BaselineAdminNetworkPolicy];

    /// Returns the kind's name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
        }
    }
}

/// A cluster policy's kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterPolicyName {
    /// The policy's kind.
    pub kind: ClusterPolicyKind,
    /// The policy's name.
    pub name: Arc<str>,
}

impl ClusterPolicyName {
    /// Returns a key for maps that also hold NetworkPolicies. Its namespace is empty, so no NetworkPolicy has the same key.
    pub fn key(&self) -> PolicyName {
        PolicyName::new("", format!("{}/{}", self.kind.name(), self.name))
    }
}

impl fmt::Display for ClusterPolicyName {
    /// Writes kind and name: `ClusterNetworkPolicy deny-all`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)
    }
}

/// A cluster policy's place in the order of evaluation, lowest first. The name breaks ties, whose order the API leaves open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank {
    /// [`Tier::Admin`] or [`Tier::Baseline`].
    pub tier: Tier,
    /// The priority; lower values come first. A [`ClusterPolicyKind::BaselineAdminNetworkPolicy`] has none and gets the last place.
    pub priority: u16,
    /// The policy's kind and name.
    pub name: ClusterPolicyName,
}

/// A ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPolicy {
    /// Its name and place in the order of evaluation.
    pub rank: Rank,
    /// The pods that the policy applies to. Never host-network pods.
    pub subject: PodPeer,
    /// Rules for traffic towards the pods, in order. Empty if the policy does not apply to ingress.
    pub ingress: Vec<ClusterRule>,
    /// Rules for traffic from the pods, in order. Empty if the policy does not apply to egress.
    pub egress: Vec<ClusterRule>,
    /// The reason why the policy is invalid. `None` if the policy is valid. Its invalid rules accept nothing and deny everything.
    pub fault: Option<Arc<str>>,
    /// Its position in the source file. `None` if it comes from an API server.
    pub position: Option<Position>,
    /// The value of [`ENFORCEMENT_ANNOTATION`](super::ENFORCEMENT_ANNOTATION). `None` if absent: the configuration decides.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// One element of a cluster policy's `ingress` or `egress` list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRule {
    /// Its name, which need not be unique. `None` if the rule has none.
    pub name: Option<Arc<str>>,
    /// The action for matching traffic.
    pub action: RuleAction,
    /// The matching traffic. Its peers are `None` only in the replacement for an invalid rule; an empty list matches nothing.
    pub traffic: PolicyRule,
}
