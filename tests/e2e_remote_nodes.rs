//! Three nodes whose kernels keep their network cards: two on one link, one behind a router. The vswitches route or tunnel between them.
//!
//! ```text
//!   [ node 2: card ]--.
//!                     +--[ lan | router | far ]--[ card: node 1 ]
//!   [ node 3: card ]--'
//! ```

use crate::lab::netns::{Dialogue, Netns, Running, eventually};
use crate::lab::{Dump, Lab, Options, policy, veth};
use crate::require;

/// The router's addresses on the links of nodes 2 and 3, and of node 1.
const ON_LAN: [&str; 2] = ["172.18.0.1", "fd00:18::1"];
const ON_FAR: [&str; 2] = ["172.18.0.10", "fd00:18::10"];

/// The nodes, and the router between them.
pub(crate) struct Cluster {
    pub(crate) router: Netns,
    /// Nodes 1, 2 and 3, with a pod each, called `p1`, `p2` and `p3`.
    pub(crate) labs: [Lab; 3],
}

impl Cluster {
    /// Creates the nodes without starting their vswitches. `config` is added to each configuration. `mtu` is that of the links.
    pub(crate) fn new(mtu: u32, config: &str) -> Self {
        let router = Netns::new("router");
        forward(&router);
        router.ip("link add lan type bridge");
        router.ip("link set lan up");
        let mut labs = [1, 2, 3].map(|node| Lab::with(Options { node, mtu: mtu.max(1500), ..Options::default() }));
        for (number, lab) in (1..).zip(&mut labs) {
            lab.pod(&format!("p{number}"), &format!("{{app: p{number}}}"));
            lab.more_ports =
                format!("  - {{kind: host, interface: bh-host, peer: bh-node, create: {{mtu: {}}}}}\n", mtu.max(1500));
            lab.more_config =
                format!("routes: [{{prefix: 0.0.0.0/0, port: host}}, {{prefix: '::/0', port: host}}]\n{config}");
            forward(&lab.node);
            let end = if number == 1 { "far".to_owned() } else { format!("lan{number}") };
            veth(&router, &end, &lab.node, "card", mtu);
            let [v4, v6] = if number == 1 { ON_FAR } else { ON_LAN };
            // Neighbours: 172.18.0.10 and .11, 172.18.0.12 and .13; the same for IPv6.
            lab.node.ip(&format!("addr add {}/31 dev card", lab.node_v4()));
            lab.node.ip(&format!("addr add {}/127 dev card nodad", lab.node_v6()));
            if number != 1 {
                router.ip(&format!("link set {end} master lan"));
                lab.node.ip(&format!("route add {v4} dev card"));
                lab.node.ip(&format!("-6 route add {v6} dev card"));
            }
            lab.node.ip(&format!("route add default via {v4} dev card"));
            lab.node.ip(&format!("-6 route add default via {v6} dev card"));
        }
        for (device, [v4, v6], [lengths_v4, lengths_v6]) in
            [("lan", ON_LAN, ["32", "128"]), ("far", ON_FAR, ["31", "127"])]
        {
            router.sysctl(&format!("net.ipv6.conf.{device}.disable_ipv6"), "0");
            router.ip(&format!("addr add {v4}/{lengths_v4} dev {device}"));
            router.ip(&format!("addr add {v6}/{lengths_v6} dev {device} nodad"));
        }
        router.ip("route add 172.18.0.12/31 dev lan");
        router.ip("-6 route add fd00:18::12/127 dev lan");
        let mut cluster = Self { router, labs };
        cluster.tell_nodes();
        cluster
    }

    /// Adds the objects of the other nodes to each node's state.
    pub(crate) fn tell_nodes(&mut self) {
        for at in 0..3 {
            let others = (0..3).filter(|&other| other != at).map(|other| self.labs[other].objects());
            self.labs[at].more_state = others.collect();
        }
    }

    /// Creates the nodes and starts their vswitches.
    pub(crate) fn started(config: &str) -> Self {
        let mut cluster = Self::new(1500, config);
        cluster.labs.iter_mut().for_each(|lab| lab.start(""));
        cluster
    }

