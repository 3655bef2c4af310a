//! `bulkhead explain --live`: compares the answers of a running vswitch with the fate of real packets.

use crate::lab::netns::eventually;
use crate::lab::{Lab, policy};
use crate::require;
use serde_json::Value;

/// A lab with two pods, a machine outside, and a pod of another node that only the state knows.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.outside();
    lab
}

const ELSEWHERE: &str = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: far, namespace: default, labels: {app: far}}\n\
    spec: {nodeName: node-9}\nstatus: {phase: Running, podIP: 10.244.9.9, podIPs: [{ip: 10.244.9.9}]}\n";

/// A policy: `b` accepts port 6379 from `a`, and port 80 from the pod of the other node.
fn policies() -> String {
    let only = policy(
        "only-redis",
        "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [\
         {from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 6379}]}, \
         {from: [{podSelector: {matchLabels: {app: far}}}], ports: [{port: 80}]}]}",
    );
    format!("{only}{ELSEWHERE}")
}

/// The exit code and the answer of `explain --live`.
fn explain(lab: &Lab, from: &str, to: &str, port: &str) -> (Option<i32>, Value) {
    let (code, text) = lab.ask(&["explain", "--live", "--from", from, "--to", to, "--port", port, "-o", "json"]);
    (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}")))
}

#[test]
fn it_tells_what_is_enforced_now_and_follows_the_policy() {
    require!("ping");
    let mut lab = lab();
    lab.start(&policies());
    let (code, told) = explain(&lab, "default/a", "default/b", "6379");
    assert_eq!(code, Some(0), "{told:#}");
    // One walk for each address family.
    assert_eq!(told["walks"].as_array().unwrap().len(), 2, "{told:#}");
    let walk = &told["walks"][0];
    assert_eq!((&walk["verdict"], &walk["judged_elsewhere"]), (&"allow".into(), &false.into()));
    let (first, reply) = (&walk["steps"][0], &walk["steps"][1]);
    assert_eq!(
        (&first["in"], &first["out"], &first["table"]),
        (&"default/a".into(), &"default/b".into(), &"default/b".into())
    );
    assert_eq!(first["policy"]["name"], "only-redis");
    assert_eq!((&reply["session"], &reply["verdict"]), (&"hit".into(), &"forward".into()));

    let (code, told) = explain(&lab, "default/a", "default/b", "80/TCP");
    let step = &told["walks"][0]["steps"][0];
    assert_eq!((code, &step["reason"]), (Some(1), &"policy_denied".into()), "{told:#}");
    assert_eq!(step["isolated_by"][0]["name"], "only-redis");
    let generation = told["generation"].as_u64().unwrap();
    let (code, text) = lab.ask(&["explain", "--live", "--from", "default/a", "--to", "default/b", "--port", "80"]);
    assert_eq!(code, Some(1));
    for part in [
        "TCP/80: DENY, as node node-1 enforces now",
        "the first packet comes in from default/a and is dropped: policy_denied",
        "table default/b, rule ",
        "because: ingress isolated by default/only-redis",
    ] {
        assert!(text.replace("80/TCP", "TCP/80").contains(part), "{part} is not in:\n{text}");
    }

    // Questions create no sessions.
    let (_, sessions) = lab.ask(&["sessions", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&sessions).unwrap()["matching"], 0, "{sessions}");

    let to = lab.get("b").v4.clone();
    assert!(!lab.pings("a", &to));
    lab.apply(ELSEWHERE);
    let (code, told) = explain(&lab, "default/a", &to, "80/TCP");
    assert_eq!(code, Some(0), "{told:#}");
    assert!(told["generation"].as_u64().unwrap() > generation, "{told:#}");
    assert!(lab.pings("a", &to));
    lab.stop();
}

