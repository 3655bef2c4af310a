//! The MTU between nodes: no packet is lost for its length without a word to its sender, and new pods get an MTU that reaches every node.

use crate::cni::{Runtime, Sandbox};
use crate::e2e_remote_nodes::{Cluster, pings};
use crate::lab::Lab;
use crate::lab::netns::{Dialogue, Netns, eventually, eventually_within};
use crate::require;

/// Answers each datagram at port 7 by its first two bytes.
const ANSWER: &str = "
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
# SO_RCVBUFFORCE: above the limit of the system.
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)
s.bind(('::', 7))
print(flush=True)
while True:
    data, sender = s.recvfrom(65535)
    s.sendto(data[:2], sender)
";

/// Sends packets that must not be fragmented to an address: for each length from 1000 to the second argument, in bytes, an echo request and a datagram
/// of one flow. Prints the lengths of packets that were neither answered nor reported as too long, in three attempts, and the number of answers.
const EVERY_LENGTH: &str = "
import errno, select, socket, struct, sys
to, last = sys.argv[1].split()
is_v6 = ':' in to
# Bytes of the headers of IP and ICMP or UDP.
headers = 48 if is_v6 else 28
# The kernel shall not fragment, nor use what it has learned about the path (IP_MTU_DISCOVER: IP_PMTUDISC_PROBE). It shall report errors (IP_RECVERR).
options = [(41, 23, 3), (41, 62, 1), (41, 25, 1)] if is_v6 else [(0, 10, 3), (0, 11, 1)]
# SO_EE_ORIGIN_LOCAL: an error of the sender's own kernel.
LOCAL = 1

class Probe:
    def __init__(self, kind, protocol, port):
        self.socket = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, kind, protocol)
        for option in options + [(socket.SOL_SOCKET, 33, 1 << 22)]:
            self.socket.setsockopt(*option)
        self.socket.setblocking(False)
        self.socket.connect((to, port))
        self.left, self.answers = set(), 0

    def take_errors(self):
        # Returns whether one of them was another machine's.
        is_remote = False
        while True:
            try:
                data, notes, _, _ = self.socket.recvmsg(65535, 512, socket.MSG_ERRQUEUE)
            except BlockingIOError:
                return is_remote
            if notes[0][2][4] != LOCAL:
                self.left.discard(self.length(data, 0))
                is_remote = True

    def send(self, length):
        while True:
            try:
                return self.socket.send(self.packet(length))
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                # It may be that of an earlier packet.
                if not self.take_errors():
                    return self.left.discard(length)

    def attempt(self, lengths):
        self.left |= set(lengths)
        for length in lengths:
            self.send(length)
        while self.left.intersection(lengths) and select.select([self.socket], [], [], 0.2)[0]:
            self.take_errors()
            try:
                length = self.length(self.socket.recv(65535), self.start)
            except OSError as error:
                # Nothing there, or an error that came after the others were taken.
                if error.errno not in (errno.EAGAIN, errno.EMSGSIZE):
                    raise
                continue
            self.answers += length in self.left
            self.left.discard(length)

    def run(self):
        for first in range(1000, int(last) + 1, 16):
            self.attempt(range(first, min(first + 16, int(last) + 1)))
        for _ in range(2):
            for length in sorted(self.left):
                self.attempt([length])
        print(self.answers, *sorted(self.left), flush=True)

class Echo(Probe):
    # A raw socket gets the IPv4 header too.
    start = 0 if is_v6 else 20

    def packet(self, length):
        request = 128 if is_v6 else 8
        words = [request << 8, 7, length]
        total = sum(words)
        # The kernel fills in the checksum of ICMPv6.
        checksum = 0 if is_v6 else 0xffff ^ ((total & 0xffff) + (total >> 16))
        return struct.pack('!HHHH', words[0], checksum, *words[1:]) + bytes(length - headers)

    def length(self, data, start):
        kind, _, _, number, length = struct.unpack('!BBHHH', data[start:start + 8])
        return length if number == 7 and kind in (0, 129, 8, 128) else None

class Datagrams(Probe):
    start = 0

    def packet(self, length):
        return struct.pack('!H', length) + bytes(length - headers - 2)

    def length(self, data, start):
        return struct.unpack('!H', data[:2])[0]

Echo(socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if is_v6 else socket.IPPROTO_ICMP, 0).run()
Datagrams(socket.SOCK_DGRAM, 0, 7).run()
";

