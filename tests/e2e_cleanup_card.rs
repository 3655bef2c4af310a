//! `bulkhead cleanup` leaves a node as it was before the vswitch started, and what the node's kernel does at its network card goes on throughout: see
//! [`e2e_remote_nodes`](crate::e2e_remote_nodes) for the nodes.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::e2e_remote_nodes::Cluster;
use crate::e2e_services::{Endpoint, ask, serve_name, service};
use crate::lab::lasting::{PATIENCE, answers};
use crate::lab::netns::{Netns, eventually_within, run};
use crate::lab::{Lab, has_tcx, veth};
use crate::require;
use bulkhead_dataplane::io::{in_namespace, tc_programs};

const NODE_PORT: u16 = 30_001;
/// Addresses of the world, which the router has, of IPv4 and IPv6.
const WORLD: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];

/// BPF file systems for the nodes' pins. Dropping this unmounts them.
struct Mounts(Vec<PathBuf>);

impl Mounts {
    fn of(labs: &mut [Lab]) -> Self {
        let mount = |lab: &mut Lab| {
            let path = lab.path("bpf");
            std::fs::create_dir(&path).unwrap();
            run("mount", &["-t", "bpf", "bpf", path.to_str().unwrap()]);
            lab.more_config.push_str(&format!("pins: {}\n", path.join("bulkhead").display()));
            path
        };
        Self(labs.iter_mut().map(mount).collect())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(path).output();
        }
    }
}

/// Returns the names of the programs at tc hooks of a node's interface. `tc` does not list those of links.
fn programs(node: &Netns, device: &str) -> Vec<String> {
    let index = node.shell(&format!("cat /sys/class/net/{device}/ifindex")).trim().parse().unwrap();
    let programs = in_namespace(&Path::new("/run/netns").join(node.name()), || tc_programs(index)).unwrap();
    programs.unwrap().into_iter().map(|program| program.name).collect()
}

/// Everything that the vswitch could change in a node's kernel, as text.
fn snapshot(node: &Netns) -> String {
    let text = node.shell(
        // Namespaces of other tests come and go meanwhile, of which `ip` complains.
        "show() { echo \"== $*\"; \"$@\" 2>&1 | grep -v 'Peer netns reference is invalid'; }
        show tc qdisc show
        for device in $(ls /sys/class/net); do
            show tc filter show dev $device ingress
            show tc filter show dev $device egress
            show ethtool -k $device
        done
        show nft list ruleset
        for family in -4 -6; do
            show ip $family rule
            show ip $family route show table all
            show ip $family nexthop
        done
        show ip -d -o link
        show ip addr
        # Counters of connections and of routes are none of the settings.
        grep -r . /proc/sys/net 2>/dev/null | grep -v nf_conntrack_count | sort",
    );
    let devices = node.shell("ls /sys/class/net");
    devices.lines().fold(text, |text, device| format!("{text}\n{device} has programs {:?}", programs(node, device)))
}

/// The lines that only one of the texts has, with `-` before those of `before` and `+` before those of `after`.
fn difference(before: &str, after: &str) -> Vec<String> {
    let [old, new]: [BTreeSet<&str>; 2] = [before, after].map(|text| text.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}"));
    gone.chain(new.difference(&old).map(|line| format!("+ {line}"))).collect()
}

