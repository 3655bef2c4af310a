//! The traps of the semantics: policies as YAML, with the verdicts that the products give.

mod calico;
mod cilium;

use std::net::IpAddr;

use super::document::yaml;
use super::judge::{Fed, Judge};
use super::labels::labels;
use super::world::{
    GRE, ICMP, ICMPV6, NODES, NamedPort, Packet, Pod, SCTP, Service, TCP, UDP, World, ip, node_addresses,
};

/// The cluster of all traps. Pods have the label `app` (their name) and a service account: `robot` for `web`, `default` for others, and one
/// without an object for `lost`.
fn world() -> World {
    let pod = |number: u16, namespace, name: &str, node: usize, http: u16| Pod {
        namespace,
        name: name.to_owned(),
        labels: labels([("app", name)]),
        account: match name {
            "web" => "robot".to_owned(),
            "lost" => "lost".to_owned(),
            _ => "default".to_owned(),
        },
        node: NODES[node - 1],
        addresses: match name {
            "host" => node_addresses(node),
            _ => vec![ip(&format!("10.244.{node}.{number}")), ip(&format!("fd00:{node}::{number}"))],
        },
        ports: vec![NamedPort { name: "http", protocol: TCP, number: http }],
        host_network: name == "host",
    };
    let service = |namespace, name, labels_of: [(&str, &str); 1], selector, endpoints| Service {
        namespace,
        name,
        labels: labels(labels_of),
        selector,
        ports: vec![(TCP, 443)],
        endpoints,
    };
    World {
        namespaces: vec![("a", labels([("team", "red")])), ("b", labels([("team", "blue")])), ("c", labels([]))],
        nodes: vec![(NODES[0], node_addresses(1)), (NODES[1], node_addresses(2))],
        accounts: vec![
            ("a", "robot".to_owned(), labels([("role", "reader")])),
            ("b", "robot".to_owned(), labels([("role", "writer")])),
            ("a", "default".to_owned(), labels([])),
        ],
        pods: vec![
            pod(1, "a", "web", 1, 80),
            pod(2, "a", "db", 1, 8080),
            pod(3, "b", "web", 2, 80),
            pod(4, "b", "db", 2, 8080),
            pod(5, "b", "host", 2, 9100),
            pod(6, "c", "lost", 1, 80),
        ],
        services: vec![
            service("default", "kubernetes", [("svc", "api")], labels([]), vec![ip("192.168.0.1"), ip("203.0.113.6")]),
            service("b", "web", [("svc", "web")], labels([("app", "web")]), vec![ip("10.244.2.3")]),
            service("b", "outer", [("svc", "outer")], labels([]), vec![ip("203.0.113.7"), ip("10.244.2.4")]),
        ],
    }
}

/// The address of `a/web`, `a/web/6` (the pod's IPv6 address), `node-1`, `node-1/6`, or of an address itself.
fn address(world: &World, name: &str) -> IpAddr {
    let (name, at) = name.strip_suffix("/6").map_or((name, 0), |name| (name, 1));
    if let Some((_, addresses)) = world.nodes.iter().find(|(node, _)| *node == name) {
        return addresses[at];
    }
    let mut pods = world.pods.iter();
    match pods.find(|pod| format!("{}/{}", pod.namespace, pod.name) == name) {
        Some(pod) => pod.addresses[at],
        None => ip(name),
    }
}

/// Checks verdicts. A line is `allow|deny FROM -> TO PROTOCOL PORT`; for ICMP the port is the type, or type and code: `8/0`. After TO,
/// `=NAME` is the domain name that the sender has learned for it.
fn check(policies: &str, expected: &str) {
    let world = world();
    let text = yaml(&world.documents()) + "---\n" + policies;
    let in_batches = |seed| Fed::InBatches { seed, earlier: yaml(&world.documents()[..8]) };
    for fed in [Fed::AtOnce, in_batches(1), in_batches(2)] {
        let judge = Judge::of(&text, &fed).unwrap_or_else(|problem| panic!("{problem}"));
        for line in expected.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [verdict, from, "->", to, protocol, port] = words[..] else { panic!("not an expectation: {line}") };
            let protocol = match protocol {
                "TCP" => TCP,
                "UDP" => UDP,
                "SCTP" => SCTP,
                "ICMP" => ICMP,
                "ICMPv6" => ICMPV6,
                "GRE" => GRE,
                other => panic!("the protocol {other}: {line}"),
            };
            let (first, code) = port.split_once('/').unwrap_or((port, "0"));
            let (first, code): (u16, u16) = (first.parse().unwrap(), code.parse().unwrap());
            let port = if matches!(protocol, ICMP | ICMPV6) { first * 256 + code } else { first };
            let (to, name) = to.split_once('=').map_or((to, None), |(to, name)| (to, Some(name)));
            let packet = Packet { src: address(&world, from), dst: address(&world, to), protocol, port };
            let allowed = match name {
                Some(_) => judge.verdict_by_name(&world, &packet, name),
                None => judge.verdict(&world, &packet).unwrap_or_else(|problem| panic!("{line}: {problem}")),
            };
            let is = if allowed { "allow" } else { "deny" };
            let at_once = matches!(fed, Fed::AtOnce);
            assert_eq!(is, verdict, "{line} (at once: {at_once})\n{policies}");
        }
    }
}

/// Checks that a policy is refused, with a message that contains each of these texts.
fn refused(policy: &str, parts: &[&str]) {
    let text = yaml(&world().documents()) + "---\n" + policy;
    match Judge::of(&text, &Fed::AtOnce) {
        Ok(_) => panic!("accepted:\n{policy}"),
        Err(message) => parts.iter().for_each(|part| assert!(message.contains(part), "no {part} in: {message}")),
    }
}
