//! Two nodes, the host port and the uplink.

use crate::lab::netns::eventually;
use crate::lab::{Lab, Options, policy, veth};
use crate::require;

/// Two nodes connected by their uplinks. Each has one pod and the state of both nodes.
fn two_nodes() -> (Lab, Lab) {
    let mut one = Lab::with(Options { node: 1, ..Options::default() });
    let mut two = Lab::with(Options { node: 2, ..Options::default() });
    veth(&one.node, "ul0", &two.node, "ul0", 1500);
    one.pod("client", "{app: client}");
    two.pod("server", "{app: server}");
    two.pod("other", "{app: other}");
    for lab in [&mut one, &mut two] {
        lab.has_uplink();
    }
    (one.more_state, two.more_state) = (two.objects(), one.objects());
    (one, two)
}

fn apply(labs: [&Lab; 2], policies: &str) {
    for lab in labs {
        lab.apply(policies);
    }
}

#[test]
fn a_policy_holds_between_pods_of_two_nodes_and_stops_them_where_they_leave() {
    require!("ping", "nc", "socat", "ss");
    let (mut one, mut two) = two_nodes();
    one.start("");
    two.start("");
    let (server, other) = (two.get("server"), two.get("other"));
    let _servers = [server, other].map(|pod| pod.netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80));
    let reaches = |pod: &crate::lab::Pod| [&pod.v4, &pod.v6].map(|address| one.connects("client", address, 80));
    assert_eq!((reaches(server), reaches(other)), ([true; 2], [true; 2]));
    assert!(two.pings("server", &one.get("client").v4), "and back");

    let to_server = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
        egress: [{to: [{podSelector: {matchLabels: {app: server}}}]}]}";
    apply([&one, &two], &policy("client", to_server));
    assert_eq!((reaches(server), reaches(other)), ([true; 2], [false; 2]));
    // The client's node drops what its egress policy denies.
    let drops = |lab: &mut Lab| lab.stop()["dropped"]["policy_denied"].as_u64().unwrap_or_default();
    assert!(drops(&mut one) >= 2);
    assert_eq!(drops(&mut two), 0);
}

#[test]
fn ingress_policy_of_a_remote_pod_is_enforced_at_its_node() {
    require!("nc", "socat", "ss");
    let (mut one, mut two) = two_nodes();
    let none = policy("server", "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress]}");
    one.start(&none);
    two.start(&none);
    let server = two.get("server");
    let _server = server.netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    assert!(!one.connects("client", &server.v4, 80) && !one.connects("client", &server.v6, 80));
    apply([&one, &two], "");
    assert!(one.connects("client", &server.v4, 80) && one.connects("client", &server.v6, 80));
    one.stop();
    assert!(two.stop()["dropped"]["policy_denied"].as_u64() >= Some(2));
}

#[test]
fn the_node_reaches_its_pods_whatever_policy_says_and_the_outside_does_not() {
    require!("ping", "nc", "socat", "ss");
    let mut lab = Lab::new();
    lab.pod("web", "{app: web}");
    lab.outside();
    lab.host();
    lab.start("");
    let web = lab.get("web");
    let (v4, v6) = (web.v4.clone(), web.v6.clone());
    let _server = web.netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    let connects =
        |netns: &crate::lab::netns::Netns, to: &str| netns.output(&format!("nc -n -z -w 1 {to} 80")).status.success();
    let outside = lab.outside.as_ref().unwrap();
    for address in [&v4, &v6] {
        assert!(connects(&lab.node, address), "the node reaches {address}");
        assert!(connects(outside, address), "the outside reaches {address}");
    }
    for address in ["172.18.0.100".to_owned(), "fd00:18::100".to_owned(), lab.node_v4(), lab.node_v6()] {
        assert!(lab.pings("web", &address), "the pod reaches {address}");
    }
    lab.apply(&policy("closed", "{podSelector: {}, policyTypes: [Ingress, Egress]}"));
    for address in [&v4, &v6] {
        assert!(connects(&lab.node, address), "a probe of the own node always passes");
        assert!(!connects(outside, address), "nobody else does");
    }
    assert!(!lab.pings("web", "172.18.0.100"));
    lab.stop();
}

#[test]
fn a_node_that_has_never_spoken_is_reached_by_its_pods() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("web", "{app: web}");
    lab.host();
    lab.start("");
    assert!(lab.pings("web", &lab.node_v4()));
    lab.stop();
    // The new process has not yet learned the node's address.
    lab.start("");
    assert!(lab.pings("web", &lab.node_v6()));
    lab.stop();
}

#[test]
fn addresses_of_the_nodes_own_interfaces_are_the_node_from_when_they_come_until_they_go() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("web", "{app: web}");
    lab.outside();
    lab.host();
    // Addresses that exist before the start: one on lo, as node-local DNS has it, and one that the node only forwards.
    lab.node.ip("addr add 169.254.20.10/32 dev lo");
    lab.node.ip("link add kube-ipvs0 type veth peer name ki1");
    lab.node.ip("link set kube-ipvs0 up");
    lab.node.ip("addr add 10.96.0.10/32 dev kube-ipvs0");
    lab.start(&policy("closed", "{podSelector: {}, policyTypes: [Ingress, Egress]}"));
    assert!(lab.pings("web", "169.254.20.10"), "node-local DNS is the node's");
    assert!(lab.pings("web", &lab.node_v4()));
    assert!(!lab.pings("web", "10.96.0.10"), "an address of a Service is not");
    assert!(!lab.pings("web", "192.168.77.1"));
    lab.node.ip("addr add 192.168.77.1/32 dev host0");
    eventually("an address that comes is the node's", || lab.pings("web", "192.168.77.1"));
    lab.node.ip("addr del 169.254.20.10/32 dev lo");
    eventually("one that goes is not any more", || !lab.pings("web", "169.254.20.10"));
    assert!(lab.log().contains("the node's addresses have changed"), "{}", lab.log());
    lab.stop();
}