/// Adds what an administrator has at a node: nftables rules, routing rules and routes, settings, and, at the second and the third node, a queueing
/// discipline for filters with a filter or without.
fn administer(lab: &Lab, at: usize) {
    let node = &lab.node;
    let rules = "table inet admin {
        chain in { type filter hook input priority 0; policy accept; tcp dport 23 drop; }
        chain out { type nat hook postrouting priority srcnat; oifname \"nowhere\" masquerade; }\n}\n";
    std::fs::write(lab.path("admin.nft"), rules).unwrap();
    node.exec(&format!("nft -f {}", lab.path("admin.nft").display()));
    for (family, from, to) in [("-4", "198.51.100.0/24", "192.0.2.0/24"), ("-6", "2001:db8:5::/64", "2001:db8:6::/64")]
    {
        node.ip(&format!("{family} rule add from {from} lookup 200"));
        node.ip(&format!("{family} route add unreachable {to} table 200"));
        node.ip(&format!("{family} route add {to} dev card"));
    }
    node.sysctl("net.ipv4.conf.card.rp_filter", "2");
    if at > 0 {
        node.exec("tc qdisc add dev card clsact");
    }
    if at == 1 {
        node.exec("tc filter add dev card ingress pref 10 protocol ip u32 match ip dport 9 0xffff flowid 1:1");
    }
}

/// Runs `bulkhead cleanup` at a node.
fn clean_up(lab: &Lab) {
    let config = lab.path("config.yaml");
    let words = ["cleanup", "--config", config.to_str().unwrap()];
    let output = lab.node.command(env!("CARGO_BIN_EXE_bulkhead"), &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Waits until pods reach each other over route and tunnel, and the world, and until the router reaches the node ports.
fn carry(cluster: &Cluster) {
    eventually_within(20, "all pods and nodes reach each other", || cluster.broken().is_empty());
    for lab in &cluster.labs {
        for (at, node) in [lab.node_v4(), lab.node_v6()].iter().enumerate() {
            let pod = &lab.pods[0].netns;
            eventually_within(10, "a pod reaches the world", || ask(pod, WORLD[at], 8080).is_some());
            eventually_within(10, "a node port answers", || ask(&cluster.router, node, NODE_PORT).is_some());
        }
    }
}

#[test]
fn cleanup_leaves_nodes_as_they_were_and_connections_of_the_nodes_themselves_never_break() {
    require!("mount", "socat", "ss", "nft", "tc", "ping");
    only_with_tc!();
    let mut cluster = Cluster::new(1500, "masquerade: true\n");
    let mounts = Mounts::of(&mut cluster.labs);
    for (address, length) in WORLD.into_iter().zip([32, 128]) {
        cluster.router.ip(&format!("addr add {address}/{length} dev lo"));
    }
    cluster.labs.iter().enumerate().for_each(|(at, lab)| administer(lab, at));
    // Without links, the vswitch makes a queueing discipline at the card, and at the third node it finds one.
    for at in [0, 2] {
        cluster.labs[at].more_config.push_str("tcx: false\n");
    }
    let endpoints = cluster.labs.each_ref().map(|lab| {
        let endpoint = Endpoint::of(&lab.pods[0], 8080);
        Endpoint { node: lab.node_name(), ..endpoint }
    });
    let port = format!("{{port: 80, targetPort: 8080, nodePort: {NODE_PORT}}}");
    let state = service("all", ["10.96.1.1", "fd96::1:1"], "type: NodePort,", &port, &endpoints);
    let _servers = cluster.labs.each_ref().map(|lab| serve_name(&lab.pods[0].netns, &lab.pods[0].name, 8080));
    let _world = serve_name(&cluster.router, "world", 8080);
    let _ssh = cluster.labs.each_ref().map(|lab| lab.node.serve("socat TCP4-LISTEN:22,fork,reuseaddr EXEC:cat", 22));
    let router = Path::new("/run/netns").join(cluster.router.name());
    let mut sessions = cluster.labs.each_ref().map(|lab| {
        let address = SocketAddr::new(lab.node_v4().parse().unwrap(), 22);
        let stream = in_namespace(&router, || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    });
    let mut go_on = |when: &str| {
        let all = sessions.iter_mut().all(|stream| (0..20).all(|_| answers(stream)));
        assert!(all, "a connection to a server of the node breaks {when}");
    };
    go_on("at first");
    let before = cluster.labs.each_ref().map(|lab| snapshot(&lab.node));
    cluster.labs.iter_mut().for_each(|lab| lab.start(&state));
    go_on("at the start");
    carry(&cluster);
    go_on("in operation");
    cluster.labs.iter_mut().for_each(Lab::kill);
    go_on("after a kill");
    cluster.labs.iter_mut().for_each(|lab| lab.start(&state));
    go_on("after a restart");
    carry(&cluster);
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
    go_on("after the end");
    cluster.labs.iter().for_each(clean_up);
    go_on("after the cleanup");
    for (lab, before) in cluster.labs.iter().zip(&before) {
        let after = snapshot(&lab.node);
        let different = difference(before, &after);
        assert!(*before == after, "{}: {different:#?}", lab.node_name());
    }
    drop(mounts);
}

/// Moves addresses of networks that a device shares with its neighbors to another device.
fn move_addresses(netns: &Netns, [v4, v6]: [&str; 2], from: &str, to: &str) {
    netns.ip(&format!("addr del {v4}/16 dev {from}"));
    netns.ip(&format!("addr del {v6}/64 dev {from}"));
    netns.sysctl(&format!("net.ipv6.conf.{to}.disable_ipv6"), "0");
    netns.ip(&format!("addr add {v4}/16 dev {to}"));
    netns.ip(&format!("addr add {v6}/64 dev {to} nodad"));
}

#[test]
fn cleanup_leaves_no_trace_at_a_card_that_is_no_longer_used() {
    require!("mount", "socat", "ss", "nft", "tc");
    only_with_tc!();
    let mut lab = Lab::new();
    lab.pod("web", "{app: web}");
    lab.outside_of_kernel();
    lab.more_config.push_str("masquerade: true\n");
    let mounts = Mounts::of(std::slice::from_mut(&mut lab));
    let world = serve_name(lab.outside.as_ref().unwrap(), "world", 8080);
    let outside = lab.outside.as_ref().unwrap();
    outside.ip("link add name both type bridge forward_delay 0");
    veth(outside, "eth2", &lab.node, "more", 1500);
    for device in ["eth0", "eth2"] {
        outside.ip(&format!("link set {device} master both"));
    }
    move_addresses(outside, ["172.18.0.100", "fd00:18::100"], "eth0", "both");
    outside.ip("link set both up");
    let node = ["172.18.0.11", "fd00:18::11"];
    // So that this card also has what the kernel adds to each with IPv6.
    move_addresses(&lab.node, node, "card", "more");
    move_addresses(&lab.node, node, "more", "card");
    let is_up = || !lab.node.ip("link show more").contains("NO-CARRIER");
    eventually_within(10, "the other card is up", is_up);
    let before = snapshot(&lab.node);
    lab.start("");
    let is_filter = lab.node.exec("tc filter show dev card ingress").contains("bulkhead_nodes");
    assert!(is_filter != has_tcx(), "a link at the card costs less than a filter");
    let reaches = |lab: &Lab| ask(&lab.get("web").netns, "172.18.0.100", 8080).is_some();
    eventually_within(10, "the pod reaches the world", || reaches(&lab));
    move_addresses(&lab.node, node, "card", "more");
    let has_program = |device: &str| programs(&lab.node, device).iter().any(|name| name == "bulkhead_nodes");
    eventually_within(10, "the programs follow", || has_program("more") && !has_program("card"));
    eventually_within(10, "the pod reaches the world over the other card", || reaches(&lab));
    lab.stop();
    move_addresses(&lab.node, node, "more", "card");
    clean_up(&lab);
    let after = snapshot(&lab.node);
    let different = difference(&before, &after);
    assert!(before == after, "{different:#?}");
    drop((world, mounts));
}
