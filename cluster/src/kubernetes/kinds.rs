//! The kinds of objects that are followed.

use std::collections::BTreeSet;
use std::fmt;

use bulkhead_control::foreign::ForeignKind;
use bulkhead_control::inventory::Key;
use bulkhead_control::object::ClusterPolicyKind;
use bulkhead_control::source::{ForeignKinds, KindName};

/// The purpose for which a kind is followed. The two purposes are independent: neither waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// The kind's objects determine policy.
    Policy,
    /// The kind's objects determine the backends of Services.
    Services,
}

impl Purpose {
    pub(super) const ALL: [Self; 2] = [Self::Policy, Self::Services];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// A kind of objects that policy or the resolver of Services depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Namespaces, API version `v1`.
    Namespace,
    /// Nodes, API version `v1`.
    Node,
    /// Pods, API version `v1`.
    Pod,
    /// NetworkPolicies, API version `networking.k8s.io/v1`.
    NetworkPolicy,
    /// API version `policy.networking.k8s.io/v1alpha2`, if the server has this kind.
    ClusterNetworkPolicy,
    /// API version `policy.networking.k8s.io/v1alpha1`, if the server has this kind.
    AdminNetworkPolicy,
    /// API version `policy.networking.k8s.io/v1alpha1`, if the server has this kind.
    BaselineAdminNetworkPolicy,
    /// API version `v1`, if Services are followed.
    Service,
    /// API version `discovery.k8s.io/v1`, or `v1beta1` on servers before Kubernetes 1.21, if Services are followed.
    EndpointSlice,
    /// Calico's Tiers. This and all following kinds are followed if policies of other products are read.
    CalicoTier,
    /// Calico's NetworkPolicies.
    CalicoNetworkPolicy,
    /// Calico's GlobalNetworkPolicies.
    CalicoGlobalNetworkPolicy,
    /// Calico's StagedNetworkPolicies.
    CalicoStagedNetworkPolicy,
    /// Calico's StagedGlobalNetworkPolicies.
    CalicoStagedGlobalNetworkPolicy,
    /// Calico's StagedKubernetesNetworkPolicies.
    CalicoStagedKubernetesNetworkPolicy,
    /// Calico's NetworkSets.
    CalicoNetworkSet,
    /// Calico's GlobalNetworkSets.
    CalicoGlobalNetworkSet,
    /// Calico's HostEndpoints.
    CalicoHostEndpoint,
    /// CiliumNetworkPolicies.
    CiliumNetworkPolicy,
    /// CiliumClusterwideNetworkPolicies.
    CiliumClusterwideNetworkPolicy,
    /// CiliumCIDRGroups.
    CiliumCidrGroup,
    /// ServiceAccounts, API version `v1`.
    ServiceAccount,
}

/// The API versions of Calico's kinds. Calico stores its objects in the first; an API server of its own, which may be away, has the second.
/// Newer clusters may have only the second.
const CALICO: &[&str] = &["crd.projectcalico.org/v1", "projectcalico.org/v3"];

impl Kind {
    /// Returns the kind of the object with this key.
    pub(super) fn of(key: &Key) -> Self {
        match key {
            Key::Foreign(name) => match name.kind {
                ForeignKind::CalicoTier => Self::CalicoTier,
                ForeignKind::CalicoNetworkPolicy => Self::CalicoNetworkPolicy,
                ForeignKind::CalicoGlobalNetworkPolicy => Self::CalicoGlobalNetworkPolicy,
                ForeignKind::CalicoStagedNetworkPolicy => Self::CalicoStagedNetworkPolicy,
                ForeignKind::CalicoStagedGlobalNetworkPolicy => Self::CalicoStagedGlobalNetworkPolicy,
                ForeignKind::CalicoNetworkSet => Self::CalicoNetworkSet,
                ForeignKind::CalicoGlobalNetworkSet => Self::CalicoGlobalNetworkSet,
                ForeignKind::CalicoHostEndpoint => Self::CalicoHostEndpoint,
                ForeignKind::CiliumNetworkPolicy => Self::CiliumNetworkPolicy,
                ForeignKind::CiliumClusterwideNetworkPolicy => Self::CiliumClusterwideNetworkPolicy,
                ForeignKind::CiliumCidrGroup => Self::CiliumCidrGroup,
                ForeignKind::ServiceAccount => Self::ServiceAccount,
            },
            Key::Service(_) => Self::Service,
            Key::EndpointSlice(_) => Self::EndpointSlice,
            Key::Namespace(_) => Self::Namespace,
            Key::Node(_) => Self::Node,
            Key::Pod(_) => Self::Pod,
            Key::Policy(_) => Self::NetworkPolicy,
            Key::ClusterPolicy(name) => match name.kind {
                ClusterPolicyKind::ClusterNetworkPolicy => Self::ClusterNetworkPolicy,
                ClusterPolicyKind::AdminNetworkPolicy => Self::AdminNetworkPolicy,
                ClusterPolicyKind::BaselineAdminNetworkPolicy => Self::BaselineAdminNetworkPolicy,
                ClusterPolicyKind::CalicoNetworkPolicy => Self::CalicoNetworkPolicy,
                ClusterPolicyKind::CalicoGlobalNetworkPolicy => Self::CalicoGlobalNetworkPolicy,
                ClusterPolicyKind::CalicoStagedNetworkPolicy => Self::CalicoStagedNetworkPolicy,
                ClusterPolicyKind::CalicoStagedGlobalNetworkPolicy => Self::CalicoStagedGlobalNetworkPolicy,
                ClusterPolicyKind::CalicoStagedKubernetesNetworkPolicy => Self::CalicoStagedKubernetesNetworkPolicy,
                ClusterPolicyKind::CiliumNetworkPolicy => Self::CiliumNetworkPolicy,
                ClusterPolicyKind::CiliumClusterwideNetworkPolicy => Self::CiliumClusterwideNetworkPolicy,
            },
        }
    }

