//! Ports and routes of the configuration, and what is known of ports that were added at run time.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_dataplane::PortKind;
use ipnet::IpNet;

use bulkhead_observe::admin::PortKey;

/// One interface and what is behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortEntry {
    /// What it is called in the snapshot, in captures and in output: `namespace/pod`, `uplink`, `host`.
    pub name: Arc<str>,
    /// What the file calls it; routes may say this as well.
    pub label: Option<Arc<str>>,
    /// What is behind it.
    pub kind: PortKind,
    /// The pod, for a pod's port.
    pub pod: Option<PodName>,
    /// The interface of this network namespace.
    pub interface: Arc<str>,
    /// The MAC address on the other side, where it shall not be learned.
    pub mac: Option<[u8; 6]>,
    /// The pod's network namespace: a name below /run/netns, or a path.
    pub netns: Option<Arc<str>>,
    /// The pod's interface in that namespace.
    pub peer: Arc<str>,
    /// Whether the file names that interface.
    pub peer_named: bool,
    /// Whether to turn the peer's checksum offload off, rather than to say how.
    pub fix_offloads: bool,
    /// The line on which it starts.
    pub line: u64,
    /// Where the file does not have it: who has added it.
    pub added: Option<Added>,
}

/// Who has added a port at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// What it is known by.
    pub key: Arc<PortKey>,
    /// One that is added again, differently, has another number.
    pub number: u64,
    /// Why it is not to be opened, if it is not.
    pub kept_closed: Option<Arc<str>>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteEntry {
    /// The destinations.
    pub prefix: IpNet,
    /// The gateway; none when the destinations are on the link.
    pub via: Option<IpAddr>,
    /// The port, by name.
    pub port: Arc<str>,
}

impl PortEntry {
    /// Why it is not to be opened, if it is not.
    pub(crate) fn kept_closed(&self) -> Option<&Arc<str>> {
        self.added.as_ref().and_then(|added| added.kept_closed.as_ref())
    }

    /// Whether a route that names `port` means this one.
    pub(super) fn is_called(&self, port: &str) -> bool {
        *self.name == *port || self.label.as_deref() == Some(port)
    }
}

impl fmt::Display for PortEntry {
    /// `default/db (veth-db)`, `default/db (database, veth-db)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label.as_deref().filter(|&label| label != &*self.name) {
            Some(label) => write!(f, "{} ({label}, {})", self.name, self.interface),
            None => write!(f, "{} ({})", self.name, self.interface),
        }
    }
}
