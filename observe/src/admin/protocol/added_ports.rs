//! Ports that are added at run time: what a CNI plugin asks for.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What an added port is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortKey {
    /// The container's ID, as the container runtime names it (`CNI_CONTAINERID`).
    pub container: String,
    /// The interface inside it (`CNI_IFNAME`).
    pub container_interface: String,
}

/// A container's interface that is to be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddPort {
    /// As for [`PortKey`].
    pub container: String,
    /// As for [`PortKey`].
    pub container_interface: String,
    /// The network that it belongs to, as the CNI configuration names it: [`Request::RetainPorts`] may mean that one alone.
    ///
    /// [`Request::RetainPorts`]: super::Request::RetainPorts
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The pod: `namespace/name`.
    pub pod: String,
    /// The pod's UID; without it any pod of the name is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The node's end of the veth. It is set up when it is held.
    pub interface: String,
    /// The container's network namespace: a path, or a name below /run/netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The MAC address of the container's end; without it, it is learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The container's addresses, which count until the pod's object tells its own; at most one of each family.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// How long to wait until it is served.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: u64,
}

/// The kubelet gives a plugin two minutes, and a pod whose object is late is usually known within a second.
const fn default_timeout() -> u64 {
    20
}

impl AddPort {
    /// What it is known by.
    pub fn key(&self) -> PortKey {
        PortKey { container: self.container.clone(), container_interface: self.container_interface.clone() }
    }
}

/// A port that is served: the first packet of its container is judged, by the policies of its pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedPort {
    /// Its name.
    pub port: String,
    /// The node's end.
    pub interface: String,
    /// `open`.
    pub state: String,
    /// The snapshot that has its table.
    pub generation: u64,
    /// From the request to the answer.
    pub waited_ms: u64,
}

/// Whether there was such a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedPort {
    /// False where there was none.
    pub removed: bool,
}

/// The ports that were removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedPorts {
    /// Their names.
    pub removed: Vec<String>,
}

/// How an added port is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedPort {
    /// Its name.
    pub port: String,
    /// The node's end.
    pub interface: String,
    /// `open`, `closed`, `absent` or `unprotected`.
    pub state: String,
    /// Why it is not open, or not served though it is.
    pub why: Option<String>,
    /// The addresses that it has.
    pub addresses: Vec<String>,
}
