//! Where a rule comes from: what stands behind the classifier's opaque marks.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use crate::object::PolicyName;

/// The direction of traffic from the pod's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Towards the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a rule is in a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A rule of a policy.
    Policy {
        /// The policy.
        policy: PolicyName,
        /// Which of its lists.
        direction: Direction,
        /// The rule's position in that list, from 0.
        rule: usize,
    },
    /// The end of a list: these policies isolate the pod and none of them allows the traffic.
    Isolation {
        /// The policies, sorted.
        policies: Arc<[PolicyName]>,
        /// The isolated direction.
        direction: Direction,
    },
    /// No policy isolates the pod in this direction.
    NotIsolated(Direction),
    /// Traffic between a pod and the node it runs on, either way, is always allowed (kubelet probes, node-local DNS).
    /// Source: Kubernetes "Network Policies", "The two sorts of pod isolation": "traffic to and from the node where a
    /// Pod is running is always allowed".
    OwnNode,
    /// A pod always reaches itself.
    /// Source: Kubernetes "Network Policies", "What you can't do with network policies": no blocking of loopback.
    OwnPod,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy, direction, rule } => write!(f, "{policy} {direction}[{rule}]"),
            Self::Isolation { policies, direction } => {
                write!(f, "{direction} isolated by ")?;
                for (at, policy) in policies.iter().enumerate() {
                    write!(f, "{}{policy}", if at > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Self::NotIsolated(direction) => write!(f, "no {direction} isolation"),
            Self::OwnNode => f.write_str("own node"),
            Self::OwnPod => f.write_str("own pod"),
        }
    }
}

/// Numbers the origins, so that a rule and a session carry four bytes instead of names.
///
/// A number once given keeps its meaning for the life of the table, because sessions outlive the rules that made them.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    by_id: Vec<Origin>,
    ids: HashMap<Origin, OriginId>,
}

impl Origins {
    /// The number of the origin, a new one when it has none yet.
    ///
    /// # Panics
    /// After 2^32 different origins, which no cluster's history reaches.
    pub fn id(&mut self, origin: Origin) -> OriginId {
        if let Some(&id) = self.ids.get(&origin) {
            return id;
        }
        let id = OriginId(u32::try_from(self.by_id.len()).expect("fewer than 2^32 origins"));
        self.by_id.push(origin.clone());
        self.ids.insert(origin, id);
        id
    }

    /// What the number stands for.
    pub fn get(&self, id: OriginId) -> Option<&Origin> {
        self.by_id.get(id.0 as usize)
    }
}
