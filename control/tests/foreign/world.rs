//! A small cluster: two nodes, three namespaces, pods with service accounts and named ports, host-network pods and Services, with addresses
//! of both families. Policies are elsewhere.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::labels::{Labels, labels};
use crate::random::Rng;

/// The direction of a policy, seen from its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub(crate) fn reverse(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }
}

/// The first packet of a connection, after the translation of Service addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    /// The destination port; for ICMP 256 times the type, plus the code; 0 for other protocols.
    pub(crate) port: u16,
}

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const GRE: u8 = 47;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

/// Returns the name of a protocol with ports.
pub(crate) fn transport(protocol: u8) -> &'static str {
    match protocol {
        TCP => "TCP",
        UDP => "UDP",
        SCTP => "SCTP",
        other => unreachable!("protocol {other} has no ports"),
    }
}

impl Packet {
    pub(crate) fn is_ipv6(&self) -> bool {
        self.dst.is_ipv6()
    }

    /// The address of the policy's other end.
    pub(crate) fn peer(&self, direction: Direction) -> IpAddr {
        match direction {
            Direction::Ingress => self.src,
            Direction::Egress => self.dst,
        }
    }
}

pub(crate) const NODES: [&str; 2] = ["node-1", "node-2"];
pub(crate) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
pub(crate) const PORTS: [u16; 6] = [53, 80, 81, 443, 6379, 8080];
pub(crate) const PORT_NAMES: [&str; 3] = ["http", "dns", "web"];

/// The keys of pods' labels and their possible values.
pub(crate) const POD_LABELS: [(&str, &[&str]); 2] = [("app", &["web", "web-1", "db"]), ("tier", &["front", "back"])];
/// As [`POD_LABELS`], of namespaces.
pub(crate) const NAMESPACE_LABELS: [(&str, &[&str]); 2] = [("team", &["red", "blue"]), ("env", &["prod", "dev"])];
/// As [`POD_LABELS`], of service accounts.
pub(crate) const ACCOUNT_LABELS: [(&str, &[&str]); 1] = [("role", &["reader", "writer"])];

/// A named port of a container.
#[derive(Clone, Debug)]
pub(crate) struct NamedPort {
    pub(crate) name: &'static str,
    pub(crate) protocol: u8,
    pub(crate) number: u16,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) namespace: &'static str,
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) account: String,
    pub(crate) node: &'static str,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<NamedPort>,
    pub(crate) host_network: bool,
}

/// A Service and the endpoints of its slices.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    pub(crate) labels: Labels,
    /// Empty if the Service has no selector.
    pub(crate) selector: Labels,
    pub(crate) ports: Vec<(u8, u16)>,
    pub(crate) endpoints: Vec<IpAddr>,
}

