//! `bulkhead diff`: its result equals the difference of two `reach` results, and its output formats.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::support::{bulkhead, root, scratch, stdout};

const OLD: &str = "tests/cli/diff/old.yaml";
const NEW: &str = "tests/cli/diff/new.yaml";

fn diff(old: &str, new: &str, more: &[&str], code: i32) -> String {
    stdout(&bulkhead(&[&["diff", "--state", old, "--against", new][..], more].concat()), code)
}

fn json(old: &str, new: &str, more: &[&str], code: i32) -> Value {
    serde_json::from_str(&diff(old, new, &[&["-o", "json"][..], more].concat(), code)).unwrap()
}

/// One question for `reach`: from, to, family, protocol, port.
type Cell = (String, String, String, String, u64);

/// The verdicts of `reach` for every pair, at the rules' ports and at their neighbours.
fn reached(state: &str) -> BTreeMap<Cell, String> {
    let ports = [
        "5431/TCP",
        "5432/TCP",
        "443/TCP",
        "1/TCP",
        "65535/TCP",
        "7999/UDP",
        "8000/UDP",
        "8002/UDP",
        "8003/UDP",
        "5432/SCTP",
    ];
    let externals = [
        "198.51.100.63",
        "198.51.100.64",
        "198.51.100.127",
        "198.51.100.128",
        "198.51.101.0",
        "192.0.2.1",
        "192.0.3.0",
        "172.18.0.12",
        "172.18.0.11",
        "9.255.255.255",
        "10.244.0.200",
        "2001:db8::1",
        "fd00:10::ff",
        "fd00:18::12",
    ];
    let mut args = vec!["reach", "--state", state, "-o", "json"];
    args.extend(ports.iter().flat_map(|port| ["--port", port]));
    args.extend(externals.iter().flat_map(|address| ["--external", address]));
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    let text = |probe: &Value, field: &str| probe[field].as_str().unwrap().to_owned();
    let cell = |probe: &Value| {
        let key = ["from", "to", "family", "protocol"].map(|field| text(probe, field));
        let [from, to, family, protocol] = key;
        ((from, to, family, protocol, probe["port"].as_u64().unwrap()), text(probe, "verdict"))
    };
    answer["probes"].as_array().unwrap().iter().map(cell).collect()
}

/// Whether an end of an entry is this one: by name, or as an address in its range.
fn is_end(entry: &Value, end: &str) -> bool {
    let told = entry.as_str().unwrap();
    match (told.parse::<IpNet>(), end.parse::<IpAddr>()) {
        (Ok(range), Ok(address)) => range.contains(&address),
        _ => told == end,
    }
}

#[test]
fn each_entry_is_what_the_vswitches_do_and_they_do_nothing_else_otherwise() {
    for (old, new) in [(OLD, NEW), (NEW, OLD)] {
        let changes = json(old, new, &["--ungrouped"], 1);
        let changes = changes["changes"].as_array().unwrap();
        let (before, after) = (reached(old), reached(new));
        let (mut same, mut differing) = (0, 0);
        for (cell, was) in &before {
            let Some(is) = after.get(cell) else { continue };
            let (from, to, family, protocol, port) = cell;
            let tells = |change: &&Value| {
                let ports = change["ports"].as_array().unwrap();
                let in_ports = ports.iter().any(|p| (p[0].as_u64().unwrap()..=p[1].as_u64().unwrap()).contains(port));
                is_end(&change["from"], from)
                    && is_end(&change["to"], to)
                    && (&change["family"], &change["protocol"]) == (&Value::from(&**family), &Value::from(&**protocol))
                    && in_ports
            };
            let told: Vec<_> = changes.iter().filter(tells).collect();
            assert_eq!(told.len(), usize::from(was != is), "{cell:?}: {was} {is}, told {told:?}");
            for change in told {
                assert_eq!((&change["before"], &change["after"]), (&Value::from(&**was), &Value::from(&**is)));
                assert!(change["because"]["before"][0]["text"].is_string(), "{change}");
            }
            if was == is { same += 1 } else { differing += 1 }
        }
        assert!(same > 500 && differing > 50, "{same} the same, {differing} differ");
    }
}

#[test]
fn the_answer_to_people_is_as_it_was_read_and_approved() {
    for (form, file) in [("text", "expected.txt"), ("markdown", "expected.md")] {
        let path = root().join("tests/cli/diff").join(file);
        let answer = diff(OLD, NEW, &["-o", form], 1);
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            fs::write(&path, &answer).unwrap();
        }
        assert_eq!(answer, fs::read_to_string(&path).unwrap(), "{form}");
    }
}

