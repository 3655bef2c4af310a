//! Kinds and names of other products' objects.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A kind of object that only policies of other products need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ForeignKind {
    /// Calico's Tier.
    CalicoTier,
    /// Calico's NetworkPolicy.
    CalicoNetworkPolicy,
    /// Calico's GlobalNetworkPolicy.
    CalicoGlobalNetworkPolicy,
    /// Calico's StagedNetworkPolicy.
    CalicoStagedNetworkPolicy,
    /// Calico's StagedGlobalNetworkPolicy.
    CalicoStagedGlobalNetworkPolicy,
    /// Calico's NetworkSet.
    CalicoNetworkSet,
    /// Calico's GlobalNetworkSet.
    CalicoGlobalNetworkSet,
    /// Calico's HostEndpoint, whose addresses selectors may select.
    CalicoHostEndpoint,
    /// CiliumNetworkPolicy.
    CiliumNetworkPolicy,
    /// CiliumClusterwideNetworkPolicy.
    CiliumClusterwideNetworkPolicy,
    /// CiliumCIDRGroup.
    CiliumCidrGroup,
    /// ServiceAccount of Kubernetes.
    ServiceAccount,
}

impl ForeignKind {
    /// Returns the kind's name for messages. Calico's kinds have the product's name before it, because NetworkPolicy is also a kind of
    /// Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CalicoTier => "Calico Tier",
            Self::CalicoNetworkPolicy => "Calico NetworkPolicy",
            Self::CalicoGlobalNetworkPolicy => "Calico GlobalNetworkPolicy",
            Self::CalicoStagedNetworkPolicy => "Calico StagedNetworkPolicy",
            Self::CalicoStagedGlobalNetworkPolicy => "Calico StagedGlobalNetworkPolicy",
            Self::CalicoNetworkSet => "Calico NetworkSet",
            Self::CalicoGlobalNetworkSet => "Calico GlobalNetworkSet",
            Self::CalicoHostEndpoint => "Calico HostEndpoint",
            Self::CiliumNetworkPolicy => "CiliumNetworkPolicy",
            Self::CiliumClusterwideNetworkPolicy => "CiliumClusterwideNetworkPolicy",
            Self::CiliumCidrGroup => "CiliumCIDRGroup",
            Self::ServiceAccount => "ServiceAccount",
        }
    }

    /// Whether objects of the kind are policies.
    pub const fn is_policy(self) -> bool {
        match self {
            Self::CalicoNetworkPolicy
            | Self::CalicoGlobalNetworkPolicy
            | Self::CalicoStagedNetworkPolicy
            | Self::CalicoStagedGlobalNetworkPolicy
            | Self::CiliumNetworkPolicy
            | Self::CiliumClusterwideNetworkPolicy => true,
            Self::CalicoTier
            | Self::CalicoNetworkSet
            | Self::CalicoGlobalNetworkSet
            | Self::CalicoHostEndpoint
            | Self::CiliumCidrGroup
            | Self::ServiceAccount => false,
        }
    }
}

/// The kind and name of another product's object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ForeignName {
    /// The object's kind.
    pub kind: ForeignKind,
    /// The object's name, after its namespace and `/` if its kind has namespaces.
    pub name: Arc<str>,
}

impl fmt::Display for ForeignName {
    /// Writes kind and name: `Calico NetworkPolicy shop/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)
    }
}
