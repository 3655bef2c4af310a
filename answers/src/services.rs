//! Services from `control` to the dataplane: the resolver's changes applied to the value that workers read.
//!
//! **Purpose.** [`Adapter`] owns a [`Resolver`] and a working copy of the dataplane's [`Services`]. It takes in events, writes what
//! they change into the copy, and hands out a value to publish.
//!
//! **Not its purpose.** It decides nothing: which endpoints are usable is the resolver's, which one a connection is given the
//! dataplane's. It publishes nothing.
//!
//! ```text
//!   events --> Resolver --Changes--> the named service ports, VIPs, addresses of the copy --take--> Update { Services, stale }
//!   pods' host ports --^                                                   |
//!   Nodes ---> pod networks, source addresses -----------------------------'
//! ```
//!
//! **Invariant.** The copy is a function of what the resolver knows, whatever events led there: it answers as
//! [`Resolver::decide`] does. Before all is [listed](Adapter::listed) there is nothing to publish, as half of the endpoint slices
//! would refuse half of the connections.

mod counts;
mod taken;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, Pod, TrafficPolicy, Transport};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::{
    self as control, Changes, HealthCheck, PortName, ResolvedPort, Resolver, ServicePortId, Settings, VipKind,
};
use bulkhead_dataplane::{Backend, BackendList, Backends, ServicePort, Services, Vip, VipEntry};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

pub use counts::Counts;
pub use counts::{OFF, told};
pub use taken::{taken_sources, withhold_taken};

/// What is to be published.
#[derive(Clone, Debug)]
pub struct Update {
    /// The Services, with a higher epoch than all before.
    pub services: Arc<Services>,
    /// Where UDP packets must not go on to as they did before: the addresses of backends that serve no more, and of VIPs that were
    /// none. Whoever forwards established flows without asking ends those to and from the ports that lead there. (TCP and SCTP
    /// connections end by themselves.)
    pub stale: BTreeSet<IpAddr>,
}

/// What load balancers, and whoever adds and removes nodes, are told of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether all is listed; before that nothing is translated.
    pub is_listed: bool,
    /// Whether the node is being deleted: balancers are to send no new connections.
    pub is_leaving: bool,
    /// The health checks of Services by their ports (`healthCheckNodePort`).
    pub checks: BTreeMap<u16, HealthCheck>,
}

/// See the module.
#[derive(Debug)]
pub struct Adapter {
    resolver: Resolver,
    services: Services,
    /// The podCIDRs of all nodes that have some.
    pod_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    /// Addresses that are somebody's, so that no connection leaves with them.
    taken: BTreeSet<IpAddr>,
    stale: BTreeSet<IpAddr>,
    epoch: u64,
    has_changed: bool,
    health: NodeHealth,
    has_other_health: bool,
}

impl Adapter {
    /// An adapter that knows nothing yet.
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

    /// An adapter that was told these objects, all that there are.
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

    /// Takes in events as one change. Those of other kinds than Service, EndpointSlice and Node are passed over.
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

    /// The addresses, one per family, that connections are to have as their source where theirs has to change.
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

    /// Says which of the [`Self::source_addresses`] a pod or a node has. A connection that would have to leave with such a one is
    /// dropped: policies of its backend's node would take it for one of that pod or node.
    pub fn withhold(&mut self, taken: BTreeSet<IpAddr>) {
        if self.taken != taken {
            self.taken = taken;
            self.set_networks();
        }
    }

    /// Says that all objects that there were at the start have been told.
    pub fn listed(&mut self) {
        if !self.resolver.is_listed() {
            self.has_changed = true;
            let changes = self.resolver.listed();
            self.follow(&changes);
        }
    }

