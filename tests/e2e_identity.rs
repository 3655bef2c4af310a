//! `engine: identity` on a live node: the redis policy between real IP stacks, and a change of the engine at run time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::in_namespace;

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

/// Whether a pod receives PONG from the database. Panics if IPv4 and IPv6 differ.
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
    // Sixty commands on one connection at intervals of 0.1 s, during which the engine changes twice.
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
            let deadline = Instant::now() + Duration::from_secs(20);
            while is_identity(&lab) != expected {
                assert!(Instant::now() < deadline, "engine {engine} is not in force\n{}", lab.log());
                std::thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(["frontend", "backend"].map(|pod| pong(&lab, pod)), [false, true], "{engine}");
        }
    });
    let said = said.into_inner().unwrap();
    assert_eq!(said.lines().filter(|line| *line == "PONG").count(), 60, "{said}");
    lab.stop();
}

/// This number of backend pods on other nodes.
fn backends(count: u32) -> String {
    let pod = |at: u32| {
        let address = std::net::Ipv4Addr::from(0x0a64_0000 + at);
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: far-{at}, namespace: default, labels: {{role: backend}}}}, \
             spec: {{nodeName: elsewhere}}, status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}}}\n"
        )
    };
    (0..count).map(pod).collect()
}

#[test]
fn with_engine_auto_the_state_chooses_and_status_says_what_it_is() {
    require!("redis-server", "redis-cli");
    let (mut lab, _server) = node();
    lab.more_config = "engine: auto\n".into();
    let (few, many) = (lab.more_state.clone(), lab.more_state.clone() + &backends(10_000));
    let rules = policy("network-policy-allow-backend", SPEC);
    lab.start(&rules);
    let judging = |lab: &Lab| {
        let (_, status) = lab.ask(&["status", "-o", "json"]);
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["judging"].clone()
    };
    let by = |renderer: &str| serde_json::json!({"renderer": renderer, "place": "destination", "automatic": true});
    assert_eq!(judging(&lab), by("acl"));
    let (_, status) = lab.ask(&["status"]);
    assert!(status.contains("judged: by acl, where packets leave (engine: auto)"), "{status}");
    // The same connection is used while the engine changes back and forth.
    let address = format!("{}:6379", lab.get("db").v4);
    let netns = Path::new("/run/netns").join(lab.get("backend").netns.name());
    let mut connection = in_namespace(&netns, || TcpStream::connect(address)).unwrap().unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut answers = || {
        let mut answer = [0; 7];
        connection.write_all(b"PING\r\n").is_ok()
            && connection.read_exact(&mut answer).is_ok()
            && answer == *b"+PONG\r\n"
    };
    assert!(answers());
    for (state, engine) in [(many, "identity"), (few, "acl")] {
        lab.more_state = state;
        lab.write_state(&rules);
        // Reading a state with ten thousand pods takes a while.
        let deadline = Instant::now() + Duration::from_secs(60);
        while judging(&lab) != by(engine) {
            assert!(Instant::now() < deadline, "engine {engine} is not in force\n{}", lab.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(lab.log().contains(&format!("engine auto uses {engine}")), "{}", lab.log());
        assert_eq!(["frontend", "backend"].map(|pod| pong(&lab, pod)), [false, true], "{engine}");
        assert!(answers(), "{engine}: the connection goes on");
    }
    lab.stop();
}
