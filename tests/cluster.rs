//! A vswitch that follows a real API server, with the rights of `deploy/rbac.yaml` and no others: `cargo xtask cluster`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/lab.rs"]
mod lab;
#[path = "support/objects.rs"]
mod objects;

use std::fs;
use std::path::PathBuf;

use cluster::{Cluster, Programs, SERVER, within};
use lab::Lab;
use objects::{beside_a_server, deny, node, pod};
use serde_json::{Value, json};

/// Ends the test early without a server: `cargo xtask cluster` says where it is.
macro_rules! programs {
    () => {{
        let Some(programs) = Programs::found() else {
            println!("skipped: `cargo xtask cluster` runs this, with BULKHEAD_ETCD and BULKHEAD_KUBE_APISERVER");
            return;
        };
        require!("ping", "curl", "openssl");
        programs
    }};
}

/// Whatever a ClusterNetworkPolicy says is taken, as by a server that knows them.
fn cluster_policies() -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusternetworkpolicies.policy.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/network-policy-api"}},
        "spec": {"group": "policy.networking.k8s.io", "scope": "Cluster",
            "names": {"plural": "clusternetworkpolicies", "singular": "clusternetworkpolicy", "kind": "ClusterNetworkPolicy"},
            "versions": [{"name": "v1alpha2", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything}}]}})
}

fn nobody_reaches_the_server() -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "closed"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"pods": {"podSelector": {"matchLabels": {"app": "server"}}}},
            "ingress": [{"name": "closed", "action": "Deny", "from": [{"namespaces": {}}]}]}})
}

/// Two pods, and a real server outside that knows them and what the manifest grants.
fn lab(programs: Programs) -> (Lab, Cluster) {
    let mut lab = beside_a_server();
    let api = Cluster::start(programs, lab.outside.as_ref().unwrap(), &lab.path(""));
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac.yaml");
    api.create_all(&fs::read_to_string(manifest).unwrap());
    api.create_with_status(&node(&lab));
    for name in ["client", "server"] {
        api.create_with_status(&pod(&lab, name));
    }
    renew_token(&lab, &api);
    fs::write(lab.path("kubeconfig"), api.kubeconfig(&lab.path("token"))).unwrap();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig}}".to_owned();
    (lab, api)
}

fn renew_token(lab: &Lab, api: &Cluster) {
    fs::write(lab.path("token"), api.token("kube-system", "bulkhead")).unwrap();
}

#[test]
fn policies_pods_and_labels_of_a_real_server_take_effect() {
    let (mut lab, api) = lab(programs!());
    api.create(&cluster_policies());
    lab.start("");
    let server = lab.get("server").v4.clone();
    println!("forwards after {:?}", within("the first state", || lab.pings("client", &server)));
    assert!(lab.pings("client", SERVER), "the pods reach the world");

    api.create(&deny());
    println!("created, in force after {:?}", within("the policy", || !lab.pings("client", &server)));
    assert!(lab.pings("server", &lab.get("client").v4));
    api.delete(&deny());
    println!("deleted, in force after {:?}", within("the policy's end", || lab.pings("client", &server)));

    within("cluster policies are served", || {
        api.ask("GET", "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", None).0 == 200
    });
    api.create(&nobody_reaches_the_server());
    within("the cluster policy", || !lab.pings("client", &server));
    // The policy selects by a label that the pod has no more.
    let path = "/api/v1/namespaces/default/pods/server";
    let (status, mut other) = api.ask("GET", path, None);
    assert_eq!(status, 200);
    other["metadata"]["labels"] = json!({"app": "other"});
    assert_eq!(api.ask("PUT", path, Some(&other)).0, 200);
    within("the label", || lab.pings("client", &server));

    // A pod that is gone is nobody's peer: its port is closed.
    api.delete(&pod(&lab, "client"));
    within("the pod's end", || !lab.pings("client", &server));
    api.create_with_status(&pod(&lab, "client"));
    within("the pod of the same name", || lab.pings("client", &server));
    lab.stop();
}

#[test]
fn a_server_that_is_killed_and_a_token_that_is_worth_nothing_any_more_change_nothing_until_they_are_replaced() {
    let (mut lab, mut api) = lab(programs!());
    lab.start("");
    let server = lab.get("server").v4.clone();
    within("the first state", || lab.pings("client", &server));

    api.create(&deny());
    within("the policy", || !lab.pings("client", &server));
    // The account is another one of the same name: its old tokens are refused. A watch that was granted goes on, so the server ends.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bulkhead", "namespace": "kube-system"}});
    api.delete(&account);
    api.create(&account);
    api.kill();
    within("it is told", || lab.count("the last good state, of ") > 0);
    assert!(!lab.pings("client", &server), "the last good state stays in force");
    api.come_up(lab.outside.as_ref().unwrap());
    within("the old token is refused", || lab.count("does not know who asks (401)") > 0);
    api.delete(&deny());
    assert!(!lab.pings("client", &server), "nobody has told it");
    renew_token(&lab, &api);
    println!("a new token is used after {:?}", within("the change", || lab.pings("client", &server)));
    lab.stop();
}
