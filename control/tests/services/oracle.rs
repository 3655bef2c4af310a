//! The reference: applies the written rules for Services to the objects for every question, without tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{
    ClusterService, Endpoint, EndpointSlice, Node, Object, ObjectName, Pod, ServicePort, TrafficPolicy, Transport,
};
use bulkhead_control::service::{Client, NodePortAddresses, Place, Settings};

use super::asked::Told;
use super::random::NODE;

/// All objects, each in its latest state.
pub(crate) struct World {
    settings: Settings,
    services: BTreeMap<ObjectName, ClusterService>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    nodes: BTreeMap<String, Node>,
    pub(crate) pods: Vec<Pod>,
}

/// The treatment of a connection, and the rules that decide it.
pub(crate) struct Expected {
    pub(crate) told: Told,
    rules: Vec<&'static str>,
}

/// The situations that questions met, so that a test with too little coverage fails.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    actions: BTreeMap<&'static str, usize>,
    rules: BTreeMap<&'static str, usize>,
    rewritten: usize,
    kept: usize,
    pub(crate) health: usize,
}

impl Reached {
    pub(crate) fn note(&mut self, expected: &Expected) {
        *self.actions.entry(expected.told.action).or_insert(0) += 1;
        expected.rules.iter().for_each(|rule| *self.rules.entry(rule).or_insert(0) += 1);
        self.rewritten += expected.told.backends.values().filter(|rewrites| **rewrites).count();
        self.kept += expected.told.backends.values().filter(|rewrites| !**rewrites).count();
    }

