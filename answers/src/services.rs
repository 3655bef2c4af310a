//! Services from `control` to the dataplane: applies the resolver's changes to the `Services` value that workers read.
//!
//! **Purpose.** [`Adapter`] owns a [`Resolver`] and a working copy of the dataplane's [`Services`]. It applies events to both and returns a
//! value to publish.
//!
//! **Not its purpose.** [`Adapter`] does not choose endpoints: the resolver selects the usable ones, and the dataplane selects one of them
//! per connection. The caller publishes the value.
//!
//! ```text
//!   events --> Resolver --Changes--> the named service ports, VIPs, addresses of the copy --take--> Update { Services, stale }
//!   pods' host ports --^                                                   |
//!   Nodes ---> pod networks, source addresses -----------------------------'
//! ```
//!
//! **Invariant.** The copy depends only on the resolver's knowledge, not on the order of events, and answers like [`Resolver::decide`].
//! Nothing is published before the initial list is [complete](Adapter::listed): with half of the endpoint slices, half of the connections
//! would be refused.

mod counts;
mod node;
mod taken;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, Pod, TrafficPolicy, Transport};
use bulkhead_control::service::{
    self as control, Changes, HealthCheck, PortName, ResolvedPort, Resolver, ServicePortId, Settings, VipKind,
};
use bulkhead_dataplane::{Backend, BackendList, Backends, ServicePort, Services, Vip, VipEntry};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

pub use counts::Counts;
pub use counts::{OFF, told};
pub use node::{nodes_and_host_ports, of_node};
pub use taken::{taken_sources, withhold_taken};

/// A change of the node's Services, to be published.
#[derive(Clone, Debug)]
pub struct Update {
    /// The Services. Their epoch is higher than that of all earlier updates.
    pub services: Arc<Services>,
    /// Addresses of removed backends and of new VIPs. Established UDP flows to them must not continue to their old destination: a component
    /// that forwards flows from a cache removes them. TCP and SCTP connections end by themselves.
    pub stale: BTreeSet<IpAddr>,
}

/// Health of the node, for load balancers and controllers that add and remove nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether the initial list of objects is complete. No connection is translated before.
    pub is_listed: bool,
    /// Whether the node is being deleted. Load balancers must then send no new connections.
    pub is_leaving: bool,
    /// Health checks of Services by port (`healthCheckNodePort`).
    pub checks: BTreeMap<u16, HealthCheck>,
}

/// Translates resolver changes into the dataplane's Services.
#[derive(Debug)]
pub struct Adapter {
    resolver: Resolver,
    services: Services,
    /// Non-empty podCIDRs by node.
    pod_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    /// Source addresses that belong to a pod or node. No translated connection may use them.
    taken: BTreeSet<IpAddr>,
    stale: BTreeSet<IpAddr>,
    epoch: u64,
    has_changed: bool,
    health: NodeHealth,
    has_other_health: bool,
}

impl Adapter {
    /// Returns an adapter that knows no objects.
    pub fn new(node: Arc<str>, settings: Settings) -> Self {
        let mut services = Services::new(seed(&settings.hash_seed));
        services.set_service_cidrs(settings.service_cidrs.iter().copied());
        let mut adapter = Self {
            resolver: Resolver::new(node, settings),
            services,
            pod_cidrs: BTreeMap::new(),
            taken: BTreeSet::new(),
            stale: BTreeSet::new(),
            epoch: 0,
            has_changed: false,
            health: NodeHealth::default(),
            has_other_health: false,
        };
        adapter.set_networks();
        adapter
    }

