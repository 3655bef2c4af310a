//! Policies of the cluster's administrator, which apply before and after NetworkPolicy: ClusterNetworkPolicy and its predecessors
//! AdminNetworkPolicy and BaselineAdminNetworkPolicy.
//!
//! Source: sigs.k8s.io/network-policy-api, "API Overview", and the types of `policy.networking.k8s.io` v1alpha2 and v1alpha1.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Direction, Enforcement, PodPeer, PolicyName, PolicyRule, Position};

/// The layer of a rule, in order of evaluation. Source: sigs.k8s.io/network-policy-api, "API Overview".
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Administrator's rules that take precedence over NetworkPolicy.
    Admin,
    /// NetworkPolicy. Its verdict is final for a pod that it isolates.
    NetworkPolicy,
    /// Administrator's rules for traffic that no NetworkPolicy isolates.
    Baseline,
    /// A tier of another product, which the cluster's administrator has placed among the others.
    Other(Arc<OtherTier>),
}

/// A tier of another product.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OtherTier {
    /// The tier's name.
    pub name: Arc<str>,
    /// The tier's place among all tiers, lowest first; the names decide between equal numbers.
    pub order: Order,
    /// What happens to the traffic of a pod that the tier isolates, if no rule of the tier decides: Deny, or Pass to the next tier.
    pub end: RuleAction,
}

impl Tier {
    /// The tiers of Kubernetes, in order of evaluation.
    pub const ALL: [Self; 3] = [Self::Admin, Self::NetworkPolicy, Self::Baseline];

    /// Returns the tier's name in Kubernetes, or in the product that it belongs to.
    pub fn name(&self) -> &str {
        match self {
            Self::Admin => "Admin",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::Baseline => "Baseline",
            Self::Other(tier) => &tier.name,
        }
    }

    /// Returns what happens to the traffic of a pod that the tier isolates, if no rule of the tier decides: Deny, or Pass to the next tier.
    /// The tiers around NetworkPolicy pass.
    pub fn end(&self) -> RuleAction {
        match self {
            Self::NetworkPolicy => RuleAction::Deny,
            Self::Admin | Self::Baseline => RuleAction::Pass,
            Self::Other(tier) => tier.end,
        }
    }

    /// Returns the tier's place among all tiers: a number, then a name. Source for the tiers of Kubernetes: Calico's `Tier` objects of the
    /// names `kube-admin`, `default` and `kube-baseline`, which represent them.
    fn place(&self) -> (Order, &str) {
        match self {
            Self::Admin => (Order::of(1e3), "kube-admin"),
            Self::NetworkPolicy => (Order::of(1e6), "default"),
            Self::Baseline => (Order::of(1e7), "kube-baseline"),
            Self::Other(tier) => (tier.order, &tier.name),
        }
    }
}

impl Ord for Tier {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for Tier {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A place in an order of evaluation, lowest first. Other products number their policies and tiers by fractions and negative numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order(
    /// The bits of a number of 64 bits, so changed that they are ordered as the numbers are.
    u64,
);

impl Order {
    /// The place after all numbers.
    pub const LAST: Self = Self(u64::MAX);

    /// The place of NetworkPolicies among the policies of their tier. Source: Calico, `libcalico-go/lib/backend/k8s/conversion`.
    pub const NETWORK_POLICY: Self = Self::of(1e3);