    pub(crate) fn check(&self) {
        let all = ["dnat", "reject", "drop", "pass"];
        assert!(all.iter().all(|action| self.actions.get(action) > Some(&1_000)), "{:?}", self.actions);
        for rule in [
            "conflict",
            "by node",
            "by zone",
            "hints incomplete",
            "draining",
            "local draining",
            "local",
            "short circuit",
            "no local endpoint",
            "no endpoint",
            "source range",
            "unknown port",
            "unallocated",
            "other proxy",
            "slices disagree",
            "node port",
            "load balancer",
            "external ip",
            "cluster ip",
            "host port",
            "no host port",
        ] {
            assert!(self.rules.get(rule) > Some(&50), "{rule}: {:?}", self.rules);
        }
        assert!(self.rewritten > 1_000 && self.kept > 1_000 && self.health > 50, "{self:?}");
    }
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, services: BTreeMap::new(), slices: BTreeMap::new(), nodes: BTreeMap::new(), pods: Vec::new() }
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        match event.clone() {
            Event::Apply(Object::Service(service)) => {
                self.services.insert(service.name.clone(), Arc::unwrap_or_clone(service));
            }
            Event::Apply(Object::EndpointSlice(slice)) => {
                self.slices.insert(slice.name.clone(), Arc::unwrap_or_clone(slice));
            }
            Event::Apply(Object::Node(node)) => drop(self.nodes.insert(node.name.to_string(), node)),
            Event::DeleteService(name) => drop(self.services.remove(&name)),
            Event::DeleteEndpointSlice(name) => drop(self.slices.remove(&name)),
            Event::DeleteNode(name) => drop(self.nodes.remove(&*name)),
            other => panic!("{other:?}"),
        }
    }

    /// The events that lead from an empty world to this one.
    pub(crate) fn events(&self) -> Vec<Event> {
        let services = self.services.values().cloned().map(|service| Object::Service(service.into()));
        let slices = self.slices.values().cloned().map(|slice| Object::EndpointSlice(slice.into()));
        let nodes = self.nodes.values().cloned().map(Object::Node);
        services.chain(slices).chain(nodes).map(Event::Apply).collect()
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        self.nodes.get(NODE).map_or(Vec::new(), |node| node.addresses.clone())
    }

    fn zone(&self) -> Option<String> {
        let zone = self.nodes.get(NODE)?.labels.get("topology.kubernetes.io/zone")?.to_string();
        (!zone.is_empty()).then_some(zone)
    }

    fn is_ours(&self, service: &ClusterService) -> bool {
        let wanted = Some(&*self.settings.service_proxy_name).filter(|name| !name.is_empty());
        service.proxy.as_deref() == wanted
    }

    /// All kinds, addresses and ports by which clients reach a Service's port in one family.
    fn vips(&self, service: &ClusterService, port: &ServicePort) -> Vec<(u8, IpAddr, u16)> {
        let mut all = Vec::new();
        let has_family = |address: &IpAddr| service.cluster_ips.iter().any(|own| own.is_ipv4() == address.is_ipv4());
        all.extend(service.cluster_ips.iter().map(|&address| (0, address, port.port)));
        if let Some(number) = port.node_port {
            for address in self.own_addresses() {
                let answers = match &self.settings.node_port_addresses {
                    NodePortAddresses::Primary => {
                        let own = self.own_addresses();
                        own.into_iter().find(|own| own.is_ipv4() == address.is_ipv4()) == Some(address)
                    }
                    NodePortAddresses::In(blocks) => blocks.iter().any(|block| block.contains(&address)),
                };
                if answers && has_family(&address) {
                    all.push((1, address, number));
                }
            }
        }
        all.extend(service.balancer_ips.iter().filter(|ip| has_family(ip)).map(|&ip| (2, ip, port.port)));
        for &ip in service.external_ips.iter().filter(|ip| has_family(ip)) {
            let allowed = &self.settings.external_ips;
            if allowed.as_ref().is_none_or(|blocks| blocks.iter().any(|block| block.contains(&ip))) {
                all.push((4, ip, port.port));
            }
        }
        all
    }

    /// The endpoints of a Service's port in one family, by address and port.
    fn endpoints(
        &self,
        service: &ClusterService,
        port: &ServicePort,
        ipv4: bool,
        rules: &mut Vec<&'static str>,
    ) -> BTreeMap<SocketAddr, Endpoint> {
        let mut all: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
        for slice in self.slices.values() {
            if slice.headless
                || slice.name.namespace != service.name.namespace
                || slice.service.as_ref() != Some(&service.name.name)
            {
                continue;
            }
            for slice_port in &slice.ports {
                if slice_port.name != port.name || slice_port.transport != port.transport {
                    continue;
                }
                for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.address.is_ipv4() == ipv4) {
                    let socket = SocketAddr::new(endpoint.address, slice_port.port);
                    let usefulness = |one: &Endpoint| match (one.ready, one.serving, one.terminating) {
                        (true, ..) => 3,
                        (false, true, true) => 2,
                        (false, true, false) => 1,
                        (false, false, _) => 0,
                    };
                    match all.get(&socket) {
                        Some(known) if usefulness(known) >= usefulness(endpoint) => {
                            if usefulness(known) > usefulness(endpoint) {
                                rules.push("slices disagree");
                            }
                        }
                        _ => drop(all.insert(socket, endpoint.clone())),
                    }
                }
            }
        }
        all
    }

    /// The endpoints for the `Cluster` traffic policy.
    fn cluster(&self, all: &BTreeMap<SocketAddr, Endpoint>, rules: &mut Vec<&'static str>) -> BTreeSet<SocketAddr> {
        let ready: BTreeMap<&SocketAddr, &Endpoint> = all.iter().filter(|(_, one)| one.ready).collect();
        if ready.is_empty() {
            let draining = all.iter().filter(|(_, one)| one.serving && one.terminating);
            let draining: BTreeSet<_> = draining.map(|(socket, _)| *socket).collect();
            if !draining.is_empty() {
                rules.push("draining");
            }
            return draining;
        }
        let nodes = |one: &Endpoint| one.hints.as_ref().map_or(Vec::new(), |hints| hints.nodes.clone());
        let zones = |one: &Endpoint| one.hints.as_ref().map_or(Vec::new(), |hints| hints.zones.clone());
        if ready.values().all(|one| !nodes(one).is_empty()) {
            let here: BTreeSet<_> = ready
                .iter()
                .filter(|(_, one)| nodes(one).iter().any(|node| **node == *NODE))
                .map(|(socket, _)| **socket)
                .collect();
            if !here.is_empty() {
                rules.push("by node");
                return here;
            }
        }
        if let Some(zone) = self.zone() {
            if ready.values().all(|one| !zones(one).is_empty()) {
                let here: BTreeSet<_> = ready
                    .iter()
                    .filter(|(_, one)| zones(one).iter().any(|other| **other == *zone))
                    .map(|(socket, _)| **socket)
                    .collect();
                if !here.is_empty() {
                    rules.push("by zone");
                    return here;
                }
            } else if ready.values().any(|one| !zones(one).is_empty()) {
                rules.push("hints incomplete");
            }
        }
        ready.into_keys().copied().collect()
    }

    /// The endpoints for the `Local` traffic policy.
    fn local(all: &BTreeMap<SocketAddr, Endpoint>, rules: &mut Vec<&'static str>) -> BTreeSet<SocketAddr> {
        let here = || all.iter().filter(|(_, one)| one.node.as_deref() == Some(NODE));
        let ready: BTreeSet<_> = here().filter(|(_, one)| one.ready).map(|(socket, _)| *socket).collect();
        if !ready.is_empty() {
            rules.push("local");
            return ready;
        }
        let draining = here().filter(|(_, one)| one.serving && one.terminating);
        let draining: BTreeSet<_> = draining.map(|(socket, _)| *socket).collect();
        if !draining.is_empty() {
            rules.push("local draining");
        }
        draining
    }

    /// The treatment of a new connection.
    pub(crate) fn resolve(&self, client: Client, to: IpAddr, port: Option<(Transport, u16)>) -> Expected {
        let mut rules = Vec::new();
        let mut claims = Vec::new();
        for service in self.services.values().filter(|service| self.is_ours(service)) {
            for service_port in &service.ports {
                for (kind, address, number) in self.vips(service, service_port) {
                    if address == to && port == Some((service_port.transport, number)) {
                        let age = (service.created.is_none(), service.created);
                        claims.push(((kind, age, &service.name, &service_port.name), service, service_port));
                    }
                }
            }
        }
        claims.sort_by_key(|(rank, ..)| *rank);
        claims.dedup_by_key(|((_, _, name, port), ..)| (*name, *port));
        if claims.len() > 1 {
            rules.push("conflict");
        }
        let host_port = self.host_port(to, port);
        if let Some(socket) = host_port
            && claims.first().is_none_or(|((kind, ..), ..)| *kind > 3)
        {
            rules.push("host port");
            // A pod's connection to its own host port needs source translation.
            let backends = [(socket, socket.ip() == client.address)].into();
            return Expected { told: Told { action: "dnat", service: None, backends }, rules };
        }
        rules.extend(host_port.map(|_| "no host port"));
        let Some(((kind, ..), service, service_port)) = claims.first() else {
            let (action, service, rule) = self.without_port(to);
            let told = Told { action, service, backends: BTreeMap::new() };
            return Expected { told, rules: vec![rule] };
        };
        rules.push(["cluster ip", "node port", "load balancer", "", "external ip"][usize::from(*kind)]);
        let (action, backends) = self.at_port(client, to, *kind, service, service_port, &mut rules);
        let told = Told { action, service: Some(service.name.to_string()), backends };
        Expected { told, rules }
    }

    /// The pod and port behind a host port of the node. Of several pods, the oldest one has it, and of equally old ones the first by name.
    fn host_port(&self, to: IpAddr, port: Option<(Transport, u16)>) -> Option<SocketAddr> {
        let mut claims = Vec::new();
        for pod in self.pods.iter().filter(|pod| pod.node.as_deref() == Some(NODE)) {
            if pod.host_network || pod.finished || !self.own_addresses().contains(&to) {
                continue;
            }
            for host_port in pod.host_ports.iter().filter(|one| port == Some((one.transport, one.number))) {
                let answers = match host_port.address {
                    None => true,
                    Some(address) if address.is_unspecified() => address.is_ipv4() == to.is_ipv4(),
                    Some(address) => address == to,
                };
                let of_family = pod.addresses.iter().filter(|own| own.is_ipv4() == to.is_ipv4());
                let age = (pod.lifetime.created.is_none(), pod.lifetime.created);
                claims.extend(
                    of_family.filter(|_| answers).map(|&own| (age, &pod.name, SocketAddr::new(own, host_port.port))),
                );
            }
        }
        claims.into_iter().min().map(|(.., socket)| socket)
    }

    fn at_port(
        &self,
        client: Client,
        to: IpAddr,
        kind: u8,
        service: &ClusterService,
        service_port: &ServicePort,
        rules: &mut Vec<&'static str>,
    ) -> (&'static str, BTreeMap<SocketAddr, bool>) {
        if kind == 2
            && let Some(ranges) = &service.source_ranges
        {
            let of_family = || ranges.iter().filter(|range| range.addr().is_ipv4() == to.is_ipv4());
            let inside = |address: IpAddr| of_family().any(|range| range.contains(&address));
            let node_is_inside = self.own_addresses().into_iter().any(inside);
            if !(inside(client.address) || client.address == to && node_is_inside) {
                rules.push("source range");
                return ("drop", BTreeMap::new());
            }
        }
        let all = self.endpoints(service, service_port, to.is_ipv4(), rules);
        let policy = if kind == 0 { service.internal_policy } else { service.external_policy };
        let from_outside = client.place == Place::Outside;
        let list = if policy == TrafficPolicy::Local && (kind == 0 || from_outside) {
            Self::local(&all, rules)
        } else {
            if policy == TrafficPolicy::Local {
                rules.push("short circuit");
            }
            self.cluster(&all, rules)
        };
        if list.is_empty() {
            let usable = all.values().any(|one| one.ready || one.serving && one.terminating);
            rules.push(if usable { "no local endpoint" } else { "no endpoint" });
            return (if usable { "drop" } else { "reject" }, BTreeMap::new());
        }
        let rewritten = |socket: SocketAddr| {
            let is_local = all[&socket].node.as_deref() == Some(NODE);
            let own = self.own_addresses();
            let answer_is_lost = match client.place {
                Place::Pod => false,
                Place::OtherPod | Place::Outside => !is_local,
                Place::Host => own.contains(&socket.ip()) || (client.address == to && !own.contains(&to)),
            };
            let asked_for = self.settings.masquerade_all && (kind == 0 || policy == TrafficPolicy::Cluster);
            socket.ip() == client.address || answer_is_lost || asked_for
        };
        ("dnat", list.into_iter().map(|socket| (socket, rewritten(socket))).collect())
    }

    fn without_port(&self, to: IpAddr) -> (&'static str, Option<String>, &'static str) {
        let owns = |service: &&ClusterService| service.cluster_ips.contains(&to);
        let name = |service: &ClusterService| Some(service.name.to_string());
        if let Some(service) = self.services.values().filter(owns).find(|service| self.is_ours(service)) {
            return ("reject", name(service), "unknown port");
        }
        if let Some(service) = self.services.values().find(owns) {
            return ("pass", name(service), "other proxy");
        }
        if self.settings.service_cidrs.iter().any(|block| block.contains(&to)) {
            return ("drop", None, "unallocated");
        }
        ("pass", None, "not ours")
    }

    /// The Service whose health check uses this port, and its number of ready addresses of each family on this node.
    pub(crate) fn health(&self, port: u16) -> Option<(String, usize, usize)> {
        let mut all: Vec<&ClusterService> = self.services.values().filter(|service| self.is_ours(service)).collect();
        all.retain(|service| service.health_check_port == Some(port) && !service.cluster_ips.is_empty());
        let service =
            all.into_iter().min_by_key(|service| (service.created.is_none(), service.created, &service.name))?;
        let ready = |ipv4: bool| {
            if !service.cluster_ips.iter().any(|address| address.is_ipv4() == ipv4) {
                return 0;
            }
            let mut addresses = BTreeSet::new();
            for service_port in &service.ports {
                let all = self.endpoints(service, service_port, ipv4, &mut Vec::new());
                let here = all.values().filter(|one| one.ready && one.node.as_deref() == Some(NODE));
                addresses.extend(here.map(|one| one.address));
            }
            addresses.len()
        };
        Some((service.name.to_string(), ready(true), ready(false)))
    }
}
