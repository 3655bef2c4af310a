//! A running resolver, and its answers in a form without ids.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Object, Transport};
use bulkhead_control::service::{
    Action, Answer, Backend, BackendId, Changes, Clients, Decision, List, PortName, ResolvedPort, Resolver,
    ServicePortId, Settings, Vip, VipKind,
};
use serde_json::Value;

/// The treatment of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) action: &'static str,
    pub(crate) service: Option<String>,
    /// The backends, each with whether the source address is rewritten.
    pub(crate) backends: BTreeMap<SocketAddr, bool>,
}

pub(crate) fn told(resolver: &Resolver, decision: &Decision) -> Told {
    let action = match decision.answer.action() {
        Action::Translate => "dnat",
        Action::Reject => "reject",
        Action::Drop => "drop",
        Action::Pass => "pass",
    };
    let backends = match &decision.answer {
        Answer::Backends(all) => {
            all.iter().map(|one| (resolver.backend(one.backend).socket(), one.rewrites_source)).collect()
        }
        _ => BTreeMap::new(),
    };
    Told { action, service: decision.service.as_ref().map(ToString::to_string), backends }
}

/// A node's resolver, in a cluster that may change into another one.
pub(crate) struct Running {
    pub(crate) resolver: Resolver,
    inventory: Inventory,
    objects: Vec<Object>,
    settings: Settings,
}

impl Running {
    pub(crate) fn new(node: &str, settings: &Settings, objects: Vec<Object>) -> Self {
        let mut resolver = Resolver::new(node.into(), settings.clone());
        resolver.listed();
        let mut running =
            Self { resolver, inventory: Inventory::default(), objects: Vec::new(), settings: settings.clone() };
        running.become_cluster(objects);
        running
    }

    pub(crate) fn become_cluster(&mut self, objects: Vec<Object>) {
        self.resolver.apply_batch(self.inventory.replace(objects.clone()));
        self.objects = objects;
    }

    /// Applies a sequence's change to the objects.
    pub(crate) fn change(&mut self, change: &Value, first: Option<&str>) {
        let objects = super::cases::changed(&self.objects, change, first);
        self.become_cluster(objects);
    }

    /// Judges the first packet of a connection, like the command line.
    pub(crate) fn ask(&self, from: IpAddr, to: IpAddr, port: Option<(Transport, u16)>) -> Told {
        let clients = Clients::new(self.resolver.node(), &self.settings, &self.objects);
        let decide = |resolver: &Resolver| told(resolver, &resolver.decide(clients.at(from, to), to, port).unwrap());
        if !clients.may_be_nodes(to) {
            return decide(&self.resolver);
        }
        let mut with_address = Self::new(self.resolver.node(), &self.settings, self.objects.clone()).resolver;
        with_address.set_more_addresses([to].into());
        decide(&with_address)
    }

    fn ask_packet(&self, packet: &Value) -> Told {
        let socket = |key: &str| packet[key].as_str().unwrap().replace('*', "9").parse::<SocketAddr>().unwrap();
        let transport = Transport::from_name(packet["protocol"].as_str().unwrap()).unwrap();
        let to = socket("dst");
        self.ask(socket("src").ip(), to.ip(), Some((transport, to.port())))
    }

    /// The backends that may be chosen for a packet of a sequence.
    pub(crate) fn eligible(&self, packet: &Value) -> BTreeSet<String> {
        self.ask_packet(packet).backends.keys().map(ToString::to_string).collect()
    }

    pub(crate) fn action(&self, packet: &Value) -> &'static str {
        self.ask_packet(packet).action
    }

    /// The service port of a TCP address and port.
    pub(crate) fn port_of(&self, text: &str) -> Option<(ServicePortId, &ResolvedPort)> {
        self.port_at(text, Transport::Tcp)
    }

    pub(crate) fn udp_affinity(&self, text: &str) -> Option<u32> {
        self.port_at(text, Transport::Udp)?.1.affinity
    }

    pub(crate) fn port_at(&self, text: &str, transport: Transport) -> Option<(ServicePortId, &ResolvedPort)> {
        let socket: SocketAddr = text.parse().unwrap();
        let (id, _) = self.resolver.vip(&Vip { address: socket.ip(), transport, port: socket.port() })?;
        Some((id, self.resolver.port(id)?))
    }

    /// Whether a session survives a change: a UDP session does while its backend serves the service port of its VIP.
    pub(crate) fn keeps_session(&self, session: &Value) -> bool {
        let text = |key: &str| session[key].as_str().unwrap();
        if text("protocol") != "UDP" {
            return true;
        }
        let Some((_, port)) = self.port_at(text("vip"), Transport::Udp) else { return false };
        let mut backends = port.backends().iter().map(|&id| self.resolver.backend(id));
        backends.any(|backend| backend.serving && backend.socket().to_string() == text("backend"))
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables::of(&self.resolver)
    }

    /// Judges the packet of a case.
    pub(crate) fn ask_case(&self, case: &Value) -> Told {
        let address = |value: &Value| value["ip"].as_str().unwrap().parse::<IpAddr>().unwrap();
        let (from, to) = (address(&case["client"]), address(&case["dst"]));
        let transport = Transport::from_name(case["dst"]["protocol"].as_str().unwrap());
        let port = u16::try_from(case["dst"]["port"].as_u64().unwrap()).unwrap();
        let port = transport.map(|transport| (transport, port));
        self.ask(from, to, port)
    }
}