    /// Returns what cannot reach what: every pod and every node to every pod and node.
    pub(crate) fn broken(&self) -> Vec<String> {
        let pods = self.labs.iter().flat_map(|lab| &lab.pods);
        let ends: Vec<(&str, &Netns, [String; 2])> = pods
            .map(|pod| (&*pod.name, &pod.netns, [pod.v4.clone(), pod.v6.clone()]))
            .chain(self.labs.iter().map(|lab| (lab.node.name(), &lab.node, [lab.node_v4(), lab.node_v6()])))
            .collect();
        let mut broken = Vec::new();
        for (from, netns, _) in &ends {
            for (to, _, addresses) in ends.iter().filter(|(to, ..)| to != from) {
                let unreached = addresses.iter().filter(|address| !pings(netns, address));
                broken.extend(unreached.map(|address| format!("{from} to {to} ({address})")));
            }
        }
        broken
    }
}

fn forward(netns: &Netns) {
    netns.sysctl("net.ipv4.ip_forward", "1");
    netns.sysctl("net.ipv6.conf.all.forwarding", "1");
    // The strictest setting, which some distributions have.
    netns.sysctl("net.ipv4.conf.all.rp_filter", "1");
}

/// Whether one ping is answered within a second.
pub(crate) fn pings(from: &Netns, to: &str) -> bool {
    from.output(&format!("ping -n -c 1 -W 1 {to}")).status.success()
}

#[test]
fn pods_and_nodes_reach_each_other_by_a_route_on_the_link_and_by_the_tunnel_elsewhere() {
    require!("ping", "nc", "ss");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    let [_, two, three] = &cluster.labs;
    for (lab, family, near, far) in [
        (two, "-4", "10.244.3.0/24 via 172.18.0.13 dev card", "10.244.1.0/24"),
        (three, "-6", "fd00:244:2::/64 via fd00:18::12 dev card", "fd00:244:1::/64"),
    ] {
        let routes = lab.node.ip(&format!("{family} route show proto 98"));
        let far = routes.lines().find(|line| line.contains(far) && line.contains("dev bh-vxlan"));
        assert!(routes.contains(near) && far.is_some_and(|line| line.contains("encap")), "{routes}");
    }
    let mut broken = cluster.broken();
    if !broken.is_empty() {
        // The first packets may have found no neighbour yet.
        broken = cluster.broken();
    }
    assert_eq!(broken, [""; 0]);

    // Policy sees the pods' own addresses in both modes.
    let from =
        |app: &str| format!("{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}], ports: [{{port: 7050}}]}}");
    for (allowed, expected) in [("p1", [true, false]), ("p3", [false, true])] {
        let rules = policy(
            "two",
            &format!(
                "{{podSelector: {{matchLabels: {{app: p2}}}}, policyTypes: [Ingress], ingress: [{}]}}",
                from(allowed)
            ),
        );
        cluster.labs.iter().for_each(|lab| lab.apply(&rules));
        let server = cluster.labs[1].get("p2");
        let _server = server.netns.serve("nc -lk 7050", 7050);
        let reach = [(0, "p1"), (2, "p3")].map(|(at, pod)| cluster.labs[at].connects(pod, &server.v4, 7050));
        assert_eq!(reach, expected, "{allowed} is allowed");
        assert!(!pings(&cluster.labs[0].node, &server.v4), "another node is allowed by no rule");
    }
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

#[test]
fn nodes_without_pod_cidrs_have_the_configured_networks() {
    require!("ping");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "");
    for lab in &mut cluster.labs {
        lab.has_pod_cidrs = false;
        let ranges = [1, 2, 3].map(|number| format!("node-{number}: [10.244.{number}.0/24, 'fd00:244:{number}::/64']"));
        lab.state = format!("{{paths: [state.yaml], node_ranges: {{{}}}}}", ranges.join(", "));
    }
    cluster.tell_nodes();
    cluster.labs.iter_mut().for_each(|lab| lab.start(""));
    eventually("all reach each other", || cluster.broken().is_empty());
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// Sends UDP datagrams of VXLAN, each with an inner packet from an address of `sources` to `to`, port 9999. `tos` is the outer type of service.
const INJECT: &str = "
import socket, struct, sys
node, vni, to, count, tos, sources = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:]
def packet(source):
    if ':' in source:
        pack = lambda address: socket.inet_pton(socket.AF_INET6, address)
        ip = struct.pack('!IHBB', 6 << 28, 8, 17, 64) + pack(source) + pack(to)
        udp = struct.pack('!HHHH', 1, 9999, 8, 1)
        return struct.pack('!6s6sH', b'\\2' * 6, b'\\2' * 6, 0x86dd) + ip + udp
    head = lambda sum: struct.pack('!BBHHHBBH4s4s', 0x45, 0, 28, 0, 0, 64, 17, sum, socket.inet_aton(source), socket.inet_aton(to))
    total = sum(struct.unpack('!10H', head(0)))
    total = (total & 0xffff) + (total >> 16)
    udp = struct.pack('!HHHH', 1, 9999, 8, 0)
    return struct.pack('!6s6sH', b'\\2' * 6, b'\\2' * 6, 0x800) + head(~total & 0xffff) + udp
