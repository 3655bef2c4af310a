//! Audited policies offline: every command that evaluates policy reports that they are not enforced.

use std::fs;

use serde_json::Value;

use crate::support::{bulkhead, root, scratch, stdout};

const CAPTURE: &str = "pcaps/redis-policy/in.pcapng";

/// The state of the redis example with this annotation on its policy.
fn state(name: &str, annotation: &str) -> String {
    let text = fs::read_to_string(root().join("pcaps/redis-policy/state.yaml")).unwrap();
    let metadata = "  name: network-policy-allow-backend\n  namespace: default\n";
    assert!(text.contains(metadata));
    scratch(name, &text.replace(metadata, &format!("{metadata}  annotations: {{{annotation}}}\n")))
}

fn json(args: &[&str], code: i32) -> Value {
    serde_json::from_str(&stdout(&bulkhead(args), code)).unwrap()
}

#[test]
fn replay_reach_explain_policies_and_diff_know_what_is_not_enforced() {
    let audited = state("audit-audited.yaml", "bulkhead.dev/enforcement: audit");
    let enforced = state("audit-enforced.yaml", "");
    let isolated = "ingress isolated by default/network-policy-allow-backend";

    let told = stdout(&bulkhead(&["replay", "--state", &audited, "--node", "node-1", CAPTURE]), 0);
    let row = told.lines().find(|line| line.contains("default/frontend") && line.contains("TCP 6379")).unwrap();
    assert!(row.contains("audit") && row.ends_with(&format!("allowed, would be denied by {isolated}")), "{told}");
    assert!(told.contains("0 dropped") && told.contains("audited: 1 connections would be denied"), "{told}");
    let told = stdout(&bulkhead(&["replay", "--state", &audited, "--node", "node-1", "-o", "json", CAPTURE]), 0);
    let packets: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let marked: Vec<&Value> = packets.iter().filter(|packet| packet["audited_by"].is_string()).collect();
    assert_eq!(marked.len(), 1, "the first packet of the connection");
    assert_eq!((&marked[0]["verdict"], &marked[0]["audited_by"]), (&"forward".into(), &isolated.into()));
    assert_eq!(packets.last().unwrap()["summary"]["audited"], 1);

    let reach = stdout(&bulkhead(&["reach", "--state", &audited, "--port", "6379/TCP"]), 0);
    let cells: Vec<&str> =
        reach.lines().find(|line| line.starts_with("default/frontend")).unwrap().split_whitespace().collect();
    assert_eq!(cells, ["default/frontend", ".", ".", "a", "#"], "{reach}");
    assert!(reach.contains("a allowed, because a policy is audited and not enforced"), "{reach}");
    let probes = json(&["reach", "--state", &audited, "--port", "6379/TCP", "-o", "json"], 0);
    let marked = probes["probes"].as_array().unwrap().iter().filter(|probe| probe["audited"] == true);
    let marked: Vec<String> =
        marked.map(|probe| format!("{} {} {}", probe["from"], probe["to"], probe["verdict"])).collect();
    assert_eq!(marked, ["\"default/frontend\" \"default/db\" \"allow\""]);

    let ends = ["--from", "default/frontend", "--to", "default/db", "--port", "6379"];
    let explained = stdout(&bulkhead(&[&["explain", "--state", &audited][..], &ends].concat()), 0);
    assert!(explained.contains("ALLOW, because a policy is audited and not enforced"), "{explained}");
    assert!(explained.contains(&format!("not enforced, or it would be denied: {isolated}")), "{explained}");
    assert!(explained.contains("default/network-policy-allow-backend at "), "{explained}");

    let selecting = ["policies", "--pod", "default/db", "--state"];
    let told = stdout(&bulkhead(&[&selecting[..], &[&audited]].concat()), 0);
    assert!(
        told.contains("ingress: not isolated") && told.contains("which selects pods role=db: audited, not enforced"),
        "{told}"
    );
    let told = json(&[&selecting[..], &[&audited, "-o", "json"]].concat(), 0);
    assert_eq!(told["ingress"]["policies"][0]["not_enforced"], true);

    let diff = ["diff", "--state", &audited, "--against", &enforced];
    let output = bulkhead(&diff);
    let noted = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stdout(&output, 1).contains("default/frontend"), "what enforcement changes");
    assert!(noted.contains("audited and not enforced: default/network-policy-allow-backend"), "{noted}");
    stdout(&bulkhead(&["diff", "--state", &audited, "--against", &audited]), 0);
}

