//! Security groups: the output of `compile --renderer neutron`, and `sync neutron` with a failing server.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../control/tests/support/neutron.rs"]
mod double;
#[path = "support/neutron_server.rs"]
mod server;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::{Command, Output};

use crate::support::{bulkhead, root, scratch, stdout};
use serde_json::{Value, json};
use server::{Fault, Server, TOKEN};

/// The example from the execution flow in Kuryr's specification: the policy of the Kubernetes tutorial, the pods that it selects, p1 and
/// p2, and its peers.
const STATE: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: default}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: mine, labels: {project: myproject}}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 198.51.100.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: default, labels: {role: db}}, spec: {nodeName: node-1}, status: {podIP: 10.1.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p2, namespace: default, labels: {role: db}}, spec: {nodeName: node-1}, status: {podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: front, namespace: default, labels: {role: frontend}}, spec: {nodeName: node-1}, status: {podIP: 10.1.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: mine}, spec: {nodeName: node-1}, status: {podIP: 10.1.0.4}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other, namespace: default}, spec: {nodeName: node-1}, status: {podIP: 10.1.0.5}}
";

const PODS: [&str; 5] = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"];

const UID: &str = "65d54bbb-70d5-11e9-9986-fa163e6aa097";

/// The example's policy with this generation and port.
fn tutorial(generation: u64, port: u16) -> String {
    format!(
        "{STATE}---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: test-network-policy, namespace: default, uid: {UID}, generation: {generation}}}
spec:
  podSelector: {{matchLabels: {{role: db}}}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - ipBlock: {{cidr: 172.17.0.0/16, except: [172.17.1.0/24]}}
    - namespaceSelector: {{matchLabels: {{project: myproject}}}}
    - podSelector: {{matchLabels: {{role: frontend}}}}
    ports: [{{protocol: TCP, port: {port}}}]
  egress:
  - to: [{{ipBlock: {{cidr: 10.0.0.0/24}}}}]
    ports: [{{protocol: TCP, port: 5978}}]
"
    )
}

/// The JSON output of `compile` for a state.
fn compiled(name: &str, state: &str) -> Value {
    let path = scratch(name, state);
    let args = ["compile", "--renderer", "neutron", "--state", &path, "-o", "json"];
    serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap()
}

fn group<'a>(answer: &'a Value, tag: &str) -> &'a Value {
    let id = format!("[{tag}]");
    let all = answer["groups"].as_array().unwrap();
    all.iter().find(|group| group["id"] == id).unwrap_or_else(|| panic!("no group {tag} in {answer:#}"))
}

/// A group's rules without the group's id.
fn rules(group: &Value) -> Vec<Value> {
    let rules = group["rules"].as_array().unwrap().iter().map(|rule| {
        let mut rule = rule["security_group_rule"].clone();
        assert_eq!(rule.as_object_mut().unwrap().remove("security_group_id"), Some(group["id"].clone()));
        rule
    });
    rules.collect()
}

fn groups_of(answer: &Value, pod: &str) -> BTreeSet<String> {
    let port = answer["ports"].as_array().unwrap().iter().find(|port| port["pod"] == pod).unwrap();
    let groups = port["body"]["port"]["security_groups"].as_array().unwrap();
    groups.iter().map(|group| group.as_str().unwrap().trim_matches(['[', ']']).to_owned()).collect()
}

fn set(tags: &[&str]) -> BTreeSet<String> {
    tags.iter().map(|tag| (*tag).to_owned()).collect()
}

