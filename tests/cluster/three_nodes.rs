//! Three nodes with kubelets: two on one link, one behind a router. `deploy/` alone connects them, so both modes, route and tunnel, are in
//! use at once.
//!
//! ```text
//!   [ node-2: card ]--.
//!                     +--[ lan | router | far ]--[ card: node-1, with the API server ]
//!   [ node-3: card ]--'
//! ```
//! The router knows no network of pods.

#[path = "three_nodes/load.rs"]
mod load;
#[path = "three_nodes/network.rs"]
mod network;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use bulkhead_dataplane::io::in_namespace;
use serde_json::{Value, json};

use super::deployment::daemon;
use crate::control_plane::{Programs, within};
use crate::lab::lasting::PATIENCE;
use crate::machine::DNS;
use crate::{node_programs, require};
use load::Load;
use network::{DNSMASQ, HOST_PORT, Nodes, OTHER_PLACE};

/// The number of connections to a Service until each of three backends must have answered. The chance that one does not is 3e-7.
const TRIES: usize = 40;

/// A pod, or a node: an end of connections.
#[derive(Clone)]
struct End {
    name: String,
    /// The pod's object. Null for a node.
    object: Value,
    netns: PathBuf,
    addresses: [IpAddr; 2],
    /// The ports of the page and of the echo server.
    ports: [u16; 2],
}

impl End {
    /// Opens a TCP connection. `None` if the server does not answer in time or refuses.
    fn connect(&self, to: SocketAddr) -> Option<TcpStream> {
        let stream = in_namespace(&self.netns, || TcpStream::connect_timeout(&to, PATIENCE)).unwrap().ok()?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(stream)
    }

    /// Requests the page of a server, which is the server's name. `None` if it cannot be reached.
    fn page(&self, to: SocketAddr) -> Option<String> {
        let mut stream = self.connect(to)?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text.lines().last()?.to_owned())
    }

    /// Whether this end receives the page of a pod, at each of the pod's addresses. Panics if another pod answers.
    fn reaches(&self, to: &Self) -> [bool; 2] {
        let ask = |address: IpAddr| {
            let page = self.page((address, to.ports[0]).into());
            assert!(page.as_ref().is_none_or(|page| *page == to.name), "{page:?} answers at {address}");
            page.is_some()
        };
        all_at_once(to.addresses, ask)
    }

    /// Whether `ping` gets an answer from each of the pod's addresses.
    fn pings(&self, to: &Self) -> [bool; 2] {
        let netns = format!("--net={}", self.netns.display());
        let ping = |address: IpAddr| {
            let address = address.to_string();
            let words = [&*netns, "ping", "-n", "-c", "1", "-W", "1", &address];
            Command::new("nsenter").args(words).output().unwrap().status.success()
        };
        all_at_once(to.addresses, ping)
    }
}

/// Calls a function for each input, in threads, and returns the results.
fn all_at_once<I: Send, R: Send, const COUNT: usize>(inputs: [I; COUNT], call: impl Fn(I) -> R + Sync) -> [R; COUNT] {
    std::thread::scope(|scope| {
        let threads = inputs.map(|input| scope.spawn(|| call(input)));
        threads.map(|thread| thread.join().unwrap())
    })
}

/// Returns which of these ends do not reach which pods.
fn broken(from: &[&End], to: &[&End]) -> Vec<String> {
    let mut broken = Vec::new();
    for from in from {
        for to in to {
            let [pinged, reached] = [from.pings(to), from.reaches(to)];
            for ((address, is_pinged), is_reached) in to.addresses.iter().zip(pinged).zip(reached) {
                if !is_pinged || !is_reached {
                    broken.push(format!(
                        "{} to {} ({address}, ping: {is_pinged}, TCP: {is_reached})",
                        from.name, to.name
                    ));
                }
            }
        }
    }
    broken
}

/// Waits until all these ends reach all these pods.
fn all_reach(from: &[&End], to: &[&End]) {
    let mut left = Vec::new();
    let took = within(&format!("{} ends reach {} pods", from.len(), to.len()), || {
        left = broken(from, to);
        if !left.is_empty() {
            println!("not yet: {left:?}");
        }
        left.is_empty()
    });
    println!("{} ends reach {} pods after {took:?}", from.len(), to.len());
}

/// Asserts that each end gets to all backends of a Service, and to no others, at each of these addresses and this port.
fn all_get_every_backend(from: &[&End], (addresses, port): (&[IpAddr], u16), names: &[&str]) {
    for from in from {
        for &address in addresses {
            let mut seen: Vec<String> = Vec::new();
            for _ in 0..TRIES {
                seen.extend(from.page((address, port).into()));
                seen.sort();
                seen.dedup();
                if seen == names {
                    break;
                }
            }
            assert_eq!(seen, names, "{} at {address}, port {port}", from.name);
        }
    }
}

fn addresses_of(service: &Value) -> Vec<IpAddr> {
    let all = service["spec"]["clusterIPs"].as_array().unwrap();
    all.iter().map(|address| address.as_str().unwrap().parse().unwrap()).collect()
}

