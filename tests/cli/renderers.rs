//! The output of `compile` for renderers that the vswitch does not use.

use crate::support::{bulkhead, scratch, stdout};
use serde_json::{Value, json};

/// A tier with all three actions before a NetworkPolicy. Renderers must express its denies and passes as unordered lists.
const STATE: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: tenants}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {podSelector: {matchLabels: {app: web}}}}
  ingress:
  - {action: Accept, from: [{pods: {podSelector: {matchLabels: {app: probe}}}}], protocols: [{tcp: {destinationPort: {number: 9}}}]}
  - {action: Pass, from: [{pods: {podSelector: {matchLabels: {app: client}}}}]}
  - {name: no strangers, action: Deny, from: [{namespaces: {}}]}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: x}, spec: {podSelector: {matchLabels: {app: web}},
  ingress: [{from: [{podSelector: {}}, {ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 80}]}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 198.51.100.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, status: {addresses: [{type: InternalIP, address: 198.51.100.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x, labels: {app: client}}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: x}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: x, labels: {app: web}}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: x, labels: {app: probe}}, spec: {nodeName: node-2}, status: {podIP: 10.0.1.1}}
"#;

fn compile<'a>(path: &'a str, renderer: &'a str) -> Vec<&'a str> {
    vec!["compile", "--state", path, "--node", "node-1", "--renderer", renderer]
}

const CONTIV: &str = "\
node node-1, tables judge what leaves the vswitch (egress orientation)

pod x/a (10.0.0.1)
  ingress: no rules, everything is allowed
  egress: no rules, everything is allowed

pod x/b (10.0.0.2)
  ingress: no rules, everything is allowed
  egress: no rules, everything is allowed

pod x/web (10.0.0.3)
  ingress: 5 rules, the first that matches decides
    0 allow 10.0.0.1/32 -> any TCP:80  # x/web ingress[0]
    1 allow 10.0.1.1/32 -> any TCP:9  # Admin tier, ClusterNetworkPolicy tenants ingress[0]
    2 allow 198.51.100.1/32 -> any any  # own node
    3 allow 203.0.113.0/24 -> any TCP:80  # x/web ingress[0]
    4 deny  any -> any any  # Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers); ingress isolated by x/web
  egress: no rules, everything is allowed

local table eed4cb4e538dcab0 of x/web: 5 rules, the first that matches decides
    0 allow 10.0.0.1/32 -> any TCP:80  # x/web ingress[0]
    1 allow 10.0.1.1/32 -> any TCP:9  # Admin tier, ClusterNetworkPolicy tenants ingress[0]
    2 allow 198.51.100.1/32 -> any any  # own node
    3 allow 203.0.113.0/24 -> any TCP:80  # x/web ingress[0]
    4 deny  any -> any any  # Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers); ingress isolated by x/web

global table: no rules, it is not applied
";

const SESSION_RULES: &str = "\
node node-1: 14 session rules for TCP and UDP, tag bulkhead/policy

NAMESPACE  POD
        1  x/a
        2  x/b
        3  x/web

SCOPE   NAMESPACE  TRANSPORT  LOCAL                 REMOTE                    ACTION  ORIGIN
global  -          TCP        10.0.0.3/32 any port  0.0.0.0/1 any port        deny    Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers); ingress isolated by x/web
global  -          TCP        10.0.0.3/32 any port  128.0.0.0/1 any port      deny    ingress isolated by x/web
global  -          TCP        10.0.0.3/32 any port  198.51.100.1/32 any port  allow   own node
global  -          TCP        10.0.0.3/32 port 9    10.0.1.1/32 any port      allow   Admin tier, ClusterNetworkPolicy tenants ingress[0]
global  -          TCP        10.0.0.3/32 port 80   10.0.0.1/32 any port      allow   x/web ingress[0]
global  -          TCP        10.0.0.3/32 port 80   203.0.113.0/24 any port   allow   x/web ingress[0]
global  -          UDP        10.0.0.3/32 any port  0.0.0.0/1 any port        deny    Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers); ingress isolated by x/web
global  -          UDP        10.0.0.3/32 any port  128.0.0.0/1 any port      deny    ingress isolated by x/web
global  -          UDP        10.0.0.3/32 any port  198.51.100.1/32 any port  allow   own node
local   1          TCP        0.0.0.0/0 any port    10.0.0.3/32 any port      deny    ingress isolated by x/web
local   1          TCP        0.0.0.0/0 any port    10.0.0.3/32 port 80       allow   x/web ingress[0]
local   1          UDP        0.0.0.0/0 any port    10.0.0.3/32 any port      deny    ingress isolated by x/web
local   2          TCP        0.0.0.0/0 any port    10.0.0.3/32 any port      deny    Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers)
local   2          UDP        0.0.0.0/0 any port    10.0.0.3/32 any port      deny    Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers)
";