#[test]
fn the_execution_flow_of_the_specification_gives_its_rules_and_attachments() {
    let answer = compiled("neutron-tutorial.yaml", &tutorial(7, 6379));
    let of_policy = group(&answer, UID);
    assert_eq!(of_policy["tags"], json!(["bulkhead:default", UID, "generation:7"]));
    let tcp = |direction: &str, port: u16, key: &str, remote: &str| json!({"direction": direction, "ethertype": "IPv4", "protocol": "tcp", "port_range_min": port, "port_range_max": port, key: remote});
    let blocks = [
        "172.17.0.0/24",
        "172.17.2.0/23",
        "172.17.4.0/22",
        "172.17.8.0/21",
        "172.17.16.0/20",
        "172.17.32.0/19",
        "172.17.64.0/18",
        "172.17.128.0/17",
    ];
    let mut expected: Vec<Value> = blocks.iter().map(|block| tcp("ingress", 6379, "remote_ip_prefix", block)).collect();
    expected.push(tcp("ingress", 6379, "remote_group_id", &format!("[{UID}_in]")));
    expected.push(tcp("egress", 5978, "remote_ip_prefix", "10.0.0.0/24"));
    assert_eq!(rules(of_policy), expected);
    let peers = group(&answer, &format!("{UID}_in"));
    assert_eq!((rules(peers), &peers["tags"][1]), (vec![], &json!(format!("{UID}_in"))));
    let node = ["node_node-1_in", "node_node-1_eg"];
    for pod in ["default/p1", "default/p2"] {
        assert_eq!(groups_of(&answer, pod), set(&[UID, node[0], node[1]]), "N:M, and the second pod as the first");
    }
    for pod in ["default/front", "mine/far"] {
        assert_eq!(groups_of(&answer, pod), set(&["open_in", "open_eg", &format!("{UID}_in")]));
    }
    assert_eq!(groups_of(&answer, "default/other"), set(&["open_in", "open_eg"]));
}

/// A policy that selects all pods of `default`.
fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: default, uid: {name}}}, spec: {{{spec}}}}}\n"
    )
}

#[test]
fn allow_all_is_one_rule_deny_all_is_an_empty_group_and_an_exception_is_left_out() {
    let all = policy("all", "podSelector: {}, policyTypes: [Egress], egress: [{}]");
    let none = policy("none", "podSelector: {}, policyTypes: [Ingress]");
    let block = "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 1.1.1.0/24, except: [1.1.1.0/26]}}]}]";
    let answer = compiled("neutron-small.yaml", &format!("{STATE}{all}{none}{}", policy("block", block)));
    // The specification omits the ethertype, which means IPv4. All pods have IPv4 addresses only.
    assert_eq!(rules(group(&answer, "all")), [json!({"direction": "egress", "ethertype": "IPv4", "protocol": null})]);
    assert_eq!(rules(group(&answer, "none")), [] as [Value; 0]);
    let prefix = |prefix: &str| json!({"direction": "ingress", "ethertype": "IPv4", "protocol": null, "remote_ip_prefix": prefix});
    assert_eq!(rules(group(&answer, "block")), [prefix("1.1.1.64/26"), prefix("1.1.1.128/25")]);
    assert_eq!(groups_of(&answer, "default/p1"), set(&["all", "none", "block", "node_node-1_in", "node_node-1_eg"]));
}

#[test]
fn a_port_name_is_the_number_of_the_pod_and_pods_with_other_numbers_have_another_group() {
    let pod = |name: &str, address: &str, number: u16| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: default, labels: {{pod-name: server}}}}, spec: {{nodeName: node-1, \
             containers: [{{name: c, ports: [{{containerPort: {number}, name: serve-80, protocol: TCP}}]}}]}}, status: {{podIP: {address}}}}}\n"
        )
    };
    let spec = "podSelector: {matchLabels: {pod-name: server}}, policyTypes: [Ingress], ingress: [{ports: [{protocol: TCP, port: serve-80}]}]";
    let of_policy = policy("named", spec);
    let server = pod("server", "10.0.0.231", 80);
    let rule = |port: u16| json!({"direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": port, "port_range_max": port});
    let answer = compiled("neutron-named.yaml", &format!("{STATE}{server}{of_policy}"));
    assert_eq!(rules(group(&answer, "named")), [rule(80)]);
    // The policy's group does not include the directions that it leaves open. Otherwise it would allow what another policy denies.
    assert_eq!(groups_of(&answer, "default/server"), set(&["named", "node_node-1_in", "open_eg"]));
    let other = pod("second", "10.0.0.232", 81);
    let answer = compiled("neutron-named.yaml", &format!("{STATE}{server}{other}{of_policy}"));
    let variants = |pod: &str| groups_of(&answer, pod).into_iter().find(|tag| tag.starts_with("named")).unwrap();
    let (first, second) = (variants("default/server"), variants("default/second"));
    assert_eq!((rules(group(&answer, &first)), rules(group(&answer, &second))), (vec![rule(80)], vec![rule(81)]));
    assert!(first != second && set(&[&first, &second]).contains("named"), "{first} {second}");
}

