//! Ports added at run time by a CNI plugin.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Identifies an added port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortKey {
    /// ID of the container, from the container runtime (`CNI_CONTAINERID`).
    pub container: String,
    /// Name of the interface inside the container (`CNI_IFNAME`).
    pub container_interface: String,
}

/// A request to attach a container's interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddPort {
    /// ID of the container, as in [`PortKey`].
    pub container: String,
    /// Name of the interface inside the container, as in [`PortKey`].
    pub container_interface: String,
    /// Name of the CNI network. [`Request::RetainPorts`] can be limited to one network. `None` if unknown.
    ///
    /// [`Request::RetainPorts`]: super::Request::RetainPorts
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The pod: `namespace/name`.
    pub pod: String,
    /// UID of the pod. `None` matches any pod of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The node's end of the veth pair. The vswitch configures it.
    pub interface: String,
    /// Network namespace of the container: a path, or a name in /run/netns. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// MAC address of the container's end. `None` to learn it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Addresses of the container, at most one per family. Valid until the Pod object lists its own.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Maximum time in seconds until the port is attached.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: u64,
}

/// Returns the default of `timeout_seconds`. The kubelet gives plugins two minutes. A late Pod object usually arrives within a second.
const fn default_timeout() -> u64 {
    20
}

impl AddPort {
    /// Returns the identification of the port.
    pub fn key(&self) -> PortKey {
        PortKey { container: self.container.clone(), container_interface: self.container_interface.clone() }
    }
}

/// An attached port. The first packet of its container is judged by its pod's policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedPort {
    /// Name of the port.
    pub port: String,
    /// The node's end of the veth pair.
    pub interface: String,
    /// State of the port: always `open`.
    pub state: String,
    /// Generation of the snapshot that has its table.
    pub generation: u64,
    /// Time from the request to the answer, in milliseconds.
    pub waited_ms: u64,
}

/// Answer to [`Request::RemovePort`](super::Request::RemovePort).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedPort {
    /// False if no such port existed.
    pub removed: bool,
}

/// Answer to [`Request::RetainPorts`](super::Request::RetainPorts).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedPorts {
    /// Names of the removed ports.
    pub removed: Vec<String>,
}

/// State of an added port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedPort {
    /// Name of the port.
    pub port: String,
    /// The node's end of the veth pair.
    pub interface: String,
    /// State of the port: `open`, `closed`, `absent` or `unprotected`.
    pub state: String,
    /// Why the port is not open, or is open but not attached to a pod. `None` if it is open and attached.
    pub why: Option<String>,
    /// Addresses of the port.
    pub addresses: Vec<String>,
}
