//! The workload of a pod: the object that created the pod and will replace it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The controller that creates a group of pods, such as a Deployment, `StatefulSet` or `CronJob`. A pod without a controller is its own
/// workload.
///
/// Pods of one workload have the same ports, and the same labels except those that the controller adds. So policies treat them alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Workload {
    /// The controller's kind, such as `Deployment`, or `Pod` for a pod without a controller.
    pub kind: Arc<str>,
    /// The controller's name, in the same namespace as its pods.
    pub name: Arc<str>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}
