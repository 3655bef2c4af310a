//! `bulkhead lint`: for each kind of finding, an input that has it, and a near miss that must not be reported.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::{fs, thread};

use serde_json::{Value, json};

use crate::support::{bulkhead, root, scratch, stdout};

/// Two namespaces with pods of three applications each, a Service, and the cluster's DNS.
const BASE: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {kubernetes.io/metadata.name: a}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: b, labels: {kubernetes.io/metadata.name: b}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system, labels: {kubernetes.io/metadata.name: kube-system}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.244.1.0/24]},
 status: {addresses: [{type: InternalIP, address: 172.18.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: a, labels: {app: web}},
 spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]},
 status: {phase: Running, podIPs: [{ip: 10.244.1.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: a, labels: {app: db}},
 spec: {nodeName: n1, containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}]},
 status: {phase: Running, podIPs: [{ip: 10.244.1.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: prom, namespace: b, labels: {app: prom}},
 spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: 10.244.1.4}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: dns, namespace: kube-system, labels: {k8s-app: kube-dns}},
 spec: {nodeName: n1, containers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]},
 status: {phase: Running, podIPs: [{ip: 10.244.1.5}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a},
 spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: web}},
 ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.244.1.2], conditions: {ready: true}}]}
"#;

/// A NetworkPolicy of namespace `a`. Answers name the policy, so its line does not matter.
fn np(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: a}}\nspec:\n  {}\n",
        spec.trim().replace('\n', "\n  ")
    )
}

/// A ClusterNetworkPolicy whose subject is all pods.
fn cnp(name: &str, priority: u16, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
         tier: Admin\n  priority: {priority}\n  subject: {{namespaces: {{}}}}\n  ingress:\n  {}\n",
        rules.trim().replace('\n', "\n  ")
    )
}

/// The findings in a state of the base and these policies.
fn lint_with(name: &str, policies: &str, more: &[&str]) -> Vec<Value> {
    let path = scratch(&format!("lint-{name}.yaml"), format!("{BASE}{policies}").as_bytes());
    let args = [&["lint", "--state", &path, "-o", "json"][..], more].concat();
    let output = bulkhead(&args);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{errors}"));
    let findings = answer["findings"].as_array().unwrap().clone();
    assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{text}{errors}");
    for finding in &findings {
        for part in ["id", "severity", "policy", "reason", "mend"] {
            assert!(finding[part].as_str().is_some_and(|text| !text.is_empty()), "{part} of {finding}");
        }
        assert_eq!(finding["file"], path.as_str(), "{finding}");
        assert!(finding["line"].as_u64().is_some_and(|line| line > 1), "{finding}");
    }
    findings
}

fn of<'a>(findings: &'a [Value], id: &str) -> Vec<&'a Value> {
    findings.iter().filter(|finding| finding["id"] == id).collect()
}

/// Checks that the policies `has` produce a finding of this kind at this path with these words, and that none of `near` produces one of
/// this kind.
fn told_apart(id: &str, has: &str, path: &str, words: &[&str], near: &[String]) -> Value {
    let findings = lint_with(&format!("{id}-has"), has, &[]);
    let found = of(&findings, id);
    let at = found.iter().find(|finding| finding["path"] == path);
    let finding = at.unwrap_or_else(|| panic!("no {id} at {path}: {findings:#?}"));
    let text = format!("{} {} {}", finding["reason"], finding["mend"], finding["by"]);
    for word in words {
        assert!(text.contains(word), "{id}: {word} is not in {text}");
    }
    for (at, policies) in near.iter().enumerate() {
        let findings = lint_with(&format!("{id}-near-{at}"), policies, &[]);
        assert!(of(&findings, id).is_empty(), "{id} must not be told of the near miss {at}: {findings:#?}");
    }
    (*finding).clone()
}

const WEB: &str = "podSelector: {matchLabels: {app: web}}";
const DB: &str = "podSelector: {matchLabels: {app: db}}";