#[test]
fn a_uid_that_is_no_tag_is_hashed_and_one_that_two_policies_have_tells_nothing() {
    let long = "u".repeat(41);
    let with_uid = |name: &str, uid: &str| {
        format!(
            "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: default, uid: '{uid}'}}, spec: {{podSelector: {{}}}}}}\n"
        )
    };
    let state = format!(
        "{STATE}{}{}{}{}",
        with_uid("long", &long),
        with_uid("odd", "a,b"),
        with_uid("one", "same"),
        with_uid("other", "same")
    );
    let answer = compiled("neutron-tags.yaml", &state);
    let tags: Vec<&str> =
        answer["groups"].as_array().unwrap().iter().map(|group| group["tags"][1].as_str().unwrap()).collect();
    let hashed = tags.iter().filter(|tag| tag.starts_with("h_") && tag.len() == 34).count();
    let named = tags.iter().filter(|tag| tag.starts_with("np_") && tag.len() == 35).count();
    assert_eq!((hashed, named), (2, 2), "{tags:?}");
    assert_eq!(groups_of(&answer, "default/p1").len(), 4 + 2, "four policies, the own node, and egress is open");
}

#[test]
fn what_groups_cannot_say_is_refused_with_the_reason_and_closed_where_that_is_asked_for() {
    let deny = "---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-telnet}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {podSelector: {matchLabels: {role: db}}}}
  ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 23}}}]}]
