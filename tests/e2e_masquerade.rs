//! Masquerading with the kernels of pods and of a machine outside that has no route to pods.

use crate::e2e_services::{self, serve_name};
use crate::require;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::lab::lasting::{Lasting, PATIENCE, answers, inside, settle};
use crate::lab::netns::{Netns, Running};
use crate::lab::{Lab, is_tc, policy, veth};
use bulkhead_dataplane::io::in_namespace;
use serde_json::Value;

const WORLD: &str = "172.18.0.100";
const WORLD6: &str = "fd00:18::100";

/// Who has the node's network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    /// The vswitch, as its uplink.
    Uplink,
    /// The node's kernel.
    Kernel,
}

/// Creates a lab with the pods `a` and `b`, which masquerades, and connects it to the machine outside.
fn lab(card: Card) -> Lab {
    let mut lab = Lab::new();
    for name in ["a", "b"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    match card {
        Card::Uplink => connect(&mut lab),
        Card::Kernel => {
            lab.outside_of_kernel();
            lab.more_config.push_str("masquerade: true\n");
        }
    }
    lab
}

/// Adds an uplink to a machine without routes to pods, and a host port.
fn connect(lab: &mut Lab) {
    let outside = lab.outside();
    for node in 1..=2 {
        outside.ip(&format!("route del 10.244.{node}.0/24"));
        outside.ip(&format!("-6 route del fd00:244:{node}::/64"));
    }
    lab.host();
    // The node's own route to the machine.
    lab.node.ip("route add 172.18.0.0/16 via 169.254.1.1 dev host0");
    lab.node.ip("-6 route add fd00:18::/64 via fe80::1 dev host0");
    lab.more_config.push_str("masquerade: true\n");
}

/// Starts the server `world` on TCP port 8080 of the machine outside ([`serve_name`]).
fn serve(lab: &Lab) -> Running {
    serve_name(lab.outside.as_ref().unwrap(), "world", 8080)
}

/// Connects from this namespace to TCP port 8080 of the machine outside. Returns the client address that its server saw, `None` if it does
/// not answer within 2 seconds.
fn ask(netns: &Netns, address: &str) -> Option<IpAddr> {
    e2e_services::ask(netns, address, 8080).map(|(_, client)| client)
}

fn pings(netns: &Netns, to: &str) -> bool {
    pings_with(netns, to, 56)
}

/// Whether two pings with `size` bytes of payload are answered.
fn pings_with(netns: &Netns, to: &str, size: u32) -> bool {
    netns.output(&format!("ping -n -c 2 -i 0.2 -W 1 -s {size} {to}")).status.success()
}

fn parsed(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn check_all(lab: &Lab) {
    let outside = lab.outside.as_ref().unwrap();
    for (world, node) in [(WORLD, lab.node_v4()), (WORLD6, lab.node_v6())] {
        for pod in ["a", "b"] {
            let pod = &lab.get(pod).netns;
            assert_eq!(ask(pod, world), Some(parsed(&node)), "{world}\n{}", lab.log());
            assert!(pings(pod, world), "{world}\n{}", lab.log());
            assert!(pings_with(pod, world, 4000), "in fragments, {world}\n{}", lab.log());
        }
        assert_eq!(ask(&lab.node, world), Some(parsed(&node)), "the node itself");
        assert!(pings(&lab.node, world));
    }
    // Two pods send datagrams from the same port, enough for the kernel to get their flows.
    let server =
        in_namespace(&Path::new("/run/netns").join(outside.name()), || UdpSocket::bind("0.0.0.0:514").unwrap());
    let server = server.unwrap();
    let clients = ["a", "b"].map(|pod| inside(lab.get(pod), || UdpSocket::bind("0.0.0.0:5000").unwrap()));
    for socket in clients.iter().chain([&server]) {
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    }
    let mut bytes = [0; 16];
    let mut seen = [None; 2];
    for _ in 0..200 {
        for (client, seen) in clients.iter().zip(&mut seen) {
            client.send_to(b"log", (WORLD, 514)).unwrap();
            let (_, from) = server.recv_from(&mut bytes).unwrap();
            assert_eq!(from.ip(), parsed(&lab.node_v4()));
            assert!(from.port() >= 61_000, "{from}");
            assert_eq!(*seen.get_or_insert(from.port()), from.port(), "one port for one conversation");
            server.send_to(b"heard", from).unwrap();
            assert_eq!(client.recv_from(&mut bytes).unwrap().1.to_string(), format!("{WORLD}:514"));
        }
    }
    assert_ne!(seen[0], seen[1]);
    // An ICMP error from outside reaches the pod that sent the datagram.
    let refused = inside(lab.get("a"), || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.connect((WORLD, 9)).unwrap();
        socket.send(b"x").unwrap();
        socket.recv(&mut [0; 8]).unwrap_err().kind()
    });
    assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn pods_reach_a_world_that_does_not_know_them_and_policy_knows_them_all_the_same() {
    require!("socat", "ss", "ping");
    only_their_policy_and_not_their_address_counts(Card::Uplink);
}

#[test]
fn pods_reach_the_world_over_the_card_that_the_nodes_kernel_keeps() {
    require!("socat", "ss", "ping");
    only_with_tc!();
    only_their_policy_and_not_their_address_counts(Card::Kernel);
}

#[test]
fn connections_that_the_nodes_kernel_masquerades_with_the_same_ports_stay_its_own() {
    require!("socat", "ss", "nft");
    only_with_tc!();
    let mut lab = lab(Card::Kernel);
    lab.start("");
    let _server = serve(&lab);
    let container = Netns::new("container");
    veth(&container, "eth0", &lab.node, "to-container", 1500);
    lab.node.ip("addr add 10.88.0.1/24 dev to-container");
    container.ip("addr add 10.88.0.2/24 dev eth0");
    container.ip("route add default via 10.88.0.1");
    let rule = "ip protocol tcp ip saddr 10.88.0.0/24 masquerade to :61000-61003";
    let table = format!("table ip x {{\nchain c {{\ntype nat hook postrouting priority srcnat;\n{rule}\n}}\n}}\n");
    std::fs::write(lab.path("masquerade.nft"), table).unwrap();
    lab.node.exec(&format!("nft -f {}", lab.path("masquerade.nft").display()));
    let node = Some(parsed(&lab.node_v4()));
    for _ in 0..4 {
        assert_eq!(ask(&container, WORLD), node, "{}", lab.log());
        assert_eq!(ask(&lab.get("a").netns, WORLD), node, "{}", lab.log());
    }
    lab.stop();
}

fn only_their_policy_and_not_their_address_counts(card: Card) {
    let mut lab = lab(card);
    lab.start("");
    let _server = serve(&lab);
    check_all(&lab);
    let rule = format!("{{to: [{{ipBlock: {{cidr: {WORLD}/32}}}}], ports: [{{port: 8080}}]}}");
    let only = format!("{{podSelector: {{matchLabels: {{app: a}}}}, policyTypes: [Egress], egress: [{rule}]}}");
    lab.apply(&policy("a", &only));
    let (a, b) = (&lab.get("a").netns, &lab.get("b").netns);
    assert_eq!((ask(a, WORLD), ask(a, WORLD6)), (Some(parsed(&lab.node_v4())), None));
    assert!(!pings(a, WORLD) && pings(b, WORLD));
    let (code, text) = lab.ask(&["sessions"]);
    assert!(code == Some(0) && text.contains(&lab.node_v4()), "{text}");
    // `explain` shows the masqueraded source address too.
    for (port, wanted) in [("8080", 0), ("8081", 1)] {
        let (code, text) = lab.ask(&["explain", "--live", "--from", "default/a", "--to", WORLD, "--port", port]);
        let seen = format!("It leaves masqueraded: the other end sees {}.", lab.node_v4());
        assert_eq!((code, text.contains(&seen)), (Some(wanted), wanted == 0), "{text}");
    }
    lab.stop();
}

#[test]
fn bulk_goes_on_in_the_kernel_with_the_nodes_address() {
    require!("iperf3", "ss");
    only_with_tc!();
    [Card::Uplink, Card::Kernel].into_iter().for_each(few_packets_of_bulk_come_to_a_worker);
}

fn few_packets_of_bulk_come_to_a_worker(card: Card) {
    let mut lab = lab(card);
    lab.start("");
    let _server = lab.outside.as_ref().unwrap().serve("iperf3 -s", 5201);
    for world in [WORLD, WORLD6] {
        for way in ["", "-R"] {
            let said = lab.get("a").netns.exec(&format!("iperf3 -c {world} {way} -t 1 -J"));
            let said: Value = serde_json::from_str(&said).unwrap();
            let bytes = said.pointer("/end/sum_received/bytes").and_then(Value::as_u64);
            assert!(bytes > Some(100_000_000), "{world} {way}: {said:#}");
        }
    }
    assert_eq!(lab.counter("a", "Tcp:", "InCsumErrors"), 0);
    let summary = lab.stop();
    let slow = summary.pointer("/workers/0/received").and_then(Value::as_u64);
    assert!(slow.is_some_and(|slow| slow < 100_000), "few packets came to a worker: {summary:#}");
}

#[test]
fn several_workers_masquerade() {
    require!("socat", "ss", "ping");
    let Some(cores) = crate::lab::netns::two_cores() else { return };
    for card in [Card::Uplink, Card::Kernel].into_iter().filter(|&card| card == Card::Uplink || is_tc()) {
        let mut lab = lab(card);
        lab.more_config.push_str(&format!("workers: {{cores: {cores:?}}}\n"));
        lab.start("");
        let _server = serve(&lab);
        check_all(&lab);
        lab.stop();
    }
}

#[test]
fn masqueraded_connections_outlive_the_process() {
    require!("mount", "socat", "ss");
    only_with_tc!();
    [Card::Uplink, Card::Kernel].into_iter().for_each(a_connection_outlives_the_process);
}

fn a_connection_outlives_the_process(card: Card) {
    let mut lasting = Lasting::of(lab(card));
    let lab = &mut lasting.lab;
    lab.start("");
    let _server = lab.outside.as_ref().unwrap().serve("socat TCP4-LISTEN:7000,fork,reuseaddr EXEC:cat", 7000);
    let address = format!("{WORLD}:7000").parse().unwrap();
    let mut stream = inside(lab.get("a"), || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    settle(&mut stream);
    lab.kill();
    assert!((0..50).all(|_| answers(&mut stream)), "what is established goes on");
    lab.start("");
    assert!((0..50).all(|_| answers(&mut stream)), "and after the restart: {}", lab.log());
    lab.stop();
}
