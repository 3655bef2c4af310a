//! Host ports: ports of the node that lead to one pod (`hostPort`). Each is a service port with one backend.
//!
//! A host port answers at every node address of the pod address's family, or only at `hostIP` if the pod sets one. The source is rewritten
//! only for the pod's connections to itself.
//!
//! Source: Kubernetes API reference, `ContainerPort`. Other vswitches leave host ports to the CNI plugin `portmap`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Resolver;
use super::refresh::Terms;
use crate::object::{Endpoint, HostPort, Pod, Timestamp};
use crate::service::select::Candidate;
use crate::service::{Changes, Owner, PortName, ServicePortId, TrafficPolicy, Vip, VipKind};

/// The claimed host ports and their service ports.
#[derive(Debug, Default)]
pub(in crate::service) struct HostPorts {
    claimed: BTreeMap<PortName, Claimed>,
    /// The service port of each host port, as of the last refresh.
    ids: BTreeMap<PortName, ServicePortId>,
    /// Whether `claimed` or the node's addresses changed since the last refresh.
    is_stale: bool,
}

/// A host port of one of the pod's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claimed {
    port: HostPort,
    address: IpAddr,
    /// Creation time of the pod. `None` if the pod has none.
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
    /// Whether the host port answers at the node address `own`. Never at a loopback address: a vswitch sees no loopback packets.
    fn is_at(&self, own: IpAddr) -> bool {
        let is_meant = |wanted: IpAddr| wanted == own || wanted.is_unspecified() && wanted.is_ipv4() == own.is_ipv4();
        own.is_ipv4() == self.address.is_ipv4() && !own.is_loopback() && self.port.address.is_none_or(is_meant)
    }
}

impl Resolver {
    /// Replaces the list of pods and their addresses. Only unfinished pods on this node that are not in the host network have host ports.
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
                // The first port with a number wins. The API server rejects duplicates.
                claimed.entry(name).or_insert(Claimed { port, address, created: pod.lifetime.created });
            }
        }
        if claimed == self.host_ports.claimed {
            return Changes::default();
        }
        (self.host_ports.claimed, self.host_ports.is_stale) = (claimed, true);
        self.refresh_none()
    }

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