/// The owner of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner<'a> {
    /// A pod with its own network.
    Pod(&'a Pod),
    /// A node, also through a host-network pod.
    Node(&'a str),
    Outside,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    /// The labels of each of [`NAMESPACES`].
    pub(crate) namespaces: Vec<(&'static str, Labels)>,
    /// The addresses of each of [`NODES`].
    pub(crate) nodes: Vec<(&'static str, Vec<IpAddr>)>,
    /// Service accounts: namespace, name and labels.
    pub(crate) accounts: Vec<(&'static str, String, Labels)>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) services: Vec<Service>,
}

/// Addresses outside the cluster. The last two of each family are in the pods' blocks, but no pod has them.
pub(crate) const OUTSIDE: [&str; 8] = [
    "203.0.113.1",
    "203.0.113.200",
    "8.8.8.8",
    "10.244.1.200",
    "2001:db8::1",
    "2001:db8:ffff::1",
    "fd99::1",
    "fd00:1::c8",
];

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl World {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, all: &[(&str, &[&str])]| -> Labels {
            let has = all.iter().filter(|_| rng.chance(75)).copied().collect::<Vec<_>>();
            has.into_iter().map(|(key, values)| (key.to_owned(), rng.pick(values).to_owned())).collect()
        };
        let mut namespaces = Vec::new();
        let mut accounts = Vec::new();
        for name in NAMESPACES {
            namespaces.push((name, some(rng, &NAMESPACE_LABELS)));
            for account in ["default", "robot"] {
                // A service account whose object is missing has no labels.
                if rng.chance(85) {
                    accounts.push((name, account.to_owned(), some(rng, &ACCOUNT_LABELS)));
                }
            }
        }
        let nodes: Vec<_> = NODES.iter().zip(1..).map(|(node, at)| (*node, node_addresses(at))).collect();
        let mut pods = Vec::new();
        for number in 1..6 + rng.below(4) {
            let at = rng.below(nodes.len());
            let host_network = number > 5 && rng.chance(60);
            let addresses = match (host_network, rng.below(4)) {
                (true, _) => nodes[at].1.clone(),
                (false, 0) => vec![ip(&format!("10.244.{}.{number}", at + 1))],
                (false, _) => {
                    vec![ip(&format!("10.244.{}.{number}", at + 1)), ip(&format!("fd00:{}::{number}", at + 1))]
                }
            };
            pods.push(Pod {
                namespace: rng.pick(&NAMESPACES),
                name: format!("pod-{number}"),
                labels: some(rng, &POD_LABELS),
                account: rng.pick(&["default", "robot"]).to_owned(),
                node: nodes[at].0,
                addresses,
                ports: PORT_NAMES.into_iter().filter_map(|name| random_port(rng, name)).collect(),
                host_network,
            });
        }
        let mut world = Self { namespaces, nodes, accounts, pods, services: Vec::new() };
        world.add_services(rng);
        world
    }

    fn add_services(&mut self, rng: &mut Rng) {
        for name in ["web", "external"] {
            let namespace = rng.pick(&NAMESPACES);
            let ports = vec![(TCP, rng.pick(&PORTS)), (rng.pick(&[UDP, SCTP]), rng.pick(&PORTS))];
            let (key, values) = rng.pick(&POD_LABELS);
            let selector = labels([(key, rng.pick(values))]);
            let (selector, endpoints) = match name {
                "web" => {
                    let backends = self
                        .pods
                        .iter()
                        .filter(|pod| pod.namespace == namespace && pod.labels.get(key) == selector.get(key));
                    (selector.clone(), backends.flat_map(|pod| pod.addresses.clone()).collect())
                }
                _ => {
                    let mut endpoints = vec![ip(rng.pick(&OUTSIDE)), ip(rng.pick(&OUTSIDE))];
                    // Endpoints written by hand may also be a pod or a node.
                    if rng.chance(50) {
                        let at = rng.below(self.pods.len());
                        endpoints.extend(&self.pods[at].addresses);
                    }
                    endpoints.dedup();
                    (Labels::new(), endpoints)
                }
            };
            let labels = labels([("svc", rng.pick(&["one", "two"]))]);
            self.services.push(Service { namespace, name, labels, selector, ports, endpoints });
        }
        let endpoints = match rng.below(3) {
            0 => self.nodes[0].1.clone(),
            1 => vec![ip(OUTSIDE[0]), ip(OUTSIDE[4])],
            _ => vec![self.nodes[1].1[0], ip(OUTSIDE[1])],
        };
        let (ports, selector) = (vec![(TCP, 443)], Labels::new());
        self.services.push(Service {
            namespace: "default",
            name: "kubernetes",
            labels: labels([("svc", "api")]),
            selector,
            ports,
            endpoints,
        });
    }

    pub(crate) fn owner(&self, address: IpAddr) -> Owner<'_> {
        if let Some((node, _)) = self.nodes.iter().find(|(_, addresses)| addresses.contains(&address)) {
            return Owner::Node(node);
        }
        let mut pods = self.pods.iter().filter(|pod| !pod.host_network);
        pods.find(|pod| pod.addresses.contains(&address)).map_or(Owner::Outside, Owner::Pod)
    }

    pub(crate) fn pod(&self, address: IpAddr) -> Option<&Pod> {
        match self.owner(address) {
            Owner::Pod(pod) => Some(pod),
            _ => None,
        }
    }

    /// Whether the address is of the pod's node.
    pub(crate) fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        matches!(self.owner(address), Owner::Node(node) if node == pod.node)
    }

    pub(crate) fn labels_of_namespace(&self, name: &str) -> &Labels {
        &self.namespaces.iter().find(|(one, _)| *one == name).unwrap().1
    }

    pub(crate) fn labels_of_account(&self, pod: &Pod) -> Option<&Labels> {
        let mut accounts = self.accounts.iter();
        accounts.find(|(namespace, name, _)| *namespace == pod.namespace && *name == pod.account).map(|found| &found.2)
    }

    /// Makes a packet between two addresses of one family, at least one of them a pod's.
    pub(crate) fn packet(&self, rng: &mut Rng) -> Option<Packet> {
        let end = |rng: &mut Rng| match rng.below(10) {
            0..=6 => {
                let at = rng.below(self.pods.len());
                rng.pick(&self.pods[at].addresses)
            }
            7 => {
                let at = rng.below(self.nodes.len());
                rng.pick(&self.nodes[at].1)
            }
            _ => ip(rng.pick(&OUTSIDE)),
        };
        let (src, dst) = (end(rng), end(rng));
        let is_askable = src != dst && src.is_ipv6() == dst.is_ipv6();
        if !is_askable || self.pod(src).is_none() && self.pod(dst).is_none() {
            return None;
        }
        let icmp = if src.is_ipv6() { ICMPV6 } else { ICMP };
        let (protocol, port) = match rng.below(12) {
            0..=5 => (TCP, rng.pick(&PORTS)),
            6..=7 => (UDP, rng.pick(&PORTS)),
            8 => (SCTP, rng.pick(&PORTS)),
            9..=10 => (icmp, rng.pick(&[8, 0, 128, 3]) * 256 + rng.pick(&[0, 0, 1])),
            _ => (GRE, 0),
        };
        Some(Packet { src, dst, protocol, port })
    }

    pub(crate) fn documents(&self) -> Vec<Value> {
        let mut all = Vec::new();
        for (name, labels) in &self.namespaces {
            all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
        }
        for (name, addresses) in &self.nodes {
            let addresses: Vec<_> =
                addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
            let status = json!({"addresses": addresses});
            all.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}));
        }
        for (namespace, name, labels) in &self.accounts {
            let metadata = json!({"namespace": namespace, "name": name, "labels": labels});
            all.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
        }
        all.extend(self.pods.iter().map(Pod::document));
        all.extend(self.services.iter().flat_map(Service::documents));
        all
    }
}

