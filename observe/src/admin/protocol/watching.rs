//! Requests to stream verdicts or packets.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

/// Streams verdicts on new sessions and dropped packets. Empty filters match everything; of several values in one filter, one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Monitor {
    /// Prefixes of `namespace/name` of a pod at either end.
    pub pods: Vec<String>,
    /// Namespaces of a pod at either end.
    pub namespaces: Vec<String>,
    /// Labels of a pod at either end: `key=value` or `key`, separated by commas, all of which must match.
    pub labels: Vec<String>,
    /// Verdicts to send: `FORWARDED`, `DROPPED`, `AUDIT`.
    pub verdicts: Vec<String>,
    /// Port numbers at either end.
    pub ports: Vec<u16>,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, or the protocol number.
    pub protocols: Vec<String>,
    /// Number of remembered verdicts to send first.
    pub last: usize,
    /// Whether to end the stream after the remembered verdicts.
    pub is_over: bool,
    /// Maximum number of verdicts before the stream ends. `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU64>,
    /// Maximum verdicts per second. The rest is dropped and counted. `None` for 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<NonZeroU32>,
}

/// Streams packets, each with its path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// A `pcap-filter(7)` expression of addresses, ports and protocols.
    pub filter: String,
    /// Prefixes of `namespace/name` of a pod at either end, as in [`Monitor`].
    pub pods: Vec<String>,
    /// Namespaces of a pod at either end, as in [`Monitor`].
    pub namespaces: Vec<String>,
    /// Labels of a pod at either end, as in [`Monitor`].
    pub labels: Vec<String>,
    /// Verdicts to send: `FORWARDED`, `DROPPED`.
    pub verdicts: Vec<String>,
    /// Bytes to send of each packet.
    pub snap: u16,
    /// Whether to redirect matching flows to the workers instead of the kernel's flow cache.
    pub cached: bool,
    /// Maximum number of packets before the stream ends. `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU64>,
    /// Maximum packets per second. The rest is dropped and counted. `None` for 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<NonZeroU32>,
}

/// The answer before the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watching {
    /// Name of the node.
    pub node: String,
    /// Generation of the snapshot in force.
    pub generation: u64,
    /// All ports of the vswitch.
    pub ports: Vec<WatchedPort>,
    /// Number of verdicts that the vswitch remembers from before the request.
    pub remembered: usize,
    /// The filters of the request that select no pod or node of the state, as the user wrote them, and a similar name if there is one:
    /// `--pod shop/wep (did you mean shop/web?)`. Empty in answers of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nobody: Vec<String>,
}

/// A port whose packets the stream may contain. Clients write capture files with one interface per port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WatchedPort {
    /// Name of the port.
    pub name: String,
    /// Kind of the port: `pod`, `uplink` or `host`.
    pub kind: String,
    /// Addresses of the port.
    pub addresses: Vec<std::net::IpAddr>,
}