    /// Returns the place of a number.
    pub const fn of(number: f64) -> Self {
        /// The sign of a number.
        const SIGN: u64 = 1 << 63;
        // Zero has two signs and one place.
        let bits = if number == 0.0 { 0 } else { number.to_bits() };
        Self(if bits & SIGN == 0 { bits | SIGN } else { !bits })
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

/// The kinds of policies that have a rank: those of Kubernetes without a namespace, and those of other products. With equal tier and order,
/// rules of an earlier kind come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClusterPolicyKind {
    /// A ClusterNetworkPolicy of `policy.networking.k8s.io/v1alpha2`.
    ClusterNetworkPolicy,
    /// An AdminNetworkPolicy of `policy.networking.k8s.io/v1alpha1`, in the tier Admin.
    AdminNetworkPolicy,
    /// A BaselineAdminNetworkPolicy of `policy.networking.k8s.io/v1alpha1`, in the tier Baseline.
    BaselineAdminNetworkPolicy,
    /// A NetworkPolicy of Calico.
    CalicoNetworkPolicy,
    /// A GlobalNetworkPolicy of Calico.
    CalicoGlobalNetworkPolicy,
    /// A StagedNetworkPolicy of Calico.
    CalicoStagedNetworkPolicy,
    /// A StagedGlobalNetworkPolicy of Calico.
    CalicoStagedGlobalNetworkPolicy,
    /// A StagedKubernetesNetworkPolicy of Calico.
    CalicoStagedKubernetesNetworkPolicy,
    /// A CiliumNetworkPolicy.
    CiliumNetworkPolicy,
    /// A CiliumClusterwideNetworkPolicy.
    CiliumClusterwideNetworkPolicy,
}

impl ClusterPolicyKind {
    /// The kinds of Kubernetes.
    pub const ALL: [Self; 3] = [Self::ClusterNetworkPolicy, Self::AdminNetworkPolicy, Self::BaselineAdminNetworkPolicy];

    /// Whether the kind is another product's.
    pub const fn is_foreign(self) -> bool {
        !matches!(self, Self::ClusterNetworkPolicy | Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy)
    }

    /// Whether the kind is one of Cilium.
    pub const fn is_cilium(self) -> bool {
        matches!(self, Self::CiliumNetworkPolicy | Self::CiliumClusterwideNetworkPolicy)
    }

    /// Whether policies of the kind are in a namespace. Their names in the state are then `NAMESPACE/NAME`.
    pub const fn has_namespaces(self) -> bool {
        matches!(
            self,
            Self::CalicoNetworkPolicy
                | Self::CalicoStagedNetworkPolicy
                | Self::CalicoStagedKubernetesNetworkPolicy
                | Self::CiliumNetworkPolicy
        )
    }

    /// Whether policies of the kind are proposals, which are audited and never enforced.
    pub const fn is_staged(self) -> bool {
        matches!(
            self,
            Self::CalicoStagedNetworkPolicy
                | Self::CalicoStagedGlobalNetworkPolicy
                | Self::CalicoStagedKubernetesNetworkPolicy
        )
    }

    /// Returns the kind's name in Kubernetes. Calico's kinds have the product's name before it, because NetworkPolicy is also a kind of
    /// Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::CalicoNetworkPolicy => "Calico NetworkPolicy",
            Self::CalicoGlobalNetworkPolicy => "Calico GlobalNetworkPolicy",
            Self::CalicoStagedNetworkPolicy => "Calico StagedNetworkPolicy",
            Self::CalicoStagedGlobalNetworkPolicy => "Calico StagedGlobalNetworkPolicy",
            Self::CalicoStagedKubernetesNetworkPolicy => "Calico StagedKubernetesNetworkPolicy",
            Self::CiliumNetworkPolicy => "CiliumNetworkPolicy",
            Self::CiliumClusterwideNetworkPolicy => "CiliumClusterwideNetworkPolicy",
        }
    }
}

/// A cluster policy's kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterPolicyName {
    /// The policy's kind.
    pub kind: ClusterPolicyKind,
    /// The policy's name, after its namespace and `/` if its kind has namespaces.
    pub name: Arc<str>,
}

impl ClusterPolicyName {
    /// Returns a key for maps that also hold NetworkPolicies. Its namespace is empty, so no NetworkPolicy has the same key.
    pub fn key(&self) -> PolicyName {
        PolicyName::new("", format!("{}/{}", self.kind.name(), self.name))
    }