#[test]
fn selectors_that_select_nobody_are_found_with_what_is_probably_meant() {
    told_apart(
        "policy-selects-nobody",
        &np("p", "podSelector: {matchLabels: {app: wbe}}"),
        "",
        &["app=wbe", "did you mean `app: web`?"],
        &[np("p", WEB)],
    );
    let from = |peer: &str| np("p", &format!("{WEB}\ningress:\n- from:\n  - {peer}\n  - {DB}"));
    told_apart(
        "peer-selects-nobody",
        &from("podSelector: {matchLabels: {app: prom}}"),
        "spec.ingress[0].from[0]",
        &["such pods are in b", "add a namespaceSelector to the same peer"],
        &[
            from(
                "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}, podSelector: {matchLabels: {app: prom}}}",
            ),
            from("ipBlock: {cidr: 203.0.113.0/24}"),
        ],
    );
    told_apart(
        "peer-selects-nobody",
        &from("namespaceSelector: {matchLabels: {name: b}}"),
        "spec.ingress[0].from[0]",
        &["no namespace is name=b", "kubernetes.io/metadata.name: b"],
        &[],
    );
}

#[test]
fn selectors_in_two_peers_are_told_where_only_one_peer_can_be_meant() {
    let from = |app: &str| {
        let spaces = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}";
        np("p", &format!("{WEB}\ningress:\n- from:\n  - {spaces}\n  - podSelector: {{matchLabels: {{app: {app}}}}}"))
    };
    let finding = told_apart(
        "separate-selectors",
        &from("prom"),
        "spec.ingress[0].from[1]",
        &["remove the `- ` before the second selector"],
        // Pods with `db` are in both namespaces, pods with `nobody-anywhere` in none.
        &[from("db"), from("nobody-anywhere")],
    );
    assert_eq!(finding["severity"], "error");
}

#[test]
fn a_port_name_that_no_pod_has_is_found_in_either_direction() {
    let ingress = |port: &str| np("p", &format!("{WEB}\ningress:\n- ports: [{port}]"));
    let words = ["no pod that the policy selects", "did you mean `http`?"];
    told_apart(
        "named-port-missing",
        &ingress("{port: htp}"),
        "spec.ingress[0].ports[0].port",
        &words,
        &[ingress("{port: http}"), ingress("{port: 9999}")],
    );
    let words = ["write `protocol: UDP`"];
    let to = |port: &str| {
        let dns = "{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}";
        np("p", &format!("{WEB}\npolicyTypes: [Egress]\negress:\n- to: [{dns}]\n  ports: [{port}]"))
    };
    told_apart(
        "named-port-missing",
        &to("{port: dns}"),
        "spec.egress[0].ports[0].port",
        &words,
        &[to("{port: dns, protocol: UDP}")],
    );
}

#[test]
fn the_port_of_a_service_is_told_from_that_of_its_pods() {
    let to =
        |port: &str| np("p", &format!("{DB}\npolicyTypes: [Egress]\negress:\n- to: [{{{WEB}}}]\n  ports: [{port}]"));
    told_apart(
        "service-port",
        &to("{port: 80}"),
        "spec.egress[0].ports[0].port",
        &["Service a/web", "write 8080"],
        &[to("{port: 8080}"), to("{port: 81}"), to("{port: 80, protocol: UDP}")],
    );
}

#[test]
fn an_except_that_another_rule_opens_again_is_found_and_one_that_is_opened_on_purpose_is_not() {
    let first = "{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/24]}}]}";
    let with = |other: &str| np("p", &format!("{WEB}\ningress:\n- {first}\n- {other}"));
    let path = "spec.ingress[0].from[0].ipBlock.except[0]";
    let near = [
        with("{from: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 8080}]}"),
        with("{from: [{ipBlock: {cidr: 192.0.2.7/32}}]}"),
        with("{ports: [{port: 53, protocol: UDP}]}"),
        with("{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/24]}}], ports: [{port: 8080}]}"),
        format!("{}{}", with("{from: [{podSelector: {}}]}"), np("q", &format!("{DB}\ningress: [{{}}]"))),
    ];
    let other = "a/p ingress[1]";
    told_apart("except-reopened", &with("{ports: [{port: 8080}]}"), path, &["192.0.2.0/24", other], &near);
    told_apart(
        "except-reopened",
        &with("{from: [{ipBlock: {cidr: 192.0.2.0/23}}]}"),
        path,
        &["at the same ports"],
        &[],
    );
    let elsewhere = format!("{}{}", with("{from: [{podSelector: {}}]}"), np("q", &format!("{WEB}\ningress: [{{}}]")));
    told_apart("except-reopened", &elsewhere, path, &["a/q ingress[0]"], &[]);
}

