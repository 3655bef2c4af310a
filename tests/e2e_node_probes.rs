//! Probes between three nodes, two on one link and one behind a router: each way is proven, and each broken one has its cause.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::e2e_remote_nodes::Cluster;
use crate::lab::Lab;
use crate::lab::netns::eventually;
use crate::require;

/// Rounds of probes that a test can wait for.
const QUICK: &str = "probe: {interval: 300ms}\n";

/// Returns the ways that a node reports, with the exit code.
fn ways(lab: &Lab) -> (Option<i32>, Vec<Value>) {
    let (code, text) = lab.ask(&["nodes", "-o", "json"]);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (code, told["ways"].as_array().unwrap().clone())
}

/// Returns the cause of each broken way, as `node family cause`.
fn causes(lab: &Lab) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (_, ways) = ways(lab);
    let broken = ways.iter().filter(|way| way["state"] == "broken");
    broken
        .map(|way| format!("{} {} {}", word(&way["node"]), word(&way["family"]), word(&way["fault"]["cause"])))
        .collect()
}

/// Whether all four ways of each node are proven.
fn are_proven(labs: &[Lab]) -> bool {
    labs.iter().all(|lab| {
        let (code, ways) = ways(lab);
        code == Some(0) && ways.len() == 4 && ways.iter().all(|way| way["state"] == "proven")
    })
}