    /// Returns an adapter with these objects as the complete initial list.
    pub fn of<'a>(node: Arc<str>, settings: Settings, objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let mut adapter = Self::new(node, settings);
        let is_ours =
            |object: &&Object| matches!(object, Object::Service(_) | Object::EndpointSlice(_) | Object::Node(_));
        let (mut pods, mut others) = (Vec::new(), Vec::new());
        for object in objects {
            match object {
                Object::Pod(pod) => pods.push(&**pod),
                other => others.push(other),
            }
        }
        adapter.apply(others.into_iter().filter(is_ours).cloned().map(Event::Apply));
        adapter.set_host_ports(pods.into_iter().map(|pod| (pod, &*pod.addresses)));
        adapter.listed();
        adapter
    }

    /// Applies events as one change. Ignores all kinds except Service, EndpointSlice and Node.
    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        let Self { resolver, pod_cidrs, .. } = self;
        let mut has_other_networks = false;
        let noted = events.into_iter().inspect(|event| has_other_networks |= note_networks(pod_cidrs, event));
        let changes = resolver.apply_batch(noted);
        if has_other_networks {
            self.set_networks();
        }
        self.follow(&changes);
    }

    /// Returns the source addresses, one per family, for connections whose source must be rewritten.
    pub fn source_addresses(&self) -> Vec<IpAddr> {
        let settings = self.resolver.settings();
        let own = self.pod_cidrs.get(self.resolver.node()).map_or(&[][..], Vec::as_slice);
        let of_family = |ipv4: bool| {
            let said = settings.source_addresses.iter().copied().find(|address| address.is_ipv4() == ipv4);
            let own = || own.iter().filter(|block| block.addr().is_ipv4() == ipv4).find_map(first_address);
            said.or_else(own)
        };
        [true, false].into_iter().filter_map(of_family).collect()
    }

    /// Sets which of the [`Self::source_addresses`] belong to a pod or node. Connections that would need such an address are dropped: the
    /// policies of the backend's node would mistake them for that pod's or node's.
    pub fn withhold(&mut self, taken: BTreeSet<IpAddr>) {
        if self.taken != taken {
            self.taken = taken;
            self.set_networks();
        }
    }

    /// Marks the initial list of objects as complete.
    pub fn listed(&mut self) {
        if !self.resolver.is_listed() {
            self.has_changed = true;
            let changes = self.resolver.listed();
            self.follow(&changes);
        }
    }

    /// Sets addresses of the node that its Node object does not list.
    pub fn set_more_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        let changes = self.resolver.set_more_addresses(addresses);
        self.follow(&changes);
    }

    /// Replaces the list of pods and their addresses, to which connections to the host ports of this node's pods are translated.
    pub fn set_host_ports<'a>(&mut self, pods: impl IntoIterator<Item = (&'a Pod, &'a [IpAddr])>) {
        let changes = self.resolver.set_host_ports(pods);
        self.follow(&changes);
    }

    /// Whether [`Self::take`] would return an update.
    pub fn has_changed(&self) -> bool {
        self.has_changed && self.resolver.is_listed()
    }

    /// Returns an update to publish. `None` before the initial list is complete, or if nothing changed since the last call.
    pub fn take(&mut self) -> Option<Update> {
        if !self.resolver.is_listed() || !std::mem::take(&mut self.has_changed) {
            return None;
        }
        self.epoch += 1;
        self.services.set_epoch(self.epoch);
        Some(Update { services: Arc::new(self.services.clone()), stale: std::mem::take(&mut self.stale) })
    }

    /// Returns the node's health and the health checks of its Services. `None` if neither has changed since the last call.
    pub fn take_health(&mut self) -> Option<NodeHealth> {
        std::mem::take(&mut self.has_other_health).then(|| self.health.clone())
    }

    /// Returns the Services with all changes applied, including changes that [`Self::take`] has not returned yet.
    pub const fn services(&self) -> &Services {
        &self.services
    }

    /// Returns the resolver, which knows the reasons of its decisions.
    pub const fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// Returns the numbers of known Services, VIPs and backends.
    pub fn counts(&self) -> Counts {
        let resolver = &self.resolver;
        Counts {
            listed: resolver.is_listed(),
            services: resolver.service_count(),
            vips: resolver.vip_count(),
            backends: resolver.backend_count(),
        }
    }

    /// Updates the pod networks and the source addresses of rewritten connections.
    fn set_networks(&mut self) {
        let settings = self.resolver.settings();
        let blocks = self.pod_cidrs.values().flatten();
        self.services.set_pod_networks(blocks.chain(&settings.cluster_cidrs).copied());
        let sources = self.source_addresses();
        self.services.set_sources(sources.into_iter().filter(|address| !self.taken.contains(address)));
        self.has_changed = true;
    }

    /// Applies the resolver's changes to the working copy.
    fn follow(&mut self, changes: &Changes) {
        let Changes { ports, backends: _, backend_ports, vips, cluster_ips, health_checks } = changes;
        self.follow_health(health_checks);
        if ports.is_empty() && backend_ports.is_empty() && vips.is_empty() && cluster_ips.is_empty() {
            return;
        }
        self.has_changed = true;
        // Read the old backends before the ports change: a port number may be reused.
        let led: Vec<(Vip, Option<Arc<[SocketAddr]>>)> =
            vips.iter().map(dataplane_vip).filter(is_udp).map(|vip| (vip, self.serving(&vip))).collect();
        for &id in ports.union(backend_ports) {
            self.follow_port(id);
        }
        // A port's traffic policy decides where each of its VIPs leads.
        let of_ports = ports.iter().filter_map(|id| self.resolver.port(*id)).flat_map(ResolvedPort::vips);
        let moved: BTreeSet<control::Vip> = of_ports.map(|(vip, _)| vip).chain(vips).copied().collect();
        for vip in moved {
            self.services.set_vip(dataplane_vip(&vip), self.entry(&vip));
        }
        for address in cluster_ips {
            self.services.set_cluster_address(*address, self.resolver.cluster_address(address));
        }
        for (vip, before) in led {
            match (before, self.serving(&vip)) {
                (Some(before), after) => self.note_gone(&before, after.as_deref().unwrap_or_default()),
                (None, Some(_)) => drop(self.stale.insert(vip.address)),
                (None, None) => {}
            }
        }
    }

    /// Updates the health checks of these ports and the state of the node.
    fn follow_health(&mut self, ports: &BTreeSet<u16>) {
        let Self { resolver, health, .. } = self;
        let of_node = (resolver.is_listed(), resolver.is_node_terminating());
        self.has_other_health |= of_node != (health.is_listed, health.is_leaving) || !ports.is_empty();
        (health.is_listed, health.is_leaving) = of_node;
        for &port in ports {
            match resolver.health_check(port) {
                Some(check) => drop(health.checks.insert(port, check.clone())),
                None => drop(health.checks.remove(&port)),
            }
        }
    }

    fn follow_port(&mut self, id: ServicePortId) {
        let number = number(id);
        let before = self.services.port(number).cloned();
        let port = self.resolver.port(id);
        let after = port.map(|port| self.service_port(port, before.as_ref()));
        let is_udp = port.is_some_and(|port| port.name.transport == Transport::Udp);
        if let (true, Some(before), Some(after)) = (is_udp, &before, &after) {
            let (before, after) = (Arc::clone(&before.serving), Arc::clone(&after.serving));
            self.note_gone(&before, &after);
        }
        if before != after {
            self.services.set_port(number, after);
        }
    }

    /// Converts a service port for workers. Shares the parts that equal `before`.
    fn service_port(&self, port: &ResolvedPort, before: Option<&ServicePort>) -> ServicePort {
        let known = |id: &control::BackendId| self.resolver.backend(*id);
        let list = |ids: &[control::BackendId], before: Option<&Backends>| {
            let backend = |backend: &control::Backend| Backend { socket: backend.socket(), is_local: backend.local };
            let mut all: Vec<Backend> = ids.iter().map(known).map(backend).collect();
            all.sort_unstable();
            before.filter(|before| *before.as_slice() == *all).cloned().unwrap_or_else(|| Backends::new(all))
        };
        let cluster = list(&port.cluster, before.map(|before| &before.cluster));
        let is_same = port.local == port.cluster;
        let local = if is_same { cluster.clone() } else { list(&port.local, before.map(|before| &before.local)) };
        let serving = port.backends().iter().map(known).filter(|backend| backend.serving);
        let mut serving: Vec<SocketAddr> = serving.map(control::Backend::socket).collect();
        serving.sort_unstable();
        let unchanged = before.map(|before| &before.serving).filter(|before| ***before == *serving);
        let serving = unchanged.cloned().unwrap_or_else(|| serving.into());
        let (affinity, source_ranges) = (port.affinity, port.source_ranges.clone());
        ServicePort { cluster, local, serving, affinity, identity: identity(&port.name), source_ranges }
    }

    /// Returns the entry of a VIP. `None` if no port has the VIP.
    fn entry(&self, vip: &control::Vip) -> Option<VipEntry> {
        let (id, kind) = self.resolver.vip(vip)?;
        let port = self.resolver.port(id)?;
        let is_cluster_ip = kind == VipKind::ClusterIp;
        let policy = if is_cluster_ip { port.internal_policy } else { port.external_policy };
        let (inside, outside) = match policy {
            TrafficPolicy::Cluster => (BackendList::Cluster, BackendList::Cluster),
            TrafficPolicy::Local if is_cluster_ip => (BackendList::Local, BackendList::Local),
            // From inside the cluster, treat the connection as if the load balancer had returned it to a node with endpoints.
            TrafficPolicy::Local => (BackendList::Cluster, BackendList::Local),
        };
        Some(VipEntry {
            port: number(id),
            inside,
            outside,
            is_ranged: kind == VipKind::LoadBalancer,
            // The option does not apply where client addresses must be kept.
            rewrites_all: self.resolver.settings().masquerade_all && kind.may_rewrite(policy),
        })
    }

    /// Returns the serving backends behind a VIP. `None` if the VIP does not exist.
    fn serving(&self, vip: &Vip) -> Option<Arc<[SocketAddr]>> {
        self.services.vip(vip).map(|(_, port)| Arc::clone(&port.serving))
    }

    /// Records backends that no longer serve. `after` is in ascending order.
    fn note_gone(&mut self, before: &[SocketAddr], after: &[SocketAddr]) {
        let gone = before.iter().filter(|socket| after.binary_search(socket).is_err());
        self.stale.extend(gone.map(SocketAddr::ip));
    }
}

