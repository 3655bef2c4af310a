//! The resolver: takes in events about objects and returns changes.
//!
//! ```text
//!  events --take in--> Services and slices by Service --refresh the affected Services--> ports, backends, claims
//!                                                                                              `--> Changes
//! ```
//! An event resolves its whole Service again and reports only the differences. The cost is proportional to the Service's endpoints,
//! whatever the cluster's size. A change of the node's zone or addresses resolves all Services again.

mod health_checks;
mod host_ports;
mod refresh;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use self::host_ports::HostPorts;
use super::backends::{Backend, Backends};
use super::claims::Claims;
use super::health::HealthCheck;
use super::select::Location;
use super::{BackendId, Changes, NodePortAddresses, Owner, ResolvedPort, ServicePortId, Settings, Vip};
use crate::cache::Event;
use crate::object::{ClusterService, EndpointSlice, Node, Object, ObjectName, ServiceName, ZONE_LABEL};

/// The objects of one Service and what was resolved from them.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) object: Option<Arc<ClusterService>>,
    /// The Service's EndpointSlices, by name.
    pub(super) slices: BTreeMap<Arc<str>, Arc<EndpointSlice>>,
    pub(super) ports: Vec<ServicePortId>,
    /// Registered cluster addresses, and whether this proxy handles the Service.
    cluster_ips: Vec<(IpAddr, bool)>,
    /// The health check, with its rank among the claims to its port.
    pub(super) health_check: Option<(super::claims::Rank, HealthCheck)>,
}

/// The node's own properties, from its Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnNode {
    location: Location,
    /// The node's addresses, in the Node object's order: the first of each family is the primary one.
    addresses: Vec<IpAddr>,
    terminating: bool,
}

/// Resolves Services to VIPs, service ports and backends for one node. See the module [`crate::service`].
#[derive(Debug)]
pub struct Resolver {
    pub(super) settings: Settings,
    own: OwnNode,
    /// Node addresses that its Node object does not list.
    more_addresses: BTreeSet<IpAddr>,
    pub(super) services: AHashMap<ServiceName, Known>,
    /// Number of `services` with a Service object. The others have only slices.
    service_count: usize,
    /// The Service under which each slice is filed.
    service_of: AHashMap<ObjectName, ServiceName>,
    pub(super) ports: Vec<Option<ResolvedPort>>,
    free_ports: Vec<ServicePortId>,
    pub(super) backends: Backends,
    pub(super) vips: Claims<Vip, ServicePortId>,
    pub(super) cluster_ips: AHashMap<IpAddr, BTreeMap<ServiceName, bool>>,
    pub(super) health_checks: Claims<u16, ()>,
    pub(super) host_ports: HostPorts,
    is_listed: bool,
    epoch: u64,
}

impl Resolver {
    /// Creates a resolver without objects for the node of this name.
    pub fn new(node: Arc<str>, settings: Settings) -> Self {
        Self {
            settings,
            own: OwnNode { location: Location { node, zone: None }, ..OwnNode::default() },
            more_addresses: BTreeSet::new(),
            services: AHashMap::new(),
            service_count: 0,
            service_of: AHashMap::new(),
            ports: Vec::new(),
            free_ports: Vec::new(),
            backends: Backends::default(),
            vips: Claims::default(),
            cluster_ips: AHashMap::new(),
            health_checks: Claims::default(),
            host_ports: HostPorts::default(),
            is_listed: false,
            epoch: 0,
        }
    }

    /// Declares the initial list of Services, slices and nodes complete. Before that the resolver reports no changes and answers no
    /// queries, because an incomplete list would refuse valid connections.
    pub fn listed(&mut self) -> Changes {
        if self.is_listed {
            return Changes::default();
        }
        self.is_listed = true;
        let all = self.services.keys().cloned().collect();
        self.refresh_all(all)
    }

    /// Whether [`Self::listed`] was called.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Applies one event and returns what changed.
    pub fn apply(&mut self, event: Event) -> Changes {
        self.apply_batch([event])
    }

    /// Applies several events as one change. Ignores objects other than Services, EndpointSlices and this node.
    pub fn apply_batch(&mut self, events: impl IntoIterator<Item = Event>) -> Changes {
        let (mut touched, before) = (BTreeSet::new(), self.own.clone());
        for event in events {
            self.take(event, &mut touched);
        }
        self.settle(touched, &before)
    }

    /// Sets addresses that the Node object lacks. Host ports answer there; node ports only if `node_port_addresses` includes the address.
    pub fn set_more_addresses(&mut self, addresses: BTreeSet<IpAddr>) -> Changes {
        if self.more_addresses == addresses {
            return Changes::default();
        }
        self.more_addresses = addresses;
        self.host_ports.renumber();
        let all = self.services.keys().cloned().collect();
        self.refresh_all(all)
    }

    fn settle(&mut self, mut touched: BTreeSet<ServiceName>, before: &OwnNode) -> Changes {
        if (&before.location, &before.addresses) != (&self.own.location, &self.own.addresses) {
            touched.extend(self.services.keys().cloned());
            self.host_ports.renumber();
        }
        self.refresh_all(touched)
    }

    /// Resolves stale host ports but no Service.
    pub(super) fn refresh_none(&mut self) -> Changes {
        self.refresh_all(BTreeSet::new())
    }

    fn refresh_all(&mut self, names: BTreeSet<ServiceName>) -> Changes {
        let mut changes = Changes::default();
        if !self.is_listed {
            return changes;
        }
        let node_ports = self.node_port_addresses();
        for name in names {
            self.refresh(&name, &node_ports, &mut changes);
        }
        if self.host_ports.is_stale() {
            self.refresh_host_ports(&mut changes);
        }
        self.epoch += u64::from(!changes.is_empty());
        changes
    }

