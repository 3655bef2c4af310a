//! Security groups of OpenStack Neutron, as Kuryr creates them from NetworkPolicies, for pods whose interfaces are Neutron ports.
//!
//! **Purpose.** Computes the desired security groups, their rules and their ports ([`Desired`]), and the requests that change a Neutron
//! server accordingly ([`plan`]).
//!
//! **Not its purpose.** It opens no connection: `bulkhead sync neutron` queries the server and sends the requests. It creates no ports,
//! which is Kuryr's task.
//!
//! ```text
//!  Transaction --sets, ports--> members (who is in which set) --.
//!              `-lists, by policy or as a whole ----------------+--> groups, lines --names--> Desired --plan--> requests
//!                                                                                    listed by the server --^
//! ```
//!
//! | group | attached to | allows |
//! |---|---|---|
//! | `UID` | pods that the policy selects | its rules: peers x ports |
//! | `UID_in`, `UID_eg`, `UID_in_1` ... | pods that rule 0, 1 ... names | nothing: rules name it as remote group |
//! | `open_in`, `open_eg` | pods that no policy isolates in this direction | everything |
//! | `node_NAME_in`, `node_NAME_eg` | isolated pods of a node | the node's addresses |
//! | `tiers_HASH_in` ... | pods with rules of cluster policies | the accepts, without the traffic that earlier rules deny |
//!
//! A port may do what any of its groups allows, as a pod may do what any of its policies allows. So each policy is a group, attached to any
//! number of ports. What is open because no policy isolates the pod is a separate group. As a rule of the policy's group, it would undo the
//! isolation by another policy: one for ingress would open egress.
//!
//! **Remote groups for exact sets.** If the addresses of a set are exactly those of some ports, rules name a group of these ports. A pod
//! that comes or goes then changes only its port and no rule. Other sets are written as the fewest blocks that cover them.
//!
//! **Named ports.** If a policy's port name has different numbers on different pods, each combination gets its own group. So no pod is open
//! on another pod's port.
//!
//! **Invariant.** The output is a function of the present sets, lists, ports and nodes. A group allows exactly what its rules allow for its
//! ports. If security groups cannot express that, the group allows nothing ([`Renderer::refusals`](super::Renderer::refusals)).
//!
//! **Rejected alternatives.** A group per pod's whole list, like the tables of other renderers: there are as many as combinations of
//! policies, none has a policy's UID, and a policy's change affects all of them. A peer group per set of the contract instead of per rule:
//! rules with several sets need fewer memberships, but twice the rules, which count against the quota.

mod desired;
mod intervals;
mod lines;
mod members;
mod names;
pub mod plan;
mod renderer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::Services;

pub use self::desired::{Attachment, Desired, Family, NAME_PREFIX, Remote, SecurityGroup, SecurityRule};
pub use self::renderer::{Changed, NeutronRenderer};
use crate::contract::{ListId, Peers};
use crate::object::PolicyName;
use crate::origin::Direction;

/// Maximum number of rules of one group and family. A project's default quota is 100 rules in total. A group with ten times as many takes
/// the agents more than a second to compile for each port. Source: Neutron's configuration reference, `quota_security_group_rule`.
pub const MAX_RULES: usize = 1_000;

/// Traffic that a policy's rule allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Allow {
    /// The rule's index in the policy's list.
    rule: usize,
    peers: Peers,
    services: Services,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum GroupKey {
    /// For ports that no policy isolates in the direction.
    Open(Direction),
    /// For isolated ports of the node.
    Node(Arc<str>, Direction),
    /// A policy's rules with the numbers of its port names. `None` for a direction that the policy does not cover.
    Policy { policy: PolicyName, ingress: Option<Arc<[Allow]>>, egress: Option<Arc<[Allow]>> },
    /// A whole rule list. `node` is the pods' node if the list has a rule for that node, otherwise `None`.
    Whole { direction: Direction, list: ListId, node: Option<Arc<str>> },
}

impl GroupKey {
    /// Returns the node whose addresses the group allows.
    fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Node(node, _) => Some(node),
            Self::Whole { node, .. } => node.as_ref(),
            Self::Open(_) | Self::Policy { .. } => None,
        }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(direction) => write!(f, "everything, {direction}"),
            Self::Node(node, direction) => write!(f, "own node {node}, {direction}"),
            Self::Policy { policy, .. } => write!(f, "policy {policy}"),
            Self::Whole { direction, .. } => write!(f, "{direction} of all tiers"),
        }
    }
}

/// A rule that names a peer group. The group's name is derived from the first such rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PeerUser {
    policy: PolicyName,
    direction: Direction,
    /// The rule's index in the policy's list. `nth` counts the rules derived from it.
    rule: usize,
    nth: usize,
}