#[test]
fn blocks_over_pods_and_services_are_found_and_wide_ones_are_not() {
    let to =
        |block: &str| np("p", &format!("{DB}\npolicyTypes: [Egress]\negress:\n- to: [{{ipBlock: {{cidr: {block}}}}}]"));
    let path = "spec.egress[0].to[0]";
    let near = [to("0.0.0.0/0"), to("10.0.0.0/8"), to("203.0.113.0/24")];
    told_apart("block-names-pods", &to("10.244.1.0/25"), path, &["10.244.1.0/24"], &near);
    let path = format!("{path}.ipBlock.cidr");
    told_apart("block-names-service", &to("10.96.0.10/32"), &path, &["10.96.0.10 of Service a/web"], &near);
}

#[test]
fn what_is_written_and_means_something_else_is_found_at_its_line() {
    let types =
        |types: &str| np("p", &format!("{WEB}\npolicyTypes: [{types}]\ningress: [{{}}]\negress:\n- to: [{{{DB}}}]"));
    let words = ["policyTypes does not list Egress"];
    told_apart("rules-without-type", &types("Ingress"), "spec.egress", &words, &[types("Ingress, Egress")]);
    let rule = |rule: &str| np("p", &format!("{WEB}\ningress:\n- {rule}"));
    let words = ["means everybody"];
    told_apart(
        "empty-list",
        &rule("{from: [], ports: [{port: 1}]}"),
        "spec.ingress[0].from",
        &words,
        &[rule("{ports: [{port: 1}]}"), rule("{}")],
    );
    told_apart("empty-list", &rule("{ports: []}"), "spec.ingress[0].ports", &["every port"], &[]);
}

#[test]
fn egress_that_forgets_dns_is_found_where_names_are_needed() {
    let to = |more: &str| {
        np("p", &format!("{WEB}\npolicyTypes: [Egress]\negress:\n- to: [{{{DB}}}]\n  ports: [{{port: 5432}}]{more}"))
    };
    let dns = "{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}";
    let only = |rules: &str| np("p", &format!("{WEB}\npolicyTypes: [Egress]\negress: {rules}"));
    let near = [
        to(&format!("\n- to: [{dns}]\n  ports: [{{port: 53, protocol: UDP}}]")),
        to("\n- ports: [{port: 53, protocol: UDP}]"),
        to("\n- to: [{ipBlock: {cidr: 198.51.100.53/32}}]\n  ports: [{port: 53, protocol: UDP}]"),
        format!(
            "{}{}",
            to(""),
            np("dns", &format!("podSelector: {{}}\npolicyTypes: [Egress]\negress:\n- to: [{dns}]"))
        ),
        only("[]"),
        only("[{to: [{ipBlock: {cidr: 198.51.100.0/24}}]}]"),
        only("[{}]"),
    ];
    told_apart("egress-without-dns", &to(""), "spec.egress[0]", &["a/web", "k8s-app: kube-dns"], &near);
    let own_namespace =
        to("\n- to: [{podSelector: {matchLabels: {k8s-app: kube-dns}}}]\n  ports: [{port: 53, protocol: UDP}]");
    told_apart("egress-without-dns", &own_namespace, "spec.egress[0]", &[], &[]);
}

#[test]
fn rules_that_others_make_needless_are_named_with_these_others() {
    let two = |one: &str, other: &str| np("p", &format!("{WEB}\ningress:\n- {one}\n- {other}"));
    let db = format!("{{from: [{{{DB}}}], ports: [{{port: 8080}}]}}");
    told_apart(
        "redundant-rule",
        &two("{ports: [{port: 8080}]}", &db),
        "spec.ingress[1]",
        &["a/p ingress[0]"],
        &[two("{ports: [{port: 8081}]}", &db), two(&format!("{{from: [{{{WEB}}}]}}"), &db)],
    );
    // Two rules together make a third one redundant.
    let halves = "{ports: [{port: 1, endPort: 8079}]}\n- {ports: [{port: 8080, endPort: 65535}]}";
    let wide = format!("{{from: [{{{DB}}}], ports: [{{port: 1, endPort: 65535}}]}}");
    told_apart(
        "redundant-rule",
        &two(halves, &wide),
        "spec.ingress[2]",
        &["ingress[0]", "ingress[1]"],
        &[two("{ports: [{port: 1, endPort: 8078}]}\n- {ports: [{port: 8080, endPort: 65535}]}", &wide)],
    );
}