";
    let path = scratch("neutron-refused.yaml", &format!("{STATE}{deny}"));
    let args = ["compile", "--renderer", "neutron", "--state", &path];
    let output = bulkhead(&args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["default/p1, default/p2", "nothing passes", "a rule names one protocol or all", "--lenient"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let text = stdout(&bulkhead(&[&args[..], &["--lenient"]].concat()), 0);
    assert!(text.contains("\n  none: what is left after a deny"), "{text}");
}

#[test]
fn options_that_do_not_fit_the_renderer_are_errors() {
    let path = scratch("neutron-options.yaml", STATE);
    let refused = |args: &[&str], part: &str| {
        let output = bulkhead(&[&["compile", "--state", &path][..], args].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(part), "{args:?}: {error}");
    };
    refused(&["--renderer", "neutron", "--node", "node-1"], "covers all nodes");
    refused(&[], "--node is missing");
    refused(&["--node", "node-1", "--before", &path], "--before works only with --renderer neutron");
}

#[test]
fn between_two_states_only_what_differs_is_asked_for() {
    let [before, after] = [tutorial(7, 6379), tutorial(8, 6380)];
    let before = scratch("neutron-before.yaml", &before);
    let same = ["compile", "--renderer", "neutron", "--state", &before, "--before", &before];
    assert_eq!(stdout(&bulkhead(&same), 0), "");
    let after = scratch("neutron-after.yaml", &after);
    let text = stdout(&bulkhead(&["compile", "--renderer", "neutron", "--state", &after, "--before", &before]), 0);
    let count = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
    let all = text.lines().count();
    assert_eq!(
        (count("DELETE /v2.0/security-group-rules/"), count("POST /v2.0/security-group-rules "), count("PUT")),
        (9, 9, 2),
        "{text}"
    );
    assert_eq!(all, 20, "{text}");
    let first_post = text.lines().position(|line| line.starts_with("POST")).unwrap();
    assert!(text.lines().take(first_post).all(|line| line.starts_with("DELETE")), "it closes before it opens:\n{text}");
}

/// A server with one port per pod, all in the project's default group. Also returns the id of that group.
fn started() -> (Server, String) {
    let server = Server::start();
    let any = |direction: &str| json!({"direction": direction, "ethertype": "IPv4", "protocol": null, "port_range_min": null, "port_range_max": null, "remote_ip_prefix": null, "remote_group_id": null});
    let default = {
        let mut state = server.state();
        let default = state.neutron.add_group("default", &[any("egress"), any("ingress")]);
        for address in PODS {
            state.neutron.add_port(&[address.parse::<IpAddr>().unwrap()], &[&default]);
        }
        default
    };
    (server, default)
}

fn sync(server: &Server, path: &str, more: &[&str]) -> Output {
    let args = ["sync", "neutron", "--state", path, "--endpoint", &server.url];
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(args)
        .args(more)
        .env("OS_TOKEN", TOKEN)
        .current_dir(root())
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(!String::from_utf8(said).unwrap().contains(TOKEN), "the token is printed");
    output
}

/// Compares the groups' verdicts with those of `reach`. Returns the number of allowed cells.
fn assert_as_reach(server: &Server, path: &str) -> usize {
    let outside = ["172.17.0.9", "172.17.1.9", "10.0.0.9", "203.0.113.9"];
    let mut args = vec!["reach", "-o", "json", "--state", path];
    outside.iter().for_each(|address| args.extend(["--external", address]));
    ["6379/TCP", "6380/TCP", "5978/TCP", "53/UDP"].iter().for_each(|port| args.extend(["--port", port]));
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    let names = ["default/p1", "default/p2", "default/front", "mine/far", "default/other"];
    let address = |name: &Value| -> IpAddr {
        let name = name.as_str().unwrap();
        let pod = names.iter().position(|known| *known == name).map(|at| PODS[at]);
        pod.unwrap_or(name).parse().unwrap()
    };
    let verdicts = server.state().neutron.verdicts();
    let mut passing = 0;
    for probe in answer["probes"].as_array().unwrap() {
        let protocol = if probe["protocol"] == "UDP" { 17 } else { 6 };
        let port = u16::try_from(probe["port"].as_u64().unwrap()).unwrap();
        let passes = verdicts.passes(address(&probe["from"]), address(&probe["to"]), protocol, port);
        assert_eq!(passes, probe["verdict"] == "allow", "{probe}");
        passing += usize::from(passes);
    }
    passing
}

#[test]
fn a_server_gets_what_the_policies_say_and_a_second_run_changes_nothing() {
    let (server, default) = started();
    // The server's pages are smaller than requested, so each list takes several requests.
    server.state().neutron.page = 2;
    let path = scratch("neutron-sync.yaml", &tutorial(7, 6379));
    let dry = sync(&server, &path, &["--dry-run"]);
    assert!(stdout(&dry, 1).contains("POST /v2.0/security-groups "), "1: it is not in force");
    assert_eq!(server.state().neutron.changes, [] as [String; 0]);
    assert!(stdout(&sync(&server, &path, &[]), 0).starts_with("6 security groups with 14 rules for 5 pods"));
    assert!(assert_as_reach(&server, &path) > 10);
    assert!(server.state().neutron.ports.values().all(|port| !port["security_groups"].to_string().contains(&default)));
    let sent = server.state().neutron.changes.len();
    assert!(stdout(&sync(&server, &path, &[]), 0).contains("; 0 requests sent"));
    assert_eq!(stdout(&sync(&server, &path, &["--dry-run"]), 0), "");
    assert_eq!(server.state().neutron.changes.len(), sent);
    // Another client changes a managed group and removes it from a port.
    {
        let mut state = server.state();
        let port = state.neutron.ports.keys().next().unwrap().clone();
        state.neutron.ports.get_mut(&port).unwrap()["security_groups"] = json!([default]);
        let group = state
            .neutron
            .groups
            .values_mut()
            .find(|group| group["tags"].to_string().contains("generation:7\"]"))
            .unwrap();
        group["security_group_rules"].as_array_mut().unwrap().remove(0);
    }
    stdout(&sync(&server, &path, &[]), 0);
    assert!(assert_as_reach(&server, &path) > 10);
    // First another policy, then no policy: unused groups are removed.
    let changed = scratch("neutron-sync-changed.yaml", &tutorial(8, 6380));
    stdout(&sync(&server, &changed, &[]), 0);
    assert!(assert_as_reach(&server, &changed) > 10);
    let open = scratch("neutron-sync-open.yaml", STATE);
    assert!(stdout(&sync(&server, &open, &[]), 0).starts_with("2 security groups with 2 rules for 5 pods"));
    assert_eq!(server.state().neutron.groups.len(), 3, "the two, and the project's default");
}

#[test]
fn two_clusters_share_a_project_and_a_group_may_be_kept() {
    let (server, default) = started();
    let path = scratch("neutron-clusters.yaml", STATE);
    stdout(&sync(&server, &path, &["--cluster", "blue", "--keep-group", &default]), 0);
    let ports = |server: &Server| {
        server
            .state()
            .neutron
            .ports
            .values()
            .filter(|port| port["security_groups"].to_string().contains(&default))
            .count()
    };
    assert_eq!((ports(&server), server.state().neutron.groups.len()), (5, 3));
    stdout(&sync(&server, &path, &["--cluster", "green"]), 0);
    assert_eq!((ports(&server), server.state().neutron.groups.len()), (0, 5), "blue's groups stay");
}

#[test]
fn lost_answers_and_errors_of_the_server_are_made_up_for_and_nothing_is_done_twice() {
    let path = scratch("neutron-faults.yaml", &tutorial(7, 6379));
    let faults = [
        Fault::LostBefore,
        Fault::LostAfter,
        Fault::Answers(503, "", "busy"),
        Fault::Answers(429, "", "slow down"),
        Fault::DoneBut(502),
    ];
    let (server, _) = started();
    stdout(&sync(&server, &path, &[]), 0);
    let requests = server.state().neutron.changes.len();
    let groups = server.state().neutron.groups.len();
    assert!(requests > 30, "{requests}");
    for (at_fault, fault) in faults.iter().enumerate() {
        let (server, _) = started();
        // Each fault hits a fifth of the requests, so that over all faults each request is hit once.
        let planned: Vec<(usize, Fault)> = (0..2 * requests)
            .filter(|at| at % 10 == 2 * at_fault || at % 10 == (2 * at_fault + 5) % 10)
            .map(|at| (at, fault.clone()))
            .collect();
        server.state().plan(&planned);
        let output = sync(&server, &path, &[]);
        stdout(&output, 0);
        assert!(assert_as_reach(&server, &path) > 10);
        assert_eq!(server.state().neutron.groups.len(), groups, "{fault:?}: a group is there twice");
        server.state().plan(&[]);
        assert!(stdout(&sync(&server, &path, &[]), 0).contains("; 0 requests sent"), "{fault:?}");
    }
}

#[test]
fn a_run_that_ends_anywhere_is_continued_by_the_next() {
    let path = scratch("neutron-ends.yaml", &tutorial(7, 6379));
    let (server, _) = started();
    for ends in 0.. {
        assert!(ends < 40, "each run comes further");
        // Each run can send only nine changes.
        server.state().plan(&[(9, Fault::Answers(403, "Forbidden", "not now"))]);
        let output = sync(&server, &path, &[]);
        if output.status.code() == Some(0) {
            assert!(ends > 2, "{ends}");
            break;
        }
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.contains("requests succeeded; run the same command again to continue") && error.contains("role"),
            "{error}"
        );
    }
    assert!(assert_as_reach(&server, &path) > 10);
    assert_eq!(server.state().neutron.groups.len(), 7, "what was left without tags is gone");
}

