//! Connections between pods of different nodes whose kernels keep the network cards. The kernels' programs forward them past the nodes'
//! network stacks, unless a node's kernel translates them.

use std::time::Duration;

use crate::e2e_remote_nodes::Cluster;
use crate::lab::lasting::Lasting;
use crate::lab::netns::{Dialogue, Netns, Running, eventually};
use crate::lab::{Lab, Pod};
use crate::require;

/// Answers each line of a TCP connection and each datagram at a port with the client's address and the payload.
const SERVER: &str = "
import socket, sys, threading
port = int(sys.argv[1])
tcp = socket.create_server(('::', port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(('::', port))
def stream(peer, address):
    for line in peer.makefile('rb'):
        peer.sendall(address[0].encode() + b' ' + line)
def datagrams():
    while True:
        data, address = udp.recvfrom(65535)
        udp.sendto(address[0].encode() + b' ' + data, address)
threading.Thread(target=datagrams, daemon=True).start()
while True:
    threading.Thread(target=stream, args=tcp.accept(), daemon=True).start()
";

/// A client of [`SERVER`] with one socket: `tcp` or `udp`, address, port. Each line that it reads is a number of requests; it prints how many
/// were answered, each within five seconds.
const CLIENT: &str = "
import socket, sys
kind, address, port = sys.argv[1].split()
six = socket.AF_INET6 if ':' in address else socket.AF_INET
s = socket.socket(six, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
s.settimeout(5)
s.connect((address, int(port)))
for line in sys.stdin:
    answered = 0
    for at in range(int(line)):
        want = b'%d\\n' % at
        try:
            s.sendall(want)
            got = b''
            while not got.endswith(want):
                got += s.recv(65535)
            answered += 1
        except OSError:
            pass
    print(answered, flush=True)
";

fn serve(pod: &Pod, port: u16) -> Running {
    let mut server = pod.netns.command("python3", &["-c", SERVER, &port.to_string()]);
    let server = Running::start(&mut server);
    eventually("the server listens", || pod.netns.exec("ss -Htln").contains(&format!(":{port} ")));
    server
}

fn client(netns: &Netns, kind: &str, address: &str, port: u16) -> Dialogue {
    Dialogue::start(netns, CLIENT, &format!("{kind} {address} {port}"))
}

/// Returns the number of packets that the node's kernel has exchanged with the vswitch.
fn through_kernel(node: &Netns) -> u64 {
    node.statistic("bh-node", 1) + node.statistic("bh-node", 9)
}

/// Waits until of `count` requests, which are all answered, at most a tenth has passed the kernel of one of these nodes.
fn passes_by(client: &mut Dialogue, nodes: &[&Lab], count: u64, what: &str) {
    eventually(what, || {
        let before: Vec<u64> = nodes.iter().map(|lab| through_kernel(&lab.node)).collect();
        let answered = client.say(&count.to_string());
        let passed: Vec<u64> =
            nodes.iter().zip(before).map(|(lab, before)| through_kernel(&lab.node) - before).collect();
        println!("{what}: {answered} of {count} answered, through the kernels {passed:?}");
        answered == count.to_string() && passed.iter().all(|&passed| passed <= count / 10)
    });
}

#[test]
fn connections_between_pods_of_two_nodes_pass_the_nodes_stacks_by() {
    require!("python3", "ss");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    let [one, two, three] = &cluster.labs;
    let _servers = [one.get("p1"), three.get("p3")].map(|pod| serve(pod, 7070));
    let from = two.get("p2");
    for (lab, pod, way) in [(one, "p1", "the tunnel"), (three, "p3", "the link")] {
        let to = lab.get(pod);
        for address in [&to.v4, &to.v6] {
            let mut tcp = client(&from.netns, "tcp", address, 7070);
            passes_by(&mut tcp, &[two, lab], 200, &format!("TCP to {address} over {way}"));
            let mut udp = client(&from.netns, "udp", address, 7070);
            passes_by(&mut udp, &[two, lab], 200, &format!("UDP to {address} over {way}"));
        }
    }
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// Returns the number of packets that have passed the tunnel's device: from other nodes, and to them.
fn through_device(node: &Netns) -> [u64; 2] {
    [1, 9].map(|column| node.statistic("bh-vxlan", column))
}

#[test]
fn known_flows_pass_the_tunnels_device_by_with_each_version_of_ip() {
    require!("python3", "ss");
    only_with_tc!();
    // With outer headers of the pods' version, and of the other one, for nodes without an address of the pods' version.
    for unlisted in [None, Some("fd00:18::"), Some("172.18.")] {
        let mut cluster = Cluster::new(1500, "");
        cluster.labs.iter_mut().for_each(|lab| lab.unlisted = unlisted);
        cluster.tell_nodes();
        cluster.labs.iter_mut().for_each(|lab| lab.start(""));
        let [one, two, _] = &cluster.labs;
        for route in ["10.244.1.2", "fd00:244:1::2"].map(|pod| two.node.ip(&format!("route get {pod}"))) {
            assert!(route.contains("dev bh-vxlan"), "{route}");
        }
        let to = one.get("p1");
        let _server = serve(to, 7070);
        for address in [&to.v4, &to.v6] {
            for kind in ["tcp", "udp"] {
                let mut client = client(&two.get("p2").netns, kind, address, 7070);
                eventually("the programs forward the flow", || {
                    let before = [one, two].map(|lab| through_device(&lab.node));
                    let cards = [one, two].map(|lab| lab.node.statistic("card", 1));
                    let answered = client.say("200");
                    let after = [one, two].map(|lab| through_device(&lab.node));
                    let cards = [0, 1].map(|at| [one, two][at].node.statistic("card", 1) - cards[at]);
                    let passed = [0, 1].map(|node| [0, 1].map(|way| after[node][way] - before[node][way]));
                    println!("{kind} to {address}: {passed:?} of {cards:?}");
                    // The device adds outer headers of IPv6.
                    let is_v6 = unlisted == Some("172.18.") || (unlisted.is_none() && address.contains(':'));
                    let sent = passed.map(|[_, sent]| sent);
                    answered == "200"
                        && cards.iter().all(|&card| card >= 200)
                        && passed.iter().all(|&[received, _]| received <= 20)
                        && (is_v6 || sent.iter().all(|&sent| sent <= 20))
                });
            }
        }
        cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
    }
}

#[test]
fn connections_between_nodes_go_on_while_a_vswitch_is_away_and_with_the_next_process() {
    require!("python3", "ss");
    only_with_tc!();
    let Cluster { router: _router, labs: [mut one, two, mut three] } = Cluster::new(1500, "");
    let mut two = Lasting::of(two);
    [&mut one, &mut two.lab, &mut three].into_iter().for_each(|lab| lab.start(""));
    let _servers = [one.get("p1"), three.get("p3")].map(|pod| serve(pod, 7070));
    let open = |address: &str| client(&two.lab.get("p2").netns, "tcp", address, 7070);
    let mut connections = [one.get("p1").v4.clone(), three.get("p3").v6.clone()].map(|address| open(&address));
    for connection in &mut connections {
        assert_eq!(connection.say("300"), "300");
    }
    // Until the kernel has them for their whole life.
    std::thread::sleep(Duration::from_secs(1));
    connections.iter_mut().for_each(|connection| assert_eq!(connection.say("100"), "100"));
    two.lab.kill();
    for connection in &mut connections {
        assert_eq!(connection.say("300"), "300", "without a process");
    }
    two.lab.start("");
    for connection in &mut connections {
        passes_by(connection, &[&two.lab], 200, "TCP after the next process has started");
    }
    [&mut one, &mut two.lab, &mut three].into_iter().for_each(|lab| drop(lab.stop()));
}

#[test]
fn what_a_nodes_kernel_translates_passes_its_stack_in_both_directions() {
    require!("python3", "ss", "nft", "ping");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    let [one, two, three] = &cluster.labs;
    let (near, far) = (three.get("p3"), one.get("p1"));
    let _servers = [near, far].map(|pod| serve(pod, 7070));
    // As kube-proxy: it drops what its connection tracking calls invalid, and translates without masquerading pods.
    for lab in &cluster.labs {
        lab.node.exec("nft add table inet proxy");
        lab.node.exec("nft add chain inet proxy forward { type filter hook forward priority 0 ; }");
        lab.node.exec("nft add rule inet proxy forward ct state invalid drop");
        lab.node.exec("nft add chain inet proxy nat { type nat hook prerouting priority dstnat ; }");
    }
    let translate = |lab: &Lab, address: &str, pod: &Pod| {
        for protocol in ["tcp", "udp"] {
            let rule = format!("ip daddr {address} {protocol} dport 80 dnat ip to {}:7070", pod.v4);
            lab.node.exec(&format!("nft add rule inet proxy nat {rule}"));
        }
    };
    // Two Services, at the client's node; and a port of another node, there.
    translate(two, "10.96.0.10", near);
    translate(two, "10.96.0.11", far);
    translate(three, &three.node_v4(), near);
    let from = two.get("p2");
    let mut direct = client(&from.netns, "tcp", &near.v4, 7070);
    for kind in ["tcp", "udp"] {
        for address in ["10.96.0.10", "10.96.0.11", &three.node_v4()] {
            let mut client = client(&from.netns, kind, address, 80);
            eventually("the first request is answered", || client.say("1") == "1");
            assert_eq!(client.say("300"), "300", "{kind} to {address}");
        }
        assert_eq!(direct.say("100"), "100", "beside the translated ones");
    }
    for address in [&near.v4, &near.v6, &far.v4, &far.v6] {
        eventually("pings are answered", || two.pings("p2", address));
    }
    // After a pause the flows are no longer leased to the kernel's programs.
    let mut udp = client(&from.netns, "udp", &far.v4, 7070);
    let mut tcp = client(&from.netns, "tcp", &far.v4, 7070);
    assert_eq!((tcp.say("300"), udp.say("50")), ("300".to_owned(), "50".to_owned()));
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!((tcp.say("300"), direct.say("300"), udp.say("50")), ("300".into(), "300".into(), "50".into()));
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// A Service of both families and protocols with one endpoint, whose port is 7070.
fn service(name: &str, number: u8, endpoint: &Pod, node: &str) -> String {
    let ports = |port: u16| {
        ["TCP", "UDP"]
            .map(|protocol| format!("{{name: p{}, port: {port}, protocol: {protocol}}}", protocol.to_lowercase()))
    };
    let [given, targets] = [80, 7070].map(|port| ports(port).join(", "));
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{clusterIP: 10.96.0.{number}, \
         clusterIPs: [10.96.0.{number}, 'fd96::{number}'], ipFamilies: [IPv4, IPv6], ports: [{given}]}}\n"
    );
    for (family, address) in [("IPv4", &endpoint.v4), ("IPv6", &endpoint.v6)] {
        text.push_str(&format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-{}, namespace: default, \
             labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: {family}\nports: [{targets}]\n\
             endpoints: [{{addresses: ['{address}'], nodeName: {node}, conditions: {{ready: true}}}}]\n",
            family.to_lowercase()
        ));
    }
    text
}

#[test]
fn pods_and_nodes_reach_services_with_endpoints_on_other_nodes() {
    require!("python3", "ss", "ping");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "services: {service_cidrs: [10.96.0.0/12, 'fd96::/64']}\n");
    let [one, _, three] = &cluster.labs;
    let _servers = [one.get("p1"), three.get("p3")].map(|pod| serve(pod, 7070));
    let services = service("far", 10, one.get("p1"), "node-1") + &service("near", 20, three.get("p3"), "node-3");
    cluster.labs.iter_mut().for_each(|lab| lab.start(&services));
    let [one, two, three] = &cluster.labs;
    // Replacing filters by links must not stop the transmit queues of the host port's interface.
    let pings = two.get("p2").netns.spawn(&format!("ping -n -q -i 0.001 -w 4 {}", two.node_v4()));
    for (lab, number) in [(one, 10), (three, 20)] {
        for address in [format!("10.96.0.{number}"), format!("fd96::{number}")] {
            let mut tcp = client(&two.get("p2").netns, "tcp", &address, 80);
            passes_by(&mut tcp, &[two, lab], 200, &format!("TCP to {address}"));
            let mut udp = client(&two.get("p2").netns, "udp", &address, 80);
            passes_by(&mut udp, &[two], 200, &format!("UDP to {address}"));
            for kind in ["tcp", "udp"] {
                let mut of_node = client(&two.node, kind, &address, 80);
                eventually("the first request is answered", || of_node.say("1") == "1");
                assert_eq!(of_node.say("200"), "200", "{kind} of a process of the node to {address}");
            }
        }
    }
    let pings = String::from_utf8(pings.wait().stdout).unwrap();
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// Sends `count` bytes to a server that counts them, over one TCP connection, and returns what the server received within 20 seconds.
const BULK: &str = "
import socket, sys
address, count = sys.argv[1].split()
s = socket.create_connection((address, 7071), 5)
s.settimeout(20)
s.sendall(b'x' * int(count))
s.shutdown(socket.SHUT_WR)
print(s.makefile().read(), flush=True)
";
const COUNT: &str = "
import socket
server = socket.create_server(('::', 7071), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    peer, _ = server.accept()
    total = 0
    while data := peer.recv(1 << 20):
        total += len(data)
    peer.sendall(str(total).encode())
    peer.close()
";

/// Sends datagrams that must not be fragmented, of as many bytes as each line says, and prints `sent` or the error.
const DATAGRAMS: &str = "
import socket, sys
address = sys.argv[1]
six = ':' in address
s = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(41 if six else 0, 23 if six else 10, 2)
s.settimeout(0.2)
s.connect((address, 7070))
for line in sys.stdin:
    try:
        s.send(b'x' * (int(line) - 1) + b'\\n')
        s.recv(65535)
        print('answered', flush=True)
    except OSError as error:
        print(error.strerror or 'lost', flush=True)
";

#[test]
fn what_is_too_long_for_the_tunnel_is_told_to_senders_of_known_flows() {
    require!("python3", "ss");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    let [one, two, _] = &cluster.labs;
    let (from, to) = (two.get("p2"), one.get("p1"));
    let _server = serve(to, 7070);
    let _counters = [from, to].map(|pod| Running::start(&mut pod.netns.command("python3", &["-c", COUNT])));
    for (a, b) in [(from, to), (to, from)] {
        eventually("the counter listens", || b.netns.exec("ss -Htln").contains(":7071 "));
        for address in [&b.v4, &b.v6] {
            let mut bulk = Dialogue::start(&a.netns, BULK, &format!("{address} 4000000"));
            assert_eq!(bulk.hear(), "4000000", "from {} to {address}, with segments for 1500 bytes", a.name);
        }
    }
    for (address, header) in [(&to.v4, 28), (&to.v6, 48)] {
        let mut udp = Dialogue::start(&from.netns, DATAGRAMS, address);
        eventually("the flow is known", || (0..20).all(|_| udp.say("100") == "answered"));
        eventually("the sender gets an error", || udp.say(&(1500 - header).to_string()) == "Message too long");
        // The tunnel of IPv6 links leaves 1,430 bytes.
        eventually("what fits is answered", || udp.say(&(1400 - header).to_string()) == "answered");
    }
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}
