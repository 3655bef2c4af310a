//! Policy questions whose destination is a Service: `reach --to`, `explain`, and warnings of `compile`.

use std::fs;

use crate::support::{bulkhead, bulkhead_with_input, cases, root, scratch, stdout};
use serde_json::{Value, json};

const SERVICES: &str = "examples/services.yaml";
const POLICY: &str = "examples/service-policy.yaml";

/// Both examples as one text, with `old` replaced by `new`.
fn example(old: &str, new: &str) -> String {
    let text = [SERVICES, POLICY].map(|path| fs::read_to_string(root().join(path)).unwrap()).join("\n---\n");
    assert!(old.is_empty() || text.contains(old), "{old}");
    text.replace(old, new)
}

/// A command's answer about the examples. Panics if the exit code differs.
fn ask(words: &[&str], code: i32) -> String {
    stdout(&bulkhead(&[&[words[0], "--state", SERVICES, POLICY], &words[1..]].concat()), code)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn error(words: &[&str]) -> String {
    let output = bulkhead(&[&[words[0], "--state", SERVICES, POLICY], &words[1..]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{words:?}: {text}");
    text
}

/// The address of each backend and its verdict. Panics unless the answer of `explain` is about one Service.
fn backends(answer: &Value) -> Vec<(String, String)> {
    let all = answer["services"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{answer:#}");
    let text = |backend: &Value, field: &str| backend[field].as_str().unwrap().to_owned();
    let one = |backend: &Value| (text(backend, "address"), text(backend, "verdict"));
    all[0]["backends"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn explain_gives_the_verdict_of_every_known_answer_on_policy_behind_a_service() {
    let Some(folder) = cases() else { return };
    let all = parsed(&fs::read_to_string(folder.join("service_cases.json")).unwrap());
    let known = all["policy"].as_array().unwrap();
    let settings = scratch("services-settings.json", &all["defaults"].to_string());
    for case in known {
        let lists = all["objects"][case["objects"].as_str().unwrap()].as_object().unwrap().values();
        let objects = lists.flat_map(|list| list.as_array().unwrap());
        let items: Vec<&Value> = objects.chain(case["policies"].as_array().unwrap()).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (dst, from) = (&case["dst"], text(&case["client"]["ip"]));
        let (to, port) = (text(&dst["ip"]), format!("{}/{}", dst["port"], text(&dst["protocol"])));
        let node = text(&case["node"]);
        let mut args = vec!["explain", "-o", "json", "--state", "-", "--settings", &settings];
        args.extend(["--from", &from, "--to", &to, "--port", &port]);
        if case["client"]["kind"] == "external" {
            args.extend(["--node", &node]);
        }
        let code = i32::from(case["expect"] != "allow");
        let output = bulkhead_with_input(&args, &list.to_string());
        let answer = parsed(&stdout(&output, code));
        let context = format!("case {} ({}): {answer:#}", case["id"], case["why"]);
        assert_eq!(backends(&answer), [(text(&case["backend"]), text(&case["expect"]))], "{context}");
        assert_eq!((&answer["verdict"], &answer["walks"]), (&case["expect"], &json!([])), "{context}");
        let warned = String::from_utf8(output.stderr).unwrap();
        assert_eq!(warned.contains("policy is judged on the pod behind a Service"), case["id"] == 5, "{warned}");
    }
    assert_eq!(known.len(), 12);
}

#[test]
fn explain_shows_the_service_each_backend_with_the_deciding_rule_and_why_others_are_out() {
    let answer = ask(&["explain", "--from", "shop/probe", "--to", "service/shop/web"], 1);
    for part in [
        "shop/probe (10.244.2.3) -> 10.96.0.20:80/TCP of Service shop/web: SOME, 1 of 2 backends",
        "DNAT at node node-2: by its cluster IP, port http, internalTrafficPolicy Cluster",
        "10.244.1.20:8080  shop/web-1  node-1  kept    deny",
        "10.244.2.20:8080  shop/web-2  node-2  kept    allow",
        "10.244.2.21:8080  terminating, and others are ready",
        "shop/probe (10.244.2.3) -> shop/web-1 (10.244.1.20) TCP 8080: DENY",
        "shop/probe (10.244.2.3) -> shop/web-2 (10.244.2.20) TCP 8080: ALLOW",
        "because: shop/canary ingress[0]",
        "What would have to change: a policy that selects shop/web-1",
        "- {protocol: TCP, port: 8080}",
    ] {
        assert!(answer.contains(part), "{part} is not in:\n{answer}");
    }
    let page = fs::read_to_string(root().join("docs/services.md")).unwrap();
    let shown = answer.split("\n\nBackend ").next().unwrap();
    assert!(page.contains(shown), "docs/services.md shows another answer than:\n{shown}");
    // Cluster IP, port name and port number lead to the same answer.
    let same: [&[&str]; 3] = [
        &["--to", "10.96.0.20", "--port", "80"],
        &["--to", "service/shop/web:http"],
        &["--to", "service/shop/web", "--port", "80/TCP"],
    ];
    for to in same {
        assert_eq!(ask(&[&["explain", "--from", "shop/probe"], to].concat(), 1), answer, "{to:?}");
    }
    assert!(ask(&["explain", "--from", "shop/cart", "--to", "service/shop/web"], 0).contains("ALLOW, 2 of 2 backends"));
}

#[test]
fn a_pod_that_is_given_itself_is_told_as_a_hairpin_and_nothing_cuts_it_off() {
    let answer =
        parsed(&ask(&["explain", "-o", "json", "--from", "shop/web-1", "--to", "10.96.0.20", "--port", "80"], 1));
    let own = &answer["services"][0]["backends"][0];
    assert_eq!((&own["verdict"], &own["source"]), (&"allow".into(), &"rewritten".into()), "{answer:#}");
    assert!(own["note"].as_str().unwrap().starts_with("hairpin: "), "{own:#}");
    assert_eq!(own["walks"][0]["steps"][0]["exempt"], "own_pod", "{own:#}");
    assert_eq!(answer["services"][0]["verdict"], "some");
}

/// network-policy-api #343 and #390.
#[test]
fn a_cluster_policy_judges_a_pod_that_is_given_itself_and_a_network_policy_does_not() {
    let policy = |kind: &str, tier: &str| match kind {
        "NetworkPolicy" => {
            "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: shut, namespace: shop}, \
             spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}\n"
                .to_owned()
        }
        _ => format!(
            "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: apart}}, spec: \
             {{tier: {tier}, priority: 1, subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: shop}}}}}}, \
             ingress: [{{action: Deny, from: [{{namespaces: {{}}}}], name: nobody}}]}}}}\n"
        ),
    };
    let own = |name: &str, policies: &[(&str, &str)]| {
        let all: String = policies.iter().map(|(kind, tier)| policy(kind, tier)).collect();
        let state = example("", "");
        let (objects, _) = state.split_once("---\n# The port is").expect("the policies come last");
        let path = scratch(name, &(objects.to_owned() + &all));
        let to = ["--from", "shop/web-1", "--to", "10.96.0.20", "--port", "80", "-o", "json"];
        let output = bulkhead(&[&["explain", "--state", &path][..], &to].concat());
        let answer = parsed(&String::from_utf8(output.stdout).unwrap());
        answer["services"][0]["backends"][0].clone()
    };
    let admin = own("hairpin-admin.yaml", &[("ClusterNetworkPolicy", "Admin")]);
    assert_eq!(admin["verdict"], "deny", "{admin:#}");
    let step = &admin["walks"][0]["steps"][0];
    // Pods with equal rules share a table, which is named after the first of them.
    assert_eq!((&step["reason"], &step["table"]), (&"policy_denied".into(), &"hairpin:shop/cart".into()), "{step:#}");
    assert!(step["origin"].as_str().unwrap().contains("apart"), "{step:#}");
    let isolated = own("hairpin-isolated.yaml", &[("NetworkPolicy", "")]);
    assert_eq!(isolated["verdict"], "allow", "{isolated:#}");
    // The NetworkPolicy tier decides for a pod that it isolates, so Baseline does not.
    let both = own("hairpin-both.yaml", &[("NetworkPolicy", ""), ("ClusterNetworkPolicy", "Baseline")]);
    assert_eq!(both["verdict"], "allow", "{both:#}");
    let baseline = own("hairpin-baseline.yaml", &[("ClusterNetworkPolicy", "Baseline")]);
    assert_eq!(baseline["verdict"], "deny", "{baseline:#}");
}

#[test]
fn the_far_node_judges_the_address_of_the_node_that_rewrote_an_outside_clients() {
    let with = |policy: &str, eip: &str| {
        let text = example("  externalTrafficPolicy: Local\n  healthCheckNodePort: 30901\n", eip);
        let text = text.replace("[203.0.113.0/25]", "[203.0.113.0/24]");
        scratch("services-outside.yaml", &text.replace("203.0.113.0/25}", policy))
    };
    let explain = |state: &str, code: i32, more: &[&str]| {
        let args =
            ["explain", "--state", state, "--from", "203.0.113.7", "--to", "service/shop/shopfront", "-o", "json"];
        parsed(&stdout(&bulkhead(&[&args[..], more].concat()), code))
    };
    let cluster = with("203.0.113.0/25}", "");
    let answer = explain(&cluster, 1, &["--node", "node-1"]);
    let backend = &answer["services"][0]["backends"][0];
    assert_eq!(backends(&answer), [("10.244.2.20:8080".to_owned(), "deny".to_owned())]);
    let note = "outside client, remote backend: the far node judges the source address of this node (10.244.1.1 of node node-1), an \
                ipBlock on clients needs externalTrafficPolicy: Local";
    assert_eq!((&backend["note"], &backend["source"]), (&note.into(), &"rewritten".into()));
    assert_eq!(backend["walks"][0]["from_address"], "10.244.1.1");
    // Through the backend's own node the client's address stays.
    let local = explain(&cluster, 0, &["--node", "node-2"]);
    assert_eq!(local["services"][0]["backends"][0]["note"], Value::Null);
    // A rule that allows the node's address allows all clients behind the node.
    assert_eq!(explain(&with("10.244.1.1/32}", ""), 0, &["--node", "node-1"])["verdict"], "allow");
    // With externalTrafficPolicy Local the other node refuses the connection.
    let policy = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30901\n";
    let answer = explain(&with("203.0.113.0/25}", policy), 1, &["--node", "node-1"]);
    assert_eq!(answer["services"][0]["refused"], "no_local_endpoint");
    // A node without an address for the rewrite drops the connection.
    let text = fs::read_to_string(with("203.0.113.0/25}", ""))
        .unwrap()
        .replace("spec: {podCIDRs: [10.244.1.0/24]}", "spec: {}");
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: first, namespace: shop}\nspec: {nodeName: node-1}\n\
        status: {phase: Running, podIP: 10.244.1.1, podIPs: [{ip: 10.244.1.1}]}\n";
    // The address must not belong to a pod either: outside clients would get that pod's verdict.
    let taken = format!("{}\n{pod}", fs::read_to_string(with("10.244.1.1/32}", "")).unwrap());
    for text in [text, taken] {
        let answer = explain(&scratch("services-no-source.yaml", &text), 1, &["--node", "node-1"]);
        let note = answer["services"][0]["backends"][0]["note"].as_str().unwrap();
        assert!(note.contains("node node-1 has none to give"), "{answer:#}");
    }
    let nowhere =
        bulkhead(&["explain", "--state", &cluster, "--from", "203.0.113.7", "--to", "service/shop/shopfront"]);
    let text = String::from_utf8(nowhere.stderr).unwrap();
    assert!(nowhere.status.code() == Some(2) && text.contains("choose the node with --node: node-1, node-2"), "{text}");
}

#[test]
fn with_masquerade_all_a_pod_of_another_node_sees_the_node_and_one_of_this_node_the_pod() {
    let settings = scratch("services-masquerade.yaml", "masquerade_all: true\n");
    let to = ["explain", "-o", "json", "--settings", &settings, "--from", "shop/cart", "--to", "service/shop/web"];
    let answer = parsed(&ask(&to, 1));
    let verdicts = [("10.244.1.20:8080", "allow"), ("10.244.2.20:8080", "deny")];
    assert_eq!(backends(&answer), verdicts.map(|(address, verdict)| (address.to_owned(), verdict.to_owned())));
    let walks = &answer["services"][0]["backends"][1]["walks"];
    let of =
        |at: usize| (&walks[at]["from_address"], &walks[at]["verdict"], walks[at]["steps"].as_array().unwrap().len());
    // The client's node judges egress of the pod, the far node ingress from this node's address.
    assert_eq!(of(0), (&"10.244.1.2".into(), &"allow".into(), 1), "{answer:#}");
    assert_eq!(of(1), (&"10.244.1.1".into(), &"deny".into(), 1), "{answer:#}");
}

#[test]
fn the_node_port_of_another_node_is_judged_on_the_way_there_and_behind_it() {
    let ask = |policy: &str, code: i32| {
        let state = scratch("services-node-port.yaml", &example("", ""));
        let more = scratch("services-node-port-policy.yaml", policy);
        let args = ["explain", "-o", "json", "--state", &state, &more, "--from", "shop/probe", "--to", "192.0.2.11"];
        parsed(&stdout(&bulkhead(&[&args[..], &["--port", "30080"]].concat()), code))
    };
    let egress = |rule: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: out, namespace: shop}}\n\
             spec: {{podSelector: {{matchLabels: {{app: probe}}}}, policyTypes: [Egress], egress: [{rule}]}}\n"
        )
    };
    let answer = ask(&egress("{to: [{ipBlock: {cidr: 192.0.2.11/32}}]}"), 1);
    let service = &answer["services"][0];
    assert_eq!((&service["node"], &service["before"]["verdict"]), (&"node-1".into(), &"allow".into()), "{answer:#}");
    // web-1 sees the pod's address, which no rule allows. web-2 sees the node's, which the pod's rule does not match.
    assert_eq!(service["backends"][0]["walks"][0]["from_address"], "10.244.2.3");
    assert_eq!(service["backends"][1]["walks"][0]["from_address"], "10.244.1.1");
    assert!(backends(&answer).iter().all(|(_, verdict)| verdict == "deny"), "{answer:#}");
    let answer = ask(&egress("{to: [{podSelector: {}}]}"), 1);
    assert_eq!(answer["services"][0]["before"]["verdict"], "deny", "{answer:#}");
}

#[test]
fn reach_says_for_each_source_whether_it_reaches_all_some_or_no_backends() {
    let answer = ask(&["reach", "--to", "service/shop/web:http"], 0);
    let page = fs::read_to_string(root().join("docs/services.md")).unwrap();
    assert!(page.contains(&answer), "docs/services.md shows another answer than:\n{answer}");
    let row = |from: &str| answer.lines().find(|line| line.starts_with(from)).unwrap().to_owned();
    assert!(row("shop/cart").ends_with("allow   2 of 2"), "{answer}");
    let some = "some    1 of 2: shop/web-2 (10.244.2.20:8080); not shop/web-1 (10.244.1.20:8080)";
    assert!(row("shop/probe").ends_with(some), "{answer}");
    let with = ["reach", "-o", "json", "--to", "service/shop/shopfront", "--external"];
    let lines = |address: &str| parsed(&ask(&[&with[..], &[address]].concat(), 0))["services"].clone();
    let of = |lines: &Value, from: &str, node: &str| -> Value {
        let all = lines.as_array().unwrap();
        all.iter()
            .find(|line| line["from"] == from && line["node"] == node)
            .unwrap_or_else(|| panic!("{lines:#}"))
            .clone()
    };
    let inside = lines("203.0.113.7");
    let refused = of(&inside, "203.0.113.7", "node-1");
    assert_eq!((&refused["refused"], &refused["verdict"]), (&"no_local_endpoint".into(), &"deny".into()));
    let allowed = of(&inside, "203.0.113.7", "node-2");
    assert_eq!((&allowed["address"], &allowed["verdict"]), (&"198.51.100.1".into(), &"allow".into()));
    assert_eq!(of(&lines("203.0.113.200"), "203.0.113.200", "node-2")["refused"], "source_range");
    // A source inside the cluster uses the cluster IP by default.
    assert_eq!(of(&inside, "shop/cart", "node-1")["address"], "10.96.0.21");
    let balancer = parsed(&ask(&["reach", "-o", "json", "--to", "198.51.100.1", "--port", "80"], 0));
    assert_eq!(of(&balancer["services"], "shop/cart", "node-1")["refused"], "source_range");
    // A Service without ready endpoints.
    let state = scratch("services-empty.yaml", &example("conditions: {ready: true}", "conditions: {ready: false}"));
    let text = stdout(&bulkhead(&["reach", "--state", &state, "--to", "service/shop/web"]), 0);
    assert_eq!(text.matches("none: no endpoint").count(), 0, "one that ends still serves:\n{text}");
    let text = text + &stdout(&bulkhead(&["reach", "--state", &state, "--to", "service/shop/shopfront"]), 0);
    assert_eq!(text.matches("none: no endpoint").count(), 4, "{text}");
}

#[test]
fn each_family_of_a_service_is_asked_about_by_itself() {
    let pod = |name: &str, addresses: &[&str]| {
        let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        let (meta, spec) = (json!({"namespace": "x", "name": name}), json!({"nodeName": "n1"}));
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"podIPs": addresses}})
    };
    let service = |name: &str, addresses: &[&str]| {
        let spec = json!({"clusterIP": addresses[0], "clusterIPs": addresses, "ports": [{"port": 80}]});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "x", "name": name}, "spec": spec})
    };
    let slice = |name: &str, service: &str, family: &str, address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {"namespace": "x", "name": name, "labels": {"kubernetes.io/service-name": service}},
            "ports": [{"name": "", "protocol": "TCP", "port": 8080}], "endpoints": [{"addresses": [address], "nodeName": "n1"}],
        })
    };
    let items = [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
        pod("both", &["10.0.0.1", "fd00::1"]),
        pod("six", &["fd00::2"]),
        pod("web", &["10.0.0.9", "fd00::9"]),
        service("both", &["10.96.0.1", "fd00:96::1"]),
        service("four", &["10.96.0.4"]),
        slice("both-4", "both", "IPv4", "10.0.0.9"),
        slice("both-6", "both", "IPv6", "fd00::9"),
        slice("four-4", "four", "IPv4", "10.0.0.9"),
    ];
    let state =
        scratch("services-families.json", &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    let explain =
        |from: &str, to: &str| bulkhead(&["explain", "-o", "json", "--state", &state, "--from", from, "--to", to]);
    let asked = |from: &str, to: &str| -> Vec<(String, String)> {
        let answer = parsed(&stdout(&explain(from, to), 0));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = answer["services"].as_array().unwrap();
        all.iter().map(|service| (text(&service["to"]), text(&service["backends"][0]["address"]))).collect()
    };
    let (v4, v6) = (("10.96.0.1:80/TCP", "10.0.0.9:8080"), ("[fd00:96::1]:80/TCP", "[fd00::9]:8080"));
    let pairs =
        |all: &[(&str, &str)]| all.iter().map(|&(to, backend)| (to.to_owned(), backend.to_owned())).collect::<Vec<_>>();
    assert_eq!(asked("x/both", "service/x/both"), pairs(&[v4, v6]));
    assert_eq!(asked("x/six", "service/x/both"), pairs(&[v6]));
    assert_eq!(asked("x/both", "service/x/four").len(), 1);
    let none = explain("x/six", "service/x/four");
    let text = String::from_utf8(none.stderr).unwrap();
    assert!(none.status.code() == Some(2) && text.contains("no address of the client's family"), "{text}");
    let lines = parsed(&stdout(&bulkhead(&["reach", "-o", "json", "--state", &state, "--to", "service/x/four"]), 0));
    let from: Vec<&str> =
        lines["services"].as_array().unwrap().iter().map(|line| line["from"].as_str().unwrap()).collect();
    assert_eq!(from, ["x/both", "x/web"]);
}