header = struct.pack('!II', 8 << 24, vni << 8)
packets = [header + packet(source) for source in sources]
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
for at in range(count):
    out.sendto(packets[at % len(packets)], (node, 4789))
";

/// Sends datagrams of [`INJECT`] to node 1's pod. `from` is the sender's namespace.
fn inject(from: &Netns, vni: u32, to: &str, count: usize, sources: &[&str]) {
    inject_marked(from, [vni, 0], to, count, sources);
}

/// Like [`inject`], with the outer type of service after the network identifier.
fn inject_marked(from: &Netns, [vni, tos]: [u32; 2], to: &str, count: usize, sources: &[&str]) {
    let [vni, count, tos] = [vni.to_string(), count.to_string(), tos.to_string()];
    let words = [&["-c", INJECT, "172.18.0.11", &vni, to, &count, &tos], sources].concat();
    let output = from.command("python3", &words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn packets_of_the_tunnel_are_taken_from_the_node_that_owns_the_inner_source_alone() {
    require!("python3", "tcpdump", "ping", "nft");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    let Cluster { router, labs } = &mut cluster;
    let [one, two, _] = &*labs;
    let pod = one.get("p1");
    let (v4, v6) = (pod.v4.clone(), pod.v6.clone());
    // The vswitch knows the pod's MAC address after these.
    [&v4, &v6].into_iter().for_each(|address| eventually("node 2 reaches the pod", || two.pings("p2", address)));
    let dump = Dump::start(one, "p1", "udp port 9999");
    const EACH: usize = 2000;
    // Somebody who is no node: with the source of a pod, of a node, of nobody.
    inject(router, 1, &v4, EACH, &["10.244.2.2", "172.18.0.12", "10.244.1.3", "192.0.2.1"]);
    inject(router, 1, &v6, EACH, &["fd00:244:2::2", "fd00:18::12"]);
    // A hostile node: with sources of another node, of this node, of the world; and with another network's identifier.
    inject(
        &two.node,
        1,
        &v4,
        EACH,
        &["10.244.3.2", "172.18.0.13", "10.244.1.2", "172.18.0.11", "192.0.2.1", "0.0.0.0"],
    );
    inject(&two.node, 1, &v6, EACH, &["fd00:244:3::2", "fd00:18::13", "fd00:244:1::2", "2001:db8::1"]);
    inject(&two.node, 2, &v4, EACH, &["10.244.2.2"]);
    // A pod of node 2.
    inject(&two.get("p2").netns, 1, &v4, EACH, &["10.244.2.2", "10.244.3.2"]);
    // The same if the node masquerades its pods: the packets would have the source of a node.
    two.node.exec("nft add table ip pods");
    two.node.exec("nft add chain ip pods post { type nat hook postrouting priority srcnat ; }");
    two.node.exec("nft add rule ip pods post ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade");
    inject(&two.get("p2").netns, 1, &v4, EACH, &["10.244.2.9"]);
    // What node 2 may send.
    inject(&two.node, 1, &v4, 10, &["10.244.2.2"]);
    inject(&two.node, 1, &v6, 10, &["fd00:244:2::2"]);
    eventually("what node 2 may send arrives", || dump.so_far("").lines().count() >= 20);
    let seen = dump.seen("");
    assert!(seen.lines().all(|line| line.contains("10.244.2.2.1 >") || line.contains("fd00:244:2::2.1 >")), "{seen}");
    assert_eq!(seen.lines().count(), 20);
    let (_, status) = one.ask(&["status"]);
    assert!(status.contains("other nodes' pod networks: 0 by routes, 4 through the tunnel (MTU 1430)"), "{status}");
    let dropped = status.lines().find_map(|line| line.trim().split_once(" packets from the tunnel dropped"));
    // Five bursts; pods' datagrams do not leave their node. A busy machine loses some before the guard.
    let dropped: usize = dropped.unwrap().0.parse().unwrap();
    assert!((EACH..=5 * EACH).contains(&dropped), "{status}");
    labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// Exchanges datagrams with an address, from port 9999 to port 1. Each line that it reads is a number of requests; it prints how many were
/// answered, and how many datagrams without payload have arrived.
const KNOWN: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 9999))
s.connect((sys.argv[1], 1))
foreign = 0
for line in sys.stdin:
    answered = 0
    for at in range(int(line)):
        s.settimeout(1)
        s.send(b'%d' % at)
        try:
            while (got := s.recv(100)) != b'%d' % at:
                foreign += not got
            answered += 1
        except OSError:
            pass
    s.settimeout(0.3)
    try:
        while True:
            foreign += not s.recv(100)
    except OSError:
        pass
    print(answered, foreign, flush=True)
";

/// Answers each datagram at port 1 with its payload.
const ECHO: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 1))
while True:
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)
";