#[test]
fn other_nodes_pods_are_known_by_name_and_their_part_is_said_to_be_judged_elsewhere() {
    let mut lab = lab();
    lab.start(&policies());
    let (code, told) = explain(&lab, "default/far", "default/b", "80");
    let walk = &told["walks"][0];
    assert_eq!((code, &walk["from_address"]), (Some(0), &"10.244.9.9".into()), "{told:#}");
    assert_eq!((&walk["steps"][0]["in"], &walk["judged_elsewhere"]), (&"uplink".into(), &true.into()));
    let (code, _) = explain(&lab, "default/far", "default/b", "6379");
    assert_eq!(code, Some(1));
    let (code, told) = explain(&lab, "default/a", "172.18.0.100", "53/UDP");
    assert_eq!((code, &told["walks"][0]["steps"][0]["out"]), (Some(0), &"uplink".into()), "{told:#}");
    let (_, text) = lab.ask(&["explain", "--live", "--from", "default/a", "--to", "default/far", "--port", "1"]);
    assert!(text.contains("The other end is not on this node."), "{text}");

    for (from, to, part) in [
        ("default/far", "192.0.2.1", "neither default/far nor 192.0.2.1 is on node node-1"),
        ("default/nobody", "default/b", "no pod default/nobody in the state"),
        ("default/b", "default/b", "is both source and destination"),
        ("default/far", "fd00::1", "no address family in common"),
    ] {
        let (code, text) = lab.ask(&["explain", "--live", "--from", from, "--to", to, "--port", "80"]);
        assert!(code == Some(2) && text.contains(part) && text.contains("help: "), "{from} {to}: {code:?} {text}");
    }
    lab.stop();
}

#[test]
fn of_pods_with_one_name_each_connection_is_explained_except_that_of_a_pod_to_itself() {
    let mut lab = Lab::new();
    lab.pod("a", "{tier: x}");
    lab.pod("b", "{tier: x}");
    lab.start("");
    let (code, told) = explain(&lab, "tier=x -n default", "tier=x -n default", "80");
    let walks = told["walks"].as_array().unwrap();
    let ends: Vec<(&str, &str)> =
        walks.iter().map(|walk| (walk["from"].as_str().unwrap(), walk["to"].as_str().unwrap())).collect();
    let each = [
        ("default/a", "default/b"),
        ("default/a", "default/b"),
        ("default/b", "default/a"),
        ("default/b", "default/a"),
    ];
    assert_eq!((code, &ends[..]), (Some(0), &each[..]), "{told:#}");
    let (code, text) =
        lab.ask(&["explain", "--live", "--from", "tier=y -n default", "--to", "default/b", "--port", "80"]);
    assert!(code == Some(2) && text.contains("its pods have tier=x"), "{text}");
    lab.stop();
}

#[test]
fn a_port_that_is_not_open_denies_whatever_the_tables_say() {
    let mut lab = lab();
    lab.unplug("b");
    lab.start(&policies());
    let (code, told) = explain(&lab, "default/a", "default/b", "6379");
    let walk = &told["walks"][0];
    assert_eq!(
        (code, &walk["verdict"], &walk["steps"][0]["reason"], &walk["steps"][0]["answer"]),
        (Some(1), &"deny".into(), &"no_such_pod".into(), &"tcp_reset".into()),
        "{told:#}"
    );
    assert_eq!((&walk["not_open"][0]["port"], &walk["not_open"][0]["state"]), (&"default/b".into(), &"absent".into()));
    let (_, text) = lab.ask(&["explain", "--live", "--from", "default/a", "--to", "default/b", "--port", "6379"]);
    assert!(text.contains("port default/b is absent: waits for its interface"), "{text}");
    lab.plug("b");
    eventually("the port is open", || explain(&lab, "default/a", "default/b", "6379").0 == Some(0));
    lab.stop();
}

