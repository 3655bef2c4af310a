//! The commands' output about cluster policies.

use crate::support::{bulkhead, scratch, stdout};
use serde_json::Value;

const STATE: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: tenants}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  ingress:
  - {action: Pass, from: [{namespaces: {matchLabels: {team: ops}}}]}
  - {name: no strangers, action: Deny, from: [{namespaces: {}}]}
---
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: x}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.2}}
"#;

#[test]
fn explain_names_tier_policy_rule_file_and_line_and_what_would_help() {
    let path = scratch("tenants.yaml", STATE);
    let args = ["explain", "--state", &path, "--from", "x/a", "--to", "x/b", "--port", "80/TCP"];
    let answer = stdout(&bulkhead(&args), 1);
    for part in [
        "because: Admin tier, ClusterNetworkPolicy tenants ingress[1] (no strangers)",
        "tenants.yaml:10",
        "No NetworkPolicy can allow what this tier denies",
    ] {
        assert!(answer.contains(part), "{part} is not in:\n{answer}");
    }
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&[&args[..], &["-o", "json"]].concat()), 1)).unwrap();
    let told = &answer["walks"][0]["steps"][0]["cluster_policy"];
    let expected = serde_json::json!({
        "tier": "Admin", "kind": "ClusterNetworkPolicy", "name": "tenants", "direction": "ingress", "rule": 1,
        "rule_name": "no strangers",
    });
    assert_eq!(*told, expected);
}

#[test]
fn explain_lists_what_a_pass_skipped_and_what_the_next_tier_said() {
    let text = STATE.replace("{name: x}", "{name: x, labels: {team: ops}}");
    let path = scratch("passes.yaml", &text);
    let args = ["explain", "--state", &path, "--from", "x/a", "--to", "x/b", "--port", "80/TCP"];
    let answer = stdout(&bulkhead(&args), 0);
    let open = "
The ingress of x/b passes the rest of the tier Admin:
   by: Admin tier, ClusterNetworkPolicy tenants ingress[0]: Pass
     ClusterNetworkPolicy tenants at PATH:9
   skipped: Admin tier, ClusterNetworkPolicy tenants ingress[1] (no strangers): Deny
     ClusterNetworkPolicy tenants at PATH:10
   then: no rule of a later tier, so it is allowed
"
    .replace("PATH", &path);
    assert!(answer.ends_with(&open), "{open} does not end:\n{answer}");
    // An isolating NetworkPolicy decides in the next tier.
    let isolated = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: none, namespace: x}, \
                    spec: {podSelector: {}}}";
    let path = scratch("passes-isolated.yaml", &format!("{text}---\n{isolated}\n"));
    let args = ["explain", "--state", &path, "--from", "x/a", "--to", "x/b", "--port", "80/TCP"];
    let answer = stdout(&bulkhead(&args), 1);
    assert!(answer.contains("   then: ingress isolated by x/none: Deny\n     x/none at"), "{answer}");
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&[&args[..], &["-o", "json"]].concat()), 1)).unwrap();
    let [pass] = &answer["walks"][0]["passes"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&pass["pod"], &pass["direction"], &pass["tier"]), (&"x/b".into(), &"ingress".into(), &"Admin".into()));
    assert_eq!((&pass["rule"]["action"], &pass["rule"]["cluster_policy"]["rule"]), (&"Pass".into(), &0.into()));
    let skipped = &pass["skipped"][0];
    assert_eq!((&skipped["action"], &skipped["cluster_policy"]["rule_name"]), (&"Deny".into(), &"no strangers".into()));
    assert_eq!((&pass["then"]["action"], &pass["then"]["isolated_by"][0]["name"]), (&"Deny".into(), &"none".into()));
    // If the first matching rule denies, nothing is passed.
    let path = scratch("passes-none.yaml", STATE);
    let args = ["explain", "--state", &path, "--from", "x/a", "--to", "x/b", "--port", "80/TCP"];
    assert!(!stdout(&bulkhead(&args), 1).contains("passes the rest"));
}

#[test]
fn a_tie_and_two_versions_of_the_api_are_told() {
    let other = STATE.split("---").next().unwrap().replace("name: tenants", "name: all").replace("Deny", "Accept");
    let old = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: old}, \
               spec: {priority: 3, subject: {namespaces: {}}}}";
    let path = scratch("ties.yaml", &format!("{STATE}---\n{other}---\n{old}\n"));
    let output = bulkhead(&["reach", "--state", &path, "--port", "80/TCP"]);
    let told = String::from_utf8(output.stderr).unwrap();
    for part in ["ClusterNetworkPolicy all and ClusterNetworkPolicy tenants", "v1alpha1 and v1alpha2"] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
}

#[test]
fn a_pod_that_cannot_be_read_is_not_let_through_where_a_cluster_policy_denies_pods() {
    let faulty = STATE.replace("metadata: {name: a, namespace: x}", "metadata: {name: a, namespace: x, labels: [7]}");
    assert_ne!(faulty, STATE);
    let path = scratch("faulty-pod.yaml", &faulty);
    let args = ["explain", "--lenient", "--state", &path, "--from", "10.0.0.1", "--to", "x/b", "--port", "80/TCP"];
    let output = bulkhead(&args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("ClusterNetworkPolicy tenants") && error.contains("correct the pod"), "{error}");
    // If no cluster policy denies pods, the unreadable pod is left out and its address belongs to no pod.
    let path = scratch("faulty-pod-only.yaml", &faulty.replace("Deny", "Accept").replace("Pass", "Accept"));
    stdout(
        &bulkhead(&["explain", "--lenient", "--state", &path, "--from", "10.0.0.1", "--to", "x/b", "--port", "80/TCP"]),
        0,
    );
}