#[test]
fn a_known_flow_takes_packets_from_the_node_that_owns_its_source_alone() {
    require!("python3", "ss");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    let Cluster { router, labs } = &mut cluster;
    let [one, two, three] = &*labs;
    let (pod, other) = (one.get("p1"), two.get("p2"));
    let _echo = Running::start(&mut other.netns.command("python3", &["-c", ECHO]));
    eventually("the server listens", || other.netns.exec("ss -Hulpn").contains(":1 "));
    let mut client = Dialogue::start(&pod.netns, KNOWN, &other.v4);
    eventually("the flow's answers pass the tunnel's device by", || {
        let before = one.node.statistic("bh-vxlan", 1);
        client.say("100") == "100 0" && one.node.statistic("bh-vxlan", 1) - before <= 10
    });
    let sources = [&*other.v4];
    let dropped = || {
        let (_, status) = one.ask(&["status"]);
        let line = status.lines().find_map(|line| line.trim().split_once(" packets from the tunnel dropped"));
        line.map_or(0, |(count, _)| count.parse::<usize>().unwrap())
    };
    for (netns, vni, what) in
        [(&*router, 1, "an outsider"), (&three.node, 1, "another node"), (&two.node, 2, "the node in another network")]
    {
        let before = dropped();
        inject(netns, vni, &pod.v4, 1000, &sources);
        eventually(what, || dropped() > before);
        assert_eq!(client.say("10"), "10 0", "from {what}");
    }
    // RFC 6040 §4.2: a congestion mark on a packet of somebody who ignores them is lost with the packet. Only the tunnel's device knows that.
    inject_marked(&two.node, [1, 3], &pod.v4, 100, &sources);
    assert_eq!(client.say("10"), "10 0", "with a congestion mark");
    inject(&two.node, 1, &pod.v4, 10, &sources);
    assert_eq!(client.say("10"), "10 10", "from the node that owns the source");
    labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// Sends datagrams with this payload to port 9999 of an address, each from another port, from 2000 on. With a source address, that of the datagrams.
const DATAGRAMS: &str = "
import socket, struct, sys, time
to, payload, source = sys.argv[1], sys.argv[2].encode(), sys.argv[3:]
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) if source else None
for port in range(2000, 2200):
    if raw:
        # The kernel fills in length, identification and checksum.
        ip = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 0, 0, 0, 64, 17, 0, socket.inet_aton(source[0]), socket.inet_aton(to))
        raw.sendto(ip + struct.pack('!HHHH', port, 9999, 8 + len(payload), 0) + payload, (to, 0))
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.bind(('', port))
            s.sendto(payload, (to, 9999))
    time.sleep(0.005)
";

