//! The cache's input events and the changes that it returns.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PodKey;
use crate::foreign::ForeignName;
use crate::object::{
    ClusterPolicy, ClusterPolicyName, Namespace, Object, ObjectName, Pod, PodName, Policy, PolicyName, ServiceName,
};

/// One event from a source of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The object was added or changed.
    Apply(Object),
    /// The namespace was deleted.
    DeleteNamespace(Arc<str>),
    /// The pod was deleted.
    DeletePod(PodName),
    /// The node was deleted.
    DeleteNode(Arc<str>),
    /// The NetworkPolicy was deleted.
    DeletePolicy(PolicyName),
    /// The cluster policy was deleted.
    DeleteClusterPolicy(ClusterPolicyName),
    /// The Service was deleted.
    DeleteService(ServiceName),
    /// The EndpointSlice was deleted.
    DeleteEndpointSlice(ObjectName),
    /// The object of another product was deleted.
    DeleteForeign(ForeignName),
}

/// A change of one object in the cache.
#[derive(Clone, Debug)]
pub enum CacheChange {
    /// A namespace changed.
    Namespace {
        /// The namespace's name.
        name: Arc<str>,
        /// The namespace before the event. `None` if it did not exist.
        old: Option<Arc<Namespace>>,
        /// The namespace after the event. `None` if it was deleted.
        new: Option<Arc<Namespace>>,
    },
    /// A pod changed.
    Pod {
        /// The pod's key.
        key: PodKey,
        /// The pod before the event. `None` if it did not exist.
        old: Option<Arc<Pod>>,
        /// The pod after the event. `None` if it was deleted.
        new: Option<Arc<Pod>>,
    },
    /// A node changed.
    Node {
        /// The node's name.
        name: Arc<str>,
    },
    /// The set of quarantined addresses changed ([`Cache::quarantined`](super::Cache::quarantined)).
    Quarantine,
    /// A NetworkPolicy changed.
    Policy {
        /// The policy's name.
        name: PolicyName,
        /// The policy before the event. `None` if it did not exist.
        old: Option<Arc<Policy>>,
        /// The policy after the event. `None` if it was deleted.
        new: Option<Arc<Policy>>,
    },
    /// A cluster policy changed.
    ClusterPolicy {
        /// The policy's name.
        name: ClusterPolicyName,
        /// The policy before the event. `None` if it did not exist.
        old: Option<Arc<ClusterPolicy>>,
        /// The policy after the event. `None` if it was deleted.
        new: Option<Arc<ClusterPolicy>>,
    },
}
