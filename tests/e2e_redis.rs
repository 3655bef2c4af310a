//! The basic example with real redis-server and redis-cli over IPv4 and IPv6: policy allows two backends to use a redis server, and denies
//! a frontend.

use crate::lab::netns::Running;
use crate::lab::{Lab, policy};
use crate::require;

/// The address families, by which [`pong`] chooses the server's address.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

fn story() -> (Lab, Running) {
    let mut lab = Lab::new();
    lab.pod("db", "{role: db}");
    for (name, role) in [("frontend", "frontend"), ("backend1", "backend"), ("backend2", "backend")] {
        lab.pod(name, &format!("{{role: {role}}}"));
    }
    let server = "redis-server --port 6379 --bind 0.0.0.0 :: --protected-mode no --save  --appendonly no";
    let server = lab.get("db").netns.serve(server, 6379);
    (lab, server)
}

/// Whether a pod receives PONG from the database.
fn pong(lab: &Lab, pod: &str, family: &str) -> bool {
    let db = lab.get("db");
    let address = if family == "IPv4" { &db.v4 } else { &db.v6 };
    let output = lab.get(pod).netns.output(&format!("timeout 2 redis-cli -h {address} -p 6379 ping"));
    String::from_utf8_lossy(&output.stdout).trim() == "PONG"
}

fn assert_story(lab: &Lab, allowed: &[&str]) {
    for family in FAMILIES {
        for pod in ["frontend", "backend1", "backend2"] {
            assert_eq!(pong(lab, pod, family), allowed.contains(&pod), "{pod} over {family}");
        }
    }
}

#[test]
fn without_a_policy_everybody_reaches_the_database() {
    require!("redis-server", "redis-cli");
    let (mut lab, _server) = story();
    lab.start("");
    assert_story(&lab, &["frontend", "backend1", "backend2"]);
    let summary = lab.stop();
    assert!(summary["dropped"].get("policy_denied").is_none(), "{summary:#}");
    assert!(summary["sessions"]["created"].as_u64() >= Some(6), "{summary:#}");
}

#[test]
fn a_policy_for_backends_shuts_the_frontend_out() {
    require!("redis-server", "redis-cli");
    let (mut lab, _server) = story();
    let spec = "{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: backend}}}], \
        ports: [{protocol: TCP, port: 6379}]}]}";
    lab.start(&policy("network-policy-allow-backend", spec));
    assert_story(&lab, &["backend1", "backend2"]);
    let db = lab.get("db").v4.clone();
    assert!(!lab.pings("backend1", &db), "the policy opens TCP 6379 and nothing else");
    assert!(lab.pings("backend1", &lab.get("frontend").v4), "the others are not isolated");
    let summary = lab.stop();
    assert!(summary["dropped"]["policy_denied"].as_u64() >= Some(2), "{summary:#}");
}

#[test]
fn a_policy_that_allows_anybody_lets_everybody_in_again() {
    require!("redis-server", "redis-cli");
    let (mut lab, _server) = story();
    lab.start(&policy("closed", "{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress]}"));
    assert_story(&lab, &[]);
    lab.apply(&policy("allow-any", "{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress], ingress: [{}]}"));
    assert_story(&lab, &["frontend", "backend1", "backend2"]);
    lab.stop();
}