    fn take(&mut self, event: Event, touched: &mut BTreeSet<ServiceName>) {
        match event {
            Event::Apply(Object::Service(service)) => {
                let name = service.name.clone();
                let known = self.services.entry(name.clone()).or_default();
                let is_new = known.object.replace(service).is_none();
                self.service_count += usize::from(is_new);
                touched.insert(name);
            }
            Event::DeleteService(name) => {
                if let Some(known) = self.services.get_mut(&name) {
                    self.service_count -= usize::from(known.object.take().is_some());
                    touched.insert(name);
                }
            }
            Event::Apply(Object::EndpointSlice(slice)) => {
                let service = slice.service_name();
                self.leave(&slice.name, service.as_ref(), touched);
                if let Some(service) = service {
                    self.service_of.insert(slice.name.clone(), service.clone());
                    let known = self.services.entry(service.clone()).or_default();
                    known.slices.insert(slice.name.name.clone(), slice);
                    touched.insert(service);
                }
            }
            Event::DeleteEndpointSlice(name) => self.leave(&name, None, touched),
            Event::Apply(Object::Node(node)) if node.name == self.own.location.node => self.own = OwnNode::of(node),
            Event::DeleteNode(name) if name == self.own.location.node => {
                self.own = OwnNode { location: Location { node: name, zone: None }, ..OwnNode::default() };
            }
            _ => {}
        }
    }

    /// Removes a slice from its Service, unless `new` is the same Service.
    fn leave(&mut self, slice: &ObjectName, new: Option<&ServiceName>, touched: &mut BTreeSet<ServiceName>) {
        let Some(old) = self.service_of.get(slice).filter(|old| new != Some(old)).cloned() else { return };
        self.service_of.remove(slice);
        if let Some(known) = self.services.get_mut(&old) {
            known.slices.remove(&slice.name);
        }
        touched.insert(old);
    }

    /// Returns the number of calls that changed at least one Service or host port, since the start.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the resolver's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the node's name.
    pub fn node(&self) -> &Arc<str> {
        &self.own.location.node
    }

    pub(super) fn location(&self) -> &Location {
        &self.own.location
    }

    /// Returns the node's addresses: first those of its Node object, then the additional ones.
    pub fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let more = self.more_addresses.iter().filter(|address| !self.own.addresses.contains(address));
        self.own.addresses.iter().chain(more).copied()
    }

    /// Whether the node is being deleted, or will be soon: load balancers should stop using it.
    pub fn is_node_terminating(&self) -> bool {
        self.own.terminating
    }

    /// Returns the addresses at which node ports answer.
    fn node_port_addresses(&self) -> Vec<IpAddr> {
        match &self.settings.node_port_addresses {
            NodePortAddresses::Primary => {
                let first = |ipv4: bool| self.own.addresses.iter().copied().find(|address| address.is_ipv4() == ipv4);
                [first(true), first(false)].into_iter().flatten().collect()
            }
            NodePortAddresses::In(blocks) => {
                // Node ports do not answer at loopback addresses: a vswitch sees no loopback packets.
                let is_in =
                    |address: &IpAddr| !address.is_loopback() && blocks.iter().any(|block| block.contains(address));
                self.node_addresses().filter(is_in).collect()
            }
        }
    }

    /// Returns the service port with this id. `None` if it no longer exists.
    pub fn port(&self, id: ServicePortId) -> Option<&ResolvedPort> {
        self.ports.get(id.index())?.as_ref()
    }

    /// Returns all service ports, in no particular order.
    pub fn ports(&self) -> impl Iterator<Item = (ServicePortId, &ResolvedPort)> {
        (0u32..).zip(&self.ports).filter_map(|(at, port)| Some((ServicePortId(at), port.as_ref()?)))
    }

    /// Returns the backend with this id, or the last backend that had it. Panics if the id was never in use.
    pub fn backend(&self, id: BackendId) -> &Backend {
        self.backends.get(id)
    }

    /// Returns the number of Services, including Services that another proxy handles.
    pub fn service_count(&self) -> usize {
        self.service_count
    }

    /// Returns the number of claimed VIPs.
    pub fn vip_count(&self) -> usize {
        self.vips.len()
    }

    /// Returns the number of backends of all service ports.
    pub fn backend_count(&self) -> usize {
        self.backends.len()
    }

    /// Returns the service port that a VIP leads to, and the kind of its address. `None` if no service port claims the VIP.
    pub fn vip(&self, vip: &Vip) -> Option<(ServicePortId, super::VipKind)> {
        self.vips.winner(vip).map(|(rank, port)| (*port, rank.kind()))
    }

    /// Whether this proxy (`Some(true)`) or only others (`Some(false)`) handle Services with this cluster address. `None` without such
    /// Services.
    pub fn cluster_address(&self, address: &IpAddr) -> Option<bool> {
        Some(self.cluster_ips.get(address)?.values().any(|is_ours| *is_ours))
    }

    /// Returns the owners that claim the VIP, the winner first.
    pub fn claimants(&self, vip: &Vip) -> impl Iterator<Item = &Owner> {
        self.vips.all(vip).iter().map(|(rank, _)| rank.owner())
    }

    /// Returns all claimed VIPs, in no particular order.
    pub fn vips(&self) -> impl Iterator<Item = &Vip> {
        self.vips.keys()
    }
}

impl OwnNode {
    fn of(node: Node) -> Self {
        let zone = node.labels.get(ZONE_LABEL).filter(|zone| !zone.is_empty()).cloned();
        let location = Location { node: node.name, zone };
        Self { location, addresses: node.addresses, terminating: node.terminating }
    }
}
