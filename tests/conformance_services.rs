//! `bulkhead reach --to service/..` against known answers: each pod of cyclonus' generated cases gets a Service, and each probe goes to the
//! Service. The verdicts must equal those of probes to the pods.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::collections::BTreeMap;
use std::fs;

use crate::known_states::objects;
use crate::support::{bulkhead_with_input, cases, stdout};
use serde_json::{Value, json};

/// The difference between a Service's port and its pod's port, so that using the wrong one fails.
const SHIFT: u64 = 1000;

/// The ports of a step: protocol and number.
fn ports(step: &Value) -> Vec<(String, u64)> {
    let split = |key: &String| {
        let (protocol, port) = key.split_once('/').unwrap();
        (protocol.to_owned(), port.parse().unwrap())
    };
    step["tables"].as_object().unwrap().keys().map(split).collect()
}

/// A Service and an endpoint slice for each pod, both named after the pod.
fn services(step: &Value) -> Vec<Value> {
    let name = |protocol: &str, port: u64| format!("{}-{port}", protocol.to_lowercase());
    let ports = ports(step);
    let mut objects = Vec::new();
    for (at, pod) in step["pods"].as_array().unwrap().iter().enumerate() {
        let (namespace, pod_name, address) = (&pod["namespace"], &pod["name"], pod["ip"].as_str().unwrap());
        let own = |shift: u64| -> Vec<Value> {
            let port = |(protocol, port): &(String, u64)| json!({"name": name(protocol, *port), "protocol": protocol, "port": port + shift});
            ports.iter().map(port).collect()
        };
        objects.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": pod_name},
            "spec": {"clusterIP": format!("10.96.0.{}", at + 1), "ports": own(SHIFT)},
        }));
        let node = if address.starts_with("10.244.1.") { "node-1" } else { "node-2" };
        objects.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": namespace, "name": pod_name, "labels": {"kubernetes.io/service-name": pod_name},
            },
            "addressType": "IPv4", "ports": own(0),
            "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": true}}],
        }));
    }
    objects
}

/// The program's verdicts: (protocol/port of the pod, from, to) -> allowed.
fn probed(step: &Value) -> BTreeMap<(String, String, String), bool> {
    let mut state = objects(step);
    state["items"].as_array_mut().unwrap().extend(services(step));
    let targets: Vec<String> =
        step["order"].as_array().unwrap().iter().map(|pod| format!("service/{}", pod.as_str().unwrap())).collect();
    let mut args = vec!["reach", "-o", "json", "--state", "-"];
    for target in &targets {
        args.extend(["--to", target]);
    }
    let answer: Value = serde_json::from_str(&stdout(&bulkhead_with_input(&args, &state.to_string()), 0)).unwrap();
    let line = |line: &Value| {
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        let port = line["port"].as_u64().unwrap() - SHIFT;
        assert_eq!(line["backends"].as_array().unwrap().len(), 1, "{line}");
        assert_eq!(line["verdict"], line["backends"][0]["verdict"], "{line}");
        ((format!("{}/{port}", text("protocol")), text("from"), text("to")), text("verdict") == "allow")
    };
    answer["services"].as_array().unwrap().iter().map(line).collect()
}

#[test]
fn through_a_service_in_front_of_each_pod_every_verdict_is_as_without() {
    let Some(folder) = cases() else { return };
    let text = fs::read_to_string(folder.join("cyclonus_cases.json")).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let (mut cells, mut denied, mut wrong) = (0, 0, Vec::new());
    for case in &all {
        for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let verdicts = probed(step);
            let order: Vec<&str> =
                step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            for (port, tables) in step["tables"].as_object().unwrap() {
                for (row, from) in tables["combined"].as_array().unwrap().iter().zip(&order) {
                    for (cell, to) in row.as_str().unwrap().chars().zip(&order) {
                        if !matches!(cell, '.' | 'X') {
                            continue;
                        }
                        // A pod may reach itself through its own Service, whatever policy says.
                        let expected = cell == '.' || from == to;
                        let key = (port.clone(), (*from).to_owned(), (*to).to_owned());
                        cells += 1;
                        denied += usize::from(!expected);
                        if verdicts.get(&key) != Some(&expected) {
                            wrong.push(format!("case {} step {at}: {key:?}: not {expected}", case["id"]));
                        }
                    }
                }
            }
        }
    }
    let shown = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(wrong.is_empty(), "{} of {cells} cells are wrong:\n  {shown}", wrong.len());
    assert!(cells > 100_000 && denied > 10_000, "only {cells} cells were compared, {denied} of them denied");
}