    /// Returns the path of a rule in the policy's object, such as `spec.egress[2]`. `rule` is the rule's index in the policy's list, and
    /// `name` its name. Rules of Cilium have their paths as names, because rules of several lists form one list.
    pub fn rule_path(&self, direction: Direction, rule: usize, name: Option<&str>) -> String {
        match name.filter(|_| self.kind.is_cilium()) {
            Some(path) => path.to_owned(),
            None => format!("spec.{direction}[{rule}]"),
        }
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
    /// The policy's tier. [`Tier::NetworkPolicy`] only for policies of other products.
    pub tier: Tier,
    /// The place in the tier: the priority, or the other product's number. [`Order::LAST`] if the policy has none.
    pub order: Order,
    /// The text that decides between policies of the same tier and order, before their names do. Empty for kinds of Kubernetes.
    #[serde(default)]
    pub tie: Arc<str>,
    /// The policy's kind and name.
    pub name: ClusterPolicyName,
}

/// A ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy, or a policy of another product in the same form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPolicy {
    /// Its name and place in the order of evaluation.
    pub rank: Rank,
    /// The pods that the policy applies to. Never host-network pods.
    pub subject: PodPeer,
    /// Rules for traffic towards the pods, in order. If empty, the policy does not apply to ingress, unless it isolates.
    pub ingress: Vec<ClusterRule>,
    /// Rules for traffic from the pods, in order. If empty, the policy does not apply to egress, unless it isolates.
    pub egress: Vec<ClusterRule>,
    /// The directions in which the policy isolates its pods: the tier's [`end`](OtherTier::end) decides what no rule of the tier decides.
    /// Policies of Kubernetes' own kinds do not.
    #[serde(default)]
    pub isolates: Isolation,
    /// Whether the policy's rules form a union with those of all such policies of the tier, and of NetworkPolicies: of all of them the rules
    /// that deny come first, whatever the ranks.
    #[serde(default)]
    pub is_union: bool,
    /// The reason why the policy is invalid. `None` if the policy is valid. Its invalid rules accept nothing and deny everything.
    pub fault: Option<Arc<str>>,
    /// Its position in the source file. `None` if it comes from an API server.
    pub position: Option<Position>,
    /// The value of [`ENFORCEMENT_ANNOTATION`](super::ENFORCEMENT_ANNOTATION). `None` if absent: the configuration decides.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// Directions in which a policy isolates its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Isolation {
    /// Whether the policy isolates traffic towards the pods.
    pub ingress: bool,
    /// Whether the policy isolates traffic from the pods.
    pub egress: bool,
}

impl Isolation {
    /// Whether the policy isolates traffic in this direction.
    pub const fn of(self, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

/// One element of a cluster policy's `ingress` or `egress` list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRule {
    /// Its name, which need not be unique. `None` if the rule has none.
    pub name: Option<Arc<str>>,
    /// The action for matching traffic.
    pub action: RuleAction,
    /// The matching traffic. Its peers are `None` only in the replacement for an invalid rule and in rules of other products; an empty list
    /// matches nothing.
    pub traffic: PolicyRule,
    /// What else decides about traffic that the rule accepts, and is not evaluated here: `HTTP rules`. `None` if nothing does.
    #[serde(default)]
    pub then: Option<Arc<str>>,
    /// The rule's index in the list of the policy as it is written, for reports. `None` if it is the index in this list: lists of other
    /// products' policies may resolve to more rules.
    #[serde(default)]
    pub at: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_as_their_numbers_and_the_last_is_behind_all() {
        let numbers = [f64::NEG_INFINITY, -1e300, -1.5, -1.0, -0.0, 1e-300, 0.5, 1.0, 999.9, 1e3, 1e300, f64::INFINITY];
        let places = numbers.map(Order::of);
        assert!(places.is_sorted_by(|one, other| one < other), "{places:?}");
        assert!(places.iter().all(|place| *place < Order::LAST));
        assert_eq!((Order::of(0.0), Order::of(1e3)), (Order::of(-0.0), Order::NETWORK_POLICY));
    }

    #[test]
    fn tiers_of_other_products_stand_among_those_of_kubernetes_by_number_then_by_name() {
        let tier =
            |name: &str, order| Tier::Other(Arc::new(OtherTier { name: name.into(), order, end: RuleAction::Deny }));
        let mut tiers = [
            tier("a", Order::LAST),
            Tier::Baseline,
            tier("e", Order::of(1e6)),
            Tier::NetworkPolicy,
            tier("c", Order::of(1e6)),
            Tier::Admin,
            tier("first", Order::of(-1.0)),
        ];
        tiers.sort();
        let names: Vec<&str> = tiers.iter().map(Tier::name).collect();
        assert_eq!(names, ["first", "Admin", "c", "NetworkPolicy", "e", "Baseline", "a"]);
    }
}
