//! Audited policies: packets that they would deny are forwarded, counted and reported, until the policies are enforced. With real
//! redis-server and redis-cli.

use crate::lab::lasting::{PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::{Running, eventually};
use crate::lab::{Lab, policy};
use crate::require;
use serde_json::Value;

const AUDIT: &str = "bulkhead.dev/enforcement: audit";

/// A policy that allows only backends to reach the database.
const SPEC: &str = "{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {role: \
    backend}}}]}]}";

fn annotated(annotation: &str) -> String {
    policy("only-backends", SPEC)
        .replace("namespace: default}", &format!("namespace: default, annotations: {{{annotation}}}}}"))
}

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("db", "{role: db}");
    lab.pod("frontend", "{role: frontend}");
    lab.pod("backend", "{role: backend}");
    lab.more_config = "admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n".to_owned();
    lab
}

fn redis(lab: &Lab) -> Running {
    let server = "redis-server --port 6379 --bind 0.0.0.0 :: --protected-mode no --save  --appendonly no";
    lab.get("db").netns.serve(server, 6379)
}

fn pong(lab: &Lab, pod: &str) -> bool {
    let line = format!("timeout 2 redis-cli -h {} -p 6379 ping", lab.get("db").v4);
    String::from_utf8_lossy(&lab.get(pod).netns.output(&line).stdout).trim() == "PONG"
}

/// The exit code and the JSON answer of `audit report`.
fn report(lab: &Lab) -> (Option<i32>, Value) {
    let (code, text) = lab.ask(&["audit", "report", "-o", "json"]);
    (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}")))
}

/// The number of connections that the only audited policy would have denied.
fn connections(lab: &Lab) -> u64 {
    report(lab).1["policies"][0]["connections"].as_u64().unwrap_or_default()
}

fn metrics(lab: &Lab) -> String {
    String::from_utf8(lab.node.output("curl -s http://127.0.0.1:9965/metrics").stdout).unwrap()
}

#[test]
fn what_an_audited_policy_would_deny_passes_is_counted_over_a_restart_and_is_cut_when_it_is_enforced() {
    require!("redis-server", "redis-cli", "curl");
    let mut lab = lab();
    lab.start(&annotated(AUDIT));
    let (_server, (code, told)) = (redis(&lab), report(&lab));
    assert_eq!((code, &told["policies"][0]["policy"]), (Some(0), &"default/only-backends".into()), "{told:#}");
    assert!(pong(&lab, "frontend") && pong(&lab, "frontend") && pong(&lab, "backend"));
    eventually("both connections of the frontend are counted", || connections(&lab) == 2);
    let (code, told) = report(&lab);
    assert_eq!(code, Some(1), "something would break");
    let row = &told["connections"][0];
    assert_eq!((&row["from"], &row["to"]), (&"default/frontend".into(), &"default/db".into()), "{told:#}");
    assert_eq!((&row["protocol"], &row["port"], &row["connections"]), (&"TCP".into(), &6379.into(), &2.into()));
    assert_eq!(row["denied_by"], "ingress isolated by default/only-backends");
    assert_eq!(told["connections"].as_array().unwrap().len(), 1, "the backend is allowed: {told:#}");
    let since = told["policies"][0]["since"].clone();

    // Every command and the metrics show that the policy is not enforced.
    let metric = "bulkhead_audit_connections_total{policy=\"default/only-backends\"} 2";
    // Metrics may be slightly old.
    eventually("the metric counts them", || metrics(&lab).contains(metric));
    let explain = ["explain", "--live", "--from", "default/frontend", "--to", "default/db", "--port", "6379"];
    for (words, shown) in [
        (&["status"][..], "audit: 1 policy is not enforced (default/only-backends)"),
        (&["policies"], "ingress isolated by default/only-backends (not enforced)"),
        (&["tables"], "default/only-backends"),
        (&["tables", "--port", "default/db"], "# not enforced: default/only-backends"),
        (&explain, "not enforced, or it would be denied: ingress isolated by default/only-backends"),
        (&explain, "ALLOW, as node node-1 enforces now"),
        (&["wait", "netpol/only-backends"], "default/only-backends is in force, audited and not enforced; tables of"),
        (&["wait", "netpol/only-backends", "-o", "json"], "\"audited\": true"),
    ] {
        let (code, text) = lab.ask(words);
        assert!(code == Some(0) && text.contains(shown), "{words:?}: {text}");
    }

    // A connection stays open across a restart, until the policy is enforced.
    echo(lab.get("db"), 7777);
    let mut client = connect(lab.get("frontend"), lab.get("db"), 7777, PATIENCE).unwrap();
    settle(&mut client);
    eventually("it is counted", || connections(&lab) == 3);
    lab.stop();
    lab.start(&annotated(AUDIT));
    assert!(answers(&mut client), "the connection goes on");
    let (_, told) = report(&lab);
    assert_eq!(
        (connections(&lab), &told["policies"][0]["since"]),
        (3, &since),
        "a connection is counted once: {told:#}"
    );
    eventually("the metric goes on", || metrics(&lab).contains(&metric.replace("} 2", "} 3")));
    lab.apply(&annotated(""));
    assert!(!answers(&mut client), "it is cut");
    assert!(!pong(&lab, "frontend") && pong(&lab, "backend"));
    eventually("the report knows", || report(&lab).0 == Some(0));
    let (_, text) = lab.ask(&["audit", "report"]);
    assert!(text.contains("no policy of its pods is audited: all are enforced"), "{text}");
    let summary = lab.stop();
    assert!(summary["dropped"]["policy_denied"].as_u64() >= Some(1), "{summary:#}");
}