#[test]
fn a_packet_of_any_length_arrives_or_its_sender_is_told() {
    require!("ping", "python3");
    only_with_tc!();
    // The second tunnel is over IPv6, for which a link of 1280 bytes is too small.
    let over_v6 = Some("172.18.");
    for (mtu, unlisted) in
        [1280, 1450, 1500, 9000].map(|mtu| (mtu, None)).into_iter().chain([(1450, over_v6), (1500, over_v6)])
    {
        let mut cluster = Cluster::new(mtu, "");
        cluster.labs.iter_mut().for_each(|lab| lab.unlisted = unlisted);
        cluster.tell_nodes();
        cluster.labs.iter_mut().for_each(|lab| lab.start(""));
        let [one, two, three] = &cluster.labs;
        let mut servers = [one, three].map(|lab| Dialogue::start(&lab.pods[0].netns, ANSWER, ""));
        servers.iter_mut().for_each(|server| drop(server.hear()));
        // Over the route to node 3 and the tunnel to node 1.
        let ways = [three, one].into_iter().flat_map(|to| {
            let from = [&two.pods[0].netns, &two.node];
            from.into_iter().flat_map(move |from| [&to.pods[0].v4, &to.pods[0].v6].map(|address| (from, address)))
        });
        // Nobody believes an address that the Node object does not list.
        let is_believed =
            |from: &Netns, to: &str| unlisted.is_none() || from.name() != two.node.name() || to.contains(':');
        let probes: Vec<_> = ways
            .filter(|(from, address)| is_believed(from, address))
            .map(|(from, address)| {
                eventually("the first packet arrives", || pings(from, address));
                let probe = Dialogue::start(from, EVERY_LENGTH, &format!("{address} {}", mtu + 100));
                (from.name(), address, probe)
            })
            .collect();
        for (from, address, mut probe) in probes {
            for kind in ["echo requests", "datagrams"] {
                let said = probe.hear();
                let (answers, lost) = said.split_once(' ').unwrap_or((&said, ""));
                assert_eq!(
                    lost, "",
                    "MTU {mtu}, unlisted {unlisted:?}, {kind} from {from} to {address}: {answers} answers"
                );
                // All that fit the tunnel with the longest headers.
                let least = mtu - 70 - 1000;
                assert!(answers.parse::<u32>().is_ok_and(|answers| answers > least), "{kind}: {answers} answers");
            }
        }
        cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
    }
}

/// Returns the MTU of an interface in bytes.
fn mtu(netns: &Netns, interface: &str) -> u32 {
    netns.exec(&format!("cat /sys/class/net/{interface}/mtu")).trim().parse().unwrap()
}

/// Adds a pod to the state and, by the CNI plugin, to the node. Returns it with the MTUs in bytes of its interface's ends: in the pod, and at the node.
fn add_pod(lab: &mut Lab, runtime: &Runtime, name: &str) -> (Sandbox, [u32; 2]) {
    lab.more_state.push_str(&format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{nodeName: {}, containers: []}}\nstatus: {{phase: Pending}}\n",
        lab.node_name()
    ));
    lab.write_state("");
    let mut pod = Sandbox::new(name);
    runtime.add(&mut pod);
    let mtus = [mtu(&pod.netns, "eth0"), mtu(&lab.node, &pod.node_end())];
    (pod, mtus)
}

/// Whether one ping with packets of this length in bytes is answered within a second.
fn pings_with(from: &Netns, to: &str, length: usize) -> bool {
    from.output(&format!("ping -n -c 1 -W 1 -M do -s {} {to}", length - 28)).status.success()
}

#[test]
fn new_pods_get_the_mtu_that_reaches_every_node_and_older_ones_are_told_when_it_shrinks() {
    require!("ping");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "");
    for lab in &mut cluster.labs {
        lab.more_ports = lab.more_ports.replace("{mtu: 1500}", "{}");
        lab.start("");
    }
    let far = cluster.labs[0].get("p1").v4.clone();
    let two = &mut cluster.labs[1];
    let mut runtime = Runtime::new(&two.node, &two.path(""), &two.path("admin.sock"));
    runtime.plugins[0]["ipam"]["ranges"] = serde_json::json!([[{"subnet": "10.244.2.128/25"}]]);
    // Node 1 is behind the tunnel, which takes 70 bytes over IPv6.
    let (old, mtus) = add_pod(two, &runtime, "old");
    assert_eq!((mtus, mtu(&two.node, "bh-node"), mtu(&two.node, "bh-host")), ([1430; 2], 1500, 1500));
    eventually("a packet as long as the MTU arrives", || pings_with(&old.netns, &far, 1430));

    two.node.ip("link set card mtu 1400");
    eventually_within(30, "the tunnel has followed", || mtu(&two.node, "bh-vxlan") == 1330);
    eventually("the host port has followed", || mtu(&two.node, "bh-node") == 1400);
    let (new, mtus) = add_pod(two, &runtime, "new");
    assert_eq!(mtus, [1330; 2]);
    eventually("a packet as long as the MTU arrives", || pings_with(&new.netns, &far, 1330));
    // The older pod keeps its interface. Its first long packet is answered with the MTU, and the next ones are shorter.
    for (size, told) in [(1430, 1400), (1400, 1330)] {
        let long = old.netns.output(&format!("ping -n -c 1 -W 1 -M do -s {} {far}", size - 28));
        let said = String::from_utf8_lossy(&[long.stdout, long.stderr].concat()).into_owned();
        assert!(said.contains(&format!("mtu = {told}")), "first by the host port, then by the tunnel: {said}");
    }
    assert!(old.netns.ip(&format!("route get {far}")).contains("mtu 1330"));
    // A configured MTU wins.
    runtime.plugins[0]["mtu"] = 1300.into();
    assert_eq!(add_pod(two, &runtime, "configured").1, [1300; 2]);
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}
