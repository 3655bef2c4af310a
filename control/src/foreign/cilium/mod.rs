//! Cilium's policies, of `cilium.io/v2`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ForeignName, Needs, Surroundings};
use crate::object::{ClusterPolicy, Enforcement, Position};

/// A CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The policy's kind and name.
    pub name: ForeignName,
    /// Its position in the source file. `None` if it comes from an API server.
    pub position: Option<Position>,
    /// The value of [`ENFORCEMENT_ANNOTATION`](crate::object::ENFORCEMENT_ANNOTATION). `None` if absent.
    pub enforcement: Option<Enforcement>,
}

/// A CiliumCIDRGroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CidrGroup {
    /// The group's name.
    pub name: Arc<str>,
}

impl Policy {
    /// Returns the kinds of objects that the policy's meaning depends on.
    pub(super) fn needs(&self) -> Needs {
        Needs::NOTHING
    }
}

/// Resolves a policy.
pub(super) fn resolve(_: &Policy, _: &Surroundings) -> Vec<ClusterPolicy> {
    Vec::new()
}
