//! The admin socket, metrics and probes of a running vswitch.

use crate::require;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::lab::lasting::{PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::{Dialogue, eventually};
use crate::lab::watched::only_redis;
use crate::lab::{Lab, UNANSWERED, policy};
use serde_json::Value;

/// A lab with two pods.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab
}

fn json(lab: &Lab, words: &[&str]) -> Value {
    let (code, text) = lab.ask(&[words, &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Sends one line to the admin socket and returns the line of the answer.
fn raw(lab: &Lab, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(lab.path("admin.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The vswitch may close the connection before it has read everything.
    let _ = stream.write_all(line);
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// The body served at a path, followed by the HTTP status.
fn http(lab: &Lab, path: &str) -> String {
    let command = format!("curl -s -o /dev/stdout -w %{{http_code}} http://127.0.0.1:9965{path}");
    String::from_utf8(lab.node.output(&command).stdout).unwrap()
}

#[test]
fn a_running_vswitch_tells_its_status_ports_policies_and_tables() {
    require!("ping");
    let mut lab = lab();
    lab.start(&only_redis());
    let (code, text) = lab.ask(&["status", "--wait", "--timeout", "20s"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("node node-1: ready; up ") && text.contains("ports: 2 of 2 open"), "{text}");
    let to = lab.get("b").v4.clone();
    assert!(!lab.pings("a", &to), "policy denies it");
    let status = json(&lab, &["status"]);
    assert_eq!(
        (&status["node"], &status["ready"], &status["denying"]),
        (&"node-1".into(), &true.into(), &false.into())
    );
    let dropped = status["dropped"].as_array().unwrap();
    assert!(dropped.iter().any(|row| row["reason"] == "policy_denied"), "{status:#}");
    assert!(status["policy"]["age_seconds"].as_f64().unwrap() < 60.0, "{status:#}");
    let ports = json(&lab, &["ports"]);
    let names: Vec<_> = ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default/a", "default/b"]);
    assert!(ports[0]["received"].as_u64().unwrap() > 0 && ports[1]["addresses"][0] == to.as_str(), "{ports:#}");
    let policies = json(&lab, &["policies"]);
    let denied = policies.as_array().unwrap().iter().find(|row| row["denied"].as_u64() > Some(0)).unwrap();
    assert_eq!(denied["origin"], "ingress isolated by default/only-redis");
    let (_, rules) = lab.ask(&["tables", "--port", "default/b"]);
    assert!(rules.contains("TCP:6379") && rules.contains("default/only-redis ingress[0]"), "{rules}");
    let tables = json(&lab, &["tables"]);
    assert!(tables.as_array().unwrap().iter().any(|row| row["port"] == "default/b" && row["rules"] == 3), "{tables:#}");
    let (code, text) = lab.ask(&["tables", "--port", "default/nobody"]);
    assert!(code == Some(2) && text.contains("there is no port default/nobody") && text.contains("help: "), "{text}");
    let sessions = json(&lab, &["sessions", "--limit", "5"]);
    assert_eq!(sessions["matching"], 0, "what was refused is no session: {sessions:#}");
    echo(lab.get("b"), 6379);
    let mut client = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut client));
    let mut sessions = Value::Null;
    eventually("the session is established", || {
        sessions = json(&lab, &["sessions", "--port", "default/b", "--service", "6379"]);
        sessions["sessions"][0]["state"] == "established"
    });
    assert_eq!(sessions["sessions"][0]["to"], format!("{to}:6379"));
    assert_eq!(sessions["sessions"][0]["origin"], "default/only-redis ingress[0]");
    assert_eq!(sessions["ports"], serde_json::json!([["default/a", 1], ["default/b", 1]]));
    assert_eq!(json(&lab, &["sessions", "--service", "6380"])["matching"], 0);
    drop(client);
    let before = lab.count("requested by the admin socket");
    assert_eq!(lab.ask(&["reload"]).0, Some(0));
    eventually("it looks at its files", || lab.count("requested by the admin socket") > before);
    let mode = std::fs::metadata(lab.path("admin.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may ask");
    lab.stop();
    assert!(!lab.path("admin.sock").exists());
    let (code, text) = lab.ask(&["status"]);
    assert!(code == Some(2) && text.contains("start the vswitch"), "{text}");
}

#[test]
fn sessions_that_are_killed_are_over_also_in_the_kernel_and_the_others_go_on() {
    require!();
    let mut lab = lab();
    lab.start("");
    for port in [6379, 6380] {
        echo(lab.get("b"), port);
    }
    let [mut killed, mut other] = [6379, 6380].map(|port| connect(lab.get("a"), lab.get("b"), port, PATIENCE).unwrap());
    // Talk until the kernel forwards both connections.
    settle(&mut killed);
    settle(&mut other);
    let (code, text) = lab.ask(&["sessions", "--kill"]);
    assert!(code == Some(2) && text.contains("--all"), "{text}");
    assert_eq!(json(&lab, &["sessions", "--kill", "--service", "6381"])["ended"], 0);
    assert!(answers(&mut killed) && answers(&mut other), "nothing was ended");
    assert_eq!(json(&lab, &["sessions", "--kill", "--service", "6379"])["ended"], 1);
    assert!(!answers(&mut killed), "what is in the middle of no connection is dropped");
    assert!(answers(&mut other));
    let mut again = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut again), "policy allows a new one");
    assert_eq!(json(&lab, &["sessions", "--kill", "--all"])["ended"], 2);
    assert!(!answers(&mut other) && !answers(&mut again));
    lab.stop();
}

#[test]
fn events_have_fields_for_programs() {
    require!();
    let mut lab = lab();
    lab.more_config.push_str("log: {format: json, level: info}\n");
    lab.start("");
    lab.write_state(&only_redis());
    eventually("the new state is in force", || lab.log().contains("the new state is in force"));
    lab.stop();
    let log = lab.log();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |text: &str| events.iter().find(|event| event["message"].as_str().unwrap().starts_with(text)).unwrap();
    let ready = find("ready: ");
    assert_eq!((&ready["node"], &ready["open"], &ready["denying"]), (&"node-1".into(), &2.into(), &false.into()));
    assert!(find("the new state")["generation"].as_u64() > Some(1));
    // With attach: xdp the port also has a warning.
    let is_opening = |event: &&Value| event["message"].as_str().unwrap().contains(" is open: ");
    assert_eq!(events.iter().find(is_opening).unwrap()["port"], "default/a");
}

#[test]
fn what_is_late_is_told_with_the_reason_until_it_is_there() {
    require!("ping");
    let mut lab = lab();
    lab.unplug("b");
    lab.start("");
    let (code, text) = lab.ask(&["status"]);
    assert!(code == Some(0) && text.contains("ports: 1 of 2 open"), "{text}");
    let interface = lab.get("b").interface.clone();
    assert!(
        text.contains(&format!("default/b ({interface}): waits for its interface: {interface} does not exist")),
        "{text}"
    );
    lab.plug("b");
    eventually("the port is open", || lab.ask(&["status"]).1.contains("ports: 2 of 2 open"));
    lab.stop();
}

#[test]
fn without_a_state_it_is_alive_and_not_ready() {
    require!("curl");
    let mut lab = lab();
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab.start("");
    assert_eq!((http(&lab, "/livez"), http(&lab, "/readyz")), ("ok\n200".into(), "ok\n200".into()));
    assert!(http(&lab, "/nowhere").ends_with("404"));
    let metrics = http(&lab, "/metrics");
    for line in [
        "# TYPE bulkhead_policy_age_seconds gauge",
        "# UNIT bulkhead_policy_age_seconds seconds",
        "bulkhead_ports_open 2",
        "bulkhead_process_ready 1",
        "bulkhead_forward_dropped_packets_total{reason=\"policy_denied\"}",
        "bulkhead_port_received_packets_total{port=\"default/a\"}",
        "bulkhead_worker_sessions{worker=\"0\"}",
        "bulkhead_session_capacity_sessions 500000",
        "bulkhead_flow_cache_forwarded_packets_total",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
    let count = "bulkhead_policy_event_to_enforced_seconds_count";
    assert!(metrics.contains(&format!("{count} 0")), "the first state is no change:\n{metrics}");
    lab.apply(&policy("deny", "{podSelector: {}, policyTypes: [Ingress]}"));
    eventually("the change is counted", || http(&lab, "/metrics").contains(&format!("{count} 1")));
    lab.stop();
    // The vswitch starts without a state and waits for one.
    std::fs::remove_file(lab.path("state.yaml")).unwrap();
    let config = std::fs::read_to_string(lab.path("config.yaml")).unwrap();
    let denying = config.replace("state: {paths: [state.yaml]}", "state: {paths: [absent.yaml], when_missing: deny}");
    std::fs::write(lab.path("denying.yaml"), denying).unwrap();
    let path = lab.path("denying.yaml");
    let _vswitch = lab.node.spawn(&format!("{} run --config {}", env!("CARGO_BIN_EXE_bulkhead"), path.display()));
    eventually("it is alive", || http(&lab, "/livez") == "ok\n200");
    assert!(http(&lab, "/readyz").ends_with("503"));
    let (code, told) = lab.ask(&["status", "--wait", "--timeout", "1s"]);
    assert!(code == Some(1) && told.contains("denying everything"), "{told}");
}

#[test]
fn the_probes_and_the_status_do_not_wait_for_the_policy() {
    require!("curl", "python3");
    let mut lab = lab();
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab.start("");
    // Blocks the policy thread, which reads and compiles the state, until the test continues.
    let mut file = Dialogue::start(&lab.node, UNANSWERED, lab.path("state.yaml").to_str().unwrap());
    assert_eq!(file.hear(), "ready");
    assert_eq!(file.hear(), "waits", "the policy thread opens the state");
    for _ in 0..3 {
        assert_eq!((http(&lab, "/livez"), http(&lab, "/readyz")), ("ok\n200".into(), "ok\n200".into()));
        assert!(http(&lab, "/metrics").contains("bulkhead_process_ready 1"));
        assert_eq!(lab.ask(&["status"]).0, Some(0));
    }
    assert_eq!(lab.count("in force"), 0, "the state is still being read");
    lab.stop();
}

#[test]
fn clients_that_are_slow_or_hostile_hold_nothing_back() {
    require!("ping");
    let mut lab = lab();
    lab.start("");
    for line in
        [&b"\xff\xfe{\n"[..], b"{}\n", b"[[[[[[[[\n", b"{\"version\":1,\"request\":\"tables\",\"arguments\":7}\n"]
    {
        assert!(raw(&lab, line).contains("\"code\":\"malformed\""));
    }
    let endless = vec![b'x'; 1 << 20];
    assert!(raw(&lab, &endless).contains("too_long"));
    // Many clients that send nothing, and some that send requests without reading the answers.
    let silent: Vec<_> = (0..300).map(|_| UnixStream::connect(lab.path("admin.sock")).unwrap()).collect();
    let deaf: Vec<_> = (0..10)
        .map(|_| {
            let mut stream = UnixStream::connect(lab.path("admin.sock")).unwrap();
            stream.set_nonblocking(true).unwrap();
            let question = b"{\"version\":1,\"request\":\"status\"}\n";
            while stream.write_all(question).is_ok() {}
            stream
        })
        .collect();
    let started = Instant::now();
    let (code, text) = lab.ask(&["status"]);
    assert_eq!(code, Some(0), "{text}");
    println!("a status among slow clients took {:?}", started.elapsed());
    let to = lab.get("b").v4.clone();
    assert!(lab.pings("a", &to));
    drop(deaf);
    // The vswitch has closed the oldest silent connection to make room.
    let mut first = silent.into_iter().next().unwrap();
    assert_eq!(first.read(&mut [0; 1]).unwrap(), 0);
    lab.stop();
}
