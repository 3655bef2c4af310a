//! Answer to `nodes`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The ways to all other nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeWays {
    /// Name of the node that answers.
    pub node: String,
    /// UDP port of the probes. `None` if they are off.
    pub probe_port: Option<u16>,
    /// Seconds between two rounds of probes. `None` if they are off.
    pub probe_interval_seconds: Option<f64>,
    /// The ways, by node and family.
    pub ways: Vec<NodeWayRow>,
}

/// The way to a node's pods of one address family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeWayRow {
    /// Name of the other node.
    pub node: String,
    /// Address family of the pods: `IPv4` or `IPv6`.
    pub family: String,
    /// Networks of the pods. Empty if the node has none.
    pub networks: Vec<IpNet>,
    /// The way: `route`, `tunnel`, `network` (the configuration leaves the pods to the network) or `none`.
    pub way: String,
    /// Address of the other node on this way. `None` without a way of the vswitch.
    pub to: Option<IpAddr>,
    /// Name of the interface of a route. `None` for other ways.
    pub interface: Option<String>,
    /// Seconds since this process chose the way.
    pub since_seconds: u64,
    /// Length of the longest packets in bytes. `None` without a way of the vswitch.
    pub mtu: Option<u32>,
    /// The result of the probes.
    pub state: WayState,
    /// Seconds since the last proof that packets arrive. `None` before the first.
    pub proof_age_seconds: Option<f64>,
    /// Milliseconds from the last answered probe to its answer. `None` before the first.
    pub round_trip_ms: Option<f64>,
    /// Why packets do not arrive. `None` if the state is not `broken`.
    pub fault: Option<WayFault>,
}

/// The result of a way's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WayState {
    /// Packets of all lengths arrive.
    Proven,
    /// Packets do not arrive: the vswitch has no way, or three successive rounds of probes were not answered.
    Broken,
    /// No probe has been answered yet.
    Waiting,
    /// No probe takes this way.
    NotProbed,
}

/// Why packets do not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayFault {
    /// Cause, for programs: `no_route`, `not_sent`, `unreachable`, `refused`, `filtered_port`, `no_answer`, `wrong_address` or `mtu`.
    pub cause: String,
    /// Message with the remedy.
    pub text: String,
}

/// Numbers of ways by the result of their probes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbesStatus {
    /// Ways on which packets of all lengths arrive.
    pub proven: usize,
    /// Ways on which packets do not arrive, including nodes without a way.
    pub broken: usize,
    /// Ways without an answered probe yet.
    pub waiting: usize,
    /// Ways that no probe takes.
    pub not_probed: usize,
    /// The first faults that probes have found, each with the node and the cause.
    pub faults: Vec<String>,
}
