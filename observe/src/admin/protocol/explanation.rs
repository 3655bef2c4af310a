//! Explanations of connections by a running vswitch.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use bulkhead_answers::explain::service::{Judged, Translated};
use bulkhead_answers::explain::step::Step;

/// The connection to explain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Client: `namespace/pod` or an address.
    pub from: String,
    /// Server: like `from`, or `service/namespace/name`, optionally with `:port`.
    pub to: String,
    /// Destination port and protocol: `80/TCP`. Optional for a Service with one port, or if `to` names the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// What happens to the first packet and its reply, for each common address family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Name of the node.
    pub node: Arc<str>,
    /// Generation of the snapshot in force.
    pub generation: u64,
    /// Whether everything is denied because there is no valid state.
    pub denying: bool,
    /// One path per address family and pair of ends. Empty if the server is a Service.
    pub walks: Vec<LiveWalk>,
    /// The translation of the Service's address and the paths to its backends. Empty if the server is no Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Translated<LiveWalk>>,
}

impl Judged for LiveWalk {
    fn is_allowed(&self) -> bool {
        self.verdict == "allow"
    }
}

/// The path of a connection through the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveWalk {
    /// Client as in the question, or the port with its address.
    pub from: String,
    /// Address of the client.
    pub from_address: IpAddr,
    /// Server as in the question, or the port with its address.
    pub to: String,
    /// Address of the server.
    pub to_address: IpAddr,
    /// `allow` if this vswitch forwards the first packet and the reply, else `deny`.
    pub verdict: String,
    /// Whether one end is elsewhere, so that another node's vswitch may also judge the connection.
    pub judged_elsewhere: bool,
    /// Source address that the other end sees. `None` if not masqueraded.
    #[serde(default)]
    pub seen_as: Option<IpAddr>,
    /// Processing steps in this vswitch.
    pub steps: Vec<Step>,
    /// Ports on the path that are not open: nothing passes, whatever the tables say.
    pub not_open: Vec<NotOpen>,
}

/// A port that is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotOpen {
    /// Name of the port.
    pub port: Arc<str>,
    /// `closed`, `absent` or `unprotected`; `none` if the node has no such port.
    pub state: String,
    /// Why the port is not open, with a remedy if known. `None` if the reason is unknown.
    pub why: Option<String>,
}
