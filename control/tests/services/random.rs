//! Random Services, slices, nodes and events, with few names, addresses and ports, so that they conflict.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{
    ClusterService, Endpoint, EndpointPort, EndpointSlice, Hints, HostPort, Labels, Lifetime, Node, Object, ObjectName,
    Pod, ServicePort, Timestamp, TrafficPolicy, Transport, ZONE_LABEL,
};
use bulkhead_control::service::{Client, NodePortAddresses, Place, Settings};
use ipnet::IpNet;

use super::Rng;

/// The node whose resolver is tested.
pub(crate) const NODE: &str = "n1";
const NODES: [&str; 2] = [NODE, "n2"];
const ZONES: [&str; 3] = ["a", "b", ""];
const SERVICES: [(&str, &str); 4] = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "c")];
const PORT_NAMES: [&str; 2] = ["http", ""];
const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

const CLUSTER_IPS: [&str; 3] = ["10.96.0.1", "10.96.0.2", "10.96.0.3"];
const CLUSTER_IPS_V6: [&str; 2] = ["fd00:96::1", "fd00:96::2"];
const EXTERNAL_IPS: [&str; 4] = ["198.51.100.1", "198.51.100.2", "2001:db8:9::1", "10.96.0.1"];
const NODE_IPS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
const ENDPOINTS: [&str; 4] = ["10.244.1.1", "10.244.1.2", "10.244.2.1", "192.0.2.1"];
const ENDPOINTS_V6: [&str; 2] = ["fd00:244::1", "fd00:244::2"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn some<T: Copy>(rng: &mut Rng, all: &[T], percent: usize) -> Vec<T> {
    all.iter().copied().filter(|_| rng.chance(percent)).collect()
}

fn blocks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(crate) fn settings(rng: &mut Rng) -> Settings {
    let node_port_addresses = match rng.below(3) {
        0 => NodePortAddresses::In(blocks(&["192.0.2.2/32", "2001:db8::/64"])),
        1 => NodePortAddresses::In(blocks(&["192.0.2.0/24"])),
        _ => NodePortAddresses::Primary,
    };
    Settings {
        cluster_cidrs: blocks(&["10.244.0.0/16"]),
        service_cidrs: blocks(&["10.96.0.0/16", "fd00:96::/112"]),
        node_port_addresses,
        masquerade_all: rng.chance(15),
        service_proxy_name: if rng.chance(15) { "mine".into() } else { String::new() },
        external_ips: rng.chance(20).then(|| blocks(&["198.51.100.0/31"])),
        ..Settings::default()
    }
}

pub(crate) fn clients() -> Vec<Client> {
    [
        ("10.244.1.1", Place::Pod),
        ("10.244.2.1", Place::OtherPod),
        ("192.0.2.1", Place::Host),
        ("198.51.100.1", Place::Host),
        ("203.0.113.9", Place::Outside),
        ("203.0.113.200", Place::Outside),
        ("fd00:244::1", Place::Pod),
        ("2001:db8::1", Place::Host),
        ("2001:db8:ffff::1", Place::Outside),
    ]
    .into_iter()
    .map(|(address, place)| Client { address: ip(address), place })
    .collect()
}

/// The destination addresses of connections.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let mut all: Vec<&str> = [&CLUSTER_IPS[..], &CLUSTER_IPS_V6, &EXTERNAL_IPS[..3], &NODE_IPS].concat();
    all.extend(["10.96.9.9", "10.244.1.1", "8.8.8.8"]);
    all.into_iter().map(ip).collect()
}

pub(crate) fn ports() -> Vec<Option<(Transport, u16)>> {
    let mut all = vec![None];
    for transport in TRANSPORTS {
        all.extend([80, 30_080].map(|port| Some((transport, port))));
    }
    all
}

