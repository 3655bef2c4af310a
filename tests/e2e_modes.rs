//! The same traffic with every way to set the vswitch up: generic mode, several workers, several queues, spinning.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support {
    pub mod lab;
    pub mod netns;
}

use serde_json::Value;
use support::lab::{Lab, Options, policy};

/// Two clients and a server that only one of them may use; bulk both ways, ping, and the one that may not.
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
        assert!(lab.pings("client", address) && !lab.pings("stranger", address), "{address}");
        // Twenty-four connections: their packets are spread over queues and workers.
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
    story(Options::default(), "mode: skb");
}

#[test]
fn workers_share_the_ports_and_find_each_others_sessions() {
    require!("iperf3", "ping", "ss");
    // The third port is the first worker's again, so that packets change hands in both directions.
    let summary = story(Options::default(), "workers: {cores: [0, 1]}");
    let workers = summary["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    assert!(workers.iter().all(|worker| worker["received"].as_u64() > Some(100)), "{summary:#}");
}

#[test]
fn every_queue_of_an_interface_is_served() {
    require!("iperf3", "ping", "ss");
    let summary = story(Options { queues: 2, ..Options::default() }, "workers: {cores: [0, 1], poll: spin}");
    assert_eq!(summary["port_changes"]["opened"], 3, "{summary:#}");
}
