//! `bulkhead wait`: once it reports a policy as enforced, no packet is judged by an older state.

use crate::require;
use std::time::{Duration, Instant};

use crate::lab::lasting::{PATIENCE, answers, connect, echo};
use crate::lab::{Lab, policy};

const CHANGES: u64 = 20;

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab
}

/// A policy: pod `b` accepts connections to this port only.
fn only(port: u16, generation: u64) -> String {
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], ingress: [{{ports: [{{port: {port}}}]}}]}}"
    );
    let identity = format!("name: only, uid: u-1, generation: {generation}");
    policy("only", &spec).replacen("name: only", &identity, 1)
}

fn wait(lab: &Lab, words: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = ["wait"].into_iter().chain(words.split_whitespace()).collect();
    lab.ask(&words)
}

#[test]
fn after_it_returns_the_first_packet_is_judged_by_the_new_policy_in_both_directions() {
    let mut lab = lab();
    lab.start(&only(7777, 1));
    let (a, b) = (lab.get("a"), lab.get("b"));
    [7777, 8888].into_iter().for_each(|port| echo(b, port));
    for change in 0..CHANGES {
        let (open, shut) = if change % 2 == 0 { (8888, 7777) } else { (7777, 8888) };
        let generation = change + 2;
        // The port was open until now, and the kernel may forward this connection.
        let mut earlier = connect(a, b, shut, PATIENCE).unwrap();
        assert!((0..20).all(|_| answers(&mut earlier)), "{change}");
        earlier.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        lab.write_state(&only(open, generation));
        let (code, text) = wait(&lab, &format!("netpol/only --generation {generation} --uid u-1"));
        assert_eq!(code, Some(0), "{text}");
        assert!(
            text.starts_with(&format!("NetworkPolicy default/only is enforced, generation {generation}; ")),
            "{text}"
        );
        assert!(!answers(&mut earlier), "change {change}: a packet was judged by the policy before");
        assert!(
            connect(a, b, open, PATIENCE).is_ok() && connect(a, b, shut, Duration::from_millis(200)).is_err(),
            "{change}"
        );
    }
}

#[test]
fn what_does_not_come_is_told_with_its_reason_when_the_time_is_over() {
    let mut lab = lab();
    lab.start(&only(7777, 1));
    let begun = Instant::now();
    let (code, text) = wait(&lab, "netpol/other --timeout 300ms");
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("NetworkPolicy default/other is not enforced") && text.contains("has no policy of this name"),
        "{text}"
    );
    assert!(begun.elapsed() >= Duration::from_millis(280), "it gave up early");
    let (code, text) = wait(&lab, "netpol/only --generation 2 --timeout 100ms");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("has generation 1, not yet generation 2"), "{text}");
    let (code, text) = wait(&lab, "netpol/only --gone --timeout 100ms -o json");
    assert_eq!(code, Some(1), "{text}");
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(told["done"] == false && told["known"] == true && told["uid"] == "u-1", "{told:#}");
    // A refused state leaves the previous one in force, so `wait` must not succeed.
    lab.write_state("---\n{ this is no state\n");
    let (code, text) = wait(&lab, "netpol/only --timeout 600ms");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the newest state was refused"), "{text}");
    lab.write_state("");
    let (code, text) = wait(&lab, "netpol/only --gone");
    assert_eq!(code, Some(0), "{text}");
    drop(lab.stop());
    let (code, text) = wait(&lab, "netpol/only --timeout 100ms");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("cannot reach a vswitch"), "{text}");
}

#[test]
fn a_policy_that_the_kernel_is_to_enforce_is_waited_for_as_well() {
    require!("nft");
    let mut lab = lab();
    lab.more_config = "dataplane: nftables\n".to_owned();
    for pod in &lab.pods {
        lab.node.ip(&format!("route add {} dev {}", pod.v4, pod.interface));
    }
    lab.start(&only(7777, 1));
    lab.write_state(&only(8888, 2));
    let (code, text) = wait(&lab, "netpol/only --generation 2");
    assert_eq!(code, Some(0), "{text}");
    let rules = lab.node.output("nft list table inet bulkhead");
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    assert!(rules.contains("8888") && !rules.contains("7777"), "{rules}");
}