/// Updates a node's podCIDRs. Returns whether they changed.
fn note_networks(pod_cidrs: &mut BTreeMap<Arc<str>, Vec<IpNet>>, event: &Event) -> bool {
    match event {
        Event::Apply(Object::Node(node)) if node.pod_cidrs.is_empty() => pod_cidrs.remove(&node.name).is_some(),
        Event::Apply(Object::Node(node)) => {
            let before = pod_cidrs.insert(node.name.clone(), node.pod_cidrs.clone());
            before.is_none_or(|before| before != node.pod_cidrs)
        }
        Event::DeleteNode(name) => pod_cidrs.remove(name).is_some(),
        _ => false,
    }
}

/// Returns the first host address of a block, which IPAM plugins reserve for a gateway. `None` if the block has only one address.
fn first_address(block: &IpNet) -> Option<IpAddr> {
    let next = match block.network() {
        IpAddr::V4(network) => IpAddr::V4(Ipv4Addr::from(u32::from(network).checked_add(1)?)),
        IpAddr::V6(network) => IpAddr::V6(Ipv6Addr::from(u128::from(network).checked_add(1)?)),
    };
    block.contains(&next).then_some(next)
}

/// Hashes text to a seed for backend selection. Independent of the process: all nodes must select the same backend.
fn seed(text: &str) -> u64 {
    Sha256::digest(text).iter().take(size_of::<u64>()).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

/// Returns the key of client affinity. It depends only on the service port's name, so that it is equal in every process.
fn identity(name: &PortName) -> u64 {
    let PortName { owner, port, transport, ipv4 } = name;
    // Names contain no zero byte.
    let text = format!("{owner}\0{port}\0{}\0{ipv4}", transport.number());
    seed(&text)
}

fn number(id: ServicePortId) -> u32 {
    u32::try_from(id.index()).expect("the resolver counts them in 32 bits")
}

fn dataplane_vip(vip: &control::Vip) -> Vip {
    Vip { address: vip.address, protocol: vip.transport.number(), port: vip.port }
}

fn is_udp(vip: &Vip) -> bool {
    vip.protocol == Transport::Udp.number()
}
