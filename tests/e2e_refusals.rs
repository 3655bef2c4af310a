//! `denied: refuse` with common programs: a denied connection fails at once, and machines outside get no answer.

use crate::require;
use std::time::{Duration, Instant};

use crate::lab::netns::Netns;
use crate::lab::{Dump, Lab, policy};

/// The time limit for a refusal: longer than it takes on a busy machine, and shorter than curl's timeout.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A program's exit code, output and duration.
struct Tried {
    code: Option<i32>,
    said: String,
    took: Duration,
}

fn tried(netns: &Netns, line: &str) -> Tried {
    let started = Instant::now();
    let output = netns.output(line);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Tried { code: output.status.code(), said, took: started.elapsed() }
}

/// Checks that curl's connection is refused at once.
fn curl_is_refused(netns: &Netns, words: &str) {
    let Tried { code, said, took } = tried(netns, &format!("curl -g -v --connect-timeout 5 {words}"));
    assert_eq!(code, Some(7), "{words}: {said}");
    assert!(said.contains("refused"), "{words}: {said}");
    assert!(took < AT_ONCE, "{words}: {took:?}");
}

/// Checks that curl gets no answer.
fn curl_times_out(netns: &Netns, words: &str) {
    let Tried { code, said, .. } = tried(netns, &format!("curl -g -s -S --connect-timeout 2 {words}"));
    assert_eq!(code, Some(28), "{words}: {said}");
}

/// A lab with client, server, host port and uplink. The server accepts only `app: friend`; the client may connect only to the server.
fn node() -> (Lab, String) {
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab.outside();
    lab.host();
    let friend = "{podSelector: {matchLabels: {app: friend}}}";
    let server = "{podSelector: {matchLabels: {app: server}}}";
    let ingress = policy(
        "ingress",
        &format!("{{podSelector: {{matchLabels: {{app: server}}}}, ingress: [{{from: [{friend}]}}]}}"),
    );
    let egress = format!(
        "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], egress: [{{to: [{server}]}}]}}"
    );
    (lab, ingress + &policy("egress", &egress))
}

#[test]
fn what_is_denied_to_a_pod_or_to_the_node_is_refused_at_once_and_strangers_hear_nothing() {
    require!("curl", "dig", "nc", "tcpdump");
    let (mut lab, policies) = node();
    lab.more_config = "denied: refuse\n".to_owned();
    lab.start(&policies);
    let (client, outside) = (&lab.get("client").netns, lab.outside.as_ref().unwrap());
    let (v4, v6) = (lab.get("server").v4.clone(), lab.get("server").v6.clone());
    let dump = Dump::start_in(&lab, outside, "tcp or udp or icmp or (icmp6 and ip6[40] < 128)");

    // The server's ingress policy denies, and the sender is a pod.
    curl_is_refused(client, &format!("http://{v4}/"));
    curl_is_refused(client, &format!("http://[{v6}]/"));
    let nc = tried(client, &format!("nc -n -v -z -w 5 {v4} 81"));
    assert!(nc.code != Some(0) && nc.said.contains("refused") && nc.took < AT_ONCE, "{}", nc.said);
    for address in [&v4, &v6] {
        let dig = tried(client, &format!("dig +time=5 +tries=1 @{address} example.com"));
        let told = ["unreachable", "denied", "refused"].iter().any(|word| dig.said.contains(word));
        assert!(told && dig.took < AT_ONCE, "{:?}: {}", dig.took, dig.said);
    }
    let ping = tried(client, &format!("ping -n -c 1 -W 5 {v4}"));
    assert!(ping.said.contains("filtered") && ping.took < AT_ONCE, "{}", ping.said);
    let ping = tried(client, &format!("ping -6 -n -c 1 -W 5 {v6}"));
    assert!(ping.said.contains("prohibited") && ping.took < AT_ONCE, "{}", ping.said);

    // The client's egress policy denies.
    curl_is_refused(client, "http://172.18.0.100/");
    curl_is_refused(client, "http://[fd00:18::100]/");

    // The sender is behind the node: its address is on none of the node's interfaces, whose addresses are always allowed.
    lab.node.ip("route add local 172.17.0.1/32 dev lo");
    curl_is_refused(&lab.node, &format!("--interface 172.17.0.1 http://{v4}/"));

    // Senders outside get no answer: the capture there contains only their own packets.
    curl_times_out(outside, &format!("http://{v4}/"));
    curl_times_out(outside, &format!("http://[{v6}]/"));
    let seen = dump.seen("");
    assert!(seen.contains("172.18.0.100."), "its own: {seen}");
    for line in seen.lines() {
        let is_own = line.contains("IP 172.18.0.100.") || line.contains("IP6 fd00:18::100.");
        assert!(is_own, "something came out of the uplink: {line}");
    }
    let summary = lab.stop();
    assert!(summary["refusals"]["sent"].as_u64() >= Some(10), "{summary:#}");
    assert!(summary["dropped"]["policy_denied"].as_u64() >= summary["refusals"]["sent"].as_u64(), "{summary:#}");
}

#[test]
fn by_default_nothing_is_said_and_a_namespace_changes_that_while_it_runs() {
    require!("curl");
    let (mut lab, policies) = node();
    lab.start(&policies);
    let url = format!("http://{}/", lab.get("server").v4);
    curl_times_out(&lab.get("client").netns, &url);
    lab.annotations = "{bulkhead.dev/denied: refuse}".to_owned();
    lab.apply(&policies);
    curl_is_refused(&lab.get("client").netns, &url);
    lab.annotations = "{bulkhead.dev/denied: drop}".to_owned();
    lab.apply(&policies);
    curl_times_out(&lab.get("client").netns, &url);
    lab.stop();
}