#[test]
fn nonsense_about_services_is_an_error_with_a_remedy() {
    let from = ["explain", "--from", "shop/cart", "--to"];
    for (to, parts) in [
        ("service/shop/wbe", vec!["no Service shop/wbe in the state", "did you mean shop/web?"]),
        (
            "service/other/none",
            vec!["no Service other/none", "no Service in namespace other and no Service named none"],
        ),
        ("service/shop/web:https", vec!["Service shop/web has no port https", "it has http (80/TCP)"]),
        ("service/shop/web:80/UDP", vec!["has no port 80/UDP", "it has http (80/TCP)"]),
        ("service/web:80", vec!["write service/NAMESPACE/NAME"]),
        ("10.96.0.20", vec!["--port is missing"]),
    ] {
        for command in [&from[..], &["reach", "--to"]] {
            if command[0] == "reach" && to == "10.96.0.20" {
                continue;
            }
            let text = error(&[command, &[to]].concat());
            assert!(parts.iter().all(|part| text.contains(part)), "{command:?} {to}: {text}");
        }
    }
    let twice = error(&["explain", "--from", "shop/cart", "--to", "service/shop/web:http", "--port", "80"]);
    assert!(twice.contains("given twice") && twice.contains("`:http`"), "{twice}");
    let pod = error(&["reach", "--to", "shop/web-1", "--port", "80"]);
    assert!(pod.contains("--to shop/web-1 is no Service") && pod.contains("service/NAMESPACE/NAME"), "{pod}");
    let plain = error(&["reach", "--to", "10.96.0.99", "--port", "80"]);
    assert!(plain.contains("no Service has 10.96.0.99:80/TCP"), "{plain}");
    let elsewhere = error(&["explain", "--from", "shop/cart", "--to", "service/shop/web", "--node", "node-2"]);
    assert!(elsewhere.contains("shop/cart is at node `node-1`"), "{elsewhere}");
    let idle = error(&["explain", "--from", "shop/cart", "--to", "192.0.2.99", "--port", "80", "--node", "node-1"]);
    assert!(idle.contains("--node has no effect"), "{idle}");
    let headless = "---\n{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, ports: [{port: 80}]}}\n\
                    ---\n{apiVersion: v1, kind: Service, metadata: {name: dns, namespace: shop}, spec: {clusterIP: 10.96.0.53, ports: \
                    [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53}]}}\n";
    let state = scratch("services-headless.yaml", &(example("", "") + headless));
    let explain = |to: &str| {
        let output = bulkhead(&["explain", "--state", &state, "--from", "shop/cart", "--to", to]);
        assert_eq!(output.status.code().unwrap() + i32::from(output.stdout.is_empty()), 3, "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = explain("service/shop/db");
    assert!(text.contains("has no cluster address") && text.contains("headless"), "{text}");
    let text = explain("service/shop/dns:53");
    assert!(text.contains("several matching ports") && text.contains("udp (53/UDP), tcp (53/TCP)"), "{text}");
    // An invalid Service fails a question about Services, and is a warning elsewhere.
    let faulty = format!(
        "{}\n---\n{{apiVersion: v1, kind: Service, metadata: {{name: x}}, spec: {{clusterIP: 1}}}}\n",
        example("", "")
    );
    let state = scratch("services-faulty.yaml", &faulty);
    let output = bulkhead(&["explain", "--state", &state, "--from", "shop/cart", "--to", "service/shop/web"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output =
        bulkhead(&["explain", "--state", &state, "--from", "shop/cart", "--to", "shop/web-1", "--port", "8080"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("Services are ignored because not all could be read"));
}

#[test]
fn blocks_that_name_virtual_addresses_are_warned_of_with_place_and_remedy() {
    let policy = |direction: &str, block: &str| {
        let peers = if direction == "egress" { "to" } else { "from" };
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\nspec:\n  podSelector: {{}}\n  \
             {direction}:\n  - {peers}:\n    - podSelector: {{}}\n    - ipBlock: {{{block}}}\n"
        )
    };
    let settings = scratch("services-cidrs.yaml", "service_cidrs: [10.96.0.0/16]\n");
    let warned = |command: &str, text: &str, settings: &[&str]| {
        let path = scratch("services-block.yaml", text);
        let rest: &[&str] = match command {
            "compile" => &["--node", "node-1"],
            _ => &["--from", "shop/cart", "--to", "shop/web-1", "--port", "8080"],
        };
        let output = bulkhead(&[&[command, "--state", SERVICES, POLICY, &path][..], rest, settings].concat());
        assert_ne!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<String> =
            text.lines().filter(|line| line.contains("behind a Service")).map(str::to_owned).collect();
        assert_eq!(lines.len(), text.matches("ports are those of the pods").count(), "{text}");
        lines.join("\n")
    };
    let with = ["--settings", settings.as_str()];
    for (direction, block, with_cidrs, without) in [
        (
            "egress",
            "cidr: 10.96.0.20/32",
            "10.96.0.20/32 lies in the service CIDR 10.96.0.0/16 (10.96.0.20 of Service shop/web)",
            "10.96.0.20/32 holds 10.96.0.20 of Service shop/web",
        ),
        ("egress", "cidr: 10.96.7.0/24", "10.96.7.0/24 lies in the service CIDR 10.96.0.0/16", ""),
        (
            "egress",
            "cidr: 10.96.0.0/12",
            "10.96.0.0/12 holds 10.96.0.20 of Service shop/web, 10.96.0.21 of Service shop/shopfront",
            "10.96.0.0/12 holds",
        ),
        (
            "egress",
            "cidr: 198.51.100.0/24",
            "198.51.100.0/24 holds 198.51.100.1 of Service shop/shopfront",
            "198.51.100.0/24 holds",
        ),
        (
            "egress",
            "cidr: 0.0.0.0/0, except: [10.96.0.0/16]",
            "10.96.0.0/16 lies in the service CIDR 10.96.0.0/16",
            "10.96.0.0/16 holds",
        ),
        (
            "egress",
            "cidr: 0.0.0.0/0, except: [10.96.0.20/32]",
            "excludes nothing there",
            "10.96.0.20/32 holds 10.96.0.20",
        ),
        ("ingress", "cidr: 10.96.0.21/32", "10.96.0.21/32 lies in", "10.96.0.21/32 holds"),
        // A block that also contains the backends' addresses works as written. Clients may have addresses of a load balancer's network.
        ("egress", "cidr: 0.0.0.0/0", "", ""),
        ("egress", "cidr: 10.0.0.0/8", "", ""),
        ("egress", "cidr: 0.0.0.0/0, except: [10.0.0.0/8, 198.51.100.0/24]", "", ""),
        ("ingress", "cidr: 198.51.100.0/24", "", ""),
        ("egress", "cidr: 203.0.113.0/24", "", ""),
    ] {
        for command in ["compile", "explain"] {
            for (expected, more) in [(with_cidrs, &with[..]), (without, &[])] {
                let text = warned(command, &policy(direction, block), more);
                assert!(if expected.is_empty() { text.is_empty() } else { text.contains(expected) }, "{block}: {text}");
            }
        }
    }
    let text = warned("compile", &policy("egress", "cidr: 0.0.0.0/0, except: [10.96.0.0/16]"), &with);
    let place =
        "services-block.yaml:9: NetworkPolicy shop/p: spec.egress[0].to[1].ipBlock.except[0]: 10.96.0.0/16 lies in";
    assert!(text.contains(place), "{text}");
    let admin = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: vips}\nspec:\n  tier: Admin\n  \
                 priority: 1\n  subject: {namespaces: {}}\n  egress:\n  - action: Deny\n    to:\n    - networks: [10.96.0.20/32]\n";
    let text = warned("explain", admin, &with);
    assert!(text.contains("ClusterNetworkPolicy vips: spec.egress[0]: 10.96.0.20/32 lies in"), "{text}");
}