/// Receives at port 9999. For each line that it reads, prints how many `genuine` and other datagrams have arrived.
const COUNT: &str = "
import socket, sys, threading
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 9999))
genuine, others = 0, 0
def receive():
    global genuine, others
    while True:
        if s.recv(100) == b'genuine':
            genuine += 1
        else:
            others += 1
threading.Thread(target=receive, daemon=True).start()
for line in sys.stdin:
    print(genuine, others, flush=True)
";

#[test]
fn a_pod_cannot_follow_a_datagram_of_another_nodes_pod_with_its_source() {
    require!("python3", "ss");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "");
    cluster.labs[0].pod("thief", "{app: thief}");
    cluster.tell_nodes();
    cluster.labs.iter_mut().for_each(|lab| lab.start(""));
    let [one, two, _] = &cluster.labs;
    let (pod, thief, other) = (one.get("p1"), one.get("thief"), two.get("p2"));
    for from in [thief, other] {
        eventually("the pod is reached", || pings(&from.netns, &pod.v4));
    }
    let mut counted = Dialogue::start(&pod.netns, COUNT, "");
    eventually("the pod listens", || pod.netns.exec("ss -Hulpn").contains(":9999 "));
    // Each genuine datagram leaves a record at node 1 for a second. The thief follows at the same pace.
    let send = |netns: &Netns, words: &[&str]| {
        Running::start(&mut netns.command("python3", &[&["-c", DATAGRAMS, &pod.v4], words].concat()))
    };
    let genuine = send(&other.netns, &["genuine"]);
    eventually("the first datagram arrives", || !counted.say("").starts_with("0 "));
    let thief = send(&thief.netns, &["forged", &other.v4]);
    eventually("the genuine datagrams arrive", || counted.say("").starts_with("200 "));
    assert!([genuine, thief].into_iter().all(|sender| sender.wait().status.success()));
    assert_eq!(counted.say(""), "200 0", "datagrams of the thief arrive");
    let (_, status) = one.ask(&["status"]);
    // They are judged as the thief's own. If the program took them for the uplink's, only their MAC address would stop them (`other_host`).
    assert!(status.contains("spoofed_source"), "{status}");
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

