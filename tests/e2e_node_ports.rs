//! Node ports, load balancers' and external addresses at the only network card of three nodes, which their kernels keep: see
//! [`e2e_remote_nodes`](crate::e2e_remote_nodes). The client is the router between them, which knows no pods.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;

use crate::e2e_remote_nodes::Cluster;
use crate::e2e_services::{Endpoint, ask, serve_name, service};
use crate::lab::lasting::PATIENCE;
use crate::lab::netns::Netns;
use crate::require;
use bulkhead_dataplane::io::in_namespace;

/// The node port of Service `all`, whose endpoints are on all nodes; of `near`, whose policy is `Local`; of one without endpoints.
const ALL: u16 = 30_001;
const NEAR: u16 = 30_002;
const EMPTY: u16 = 30_003;
/// Addresses of `all` outside the nodes: of the load balancer, and `externalIPs`.
const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:10::10"];
const EXTERNAL: [&str; 2] = ["203.0.113.11", "2001:db8:10::11"];

/// The Services, with an endpoint in each of these pods.
fn services(cluster: &Cluster) -> String {
    let endpoint = |at: usize| {
        let lab = &cluster.labs[at];
        Endpoint { node: lab.node_name(), ..Endpoint::of(&lab.pods[0], 8080) }
    };
    let port = |number: u16| format!("{{port: 80, targetPort: 8080, nodePort: {number}}}");
    let [v4, v6] = EXTERNAL;
    let balanced = format!("type: LoadBalancer, externalIPs: [{v4}, '{v6}'],");
    let all = service("all", ["10.96.1.1", "fd96::1:1"], &balanced, &port(ALL), &[0, 1, 2].map(endpoint));
    let [v4, v6] = BALANCED;
    let status = format!("status: {{loadBalancer: {{ingress: [{{ip: {v4}}}, {{ip: '{v6}'}}]}}}}\n");
    let all = all.replacen("---\napiVersion: discovery", &format!("{status}---\napiVersion: discovery"), 1);
    let local = "type: NodePort, externalTrafficPolicy: Local,";
    let near = service("near", ["10.96.1.2", "fd96::1:2"], local, &port(NEAR), &[0, 2].map(endpoint));
    let empty = service("empty", ["10.96.1.3", "fd96::1:3"], "type: NodePort,", &port(EMPTY), &[]);
    [all, near, empty].concat()
}

/// Connects 8 times, and up to 60 times until all `wanted` servers have answered: the chance that one of three does not is 3e-11. Returns the names of
/// the servers that answered, and the client addresses that they saw. Panics if none answers.
fn asked(from: &Netns, address: &str, port: u16, wanted: &BTreeSet<String>) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let (mut servers, mut clients) = (BTreeSet::new(), BTreeSet::new());
    for number in 0..60 {
        if number >= 8 && servers == *wanted {
            break;
        }
        let (name, peer) = ask(from, address, port).unwrap_or_else(|| panic!("nobody answers at {address}:{port}"));
        servers.insert(name);
        clients.insert(peer);
    }
    (servers, clients)
}

/// Returns the router's address on a node's link, which that node sees as the client's.
fn client_at(node: usize, is_v6: bool) -> IpAddr {
    let [lan, far] = if is_v6 { ["fd00:18::1", "fd00:18::10"] } else { ["172.18.0.1", "172.18.0.10"] };
    if node == 0 { far } else { lan }.parse().unwrap()
}

#[test]
fn outside_clients_reach_node_ports_and_balancers_addresses_at_every_nodes_card() {
    require!("socat", "ss", "nc");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "masquerade: true\nservices: {service_cidrs: [10.96.0.0/12, 'fd96::/64']}\n");
    let state = services(&cluster);
    cluster.labs.iter_mut().for_each(|lab| lab.start(&state));
    let _servers = cluster.labs.each_ref().map(|lab| serve_name(&lab.pods[0].netns, &lab.pods[0].name, 8080));
    let _hosts = cluster.labs.each_ref().map(|lab| serve_name(&lab.node, "host", 22));
    let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let every = names(&["p1", "p2", "p3"]);
    for (at, lab) in cluster.labs.iter().enumerate() {
        for (is_v6, node) in [(false, lab.node_v4()), (true, lab.node_v6())] {
            let client = client_at(at, is_v6);
            // The answers of another node's pod return through this node, whose address of its pods' block the pod sees.
            let own: IpAddr =
                if is_v6 { format!("fd00:244:{}::1", at + 1) } else { format!("10.244.{}.1", at + 1) }.parse().unwrap();
            let device = if at == 0 { "far" } else { "lan" };
            let family = if is_v6 { "-6 " } else { "" };
            for (address, port) in
                [(&*node, ALL), (BALANCED[usize::from(is_v6)], 80), (EXTERNAL[usize::from(is_v6)], 80)]
            {
                if address != node {
                    cluster.router.ip(&format!("{family}route add {address} via {node} dev {device}"));
                }
                let (servers, clients) = asked(&cluster.router, address, port, &every);
                assert_eq!(servers, every, "{address}:{port} at node {}", at + 1);
                assert_eq!(clients, [client, own].into(), "{address}:{port} at node {}", at + 1);
                if address != node {
                    cluster.router.ip(&format!("{family}route del {address}"));
                }
            }
            // Node 2 has no endpoint of this Service, and says nothing, as a balancer may be late.
            if at == 1 {
                assert_eq!(ask(&cluster.router, &node, NEAR), None);
            } else {
                let (servers, clients) = asked(&cluster.router, &node, NEAR, &names(&[&lab.pods[0].name]));
                assert_eq!((servers, clients), (names(&[&lab.pods[0].name]), [client].into()));
            }
            let socket = SocketAddr::new(node.parse().unwrap(), EMPTY);
            let router = Path::new("/run/netns").join(cluster.router.name());
            let refused = in_namespace(&router, || TcpStream::connect_timeout(&socket, PATIENCE).unwrap_err().kind());
            assert_eq!(refused.unwrap(), ErrorKind::ConnectionRefused, "without endpoints, {socket}");
            // What is no node port is the kernel's.
            assert_eq!(ask(&cluster.router, &node, 22).unwrap().0, "host");
        }
    }
    // Pods reach other nodes' node ports, and see no difference at their own.
    for (at, lab) in cluster.labs.iter().enumerate() {
        for other in &cluster.labs {
            for node in [other.node_v4(), other.node_v6()] {
                let (servers, _) = asked(&lab.pods[0].netns, &node, ALL, &every);
                assert_eq!(servers, every, "from p{} to {node}", at + 1);
            }
        }
    }
    // So do nodes.
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        for node in [cluster.labs[to].node_v4(), cluster.labs[to].node_v6()] {
            let (servers, _) = asked(&cluster.labs[from].node, &node, ALL, &every);
            assert_eq!(servers, every, "from node {} to {node}", from + 1);
        }
    }
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}