#[test]
fn rules_and_tables_of_contiv_are_printed_with_the_policies_behind_them() {
    let path = scratch("renderers-contiv.yaml", STATE);
    assert_eq!(stdout(&bulkhead(&compile(&path, "contiv")), 0), CONTIV);
    let args = [&compile(&path, "contiv")[..], &["-o", "json"]].concat();
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    assert_eq!((&answer["renderer"], &answer["orientation"]), (&json!("contiv"), &json!("egress")));
    assert_eq!(answer["pods"].as_array().unwrap().len(), 3);
    let web = &answer["pods"][2];
    assert_eq!((&web["pod"], &web["addresses"]), (&json!("x/web"), &json!(["10.0.0.3"])));
    let expected = json!({
        "action": "allow", "src": "10.0.1.1/32", "dst": null, "protocols": [6, 6], "ports": [9, 9],
        "text": "allow 10.0.1.1/32 -> any TCP:9",
        "origins": [{"policy": null, "cluster_policy": {
            "tier": "Admin", "kind": "ClusterNetworkPolicy", "name": "tenants", "direction": "ingress", "rule": 0,
        }}],
    });
    assert_eq!(web["ingress"][1], expected);
    let [local] = &answer["local_tables"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&local["pods"], &local["rules"][1]), (&json!(["x/web"]), &expected));
    assert_eq!(answer["global_table"], json!([]));
}

