//! The same traffic with different settings: generic XDP, several workers, several queues, spinning workers.

use crate::lab::netns::{Netns, eventually, two_cores};
use crate::lab::{Lab, Options, is_tc, policy};
use crate::require;
use serde_json::Value;

/// Runs bulk traffic in both directions and pings between a client and a server, and a stranger that policy denies. Returns the summary.
fn story(options: Options, config: &str) -> Value {
    let mut lab = Lab::with(options);
    for name in ["client", "stranger", "server"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.more_config = format!("{config}\n");
    let spec = "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], \
        ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}";
    lab.start(&policy("server", spec));
    let (v4, v6) = (lab.get("server").v4.clone(), lab.get("server").v6.clone());
    for address in [&v4, &v6] {
        // The neighbours of generic XDP may be resolved only after a first packet.
        eventually("the server is reached", || lab.pings("client", address));
        assert!(!lab.pings("stranger", address), "{address}");
        // Twenty-four connections, whose packets spread over queues and workers.
        for words in ["-P 8", "-P 4 -R"] {
            let server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
            let line = format!("iperf3 -J -c {address} -t 1 {words}");
            let report: Value = serde_json::from_str(&lab.get("client").netns.exec(&line)).unwrap();
            assert!(report["end"]["sum_received"]["bytes"].as_u64() > Some(100_000), "{words}: {report:#}");
            server.wait();
        }
    }
    let summary = lab.stop();
    assert!(summary["dropped"]["policy_denied"].as_u64() >= Some(2), "{summary:#}");
    summary
}

#[test]
fn generic_mode_forwards_like_the_drivers() {
    require!("iperf3", "ping", "ss");
    story(Options::default(), "xdp_mode: skb");
}

#[test]
fn workers_share_the_ports_and_find_each_others_sessions() {
    require!("iperf3", "ping", "ss");
    let Some(cores) = two_cores() else { return };
    // The third port belongs to the first worker again, so packets pass between workers in both directions.
    let summary = story(Options::default(), &format!("workers: {{cores: {cores:?}}}"));
    let workers = summary["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    let received = |worker: &Value| worker["received"].as_u64().unwrap();
    if is_tc() {
        // The trunk steers each flow to one worker, and a pair of pods always to the same worker.
        assert!(workers.iter().map(received).sum::<u64>() > 200, "{summary:#}");
    } else {
        assert!(workers.iter().all(|worker| received(worker) > 100), "{summary:#}");
    }
}

#[test]
fn every_queue_of_an_interface_is_served() {
    require!("iperf3", "ping", "ss");
    let Some(cores) = two_cores() else { return };
    let config = format!("workers: {{cores: {cores:?}, poll: spin}}");
    let summary = story(Options { queues: 2, ..Options::default() }, &config);
    assert_eq!(summary["port_changes"]["opened"], 3, "{summary:#}");
}

#[test]
fn a_changed_number_of_queues_opens_the_port_anew_and_the_kernel_takes_none_away_that_is_in_use() {
    require!("ping");
    only_with_xdp!();
    let mut lab = Lab::with(Options { queues: 2, ..Options::default() });
    for name in ["a", "b"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    let ethtool = |netns: &Netns, line: &str| netns.output(&format!("ethtool -L {line}")).status.success();
    let (a, b) = (&lab.get("a").netns, lab.get("b").v4.clone());
    assert!(ethtool(a, "eth0 rx 1 tx 1") && ethtool(&lab.node, "p2 rx 1 tx 1"));
    lab.start("");
    let a = &lab.get("a").netns;
    assert!(lab.log().contains("port default/a (p2) is open: interface") && lab.log().contains("1 queue,"));
    assert!(!ethtool(a, "eth0 tx 2"), "the pod cannot send on a queue that the node's end does not have");
    assert!(ethtool(&lab.node, "p2 rx 2"));
    eventually("the change is seen", || {
        lab.count("2 queues to receive and 1 to transmit now, instead of 1 and 1") == 1
    });
    // Packets sent on the second queue would be lost, so the vswitch reports the remedy and does not open the port.
    eventually("the remedy is logged", || lab.count("help: ethtool -L p2 tx 2") == 1);
    assert!(ethtool(&lab.node, "p2 tx 2"));
    eventually("the port is open again", || lab.count("port default/a (p2) is open") == 2);
    assert!(ethtool(a, "eth0 tx 2"));
    // The kernel sets the link down and up, which its routing notices slightly later.
    eventually("the pod is reached again", || lab.pings("a", &b));
    assert!(ethtool(a, "eth0 tx 1") && !ethtool(&lab.node, "p2 rx 1 tx 1"), "its second queue has a socket");
    eventually("the pod is reached again", || lab.pings("a", &b));
    let summary = lab.stop();
    assert_eq!((&summary["port_changes"]["opened"], &summary["port_changes"]["removed"]), (&3.into(), &1.into()));
}

#[test]
fn a_larger_mtu_is_taken_over_while_the_port_is_open() {
    require!("ping");
    let mut lab = Lab::new();
    for name in ["a", "b"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.start("");
    let b = lab.get("b").v4.clone();
    for (pod, interface) in [("a", "p2"), ("b", "p3")] {
        lab.node.ip(&format!("link set {interface} mtu 9000"));
        lab.get(pod).netns.ip("link set eth0 mtu 9000");
        eventually("the change is logged", || {
            lab.count(&format!("({interface}): the MTU of its interface is now 9000")) == 1
        });
    }
    let ping = format!("ping -n -c 1 -W 1 -M do -s 8000 {b}");
    eventually("a long packet passes", || lab.get("a").netns.output(&ping).status.success());
    assert_eq!(lab.stop()["port_changes"]["opened"], 2, "nothing was closed");
}
