//! What a running vswitch would do with a connection.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::explain::step::Step;

/// A connection that is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connection {
    /// Who begins it: `namespace/pod` or an address.
    pub(crate) from: String,
    /// With whom.
    pub(crate) to: String,
    /// The destination port and protocol: `80/TCP`.
    pub(crate) port: String,
}

/// What becomes of its first packet and the reply, for each family of addresses that both ends have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Explanation {
    /// The node whose vswitch judges.
    pub(crate) node: Arc<str>,
    /// The snapshot that it judges by.
    pub(crate) generation: u64,
    /// Whether nothing may pass, since there is no state that makes sense.
    pub(crate) denying: bool,
    /// The ways.
    pub(crate) walks: Vec<LiveWalk>,
}

/// One connection's way through the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LiveWalk {
    /// The end as it was asked for, or the port that has its address.
    pub(crate) from: String,
    /// Its address.
    pub(crate) from_address: IpAddr,
    /// As above.
    pub(crate) to: String,
    /// As above.
    pub(crate) to_address: IpAddr,
    /// `allow` when this vswitch lets the first packet and the reply pass, else `deny`.
    pub(crate) verdict: String,
    /// Whether one end is elsewhere, so that the vswitch of its node judges as well where it has one.
    pub(crate) judged_elsewhere: bool,
    /// The passes through this vswitch.
    pub(crate) steps: Vec<Step>,
    /// Ports on the way that are not open, so that nothing passes whatever the tables say.
    pub(crate) not_open: Vec<NotOpen>,
}

/// A port that is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotOpen {
    /// Its name.
    pub(crate) port: Arc<str>,
    /// `closed`, `absent` or `unprotected`; `none` where the node has no such port at all.
    pub(crate) state: String,
    /// Why, with the remedy where one is known.
    pub(crate) why: Option<String>,
}