/// The resolver's state without ids.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    ports: BTreeMap<PortName, String>,
    vips: BTreeMap<Vip, (PortName, VipKind)>,
    health: BTreeMap<u16, String>,
}

impl Tables {
    pub(crate) fn of(resolver: &Resolver) -> Self {
        let sockets =
            |ids: &[BackendId]| -> Vec<SocketAddr> { ids.iter().map(|&id| resolver.backend(id).socket()).collect() };
        let shown = |port: &ResolvedPort| {
            let all: Vec<_> = port.backends().iter().map(|&id| resolver.backend(id)).collect();
            let all: Vec<_> = all.iter().map(|backend| (backend.socket(), backend.serving, backend.local)).collect();
            let lists = [List::Cluster, List::Local].map(|list| sockets(port.list(list)));
            let policies = (port.internal_policy, port.external_policy, port.affinity, &port.source_ranges);
            format!("{lists:?} of {all:?}, {policies:?}, {:?}", port.vips())
        };
        let ports = resolver.ports().map(|(_, port)| (port.name.clone(), shown(port))).collect();
        let winner = |vip: &Vip| {
            let (id, kind) = resolver.vip(vip).unwrap();
            (*vip, (resolver.port(id).unwrap().name.clone(), kind))
        };
        let vips = resolver.vips().map(winner).collect();
        let health = |port| (port, format!("{:?}", resolver.health_check(port)));
        Self { ports, vips, health: resolver.health_check_ports().map(health).collect() }
    }
}

/// The resolver's state by id, to check which changes an event reports.
pub(crate) struct Identities {
    ports: BTreeMap<ServicePortId, ResolvedPort>,
    backends: BTreeMap<BackendId, Backend>,
    vips: BTreeMap<Vip, ServicePortId>,
    epoch: u64,
}

impl Identities {
    pub(crate) fn of(resolver: &Resolver) -> Self {
        let ports: BTreeMap<_, _> = resolver.ports().map(|(id, port)| (id, port.clone())).collect();
        let all = ports.values().flat_map(|port| port.backends());
        let backends = all.map(|&id| (id, *resolver.backend(id))).collect();
        let vips = resolver.vips().map(|vip| (*vip, resolver.vip(vip).unwrap().0)).collect();
        Self { ports, backends, vips, epoch: resolver.epoch() }
    }

    /// Fails unless the changes name all differences, and no other service ports and backends.
    pub(crate) fn check(&self, resolver: &Resolver, changes: &Changes, context: &str) {
        let after = Self::of(resolver);
        let shown = |port: &ResolvedPort| {
            let lists = (port.cluster.clone(), port.local.clone(), port.source_ranges.clone());
            let rest = (port.internal_policy, port.external_policy, port.affinity, port.vips().to_vec());
            (port.name.clone(), lists, rest)
        };
        let ids: BTreeSet<_> = self.ports.keys().chain(after.ports.keys()).copied().collect();
        let differs = |id: &ServicePortId| self.ports.get(id).map(shown) != after.ports.get(id).map(shown);
        let expected: BTreeSet<_> = ids.into_iter().filter(differs).collect();
        let beyond = changes.ports.difference(&expected).filter(|id| self.ports.contains_key(id));
        assert!(expected.is_subset(&changes.ports), "ports {expected:?} {:?}\n{context}", changes.ports);
        // May also be reported: a service port that was added and removed, or whose id was reused for an equal one.
        assert!(beyond.count() <= changes.vips.len(), "ports {expected:?} {:?}\n{context}", changes.ports);
        let ids: BTreeSet<_> = self.backends.keys().chain(after.backends.keys()).copied().collect();
        let expected: BTreeSet<_> =
            ids.into_iter().filter(|id| self.backends.get(id) != after.backends.get(id)).collect();
        assert!(expected.is_subset(&changes.backends), "backends\n{context}");
        let owners = |known: &BTreeMap<BackendId, Backend>| -> BTreeSet<ServicePortId> {
            expected.iter().filter_map(|id| Some(known.get(id)?.service_port)).collect()
        };
        let owners = &owners(&self.backends) | &owners(&after.backends);
        assert!(owners.is_subset(&changes.backend_ports), "ports of backends\n{context}");
        let vips: BTreeSet<_> = self.vips.keys().chain(after.vips.keys()).copied().collect();
        let expected: BTreeSet<_> = vips.into_iter().filter(|vip| self.vips.get(vip) != after.vips.get(vip)).collect();
        assert!(expected.is_subset(&changes.vips), "VIPs {expected:?} {:?}\n{context}", changes.vips);
        assert_eq!(after.epoch, self.epoch + u64::from(!changes.is_empty()), "{context}");
        // Backends never share an id, and service ports never share a backend.
        let all: usize = after.ports.values().map(|port| port.backends().len()).sum();
        assert_eq!((all, after.backends.len()), (resolver.backend_count(), all), "{context}");
        for (id, port) in &after.ports {
            assert!(port.backends().iter().all(|&backend| resolver.backend(backend).service_port == *id), "{context}");
        }
    }
}