#[test]
fn the_rule_that_makes_the_difference_is_named_with_file_and_line() {
    let answer = json(OLD, NEW, &["--ungrouped"], 1);
    let changes = answer["changes"].as_array().unwrap();
    let ends = |change: &&Value| change["from"] == "dev/web" && change["to"] == "shop/db" && change["family"] == "IPv4";
    let mut of_pair: Vec<_> = changes.iter().filter(ends).collect();
    assert_eq!(of_pair.len(), 1);
    let change = of_pair.remove(0);
    assert_eq!(change["ports"], serde_json::json!([[5432, 5432]]));
    let [before, after] = ["before", "after"].map(|side| &change["because"][side][0]);
    assert_eq!(before["isolated_by"][0]["name"], "db");
    assert_eq!((&after["policy"]["name"], &after["policy"]["rule"]), (&"open".into(), &1.into()));
    let line = after["at"][0]["line"].as_u64().unwrap();
    let text = fs::read_to_string(root().join(NEW)).unwrap();
    let written = text.lines().nth(usize::try_from(line).unwrap() - 1).unwrap();
    assert!(written.contains("namespaceSelector") && after["at"][0]["file"] == NEW, "{written}");
    assert_eq!(answer["only_before"], serde_json::json!(["dev/gone"]));
    assert_eq!(answer["only_after"], serde_json::json!(["dev/fresh"]));
    let log: Value = serde_json::from_str(&diff(OLD, NEW, &["-o", "sarif"], 1)).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["message"]["text"].is_string()));
    let at = |result: &Value| result["locations"][0]["physicalLocation"]["region"]["startLine"] == line;
    assert!(results.iter().any(|result| result["ruleId"] == "newly-allowed" && at(result)));
}

/// A rendered chart whose policy opens the database at this port.
fn chart(name: &str, port: u16) -> String {
    let text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: \
         shop}}\nspec: {{replicas: 3, template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{name: c}}]}}}}}}\n---\napiVersion: \
         apps/v1\nkind: StatefulSet\nmetadata: {{name: db, namespace: shop}}\nspec: {{template: {{metadata: {{labels: {{app: db}}}}, spec: \
         {{containers: [{{name: c}}]}}}}}}\n---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: copy, namespace: shop}}\nspec: {{template: {{metadata: \
         {{labels: {{app: copy}}}}, spec: {{containers: [{{name: c}}]}}}}}}\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, \
         namespace: shop}}\nspec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: web}}}}}}], ports: \
         [{{port: {port}}}]}}]}}\n"
    );
    scratch(name, &text)
}

#[test]
fn charts_are_compared_by_the_templates_of_their_workloads() {
    let (old, new) = (chart("diff-chart-old.yaml", 5432), chart("diff-chart-new.yaml", 5433));
    let grouped = json(&old, &new, &[], 1);
    let told = |at: usize| {
        let change = &grouped["changes"][at];
        (change["from"].clone(), change["to"].clone(), change["ports"].clone(), change["after"].clone())
    };
    let ends = |ports, verdict: &str| ("shop/web".into(), "shop/db".into(), ports, verdict.into());
    assert_eq!(grouped["changes"].as_array().unwrap().len(), 2, "{grouped}");
    assert_eq!(told(0), ends(serde_json::json!([[5432, 5432]]), "deny"));
    assert_eq!(told(1), ends(serde_json::json!([[5433, 5433]]), "allow"));
    assert_eq!(grouped["only_before"], serde_json::json!([]));
    // Entry `web#2` represents the other replicas.
    let pairs = json(&old, &new, &["--ungrouped"], 1);
    let from: Vec<&Value> = pairs["changes"].as_array().unwrap().iter().map(|change| &change["from"]).collect();
    assert_eq!(from, ["shop/web", "shop/web", "shop/web#2", "shop/web#2"]);
}

#[test]
fn sarif_is_what_version_2_1_0_asks_for() {
    let folder = "diff sarif";
    let (old, new) = (chart(&format!("{folder}-old.yaml"), 1), chart(&format!("{folder}-new.yaml"), 2));
    let log: Value = serde_json::from_str(&diff(&old, &new, &["-o", "sarif"], 1)).unwrap();
    assert_eq!((&log["version"], log["runs"].as_array().unwrap().len()), (&"2.1.0".into(), 1));
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "bulkhead diff");
    let rules: Vec<&Value> =
        run["tool"]["driver"]["rules"].as_array().unwrap().iter().map(|rule| &rule["id"]).collect();
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{log:#}");
    for result in results {
        assert!(rules.contains(&&result["ruleId"]) && result["message"]["text"].is_string(), "{result}");
        assert!(["none", "note", "warning", "error"].contains(&result["level"].as_str().unwrap()), "{result}");
        let place = &result["locations"][0]["physicalLocation"];
        let uri = place["artifactLocation"]["uri"].as_str().unwrap();
        assert!(uri.ends_with("diff%20sarif-new.yaml") && !uri.contains(' '), "{uri}");
        assert!(place["region"]["startLine"].as_u64().unwrap() >= 1, "{result}");
    }
}