/// Returns the routes of the vswitch, as lines of `ip route`, that contain this text.
fn own_routes(lab: &Lab, text: &str) -> Vec<String> {
    let all = ["-4 route show", "-6 route show", "-4 route show table 98"].map(|words| {
        // A table without routes is an error.
        let output = lab.node.output(&format!("ip {words}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let is_wanted = |line: &&str| line.contains("proto 98") && line.contains(text);
    all.iter().flat_map(|text| text.lines()).filter(is_wanted).map(str::to_owned).collect()
}

#[test]
fn routes_follow_the_nodes_and_the_links_and_leave_foreign_ones_alone() {
    require!("ping");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "");
    let two = &cluster.labs[1];
    // The same route as the vswitch's, and a different one. Both are somebody else's.
    two.node.ip("route add 10.244.3.0/24 via 172.18.0.13 proto static");
    two.node.ip("route add 10.244.1.0/24 via 172.18.0.1 proto static");
    cluster.labs.iter_mut().for_each(|lab| lab.start(""));
    let two = &cluster.labs[1];
    assert_eq!(two.count("10.244.1.0/24: the kernel has another route to it; delete that route"), 1, "{}", two.log());
    assert_eq!((two.count("10.244.3.0/24"), own_routes(two, "10.244.3.0/24").len()), (0, 0));
    let foreign = || two.node.ip("route show proto static");
    assert!(foreign().contains("10.244.3.0/24 via 172.18.0.13") && foreign().contains("10.244.1.0/24 via 172.18.0.1"));
    two.node.ip("route del 10.244.1.0/24");
    eventually("the vswitch's own route takes its place", || own_routes(two, "10.244.1.0/24").len() == 1);
    two.node.ip("route del 10.244.3.0/24");
    eventually("the vswitch's own route takes its place", || own_routes(two, "10.244.3.0/24").len() == 1);

    // The kernel removes a link's routes with the link.
    let three = &cluster.labs[2];
    three.node.ip("link set card down");
    assert!(own_routes(three, "10.244.2.0/24").is_empty());
    three.node.ip("link set card up");
    three.node.ip("route add 172.18.0.1 dev card");
    three.node.ip("route add default via 172.18.0.1 dev card");
    eventually("the route is back", || own_routes(three, "10.244.2.0/24 via 172.18.0.12 dev card").len() == 1);
    let pod = three.get("p3").v4.clone();
    eventually("node 2's pod reaches node 3's", || two.pings("p2", &pod));

    // Node 3 goes to another link: the default route over the router leads to its new address.
    let moved = |lab: &Lab| lab.more_state.replace("172.18.0.13", "172.18.0.99");
    let state = moved(&cluster.labs[1]);
    cluster.labs[1].more_state = state;
    cluster.labs[1].apply("");
    let two = &cluster.labs[1];
    eventually("the tunnel leads to node 3's new address", || {
        own_routes(two, "10.244.3.0/24").iter().all(|line| line.contains("dst 172.18.0.99"))
            && own_routes(two, "172.18.0.99").len() == 2
    });
    let state: String =
        cluster.labs[1].more_state.split_inclusive("---\n").filter(|text| !text.contains("node-3")).collect();
    cluster.labs[1].more_state = state;
    cluster.labs[1].apply("");
    let two = &cluster.labs[1];
    eventually("no route leads to a node that has left", || own_routes(two, "10.244.3.0/24").is_empty());
    assert_eq!(own_routes(two, "172.18.0.99"), [""; 0]);
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

#[test]
fn routes_and_tunnel_outlive_the_process_and_cleanup_removes_them() {
    require!("ping");
    only_with_tc!();
    let mut cluster = Cluster::started("encapsulation: always\n");
    let [one, two, three] = &cluster.labs;
    eventually("all pods reach each other through the tunnel", || cluster.broken().is_empty());
    let is_tunneled = |lab: &Lab, network: &str| {
        let routes = own_routes(lab, network);
        !routes.is_empty() && routes.iter().all(|line| line.contains("encap") && line.contains("dev bh-vxlan"))
    };
    assert!(is_tunneled(two, "10.244.3.0/24"));
    let [far, near] = [one.get("p1").v4.clone(), three.get("p3").v4.clone()];
    cluster.labs[1].kill();
    let two = &cluster.labs[1];
    assert!(is_tunneled(two, "10.244.1.0/24"));
    // The next process takes over both.
    cluster.labs[1].start("");
    let two = &cluster.labs[1];
    eventually("the tunnel goes on", || two.pings("p2", &far) && two.pings("p2", &near));
    cluster.labs[1].stop();
    // The next process forbids the tunnel: routes on the link, and nothing to node 1.
    cluster.labs[1].more_config = cluster.labs[1].more_config.replace("always", "never");
    cluster.labs[1].start("");
    let two = &cluster.labs[1];
    assert!(!two.node.ip("link").contains("bh-vxlan"));
    assert_eq!(
        (own_routes(two, "10.244.1.0/24").len(), own_routes(two, "10.244.3.0/24 via 172.18.0.13").len()),
        (0, 1)
    );
    cluster.labs[1].stop();
    cluster.labs[2].stop();
    for at in [1, 2] {
        let lab = &cluster.labs[at];
        let config = lab.path("config.yaml");
        let words = ["cleanup", "--config", config.to_str().unwrap()];
        assert!(lab.node.command(env!("CARGO_BIN_EXE_bulkhead"), &words).output().unwrap().status.success());
        let left = ["link", "route show table all", "-6 route show table all", "rule", "-6 rule"]
            .map(|words| lab.node.ip(words));
        let left = left.concat();
        assert!(!left.contains("bh-") && !left.contains("proto 98") && !left.contains("lookup 9"), "{left}");
    }
    cluster.labs[0].stop();
}

#[test]
fn a_strict_check_of_sources_at_every_interface_breaks_nothing() {
    require!("ping");
    only_with_tc!();
    let mut cluster = Cluster::started("");
    eventually("all reach each other", || cluster.broken().is_empty());
    // The vswitch makes its tunnel's check loose; distributions' settings for new interfaces may undo that.
    for lab in &cluster.labs {
        let interfaces = ["bh-vxlan", "bh-node", "bh-host", "card"];
        interfaces.iter().for_each(|name| lab.node.sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "1"));
    }
    assert_eq!(cluster.broken(), [""; 0]);
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}