pub(crate) fn node_addresses(number: usize) -> Vec<IpAddr> {
    vec![ip(&format!("192.168.0.{number}")), ip(&format!("fd01::{number}"))]
}

fn random_port(rng: &mut Rng, name: &'static str) -> Option<NamedPort> {
    let protocol = if name == "dns" { UDP } else { rng.pick(&[TCP, TCP, SCTP]) };
    rng.chance(50).then(|| NamedPort { name, protocol, number: rng.pick(&PORTS) })
}

impl Pod {
    fn document(&self) -> Value {
        let ports = self
            .ports
            .iter()
            .map(|port| json!({"name": port.name, "containerPort": port.number, "protocol": transport(port.protocol)}));
        let ports: Vec<_> = ports.collect();
        let addresses: Vec<_> = self.addresses.iter().map(|address| json!({"ip": address})).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": self.namespace, "name": self.name, "labels": self.labels},
            "spec": {
                "nodeName": self.node,
                "hostNetwork": self.host_network,
                "serviceAccountName": self.account,
                "containers": [{"name": "main", "ports": ports}],
            },
            "status": {"phase": "Running", "podIP": self.addresses[0], "podIPs": addresses},
        })
    }

    /// Whether the pod names this port so.
    pub(crate) fn names(&self, name: &str, protocol: u8, number: u16) -> bool {
        self.ports.iter().any(|port| port.name == name && port.protocol == protocol && port.number == number)
    }
}

impl Service {
    fn documents(&self) -> Vec<Value> {
        let named = |&(protocol, port): &(u8, u16)| {
            let name = format!("{}-{port}", transport(protocol).to_lowercase());
            json!({"name": name, "port": port, "protocol": transport(protocol)})
        };
        let ports: Vec<_> = self.ports.iter().map(named).collect();
        let mut spec = json!({"ports": ports, "clusterIP": "None"});
        if !self.selector.is_empty() {
            spec["selector"] = json!(self.selector);
        }
        let metadata = json!({"namespace": self.namespace, "name": self.name, "labels": self.labels});
        let mut all = vec![json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})];
        for (family, is_ipv6) in [("IPv4", false), ("IPv6", true)] {
            let here = self.endpoints.iter().filter(|address| address.is_ipv6() == is_ipv6);
            let endpoints: Vec<_> = here.map(|address| json!({"addresses": [address]})).collect();
            all.push(json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": self.namespace,
                    "name": format!("{}-{}", self.name, family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "addressType": family,
                "ports": ports,
                "endpoints": endpoints,
            }));
        }
        all
    }
}
