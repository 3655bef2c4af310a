//! What comes into the cache, and what it tells of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PodKey;
use crate::object::{
    ClusterPolicy, ClusterPolicyName, Namespace, Object, ObjectName, Pod, PodName, Policy, PolicyName, ServiceName,
};

/// One event from a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The object is there, new or changed.
    Apply(Object),
    /// The namespace is gone.
    DeleteNamespace(Arc<str>),
    /// The pod is gone.
    DeletePod(PodName),
    /// The node is gone.
    DeleteNode(Arc<str>),
    /// The policy is gone.
    DeletePolicy(PolicyName),
    /// The cluster policy is gone.
    DeleteClusterPolicy(ClusterPolicyName),
    /// The Service is gone.
    DeleteService(ServiceName),
    /// The endpoint slice is gone.
    DeleteEndpointSlice(ObjectName),
}

/// What an event changed: the object before and after, none where it was or is absent.
#[derive(Clone, Debug)]
pub enum CacheChange {
    /// A namespace.
    Namespace {
        /// Its name.
        name: Arc<str>,
        /// Before.
        old: Option<Arc<Namespace>>,
        /// After.
        new: Option<Arc<Namespace>>,
    },
    /// A pod.
    Pod {
        /// Its key.
        key: PodKey,
        /// Before.
        old: Option<Arc<Pod>>,
        /// After.
        new: Option<Arc<Pod>>,
    },
    /// A node.
    Node {
        /// Its name.
        name: Arc<str>,
    },
    /// The addresses of which it cannot be told whose they are.
    Quarantine,
    /// A policy.
    Policy {
        /// Its name.
        name: PolicyName,
        /// Before.
        old: Option<Arc<Policy>>,
        /// After.
        new: Option<Arc<Policy>>,
    },
    /// A cluster policy.
    ClusterPolicy {
        /// Its name.
        name: ClusterPolicyName,
        /// Before.
        old: Option<Arc<ClusterPolicy>>,
        /// After.
        new: Option<Arc<ClusterPolicy>>,
    },
}
