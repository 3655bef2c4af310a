//! Session rules: the tables in ingress orientation, for stacks that judge a connection where it is opened or accepted.
//!
//! **Purpose.** A renderer beside [`super::acl`] and [`super::contiv`], for applications on a host stack (VPP's session
//! layer). It takes Contiv's tables in ingress orientation, encodes each rule as session rules, and keeps the stack's
//! table equal to them with the fewest requests.
//!
//! [`SourceRenderer`] is such a stack: our own session table, which our dataplane enforces with `enforce: source`.
//!
//! **Not its purpose.** Only TCP and UDP have sessions there: rules for other protocols are not encoded. It opens no
//! connection to a stack: that is [`SessionTarget`].
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
//! * A rule for any protocol is two rules, TCP and UDP. Of two rules with one match the first of the sorted table stays.
//! * A remote side of every address of a family is two halves (`0.0.0.0/1` and `128.0.0.0/1`, `::/1` and `8000::/1`),
//!   because stacks keep rules of their own at length 0 (VPP: its proxy's). What names no family is there for both.
//! * Twins and halves have the tag of all others. Contiv marks them (`-ANY`, `-SPLIT`), to make its own rules of a dump again; here a dump
//!   is compared with what is wanted, session rule by session rule.
//! * Nothing is encoded for the allow that ends a table: it is what the stack does without a rule. Other allows of
//!   everything of a protocol are encoded, since a deny may follow.
//! * A pod's rules for its own address are left out; where the rest is denied, its own address is allowed.
//!
//! **Invariant.** After a transaction without an error the target has exactly the rules of all tables, those of neighbours
//! of the changed pods too. After an error the next transaction starts with a dump of what is there.
//!
//! **Lookup.** As Contiv, this relies on the stack taking, of all rules that match, that with the longest remote prefix,
//! then the longest local one, then the one with a port.

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

/// Marks our rules in the target's table. Rules with another tag are somebody else's and stay.
pub const TAG: &str = "bulkhead/policy";

/// Requests in one call of [`SessionTarget::change`]: what fits Contiv's channel to VPP without waiting for a reply.
pub const BATCH: usize = 100;

/// The most session rules of one node. Each is a request to a stack that answers some 10,000 of them a second: more would
/// keep a transaction busy for over half a minute.
pub const MAX_RULES: usize = 400_000;

/// Which connections a rule judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionScope {
    /// Those that come from outside of the node.
    Global,
    /// Those that the applications of a namespace open.
    Local {
        /// The application namespace's index.
        namespace: u32,
    },
}

/// The transports that have sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionTransport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl SessionTransport {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The IANA protocol number.
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
    /// Its addresses. Both sides of a rule are of one family.
    pub network: IpNet,
    /// Its port, 0 for all.
    pub port: u16,
}

/// Which connections of its scope a rule is about. No two rules of a table have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionMatch {
    /// The scope.
    pub scope: SessionScope,
    /// The transport.
    pub transport: SessionTransport,
    /// The side of the node.
    pub local: SessionSide,
    /// The other side.
    pub remote: SessionSide,
}

/// One rule of a session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionRule {
    /// Which connections.
    pub matches: SessionMatch,
    /// What happens to them.
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

/// One change of a session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRequest {
    /// Puts a rule in; the table has none with the same match.
    Add(SessionRule),
    /// Takes a rule out.
    Delete(SessionRule),
}

/// A rule as found in a target's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedRule {
    /// The rule.
    pub rule: SessionRule,
    /// Who put it there.
    pub tag: String,
}

/// What a target answers when it cannot do what it is asked for, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub String);

/// The session table of a stack.
pub trait SessionTarget {
    /// All rules of the table.
    ///
    /// # Errors
    /// [`TargetError`].
    fn dump(&mut self) -> Result<Vec<TaggedRule>, TargetError>;

    /// Returns when all that was sent before is done: the end of a dump, whose length nobody says beforehand.
    ///
    /// # Errors
    /// [`TargetError`].
    fn ping(&mut self) -> Result<(), TargetError>;

    /// Changes the table, one request after the other up to the first that fails; at most [`BATCH`] of them. Rules are
    /// added with [`TAG`].
    ///
    /// # Errors
    /// [`TargetError`] of the request that failed.
    fn change(&mut self, requests: &[SessionRequest]) -> Result<(), TargetError>;

    /// The application namespace of a pod, none while it has no application: then there are no sessions to judge, and
    /// its rules follow with the first transaction that finds one. No two pods may have the same.
    fn namespace(&self, pod: &PodName) -> Option<u32>;
}

/// Why the target's table is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The target failed. How far it came is unknown; the next transaction starts with a dump.
    #[error("{0}; the next change starts from a dump of the session table")]
    Target(#[from] TargetError),
    /// The rules do not fit; nothing was changed.
    #[error(
        "the tables need more than {limit} session rules: a range of ports is a rule for each port; use fewer blocks or \
         smaller ranges"
    )]
    TooManyRules {
        /// How many are allowed.
        limit: usize,
    },
    /// Two pods are said to have one namespace, so that the rules of one would judge the other; nothing was changed.
    #[error("pods {0} and {1} are both in application namespace {2}; give each one of its own")]
    SharedNamespace(PodName, PodName, u32),
}
