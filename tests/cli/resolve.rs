//! `bulkhead resolve`: the known answers, its output, and its errors.

use std::collections::BTreeSet;
use std::fs;

use crate::support::{bulkhead, bulkhead_with_input, cases, scratch, stdout};
use serde_json::{Value, json};

const STATE: &str = "examples/services.yaml";

/// The answer for a connection in the example. Panics if the exit code differs.
fn ask(from: &str, to: &str, code: i32, more: &[&str]) -> String {
    let args = ["resolve", "--state", STATE, "--node", "node-1", "--from", from, "--to", to];
    stdout(&bulkhead(&[&args[..], more].concat()), code)
}

fn ask_json(from: &str, to: &str, code: i32, more: &[&str]) -> Value {
    serde_json::from_str(&ask(from, to, code, &[&["-o", "json"], more].concat())).unwrap()
}

fn error(args: &[&str]) -> String {
    let output = bulkhead(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{args:?}: {text}");
    text
}

fn texts(value: &Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_packet_of_the_known_answers_is_answered_as_the_interface_promises() {
    let Some(folder) = cases() else { return };
    let all: Value = serde_json::from_str(&fs::read_to_string(folder.join("service_cases.json")).unwrap()).unwrap();
    let packets = all["cases"].as_array().unwrap();
    for case in packets {
        let name = case["objects"].as_str().unwrap();
        let lists = all["objects"][name].as_object().unwrap().values();
        let items: Vec<&Value> = lists.flat_map(|list| list.as_array().unwrap()).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let state = scratch(&format!("resolve-{name}.json"), &list.to_string());
        let mut settings = all["defaults"].clone();
        for (key, value) in case["settings"].as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        let settings = scratch("resolve-settings.json", &settings.to_string());
        let (ip, port) = (case["dst"]["ip"].as_str().unwrap(), &case["dst"]["port"]);
        let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        let to = format!("{ip}:{port}/{}", case["dst"]["protocol"].as_str().unwrap());
        let (node, from) = (case["node"].as_str().unwrap(), case["client"]["ip"].as_str().unwrap());
        let args = ["--state", &state, "--node", node, "--from", from, "--to", &to, "--settings", &settings];
        let expect = &case["expect"];
        let code = i32::from(["reject", "drop"].contains(&expect["action"].as_str().unwrap()));
        let answer = stdout(&bulkhead(&[&["resolve", "-o", "json"], &args[..]].concat()), code);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let context = format!("case {}: {answer:#}", case["id"]);
        let keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["action", "service", "backends", "rewrite_source", "why"], "{context}");
        assert_eq!(answer["action"], expect["action"], "{context}");
        assert!(!answer["why"].as_str().unwrap().is_empty(), "{context}");
        assert_eq!(texts(&answer["backends"]), texts(&expect["backends"]), "{context}");
        let rewritten = texts(&answer["rewrite_source"]);
        assert!(texts(&expect["snat"]["must"]).is_subset(&rewritten), "{context}");
        assert!(expect["snat"]["must_not"] != true || rewritten.is_empty(), "{context}");
    }
    assert_eq!(packets.len(), 174);
}

#[test]
fn the_answer_names_the_backends_with_their_nodes_and_why_each_other_endpoint_is_out() {
    let answer = ask("10.244.1.2", "10.96.0.20:80/TCP", 0, &[]);
    let expected = "\
10.244.1.2 (a pod of this node) -> 10.96.0.20:80/TCP at node node-1: DNAT, service shop/web
because: by its cluster IP, port http, internalTrafficPolicy Cluster; any of the backends may be chosen

BACKEND           NODE               SOURCE
10.244.1.20:8080  node-1 (this one)  kept
10.244.2.20:8080  node-2             kept

NOT USED          WHY
10.244.2.21:8080  terminating, and others are ready
10.244.2.22:8080  not ready
";
    assert_eq!(answer, expected);
    let page = fs::read_to_string(crate::support::root().join("docs/services.md")).unwrap();
    assert!(page.contains(expected), "docs/services.md shows another answer");
    let answer = ask_json("203.0.113.7", "192.0.2.11:30080/TCP", 0, &[]);
    assert_eq!(answer["rewrite_source"], json!(["10.244.2.20:8080"]));
    let refused = ask("203.0.113.7", "198.51.100.1:80/TCP", 1, &[]);
    for part in [
        "DROP, service shop/shopfront",
        "externalTrafficPolicy Local, so that only endpoints of this node count; endpoints are usable, but none on this node",
        "10.244.2.20:8080  on node node-2, and externalTrafficPolicy is Local",
    ] {
        assert!(refused.contains(part), "{part} is not in:\n{refused}");
    }
    let inside = ask("10.244.1.2", "192.0.2.11:30081/TCP", 0, &[]);
    assert!(inside.contains("is for clients outside: from a pod of this node all endpoints count"), "{inside}");
    let barred = ask("203.0.113.200", "198.51.100.1:80/TCP", 1, &[]);
    assert!(barred.contains("in none of the loadBalancerSourceRanges"), "{barred}");
}

#[test]
fn an_operator_is_told_why_a_service_answers_nobody() {
    let state = fs::read_to_string(crate::support::root().join(STATE)).unwrap();
    let ask = |name: &str, old: &str, new: &str, node: &str| {
        assert!(state.contains(old), "{old}");
        let path = scratch(&format!("resolve-why-{name}.yaml"), &state.replace(old, new));
        let args = ["--state", &path, "--node", node, "--from", "10.244.1.2", "--to", "10.96.0.20:80/TCP"];
        let output = bulkhead(&[&["resolve"], &args[..]].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let renamed = ask(
        "name",
        "- {name: http, protocol: TCP, port: 8080}\nendpoints:\n- {addresses: [10.244.1.20]",
        "- {name: web, protocol: TCP, port: 8080}\nendpoints:\n- {addresses: [10.244.1.20]",
        "node-1",
    );
    assert!(renamed.contains("REJECT") && renamed.contains("no endpoint is usable on any node"), "{renamed}");
    assert!(renamed.contains("slice shop/web-1  has no port http (TCP); it has web (TCP)"), "{renamed}");
    let zones = |zone: &str| format!("{{ready: true}}, hints: {{forZones: [{{name: {zone}}}]}}}}");
    let hinted = state.replacen("{ready: true}}", &zones("zone-a"), 1).replacen("{ready: true}}", &zones("zone-b"), 1);
    let path = scratch("resolve-why-zones.yaml", &hinted);
    let args = ["--state", &path, "--node", "node-1", "--from", "10.244.1.2", "--to", "10.96.0.20:80/TCP"];
    let answer = stdout(&bulkhead(&[&["resolve"], &args[..]].concat()), 0);
    assert!(answer.contains("10.244.2.20:8080  meant for zone zone-b, and this node is in zone-a"), "{answer}");
    // Another Service claims the same address.
    let thief = "---\n{apiVersion: v1, kind: Service, metadata: {name: thief, namespace: evil}, spec: {clusterIP: 10.96.0.66, \
                 externalIPs: [10.96.0.20], ports: [{port: 80}]}}\n";
    let path = scratch("resolve-why-thief.yaml", &format!("{state}{thief}"));
    let args = ["--state", &path, "--node", "node-1", "--from", "10.244.1.2", "--to", "10.96.0.20:80/TCP"];
    let answer = stdout(&bulkhead(&[&["resolve"], &args[..]].concat()), 0);
    assert!(answer.contains("service shop/web") && answer.contains("claimed in vain by evil/thief"), "{answer}");
}

#[test]
fn what_is_no_services_passes_is_refused_or_dropped_as_the_settings_say() {
    let settings = scratch("resolve-cidrs.yaml", "service_cidrs: [10.96.0.0/16]\n");
    let with = ["--settings", &*settings];
    assert_eq!(ask_json("10.244.1.2", "10.96.0.99:80/TCP", 1, &with)["action"], "drop");
    let without = ask_json("10.244.1.2", "10.96.0.99:80/TCP", 0, &[]);
    assert_eq!((&without["action"], &without["service"]), (&"pass".into(), &Value::Null));
    assert!(without["why"].as_str().unwrap().contains("without service_cidrs in --settings"), "{without}");
    let port = ask_json("10.244.1.2", "10.96.0.20:81/TCP", 1, &with);
    assert_eq!((&port["action"], &port["service"]), (&"reject".into(), &"shop/web".into()));
    assert_eq!(port["why"], "the Service has no such port: it has 80/TCP");
    assert_eq!(ask_json("10.244.1.2", "10.96.0.20/ICMP", 1, &with)["action"], "reject");
    assert_eq!(ask_json("10.244.1.2", "8.8.8.8:53/UDP", 0, &with)["action"], "pass");
}

#[test]
fn nonsense_is_an_error_with_its_place_and_a_remedy() {
    let with = |node: &'static str, from: &'static str, to: &'static str, more: &[&str]| {
        let args = ["resolve", "--state", STATE, "--node", node, "--from", from, "--to", to];
        error(&[&args[..], more].concat())
    };
    let good = ("node-1", "10.244.1.2", "10.96.0.20:80/TCP");
    let no_node = with("node-7", good.1, good.2, &[]);
    assert!(no_node.contains("no node `node-7` in the state") && no_node.contains("node-1, node-2"), "{no_node}");
    let families = with(good.0, "fd00::1", good.2, &[]);
    assert!(families.contains("address families differ") && families.contains("help: "), "{families}");
    for (from, to, part) in [
        ("pod", good.2, "invalid value 'pod' for '--from"),
        (good.1, "10.96.0.20/TCP", "write for example 10.96.0.20:80/TCP"),
        (good.1, "fd00::20:80/TCP", "with the brackets"),
        (good.1, "10.96.0.20:80/HTTP", "write TCP, UDP, SCTP or ICMP"),
        (good.1, "10.96.0.20:65536/TCP", "is no address and port"),
    ] {
        let text = with(good.0, from, to, &[]);
        assert!(text.contains(part), "{to}: {text}");
    }
    let typo = scratch("resolve-typo.yaml", "cluster_cidrs: [10.244.0.0/16]\nservise_cidrs: []\n");
    let text = with(good.0, good.1, good.2, &["--settings", &typo]);
    assert!(text.contains("resolve-typo.yaml:2") && text.contains("did you mean `service_cidrs`?"), "{text}");
    let text = with(good.0, good.1, good.2, &["--settings", "absent.yaml"]);
    assert!(text.contains("absent.yaml") && text.contains("omit --settings"), "{text}");
    let faulty = "{apiVersion: v1, kind: Node, metadata: {name: node-1}}\n---\n\
                  {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: [{port: 70000}]}}\n";
    let args = ["resolve", "--state", "-", "--node", "node-1", "--from", "10.0.0.9", "--to", "10.0.0.1:80/TCP"];
    let output = bulkhead_with_input(&args, faulty);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("-:3: Service default/a: spec.ports[0].port: port 70000 does not exist"), "{text}");
    // With --lenient only the faulty object is left out.
    let output = bulkhead_with_input(&[&args[..], &["--lenient"]].concat(), faulty);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("until then the object is left out"));
}

