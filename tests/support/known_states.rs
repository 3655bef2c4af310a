//! Converts the steps of the conformance cases into states.

use serde_json::{Value, json};

/// Returns the objects of one step in the form of `kubectl get -o json`.
pub(crate) fn objects(step: &Value) -> Value {
    let mut items: Vec<Value> = Vec::new();
    for (name, labels) in step["namespaces"].as_object().unwrap() {
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
    for pod in step["pods"].as_array().unwrap() {
        let address = pod["ip"].as_str().unwrap();
        let ports: Vec<Value> = pod["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| json!({"containerPort": port["port"], "protocol": port["protocol"], "name": port["name"]}))
            .collect();
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": pod["namespace"], "name": pod["name"], "labels": pod["labels"]},
            "spec": {
                "nodeName": if address.starts_with("10.244.1.") { "node-1" } else { "node-2" },
                "containers": [{"name": "c", "ports": ports}],
            },
            "status": {"phase": "Running", "podIPs": [{"ip": address}]},
        }));
    }
    for policy in step["policies"].as_array().unwrap() {
        let mut policy = policy.clone();
        policy["apiVersion"] = "networking.k8s.io/v1".into();
        policy["kind"] = "NetworkPolicy".into();
        items.push(policy);
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
