//! The kinds of objects that are followed.

use std::fmt;

/// API group of the cluster-wide policies.
pub(super) const CLUSTER_POLICY_GROUP: &str = "policy.networking.k8s.io";

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
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::NetworkPolicy,
        Self::ClusterNetworkPolicy,
        Self::AdminNetworkPolicy,
        Self::BaselineAdminNetworkPolicy,
        Self::Service,
        Self::EndpointSlice,
    ];

    /// Returns the kind's name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
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
        }
    }

    /// Returns the API versions in which the kind is read. The first one that the server has is used.
    const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Namespace | Self::Node | Self::Pod | Self::Service => &["v1"],
            Self::NetworkPolicy => &["networking.k8s.io/v1"],
            Self::ClusterNetworkPolicy => &["policy.networking.k8s.io/v1alpha2"],
            Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy => &["policy.networking.k8s.io/v1alpha1"],
            // Kubernetes 1.17 to 1.20 has only the second one, Kubernetes 1.25 and later only the first.
            Self::EndpointSlice => &["discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"],
        }
    }

    /// Returns the preferred API version.
    pub const fn api_version(self) -> &'static str {
        self.api_versions()[0]
    }

    /// Returns the kind in each API version in which it is read, the preferred one first.
    pub(super) fn forms(self) -> impl Iterator<Item = Form> {
        self.api_versions().iter().map(move |api_version| Form { kind: self, api_version })
    }

    /// Returns the API group. Empty for Kubernetes' core.
    pub(super) fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
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
}

impl Form {
    /// Returns the kind in its preferred API version.
    pub(super) const fn preferred(kind: Kind) -> Self {
        Self { kind, api_version: kind.api_version() }
    }

    /// Returns the URL path of all objects of the kind.
    pub(super) fn path(self) -> String {
        let root = if self.kind.group().is_empty() { "/api" } else { "/apis" };
        format!("{root}/{}/{}", self.api_version, self.kind.resource())
    }
}
