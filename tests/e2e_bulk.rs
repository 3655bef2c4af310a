//! Bulk TCP, whose packets are larger than the MTU, during changes of policy and interfaces.

use crate::require;
use std::cell::Cell;

use crate::lab::bulk::Bulk;
use crate::lab::netns::{Netns, eventually};
use crate::lab::{Dump, Lab, is_tc, policy};

/// A policy: the server accepts packets from pods with this label and from the marker.
fn from(app: &str) -> String {
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], ingress: \
         [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}, {{podSelector: {{matchLabels: {{app: marker}}}}}}]}}]}}"
    );
    policy("server", &spec)
}

/// Sends an echo request of this size to the server. It appears in the server's capture, and the worker judges it after all earlier
/// packets.
fn mark(lab: &Lab, size: usize) {
    lab.get("marker").netns.exec(&format!("ping -n -c 1 -W 5 -s {size} {}", lab.get("server").v4));
}

/// A packet captured at the server's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Mark(usize),
    /// Data of the client's connection with this source port, and its length in bytes.
    Data(u16, usize),
}

fn seen(line: &str) -> Option<Seen> {
    let length = || line.rsplit_once("length ")?.1.split([' ', ':']).next()?.parse::<usize>().ok();
    if line.contains("ICMP echo request") {
        return Some(Seen::Mark(length()? - 8));
    }
    // The format is `IP 10.244.1.2.40000 > 10.244.1.3.5001: Flags ...`
    let port = line.split_once(" > ")?.0.rsplit_once('.')?.1.parse().ok()?;
    length().filter(|&length| length > 0).map(|length| Seen::Data(port, length))
}

/// Packets that policy has denied so far.
fn denied(lab: &mut Lab) -> u64 {
    lab.summary()["dropped"]["policy_denied"].as_u64().unwrap_or(0)
}