#[test]
fn the_exit_code_says_whether_there_is_a_difference_or_new_access() {
    assert!(diff(OLD, OLD, &[], 0).contains("no difference"));
    assert_eq!(json(OLD, OLD, &["--ungrouped"], 0)["changes"], serde_json::json!([]));
    diff(OLD, NEW, &["--no-new-access"], 1);
    let text = fs::read_to_string(root().join(OLD)).unwrap();
    let shut = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{namespace: dev, name: shut}}\n\
         spec: {{podSelector: {{}}, policyTypes: [Ingress]}}\n---\n{text}"
    );
    let shut = scratch("diff-shut.yaml", &shut);
    diff(OLD, &shut, &[], 1);
    diff(OLD, &shut, &["--no-new-access"], 0);
    diff(&shut, OLD, &["--no-new-access"], 1);
    assert_eq!(bulkhead(&["diff", "--state", OLD, "--against", "no-such-file.yaml"]).status.code(), Some(2));
}

/// A client and two endpoints of a Service, on one node with unused pod addresses.
const SERVED: &str = "\
{apiVersion: v1, kind: Namespace, metadata: {name: a}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [10.0.0.0/24]}, status: {addresses: [{type: InternalIP, address: 172.18.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: client}, spec: {nodeName: node-1, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: one, labels: {app: s, rank: one}}, spec: {nodeName: node-1, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: two, labels: {app: s}}, spec: {nodeName: node-1, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: 10.0.0.3}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: a, name: s}, spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: a, name: s-1, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [{addresses: [10.0.0.2], nodeName: node-1}, {addresses: [10.0.0.3], nodeName: node-1}]}
";

/// The state with a policy that denies all ingress of the pods with these labels.
fn shut(name: &str, labels: &str) -> String {
    let policy = format!(
        "{SERVED}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{namespace: a, name: shut}}\nspec: {{podSelector: \
         {{matchLabels: {{{labels}}}}}, policyTypes: [Ingress]}}\n"
    );
    scratch(name, &policy)
}

#[test]
fn a_seen_flow_is_cut_opened_as_before_or_unknown_and_never_guessed() {
    let old = scratch("diff-served.yaml", SERVED);
    let (all, some) = (shut("diff-shut-all.yaml", "app: s"), shut("diff-shut-some.yaml", "rank: one"));
    let line = |client: u16, to: &str, port: u16| {
        format!(
            "[DESTROY] tcp 6 src=10.0.0.1 dst={to} sport={client} dport={port} packets=3 bytes=180 src={to} dst=10.0.0.1 sport={port} \
             dport={client} packets=2 bytes=120\n"
        )
    };
    let flows = |log: &str, text: &str, old: &str, new: &str, code: i32| {
        let log = scratch(log, text);
        json(old, new, &["--flows", &log], code)["flows"].clone()
    };
    let direct = line(1000, "10.0.0.2", 8080) + &line(1001, "10.0.0.2", 8080) + &line(1002, "192.0.2.1", 443);
    let answer = flows("diff-direct.log", &direct, &old, &all, 1);
    let cut = &answer["changed"][0];
    assert_eq!((&cut["from"], &cut["to"], &cut["service"]), (&"a/client".into(), &"a/one".into(), &"TCP 8080".into()));
    assert_eq!((&cut["sessions"], &cut["packets"], &cut["bytes"]), (&2.into(), &10.into(), &600.into()));
    assert_eq!((&cut["before"], &cut["after"], &answer["same"]), (&"allow".into(), &"deny".into(), &1.into()));
    assert!(cut["because"]["after"][0]["at"][0]["line"].is_u64(), "{cut}");
    assert_eq!(flows("diff-direct.log", &direct, &all, &old, 1)["changed"][0]["after"], "allow");
    // The log does not name the endpoint that the client's connection used.
    let service = line(1000, "10.96.0.9", 80);
    let answer = flows("diff-service.log", &service, &old, &all, 1);
    assert_eq!((&answer["changed"][0]["to"], &answer["changed"][0]["after"]), (&"Service a/s".into(), &"deny".into()));
    let answer = flows("diff-service.log", &service, &old, &some, 1);
    let why = "policy treats the endpoints of Service a/s differently, and the log does not name the endpoint";
    assert_eq!((answer["changed"].as_array().unwrap().len(), &answer["unknown"][why]), (0, &1.into()), "{answer}");
    // The pod no longer exists.
    let answer = flows("diff-gone.log", &line(1000, "10.0.0.77", 80), &old, &all, 1);
    let why = "10.0.0.77 is in a CIDR of the pods of node node-1, but no pod of the state has it";
    assert_eq!(answer["unknown"][why], 1, "{answer}");
    // ICMP has no ports. Isolation of the pod denies it.
    let ping =
        "[DESTROY] icmp 1 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=7 src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=7\n";
    let answer = flows("diff-ping.log", ping, &old, &all, 1);
    assert_eq!(
        (&answer["changed"][0]["service"], &answer["changed"][0]["packets"]),
        (&"ICMP echo".into(), &Value::Null)
    );
}
