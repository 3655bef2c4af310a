//! Labels of objects.

use std::collections::BTreeMap;
use std::sync::Arc;

/// An object's labels: values by key.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// The label that the API server sets on every namespace, with the namespace's name as value. Source: Kubernetes "Well-Known Labels,
/// Annotations and Taints".
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The label that the Deployment controller sets on a `ReplicaSet` and its pods. The `ReplicaSet`'s name is the Deployment's name, `-` and
/// the label's value.
pub const TEMPLATE_HASH_LABEL: &str = "pod-template-hash";