#[test]
fn no_packet_of_the_old_verdict_arrives_after_a_change_is_in_force_and_none_is_dropped_by_it() {
    require!("ping", "tcpdump");
    const ROUNDS: usize = 3;
    let mut lab = Lab::new();
    for name in ["client", "server", "marker"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.start(&from("client"));
    let (client, server) = (lab.get("client"), lab.get("server"));
    let dump = Dump::start(&lab, "server", "-Q in -B 65536 -s 96 tcp or icmp[icmptype]==icmp-echo");
    let flows = [(5001, false), (5002, true)].map(|(port, is_v6)| Bulk::start(client, server, port, is_v6));
    let flow = |what: &str| flows.iter().for_each(|bulk| bulk.flows(what));
    flow("both flow");
    let mut refused = 0;
    for round in 0..ROUNDS {
        mark(&lab, 100 + round);
        assert_eq!(denied(&mut lab), refused, "nothing is denied while the flows are allowed");
        lab.apply(&from("nobody"));
        mark(&lab, 200 + round);
        let before: Vec<u64> = flows.iter().map(Bulk::received).collect();
        // Long enough for retransmissions, and short enough that TCP recovers soon.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let after: Vec<u64> = flows.iter().map(Bulk::received).collect();
        mark(&lab, 300 + round);
        lab.apply(&from("client"));
        mark(&lab, 400 + round);
        assert!(denied(&mut lab) > refused, "the flows were judged while they were denied");
        refused = denied(&mut lab);
        println!("while it was denied: {before:?} and then {after:?} bytes");
        flow("both go on");
    }
    mark(&lab, 500);
    assert_eq!(denied(&mut lab), refused);
    let ports = [flows[0].port, flows[1].port];
    flows.into_iter().for_each(Bulk::end);
    let text = dump.seen("");
    let seen: Vec<Seen> = text.lines().filter_map(seen).collect();
    let place = |size| seen.iter().position(|seen| *seen == Seen::Mark(size)).unwrap();
    let data = |from, to| seen[place(from)..place(to)].iter().filter(|seen| matches!(seen, Seen::Data(..))).count();
    for round in 0..ROUNDS {
        assert_eq!(data(200 + round, 300 + round), 0, "packets arrive after the change {round} is in force");
        let after = if round + 1 < ROUNDS { 101 + round } else { 500 };
        assert!(data(400 + round, after) > 10, "it goes on after change {round}");
    }
    for port in ports {
        let largest = seen
            .iter()
            .filter_map(|seen| if let Seen::Data(of, len) = seen { (*of == port).then_some(*len) } else { None })
            .max();
        println!("the largest packet of {port}: {largest:?}");
        assert!(!is_tc() || largest > Some(20_000), "it is GSO: {largest:?}");
    }
    lab.stop();
}

#[test]
fn changes_that_leave_bulk_connections_allowed_leave_them_in_the_kernel() {
    require!("ping");
    only_with_tc!();
    const CHANGES: usize = 10;
    let mut lab = Lab::new();
    for name in ["client", "server", "marker"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.start(&from("client"));
    let (client, server) = (lab.get("client"), lab.get("server"));
    let flows =
        [(5001, false), (5002, true), (5003, false)].map(|(port, is_v6)| Bulk::start(client, server, port, is_v6));
    flows.iter().for_each(|bulk| bulk.flows("it flows"));
    // Longer than a flow's first lease, after which a worker has renewed it.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let counts = |lab: &mut Lab| {
        let summary = lab.summary();
        ["/workers/0/received", "/flow_cache/forwarded"].map(|at| summary.pointer(at).unwrap().as_u64().unwrap())
    };
    let other = |number: usize| {
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], ingress: \
             [{{from: [{{ipBlock: {{cidr: 192.0.2.{number}/32}}}}]}}]}}"
        );
        policy("other", &spec)
    };
    let before = counts(&mut lab);
    for number in 0..CHANGES {
        lab.apply(&(from("client") + &other(number)));
    }
    let after = counts(&mut lab);
    flows.iter().for_each(|bulk| bulk.flows("it goes on"));
    let [by_worker, by_kernel] = [0, 1].map(|at| after[at] - before[at]);
    println!("{CHANGES} changes: {by_worker} packets to the worker, {by_kernel} forwarded by the kernel");
    assert!(by_kernel > 1_000 && by_worker < by_kernel / 10, "{by_worker} of {by_kernel}");
    let summary = lab.stop();
    assert_eq!(summary["sessions"]["revoked"], 0, "{summary:#}");
}

/// Renames an interface. Older kernels require that it is down.
fn rename(lab: &Lab, from: &str, to: &str) {
    lab.node.ip(&format!("link set {from} down"));
    lab.node.ip(&format!("link set {from} name {to}"));
    lab.node.ip(&format!("link set {to} up"));
}

