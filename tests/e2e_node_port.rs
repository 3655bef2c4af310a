//! One node whose kernel keeps the network card, and clients outside that know no pods: what passes the card, what stays the kernel's, and which
//! connections survive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::e2e_services::{Endpoint, ask, serve_name, service};
use crate::lab::Lab;
use crate::lab::lasting::{Lasting, PATIENCE, answers, echo, inside, settle};
use crate::lab::netns::eventually;
use crate::require;
use bulkhead_dataplane::io::in_namespace;
use serde_json::Value;

/// The addresses of the machine outside, of IPv4 and IPv6.
const WORLD: [&str; 2] = ["172.18.0.100", "fd00:18::100"];

/// A lab with a pod `web`.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("web", "{app: web}");
    lab.outside_of_kernel();
    lab.more_config.push_str("masquerade: true\n");
    lab
}

/// A Service with this node port, whose endpoint is `port` of the pod.
fn node_port(lab: &Lab, protocol: &str, number: u16, port: u16) -> String {
    let port_text = format!("{{port: 80, protocol: {protocol}, targetPort: {port}, nodePort: {number}}}");
    let vips = [format!("10.96.1.{}", number % 250), format!("fd96::1:{}", number % 250)];
    let vips = vips.each_ref().map(|vip| &**vip);
    service(&format!("np{number}"), vips, "type: NodePort,", &port_text, &[Endpoint::of(lab.get("web"), port)])
}

/// The path of the outside machine's namespace.
fn outside(lab: &Lab) -> PathBuf {
    Path::new("/run/netns").join(lab.outside.as_ref().unwrap().name())
}

