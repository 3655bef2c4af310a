//! Security groups of OpenStack Neutron: what Kuryr makes of NetworkPolicies, for pods whose interfaces are Neutron's ports.
//!
//! **Purpose.** Says which security groups there should be, which rules they have and which ports are in them ([`Desired`]), and which
//! requests lead there from what a Neutron server has ([`plan`]).
//!
//! **Not its purpose.** It opens no connection: whoever asks the server and sends the requests is `bulkhead sync neutron`. It makes no
//! ports: that is Kuryr.
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
//! | `tiers_HASH_in` ... | pods that cluster policies have a say in | what is left of the accepts without the denies before them |
//!
//! A port's verdict is the union of its groups, as a pod's is the union of its policies: so a policy is a group, and it may be attached
//! to as many ports as it likes. What is open because nothing isolates is a group of its own and not a rule of the policy's group, or a
//! policy for ingress would take away what another one for egress forbids.
//!
//! **Remote groups where they are exact.** A set of addresses that are all those of some ports is written as a group of these ports: a
//! pod that comes or goes then changes its own port and no rule. Any other set is the fewest blocks that cover it.
//!
//! **Named ports.** Pods on which a policy's port name has other numbers get a group of their own, so that no pod is open on another's
//! port.
//!
//! **Invariant.** What comes out is a function of the present sets, lists, ports and nodes. What a group allows is exactly what its rules
//! allow for its ports, or, where security groups cannot say that, nothing ([`Renderer::refusals`](super::Renderer::refusals)).
//!
//! **What lost.** A group for each pod's whole list, as the other renderers have tables: there are as many as combinations of policies,
//! nothing of them bears a policy's UID, and a change of a policy changes all of them. A peer group for each set of the contract instead
//! of one for what a rule names: fewer memberships where rules name several sets, but twice the rules, which the API counts against the
//! quota.

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

/// The most rules of one group and family. A project may have 100 in all unless its quota is raised; ten times that in a single group is
/// more than the agents compile in a second for each port.
/// Source: Neutron's configuration reference, `quota_security_group_rule`.
pub const MAX_RULES: usize = 1_000;

/// What a policy's rule allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Allow {
    /// The rule's position in the policy's list.
    rule: usize,
    peers: Peers,
    services: Services,
}

/// What makes two groups the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum GroupKey {
    /// For ports that nothing isolates in the direction.
    Open(Direction),
    /// For isolated ports on the node.
    Node(Arc<str>, Direction),
    /// A policy's rules with the numbers that its port names have; none for a direction that it has no say in.
    Policy { policy: PolicyName, ingress: Option<Arc<[Allow]>>, egress: Option<Arc<[Allow]>> },
    /// A list as a whole; with the node where it says something of the own node.
    Whole { direction: Direction, list: ListId, node: Option<Arc<str>> },
}

impl GroupKey {
    /// The node whose addresses it allows.
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

/// A rule that names a peer group, which is called after the first of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PeerUser {
    policy: PolicyName,
    direction: Direction,
    /// The rule's position in the policy's list, and which of those that it became.
    rule: usize,
    nth: usize,
}