/// Waits until a node reports these causes.
fn await_causes(lab: &Lab, expected: &[&str]) {
    let end = Instant::now() + Duration::from_secs(20);
    while causes(lab) != expected {
        assert!(Instant::now() < end, "{:#?}\n{}", ways(lab), lab.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, text) = lab.ask(&["nodes"]);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn healthy_ways_are_proven_within_15_seconds_by_default() {
    require!("curl");
    only_with_tc!();
    let begin = Instant::now();
    let mut cluster = Cluster::started("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    let [one, two, _] = &cluster.labs;
    while !are_proven(&cluster.labs) {
        assert!(begin.elapsed() < Duration::from_secs(15), "{:#?}\n{}", cluster.labs.each_ref().map(ways), two.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("proven after {:?}", begin.elapsed());
    let (_, ways) = ways(two);
    let told = |at: usize, name: &str| ways[at][name].to_string().replace('"', "");
    let near = ["node", "family", "way", "to", "interface", "mtu"].map(|name| told(2, name));
    assert_eq!(near, ["node-3", "IPv4", "route", "172.18.0.13", "card", "1500"]);
    let far = ["node", "family", "way", "to", "interface", "mtu"].map(|name| told(1, name));
    assert_eq!(far, ["node-1", "IPv6", "tunnel", "fd00:18::11", "null", "1430"]);
    let (code, text) = one.ask(&["nodes"]);
    assert!(code == Some(0) && text.contains("tunnel to 172.18.0.12") && text.lines().count() == 5, "{text}");
    let (_, status) = one.ask(&["status"]);
    assert!(status.contains("  probed: 4 proven, 0 broken: `bulkhead nodes`"), "{status}");
    let metrics = two.node.exec("curl -s http://127.0.0.1:9965/metrics");
    for line in
        ["bulkhead_remote_node_probed_ways{state=\"proven\"} 4", "bulkhead_remote_node_round_trip_seconds_count"]
    {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
    assert!(!metrics.contains("bulkhead_remote_node_fault{"), "{metrics}");
    for family in ["bulkhead_remote_node_fault", "bulkhead_remote_node_problems"] {
        assert!(metrics.contains(&format!("# TYPE {family} ")), "alerts ask for {family}:\n{metrics}");
    }
    let file = two.path("bundle.tgz").display().to_string();
    let (code, text) = two.ask(&["bundle", "--output", &file]);
    assert_eq!(code, Some(0), "{text}");
    let listed = two.node.exec(&format!("tar -xzOf {file} bulkhead-bundle/nodes.json"));
    assert!(listed.contains("172.18.0.13"), "{listed}");
    cluster.labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

#[test]
fn each_fault_is_named_and_vanishes_after_repair() {
    require!("nft");
    only_with_tc!();
    let mut cluster = Cluster::started(QUICK);
    eventually("all ways are proven", || are_proven(&cluster.labs));
    let Cluster { router, labs } = &mut cluster;

    // While the nodes started one after another, ways may have been broken.
    const LINES: [&str; 2] = [
        "node node-3, IPv4 by the tunnel to 172.18.0.13: filtered port",
        "node node-3, IPv4 by the tunnel to 172.18.0.13: packets arrive again",
    ];
    let before = LINES.map(|line| labs[0].count(line));

    // A firewall between nodes 1 and 3 drops the tunnel's packets.
    router.exec("nft add table inet broken");
    router.exec("nft add chain inet broken pass { type filter hook forward priority 0 ; }");
    for from in ["ip saddr 172.18.0.11 ip daddr 172.18.0.13", "ip6 saddr fd00:18::11 ip6 daddr fd00:18::13"] {
        router.exec(&format!("nft add rule inet broken pass {from} udp dport 4789 drop"));
    }
    let filtered = |node: &str| ["IPv4", "IPv6"].map(|family| format!("{node} {family} filtered_port"));
    await_causes(&labs[0], &filtered("node-3").each_ref().map(String::as_str));
    await_causes(&labs[2], &filtered("node-1").each_ref().map(String::as_str));
    let (_, text) = labs[0].ask(&["nodes"]);
    assert!(
        text.contains("172.18.0.13 answers at UDP port 4792 but not through the tunnel; open UDP port 4789"),
        "{text}"
    );
    assert_eq!(causes(&labs[1]), [""; 0]);
    router.exec("nft delete table inet broken");
    eventually("all ways are proven again", || are_proven(labs));
    let told = LINES.map(|line| labs[0].count(line));
    assert_eq!(told, before.map(|count| count + 1), "{}", labs[0].log());

    // The router's link to node 1 takes shorter packets, and the router says nothing.
    router.exec("nft add table inet broken");
    router.exec("nft add chain inet broken out { type filter hook output priority 0 ; }");
    router.exec("nft add rule inet broken out icmp type destination-unreachable drop");
    router.exec("nft add rule inet broken out icmpv6 type packet-too-big drop");
    router.ip("link set far mtu 1400");
    let mtu = ["node-2 IPv4 mtu", "node-2 IPv6 mtu", "node-3 IPv4 mtu", "node-3 IPv6 mtu"];
    await_causes(&labs[0], &mtu);
    // 1400 bytes and a VLAN tag, less the outer headers of the tunnel.
    let found = |text: &str| text.contains("MTU: packets longer than 13") && text.contains("bytes do not arrive");
    eventually("the length is found", || found(&labs[0].ask(&["nodes"]).1));
    let (_, status) = labs[0].ask(&["status"]);
    assert!(status.contains("0 proven, 4 broken") && status.contains("node-2 (IPv4): MTU: packets "), "{status}");
    router.ip("link set far mtu 1500");
    router.exec("nft delete table inet broken");
    eventually("all ways are proven again", || are_proven(labs));

    // A vswitch that does not run. The kernel of its node refuses.
    labs[2].stop();
    await_causes(&labs[1], &["node-3 IPv4 refused", "node-3 IPv6 refused"]);
    await_causes(&labs[0], &["node-3 IPv4 refused", "node-3 IPv6 refused"]);
    labs[2].start("");
    eventually("all ways are proven again", || are_proven(labs));

    // Node 2 believes that node 3 has node 1's addresses.
    let three = labs[2].objects();
    labs[1].more_state = three.replace("172.18.0.13", "172.18.0.11").replace("fd00:18::13", "fd00:18::11");
    labs[1].apply("");
    await_causes(&labs[1], &["node-3 IPv4 wrong_address", "node-3 IPv6 wrong_address"]);
    let (_, text) = labs[1].ask(&["nodes"]);
    assert!(text.contains("wrong address: node node-1 answers at 172.18.0.11; correct the Node objects"), "{text}");

    // And that it has an address to which no route leads.
    labs[1].node.ip("route add unreachable 203.0.113.0/24");
    labs[1].node.ip("-6 route add unreachable fd00:99::/64");
    labs[1].more_state = three.replace("172.18.0.13", "203.0.113.3").replace("fd00:18::13", "fd00:99::3");
    labs[1].apply("");
    await_causes(&labs[1], &["node-3 IPv4 no_route", "node-3 IPv6 no_route"]);
    labs.iter_mut().for_each(|lab| drop(lab.stop()));
}

#[test]
fn a_check_names_the_way_to_each_node() {
    only_with_tc!();
    let mut cluster = Cluster::started("");
    cluster.labs[1].stop();
    let two = &cluster.labs[1];
    let (code, text) = two.try_run(two.path("config.yaml").to_str().unwrap(), &["--check"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "node-1: 10.244.1.0/24 by the tunnel to 172.18.0.11 (MTU 1430)",
        "node-3: 10.244.3.0/24 by a route via 172.18.0.13 dev card (MTU 1500)",
        "2 by routes, 2 through the tunnel",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    cluster.labs.iter_mut().filter(|lab| lab.node_name() != "node-2").for_each(|lab| drop(lab.stop()));
}