    /// Says which addresses the node has besides those that its object tells.
    pub fn set_more_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        let changes = self.resolver.set_more_addresses(addresses);
        self.follow(&changes);
    }

    /// Says which pods there are, each with its addresses: for the host ports of those of this node.
    pub fn set_host_ports<'a>(&mut self, pods: impl IntoIterator<Item = (&'a Pod, &'a [IpAddr])>) {
        let changes = self.resolver.set_host_ports(pods);
        self.follow(&changes);
    }

    /// Whether there is something to be published.
    pub fn has_changed(&self) -> bool {
        self.has_changed && self.resolver.is_listed()
    }

    /// What is to be published; none before all is listed, and where nothing has changed since this was asked.
    pub fn take(&mut self) -> Option<Update> {
        if !self.resolver.is_listed() || !std::mem::take(&mut self.has_changed) {
            return None;
        }
        self.epoch += 1;
        self.services.set_epoch(self.epoch);
        Some(Update { services: Arc::new(self.services.clone()), stale: std::mem::take(&mut self.stale) })
    }

    /// What load balancers are told, where that has changed since this was asked.
    pub fn take_health(&mut self) -> Option<NodeHealth> {
        std::mem::take(&mut self.has_other_health).then(|| self.health.clone())
    }

    /// The copy as it is now, which is published when it has changed.
    pub const fn services(&self) -> &Services {
        &self.services
    }

    /// What knows why.
    pub const fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// How much is known.
    pub fn counts(&self) -> Counts {
        let resolver = &self.resolver;
        Counts {
            listed: resolver.is_listed(),
            services: resolver.service_count(),
            vips: resolver.vip_count(),
            backends: resolver.backend_count(),
        }
    }

    /// Where pods have their addresses, and with which ones their connections leave where theirs has to change.
    fn set_networks(&mut self) {
        let settings = self.resolver.settings();
        let blocks = self.pod_cidrs.values().flatten();
        self.services.set_pod_networks(blocks.chain(&settings.cluster_cidrs).copied());
        let sources = self.source_addresses();
        self.services.set_sources(sources.into_iter().filter(|address| !self.taken.contains(address)));
        self.has_changed = true;
    }

    /// Writes what has changed into the copy.
    fn follow(&mut self, changes: &Changes) {
        let Changes { ports, backends: _, backend_ports, vips, cluster_ips, health_checks } = changes;
        self.follow_health(health_checks);
        if ports.is_empty() && backend_ports.is_empty() && vips.is_empty() && cluster_ips.is_empty() {
            return;
        }
        self.has_changed = true;
        // Before the ports: a number may be another port's afterwards.
        let led: Vec<(Vip, Option<Arc<[SocketAddr]>>)> =
            vips.iter().map(dataplane_vip).filter(is_udp).map(|vip| (vip, self.serving(&vip))).collect();
        for &id in ports.union(backend_ports) {
            self.follow_port(id);
        }
        // A policy of a port decides where each of its VIPs leads.
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

    /// Takes over the health checks at these ports, and what is known of the node.
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

    /// A service port as workers see it. What is as it was `before` is shared.
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

    /// Where a VIP leads, none where nobody has it.
    fn entry(&self, vip: &control::Vip) -> Option<VipEntry> {
        let (id, kind) = self.resolver.vip(vip)?;
        let port = self.resolver.port(id)?;
        let is_cluster_ip = kind == VipKind::ClusterIp;
        let policy = if is_cluster_ip { port.internal_policy } else { port.external_policy };
        let (inside, outside) = match policy {
            TrafficPolicy::Cluster => (BackendList::Cluster, BackendList::Cluster),
            TrafficPolicy::Local if is_cluster_ip => (BackendList::Local, BackendList::Local),
            // From inside it is as if the connection had gone to the load balancer and come back at a node with endpoints.
            TrafficPolicy::Local => (BackendList::Cluster, BackendList::Local),
        };
        Some(VipEntry {
            port: number(id),
            inside,
            outside,
            is_ranged: kind == VipKind::LoadBalancer,
            // Where clients' addresses are promised to be kept, the option does not change that.
            rewrites_all: self.resolver.settings().masquerade_all && kind.may_rewrite(policy),
        })
    }

    /// The backends that serve behind a VIP; none where that leads nowhere.
    fn serving(&self, vip: &Vip) -> Option<Arc<[SocketAddr]>> {
        self.services.vip(vip).map(|(_, port)| Arc::clone(&port.serving))
    }

    /// Notes the backends that serve no more. `after` is in ascending order.
    fn note_gone(&mut self, before: &[SocketAddr], after: &[SocketAddr]) {
        let gone = before.iter().filter(|socket| after.binary_search(socket).is_err());
        self.stale.extend(gone.map(SocketAddr::ip));
    }
}

/// What a node knows of the Services and host ports of a state, none where there are none. `objects` are those of Services and endpoint
/// slices; the Nodes and pods are those that the pipeline knows.
pub fn of_node(pipeline: &Pipeline, objects: &[Object], settings: &Settings, node: &Arc<str>) -> Option<Adapter> {
    let is_elsewhere = |object: &Object| matches!(object, Object::Pod(pod) if pod.node.as_ref() != Some(node));
    let others: Vec<Object> = nodes_and_host_ports(pipeline).into_iter().filter(|one| !is_elsewhere(one)).collect();
    let is_some = |object: &Object| matches!(object, Object::Service(_) | Object::Pod(_));
    objects.iter().chain(&others).find(|object| is_some(object))?;
    let mut adapter = Adapter::of(Arc::clone(node), settings.clone(), objects.iter().chain(&others));
    withhold_taken(&mut adapter, pipeline);
    Some(adapter)
}

/// The nodes that a pipeline knows, and the pods with host ports.
pub fn nodes_and_host_ports(pipeline: &Pipeline) -> Vec<Object> {
    let nodes = pipeline.cache().nodes().values().map(|node| Object::Node((**node).clone()));
    let pods = pipeline.cache().pods().map(|(_, pod)| pod).filter(|pod| !pod.host_ports.is_empty());
    nodes.chain(pods.map(|pod| Object::Pod(pod.clone()))).collect()
}

/// Notes where a node's pods have their addresses. Returns whether that has changed.
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

/// The first address of a block after the block's own: IPAM plugins keep it for a gateway. None where the block has no further one.
fn first_address(block: &IpNet) -> Option<IpAddr> {
    let next = match block.network() {
        IpAddr::V4(network) => IpAddr::V4(Ipv4Addr::from(u32::from(network).checked_add(1)?)),
        IpAddr::V6(network) => IpAddr::V6(Ipv6Addr::from(u128::from(network).checked_add(1)?)),
    };
    block.contains(&next).then_some(next)
}

/// A number of a text: what the choice of backends is hashed with. Not one of this process' own: nodes that are asked the same
/// must answer the same.
fn seed(text: &str) -> u64 {
    Sha256::digest(text).iter().take(size_of::<u64>()).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

/// What clients' affinity is kept under: the same for as long as the service port has its name, in every process.
fn identity(name: &PortName) -> u64 {
    let PortName { owner, port, transport, ipv4 } = name;
    // No name has a zero byte.
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
