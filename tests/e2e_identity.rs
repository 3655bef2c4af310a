//! `engine: identity` on a live node: the redis story's policy between real stacks, and another engine while it runs.

use crate::lab::netns::Running;
use crate::lab::{Lab, policy};
use crate::require;

fn node() -> (Lab, Running) {
    let mut lab = Lab::new();
    lab.pod("db", "{role: db}");
    for (name, role) in [("frontend", "frontend"), ("backend", "backend")] {
        lab.pod(name, &format!("{{role: {role}}}"));
    }
    let server = "redis-server --port 6379 --bind 0.0.0.0 :: --protected-mode no --save  --appendonly no";
    let server = lab.get("db").netns.serve(server, 6379);
    lab.more_config = "engine: identity\n".into();
    (lab, server)
}

/// Whether a pod gets its PONG from the database over both families; they must agree.
fn pong(lab: &Lab, pod: &str) -> bool {
    let db = lab.get("db");
    let [v4, v6] = [&db.v4, &db.v6].map(|address| {
        let output = lab.get(pod).netns.output(&format!("timeout 2 redis-cli -h {address} -p 6379 ping"));
        String::from_utf8_lossy(&output.stdout).trim() == "PONG"
    });
    assert_eq!(v4, v6, "{pod}: IPv4 and IPv6");
    v4
}

const SPEC: &str = "{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: backend}}}], \
    ports: [{protocol: TCP, port: 6379}]}]}";

#[test]
fn identities_let_backends_in_and_shut_the_frontend_out() {
    require!("redis-server", "redis-cli");
    let (mut lab, _server) = node();
    lab.start(&policy("network-policy-allow-backend", SPEC));
    assert_eq!(["frontend", "backend"].map(|pod| pong(&lab, pod)), [false, true]);
    let summary = lab.stop();
    assert!(summary["dropped"]["policy_denied"].as_u64() > Some(0), "{summary:#}");
    let counted = summary.to_string();
    assert!(counted.contains("network-policy-allow-backend"), "the verdicts name their policy: {summary:#}");
}

#[test]
fn the_engine_changes_while_it_runs_and_an_open_connection_goes_on() {
    require!("redis-server", "redis-cli");
    let (mut lab, _server) = node();
    lab.start(&policy("network-policy-allow-backend", SPEC));
    let is_identity = |lab: &Lab| lab.ask(&["tables", "--port", "default/db"]).1.contains("by identity");
    assert!(is_identity(&lab));
    // Sixty commands in one connection, a tenth of a second apart: both changes happen meanwhile.
    let words = format!("timeout 20 redis-cli -h {} -p 6379 -r 60 -i 0.1 ping", lab.get("db").v4);
    let (backend, said) = (&lab.get("backend").netns, std::sync::Mutex::new(String::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| *said.lock().unwrap() = String::from_utf8_lossy(&backend.output(&words).stdout).into_owned());
        for (engine, expected) in [("acl", false), ("identity", true)] {
            let text = std::fs::read_to_string(lab.path("config.yaml")).unwrap();
            let now = if expected { "acl" } else { "identity" };
            let new = lab.path("config.yaml.new");
            std::fs::write(&new, text.replace(&format!("engine: {now}"), &format!("engine: {engine}"))).unwrap();
            std::fs::rename(new, lab.path("config.yaml")).unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while is_identity(&lab) != expected {
                assert!(std::time::Instant::now() < deadline, "engine {engine} is not in force\n{}", lab.log());
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            assert_eq!(["frontend", "backend"].map(|pod| pong(&lab, pod)), [false, true], "{engine}");
        }
    });
    let said = said.into_inner().unwrap();
    assert_eq!(said.lines().filter(|line| *line == "PONG").count(), 60, "{said}");
    lab.stop();
}