#[test]
fn each_form_of_reach_tells_what_is_not_enforced() {
    let audited = state("audit-reach.yaml", "bulkhead.dev/enforcement: audit");
    let reach = |more: &[&str]| {
        stdout(&bulkhead(&[&["reach", "--state", &audited, "--port", "6379/TCP"][..], more].concat()), 0)
    };
    let ends = "default/frontend | 6379/TCP | 6379/TCP (denial not enforced) |";
    assert!(reach(&["-o", "md"]).contains(ends), "{}", reach(&["-o", "md"]));
    let focused = reach(&["-o", "md", "--focus", "default/frontend"]);
    assert!(focused.contains("| default/frontend | default/db | 6379/TCP (denial not enforced) |"), "{focused}");
    for form in ["dot", "mermaid"] {
        let graph = reach(&["-o", form]);
        assert_eq!(graph.matches("6379/TCP (denial not enforced)").count(), 1, "{graph}");
    }
    let csv = reach(&["-o", "csv"]);
    let marked: Vec<&str> = csv.lines().filter(|line| line.ends_with(",allow,true,")).collect();
    assert_eq!(marked, ["default/frontend,1,default/db,1,IPv4,TCP,6379,allow,true,"], "{csv}");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: default}\n\
         spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{name: redis, port: 6379}]}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {name: db-1, namespace: default, labels: {kubernetes.io/service-name: db}}\naddressType: IPv4\n\
         ports: [{name: redis, protocol: TCP, port: 6379}]\n\
         endpoints: [{addresses: [10.244.1.2], nodeName: node-1, conditions: {ready: true}}]\n";
    let service = scratch("audit-service.yaml", service);
    let to = ["reach", "--state", &audited, &service, "--to", "service/default/db"];
    let told = stdout(&bulkhead(&to), 0);
    let of = |name: &str| told.lines().find(|line| line.starts_with(name)).unwrap();
    let beside = "allow   1 of 1; audited, not enforced: default/db (10.244.1.2:6379)";
    assert!(of("default/frontend").ends_with(beside) && of("default/backend").ends_with("1 of 1"), "{told}");
    let told = json(&[&to[..], &["-o", "json"]].concat(), 0);
    let marked = told["services"].as_array().unwrap().iter().filter(|line| line["backends"][0]["audited"] == true);
    assert_eq!(marked.map(|line| line["from"].as_str().unwrap()).collect::<Vec<_>>(), ["default/frontend"], "{told:#}");
}

#[test]
fn without_a_word_of_policy_or_namespace_the_argument_decides_and_other_stacks_enforce() {
    let silent = state("audit-silent.yaml", "");
    let ends = ["--from", "default/frontend", "--to", "default/db", "--port", "6379"];
    let explain =
        |more: &[&str], code| stdout(&bulkhead(&[&["explain", "--state", &silent][..], &ends, more].concat()), code);
    explain(&[], 1);
    assert!(explain(&["--enforcement", "audit"], 0).contains("audited and not enforced"));
    let audited = state("audit-other-stack.yaml", "bulkhead.dev/enforcement: audit");
    let compile =
        |renderer: &str| bulkhead(&["compile", "--state", &audited, "--node", "node-1", "--renderer", renderer]);
    assert!(!stdout(&compile("acl"), 0).contains("isolated by"), "what the vswitch enforces");
    let output = compile("contiv");
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stdout(&output, 0).contains("isolated by default/network-policy-allow-backend"));
    assert!(
        warned.contains("treats these audited policies as enforced: default/network-policy-allow-backend"),
        "{warned}"
    );
}

#[test]
fn a_flow_to_a_service_tells_all_that_would_deny_it_at_any_of_its_endpoints() {
    let mut text = fs::read_to_string(root().join("examples/services.yaml")).unwrap();
    text.push_str("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n");
    for (name, app, node, address) in [
        ("cart", "cart", "node-1", "10.244.1.2"),
        ("web-1", "one", "node-1", "10.244.1.20"),
        ("web-2", "two", "node-2", "10.244.2.20"),
        ("web-3", "two", "node-2", "10.244.2.21"),
    ] {
        text.push_str(&format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n\
             spec: {{nodeName: {node}, containers: []}}\nstatus: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n"
        ));
    }
    for (name, app) in [("first", "one"), ("second", "two")] {
        text.push_str(&format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop, \
             annotations: {{bulkhead.dev/enforcement: audit}}}}\n\
             spec: {{podSelector: {{matchLabels: {{app: {app}}}}}, policyTypes: [Ingress]}}\n"
        ));
    }
    let state = scratch("audit-endpoints.yaml", &text);
    let log = scratch(
        "audit-endpoints.json",
        "{\"verdict\":\"FORWARDED\",\"IP\":{\"source\":\"10.244.1.2\",\"destination\":\"10.96.0.20\"},\
         \"l4\":{\"TCP\":{\"source_port\":40000,\"destination_port\":80,\"flags\":{\"SYN\":true}}}}\n",
    );
    let told = stdout(&bulkhead(&["replay", "--state", &state, "--flows", &log]), 0);
    for policy in ["shop/first", "shop/second"] {
        assert_eq!(told.matches(&format!("isolated by {policy}")).count(), 1, "{policy}: {told}");
    }
    let lines = stdout(&bulkhead(&["replay", "--state", &state, "--flows", &log, "-o", "json"]), 0);
    let flow: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(flow["audited_by"].as_array().map(Vec::len), Some(2), "{flow:#}");
}
