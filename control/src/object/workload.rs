//! What a pod belongs to: the object that has made it and will replace it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What makes pods of one kind: a Deployment, a `StatefulSet`, a `CronJob`. A pod that nothing makes is its own workload.
///
/// Pods of one workload have the same labels and ports but for what its controller adds, so that policies treat them alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Workload {
    /// `Deployment`, `StatefulSet`, or any other kind that a controller has; `Pod` for a pod that nothing makes.
    pub kind: Arc<str>,
    /// Its name; its namespace is that of its pods.
    pub name: Arc<str>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}