/// Opens a TCP connection to this address.
fn open(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn bulk_through_a_node_port_goes_on_in_the_kernel() {
    require!("iperf3", "ss", "nft");
    only_with_tc!();
    let mut lab = lab();
    let state = node_port(&lab, "TCP", 30_001, 5201);
    // The node's network stack gets no packet of these connections.
    let rules = "table inet t { chain c { type filter hook prerouting priority raw; tcp dport 30001 counter; tcp sport 5201 counter; }; }";
    std::fs::write(lab.path("count.nft"), rules).unwrap();
    lab.node.exec(&format!("nft -f {}", lab.path("count.nft").display()));
    lab.start(&state);
    let _server = lab.get("web").netns.serve("iperf3 -s", 5201);
    for node in [lab.node_v4(), lab.node_v6()] {
        for way in ["", "-R"] {
            let said = lab.outside.as_ref().unwrap().exec(&format!("iperf3 -c {node} -p 30001 {way} -t 1 -J"));
            let said: Value = serde_json::from_str(&said).unwrap();
            let bytes = said.pointer("/end/sum_received/bytes").and_then(Value::as_u64);
            assert!(bytes > Some(100_000_000), "{node} {way}: {said:#}");
        }
    }
    assert_eq!(lab.counter("web", "Tcp:", "InCsumErrors"), 0);
    let counted = lab.node.exec("nft list table inet t");
    assert_eq!(counted.matches("counter packets 0 bytes 0").count(), 2, "{counted}");
    let summary = lab.stop();
    let slow = summary.pointer("/workers/0/received").and_then(Value::as_u64);
    assert!(slow.is_some_and(|slow| slow < 100_000), "few packets came to a worker: {summary:#}");
}

#[test]
fn datagrams_and_their_fragments_reach_a_node_port_and_other_protocols_do_not() {
    require!("socat", "ss");
    only_with_tc!();
    let mut lab = lab();
    // TCP and UDP may have one number: for UDP it is a Service's, for TCP the node's own.
    let state = node_port(&lab, "UDP", 30_002, 5140);
    lab.start(&state);
    let _own = serve_name(&lab.node, "host", 30_002);
    for (node, any, world) in [(lab.node_v4(), "0.0.0.0:0", WORLD[0]), (lab.node_v6(), "[::]:0", WORLD[1])] {
        let server = inside(lab.get("web"), || {
            UdpSocket::bind((any.rsplit_once(':').unwrap().0.trim_matches(['[', ']']), 5140))
        });
        let server = server.unwrap();
        let client = in_namespace(&outside(&lab), || UdpSocket::bind(any).unwrap()).unwrap();
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        client.connect((&*node, 30_002)).unwrap();
        let mut bytes = vec![0; 9000];
        for length in [3, 4000, 3, 8000].into_iter().chain([3; 100]).chain([4000; 10]) {
            client.send(&vec![7; length]).unwrap();
            let (got, from) =
                server.recv_from(&mut bytes).unwrap_or_else(|error| panic!("{length} to {node}: {error}"));
            assert_eq!((got, from.ip()), (length, world.parse().unwrap()));
            server.send_to(&bytes[..got], from).unwrap();
            assert_eq!(client.recv(&mut bytes).unwrap_or_else(|error| panic!("{length} of {node}: {error}")), length);
        }
        assert_eq!(ask(lab.outside.as_ref().unwrap(), &node, 30_002).unwrap().0, "host", "over TCP");
    }
    lab.stop();
}

#[test]
fn a_connection_outlives_its_service_and_new_ones_are_refused() {
    require!("socat", "ss");
    only_with_tc!();
    let mut lab = lab();
    let state = node_port(&lab, "TCP", 30_001, 7000);
    lab.start(&state);
    echo(lab.get("web"), 7000);
    let address = SocketAddr::new(lab.node_v4().parse().unwrap(), 30_001);
    let mut stream = in_namespace(&outside(&lab), || open(address)).unwrap();
    settle(&mut stream);
    lab.apply("");
    assert!((0..100).all(|_| answers(&mut stream)), "an open connection drains");
    let refused = || in_namespace(&outside(&lab), || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    eventually("the node's kernel refuses new ones", || {
        refused().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    lab.apply(&state);
    eventually("the Service is back", || refused().is_ok());
    lab.stop();
}

/// Number of connections in each direction.
const EACH: usize = 100;

#[test]
fn two_hundred_connections_outlive_a_kill() {
    require!("mount", "socat", "ss");
    only_with_tc!();
    let mut lasting = Lasting::of(lab());
    let lab = &mut lasting.lab;
    let state = node_port(lab, "TCP", 30_001, 7000);
    lab.start(&state);
    echo(lab.get("web"), 7000);
    let _world = lab.outside.as_ref().unwrap().serve("socat TCP4-LISTEN:7001,fork,reuseaddr EXEC:cat", 7001);
    let to_node = SocketAddr::new(lab.node_v4().parse().unwrap(), 30_001);
    let to_world = SocketAddr::new(WORLD[0].parse().unwrap(), 7001);
    let from_world = in_namespace(&outside(lab), || (0..EACH).map(|_| open(to_node)).collect::<Vec<_>>()).unwrap();
    let from_pod = inside(lab.get("web"), || (0..EACH).map(|_| open(to_world)).collect::<Vec<_>>());
    let stop = AtomicBool::new(false);
    let talk = |mut stream: TcpStream| {
        let (mut longest, mut byte) = (Duration::ZERO, [0]);
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            stream.write_all(b"x").and_then(|()| stream.read_exact(&mut byte)).ok()?;
            longest = longest.max(begun.elapsed());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(longest)
    };
    let longest: Vec<Option<Duration>> = std::thread::scope(|scope| {
        let all: Vec<_> = from_world.into_iter().chain(from_pod).map(|stream| scope.spawn(|| talk(stream))).collect();
        std::thread::sleep(Duration::from_secs(2));
        lab.kill();
        std::thread::sleep(Duration::from_millis(300));
        lab.start(&state);
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(longest.iter().filter(|longest| longest.is_none()).count(), 0, "lost: {}", lab.log());
    println!("longest answer: {:?}", longest.iter().max());
    lab.stop();
}
