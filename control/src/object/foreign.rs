//! Objects of other products as sources read them, and those of Kubernetes that only policies of other products depend on.
//!
//! [`crate::foreign`] gives them their meaning.

pub mod calico;
pub mod cilium;
mod name;
mod selector;

use serde::{Deserialize, Serialize};

pub use self::name::{ForeignKind, ForeignName};
use super::{Labels, ObjectName, Position};

/// An object of another product, or one of Kubernetes that only policies of other products depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForeignObject {
    /// A policy of Calico, of any kind.
    CalicoPolicy(Box<calico::Policy>),
    /// A Tier of Calico.
    CalicoTier(calico::Tier),
    /// A NetworkSet or GlobalNetworkSet of Calico.
    CalicoNetworkSet(calico::NetworkSet),
    /// A CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy.
    CiliumPolicy(cilium::Policy),
    /// A CiliumCIDRGroup.
    CiliumCidrGroup(cilium::CidrGroup),
    /// A ServiceAccount.
    ServiceAccount(ServiceAccount),
}

/// A ServiceAccount of Kubernetes, whose labels policies of Calico select by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccount {
    /// Its namespace and name.
    pub name: ObjectName,
    /// Its labels.
    pub labels: Labels,
}

impl ForeignObject {
    /// Returns the object's kind and name.
    pub fn name(&self) -> ForeignName {
        let of = |kind, name: &dyn ToString| ForeignName { kind, name: name.to_string().into() };
        match self {
            Self::CalicoPolicy(policy) => policy.name.clone(),
            Self::CalicoTier(tier) => of(ForeignKind::CalicoTier, &tier.name),
            Self::CalicoNetworkSet(set) => set.name.clone(),
            Self::CiliumPolicy(policy) => policy.name.clone(),
            Self::CiliumCidrGroup(group) => of(ForeignKind::CiliumCidrGroup, &group.name),
            Self::ServiceAccount(account) => of(ForeignKind::ServiceAccount, &account.name),
        }
    }

    /// Whether two objects differ at most in their positions.
    pub fn is_same(&self, other: &Self) -> bool {
        let without = |object: &Self| match object.clone() {
            Self::CalicoPolicy(policy) => Self::CalicoPolicy(Box::new(calico::Policy { position: None, ..*policy })),
            Self::CiliumPolicy(policy) => Self::CiliumPolicy(cilium::Policy { position: None, ..policy }),
            other => other,
        };
        without(self) == without(other)
    }

    /// Sets the policy's position in its source file. Has no effect on other kinds.
    pub fn set_position(&mut self, position: Position) {
        match self {
            Self::CalicoPolicy(policy) => policy.position = Some(position),
            Self::CiliumPolicy(policy) => policy.position = Some(position),
            Self::CalicoTier(_) | Self::CalicoNetworkSet(_) | Self::CiliumCidrGroup(_) | Self::ServiceAccount(_) => {}
        }
    }

    /// Returns the policy's position in its source file. `None` for other kinds, and if it comes from an API server.
    pub fn position(&self) -> Option<&Position> {
        match self {
            Self::CalicoPolicy(policy) => policy.position.as_ref(),
            Self::CiliumPolicy(policy) => policy.position.as_ref(),
            Self::CalicoTier(_) | Self::CalicoNetworkSet(_) | Self::CiliumCidrGroup(_) | Self::ServiceAccount(_) => {
                None
            }
        }
    }
}
