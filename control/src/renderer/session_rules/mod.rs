//! Session rules: tables in ingress orientation, for stacks that judge a connection where it is opened or accepted.
//!
//! **Purpose.** A renderer beside [`super::acl`] and [`super::contiv`], for applications on a host stack (VPP's session layer). It encodes
//! Contiv's tables in ingress orientation as session rules, and keeps the stack's table equal to them with the fewest requests.
//!
//! [`SourceRenderer`] uses it with Bulkhead's own session table, which the dataplane enforces with `enforce: source`.
//!
//! **Not its purpose.** Rules for protocols other than TCP and UDP, which have no sessions there. Connections to a stack, which a
//! [`SessionTarget`] opens.
//!
//! ```text
//!  PodConfig --contiv, ingress orientation--> local table of each pod --encode--> rules of scope local, namespace of the pod
//!                                             global table            --encode--> rules of scope global
//!                                                       wanted rules - installed rules = requests --> SessionTarget
//! ```
//!
//! | rule | scope | local side | remote side |
//! |---|---|---|---|
//! | of a pod's table | its application namespace | any address, any port | destination network and port |
//! | of the global table | global | the pod's address, destination port | source network, any port |
//!
//! * A rule for any protocol becomes two rules, TCP and UDP. Of two rules with one match, the first in the sorted table stays.
//! * A remote side of all addresses of a family becomes two halves (`0.0.0.0/1` and `128.0.0.0/1`, `::/1` and `8000::/1`), because stacks
//!   have rules of their own at length 0 (VPP: its proxy's). A rule without a family becomes rules for both.
//! * These derived rules have the same tag as others. Contiv marks them (`-ANY`, `-SPLIT`) to reconstruct its rules from a dump. Here, a
//!   dump is compared with the desired session rules.
//! * The final allow of a table is not encoded, because a stack allows by default. Other allows of a whole protocol are encoded, since a
//!   deny may follow.
//! * A pod's rules for its own addresses are left out. If the rest is denied, its own addresses are allowed.
//!
//! **Invariant.** After a successful transaction the target has exactly the rules of all tables, also those of pods affected by a change of
//! others. After an error, the next transaction starts with a dump of the target.
//!
//! **Lookup.** As in Contiv, the stack must apply, of all matching rules, the one with the longest remote prefix, then the longest local
//! prefix, then the one with a port.

mod encode;
mod grouped;
mod lower;
mod moved;
mod renderer;
mod source;
mod table;

#[cfg(test)]
mod tests;

pub use renderer::{AttributedRule, SessionRenderer};
pub use source::SourceRenderer;
pub use table::SessionTable;

use std::fmt;

use bulkhead_classifier::{Action, protocol};
use ipnet::IpNet;

use crate::object::PodName;

/// The tag of Bulkhead's rules in the target's table. Rules with another tag have another owner and stay.
pub const TAG: &str = "bulkhead/policy";

/// Maximum number of requests in a call of [`SessionTarget::change`]: as many as fit Contiv's channel to VPP without waiting for a reply.
pub const BATCH: usize = 100;

/// Maximum number of session rules of one node. Each is a request, and a stack handles about 10,000 per second: more would make a
/// transaction last over half a minute.
pub const MAX_RULES: usize = 400_000;

/// The connections to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionScope {
    /// Connections from outside the node.
    Global,
    /// Connections opened by the applications of a namespace.
    Local {
        /// The application namespace's index.
        namespace: u32,
    },
}

/// The transport protocols with sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionTransport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl SessionTransport {
    /// Both transports.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// Returns the IANA protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
        }
    }
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionSide {
    /// The addresses. Both sides of a rule have the same family.
    pub network: IpNet,
    /// The port in host byte order. 0 for all ports.
    pub port: u16,
}

/// The connections of its scope that a rule matches. Unique in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionMatch {
    /// The scope that contains the connections.
    pub scope: SessionScope,
    /// The transport protocol.
    pub transport: SessionTransport,
    /// The connection's side on the node.
    pub local: SessionSide,
    /// The connection's remote side.
    pub remote: SessionSide,
}

/// A rule of a session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionRule {
    /// The matching connections.
    pub matches: SessionMatch,
    /// Whether these connections are allowed or denied.
    pub action: Action,
}

impl fmt::Display for SessionRule {
    /// As `deny local:3 TCP 0.0.0.0/0:0 <- 10.0.0.0/8:80`; the arrow points from the remote side.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionMatch { scope, transport, local, remote } = self.matches;
        match scope {
            SessionScope::Global => write!(f, "{} global ", self.action)?,
            SessionScope::Local { namespace } => write!(f, "{} local:{namespace} ", self.action)?,
        }
        let transport = if transport == SessionTransport::Tcp { "TCP" } else { "UDP" };
        write!(f, "{transport} {}:{} <- {}:{}", local.network, local.port, remote.network, remote.port)
    }
}

/// A change of a session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRequest {
    /// Adds a rule. The table must have none with the same match.
    Add(SessionRule),
    /// Deletes a rule.
    Delete(SessionRule),
}

/// A rule found in a target's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedRule {
    /// The rule.
    pub rule: SessionRule,
    /// The tag, which identifies the owner.
    pub tag: String,
}

/// The target's error message for a failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub String);

/// The session table of a stack.
pub trait SessionTarget {
    /// Returns all rules of the table.
    ///
    /// # Errors
    /// [`TargetError`].
    fn dump(&mut self) -> Result<Vec<TaggedRule>, TargetError>;

    /// Returns after all earlier requests are done. Marks the end of a dump, whose length is not known beforehand.
    ///
    /// # Errors
    /// [`TargetError`].
    fn ping(&mut self) -> Result<(), TargetError>;

    /// Executes at most [`BATCH`] requests in order, until one fails. Rules are added with [`TAG`].
    ///
    /// # Errors
    /// [`TargetError`] of the request that failed.
    fn change(&mut self, requests: &[SessionRequest]) -> Result<(), TargetError>;

    /// Returns the application namespace of a pod, unique per pod. `None` while the pod has no application and so no sessions. Its rules
    /// are added by the first transaction after it has one.
    fn namespace(&self, pod: &PodName) -> Option<u32>;
}

/// The reason why the target's table is not up to date.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The target failed, so its table is unknown. The next transaction starts with a dump.
    #[error("{0}; the next change starts with a dump of the session table")]
    Target(#[from] TargetError),
    /// The rules do not fit. Nothing was changed.
    #[error(
        "the tables need more than {limit} session rules: a range of ports takes one rule per port; use fewer blocks or \
         smaller ranges"
    )]
    TooManyRules {
        /// The maximum number of rules.
        limit: usize,
    },
    /// Two pods have the same namespace, so the rules of one would judge the other. Nothing was changed.
    #[error("pods {0} and {1} are both in application namespace {2}; give each pod its own namespace")]
    SharedNamespace(PodName, PodName, u32),
}