#[test]
fn an_interface_that_is_renamed_moved_or_deleted_under_bulk_traffic_takes_nothing_from_the_others() {
    require!("ping");
    let mut lab = Lab::new();
    for name in ["client", "server", "other", "marker"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    // The policy selects only the server, so all other pods accept everything.
    lab.start(&from("client"));
    let interface = lab.get("client").interface.clone();
    let opened = |lab: &Lab| lab.count(&format!("port default/client ({interface}) is open"));
    let removed = |lab: &Lab| lab.count(&format!("port default/client ({interface}) was removed"));
    // A port's sessions end with it, so each step uses a new connection.
    let ports = Cell::new(5011);
    let flow = |lab: &Lab| {
        let bulk = Bulk::start(lab.get("client"), lab.get("server"), ports.replace(ports.get() + 1), false);
        bulk.flows("it flows");
        bulk
    };
    let others = Bulk::start(lab.get("marker"), lab.get("other"), 5010, true);
    let elsewhere = Netns::new("elsewhere");
    for round in 1..=2 {
        let under_way = flow(&lab);
        rename(&lab, &interface, "renamed");
        eventually("the port is removed", || removed(&lab) == 2 * round - 1);
        others.flows("the others go on while it has another name");
        rename(&lab, "renamed", &interface);
        eventually("the port is open again", || opened(&lab) == 2 * round);
        drop(under_way);
        let under_way = flow(&lab);
        lab.node.ip(&format!("link set {interface} netns {}", elsewhere.name()));
        eventually("the port is removed", || removed(&lab) == 2 * round);
        let mut before = 0;
        // The server may still read from its socket's buffer.
        eventually("it stands still", || std::mem::replace(&mut before, under_way.received()) == under_way.received());
        elsewhere.ip(&format!("link set {interface} up"));
        others.flows("the others go on while it is elsewhere");
        assert_eq!(under_way.received(), before, "nothing leads back from there");
        elsewhere.ip(&format!("link set {interface} netns {}", lab.node.name()));
        lab.node.ip(&format!("link set {interface} up"));
        eventually("the port is open again", || opened(&lab) == 2 * round + 1);
    }
    let under_way = flow(&lab);
    lab.unplug("client");
    eventually("the port is removed", || removed(&lab) == 5);
    others.flows("the others go on while it is gone");
    drop(under_way);
    lab.plug("client");
    eventually("the port is open again", || opened(&lab) == 6);
    flow(&lab).end();
    others.end();
    assert!(!lab.log().contains("host's stack"), "{}", lab.log());
    lab.stop();
}

/// Regression: at the end of each lease, all packets of a flow went to the worker until its latch opened. For a bulk connection these
/// exceeded the port's limit. Eight connections lost thousands of segments, and once stalled for half a second.
#[test]
fn bulk_connections_are_renewed_without_leaving_the_kernel() {
    require!("iperf3", "ss");
    if !is_tc() {
        println!(
            "skipped: XDP programs cannot copy a packet, so flows come back to the worker at the end of each lease"
        );
        return;
    }
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    // The burst is several times the copies of all flows at once: 16 per pod, half of them with up to 45 segments each.
    lab.more_config.push_str("flow_lease: 1s\nslow_path: {packets_per_second: 100000, burst: 2000}\n");
    lab.start(&from("client"));
    // Reno uses all bandwidth and is available to everyone. BBR, a possible default, sends a quarter of that.
    for pod in ["client", "server"] {
        lab.get(pod).netns.exec("sysctl -w net.ipv4.tcp_congestion_control=reno");
    }
    let server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
    let line = format!("iperf3 -J -c {} -P 8 --bidir -t 4", lab.get("server").v4);
    let report = lab.get("client").netns.spawn(&line).wait().stdout;
    server.wait();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let summary = lab.stop();
    let count = |at: &str| summary.pointer(at).and_then(serde_json::Value::as_u64).unwrap();
    let bytes = ["sum_received", "sum_received_bidir_reverse"].map(|sum| report["end"][sum]["bytes"].as_u64().unwrap());
    let segments = bytes.iter().sum::<u64>() / 1448;
    let (to_worker, forwarded) = (count("/workers/0/received"), count("/flow_cache/forwarded"));
    println!(
        "{segments} segments: {forwarded} packets in the kernel, {to_worker} by the worker; {}",
        summary["flow_cache"]
    );
    for pod in ["client", "server"] {
        assert_eq!(count(&format!("/ports/default~1{pod}/limited")), 0, "{summary:#}");
    }
    // Sixteen connections in two directions are added once and then renewed every second.
    assert!(count("/flow_cache/added") >= 4 * 32, "{summary:#}");
    // The worker's packets do not grow with the traffic: each copy has up to 45 segments, for 16 flows with data and five leases. If the
    // worker is late, the program sends up to three copies.
    assert!(to_worker < 16 * 45 * 5 * 3, "{summary:#}");
    assert!(forwarded > segments / 2, "{summary:#}");
}