#[test]
fn a_quota_that_is_used_up_leaves_ports_as_they_were_and_says_what_to_raise() {
    let path = scratch("neutron-quota.yaml", &tutorial(7, 6379));
    for (groups, rules) in [(4, 100), (20, 10)] {
        let (server, default) = started();
        (server.state().neutron.max_groups, server.state().neutron.max_rules) = (groups, rules);
        let output = sync(&server, &path, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("Quota exceeded for resources") && error.contains("openstack quota set --secgroups"),
            "{error}"
        );
        assert!(server.state().neutron.ports.values().all(|port| port["security_groups"] == json!([default])));
        (server.state().neutron.max_groups, server.state().neutron.max_rules) = (20, 100);
        stdout(&sync(&server, &path, &[]), 0);
        assert!(assert_as_reach(&server, &path) > 10);
    }
}

#[test]
fn a_state_that_is_older_than_what_is_in_force_changes_nothing_unless_it_is_asked_to() {
    let (server, _) = started();
    let [old, new] = [(7, 6379), (8, 6380)].map(|(generation, port)| {
        scratch(&format!("neutron-generation-{generation}.yaml"), &tutorial(generation, port))
    });
    stdout(&sync(&server, &new, &[]), 0);
    let output = sync(&server, &old, &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.contains("is of generation 8 of its policy, the state has 7"),
        "{error}"
    );
    assert_as_reach(&server, &new);
    stdout(&sync(&server, &old, &["--allow-older"]), 0);
    assert_as_reach(&server, &old);
}

