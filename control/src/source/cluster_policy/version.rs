//! API versions of cluster policies.

use crate::object::ClusterPolicyKind;

/// A supported API version. The versions differ in fields, keywords and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1alpha1,
    V1alpha2,
}

impl Version {
    pub(super) fn of(kind: ClusterPolicyKind) -> Self {
        match kind {
            ClusterPolicyKind::AdminNetworkPolicy | ClusterPolicyKind::BaselineAdminNetworkPolicy => Self::V1alpha1,
            _ => Self::V1alpha2,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V1alpha1 => "v1alpha1",
            Self::V1alpha2 => "v1alpha2",
        }
    }

    /// Returns the maximum number of rules, peers or ports in one list.
    pub(super) const fn most(self) -> usize {
        match self {
            Self::V1alpha1 => 100,
            Self::V1alpha2 => 25,
        }
    }

    /// Returns the name of the field with a rule's ports.
    pub(super) const fn ports(self) -> &'static str {
        match self {
            Self::V1alpha1 => "ports",
            Self::V1alpha2 => "protocols",
        }
    }
}
