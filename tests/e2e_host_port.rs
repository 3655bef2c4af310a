//! A node whose only network card stays with its kernel. The vswitch creates the host port's interfaces, and pods reach all other
//! destinations through the node's kernel.

use crate::lab::lasting::Lasting;
use crate::lab::netns::{Netns, eventually};
use crate::lab::{Lab, policy, veth};
use crate::require;

const PORT: u16 = 7050;

/// Creates the node's card, and a machine behind it with routes to the pods.
pub(super) fn card(lab: &Lab) -> Netns {
    let outside = Netns::new("outside");
    veth(&outside, "eth0", &lab.node, "card", 1500);
    outside.sysctl("net.ipv6.conf.eth0.disable_ipv6", "0");
    for (netns, device, v4, v6) in
        [(&outside, "eth0", "172.18.0.100", "fd00:18::100"), (&lab.node, "card", "172.18.0.11", "fd00:18::11")]
    {
        netns.ip(&format!("addr add {v4}/16 dev {device}"));
        netns.ip(&format!("addr add {v6}/64 dev {device} nodad"));
    }
    outside.ip("route add 10.244.1.0/24 via 172.18.0.11");
    outside.ip("-6 route add fd00:244:1::/64 via fd00:18::11");
    lab.node.sysctl("net.ipv4.ip_forward", "1");
    lab.node.sysctl("net.ipv6.conf.all.forwarding", "1");
    outside
}

fn deploy(lab: &mut Lab) {
    lab.more_ports = "  - {kind: host, interface: bh-host, peer: bh-node, create: {mtu: 1400}}\n".to_owned();
    lab.more_config.push_str("routes: [{prefix: 0.0.0.0/0, port: host}, {prefix: '::/0', port: host}]\n");
}

/// Whether one ping is answered within a second.
fn pings(from: &Netns, to: &str) -> bool {
    from.output(&format!("ping -n -c 1 -W 1 {to}")).status.success()
}

/// A policy: pod a accepts only TCP on one port, from pod c and from the machine outside.
fn rules() -> String {
    let from = "[{podSelector: {matchLabels: {app: c}}}, {ipBlock: {cidr: 172.18.0.100/32}}]";
    let rule = format!("{{from: {from}, ports: [{{port: {PORT}}}]}}");
    policy("a", &format!("{{podSelector: {{matchLabels: {{app: a}}}}, policyTypes: [Ingress], ingress: [{rule}]}}"))
}

#[test]
fn pods_the_node_and_other_machines_reach_each_other_through_the_kernel_as_policy_allows() {
    require!("ping", "nc", "ss");
    only_with_tc!();
    let Lasting { lab, .. } = &mut Lasting::new();
    let outside = card(lab);
    deploy(lab);
    lab.start(&rules());
    let link = lab.node.ip("-o link show bh-node");
    assert!(link.contains("mtu 1400") && link.contains("UP"), "{link}");
    for (family, network) in [("-4", "10.244.1.0/24"), ("-6", "fd00:244:1::/64")] {
        let routes = lab.node.ip(&format!("{family} route show proto 98"));
        assert!(routes.contains(network) && routes.contains("dev bh-node"), "{routes}");
    }
    let (a, b) = (lab.get("a"), lab.get("b"));
    for (pod, node, far) in [(&b.v4, "172.18.0.11", "172.18.0.100"), (&b.v6, "fd00:18::11", "fd00:18::100")] {
        eventually("the node reaches the pod", || pings(&lab.node, pod));
        assert!(lab.pings("b", node), "a pod reaches its node at {node}");
        assert!(lab.pings("b", far), "a pod reaches another machine at {far}");
        assert!(pings(&outside, pod), "another machine reaches the pod at {pod}");
    }
    // For packets through the node's kernel, policy matches the source address. The node itself is always allowed.
    let _server = a.netns.serve(&format!("nc -lk {PORT}"), PORT);
    let connects = |from: &Netns| from.output(&format!("nc -n -z -w 1 {} {PORT}", a.v4)).status.success();
    assert!(connects(&outside) && connects(&lab.node) && lab.connects("c", &a.v4, PORT));
    assert!(!lab.connects("b", &a.v4, PORT) && !pings(&outside, &a.v4) && pings(&lab.node, &a.v4));
    // Explanations name the host port as the path to other machines, because the node has no uplink port.
    let explain =
        |from: &str, to: &str| lab.ask(&["explain", "--live", "--from", from, "--to", to, "--port", &PORT.to_string()]);
    for (from, to) in [("172.18.0.100", "default/a"), ("default/b", "172.18.0.100")] {
        let (code, text) = explain(from, to);
        assert!(code == Some(0) && text.contains("to host") | text.contains("from host"), "{from} {to}: {text}");
    }
    lab.apply(&rules().replace("172.18.0.100/32", "172.18.0.99/32"));
    assert!(!connects(&outside), "the machine outside is not allowed any more");
    let (code, text) = explain("172.18.0.100", "default/a");
    assert!(code == Some(1) && text.contains("ingress isolated by default/a"), "{text}");
    lab.stop();
}

#[test]
fn the_interfaces_stay_for_the_next_process_and_cleanup_removes_them() {
    require!("ping");
    only_with_tc!();
    let Lasting { lab, .. } = &mut Lasting::new();
    let outside = card(lab);
    deploy(lab);
    lab.start("");
    let number = |lab: &Lab| lab.node.ip("-o link show bh-node").split(':').next().unwrap().to_owned();
    let before = number(lab);
    lab.node.ip("route add 198.51.100.0/24 dev bh-node");
    lab.kill();
    assert_eq!(number(lab), before, "the interfaces outlive the process");
    // This network replaces the one from the state.
    lab.more_ports = lab.more_ports.replace("mtu: 1400", "mtu: 1300, networks: [10.244.1.0/25]");
    lab.start("");
    assert_eq!(number(lab), before, "the next process has taken them over");
    let routes = lab.node.ip("-4 route show dev bh-node");
    assert!(routes.contains("10.244.1.0/25") && !routes.contains("10.244.1.0/24"), "{routes}");
    assert!(routes.contains("198.51.100.0/24"), "somebody else's route stays: {routes}");
    assert!(lab.node.ip("-o link show bh-node").contains("mtu 1300"));
    eventually("another machine reaches a pod", || pings(&outside, &lab.get("b").v4));
    lab.stop();
    let config = lab.path("config.yaml");
    let bulkhead = env!("CARGO_BIN_EXE_bulkhead");
    let cleanup = lab.node.command(bulkhead, &["cleanup", "--config", config.to_str().unwrap()]).output().unwrap();
    assert!(cleanup.status.success());
    let links = lab.node.ip("-o link");
    assert!(!links.contains("bh-") && !links.contains("bh0"), "{links}");
}

#[test]
fn another_interface_of_the_name_is_left_alone_and_nothing_is_started() {
    require!();
    only_with_tc!();
    let mut lab = Lab::new();
    deploy(&mut lab);
    lab.node.ip("link add bh-node type veth peer name other");
    lab.write_state("");
    lab.write_config();
    let (code, text) = lab.try_run("config.yaml", &[]);
    assert!(code == Some(2) && text.contains("bh-node: use it for the host port"), "{text}");
    assert!(lab.node.ip("link").contains("bh-node"));
}