#[test]
fn of_two_rules_alike_either_can_go_and_not_both() {
    let alike = format!("{{from: [{{{DB}}}], ports: [{{port: 8080}}]}}");
    let findings = lint_with("alike", &np("p", &format!("{WEB}\ningress:\n- {alike}\n- {alike}")), &[]);
    let found = of(&findings, "redundant-rule");
    let told: Vec<_> = found.iter().map(|finding| (&finding["rule"], &finding["removable_together"])).collect();
    assert_eq!(told, [(&json!(0), &json!(false)), (&json!(1), &json!(true))], "{findings:#?}");
    assert!(found[0]["mend"].as_str().unwrap().contains("not together"), "{findings:#?}");
}

#[test]
fn a_rule_that_the_other_end_denies_is_told_with_who_denies() {
    let ingress = np("p", &format!("{WEB}\ningress:\n- from: [{{{DB}}}]"));
    let closed = np("closed", &format!("{DB}\npolicyTypes: [Egress]\negress: []"));
    let open = np("open", &format!("{DB}\npolicyTypes: [Egress]\negress: [{{}}]"));
    told_apart(
        "blocked-rule",
        &format!("{ingress}{closed}"),
        "spec.ingress[0]",
        &["a/closed"],
        &[ingress.clone(), format!("{ingress}{open}")],
    );
}

#[test]
fn a_rule_about_the_pod_itself_is_only_a_note() {
    let from =
        |app: &str| np("p", &format!("{DB}\ningress:\n- from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]"));
    let finding = told_apart("names-itself", &from("db"), "spec.ingress[0]", &[], &[from("web")]);
    assert_eq!(finding["severity"], "note");
}

#[test]
fn a_rule_that_names_no_connection_is_found_where_no_peer_tells_it() {
    let beta = "---\napiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: a}\n\
                spec: {podSelector: {}, ingress: [{from: []}, {from: [{podSelector: {}}]}]}\n";
    let args = ["--policy-semantics", "v1beta1", "--namespace-default", "default-deny"];
    let findings = lint_with("beta", beta, &args);
    let found = of(&findings, "rule-names-nothing");
    assert_eq!(found.len(), 1, "{findings:#?}");
    assert_eq!(found[0]["rule"], 0);
}

#[test]
fn a_policy_that_changes_nothing_is_found_and_the_last_of_several_is_kept() {
    let alike = |name: &str| np(name, &format!("{WEB}\ningress:\n- from: [{{{DB}}}]"));
    let finding = told_apart(
        "policy-changes-nothing",
        &format!("{}{}", alike("p"), alike("q")),
        "",
        &["a/"],
        &[alike("p"), format!("{}{}", alike("p"), np("r", &format!("{WEB}\ningress:\n- ports: [{{port: 1}}]")))],
    );
    assert!(finding["removable_together"].is_boolean());
    let open = np("open", &format!("{WEB}\ningress: [{{}}]"));
    told_apart("policy-changes-nothing", &open, "", &["would pass without it"], &[]);
}

#[test]
fn order_counts_among_cluster_policies() {
    let narrow = "- action: Deny\n  from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: b}}}]";
    let wide = "- action: Deny\n  from: [{namespaces: {}}]";
    let accept = "- action: Accept\n  from: [{namespaces: {}}]";
    told_apart(
        "shadowed-rule",
        &cnp("c", 1, &format!("{wide}\n{narrow}")),
        "spec.ingress[1]",
        &["decided before by", "ClusterNetworkPolicy c ingress[0]"],
        &[cnp("c", 1, &format!("{narrow}\n{accept}"))],
    );
    let priorities = |priority: u16| format!("{}{}", cnp("c", 1, wide), cnp("d", priority, accept));
    // The policy has only this one rule.
    told_apart("policy-changes-nothing", &priorities(2), "", &["ClusterNetworkPolicy c"], &[]);
    let np = np("p", &format!("{WEB}\ningress:\n- from: [{{{DB}}}]"));
    told_apart("shadowed-rule", &format!("{}{np}", cnp("c", 1, accept)), "spec.ingress[0]", &["Admin tier"], &[np]);
}

