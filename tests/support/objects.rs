//! A node whose API server is behind its uplink, and the Kubernetes objects of this cluster.
#![allow(unreachable_pub, reason = "shared by test files")]

use serde_json::{Value, json};

use super::lab::{self, Lab};

/// Returns a lab with these pods, which reaches the outside machine through its host port. A pod's label `app` is its name.
pub fn beside_a_server(pods: &[&str]) -> Lab {
    let mut lab = Lab::new();
    for name in pods {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.outside();
    lab.host();
    let source = lab.node_v4();
    lab.node.ip(&format!("route add 172.18.0.0/16 via 169.254.1.1 dev host0 src {source}"));
    lab
}

/// Returns the Node object of the lab's node.
pub fn node(lab: &Lab) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": lab.node_name()}, "spec": {"podCIDRs": ["10.244.1.0/24"], "podCIDR": "10.244.1.0/24"},
        "status": {"addresses": [{"type": "InternalIP", "address": lab.node_v4()}]}})
}

/// Returns the Pod object of a pod of the lab.
pub fn pod(lab: &Lab, name: &str) -> Value {
    let lab::Pod { v4, v6, .. } = lab.get(name);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": lab.node_name(), "containers": [{"name": "main", "image": "none"}]},
        "status": {"phase": "Running", "podIP": v4, "podIPs": [{"ip": v4}, {"ip": v6}]}})
}

/// Returns a NetworkPolicy that denies all ingress of the pod `server`.
pub fn deny() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": ["Ingress"]}})
}