/// Asserts that each end gets an answer from the API server at its cluster address.
fn all_ask_the_api_server(from: &[&End]) {
    for from in from {
        let netns = format!("--net={}", from.netns.display());
        let words = [&*netns, "curl", "-sS", "-k", "-m", "10", "https://10.96.0.1/livez"];
        let output = Command::new("nsenter").args(words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok", "{}: {output:?}", from.name);
    }
}

/// A policy that lets only this pod reach `web-2`.
fn only_from(name: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "two", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"name": "web-2"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"name": name}}}]}]}})
}

/// Creates the DNS server's Service, and its pod on node-2.
fn serve_names(nodes: &Nodes, service: &[IpAddr]) {
    let metadata = json!({"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}});
    let ports =
        ["UDP", "TCP"].map(|protocol| json!({"name": protocol.to_lowercase(), "port": 53, "protocol": protocol}));
    nodes.api.create(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"clusterIP": DNS, "selector": {"k8s-app": "kube-dns"}, "ports": ports}}));
    let mut command = vec!["/usr/sbin/dnsmasq".to_owned()];
    let words =
        "--keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file --user=root --log-facility=-";
    command.extend(words.split(' ').map(str::to_owned));
    command.extend(service.iter().map(|address| format!("--address=/web.shop.svc.cluster.local/{address}")));
    let pod = nodes.api.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"nodeName": "node-2", "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "dns", "image": DNSMASQ, "imagePullPolicy": "Never", "command": command,
                "readinessProbe": {"tcpSocket": {"port": 53}, "periodSeconds": 1}}]}}));
    nodes.ready(&pod);
}

/// Replaces a node's vswitch as the DaemonSet's controller does: the new pod is ready before the old one ends.
fn replace_vswitch(nodes: &Nodes, at: usize, old: &Value) {
    let node = nodes.labs[at].node_name();
    let new = nodes.ready(&nodes.api.create(&daemon(&node, "", &format!("bulkhead-{node}-2"))));
    nodes.api.delete_in_order(old);
    within("the old one's end", || nodes.machines[at].process(old).is_none());
    within("the new one runs", || nodes.machines[at].output_in(&new.object, &["bulkhead", "status"]).status.success());
}

/// Waits until each pod resolves the Service's name with its own configuration, over UDP. Asserts that each node resolves the name over TCP.
fn all_resolve(nodes: &Nodes, pods: &[End], service: &[IpAddr]) {
    for (at, end) in pods.iter().enumerate() {
        within("the name", || {
            let output = nodes.machines[at].output_in(&end.object, &["nslookup", "web.shop.svc.cluster.local"]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            service.iter().all(|address| said.contains(&address.to_string()))
        });
    }
    for lab in &nodes.labs {
        let said = lab.node.exec(&format!("dig +short +tcp @{DNS} web.shop.svc.cluster.local"));
        assert_eq!(said.trim(), service[0].to_string());
    }
}

/// Asserts that a server which does not know pods' addresses answers each pod, and sees the pod's node.
fn all_reach_the_world(nodes: &Nodes, pods: &[End; 3]) {
    let (_server, world) = nodes.serve_world();
    for (at, pod) in pods.iter().enumerate() {
        for (server, own) in world.into_iter().zip(nodes.addresses(at)) {
            assert_eq!(pod.page(server).as_deref(), Some(own), "{} at {server}", pod.name);
        }
    }
}

/// Addresses that a balancer would announce, of IPv4 and IPv6.
const BALANCED: [&str; 2] = ["203.0.113.80", "2001:db8:80::80"];

/// Asserts that a client outside reaches node ports, host ports, and an external address that is routed to each node in turn. No node has rules of
/// kube-proxy or of a plugin.
fn outside_reaches_services(nodes: &Nodes) {
    let client = nodes.outside();
    let create = |name: &str, policy: &str, external: &[&str]| {
        let service = nodes.api.create(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"type": "NodePort", "selector": {"app": "web"}, "ipFamilyPolicy": "RequireDualStack", "externalIPs": external,
                "externalTrafficPolicy": policy, "ports": [{"name": "http", "port": 80}]}}));
        u16::try_from(service["spec"]["ports"][0]["nodePort"].as_u64().unwrap()).unwrap()
    };
    let (all, near) = (create("outside", "Cluster", &BALANCED), create("near", "Local", &[]));
    let every = ["web-1", "web-2", "web-3"];
    for at in 0..3 {
        let addresses = nodes.addresses(at).map(|address| address.parse::<IpAddr>().unwrap());
        within("the node ports", || {
            addresses
                .iter()
                .all(|&address| [all, near].iter().all(|&port| client.page((address, port).into()).is_some()))
        });
        all_get_every_backend(&[&client], (&addresses, all), &every);
        all_get_every_backend(&[&client], (&addresses, near), &every[at..=at]);
        all_get_every_backend(&[&client], (&addresses, HOST_PORT), &every[at..=at]);
        let balanced = BALANCED.map(|address| address.parse::<IpAddr>().unwrap());
        nodes.route_to(at, &balanced);
        all_get_every_backend(&[&client], (&balanced, 80), &every);
        let rules = nodes.labs[at].node.exec("nft list ruleset");
        assert!(!["kube-proxy", "KUBE-SVC", "dnat", "masquerade"].iter().any(|rule| rules.contains(rule)), "{rules}");
    }
}