#[test]
fn a_tie_of_cluster_policies_is_told_only_where_it_matters() {
    let rule = |action: &str, port: u16| {
        format!(
            "- action: {action}\n  from: [{{namespaces: {{}}}}]\n  protocols: [{{tcp: {{destinationPort: {{number: {port}}}}}}}]"
        )
    };
    let two = |one: &str, priority: u16, other: &str| format!("{}{}", cnp("c", 5, one), cnp("d", priority, other));
    told_apart(
        "same-priority",
        &two(&rule("Accept", 80), 5, &rule("Deny", 80)),
        "",
        &["ClusterNetworkPolicy c"],
        &[
            two(&rule("Accept", 80), 6, &rule("Deny", 80)),
            two(&rule("Accept", 80), 5, &rule("Deny", 81)),
            two(&rule("Accept", 80), 5, &rule("Accept", 80)),
        ],
    );
}

#[test]
fn findings_are_chosen_by_kind_policy_and_namespace() {
    let policies =
        format!("{}{}", np("p", "podSelector: {matchLabels: {app: x}}"), np("q", &format!("{WEB}\ningress: [{{}}]")));
    let ids = |more: &[&str]| -> Vec<String> {
        let findings = lint_with("chosen", &policies, more);
        findings.iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
    };
    let (nobody, nothing) = ("policy-selects-nobody", "policy-changes-nothing");
    assert_eq!(ids(&[]), [nobody, nothing]);
    assert_eq!(ids(&["--only", nothing]), [nothing]);
    assert_eq!(ids(&["--allow", nothing]), [nobody]);
    assert_eq!(ids(&["--policy", "a/q"]), [nothing]);
    assert_eq!(ids(&["--namespace", "a", "--allow", nobody, "--allow", nothing]), [""; 0]);
    let path = scratch("lint-wrong.yaml", format!("{BASE}{policies}").as_bytes());
    for (wrong, words) in [
        (["--only", "redundant-rules"], "redundant-rule"),
        (["--policy", "a/qq"], "did you mean `a/q`?"),
        (["--namespace", "aa"], "choose a namespace that has policies"),
    ] {
        let message = super::stderr(&["lint", "--state", &path, wrong[0], wrong[1]], 2);
        assert!(message.contains(words), "{message}");
    }
}

/// The shop's policies and one more. The shop's capture uses every rule except that for port 9999.
fn shop_with_unused() -> String {
    let policies = fs::read_to_string(root().join("examples/shop/policies.yaml")).unwrap();
    let more = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: more, namespace: shop}\nspec:\n  \
                podSelector: {matchLabels: {app: api}}\n  ingress:\n  - ports: [{port: 9999}]\n";
    scratch("lint-shop.yaml", format!("{policies}{more}").as_bytes())
}

fn unused(path: &str, hits: &[&str]) -> (Vec<String>, Value) {
    let args = ["lint", "-o", "json", "--only", "unused-rule", "--state", "pcaps/shop/state.yaml", path];
    let hits: Vec<&str> = hits.iter().flat_map(|&path| ["--hits", path]).collect();
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&[&args[..], &hits].concat()), 1)).unwrap();
    let rule = |finding: &Value| {
        format!(
            "{} {}[{}]",
            finding["policy"].as_str().unwrap(),
            finding["direction"].as_str().unwrap(),
            finding["rule"]
        )
    };
    (answer["findings"].as_array().unwrap().iter().map(rule).collect(), answer["hits"].clone())
}

#[test]
fn rules_that_a_capture_does_not_use_are_told_with_the_time_it_covers() {
    let path = shop_with_unused();
    let (rules, hits) = unused(&path, &["pcaps/shop/in.pcap"]);
    assert_eq!(rules, ["shop/more ingress[0]"]);
    assert!(hits[0]["seconds"].is_u64() && hits[0]["sessions"].as_u64().unwrap() > 5, "{hits}");
    assert!(hits[0]["first"].as_str().unwrap() < hits[0]["last"].as_str().unwrap(), "{hits}");
    let log = "ipv4 2 tcp 6 10 TIME_WAIT src=10.244.1.5 dst=10.244.1.6 sport=40000 dport=6379 src=10.244.1.6 dst=10.244.1.5 sport=6379 dport=40000 [ASSURED]\n";
    let log = scratch("lint-hits.log", log.as_bytes());
    let (rules, _) = unused(&path, &[&log]);
    assert!(!rules.iter().any(|rule| rule == "shop/api egress[1]" || rule == "shop/db ingress[0]"), "{rules:?}");
    assert!(rules.contains(&"shop/web ingress[0]".to_owned()), "{rules:?}");
}

