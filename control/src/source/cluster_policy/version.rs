//! The versions of the API.

use crate::object::ClusterPolicyKind;

/// The versions that are read. They differ in fields, words and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1alpha1,
    V1alpha2,
}

impl Version {
    pub(super) fn of(kind: ClusterPolicyKind) -> Self {
        match kind {
            ClusterPolicyKind::ClusterNetworkPolicy => Self::V1alpha2,
            ClusterPolicyKind::AdminNetworkPolicy | ClusterPolicyKind::BaselineAdminNetworkPolicy => Self::V1alpha1,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V1alpha1 => "v1alpha1",
            Self::V1alpha2 => "v1alpha2",
        }
    }

    /// How many rules, peers and ports there may be in one list.
    pub(super) const fn most(self) -> usize {
        match self {
            Self::V1alpha1 => 100,
            Self::V1alpha2 => 25,
        }
    }

    /// The list of a rule's ports.
    pub(super) const fn ports(self) -> &'static str {
        match self {
            Self::V1alpha1 => "ports",
            Self::V1alpha2 => "protocols",
        }
    }
}
