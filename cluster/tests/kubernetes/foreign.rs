//! Policies of Calico and Cilium at an API server: found, followed with what they refer to, or counted.

use std::time::Duration;

use bulkhead_cluster::kubernetes::{Kind, Purpose, Settings};
use bulkhead_control::source::ForeignKinds;
use serde_json::{Value, json};

use super::api_server::ApiServer;
use super::{CLOSED, Cluster, NODE, OPEN, cluster_policy, impatient, node, pod, server};

/// The kinds of Calico and Cilium that the server of these tests has.
const SERVED: [&str; 7] = [
    "calico-tiers",
    "calico-networkpolicies",
    "calico-globalnetworkpolicies",
    "calico-globalnetworksets",
    "ciliumnetworkpolicies",
    "ccnp",
    "ciliumcidrgroups",
];

fn with_kinds(seed: u64) -> ApiServer {
    let server = server(seed);
    SERVED.into_iter().for_each(|kind| server.serve(kind, true));
    server
}

fn following(server: ApiServer, foreign: ForeignKinds) -> Cluster {
    Cluster::with(server, Settings { foreign, timing: impatient(), ..Settings::default() })
}

/// A GlobalNetworkPolicy as Calico stores it, about ingress of the pods of `y`, with one rule for port 80.
fn calico(name: &str, order: u32, action: &str, source: &Value) -> Value {
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy", "metadata": {"name": format!("default.{name}")},
        "spec": {"tier": "default", "order": order, "selector": "projectcalico.org/namespace == 'y'", "types": ["Ingress"],
            "ingress": [{"action": action, "protocol": "TCP", "source": source, "destination": {"ports": [80]}}]}})
}

fn cilium(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": name, "namespace": "y"}, "spec": spec})
}

/// Allows ingress of the pods of `y` from `entry` at port 80.
fn allows(entry: &Value) -> Value {
    let mut rule = json!({"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]});
    rule.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
    json!({"endpointSelector": {}, "ingress": [rule]})
}

#[test]
fn policies_of_calico_are_found_and_followed_with_what_they_refer_to() {
    let server = with_kinds(200);
    server.put(calico("web", 10, "Deny", &json!({"selector": "set == 'bad'"})));
    server.put(calico("rest", 20, "Allow", &json!({})));
    let mut cluster = following(server, ForeignKinds::Enforce);
    cluster.converge();
    assert!(cluster.passes(CLOSED, OPEN), "the set does not exist");
    let set = |net: &str| {
        json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet",
            "metadata": {"name": "bad", "labels": {"set": "bad"}}, "spec": {"nets": [net]}})
    };
    cluster.server.put(set("10.1.0.1/32"));
    cluster.until("the set", |cluster| !cluster.passes(CLOSED, OPEN));
    cluster.converge();
    cluster.server.put(set("10.9.0.1/32"));
    cluster.until("another address", |cluster| cluster.passes(CLOSED, OPEN));
    assert_eq!(cluster.objects()[Kind::CalicoGlobalNetworkPolicy as usize].1, Some(2));
    assert_eq!(cluster.objects()[Kind::CalicoStagedNetworkPolicy as usize].1, None, "the server does not have it");
    assert!(cluster.unread.is_empty(), "{:?}", cluster.unread);
    // Deleted under the name with the prefix.
    cluster.server.delete("calico-globalnetworkpolicies", "", "default.rest");
    cluster.until("the end of the policy", |cluster| !cluster.passes(CLOSED, OPEN));
    cluster.converge();
    cluster.server.delete("calico-globalnetworkpolicies", "", "default.web");
    cluster.until("no policy", |cluster| cluster.passes(CLOSED, OPEN));
    cluster.converge();
}

#[test]
fn policies_of_cilium_come_and_go_with_their_kinds() {
    let mut cluster = following(server(210), ForeignKinds::Enforce);
    cluster.converge();
    assert!(cluster.passes(CLOSED, OPEN));
    for kind in ["ciliumnetworkpolicies", "ciliumcidrgroups"] {
        cluster.server.serve(kind, true);
    }
    cluster.server.put(cilium("web", &allows(&json!({"fromEndpoints": [{"matchLabels": {"app": "db"}}]}))));
    cluster.until("the policy", |cluster| !cluster.passes(CLOSED, OPEN));
    cluster.converge();
    cluster.server.serve("ciliumnetworkpolicies", false);
    cluster.until("its end", |cluster| cluster.passes(CLOSED, OPEN));
}

#[test]
fn a_policy_that_names_a_service_follows_its_endpoints_also_if_services_are_off() {
    let server = with_kinds(220);
    let slice = |address: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "a-1", "namespace": "y", "labels": {"kubernetes.io/service-name": "a"}},
            "ports": [{"name": "", "port": 8080}], "endpoints": [{"addresses": [address], "nodeName": NODE}]})
    };
    server.put(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "y"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "targetPort": 8080}]}}));
    server.put(slice("10.1.0.1"));
    server.put(calico("web", 10, "Deny", &json!({"services": {"name": "a", "namespace": "y"}})));
    server.put(calico("rest", 20, "Allow", &json!({})));
    let mut cluster = following(server, ForeignKinds::Enforce);
    cluster.until("the first state", |cluster| !cluster.batches.is_empty());
    assert!(!cluster.passes(CLOSED, OPEN), "the first batch has the endpoints");
    cluster.server.put(slice("10.1.0.9"));
    cluster.until("other endpoints", |cluster| cluster.passes(CLOSED, OPEN));
    // A rule that denies could match less.
    let mut wrong = slice("10.1.0.1");
    wrong["endpoints"][0]["addresses"] = json!("x");
    cluster.server.put(wrong);
    cluster.until("a refusal", |cluster| !cluster.refused.is_empty());
    let said = cluster.refused.last().unwrap().clone();
    assert!(said.contains("Calico GlobalNetworkPolicy web: names a Service"), "{said}");
    cluster.server.put(slice("10.1.0.1"));
    cluster.until("the mended slice", |cluster| !cluster.passes(CLOSED, OPEN));
}

