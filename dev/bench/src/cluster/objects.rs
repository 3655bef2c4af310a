//! The objects of an invented cluster, as its API server returns them. Each of fifty namespaces has ten apps and belongs to one of ten
//! teams. A policy selects one app of its namespace and allows ingress from another app of the namespace and from an app of one team. Every
//! third policy also restricts egress. No two pods have adjacent addresses, so a set of pods has as many intervals as pods.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

pub(super) const NODE: &str = "node-1";
pub(super) const POD_NETWORK: &str = "10.244.1.0/24";
/// The namespace of the pods that probe whether a policy is in force. Only [`probing_policy`] selects pods there.
pub(super) const PROBES: &str = "probes";

const NAMESPACES: usize = 50;
const APPS: usize = 10;
const TEAMS: usize = 10;
/// Number of pods on each other node. Kubernetes' default limit is 110.
const PODS_PER_NODE: usize = 100;

/// A pod's name, namespace and app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodName {
    pub(super) namespace: String,
    pub(super) name: String,
    app: String,
}

impl PodName {
    /// Returns the name of a pod in the namespace [`PROBES`]. Its app has the pod's name.
    pub(super) fn probe(name: &str) -> Self {
        Self { namespace: PROBES.to_owned(), name: name.to_owned(), app: name.to_owned() }
    }

    /// Returns the name of a pod on this node that its namespace's policies select like pods of other nodes.
    pub(super) fn local(at: usize) -> Self {
        Self { namespace: namespace_name(at), name: format!("local-{at}"), app: app(at) }
    }

    /// Returns the Pod object: running with this address, or pending if `address` is `None`.
    pub(super) fn object(&self, address: Option<&str>) -> Value {
        let status = match address {
            None => json!({"phase": "Pending"}),
            Some(address) => json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}),
        };
        pod(&self.namespace, &self.name, &self.app, NODE, &status)
    }
}

fn namespace_name(at: usize) -> String {
    format!("ns-{}", at % NAMESPACES)
}

fn app(at: usize) -> String {
    format!("a{}", at / NAMESPACES % APPS)
}

fn pod(namespace: &str, name: &str, app: &str, node: &str, status: &Value) -> Value {
    let ports = json!([{"name": "http", "containerPort": 8080, "protocol": "TCP"}]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": app, "pod-template-hash": "5d78c9869d"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "registry.example/main:1", "ports": ports}]},
        "status": status,
    })
}

/// Returns pod number `at` of the other nodes. Its app alternates between two with each `turn`.
pub(super) fn remote_pod(at: usize, turn: usize) -> Value {
    let address = Ipv4Addr::from(0x0a60_0001 + 2 * u32::try_from(at).unwrap_or_default()).to_string();
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    let (app, node) = (app(at + turn % 2 * NAMESPACES), format!("node-{}", 2 + at / PODS_PER_NODE));
    pod(&namespace_name(at), &format!("pod-{at}"), &app, &node, &status)
}

fn node(name: &str, at: usize) -> Value {
    let address = format!("172.18.{}.{}", at / 250, at % 250 + 1);
    let spec = if name == NODE { json!({"podCIDRs": [POD_NETWORK], "podCIDR": POD_NETWORK}) } else { json!({}) };
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec,
        "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
}

/// Number of pods on this node without ports. With the two probing pods, this is Kubernetes' default limit of a node.
const NEIGHBOURS: usize = 108;

/// Returns all objects of the cluster except the pods of this node.
pub(super) fn cluster(pods: usize, policies: usize) -> Vec<Value> {
    let namespace = |name: &str, team: usize| {
        let labels = json!({"team": format!("t{team}"), "kubernetes.io/metadata.name": name});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    };
    let mut objects = vec![namespace(PROBES, 0), node(NODE, 0)];
    objects.extend((0..NAMESPACES).map(|at| namespace(&namespace_name(at), at % TEAMS)));
    objects.extend((0..pods.div_ceil(PODS_PER_NODE)).map(|at| node(&format!("node-{}", at + 2), at + 1)));
    objects.extend((0..pods).map(|at| remote_pod(at, 0)));
    objects.extend((0..policies).map(policy));
    objects
}

/// Returns pods of this node that have policies but no ports. The plugin does not assign their addresses.
pub(super) fn neighbours() -> Vec<Value> {
    (0..NEIGHBOURS).map(|at| PodName::local(at).object(Some(&format!("10.244.1.{}", at + 140)))).collect()
}

/// Returns a policy's peer: the pods of one app in the policy's namespace.
fn own(app: usize) -> Value {
    json!({"podSelector": {"matchLabels": {"app": format!("a{}", app % APPS)}}})
}

/// Returns a policy's peer: the pods of one app in all namespaces of a team.
fn of_team(app: usize, team: usize) -> Value {
    let namespaces = json!({"matchLabels": {"team": format!("t{}", team % TEAMS)}});
    json!({"namespaceSelector": namespaces, "podSelector": {"matchLabels": {"app": format!("a{}", app % APPS)}}})
}

fn network_policy(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec})
}

fn policy(at: usize) -> Value {
    let port = |port: Value| json!({"protocol": "TCP", "port": port});
    let mut spec = json!({
        "podSelector": {"matchLabels": {"app": app(at)}}, "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [own(at * 3 + 1)], "ports": [port(443.into()), port("http".into())]},
            {"from": [of_team(at * 7 + 2, at * 5 + 1)], "ports": [port(9090.into())]},
        ],
    });
    if at.is_multiple_of(3) {
        let block = json!({"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.64/26"]}});
        spec["policyTypes"] = json!(["Ingress", "Egress"]);
        spec["egress"] =
            json!([{"to": [own(at + 1), of_team(at + 3, at + 7)]}, {"to": [block], "ports": [port(5432.into())]}]);
    }
    network_policy(&namespace_name(at), &format!("policy-{at}"), &spec)
}

/// Returns the policy that the benchmark changes. It allows datagrams from the client and from a team's app to this port of the sink.
pub(super) fn probing_policy(port: u16) -> Value {
    let spec = json!({
        "podSelector": {"matchLabels": {"app": "sink"}}, "policyTypes": ["Ingress"],
        "ingress": [{
            "from": [{"podSelector": {"matchLabels": {"app": "client"}}}, of_team(3, 4)],
            "ports": [{"protocol": "UDP", "port": port}],
        }],
    });
    network_policy(PROBES, "probe", &spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_select_pods_of_this_node_and_name_pods_of_others() {
        let objects = cluster(1_000, 1_000);
        let count = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!((count("Pod"), count("NetworkPolicy"), count("Namespace"), count("Node")), (1_000, 1_000, 51, 11));
        let local = PodName::local(57).object(Some("10.244.1.2"));
        let selects = |policy: &&Value| {
            policy["kind"] == "NetworkPolicy"
                && policy["metadata"]["namespace"] == local["metadata"]["namespace"]
                && policy["spec"]["podSelector"]["matchLabels"]["app"] == local["metadata"]["labels"]["app"]
        };
        assert_eq!(objects.iter().filter(selects).count(), 2);
        assert_ne!(remote_pod(3, 0)["metadata"]["labels"], remote_pod(3, 1)["metadata"]["labels"]);
        assert_eq!(remote_pod(3, 0)["metadata"]["labels"], remote_pod(3, 2)["metadata"]["labels"]);
    }
}