#[test]
fn session_rules_are_printed_with_scope_namespace_tag_and_the_policies_behind_them() {
    let path = scratch("renderers-session.yaml", STATE);
    assert_eq!(stdout(&bulkhead(&compile(&path, "session-rules")), 0), SESSION_RULES);
    let args = [&compile(&path, "session-rules")[..], &["-o", "json"]].concat();
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    assert_eq!(answer["namespaces"][2], json!({"namespace": 3, "pod": "x/web"}));
    let rules = answer["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 14);
    let expected = json!({
        "scope": "local", "namespace": 1, "pod": "x/a", "tag": "bulkhead/policy", "transport": "TCP",
        "local": {"network": "0.0.0.0/0", "port": 0}, "remote": {"network": "10.0.0.3/32", "port": 80}, "action": "allow",
        "origins": [{"policy": {"namespace": "x", "name": "web", "direction": "ingress", "rule": 0}}],
    });
    assert_eq!(rules[10], expected);
    assert_eq!((&rules[0]["scope"], &rules[0]["namespace"]), (&json!("global"), &Value::Null));
}

#[test]
fn the_ruleset_of_the_kernel_is_printed_for_interfaces_of_a_map_or_named_after_the_pods() {
    let path = scratch("renderers-nftables.yaml", STATE);
    let script = stdout(&bulkhead(&compile(&path, "nftables")), 0);
    for line in [
        "delete table inet bulkhead",
        "    type filter hook postrouting priority 88; policy accept;",
        "  chain to-web {",
        "    counter name \"closed\" drop comment \"ingress of x/web\"",
        "add element inet bulkhead to { \"a\" : goto to-a, \"b\" : goto to-b, \"web\" : goto to-web }",
        "add element inet bulkhead own4 { 198.51.100.1 }",
    ] {
        assert!(script.lines().any(|printed| printed == line), "{line} is not in:\n{script}");
    }
    for part in [
        "drop comment \"Admin tier, ClusterNetworkPolicy tenants ingress[2] (no strangers)\"",
        " return comment \"Admin tier",
    ] {
        assert!(script.contains(part), "{part} is not in:\n{script}");
    }
    let map = scratch("renderers-interfaces.yaml", "x/web: veth-13dd25c5cb\n");
    let args = [&compile(&path, "nftables")[..], &["--interfaces", &map, "-o", "json"]].concat();
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    assert_eq!(answer["interfaces"], json!({"veth-13dd25c5cb": "x/web"}));
    let script = answer["script"].as_str().unwrap();
    assert!(script.contains("unplaced4 { 10.0.0.1, 10.0.0.2 }"), "pods that are not in the map are closed:\n{script}");
    for (name, text, says) in [
        ("nobody", "x/nobody: veth1\n", "the node has no pod `x/nobody`"),
        ("long", "x/web: veth-13dd25c5cb0\n", "is not a valid interface name"),
        ("twice", "{x/web: v1, x/a: v1}\n", "have the same interface v1"),
        ("list", "[]\n", "is not an interface map"),
    ] {
        let map = scratch(&format!("renderers-interfaces-{name}.yaml"), text);
        let output = bulkhead(&[&compile(&path, "nftables")[..], &["--interfaces", &map]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(says) && error.contains("help: "), "{name}: {error}");
    }
}

#[test]
fn identities_are_listed_with_the_ipcache_and_each_pods_policy_map() {
    let path = scratch("renderers-identity.yaml", STATE);
    let args = [&compile(&path, "identity")[..], &["-o", "json"]].concat();
    let told: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    let find = |list: &Value, field: &str, wanted: &str| {
        let found = list.as_array().unwrap().iter().find(|one| one[field] == wanted);
        found.unwrap_or_else(|| panic!("no {field} {wanted} in {list:#}")).clone()
    };
    let number = |labels: &str| find(&told["identities"], "labels", labels)["identity"].as_u64().unwrap();
    let pod = "k8s:io.kubernetes.pod.namespace=x;";
    let [client, probe] = ["client", "probe"].map(|app| number(&format!("{pod}k8s:app={app};")));
    assert_eq!([number("reserved:host"), number("reserved:world"), number("reserved:remote-node")], [1, 2, 6]);
    let block = number("cidr:203.0.113.0/24;");
    assert!((256..1 << 24).contains(&client) && block >= 1 << 24, "{client} {block}");
    for (prefix, of) in
        [("10.0.0.1/32", client), ("10.0.1.1/32", probe), ("198.51.100.1/32", 1), ("203.0.113.0/24", block)]
    {
        assert_eq!(find(&told["ipcache"], "prefix", prefix)["identity"], of, "{prefix}");
    }
    let keys = |pod: &str| -> Vec<String> {
        let policy = find(&told["pods"], "pod", pod)["policy"].clone();
        let entries = policy.as_array().unwrap().iter();
        let line = |entry: &Value| {
            let keys = entry["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned());
            keys.map(|key| format!("{key} {}", entry["action"].as_str().unwrap())).collect::<Vec<_>>()
        };
        entries.flat_map(line).collect()
    };
    assert_eq!(keys("x/a"), ["0:0:0:ingress allow", "0:0:0:egress allow"], "the default entries");
    let web = keys("x/web");
    let wanted = [
        format!("{client}:TCP:80:ingress allow"),
        format!("{probe}:TCP:9:ingress allow"),
        format!("{block}:TCP:80:ingress allow"),
        "1:0:0:ingress allow".to_owned(),
        "0:0:0:ingress deny".to_owned(),
    ];
    assert!(wanted.iter().all(|key| web.contains(key)), "{wanted:?}\n{web:#?}");
    let text = stdout(&bulkhead(&compile(&path, "identity")), 0);
    assert!(text.contains(&format!("{client}:TCP:80:ingress allow  # x/web ingress[0]")), "{text}");
}

/// Regression: the default entries and the world were missing if blocks of both families covered every address.
#[test]
fn the_world_and_the_default_entries_are_listed_where_blocks_hold_every_address() {
    let everything =
        STATE.replace("{ipBlock: {cidr: 203.0.113.0/24}}", "{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}");
    assert_ne!(everything, STATE);
    let path = scratch("renderers-identity-world.yaml", &everything);
    let text = stdout(&bulkhead(&compile(&path, "identity")), 0);
    let ends = |line: &str| text.lines().any(|printed| printed.trim_start() == line);
    assert!(ends("2  reserved:world"), "{text}");
    let default = ["0:0:0:ingress allow  # no ingress isolation", "0:0:0:egress allow  # no egress isolation"];
    for pod in ["a (10.0.0.1)", "b (10.0.0.2)"] {
        let policy = format!("policy of x/{pod}\n  {}\n  {}\n", default[0], default[1]);
        assert!(text.contains(&policy), "{policy} is not in:\n{text}");
    }
    assert!(ends("0:0:0:ingress deny  # ingress isolated by x/web"), "{text}");
}

/// Regression: all remote nodes were listed as identity 6, so each got the keys of the others.
#[test]
fn remote_nodes_that_a_block_tells_apart_have_a_number_each() {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: node-3}, status: {addresses: [{type: InternalIP, address: 198.51.100.3}]}}";
    let state = STATE.replace("cidr: 203.0.113.0/24", "cidr: 198.51.100.2/32") + "---\n" + node + "\n";
    let path = scratch("renderers-identity-nodes.yaml", &state);
    let args = [&compile(&path, "identity")[..], &["-o", "json"]].concat();
    let told: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    let of = |prefix: &str| {
        let entry = told["ipcache"].as_array().unwrap().iter().find(|entry| entry["prefix"] == prefix);
        entry.unwrap_or_else(|| panic!("{prefix} is not in {told:#}"))["identity"].as_u64().unwrap()
    };
    let (inside, outside) = (of("198.51.100.2/32"), of("198.51.100.3/32"));
    assert!(inside.min(outside) == 6 && inside.max(outside) >= 1 << 24, "{inside} {outside}");
    let labels: Vec<&str> =
        told["identities"].as_array().unwrap().iter().filter_map(|one| one["labels"].as_str()).collect();
    assert_eq!(labels.iter().filter(|labels| labels.starts_with("reserved:remote-node")).count(), 2, "{labels:?}");
    let policies = told["pods"].to_string();
    assert!(policies.contains(&format!("\"{inside}:TCP:80:ingress\"")), "{policies}");
    assert!(!policies.contains(&format!("\"{outside}:TCP:80:ingress\"")), "{policies}");
}

#[test]
fn what_is_not_known_or_does_not_fit_is_an_error_that_says_so() {
    let path = scratch("renderers-errors.yaml", STATE);
    let refused = |args: &[&str], parts: &[&str]| {
        let output = bulkhead(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{error}");
        for part in parts {
            assert!(error.contains(part), "{part} is not in:\n{error}");
        }
    };
    for renderer in ["contiv", "identity", "session-rules", "nftables"] {
        let unknown = ["compile", "--state", &path, "--node", "node-9", "--renderer", renderer];
        refused(&unknown, &["no node `node-9` in the state", "node-1"]);
        for option in ["--stats", "--six-tuples"] {
            refused(&[&compile(&path, renderer)[..], &[option]].concat(), &[option, "--renderer acl"]);
        }
        let with_map = [&compile(&path, renderer)[..], &["--interfaces", "map.yaml"]].concat();
        refused(
            &with_map,
            if renderer == "nftables" { &["map.yaml"] } else { &["--interfaces", "--renderer nftables"] },
        );
    }
    // 14 blocks with half of all ports each need more rules than a session table holds, in either form.
    let blocks: Vec<String> = (0..14).map(|at| format!("{{ipBlock: {{cidr: 10.{}.0.0/16}}}}", 2 * at)).collect();
    let wide = format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: wide, namespace: x}}, \
          spec: {{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{from: [{}], ports: [{{port: 1, endPort: 32000}}]}}]}}}}",
        blocks.join(", ")
    );
    let path = scratch("renderers-wide.yaml", &format!("{STATE}---\n{wide}\n"));
    refused(&compile(&path, "session-rules"), &["session rules of node node-1", "more than 400000 session rules"]);
}