#[test]
fn a_typo_in_the_annotation_enforces_and_is_told_with_its_line_and_the_remedy() {
    require!("redis-server", "redis-cli");
    let mut lab = lab();
    lab.start(&annotated("bulkhead.dev/enforcement: adit"));
    let _server = redis(&lab);
    assert!(!pong(&lab, "frontend") && pong(&lab, "backend"));
    let log = lab.log();
    let told = log.lines().find(|line| line.contains("unknown value \"adit\", treated as enforce"));
    assert!(
        told.is_some_and(|line| line.contains("state.yaml:") && line.contains("NetworkPolicy default/only-backends")),
        "{log}"
    );
    assert!(log.contains("did you mean `audit`?"), "{log}");
    assert_eq!(report(&lab).0, Some(0));
    lab.stop();
}

#[test]
fn a_namespace_or_the_configuration_audits_by_identities_too_and_what_says_otherwise_is_enforced() {
    require!("redis-server", "redis-cli");
    let mut lab = lab();
    let own = lab.more_config.clone();
    lab.more_config = format!("{own}engine: identity\nenforcement: audit\n");
    lab.start(&annotated(""));
    let _server = redis(&lab);
    assert!(pong(&lab, "frontend"), "the configuration audits");
    eventually("it is counted", || connections(&lab) == 1);
    lab.annotations = "{bulkhead.dev/enforcement: enforce}".to_owned();
    lab.apply(&annotated(""));
    assert!(!pong(&lab, "frontend") && pong(&lab, "backend"), "the namespace enforces");
    lab.apply(&annotated(AUDIT));
    assert!(pong(&lab, "frontend"), "the policy's own annotation wins");
    // An audit mode set in the configuration can be changed while the vswitch runs.
    lab.annotations = "{}".to_owned();
    lab.apply(&annotated(""));
    assert!(pong(&lab, "frontend"));
    lab.more_config = format!("{own}engine: identity\n");
    lab.write_config();
    eventually("everything is enforced", || !pong(&lab, "frontend"));
    assert!(pong(&lab, "backend"));
    lab.stop();
}

#[test]
fn where_nothing_can_be_audited_that_is_refused_or_the_policy_is_enforced_and_told() {
    require!("redis-server", "redis-cli");
    let mut lab = lab();
    lab.write_state(&annotated(AUDIT));
    for words in ["enforce: source", "dataplane: nftables"] {
        let config = format!("node: node-1\nstate: {{paths: [state.yaml]}}\n{words}\nenforcement: audit\nports: []\n");
        let (code, text) = lab.try_config(&config, &["--check"]);
        let why = format!("`audit` cannot be combined with `{words}`");
        assert!(
            code != Some(0) && text.contains("tried.yaml:4: enforcement") && text.contains(&why),
            "{code:?} {text}"
        );
    }
    lab.more_config.push_str("enforce: source\n");
    lab.start(&annotated(AUDIT));
    let _server = redis(&lab);
    assert!(!pong(&lab, "frontend") && pong(&lab, "backend"));
    let log = lab.log();
    assert!(log.contains("default/only-backends is enforced, though its bulkhead.dev/enforcement"), "{log}");
    lab.stop();
}

#[test]
fn a_damaged_file_of_counts_is_refused_whole_told_and_counted() {
    require!("redis-server", "redis-cli", "curl");
    let mut lab = lab();
    lab.start(&annotated(AUDIT));
    let _server = redis(&lab);
    assert!(pong(&lab, "frontend"));
    eventually("it is counted", || connections(&lab) == 1);
    lab.stop();
    let file = lab.path("sessions").join("audit-node-1.gz");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    lab.start(&annotated(AUDIT));
    assert_eq!(connections(&lab), 0);
    assert!(lab.log().contains("the earlier audit counts are lost"), "{}", lab.log());
    assert!(metrics(&lab).contains("bulkhead_audit_refused_files_total 1"));
    assert!(file.with_extension("gz.damaged").exists());
    lab.stop();
}
