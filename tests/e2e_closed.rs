//! Closed ports: their pods have no connectivity, and their packets never reach the node's kernel, which would forward them without policy.
//! The node's kernel in these tests can forward: it has routes to the pods and knows their MAC addresses. Each test shows that this path
//! works, so that packets on it would be detected.

use crate::require;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use crate::lab::netns::{Netns, eventually};
use crate::lab::{Lab, Options, is_attached, is_tc, policy};
use bulkhead_dataplane::io::{Interface, Port, QueueConfig, Umem, XdpMode, XskPort, in_namespace};

/// A lab with three pods. Policy denies all ingress of b, while the node's kernel would forward everything to it. Also returns the policy.
fn node_that_forwards(options: Options) -> (Lab, String) {
    let mut lab = Lab::with(options);
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.forward_past();
    assert!(lab.pings("a", &lab.get("b").v4), "the way past the vswitch");
    (lab, policy("b", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}"))
}

/// The number of echo requests that have arrived at a pod.
fn echoes(lab: &Lab, pod: &str) -> u64 {
    lab.counter(pod, "Icmp:", "InEchos")
}

/// Changes the configuration file atomically.
fn edit(lab: &Lab, change: impl Fn(String) -> String) {
    let (path, new) = (lab.path("config.yaml"), lab.path("config.yaml.new"));
    fs::write(&new, change(fs::read_to_string(&path).unwrap())).unwrap();
    fs::rename(new, path).unwrap();
}

fn namespace(netns: &Netns) -> PathBuf {
    Path::new("/run/netns").join(netns.name())
}

#[test]
fn a_pod_does_not_get_past_policy_while_its_port_is_closed_and_opened_again() {
    require!("ping");
    let (mut lab, none) = node_that_forwards(Options::default());
    lab.start(&none);
    let b = lab.get("b").v4.clone();
    let before = echoes(&lab, "b");
    let _flood = lab.get("a").netns.spawn(&format!("ping -n -q -i 0.002 {b}"));
    let netns = lab.get("a").netns.name().to_owned();
    let opened = || lab.count("port default/a (p2) is open");
    for round in 1..=24 {
        // Each round makes the port open for a different reason.
        match round % 4 {
            0 => {
                lab.node.ip("link set p2 down");
                eventually("the port is removed", || lab.count("port default/a (p2) was removed") == round / 4);
                lab.node.ip("link set p2 up");
            }
            1 if is_tc() => {
                edit(&lab, |text| text.replace("interface: p2}", &format!("interface: p2, netns: {netns}}}")));
            }
            2 if is_tc() => edit(&lab, |text| text.replace("interface: p2, netns", "interface: p2, peer: eth1, netns")),
            1 => edit(&lab, |text| text.replace(&format!("netns: {netns}"), &format!("netns: /run/netns/{netns}"))),
            2 => edit(&lab, |text| text.replacen("fix_offloads: true", "fix_offloads: false", 1)),
            _ => lab.write_config(),
        }
        eventually("the port is open again", || opened() == round + 1);
    }
    // The interface now belongs to another pod's name, which has no table in the state.
    edit(&lab, |text| text.replace("default/a,", "default/unknown,"));
    eventually("the port is open", || lab.count("port default/unknown (p2) is open") == 1);
    assert!(is_attached(&lab.node, "p2"));
    assert_eq!(echoes(&lab, "b"), before, "{}", lab.log());
    // The flood continues. When the configuration no longer lists the interface, the vswitch detaches from it.
    edit(&lab, |text| {
        text.lines().filter(|line| !line.contains("interface: p2")).map(|line| format!("{line}\n")).collect()
    });
    eventually("the interface is given back", || !is_attached(&lab.node, "p2"));
    if is_tc() {
        // The programs at b's interface also drop packets that the kernel forwards.
        lab.get("a").netns.output(&format!("ping -n -q -c 20 -i 0.002 -W 1 {b}"));
        assert_eq!(echoes(&lab, "b"), before, "{}", lab.log());
    } else {
        eventually("the kernel forwards what is not the vswitch's", || echoes(&lab, "b") > before);
    }
    let summary = lab.stop();
    assert_eq!(summary["port_changes"]["opened"], 3 + 24 + 1, "{summary:#}");
}

/// Occupies the only queue of an interface with an AF_XDP socket, without an XDP program.
fn occupy(netns: &Netns, interface: &str) -> XskPort {
    let occupy = || {
        let (umem, _frames) = Umem::new(64).unwrap();
        let interface = Interface::open(interface, XdpMode::Auto).unwrap();
        interface.port(0, &umem, QueueConfig { receive: 32, transmit: 32 }).unwrap()
    };
    in_namespace(&namespace(netns), occupy).unwrap()
}

#[test]
fn a_pod_whose_port_is_refused_is_cut_off_and_not_unprotected() {
    require!("ping");
    only_with_xdp!();
    let (mut lab, none) = node_that_forwards(Options::default());
    let occupier = occupy(&lab.node, "p2");
    assert!(occupier.descriptor().is_some() && !is_attached(&lab.node, "p2"));
    lab.start(&none);
    let (b, c) = (lab.get("b").v4.clone(), lab.get("c").v4.clone());
    let before = echoes(&lab, "b");
    let ping = |count| lab.get("a").netns.output(&format!("ping -n -q -c {count} -i 0.002 -W 1 {b}")).status.success();
    assert!(!ping(50));
    eventually("the refusal is logged", || lab.count("all its packets are dropped") == 1);
    assert!(lab.log().contains("queue 0 is in use by another AF_XDP socket"), "{}", lab.log());
    assert!(!ping(50) && is_attached(&lab.node, "p2"));
    assert_eq!(echoes(&lab, "b"), before, "{}", lab.log());
    assert!(lab.pings("b", &c), "the others go on");
    drop(occupier);
    eventually("the port is opened when it can be", || lab.count("port default/a (p2) is open") == 1);
    assert!(lab.pings("a", &c) && !ping(1));
    assert_eq!(echoes(&lab, "b"), before);
    lab.stop();
}

#[test]
fn an_interface_that_comes_up_later_was_held_before() {
    require!("ping");
    let (mut lab, none) = node_that_forwards(Options::default());
    lab.node.ip("link set p2 down");
    lab.start(&none);
    assert!(is_attached(&lab.node, "p2"), "no moment between its coming up and its being taken");
    // Setting the interface down has removed its route.
    let a = lab.get("a").v4.clone();
    lab.node.ip("link set p2 up");
    lab.node.ip(&format!("route replace {a}/32 dev p2"));
    eventually("the port is open", || lab.count("port default/a (p2) is open") == 1);
    assert!(lab.pings("a", &lab.get("c").v4) && !lab.pings("a", &lab.get("b").v4));
    lab.stop();
    assert!(!is_attached(&lab.node, "p2"));
}

#[test]
fn packets_on_a_queue_that_was_added_later_do_not_get_past_policy() {
    require!("ping");
    only_with_xdp!();
    let (mut lab, none) = node_that_forwards(Options { queues: 2, ..Options::default() });
    let ethtool = |netns: &Netns, line: &str| netns.output(&format!("ethtool -L {line}")).status.success();
    assert!(ethtool(&lab.get("a").netns, "eth0 rx 1 tx 1") && ethtool(&lab.node, "p2 rx 1 tx 1"));
    lab.start(&none);
    assert!(!ethtool(&lab.get("a").netns, "eth0 tx 2"), "the pod may not send where the node's end does not listen");
    assert!(ethtool(&lab.node, "p2 rx 2 tx 2"));
    eventually("the change is seen", || {
        lab.count("2 queues to receive and 2 to transmit now, instead of 1 and 1") == 1
    });
    eventually("the port is open again", || lab.count("port default/a (p2) is open") == 2);
    assert!(ethtool(&lab.get("a").netns, "eth0 tx 2"));
    let (b, c) = (lab.get("b").v4.clone(), lab.get("c").v4.clone());
    let is_up = |file| lab.get("a").netns.exec(&format!("cat /sys/class/net/eth0/{file}")).trim() == "up";
    eventually("the link is up again", || is_up("operstate"));
    let arrived = |pod| lab.counter(pod, "Udp:", "NoPorts");
    let before = arrived("b");
    // 64 flows, so that both queues receive packets.
    let send = |to: &str| {
        let send = || {
            for _ in 0..64 {
                UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", (to, 9)).unwrap();
            }
        };
        in_namespace(&namespace(&lab.get("a").netns), send).unwrap();
    };
    send(&b);
    // The link to c works, and the vswitch judged the earlier packets to b before the ping to c.
    eventually("c is reached", || {
        assert_eq!(arrived("b"), before, "past the vswitch");
        lab.pings("a", &c)
    });
    let reached = arrived("c");
    send(&c);
    eventually("both queues are served", || arrived("c") == reached + 64);
    assert_eq!(arrived("b"), before);
    lab.stop();
}

#[test]
fn interfaces_that_are_renamed_do_not_get_past_policy_and_forward_again_under_their_new_names() {
    require!("ping");
    let (mut lab, none) = node_that_forwards(Options::default());
    lab.start(&none);
    let (b, c) = (lab.get("b").v4.clone(), lab.get("c").v4.clone());
    let before = echoes(&lab, "b");
    let _flood = lab.get("a").netns.spawn(&format!("ping -n -q -i 0.002 {b}"));
    let rename = |from: &str, to: &str| {
        lab.node.ip(&format!("link set {from} down"));
        lab.node.ip(&format!("link set {from} name {to}"));
        lab.node.ip(&format!("link set {to} up"));
    };
    // Meanwhile another interface has the name.
    rename("p2", "old2");
    eventually("the port is removed", || lab.count("port default/a (p2) was removed") == 1);
    lab.node.ip("link add p2 type veth peer name other");
    lab.node.ip("link set p2 up");
    eventually("the new one is open", || lab.count("port default/a (p2) is open") == 2);
    assert!(is_attached(&lab.node, "old2") && is_attached(&lab.node, "p2"));
    lab.node.ip("link del p2");
    eventually("that is seen", || lab.count("port default/a (p2) was removed") == 2);
    rename("old2", "p2");
    eventually("the port is open again", || lab.count("port default/a (p2) is open") == 3);
    assert!(lab.pings("a", &c));
    // Two interfaces swap their names, so c is behind the port of a.
    rename("p2", "tmp");
    rename("p4", "p2");
    rename("tmp", "p4");
    eventually("both are open again", || {
        lab.count("port default/a (p2) is open") == 4 && lab.count("port default/c (p4) is open") == 2
    });
    // The configuration uses the new name.
    rename("p4", "q4");
    edit(&lab, |text| text.replace("interface: p4", "interface: q4"));
    eventually("it is open", || lab.count("port default/c (q4) is open") == 1);
    assert_eq!(echoes(&lab, "b"), before, "{}", lab.log());
    assert!(!lab.log().contains("host's stack"), "{}", lab.log());
    lab.stop();
}
