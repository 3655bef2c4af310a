//! `bulkhead explain --live`: the answer of a running vswitch, beside what becomes of real packets.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "support/lab.rs"]
mod lab;

use lab::netns::eventually;
use lab::{Lab, policy};
use serde_json::Value;

/// Two pods, a machine outside, and a pod of another node that is in the state alone.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.outside();
    lab
}

const ELSEWHERE: &str = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: far, namespace: default, labels: {app: far}}\n\
    spec: {nodeName: node-9}\nstatus: {phase: Running, podIP: 10.244.9.9, podIPs: [{ip: 10.244.9.9}]}\n";

/// `b` takes port 6379 from `a` and port 80 from the pod of the other node.
fn policies() -> String {
    let only = policy(
        "only-redis",
        "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [\
         {from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 6379}]}, \
         {from: [{podSelector: {matchLabels: {app: far}}}], ports: [{port: 80}]}]}",
    );
    format!("{only}{ELSEWHERE}")
}

/// The exit code and the answer.
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
    // Both families.
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

    // The questions are no packets.
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
        ("default/nobody", "default/b", "the state has no pod default/nobody"),
        ("default/b", "default/b", "is both ends"),
        ("default/far", "fd00::1", "no address family in common"),
    ] {
        let (code, text) = lab.ask(&["explain", "--live", "--from", from, "--to", to, "--port", "80"]);
        assert!(code == Some(2) && text.contains(part) && text.contains("help: "), "{from} {to}: {code:?} {text}");
    }
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
        (code, &walk["verdict"], &walk["steps"][0]["verdict"]),
        (Some(1), &"deny".into(), &"forward".into()),
        "{told:#}"
    );
    assert_eq!((&walk["not_open"][0]["port"], &walk["not_open"][0]["state"]), (&"default/b".into(), &"absent".into()));
    let (_, text) = lab.ask(&["explain", "--live", "--from", "default/a", "--to", "default/b", "--port", "6379"]);
    assert!(text.contains("port default/b is absent: waits for its interface"), "{text}");
    lab.plug("b");
    eventually("the port is open", || explain(&lab, "default/a", "default/b", "6379").0 == Some(0));
    lab.stop();
}
