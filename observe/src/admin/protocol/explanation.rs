//! What a running vswitch would do with a connection.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use bulkhead_answers::explain::service::{Judged, Translated};
use bulkhead_answers::explain::step::Step;

/// A connection that is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Who begins it: `namespace/pod` or an address.
    pub from: String,
    /// With whom: as above, or `service/namespace/name`, perhaps with `:port`.
    pub to: String,
    /// The destination port and protocol: `80/TCP`. A Service with one port, or with one named in `to`, needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// What becomes of its first packet and the reply, for each family of addresses that both ends have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The node whose vswitch judges.
    pub node: Arc<str>,
    /// The snapshot that it judges by.
    pub generation: u64,
    /// Whether nothing may pass, since there is no state that makes sense.
    pub denying: bool,
    /// The ways of connections that keep their destination.
    pub walks: Vec<LiveWalk>,
    /// The connections to Services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Translated<LiveWalk>>,
}

impl Judged for LiveWalk {
    fn is_allowed(&self) -> bool {
        self.verdict == "allow"
    }
}

/// One connection's way through the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveWalk {
    /// The end as it was asked for, or the port that has its address.
    pub from: String,
    /// Its address.
    pub from_address: IpAddr,
    /// As above.
    pub to: String,
    /// As above.
    pub to_address: IpAddr,
    /// `allow` when this vswitch lets the first packet and the reply pass, else `deny`.
    pub verdict: String,
    /// Whether one end is elsewhere, so that the vswitch of its node judges as well where it has one.
    pub judged_elsewhere: bool,
    /// Whom the other end sees, where the connection is masqueraded.
    #[serde(default)]
    pub seen_as: Option<IpAddr>,
    /// The passes through this vswitch.
    pub steps: Vec<Step>,
    /// Ports on the way that are not open, so that nothing passes whatever the tables say.
    pub not_open: Vec<NotOpen>,
}

/// A port that is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotOpen {
    /// Its name.
    pub port: Arc<str>,
    /// `closed`, `absent` or `unprotected`; `none` where the node has no such port at all.
    pub state: String,
    /// Why, with the remedy where one is known.
    pub why: Option<String>,
}
