//! ClusterNetworkPolicy, and AdminNetworkPolicy and BaselineAdminNetworkPolicy from which it came: what the cluster's administrator
//! decides before and after NetworkPolicy.
//!
//! Source: sigs.k8s.io/network-policy-api, "API Overview", and the types of `policy.networking.k8s.io` v1alpha2 and v1alpha1.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Enforcement, PodPeer, PolicyName, PolicyRule, Position};

/// Where a rule stands among the three layers that Kubernetes knows. The tiers are asked in this order.
/// Source: sigs.k8s.io/network-policy-api, "API Overview".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// What the cluster's administrator decides before everybody else.
    Admin,
    /// NetworkPolicy: what it says of a pod that it isolates is final.
    NetworkPolicy,
    /// What the administrator decides where no NetworkPolicy isolates.
    Baseline,
}

impl Tier {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Admin, Self::NetworkPolicy, Self::Baseline];

    /// As Kubernetes writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "Admin",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::Baseline => "Baseline",
        }
    }
}

/// What a rule does with the traffic that it is the first of its tier to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RuleAction {
    /// Lets it through.
    Accept,
    /// Drops it.
    Deny,
    /// Leaves it to the next tier.
    Pass,
}

impl RuleAction {
    /// As `policy.networking.k8s.io/v1alpha2` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        }
    }
}

/// The kinds of policies that have no namespace. Of rules with the same tier and priority an earlier kind's come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClusterPolicyKind {
    /// `policy.networking.k8s.io/v1alpha2`.
    ClusterNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1`, the tier Admin.
    AdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1`, the tier Baseline.
    BaselineAdminNetworkPolicy,
}

impl ClusterPolicyKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ClusterNetworkPolicy, Self::AdminNetworkPolicy, Self::BaselineAdminNetworkPolicy];

    /// As Kubernetes writes it.
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
    /// The kind.
    pub kind: ClusterPolicyKind,
    /// The name.
    pub name: Arc<str>,
}

impl ClusterPolicyName {
    /// The name under which the policy stands among those of namespaces. None of them has it: every one has a namespace.
    pub fn key(&self) -> PolicyName {
        PolicyName::new("", format!("{}/{}", self.kind.name(), self.name))
    }
}

impl fmt::Display for ClusterPolicyName {
    /// `ClusterNetworkPolicy deny-all`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)
    }
}

/// Where a cluster policy stands among the others: the least is asked first. Of equals (the API leaves them open) the name decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank {
    /// [`Tier::Admin`] or [`Tier::Baseline`].
    pub tier: Tier,
    /// Less comes first. A [`ClusterPolicyKind::BaselineAdminNetworkPolicy`], which has none, comes after all that have one.
    pub priority: u16,
    /// The policy.
    pub name: ClusterPolicyName,
}

/// A ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPolicy {
    /// Its name and its place among the others.
    pub rank: Rank,
    /// The pods that it is about, never those of the host's network.
    pub subject: PodPeer,
    /// What is said of traffic towards them, in order. Without rules nothing is.
    pub ingress: Vec<ClusterRule>,
    /// What is said of traffic from them, in order.
    pub egress: Vec<ClusterRule>,
    /// Why the policy was not understood, when it was not: the rules concerned then accept nothing and deny everything.
    pub fault: Option<Arc<str>>,
    /// Where it was read.
    pub position: Option<Position>,
    /// What its [`ENFORCEMENT_ANNOTATION`](super::ENFORCEMENT_ANNOTATION) says; none leaves it to the configuration.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// One element of a cluster policy's `ingress` or `egress` list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRule {
    /// Its name, which need not be its alone.
    pub name: Option<Arc<str>>,
    /// What happens.
    pub action: RuleAction,
    /// To which traffic. Peers are absent only in what stands for a rule that was not understood; a list without any names nobody.
    pub traffic: PolicyRule,
}