fn service(rng: &mut Rng, (namespace, name): (&str, &str)) -> ClusterService {
    let mut cluster_ips = Vec::new();
    if rng.chance(85) {
        cluster_ips.push(ip(rng.pick(&CLUSTER_IPS)));
    }
    if rng.chance(35) {
        cluster_ips.push(ip(rng.pick(&CLUSTER_IPS_V6)));
    }
    let mut ports = Vec::new();
    for port_name in PORT_NAMES {
        if rng.chance(65) {
            let transport = rng.pick(&TRANSPORTS);
            if ports.iter().all(|other: &ServicePort| other.transport != transport) {
                let node_port = rng.chance(60).then_some(30_080);
                ports.push(ServicePort { name: port_name.into(), transport, port: 80, node_port });
            }
        }
    }
    let policy = |rng: &mut Rng| if rng.chance(45) { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let proxy = ["mine", "other"];
    let ranges = ["192.0.2.0/24", "203.0.113.0/25", "2001:db8::/64", "10.244.0.0/16"];
    ClusterService {
        name: ObjectName::new(namespace, name),
        created: rng.chance(70).then(|| Timestamp::parse(&format!("2026-01-01T00:00:0{}Z", rng.below(3))).unwrap()),
        proxy: rng.chance(20).then(|| rng.pick(&proxy).into()),
        labels: Default::default(),
        selector: Default::default(),
        cluster_ips,
        external_ips: some(rng, &EXTERNAL_IPS, 25).into_iter().map(ip).collect(),
        balancer_ips: some(rng, &EXTERNAL_IPS, 25).into_iter().map(ip).collect(),
        ports,
        internal_policy: policy(rng),
        external_policy: policy(rng),
        affinity: rng.chance(30).then_some(10),
        source_ranges: rng.chance(40).then(|| blocks(&some(rng, &ranges, 45))),
        health_check_port: rng.chance(40).then(|| rng.pick(&[30_000, 30_001])),
    }
}

fn hints(rng: &mut Rng) -> Option<Box<Hints>> {
    // Mostly complete, because one endpoint without hints disables them.
    let texts = |all: Vec<&str>| all.into_iter().map(Arc::from).collect();
    let nodes = if rng.chance(50) { texts(some(rng, &NODES, 60)) } else { Vec::new() };
    let zones = if rng.chance(85) { texts(some(rng, &ZONES[..2], 65)) } else { Vec::new() };
    let hints = Hints { nodes, zones };
    (hints != Hints::default()).then(|| Box::new(hints))
}

fn slice(rng: &mut Rng, at: usize) -> EndpointSlice {
    // Each slice stays in its namespace, but may change its Service.
    let namespace = ["x", "y"][at % 2];
    let pool: &[&str] = if rng.chance(70) { &ENDPOINTS } else { &ENDPOINTS_V6 };
    let has_hints = rng.chance(60);
    let all_ready = rng.chance(40);
    let endpoints = some(rng, pool, 60).into_iter().map(|address| {
        let ready = all_ready || rng.chance(40);
        Endpoint {
            address: ip(address),
            node: rng.chance(85).then(|| rng.pick(&NODES).into()),
            ready,
            serving: ready || rng.chance(60),
            terminating: !ready && rng.chance(60),
            hints: if has_hints && rng.chance(92) { hints(rng) } else { None },
        }
    });
    let endpoints = endpoints.collect();
    let mut ports = Vec::new();
    for name in PORT_NAMES {
        for transport in TRANSPORTS {
            if rng.chance(70) {
                ports.push(EndpointPort { name: name.into(), transport, port: rng.pick(&[8_080, 8_081]) });
            }
        }
    }
    EndpointSlice {
        name: ObjectName::new(namespace, format!("s{at}")),
        service: rng.chance(92).then(|| rng.pick(&["a", "b", "c"]).into()),
        headless: rng.chance(6),
        ports,
        endpoints,
    }
}

fn node(rng: &mut Rng) -> Node {
    let name = rng.pick(&NODES);
    let zone = rng.chance(85).then(|| (ZONE_LABEL.into(), rng.pick(&ZONES).into()));
    let mut addresses: Vec<IpAddr> =
        if name == NODE { some(rng, &NODE_IPS, 75).into_iter().map(ip).collect() } else { vec![ip("192.0.2.77")] };
    rng.shuffle(&mut addresses);
    Node {
        name: name.into(),
        labels: zone.into_iter().collect::<Labels>(),
        addresses,
        pod_cidrs: vec![],
        terminating: rng.chance(10),
    }
}

/// All pods, some with host ports.
pub(crate) fn pods(rng: &mut Rng) -> Vec<Pod> {
    ["a", "b", "c"]
        .into_iter()
        .filter(|_| rng.chance(70))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|name| pod(rng, name))
        .collect()
}

fn pod(rng: &mut Rng, name: &str) -> Pod {
    let addresses = [rng.pick(&["10.244.1.1", "10.244.1.3"]), rng.pick(&ENDPOINTS_V6)];
    let addresses: Vec<IpAddr> = some(rng, &addresses, 80).into_iter().map(ip).collect();
    let places = ["192.0.2.1", "0.0.0.0", "::", "2001:db8::1", "203.0.113.77"];
    let mut host_ports = Vec::new();
    for (transport, number) in [(Transport::Tcp, 80), (Transport::Tcp, 30_080), (Transport::Udp, 80)] {
        if rng.chance(50) {
            let address = rng.chance(40).then(|| ip(rng.pick(&places)));
            host_ports.push(HostPort { address, transport, number, port: 9_000 });
        }
    }
    let created = rng.chance(70).then(|| Timestamp::parse(&format!("2026-01-01T00:00:0{}Z", rng.below(3))).unwrap());
    Pod {
        name: ObjectName::new("x", name),
        labels: Labels::new(),
        node: rng.chance(90).then(|| if rng.chance(85) { NODE } else { "n2" }.into()),
        addresses,
        mac: None,
        host_network: rng.chance(8),
        finished: rng.chance(8),
        service_account: None,
        uid: None,
        lifetime: Lifetime { created, ..Lifetime::default() },
        ports: vec![],
        host_ports: host_ports.into(),
        owner: None,
        planned: false,
    }
}

pub(crate) fn batch(rng: &mut Rng) -> Vec<Event> {
    (0..1 + rng.below(5)).map(|_| event(rng)).collect()
}

fn event(rng: &mut Rng) -> Event {
    let named = |(namespace, name): (&str, &str)| ObjectName::new(namespace, name);
    match rng.below(100) {
        0..35 => {
            let name = rng.pick(&SERVICES);
            Event::Apply(Object::Service(service(rng, name).into()))
        }
        35..42 => Event::DeleteService(named(rng.pick(&SERVICES))),
        42..78 => {
            let at = rng.below(6);
            Event::Apply(Object::EndpointSlice(slice(rng, at).into()))
        }
        78..84 => {
            let at = rng.below(6);
            Event::DeleteEndpointSlice(ObjectName::new(["x", "y"][at % 2], format!("s{at}")))
        }
        84..98 => Event::Apply(Object::Node(node(rng))),
        _ => Event::DeleteNode(rng.pick(&NODES).into()),
    }
}