/// Asserts that a policy of `web-2` holds for clients of all nodes.
fn policy_holds_in_both_modes(nodes: &Nodes, pods: &[End; 3], hosts: &[End; 3]) {
    // Over the tunnel from node-1, and over the route from node-3.
    for (allowed, expected) in [(0, [true, false, false, true]), (2, [false, true, false, true])] {
        let rules = only_from(&pods[allowed].name);
        if allowed == 0 {
            nodes.api.create(&rules);
        } else {
            nodes.api.change(&rules, &rules);
        }
        // Another node is allowed by no rule, and the pod's own node always.
        let clients = [&pods[0], &pods[2], &hosts[0], &hosts[1]];
        let expected = expected.map(|is_allowed| [is_allowed; 2]);
        within("the policy", || all_at_once(clients, |client| client.reaches(&pods[1])) == expected);
    }
    nodes.api.delete(&only_from(""));
}

/// Replaces all vswitches, one after another, under connections in use. Panics if one of them is lost.
fn every_connection_outlives_the_replacement_of_all(
    nodes: &Nodes,
    vswitches: &[End],
    pods: &[End],
    service: &[IpAddr],
) {
    let load = Load::start(pods, service);
    for (at, old) in vswitches.iter().enumerate() {
        replace_vswitch(nodes, at, &old.object);
    }
    let pauses = load.stop();
    let longest =
        |goes_back| pauses.iter().filter(|pause| pause.goes_back == goes_back).max_by_key(|pause| pause.longest);
    println!("{} connections stayed; the longest pauses: {:?}, {:?}", pauses.len(), longest(false), longest(true));
    // Workers handle the packets of a pod to itself, so these wait for the next process. The kernel goes on with all others.
    assert!(longest(false).unwrap().longest < PATIENCE, "{:?}", longest(false));
}

/// Lets node-3 leave and return at the other link: where there was a route, there is the tunnel, and the other way round.
fn a_node_moves(nodes: &mut Nodes, from: &[&End], service: &[IpAddr]) {
    nodes.leave(2);
    let others: Vec<&End> = from.iter().copied().filter(|end| !end.name.ends_with("-3")).collect();
    all_reach(&others, &others);
    nodes.enter(2, OTHER_PLACE);
    let [back, host] = [false, true].map(|is_host| nodes.create_pod(2, is_host)).map(|pod| nodes.ready(&pod));
    let all: Vec<&End> = others.iter().copied().chain([&back, &host]).collect();
    all_reach(&all, &all);
    nodes.check_modes();
    within("the Service's new backend", || all[0].page((service[0], 80).into()).is_some_and(|page| page == "web-3"));
    all_get_every_backend(&all, (service, 80), &["web-1", "web-2", "web-3"]);
    all_ask_the_api_server(&all);
}

#[test]
fn three_nodes_of_a_real_cluster_are_connected_by_deploy_alone_whatever_happens_to_one_of_them() {
    let (programs, node_programs) = (programs!(), node_programs!());
    require!("dnsmasq", "dig", "nsenter", "python3", "ss");
    if programs.controllers.is_none() {
        println!("skipped: `cargo xtask cluster` runs this, with BULKHEAD_KUBE_CONTROLLER_MANAGER");
        return;
    }
    let mut nodes = Nodes::start(programs, &node_programs);
    let vswitches = nodes.start_vswitches();

    // Every pod and node reaches every pod, of its own network and of the host's.
    let service = nodes.api.create(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ipFamilyPolicy": "RequireDualStack", "ports": [{"name": "http", "port": 80},
            {"name": "echo", "port": 7}]}}));
    let service = addresses_of(&service);
    assert_eq!(service.len(), 2, "{service:?}");
    let pods = [0, 1, 2].map(|at| nodes.create_pod(at, false)).map(|pod| nodes.ready(&pod));
    let hosts = [0, 1, 2].map(|at| nodes.create_pod(at, true)).map(|pod| nodes.ready(&pod));
    let from: Vec<&End> = pods.iter().chain(&hosts).collect();
    all_reach(&from, &from);
    nodes.check_modes();

    // Services: by address from pods and nodes, and by name from pods.
    within("the endpoint slices", || pods[0].page((service[0], 80).into()).is_some());
    all_get_every_backend(&from, (&service, 80), &["web-1", "web-2", "web-3"]);
    all_ask_the_api_server(&from);
    serve_names(&nodes, &service);
    all_resolve(&nodes, &pods, &service);
    all_reach_the_world(&nodes, &pods);
    outside_reaches_services(&nodes);
    policy_holds_in_both_modes(&nodes, &pods, &hosts);
    all_reach(&from, &from);
    every_connection_outlives_the_replacement_of_all(&nodes, &vswitches, &pods, &service);
    all_reach(&from, &from);
    a_node_moves(&mut nodes, &from, &service);
}