/// Regression: a truncated state file closed all ports.
#[test]
fn a_state_without_pods_deletes_nothing_unless_it_is_asked_to() {
    let (server, _) = started();
    let path = scratch("neutron-whole.yaml", &tutorial(7, 6379));
    stdout(&sync(&server, &path, &[]), 0);
    let before = server.state().neutron.changes.len();
    let empty = scratch("neutron-empty.yaml", "");
    for more in [&[][..], &["--dry-run"]] {
        let output = sync(&server, &empty, more);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("the state has no pod") && error.contains("--allow-empty"), "{error}");
    }
    assert_eq!(server.state().neutron.changes.len(), before);
    assert!(assert_as_reach(&server, &path) > 10);
    stdout(&sync(&server, &empty, &["--allow-empty"]), 0);
    assert_eq!(server.state().neutron.groups.len(), 1, "the project's default");
    stdout(&sync(&server, &empty, &[]), 0);
}

#[test]
fn pods_whose_ports_are_not_what_they_should_be_are_told() {
    let (server, _) = started();
    {
        let mut state = server.state();
        let ports: Vec<String> = state.neutron.ports.keys().cloned().collect();
        state.neutron.ports.remove(&ports[4]);
        state.neutron.ports.get_mut(&ports[3]).unwrap()["port_security_enabled"] = false.into();
        state.neutron.ports.get_mut(&ports[3]).unwrap()["security_groups"] = json!([]);
        state.neutron.ports.get_mut(&ports[2]).unwrap()["allowed_address_pairs"] =
            json!([{"ip_address": "10.9.0.0/16"}]);
        state.neutron.add_port(&["10.1.0.2".parse().unwrap()], &[]);
    }
    let path = scratch("neutron-ports.yaml", &tutorial(7, 6379));
    let output = sync(&server, &path, &[]);
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in [
        "default/other has no port",
        "mine/far has no port security",
        "default/front has other addresses",
        "default/p2 has the addresses of several",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let verdicts = server.state().neutron.verdicts();
    let passes = |from: &str| verdicts.passes(from.parse().unwrap(), "10.1.0.1".parse().unwrap(), 6, 6379);
    assert!(!passes("10.1.0.3") && !passes("10.9.1.1"), "the rule would mean the other addresses as well");
}

#[test]
fn a_token_that_is_missing_or_out_of_date_and_a_wrong_endpoint_are_errors_with_the_remedy() {
    let path = scratch("neutron-token.yaml", STATE);
    let (server, _) = started();
    let run = |token: Option<&str>, endpoint: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
        command
            .args(["sync", "neutron", "--state", &path, "--endpoint", endpoint, "--retries", "0"])
            .env_remove("OS_TOKEN");
        if let Some(token) = token {
            command.env("OS_TOKEN", token);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(None, &server.url).contains("openstack token issue"));
    let stale = run(Some("of-yesterday"), &server.url);
    assert!(
        stale.contains("401") && stale.contains("the token has expired") && !stale.contains("of-yesterday"),
        "{stale}"
    );
    assert!(run(Some(TOKEN), "neutron:9696").contains("http or https URL"));
    assert!(run(Some(TOKEN), "http://127.0.0.1:1").contains("no answer"));
}