#[test]
fn a_vswitchs_counters_tell_what_is_used_from_a_file_or_from_its_socket() {
    let path = shop_with_unused();
    let row = |origin: &str, allowed: u64| json!({"origin": origin, "allowed": allowed, "denied": 0});
    let rows = json!([row("shop/web ingress[0]", 7), row("shop/more ingress[0]", 1), row("shop/db ingress[0]", 0)]);
    let file = scratch("lint-hits.json", serde_json::to_string_pretty(&rows).unwrap().as_bytes());
    let (listed, hits) = unused(&path, &[&file]);
    assert!(listed.contains(&"shop/db ingress[0]".to_owned()) && !listed.contains(&"shop/more ingress[0]".to_owned()));
    assert!(hits[0]["first"].is_null() && hits[0]["last"].is_string(), "{hits}");

    let socket = Path::new(&file).with_file_name(format!("lint-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let answering = thread::spawn(move || {
        for answer in [rows, json!({"node": "node-1", "uptime_seconds": 7_200})] {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            writeln!(stream, "{}", json!({"version": 1, "answer": answer})).unwrap();
        }
    });
    let (live, hits) = unused(&path, &[socket.to_str().unwrap()]);
    answering.join().unwrap();
    fs::remove_file(socket).unwrap();
    assert_eq!(live, listed);
    assert!(hits[0]["seconds"] == 7_200 && hits[0]["first"].is_string(), "{hits}");
}

#[test]
fn what_is_not_understood_is_an_error_with_file_and_line() {
    let lint = |extra: &[&str]| super::stderr(&[&["lint", "--state", "pcaps/shop/state.yaml"][..], extra].concat(), 2);
    let broken = scratch("lint-broken.json", b"[{\"origin\": \"x\",\n \"allowed\": -1}]");
    let message = lint(&["--hits", &broken]);
    assert!(message.contains("lint-broken.json:2") && message.contains("bulkhead policies -o json"), "{message}");
    let garbage = scratch("lint-garbage.log", b"conntrack\x00\xff\nnot a log\n");
    assert!(lint(&["--hits", &garbage]).contains("lint-garbage.log:1"));
    assert!(lint(&["--hits", "absent.log"]).contains("absent.log"));
    let typo = np("p", "podSelector: {}\ningres: []");
    let typo = scratch("lint-typo.yaml", format!("{BASE}{typo}").as_bytes());
    let message = super::stderr(&["lint", "--state", &typo], 2);
    assert!(message.contains("lint-typo.yaml:") && message.contains("did you mean `ingress`"), "{message}");
}

#[test]
fn a_state_without_pods_is_said_to_be_one_and_only_what_is_written_is_told() {
    let policy = np("p", "podSelector: {matchLabels: {app: x}}\npolicyTypes: [Ingress]\negress: [{}]");
    let path = scratch("lint-no-pods.yaml", policy.as_bytes());
    let output = bulkhead(&["lint", "--state", &path, "-o", "json"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("the state has no pods"), "{message}");
    let answer: Value = serde_json::from_str(&stdout(&output, 1)).unwrap();
    let ids: Vec<&Value> = answer["findings"].as_array().unwrap().iter().map(|finding| &finding["id"]).collect();
    assert_eq!(ids, ["rules-without-type"]);
}

#[test]
fn sarif_names_each_finding_at_its_line_and_the_rules_it_is_about() {
    let output = bulkhead(&["lint", "--state", "pcaps/shop/state.yaml", "examples/shop/draft.yaml", "-o", "sarif"]);
    let log: Value = serde_json::from_str(&stdout(&output, 1)).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let known: Vec<&Value> =
        run["tool"]["driver"]["rules"].as_array().unwrap().iter().map(|rule| &rule["id"]).collect();
    let results = run["results"].as_array().unwrap();
    assert!(!results.is_empty());
    for result in results {
        assert!(known.contains(&&result["ruleId"]), "{result}");
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "examples/shop/draft.yaml");
        assert!(place["region"]["startLine"].as_u64().unwrap() > 1, "{result}");
    }
    assert!(results.iter().any(|result| !result["relatedLocations"].as_array().unwrap().is_empty()));
}

