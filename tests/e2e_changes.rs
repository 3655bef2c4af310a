//! What a change of policy does to traffic under way.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support {
    pub mod lab;
    pub mod netns;
}

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use support::lab::{Lab, policy, tcpdump_read};
use support::netns::{eventually, seconds};

/// The server takes what comes from pods with this label.
fn from(app: &str) -> String {
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], \
         ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]}}"
    );
    policy("server", &spec)
}

fn unrelated(number: u32) -> String {
    policy(&format!("unrelated-{number}"), "{podSelector: {matchLabels: {app: none}}, policyTypes: [Ingress, Egress]}")
}

fn pair() -> Lab {
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab
}

#[test]
fn a_flow_that_stays_allowed_loses_nothing_to_changes() {
    require!("iperf3", "ss");
    let mut lab = pair();
    lab.start(&from("client"));
    let server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
    // Far below what is possible, so that nothing but policy could lose a packet.
    let line = format!("iperf3 -J -c {} -b 20M -t {}", lab.get("server").v4, seconds() + 2);
    let flow = lab.get("client").netns.spawn(&line);
    eventually("the flow runs", || lab.node.statistic(&lab.get("client").interface, 1) > 200);
    for number in 0..10 {
        lab.apply(&(from("client") + &unrelated(number)));
    }
    let report: Value = serde_json::from_slice(&flow.wait().stdout).unwrap();
    server.wait();
    let bytes = |side: &str| report["end"][side]["bytes"].as_u64().unwrap();
    // What iperf3 has under way at its end does not count.
    assert!(bytes("sum_sent").abs_diff(bytes("sum_received")) < 1 << 20, "{report:#}");
    let summary = lab.stop();
    let drops: Vec<&String> = summary["dropped"].as_object().unwrap().keys().collect();
    // Pods' multicast (IPv6 reports of groups) goes nowhere.
    assert!(drops.iter().all(|reason| *reason == "multicast"), "{summary:#}");
    assert!(summary["state"]["applied"].as_u64() >= Some(11) && summary["sessions"]["revoked"] == 0, "{summary:#}");
}

/// The promise is 100 ms from the change of the file to the last packet. The margin is for a machine whose few cores run
/// the senders, the receivers and other tests as well; the measured time is printed.
const PROMISE: Duration = Duration::from_millis(100);
const MARGIN: Duration = Duration::from_millis(900);

#[test]
fn a_flow_that_becomes_forbidden_stops_at_once() {
    require!("iperf3", "ss", "tcpdump");
    let mut lab = pair();
    lab.start(&from("client"));
    let capture = lab.path("seen.pcap");
    let line = format!("tcpdump -i eth0 -U -B 16384 -s 100 --immediate-mode -w {} udp", capture.display());
    let dump = lab.get("server").netns.spawn(&line);
    eventually("tcpdump listens", || capture.exists());
    let _server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
    let line = format!("iperf3 -u -b 10M -l 1000 -c {} -t 60", lab.get("server").v4);
    let flow = lab.get("client").netns.spawn(&line);
    eventually("the flow runs", || tcpdump_read(&capture, "-c 100").lines().count() >= 100);

    let changed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    lab.write_state(&from("nobody"));
    eventually("the change is in force", || lab.log().contains("in force"));
    // What came after that would be packets of half a second.
    std::thread::sleep(Duration::from_millis(500));
    drop(flow);
    dump.stop();
    let seen = tcpdump_read(&capture, "-tt");
    let last: f64 = seen.lines().last().unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let after = last - changed.as_secs_f64();
    println!("the last packet came {:.1} ms after the change", after * 1e3);
    assert!(after < (PROMISE + MARGIN).as_secs_f64(), "packets came {after} s after the change");
    let summary = lab.stop();
    assert!(summary["sessions"]["revoked"].as_u64() >= Some(1), "{summary:#}");
    assert!(summary["dropped"]["policy_denied"].as_u64() > Some(10), "{summary:#}");
}

#[test]
fn a_new_flow_is_blocked_from_its_first_packet() {
    require!("nc", "tcpdump", "socat", "ss");
    let mut lab = pair();
    lab.start(&from("client"));
    let _server = lab.get("server").netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    assert!(lab.connects("client", &lab.get("server").v4, 80) && lab.connects("client", &lab.get("server").v6, 80));
    lab.apply(&from("nobody"));
    let capture = lab.path("seen.pcap");
    let line = format!("tcpdump -i eth0 -U --immediate-mode -w {} tcp port 80", capture.display());
    let dump = lab.get("server").netns.spawn(&line);
    eventually("tcpdump listens", || capture.exists());
    assert!(!lab.connects("client", &lab.get("server").v4, 80) && !lab.connects("client", &lab.get("server").v6, 80));
    dump.stop();
    // The ends of the connections from before belong to nobody any more, either.
    assert_eq!(tcpdump_read(&capture, ""), "");
    lab.apply(&from("client"));
    assert!(lab.connects("client", &lab.get("server").v4, 80), "allowed again");
    lab.stop();
}

#[test]
fn a_state_that_does_not_load_changes_nothing_and_is_told() {
    require!("ping");
    let mut lab = pair();
    lab.start(&from("client"));
    let server = lab.get("server").v4.clone();
    assert!(lab.pings("client", &server));
    lab.write_state(
        "---\nkind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: x}\nspec: {ingres: []}\n",
    );
    eventually("the fault is told", || lab.log().contains("does not load"));
    assert!(lab.log().contains("state.yaml") && lab.log().contains("help:"), "{}", lab.log());
    assert!(lab.pings("client", &server), "the last good state stays");
    std::fs::write(lab.path("state.yaml"), "").unwrap();
    eventually("so is an empty file", || lab.count("does not load") == 2);
    assert!(lab.pings("client", &server));
    lab.apply(&from("nobody"));
    assert!(!lab.pings("client", &server));
    let summary = lab.stop();
    assert_eq!(summary["state"]["refused"], 2, "{summary:#}");
}