/// A Service and its slice, with an address and a node for each endpoint.
fn service(name: &str, address: &str, port: u16, endpoints: &[(&str, &str)]) -> String {
    let endpoints: Vec<String> = endpoints
        .iter()
        .map(|(address, node)| format!("{{addresses: ['{address}'], nodeName: {node}, conditions: {{ready: true}}}}"))
        .collect();
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{clusterIP: {address}, clusterIPs: [{address}], ports: [{{name: first, port: 80}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-1, namespace: default, \
         labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nports: [{{name: first, port: {port}, protocol: TCP}}]\n\
         endpoints: [{}]\n",
        endpoints.join(", ")
    )
}

#[test]
fn a_service_is_told_backend_by_backend_as_it_is_enforced() {
    let mut lab = lab();
    lab.more_config = "services: {service_cidrs: [10.96.0.0/12]}\n".to_owned();
    let b = lab.get("b").v4.clone();
    let redis = service("redis", "10.96.0.20", 6379, &[(&b, "node-1"), ("10.244.9.9", "node-9")]);
    let web = service("web", "10.96.0.21", 80, &[(&b, "node-1"), ("10.244.9.9", "node-9")]);
    let empty = service("empty", "10.96.0.22", 80, &[]);
    let far = service("far", "10.96.0.23", 80, &[("10.244.9.9", "node-9")]);
    lab.start(&format!("{}{redis}{web}{empty}{far}", policies()));
    let ask = |to: &str, more: &[&str]| {
        let asked = [&["explain", "--live", "--from", "default/a", "--to", to, "-o", "json"], more].concat();
        let (code, text) = lab.ask(&asked);
        (code, serde_json::from_str::<Value>(&text).unwrap_or_else(|_| panic!("{code:?} {text}")))
    };

    // The same Service by name and by address.
    for (to, more) in [("service/default/redis", &[][..]), ("10.96.0.20", &["--port", "80"])] {
        let (code, told) = ask(to, more);
        let translated = &told["services"][0];
        assert_eq!(
            (code, &translated["service"], &translated["verdict"], &translated["to"]),
            (Some(0), &"default/redis".into(), &"allow".into(), &"10.96.0.20:80/TCP".into()),
            "{told:#}"
        );
        let backends = translated["backends"].as_array().unwrap();
        let step = |at: usize| &backends[at]["walks"][0]["steps"][0];
        assert_eq!(backends.len(), 2, "{told:#}");
        assert_eq!(
            (&step(0)["out"], &step(0)["policy"]["name"]),
            (&"default/b".into(), &"only-redis".into()),
            "{told:#}"
        );
        assert_eq!((&step(1)["out"], &backends[1]["walks"][0]["judged_elsewhere"]), (&"uplink".into(), &true.into()));
    }
    // Policy denies one of two backends.
    let (code, told) = ask("service/default/web:first", &[]);
    let verdicts: Vec<&Value> =
        told["services"][0]["backends"].as_array().unwrap().iter().map(|backend| &backend["verdict"]).collect();
    assert_eq!(
        (code, &told["services"][0]["verdict"], verdicts),
        (Some(1), &"some".into(), vec![&"deny".into(), &"allow".into()])
    );
    let (code, told) = ask("service/default/empty", &[]);
    assert_eq!((code, &told["services"][0]["refused"]), (Some(1), &"no_endpoint".into()), "{told:#}");
    // Neither client nor backend is on this node, so its verdict is unknown here.
    let remote = ["explain", "--live", "--from", "10.244.8.8", "--to", "service/default/far", "-o", "json"];
    let (code, text) = lab.ask(&remote);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}"));
    assert_eq!((code, &told["services"][0]["verdict"]), (Some(1), &"unknown".into()), "{told:#}");
    let (_, text) = lab.ask(&["explain", "--live", "--from", "default/a", "--to", "service/default/web"]);
    for part in ["-> 10.96.0.21:80/TCP of Service default/web: SOME, 1 of 2 backends", "as node node-1 enforces now"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (to, port, part) in [
        ("service/default/nobody", None, "Service default/nobody is not translated by this vswitch"),
        ("service/default/web:second", None, "has no such port"),
        ("service/default/web:first", Some("80"), "is given twice"),
        ("10.96.0.20", None, "--port is missing"),
    ] {
        let more: Vec<&str> = port.iter().flat_map(|port| ["--port", *port]).collect();
        let asked = [&["explain", "--live", "--from", "default/a", "--to", to], &more[..]].concat();
        let (code, text) = lab.ask(&asked);
        assert!(code == Some(2) && text.contains(part) && text.contains("help: "), "{to}: {code:?} {text}");
    }
    lab.stop();
}