/// With `BULKHEAD_BLESS=1` rewrites the expected findings: review the difference.
#[test]
fn the_bundled_states_are_told_as_they_were() {
    for (name, state, code) in [
        ("redis-policy", &["pcaps/redis-policy"][..], 0),
        ("shop-draft", &["pcaps/shop/state.yaml", "examples/shop/draft.yaml"][..], 1),
        ("shop-policies", &["pcaps/shop/state.yaml", "examples/shop/policies.yaml"][..], 0),
        ("node-exit", &["pcaps/node-exit"][..], 1),
        ("service-policy", &["examples/services.yaml", "examples/service-policy.yaml"][..], 0),
    ] {
        let output = bulkhead(&[&["lint", "--state"][..], state].concat());
        let golden = root().join(format!("tests/cli/lint/{name}.txt"));
        let text = String::from_utf8(output.stdout).unwrap();
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            fs::write(&golden, &text).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap();
        assert_eq!(text, expected, "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
    }
}

/// Peers of each rule of the large policy below.
const PEERS: usize = 40;

#[test]
fn findings_of_one_cause_are_one_with_their_number_and_first_places() {
    let peer = "    - {podSelector: {matchLabels: {app: gone}}}\n".repeat(PEERS);
    let rule = |port: usize| format!("  - from:\n{peer}    ports: [{{port: {port}}}]\n");
    let rules: String = (1000..1200).map(rule).collect();
    let policy = np("p", &format!("{WEB}\ningress:\n{}", rules.replace("\n  ", "\n").trim_start()));
    let findings = lint_with("one-cause", &policy, &[]);
    let [found] = &findings[..] else { panic!("{} findings", findings.len()) };
    assert_eq!((&found["id"], &found["count"]), (&json!("peer-selects-nobody"), &json!(200 * PEERS)));
    assert_eq!(found["path"], "spec.ingress[0].from[0]");
    assert_eq!(found["rules"], json!((0..200).collect::<Vec<_>>()));
    let places = found["places"].as_array().unwrap();
    assert_eq!(places.len(), 9);
    assert_eq!(places[0]["path"], "spec.ingress[0].from[1]");
    assert_eq!(places[0]["line"].as_u64().unwrap(), found["line"].as_u64().unwrap() + 1);
    assert_eq!(places[0]["reason"], Value::Null, "the reason is the finding's");

    let path = scratch("lint-one-cause.yaml", format!("{BASE}{policy}").as_bytes());
    let text = stdout(&bulkhead(&["lint", "--state", &path]), 1);
    assert!(text.contains("the same at 7999 more places, in ingress[0-199]:"), "{text}");
    assert!(text.contains("and 7990 more\n"), "{text}");
    assert!(text.ends_with("1 found: 0 errors, 1 warning, 0 notes, at 8000 places\n"), "{text}");
    let sarif: Value = serde_json::from_str(&stdout(&bulkhead(&["lint", "--state", &path, "-o", "sarif"]), 1)).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["occurrenceCount"], 200 * PEERS);
    assert_eq!(result["relatedLocations"].as_array().unwrap().len(), 9);
}

#[test]
fn port_names_that_resemble_none_are_one_finding_and_misspelt_ones_stay_apart() {
    let rule = |name: &str| format!("- ports: [{{port: {name}}}]\n");
    let rules: String = (100..300).map(|at| rule(&format!("zz{at}"))).collect();
    let policy = np("p", &format!("{WEB}\ningress:\n{rules}{}", rule("htp")));
    let findings = lint_with("port-names", &policy, &["--only", "named-port-missing"]);
    let told: Vec<_> = findings.iter().map(|found| (&found["count"], &found["mend"])).collect();
    let mends = [json!("the pods declare http"), json!("did you mean `http`?")];
    assert_eq!(told, [(&json!(200), &mends[0]), (&json!(1), &mends[1])]);
    assert!(findings[0]["places"][0]["reason"].as_str().unwrap().contains("`zz101`"), "{}", findings[0]);
}

