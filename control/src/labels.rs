//! Labels of objects.

use std::collections::BTreeMap;
use std::sync::Arc;

/// An object's labels: values by key.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// The label that the API server sets on every namespace, with the namespace's name as value. Source: Kubernetes "Well-Known Labels,
/// Annotations and Taints".
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