#[test]
fn a_state_without_services_or_slices_is_told_of() {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: node-1}}\n";
    let service =
        "---\n{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}\n";
    let args = ["resolve", "--state", "-", "--node", "node-1", "--from", "10.0.0.9", "--to", "10.0.0.1:80/TCP"];
    for (state, code, part) in
        [(node.to_owned(), 0, "kubectl get services"), (format!("{node}{service}"), 1, "kubectl get endpointslices")]
    {
        let output = bulkhead_with_input(&args, &state);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn services_in_a_state_change_nothing_for_commands_about_policy() {
    let state = fs::read_to_string(crate::support::root().join(STATE)).unwrap();
    let pods = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: node-1}, status: {podIP: 10.244.1.20}}\n---\n\
                {apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {nodeName: node-1}, status: {podIP: 10.244.1.21}}\n---\n";
    // One of the Services is invalid.
    let faulty = "---\n{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: nonsense}}\n";
    let path = scratch("resolve-mixed.yaml", &format!("{pods}{state}{faulty}"));
    let output = bulkhead(&["reach", "--state", &path, "--port", "80/TCP"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stdout(&output, 0).contains("default/a") && told.contains("3 v1 Service"), "{told}");
    stdout(&bulkhead(&["compile", "--state", &path, "--node", "node-1"]), 0);
}