#[test]
fn a_rule_with_conditions_that_are_not_evaluated_allows_nothing_when_enforced_and_is_told() {
    let http = json!({"endpointSelector": {}, "ingress": [
        {"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"method": "GET"}]}}]}]});
    let server = with_kinds(230);
    server.put(cilium("web", &http));
    let mut cluster = following(server, ForeignKinds::Enforce);
    cluster.converge();
    assert!(!cluster.passes(CLOSED, OPEN));
    let told = cluster.batches[0].warnings.to_string();
    let expected = "kubernetes: CiliumNetworkPolicy y/web: spec.ingress[0]";
    assert!(told.starts_with(expected) && told.contains("HTTP rules decide about traffic"), "{told}");
    assert_eq!(cluster.batches[0].faulty, 1);
    cluster.server.put(cilium("web", &allows(&json!({}))));
    cluster.until("the policy without them", |cluster| cluster.passes(CLOSED, OPEN));
}

#[test]
fn audited_policies_deny_nothing_and_a_faulty_one_holds_nothing_back() {
    let server = with_kinds(240);
    server.put(cilium("web", &json!({"endpointSelector": {}, "ingress": [{}]})));
    // Neither `spec` nor a name of pods: what it denies is unknown.
    server.put(
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "wrong"},
        "spec": {"endpointSelector": 7}}),
    );
    let mut cluster = following(server, ForeignKinds::Audit);
    cluster.until("the first state", |cluster| !cluster.batches.is_empty());
    assert!(cluster.passes(CLOSED, OPEN));
    assert_eq!(cluster.pipeline.audited_policies().len(), 1, "{:?}", cluster.pipeline.audited_policies());
    assert!(cluster.batches[0].warnings.to_string().contains("CiliumClusterwideNetworkPolicy wrong"));
    // The same objects, enforced: the state is refused.
    let server = with_kinds(241);
    server.put(
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "wrong"},
        "spec": {"endpointSelector": 7}}),
    );
    let mut cluster = following(server, ForeignKinds::Enforce);
    cluster.until("a refusal", |cluster| !cluster.refused.is_empty());
    assert!(cluster.batches.is_empty());
}

#[test]
fn policies_that_are_not_read_are_counted_once() {
    let server = with_kinds(250);
    for name in ["a", "b", "c"] {
        server.put(calico(name, 1, "Allow", &json!({})));
    }
    server.put(cilium("web", &allows(&json!({}))));
    server.forbid("ciliumnetworkpolicies", true);
    let mut cluster = following(server, ForeignKinds::Skip);
    cluster.converge();
    cluster.until("the counts", |cluster| !cluster.unread.is_empty());
    assert_eq!(
        cluster.unread[0],
        [(Kind::CalicoGlobalNetworkPolicy, Some(3)), (Kind::CiliumNetworkPolicy, None)],
        "kinds without objects are left out"
    );
    cluster.follow(Duration::from_millis(300));
    assert_eq!(cluster.unread.len(), 1);
    assert!(cluster.troubles.is_empty() && cluster.passes(CLOSED, OPEN), "{:?}", cluster.troubles);
    assert!(cluster.follower.take(Purpose::Services).is_none());
    // The server has the kind in another group of Calico.
    let ignored = ["GlobalNetworkPolicy.projectcalico.org".parse().unwrap()].into();
    let server = with_kinds(251);
    server.put(calico("a", 1, "Deny", &json!({})));
    let mut cluster = Cluster::with(server, Settings { ignored, timing: impatient(), ..Settings::default() });
    cluster.converge();
    cluster.follow(Duration::from_millis(300));
    assert!(cluster.unread.is_empty(), "{:?}", cluster.unread);
}

#[test]
fn a_deny_by_unknown_labels_of_another_product_is_refused_like_one_of_kubernetes() {
    let server = with_kinds(260);
    server.put(calico("web", 10, "Deny", &json!({"namespaceSelector": "team == 'red'"})));
    server.put(calico("rest", 20, "Allow", &json!({})));
    server.put_all(vec![node(1), pod("x", "more", 9, "web"), cluster_policy("none", "Accept", 1, "none")]);
    let mut broken = super::namespace("x", "red");
    broken["metadata"]["labels"]["team"] = json!({"not": "a text"});
    server.put(broken);
    let mut cluster = following(server, ForeignKinds::Enforce);
    cluster.until("a refusal", |cluster| !cluster.refused.is_empty());
    assert!(cluster.batches.is_empty());
    let said = cluster.refused[0].clone();
    assert!(said.contains("Calico GlobalNetworkPolicy web"), "{said}");
    cluster.server.put(super::namespace("x", "red"));
    cluster.converge();
    assert!(!cluster.passes(CLOSED, OPEN));
}