#[test]
fn findings_of_different_causes_or_directions_stay_apart() {
    let peer = |app: &str| format!("{{podSelector: {{matchLabels: {{app: {app}}}}}}}");
    // Two misspelt labels have remedies of their own.
    let both = np("p", &format!("{WEB}\ningress:\n- from: [{}, {}, {}]", peer("dbb"), peer("wbe"), peer("dbb")));
    let findings = lint_with("two-causes", &both, &["--only", "peer-selects-nobody"]);
    let told: Vec<_> = findings.iter().map(|found| (&found["mend"], &found["count"])).collect();
    let (db, web) = (json!("did you mean `app: db`?"), json!("did you mean `app: web`?"));
    assert_eq!(told, [(&db, &json!(2)), (&web, &json!(1))]);
    let all = |rules: &str| np("p", &format!("{WEB}\npolicyTypes: [Ingress, Egress]\n{rules}"));
    let gone = peer("zzzzzz");
    let findings = lint_with("two-ways", &all(&format!("ingress:\n- from: [{gone}]\negress:\n- to: [{gone}]")), &[]);
    assert_eq!(of(&findings, "peer-selects-nobody").len(), 2, "{findings:#?}");
    // Distinct selectors without a remedy are one cause, and each place has its own reason.
    let findings =
        lint_with("two-gone", &np("p", &format!("{WEB}\ningress:\n- from: [{gone}, {}]", peer("qqqqqq"))), &[]);
    let [found] = &findings[..] else { panic!("{findings:#?}") };
    assert!(found["reason"].as_str().unwrap().contains("app=zzzzzz"), "{found}");
    assert!(found["places"][0]["reason"].as_str().unwrap().contains("app=qqqqqq"), "{found}");
}

#[test]
fn custom_resources_whose_pods_the_state_may_lack_are_named() {
    let prometheus =
        "---\napiVersion: monitoring.coreos.com/v1\nkind: Prometheus\nmetadata: {name: k8s, namespace: b}\nspec: {}\n";
    let rollout = "---\napiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: api, namespace: a}\n\
                   spec: {template: {metadata: {labels: {tier: back}}, spec: {containers: [{name: c, image: x}]}}}\n";
    let monitor = "---\napiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: prometheus, namespace: b}\n\
                   spec: {selector: {matchLabels: {app: prometheus}}}\n";
    let custom = format!("{prometheus}{rollout}{monitor}");
    let space = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}";
    let labels = "podSelector: {matchLabels: {app.kubernetes.io/name: prometheus}}";
    let policies = format!(
        "{}{}",
        np("p", &format!("{WEB}\ningress:\n- from: [{{{space}, {labels}}}]")),
        np("q", "podSelector: {matchLabels: {tier: back}}")
    );
    let findings = lint_with("custom", &format!("{custom}{policies}"), &[]);
    let named = |id: &str| -> Vec<&Value> { of(&findings, id)[0]["by"].as_array().into_iter().flatten().collect() };
    for (id, name) in [("peer-selects-nobody", "Prometheus b/k8s"), ("policy-selects-nobody", "Rollout a/api")] {
        let [by] = named(id)[..] else { panic!("{id}: {findings:#?}") };
        assert_eq!(by["rule"], name);
        assert!(by["line"].as_u64().unwrap() > 1, "{by}");
        let text = format!("{} {}", of(&findings, id)[0]["reason"], of(&findings, id)[0]["mend"]);
        assert!(text.contains(&format!("no pods of {name}, which may make such pods")), "{text}");
        assert!(text.contains("add the pods to --state"), "{text}");
    }
    // A label of the template contradicts, the namespace is another one, or the pods are there.
    let pods = "---\n{apiVersion: v1, kind: Pod, metadata: {name: back, namespace: a, labels: {tier: back}},\n\
                spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: 10.244.1.9}]}}\n";
    for (at, near) in [
        format!("{custom}{}", np("q", "podSelector: {matchLabels: {tier: front}}")),
        format!("{custom}{}", np("q", &format!("{WEB}\ningress:\n- from: [{{{labels}}}]"))),
        format!("{custom}{pods}{}", np("q", "podSelector: {matchLabels: {tier: back, app: x}}")),
    ]
    .into_iter()
    .enumerate()
    {
        let findings = lint_with(&format!("custom-near-{at}"), &near, &[]);
        assert!(!findings.is_empty() && findings.iter().all(|found| found["by"].is_null()), "{at}: {findings:#?}");
    }
}