#[test]
fn a_host_port_is_told_with_its_pod_and_no_service() {
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: edge, namespace: shop}, spec: {nodeName: node-1, containers: [{ports: \
               [{containerPort: 8443, hostPort: 443}, {containerPort: 8080, hostPort: 30080}]}]}, status: {podIP: 10.244.1.30}}\n";
    let state = scratch("resolve-host-port.yaml", &format!("{}{pod}", fs::read_to_string(STATE).unwrap()));
    let ask = |to: &str, more: &[&str], code: i32| {
        let args = ["resolve", "--state", &state, "--node", "node-1", "--from", "203.0.113.9", "--to", to];
        stdout(&bulkhead(&[&args[..], more].concat()), code)
    };
    let answer: Value = serde_json::from_str(&ask("192.0.2.11:443", &["-o", "json"], 0)).unwrap();
    let expected = json!({
        "action": "dnat", "service": null, "backends": ["10.244.1.30:8443"], "rewrite_source": [],
        "why": "by host port 443/TCP of pod shop/edge",
    });
    assert_eq!(answer, expected);
    assert!(ask("192.0.2.11:443", &[], 0).contains("10.244.1.30:8443  node-1 (this one)  kept"));
    // A Service keeps a node port that the API server assigned to it.
    let answer = ask("192.0.2.11:30080", &[], 0);
    assert!(answer.contains("service shop/web") && answer.contains("claimed in vain by pod shop/edge"), "{answer}");
    assert!(ask("192.0.2.12:443", &[], 0).contains(": PASS"), "another node's address");
    // Policy is evaluated for the pod behind the host port.
    let explained = ["explain", "--state", &state, "--from", "203.0.113.9", "--to", "192.0.2.11", "--port", "443"];
    let answer = stdout(&bulkhead(&explained), 0);
    for part in ["192.0.2.11:443/TCP: ALLOW, 1 of 1 backends", "by host port 443/TCP", "10.244.1.30:8443  shop/edge"] {
        assert!(answer.contains(part), "{part} is not in:\n{answer}");
    }
}