    /// All kinds.
    pub const ALL: [Self; 22] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::NetworkPolicy,
        Self::ClusterNetworkPolicy,
        Self::AdminNetworkPolicy,
        Self::BaselineAdminNetworkPolicy,
        Self::Service,
        Self::EndpointSlice,
        Self::CalicoTier,
        Self::CalicoNetworkPolicy,
        Self::CalicoGlobalNetworkPolicy,
        Self::CalicoStagedNetworkPolicy,
        Self::CalicoStagedGlobalNetworkPolicy,
        Self::CalicoStagedKubernetesNetworkPolicy,
        Self::CalicoNetworkSet,
        Self::CalicoGlobalNetworkSet,
        Self::CalicoHostEndpoint,
        Self::CiliumNetworkPolicy,
        Self::CiliumClusterwideNetworkPolicy,
        Self::CiliumCidrGroup,
        Self::ServiceAccount,
    ];

    /// Returns the kind's name for messages. Calico's kinds have the product's name before it, because NetworkPolicy is also a kind of
    /// Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CalicoTier => "Calico Tier",
            Self::CalicoNetworkPolicy => "Calico NetworkPolicy",
            Self::CalicoGlobalNetworkPolicy => "Calico GlobalNetworkPolicy",
            Self::CalicoStagedNetworkPolicy => "Calico StagedNetworkPolicy",
            Self::CalicoStagedGlobalNetworkPolicy => "Calico StagedGlobalNetworkPolicy",
            Self::CalicoStagedKubernetesNetworkPolicy => "Calico StagedKubernetesNetworkPolicy",
            Self::CalicoNetworkSet => "Calico NetworkSet",
            Self::CalicoGlobalNetworkSet => "Calico GlobalNetworkSet",
            Self::CalicoHostEndpoint => "Calico HostEndpoint",
            _ => self.api_kind(),
        }
    }

    /// Returns the kind's name in the API.
    pub const fn api_kind(self) -> &'static str {
        match self {
            Self::CalicoTier => "Tier",
            Self::CalicoNetworkPolicy => "NetworkPolicy",
            Self::CalicoGlobalNetworkPolicy => "GlobalNetworkPolicy",
            Self::CalicoStagedNetworkPolicy => "StagedNetworkPolicy",
            Self::CalicoStagedGlobalNetworkPolicy => "StagedGlobalNetworkPolicy",
            Self::CalicoStagedKubernetesNetworkPolicy => "StagedKubernetesNetworkPolicy",
            Self::CalicoNetworkSet => "NetworkSet",
            Self::CalicoGlobalNetworkSet => "GlobalNetworkSet",
            Self::CalicoHostEndpoint => "HostEndpoint",
            Self::CiliumNetworkPolicy => "CiliumNetworkPolicy",
            Self::CiliumClusterwideNetworkPolicy => "CiliumClusterwideNetworkPolicy",
            Self::CiliumCidrGroup => "CiliumCIDRGroup",
            Self::ServiceAccount => "ServiceAccount",
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
        }
    }

    /// Returns the resource's name in URLs and RBAC rules.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Namespace => "namespaces",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::NetworkPolicy => "networkpolicies",
            Self::ClusterNetworkPolicy => "clusternetworkpolicies",
            Self::AdminNetworkPolicy => "adminnetworkpolicies",
            Self::BaselineAdminNetworkPolicy => "baselineadminnetworkpolicies",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::CalicoTier => "tiers",
            Self::CalicoNetworkPolicy => "networkpolicies",
            Self::CalicoGlobalNetworkPolicy => "globalnetworkpolicies",
            Self::CalicoStagedNetworkPolicy => "stagednetworkpolicies",
            Self::CalicoStagedGlobalNetworkPolicy => "stagedglobalnetworkpolicies",
            Self::CalicoStagedKubernetesNetworkPolicy => "stagedkubernetesnetworkpolicies",
            Self::CalicoNetworkSet => "networksets",
            Self::CalicoGlobalNetworkSet => "globalnetworksets",
            Self::CalicoHostEndpoint => "hostendpoints",
            Self::CiliumNetworkPolicy => "ciliumnetworkpolicies",
            Self::CiliumClusterwideNetworkPolicy => "ciliumclusterwidenetworkpolicies",
            Self::CiliumCidrGroup => "ciliumcidrgroups",
            Self::ServiceAccount => "serviceaccounts",
        }
    }

    /// Returns the API versions in which the kind is read. The first one that the server has is used.
    pub(super) const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Namespace | Self::Node | Self::Pod | Self::Service | Self::ServiceAccount => &["v1"],
            Self::NetworkPolicy => &["networking.k8s.io/v1"],
            Self::ClusterNetworkPolicy => &["policy.networking.k8s.io/v1alpha2"],
            Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy => &["policy.networking.k8s.io/v1alpha1"],
            // Kubernetes 1.17 to 1.20 has only the second one, Kubernetes 1.25 and later only the first.
            Self::EndpointSlice => &["discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"],
            Self::CalicoTier
            | Self::CalicoNetworkPolicy
            | Self::CalicoGlobalNetworkPolicy
            | Self::CalicoStagedNetworkPolicy
            | Self::CalicoStagedGlobalNetworkPolicy
            | Self::CalicoStagedKubernetesNetworkPolicy
            | Self::CalicoNetworkSet
            | Self::CalicoGlobalNetworkSet
            | Self::CalicoHostEndpoint => CALICO,
            Self::CiliumNetworkPolicy | Self::CiliumClusterwideNetworkPolicy => &["cilium.io/v2"],
            Self::CiliumCidrGroup => &["cilium.io/v2", "cilium.io/v2alpha1"],
        }
    }

    /// Returns the preferred API version.
    pub const fn api_version(self) -> &'static str {
        self.api_versions()[0]
    }

    /// Returns the kind in each API version in which it is read, the preferred one first.
    pub(super) fn forms(self, foreign: ForeignKinds) -> impl Iterator<Item = Form> {
        self.api_versions().iter().map(move |api_version| Form { kind: self, api_version, foreign })
    }

    /// Returns the purpose for which the kind is followed. Nodes count as policy, but batches of Services include them too.
    pub const fn purpose(self) -> Purpose {
        match self {
            Self::Service | Self::EndpointSlice => Purpose::Services,
            _ => Purpose::Policy,
        }
    }

    /// Whether policy is complete on a server without this kind.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::ClusterNetworkPolicy | Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy)
            || (self.is_foreign() && !matches!(self, Self::ServiceAccount))
    }

    /// Whether only policies of other products need the kind.
    pub(super) const fn is_foreign(self) -> bool {
        self.index() >= Self::CalicoTier.index()
    }

    /// Whether objects of the kind are policies of another product that the product enforces.
    pub(super) const fn is_foreign_policy(self) -> bool {
        matches!(
            self,
            Self::CalicoNetworkPolicy
                | Self::CalicoGlobalNetworkPolicy
                | Self::CiliumNetworkPolicy
                | Self::CiliumClusterwideNetworkPolicy
        )
    }

    /// Returns the API groups in which the kind is read. The name of Kubernetes' core group is empty.
    pub fn groups(self) -> BTreeSet<&'static str> {
        self.forms(ForeignKinds::Skip).map(Form::group).collect()
    }

    /// Whether `name` names the kind, in any of the groups in which it is read.
    pub(super) fn is_named(self, name: &KindName) -> bool {
        self.groups().into_iter().any(|group| name.is(group, self.api_kind()))
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kind in one of its API versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) kind: Kind,
    pub(super) api_version: &'static str,
    /// For what policies of other products are read.
    pub(super) foreign: ForeignKinds,
}

impl Form {
    /// Returns the kind in its preferred API version.
    pub(super) const fn preferred(kind: Kind) -> Self {
        Self { kind, api_version: kind.api_version(), foreign: ForeignKinds::Skip }
    }

    /// Returns the API group. Empty for Kubernetes' core.
    pub(super) fn group(self) -> &'static str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the URL path of all objects of the kind.
    pub(super) fn path(self) -> String {
        let root = if self.group().is_empty() { "/api" } else { "/apis" };
        format!("{root}/{}/{}", self.api_version, self.kind.resource())
    }
}
