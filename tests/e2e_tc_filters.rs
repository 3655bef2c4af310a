//! How `attach: tc` attaches: filters open a port at once, tcx links replace them later, and without links the filters stay.

use crate::lab::netns::eventually;
use crate::lab::{Lab, is_attached};
use crate::require;

/// A lab with two pods and these further lines of configuration.
fn lab(more_config: &str) -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.more_config.push_str(more_config);
    lab
}

/// The filters at one hook of the host end of a pod's veth, as `tc` prints them.
fn filters(lab: &Lab, pod: &str, hook: &str) -> String {
    let interface = &lab.get(pod).interface;
    lab.node.exec(&format!("tc filter show dev {interface} {hook}"))
}

fn has_clsact(lab: &Lab, pod: &str) -> bool {
    let interface = &lab.get(pod).interface;
    lab.node.exec(&format!("tc qdisc show dev {interface}")).contains("clsact")
}

fn cleanup(lab: &Lab) -> Option<i32> {
    let config = lab.path("config.yaml");
    let command = format!("{} cleanup --config {}", env!("CARGO_BIN_EXE_bulkhead"), config.display());
    lab.node.output(&command).status.code()
}

#[test]
fn filters_open_a_port_and_links_take_their_place_when_the_node_is_quiet() {
    require!("ping");
    only_with_tc!();
    let mut lab = lab("pins: none\ntcx: true\n");
    lab.start("");
    assert!(filters(&lab, "a", "ingress").contains("bulkhead_in"), "it is not quiet yet");
    assert!(filters(&lab, "a", "egress").contains("bulkhead_guard"));
    // Meanwhile no packet is lost, duplicated, or bypasses the vswitch.
    let to = lab.get("b").v4.clone();
    let pings = lab.get("a").netns.exec(&format!("ping -n -q -c 150 -i 0.02 {to}"));
    assert!(pings.contains(" 150 received") && !pings.contains("duplicates"), "{pings}");
    eventually("links have taken the place of filters", || {
        let has_filters = |pod: &&str| ["ingress", "egress"].iter().any(|hook| !filters(&lab, pod, hook).is_empty());
        !["a", "b"].iter().any(has_filters) && is_attached(&lab.node, &lab.get("a").interface)
    });
    eventually("that is said", || lab.log().contains("programs are attached by tcx links"));
    assert!(lab.pings("a", &to));
    lab.stop();
    assert!(!is_attached(&lab.node, &lab.get("a").interface), "nothing stays without pins");
}

#[test]
fn without_links_filters_hold_a_port_closed_when_the_process_was_killed_and_the_next_one_takes_them_over() {
    require!("ping");
    only_with_tc!();
    let mut lab = lab("pins: none\ntcx: false\n");
    lab.start("");
    let to = lab.get("b").v4.clone();
    assert!(lab.pings("a", &to));
    lab.kill();
    assert!(filters(&lab, "a", "ingress").contains("bulkhead_in"), "they do not go with the process");
    assert!(!lab.pings("a", &to));
    lab.start("");
    assert!(lab.pings("a", &to));
    assert_eq!(filters(&lab, "a", "ingress").matches("handle 0xb01c4ead").count(), 1, "instead of the old one");
    lab.stop();
    assert!(!has_clsact(&lab, "a") || filters(&lab, "a", "ingress").is_empty(), "an orderly end takes them away");
}

#[test]
fn what_a_killed_vswitch_has_left_at_an_interface_that_is_no_ports_any_more_is_removed() {
    require!("ping");
    only_with_tc!();
    let mut lab = lab("pins: none\ntcx: false\n");
    lab.start("");
    lab.kill();
    lab.configure("b", false);
    lab.start("");
    eventually("the interface without a port is free", || filters(&lab, "b", "ingress").is_empty());
    assert!(filters(&lab, "a", "ingress").contains("bulkhead_in"));
    lab.kill();
    assert_eq!(cleanup(&lab), Some(0));
    assert!(!has_clsact(&lab, "a") && !has_clsact(&lab, "b"), "a queueing discipline without filters goes as well");
    assert_eq!(cleanup(&lab), Some(0), "nothing is there");
}

#[test]
fn filters_of_others_stay_and_an_ingress_qdisc_is_told_with_the_remedy() {
    require!("ping");
    only_with_tc!();
    let mut lab = lab("pins: none\ntcx: false\n");
    let (a, b) = (lab.get("a").interface.clone(), lab.get("b").interface.clone());
    lab.node.exec(&format!("tc qdisc add dev {a} clsact"));
    lab.node.shell(&format!("tc filter add dev {a} ingress pref 7 bpf bytecode '1,6 0 0 4294967295,'"));
    lab.node.exec(&format!("tc qdisc add dev {b} ingress"));
    lab.start("");
    assert!(filters(&lab, "a", "ingress").contains("bulkhead_in"));
    assert!(!is_attached(&lab.node, &b));
    lab.stop();
    let text = lab.log();
    assert!(
        text.contains("another qdisc or filter occupies the tc hook")
            && text.contains(&format!("tc qdisc show dev {b}")),
        "{text}"
    );
    assert!(filters(&lab, "a", "ingress").contains("pref 7 bpf"), "somebody else's filter stays: {text}");
    assert!(!filters(&lab, "a", "ingress").contains("bulkhead"), "and ours is gone");
}

#[test]
fn filters_that_somebody_removes_are_attached_again() {
    require!("ping");
    only_with_tc!();
    let mut lab = lab("pins: none\ntcx: false\n");
    lab.start("");
    let (a, to) = (lab.get("a").interface.clone(), lab.get("b").v4.clone());
    for removal in ["tc qdisc del dev {} clsact", "tc filter del dev {} ingress", "tc filter del dev {} egress"] {
        lab.node.exec(&removal.replace("{}", &a));
        let is_back = |hook: &str| filters(&lab, "a", hook).contains("bulkhead");
        eventually("both are back", || has_clsact(&lab, "a") && is_back("ingress") && is_back("egress"));
        assert!(lab.pings("a", &to), "{removal}");
    }
    assert_eq!(lab.count("another program removed its tc programs"), 3, "{}", lab.log());
    // Another program's queueing discipline does not affect the vswitch.
    lab.node.exec(&format!("tc qdisc add dev {a} root pfifo"));
    lab.node.exec(&format!("tc qdisc del dev {a} root"));
    assert!(lab.pings("a", &to));
    let summary = lab.stop();
    assert_eq!(lab.count("another program removed its tc programs"), 3);
    assert_eq!(summary.pointer("/port_changes/opened"), Some(&serde_json::json!(2)), "no port was closed: {summary:#}");
}
