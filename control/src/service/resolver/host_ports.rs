//! Ports of the node that pods have for themselves (`hostPort`): service ports of one backend.
//!
//! As a node port leads to a Service, so does a host port to its pod: at every address of the node, or at the one that the pod names
//! (`hostIP`), and only to what is of the pod's own family there. Its source is never rewritten, but for the pod's own connections.
//!
//! Source: Kubernetes, `ContainerPort` of the API reference; the CNI plugin `portmap`, which does it elsewhere.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Resolver;
use super::refresh::Terms;
use crate::object::{Endpoint, HostPort, Pod, Timestamp};
use crate::service::select::Candidate;
use crate::service::{Changes, Owner, PortName, ServicePortId, TrafficPolicy, Vip, VipKind};

/// What is known of them.
#[derive(Debug, Default)]
pub(in crate::service) struct HostPorts {
    claimed: BTreeMap<PortName, Claimed>,
    /// The service ports that stand for them.
    ids: BTreeMap<PortName, ServicePortId>,
    /// Whether these are other ones than those that are claimed, or the node has other addresses.
    is_stale: bool,
}

/// A host port of one of the pod's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claimed {
    port: HostPort,
    address: IpAddr,
    /// When the pod was made.
    created: Option<Timestamp>,
}

impl HostPorts {
    pub(super) const fn is_stale(&self) -> bool {
        self.is_stale
    }

    pub(super) const fn renumber(&mut self) {
        self.is_stale = true;
    }
}

impl Claimed {
    /// Whether it answers at an address of the node. At a loopback address it never does: nothing of that comes to a vswitch.
    fn is_at(&self, own: IpAddr) -> bool {
        let is_meant = |wanted: IpAddr| wanted == own || wanted.is_unspecified() && wanted.is_ipv4() == own.is_ipv4();
        own.is_ipv4() == self.address.is_ipv4() && !own.is_loopback() && self.port.address.is_none_or(is_meant)
    }
}

impl Resolver {
    /// Says which pods there are, each with its addresses: those of this node that run in a network of their own have their host ports.
    pub fn set_host_ports<'a>(&mut self, pods: impl IntoIterator<Item = (&'a Pod, &'a [IpAddr])>) -> Changes {
        let is_meant = |pod: &Pod| {
            let is_here = pod.node.as_ref() == Some(self.node());
            is_here && !pod.host_network && !pod.finished && !pod.host_ports.is_empty()
        };
        let mut claimed = BTreeMap::new();
        for (pod, addresses) in pods.into_iter().filter(|(pod, _)| is_meant(pod)) {
            for (&port, &address) in pod.host_ports.iter().flat_map(|port| addresses.iter().map(move |at| (port, at))) {
                let owner = Owner::Pod(pod.name.clone());
                let at = port.address.map_or_else(|| port.number.to_string(), |ip| format!("{ip}:{}", port.number));
                let ipv4 = address.is_ipv4();
                let name = PortName { owner, port: at.into(), transport: port.transport, ipv4 };
                // Of two with one number, which the API server forbids, the first one has it.
                claimed.entry(name).or_insert(Claimed { port, address, created: pod.lifetime.created });
            }
        }
        if claimed == self.host_ports.claimed {
            return Changes::default();
        }
        (self.host_ports.claimed, self.host_ports.is_stale) = (claimed, true);
        self.refresh_none()
    }

    /// Resolves all of them again.
    pub(super) fn refresh_host_ports(&mut self, changes: &mut Changes) {
        let HostPorts { claimed, ids, .. } = std::mem::take(&mut self.host_ports);
        ids.iter().filter(|(name, _)| !claimed.contains_key(name)).for_each(|(_, &id)| self.remove_port(id, changes));
        let own: Vec<IpAddr> = self.node_addresses().collect();
        let mut now = BTreeMap::new();
        for (name, claim) in &claimed {
            let endpoint = Endpoint {
                address: claim.address,
                node: Some(self.node().clone()),
                ready: true,
                serving: true,
                terminating: false,
                hints: None,
            };
            let HostPort { transport, number, port, .. } = claim.port;
            let candidate = Candidate { address: claim.address, port, endpoint: &endpoint };
            let vip = |&address: &IpAddr| (Vip { address, transport, port: number }, VipKind::HostPort);
            let mut vips: Vec<(Vip, VipKind)> = own.iter().filter(|own| claim.is_at(**own)).map(vip).collect();
            vips.sort_unstable();
            let terms = Terms {
                internal_policy: TrafficPolicy::Cluster,
                external_policy: TrafficPolicy::Cluster,
                affinity: None,
                source_ranges: None,
                created: claim.created,
            };
            let id = self.set_port(ids.get(name).copied(), name.clone(), &terms, vips, &[candidate], changes);
            now.insert(name.clone(), id);
        }
        self.host_ports = HostPorts { claimed, ids: now, is_stale: false };
    }
}