#[test]
fn client_and_service_are_named_as_everywhere() {
    let by_address = ask("10.244.1.2", "10.96.0.20:80", 0, &[]);
    let state = ["resolve", "--state", STATE, "examples/service-policy.yaml", "--node", "node-1"];
    let named = |from: &str, to: &str| bulkhead(&[&state[..], &["--from", from, "--to", to]].concat());
    for from in ["shop/cart", "pod/shop/cart", "app=cart -n shop", "10.244.1.2"] {
        for to in ["10.96.0.20:80", "service/shop/web", "svc/shop/web:http", "service/shop/web:80/TCP"] {
            let answer = stdout(&named(from, to), 0);
            let [told, expected] = [&answer, &by_address].map(|text| text.lines().skip(1).collect::<Vec<_>>());
            assert_eq!(told, expected, "{from} {to}");
            assert!(
                answer.starts_with("10.244.1.2 (pod shop/cart) -> 10.96.0.20:80/TCP at node node-1: DNAT"),
                "{answer}"
            );
        }
    }
    assert!(stdout(&named("node/node-1", "service/shop/web"), 0).contains("(node node-1)"));
    for (from, to, help) in [
        ("shop/crt", "10.96.0.20:80", "did you mean shop/cart?"),
        ("node/node-9", "10.96.0.20:80", "no node `node-9` in the state"),
        ("shop/cart", "service/shop/wbe", "did you mean shop/web?"),
        ("shop/cart", "service/shop/web:9", "has no such port\n  help: choose one of http (80/TCP)"),
        ("shop/cart", "service/web", "`service/web` has no namespace; write service/NAMESPACE/NAME"),
        ("shop/cart", "[fd00::20]:80", "address families differ"),
    ] {
        let output = named(from, to);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(help), "{from} {to}: {error}");
    }
    // Of several pods, one is asked.
    let pods = ["a", "b"].map(|name| {
        let address = if name == "a" { "10.244.1.8" } else { "10.244.1.9" };
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"app": "many"}},
            "spec": {"nodeName": "node-1", "containers": []}, "status": {"phase": "Running", "podIP": address}
        })
    });
    let several =
        scratch("resolve-several.json", &json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string());
    let args = [
        "resolve",
        "--state",
        STATE,
        &several,
        "--node",
        "node-1",
        "--from",
        "app=many -n shop",
        "--to",
        "service/shop/web",
    ];
    let output = bulkhead(&args);
    assert!(stdout(&output, 0).starts_with("10.244.1.8 (pod shop/a) -> "));
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("has 2 pods; the client is shop/a"), "{warning}");
}
