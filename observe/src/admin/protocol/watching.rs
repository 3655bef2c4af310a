//! What is watched: verdicts as they come, and packets.

use serde::{Deserialize, Serialize};

/// Verdicts of new sessions and dropped packets, as they come. What is not said does not matter; of several values of one kind one is
/// enough.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Monitor {
    /// One end is a pod whose `namespace/name` begins so.
    pub pods: Vec<String>,
    /// One end is in this namespace.
    pub namespaces: Vec<String>,
    /// One end has all of these labels: `key=value`, `key`, with commas between them.
    pub labels: Vec<String>,
    /// `FORWARDED`, `DROPPED` or `AUDIT`.
    pub verdicts: Vec<String>,
    /// One end has this port.
    pub ports: Vec<u16>,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, or the protocol's number.
    pub protocols: Vec<String>,
    /// So many of the last ones that are remembered come first.
    pub last: usize,
    /// Whether nothing but the last ones is wanted.
    pub is_over: bool,
    /// The stream ends after so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The most a second; what is more is left out and counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// Packets as they come, each with its walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// An expression of `pcap-filter(7)`: addresses, ports and protocols.
    pub filter: String,
    /// As in [`Monitor`].
    pub pods: Vec<String>,
    /// As in [`Monitor`].
    pub namespaces: Vec<String>,
    /// As in [`Monitor`].
    pub labels: Vec<String>,
    /// As in [`Monitor`].
    pub verdicts: Vec<String>,
    /// Bytes of each packet that are told.
    pub snap: u16,
    /// Whether flows that match come to the workers, which the kernel would forward else.
    pub cached: bool,
    /// The stream ends after so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The most a second; what is more is left out and counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// The answer, before what is watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watching {
    /// The node.
    pub node: String,
    /// The generation of the snapshot in force.
    pub generation: u64,
    /// The ports there are: name, kind and addresses.
    pub ports: Vec<WatchedPort>,
    /// How many verdicts of the past are remembered.
    pub remembered: usize,
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WatchedPort {
    /// Its name.
    pub name: String,
    /// `pod`, `uplink` or `host`.
    pub kind: String,
    /// Its addresses.
    pub addresses: Vec<std::net::IpAddr>,
}
