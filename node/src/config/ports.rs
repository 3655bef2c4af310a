//! Ports and routes: those of the configuration, and the data of ports added at run time.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_dataplane::PortKind;
use ipnet::IpNet;

use bulkhead_observe::admin::PortKey;

/// A port: an interface, and the pod or network behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortEntry {
    /// The port's name in the snapshot, captures and output: `namespace/pod`, `uplink` or `host`.
    pub name: Arc<str>,
    /// The port's name in the file, which routes may use as well. `None` if it has none.
    pub label: Option<Arc<str>>,
    /// Whether a pod, the uplink or the host is behind the port.
    pub kind: PortKind,
    /// The pod behind the port. `None` for the uplink and the host.
    pub pod: Option<PodName>,
    /// The port's interface in the vswitch's network namespace.
    pub interface: Arc<str>,
    /// The MAC address of the interface's other end. `None` if the vswitch learns it.
    pub mac: Option<[u8; 6]>,
    /// The pod's network namespace: a name in /run/netns, or a path. `None` if unknown.
    pub netns: Option<Arc<str>>,
    /// The interface at the other end, in the pod's namespace.
    pub peer: Arc<str>,
    /// Whether the file names `peer`. False if `peer` is the default name.
    pub peer_named: bool,
    /// Whether to turn off the peer's checksum offload. If false, a finding explains how to.
    pub fix_offloads: bool,
    /// The line in the file at which the port starts. 0 for an added port.
    pub line: u64,
    /// Data of a port added at run time. `None` for a port of the file.
    pub added: Option<Added>,
}

/// Data of a port added at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// The container and its interface, which together identify the port.
    pub key: Arc<PortKey>,
    /// Number of the request that added the port. Adding it again with other parameters gives it a new number.
    pub number: u64,
    /// Why the port must stay closed. `None` if it may open.
    pub kept_closed: Option<Arc<str>>,
}

/// A configured static route of the vswitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteEntry {
    /// The destination network.
    pub prefix: IpNet,
    /// The gateway's address. `None` if the destinations are on the port's link.
    pub via: Option<IpAddr>,
    /// The name of the port to which the route leads.
    pub port: Arc<str>,
}

impl PortEntry {
    /// Returns why the port must stay closed. `None` if it may open.
    pub(crate) fn kept_closed(&self) -> Option<&Arc<str>> {
        self.added.as_ref().and_then(|added| added.kept_closed.as_ref())
    }

    /// Whether `port` is the port's name or label.
    pub(super) fn is_called(&self, port: &str) -> bool {
        *self.name == *port || self.label.as_deref() == Some(port)
    }
}

impl fmt::Display for PortEntry {
    /// Formats `default/db (veth-db)`, or with a label `default/db (database, veth-db)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label.as_deref().filter(|&label| label != &*self.name) {
            Some(label) => write!(f, "{} ({label}, {})", self.name, self.interface),
            None => write!(f, "{} ({})", self.name, self.interface),
        }
    }
}
