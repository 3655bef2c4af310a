//! A vswitch that follows a real API server with exactly the rights of `deploy/rbac.yaml`. `cargo xtask cluster` runs these tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cni::{Runtime, Sandbox, one_datagram};
use crate::control_plane::{Cluster, Programs, SERVER, within};
use crate::lab::Lab;
use crate::manifests::kustomized;
use crate::objects::{beside_a_server, deny, node, pod};
use crate::require;
use ipnet::Ipv4Net;
use serde_json::{Value, json};

/// Returns the paths of the server's programs, or skips the test if `cargo xtask cluster` has not set them.
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

#[path = "cluster/deployment.rs"]
mod deployment;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/three_nodes.rs"]
mod three_nodes;

/// A CustomResourceDefinition of ClusterNetworkPolicy that accepts any content.
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

/// A lab with two pods, and a real server outside with their objects and the manifest's rights.
fn lab(programs: Programs) -> (Lab, Cluster) {
    let (lab, api) = lab_with(&["client", "server"], programs);
    api.create_with_status(&node(&lab));
    for name in ["client", "server"] {
        api.create_with_status(&pod(&lab, name));
    }
    (lab, api)
}

/// A lab with these pods, and a real server outside with the manifest's rights but without the pods' objects.
fn lab_with(pods: &[&str], programs: Programs) -> (Lab, Cluster) {
    let mut lab = beside_a_server(pods);
    let api = Cluster::start(programs, lab.outside.as_ref().unwrap(), &lab.path(""));
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac.yaml");
    api.create_all(&fs::read_to_string(manifest).unwrap());
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
    // The pod no longer has the label that the policy selects.
    let path = "/api/v1/namespaces/default/pods/server";
    let (status, mut other) = api.ask("GET", path, None);
    assert_eq!(status, 200);
    other["metadata"]["labels"] = json!({"app": "other"});
    assert_eq!(api.ask("PUT", path, Some(&other)).0, 200);
    within("the label", || lab.pings("client", &server));

    // A deleted pod matches no peer, and its port is closed.
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
    // Recreating the account invalidates its old tokens. The server must restart, because an established watch would continue.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bulkhead", "namespace": "kube-system"}});
    api.delete(&account);
    api.create(&account);
    api.kill();
    within("the log says so", || lab.count("the last good state, ") > 0);
    let (client, since) = (lab.get("client").v4.clone(), Instant::now());
    while since.elapsed() < AWAY {
        assert!(!lab.pings("client", &server), "the last good state stays in force");
        assert!(lab.pings("server", &client), "and not more than it");
    }
    api.come_up(lab.outside.as_ref().unwrap());
    within("the old token is refused", || lab.count("rejects the credential (401)") > 0);
    api.delete(&deny());
    assert!(!lab.pings("client", &server), "nobody has told it");
    renew_token(&lab, &api);
    println!("a new token is used after {:?}", within("the change", || lab.pings("client", &server)));
    lab.stop();
}

#[test]
fn services_of_a_real_server_are_translated_whichever_version_of_endpoint_slices_it_has() {
    let (mut lab, api) = lab(programs!());
    lab.start("");
    let metadata = json!({"name": "web", "namespace": "default"});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80, "targetPort": PORT}]}});
    let address = api.create(&service)["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let server = lab.get("server");
    let _server = server.netns.serve(&format!("nc -lk {PORT}"), PORT);
    assert!(!lab.connects("client", &address, 80), "it has no endpoint yet");
    let mut slice = json!({"kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"name": "", "port": PORT}],
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": [server.v4], "conditions": {"ready": true}}]});
    let node = lab.node_name();
    if api.minor_version() < 21 {
        slice["apiVersion"] = "discovery.k8s.io/v1beta1".into();
        slice["endpoints"][0]["topology"] = json!({"kubernetes.io/hostname": node});
    } else {
        slice["apiVersion"] = "discovery.k8s.io/v1".into();
        slice["endpoints"][0]["nodeName"] = node.into();
    }
    api.create(&slice);
    println!("translated after {:?}", within("the endpoint", || lab.connects("client", &address, 80)));
    api.delete(&slice);
    within("the endpoint's end", || !lab.connects("client", &address, 80));
    lab.stop();
}

/// How long the server stays away: longer than any pause between reconnects and any flow's lease.
const AWAY: Duration = Duration::from_secs(60);

/// The node's pod CIDR as the server has it. It differs from the network of the lab's own pods, and from the runtime's default.
const POD_CIDR: &str = "10.244.1.64/26";

/// The port of the tests' server. It is UDP, so that the first packet decides: nothing is retransmitted.
const PORT: u16 = 6379;

/// A node whose pods a runtime attaches by the CNI plugin, with objects of a real server.
struct Wired {
    lab: Lab,
    api: Cluster,
    runtime: Runtime,
}

impl Wired {
    /// Starts the node with the plugin from `bulkhead cni install`, which takes the pod CIDR from the server.
    fn new(programs: Programs) -> Self {
        let (mut lab, api) = lab_with(&[], programs);
        let mut node = node(&lab);
        node["spec"] = json!({"podCIDR": POD_CIDR, "podCIDRs": [POD_CIDR]});
        api.create_with_status(&node);
        api.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        lab.start("");
        // A container runtime would retry until the plugin succeeds; this test runs it only once.
        let (code, text) = lab.ask(&["status", "--wait"]);
        assert_eq!(code, Some(0), "{text}");
        let mut runtime = Runtime::new(&lab.node, &lab.path(""), &lab.path("admin.sock"));
        let [bin, conf, socket, config] = ["cni", "net.d", "admin.sock", "kubeconfig"]
            .map(|name| lab.path(name).into_os_string().into_string().unwrap());
        let place = format!("--bin-dir {bin} --conf-dir {conf} --socket {socket}");
        let program = env!("CARGO_BIN_EXE_bulkhead");
        lab.node.exec(&format!("{program} cni install --node {} --kubeconfig {config} {place}", lab.node_name()));
        runtime.take(&lab.path("net.d/05-bulkhead.conflist"), &lab.path("leases"));
        Self { lab, api, runtime }
    }

    /// A Pod object as its creator writes it, with the node that the scheduler has chosen.
    fn pod(&self, name: &str, role: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"role": role}},
            "spec": {"nodeName": self.lab.node_name(), "containers": [{"name": "main", "image": "none"}]}})
    }

    /// Creates a pod and attaches it. Its status has no addresses yet.
    fn add(&self, name: &str, role: &str) -> Sandbox {
        let mut sandbox = Sandbox::of(&self.api.create(&self.pod(name, role)));
        println!("ADD of {name} took {:?}", self.runtime.add(&mut sandbox));
        let (range, address): (Ipv4Net, Ipv4Addr) = (POD_CIDR.parse().unwrap(), sandbox.v4().parse().unwrap());
        assert!(range.contains(&address), "{address} is not of the node's");
        sandbox
    }

    /// Writes a pod's addresses into its status, as a kubelet does for a running sandbox.
    fn report(&self, sandbox: &Sandbox) {
        let mut pod = self.pod(&sandbox.pod, "");
        assert_eq!(self.api.get(&pod)["status"].get("podIP"), None, "nobody has told the server before");
        pod["status"] = json!({"phase": "Running", "podIP": sandbox.v4(), "podIPs": [{"ip": sandbox.v4()}]});
        self.api.report(&pod);
    }

    fn delete(&self, sandbox: &Sandbox) {
        self.runtime.del(sandbox);
        self.api.delete(&self.pod(&sandbox.pod, ""));
    }

    /// The number of pods that the vswitch knows from the server.
    fn known_pods(&mut self) -> u64 {
        self.lab.summary()["source"]["objects"]["Pod"].as_u64().unwrap_or(0)
    }

    /// The names of the ports that the plugin has added.
    fn ports(&self) -> Vec<String> {
        let (code, text) = self.lab.ask(&["ports", "-o", "json"]);
        assert_eq!(code, Some(0), "{text}");
        let ports: Value = serde_json::from_str(&text).unwrap();
        let pods = ports.as_array().unwrap().iter().filter(|port| port["kind"] == "pod");
        pods.map(|port| port["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// A node with a database that only role `backend` may reach. Skips the test if a program for it is missing.
macro_rules! wired {
    () => {{
        let programs = programs!();
        only_with_tc!();
        let node = Wired::new(programs);
        node.api.create(&only_from("backend"));
        let db = node.add("db", "db");
        (node, db)
    }};
}

/// A policy that allows ingress to the database's port only from pods with this role.
fn only_from(role: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "database", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": role}}}], "ports": [{"port": PORT, "protocol": "UDP"}]}]}})
}

#[test]
fn pods_that_the_plugin_wires_are_judged_by_a_real_servers_policies_from_their_first_packet_on() {
    let (mut node, db) = wired!();
    let [backend, frontend] = ["backend", "frontend"].map(|role| node.add(role, role));
    assert!(one_datagram(&backend, &db, PORT), "the first packet that both have to do with");
    assert!(!one_datagram(&frontend, &db, PORT) && !one_datagram(&backend, &db, PORT + 1));
    assert!(one_datagram(&db, &frontend, PORT), "no policy selects it");
    for sandbox in [&db, &backend, &frontend] {
        node.report(sandbox);
        assert_eq!(node.runtime.check(sandbox), Ok(()));
    }

    // Objects of kinds that the vswitch may not read, with the same labels and addresses.
    let metadata = json!({"name": "db", "namespace": "shop"});
    let service = node.api.create(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"selector": {"role": "db"}, "ports": [{"port": PORT, "protocol": "UDP"}]}}));
    assert!(service["spec"]["clusterIP"].is_string(), "{service:#}");
    node.api.create(&json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
        "subsets": [{"addresses": [{"ip": db.v4()}], "ports": [{"port": PORT, "protocol": "UDP"}]}]}));
    assert!(one_datagram(&backend, &db, PORT) && !one_datagram(&frontend, &db, PORT));

    // Change the policy, change a label, delete the policy.
    node.api.change(&only_from("backend"), &only_from("frontend"));
    within("the changed policy", || one_datagram(&frontend, &db, PORT));
    assert!(!one_datagram(&backend, &db, PORT));
    node.api.change(&node.pod("backend", ""), &json!({"metadata": {"labels": {"role": "frontend"}}}));
    within("the changed label", || one_datagram(&backend, &db, PORT));
    node.api.change(&node.pod("backend", ""), &json!({"metadata": {"labels": {"role": "backend"}}}));
    within("the label of before", || !one_datagram(&backend, &db, PORT));
    node.api.delete(&only_from(""));
    within("the policy's end", || one_datagram(&backend, &db, PORT));

    // The new pod has the same name, as with a StatefulSet. Its own labels take effect at once.
    node.api.create(&only_from("backend"));
    within("the policy of before", || !one_datagram(&frontend, &db, PORT));
    node.delete(&frontend);
    let frontend = node.add("frontend", "backend");
    assert!(one_datagram(&frontend, &db, PORT));
    for sandbox in [&db, &backend, &frontend] {
        node.delete(sandbox);
    }
    within("their ports are gone", || node.ports().is_empty());
    within("their objects are forgotten", || node.known_pods() == 0);
    node.lab.stop();
}

#[test]
fn while_a_real_server_is_away_the_plugin_wires_the_pods_that_it_has_told_of_and_no_others() {
    let (mut node, db) = wired!();
    node.report(&db);
    let before = node.add("before", "frontend");
    node.report(&before);
    // Pods that exist and are scheduled when the server ends, but that the runtime has not added yet.
    let [mut open, mut closed] = [("open", "backend"), ("closed", "frontend")]
        .map(|(name, role)| Sandbox::of(&node.api.create(&node.pod(name, role))));
    within("it has been told of all", || node.known_pods() == 4);
    node.api.kill();
    within("it knows that the server is away", || node.lab.count("the last good state, ") > 0);

    node.runtime.add(&mut open);
    node.runtime.add(&mut closed);
    assert!(one_datagram(&open, &db, PORT) && !one_datagram(&closed, &db, PORT));
    // The vswitch does not know this pod, so ADD fails and the runtime must try again.
    node.runtime.plugins[0]["timeout_seconds"] = 1.into();
    let error = node.runtime.try_add(&mut Sandbox::new("unknown")).unwrap_err();
    assert_eq!(error["code"], 11, "{error:#}");
    node.runtime.del(&before);
    within("only these ports are left", || node.ports() == ["shop/db", "shop/open", "shop/closed"]);

    node.api.come_up(node.lab.outside.as_ref().unwrap());
    node.runtime.plugins[0]["timeout_seconds"] = 60.into();
    node.api.delete(&node.pod("before", ""));
    node.report(&open);
    let (after, other) = (node.add("after", "backend"), node.add("other", "frontend"));
    assert!(one_datagram(&after, &db, PORT) && !one_datagram(&other, &db, PORT));
    assert!(one_datagram(&open, &db, PORT) && !one_datagram(&closed, &db, PORT));
    for sandbox in [&db, &open, &closed, &after, &other] {
        node.delete(sandbox);
    }
    within("their ports are gone", || node.ports().is_empty());
    node.lab.stop();
}

fn deploy() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// The pod that a DaemonSet's controller creates.
fn pod_of(daemonset: &Value, name: &str) -> Value {
    let template = &daemonset["spec"]["template"];
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["namespace"] = daemonset["metadata"]["namespace"].clone();
    pod
}

/// A lab with a real server, without objects and without a vswitch.
fn server_alone(programs: Programs) -> (Lab, Cluster) {
    let lab = beside_a_server(&[]);
    let api = Cluster::start(programs, lab.outside.as_ref().unwrap(), &lab.path(""));
    (lab, api)
}

/// The paths of fields in `sent` that `kept` lacks or has with another value.
fn lost(sent: &Value, kept: &Value, path: &str) -> Vec<String> {
    match (sent, kept) {
        (Value::Object(sent), Value::Object(kept)) => {
            let of = |(name, value): (&String, &Value)| {
                lost(value, kept.get(name).unwrap_or(&Value::Null), &format!("{path}.{name}"))
            };
            sent.iter().flat_map(of).collect()
        }
        (Value::Array(sent), Value::Array(kept)) if sent.len() == kept.len() => {
            let pairs = sent.iter().zip(kept).enumerate();
            pairs.flat_map(|(at, (sent, kept))| lost(sent, kept, &format!("{path}[{at}]"))).collect()
        }
        // A server omits empty fields.
        (Value::Object(fields), Value::Null) if fields.is_empty() => Vec::new(),
        (Value::Array(items), Value::Null) if items.is_empty() => Vec::new(),
        _ if sent == kept => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

#[test]
fn a_real_server_takes_every_manifest_and_keeps_every_field() {
    let (_lab, api) = server_alone(programs!());
    let mut sent = [kustomized(&deploy()), kustomized(&deploy().join("uninstall"))].concat();
    let daemonsets: Vec<Value> = sent.iter().filter(|object| object["kind"] == "DaemonSet").cloned().collect();
    sent.extend(daemonsets.iter().enumerate().map(|(at, daemonset)| pod_of(daemonset, &format!("pod-{at}"))));
    assert_eq!((sent.len(), daemonsets.len()), (9, 2));
    let is_old = api.minor_version() < 30;
    for mut object in sent {
        // Kubernetes 1.22 added the surge of a DaemonSet. Older servers drop it, and then refuse that no pod may be missing.
        if let Some(strategy) = object.pointer_mut("/spec/updateStrategy/rollingUpdate")
            && api.minor_version() < 22
            && strategy["maxSurge"] == 1
        {
            *strategy = json!({"maxUnavailable": 1});
        }
        let kept = api.create(&object);
        let lost = lost(&object, &kept, object["kind"].as_str().unwrap());
        // Kubernetes 1.30 added this field. Older servers drop it; they use an annotation instead.
        let (new, lost): (Vec<_>, Vec<_>) = lost.into_iter().partition(|path| path.ends_with(".appArmorProfile"));
        assert_eq!(lost, Vec::<String>::new(), "{kept:#}");
        assert_eq!(!new.is_empty(), is_old && object.to_string().contains("appArmorProfile"), "{new:?}");
    }
}

#[test]
fn the_service_account_may_list_and_watch_what_policy_and_services_depend_on_and_nothing_else() {
    let (_lab, api) = server_alone(programs!());
    api.create_all(&fs::read_to_string(deploy().join("rbac.yaml")).unwrap());
    let token = api.token("kube-system", "bulkhead");
    let ask = |path: &str, spec: Value| {
        let kind = if path.contains("rules") { "SelfSubjectRulesReview" } else { "SelfSubjectAccessReview" };
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let path = format!("/apis/authorization.k8s.io/v1/{path}");
        let (code, mut answer) = api.ask_as(&token, "POST", &path, Some(&review));
        assert_eq!(code, 201, "{answer:#}");
        answer["status"].take()
    };
    // A role binding takes effect with a short delay.
    let may = |verb: &str, group: &str, resource: &str| {
        let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let spec = json!({"verb": verb, "group": group, "resource": resource, "subresource": sub});
        ask("selfsubjectaccessreviews", json!({"resourceAttributes": spec}))["allowed"] == true
    };
    within("the rights are granted", || may("list", "", "pods"));

    // Lists all rights except those that every user has, which are questions about the user itself.
    let status = ask("selfsubjectrulesreviews", json!({"namespace": "kube-system"}));
    assert_eq!(status["incomplete"], false, "{status:#}");
    let mut rights = Vec::new();
    for rule in status["resourceRules"].as_array().unwrap() {
        let each = |field: &str| rule[field].as_array().into_iter().flatten().map(|text| text.as_str().unwrap());
        for resource in each("resources").filter(|resource| !resource.starts_with("selfsubject")) {
            for group in each("apiGroups") {
                rights.extend(each("verbs").map(|verb| format!("{verb} {resource}.{group}")));
            }
        }
    }
    rights.sort();
    let namespaced = ["networkpolicies", "stagednetworkpolicies", "stagedkubernetesnetworkpolicies", "networksets"];
    let global =
        ["tiers", "globalnetworkpolicies", "stagedglobalnetworkpolicies", "globalnetworksets", "hostendpoints"];
    let of_calico = [namespaced.as_slice(), &global].concat();
    let mut expected = Vec::new();
    for (group, resources) in [
        ("", ["namespaces", "nodes", "pods", "services", "serviceaccounts"].as_slice()),
        ("networking.k8s.io", &["networkpolicies"]),
        (
            "policy.networking.k8s.io",
            &["clusternetworkpolicies", "adminnetworkpolicies", "baselineadminnetworkpolicies"],
        ),
        ("discovery.k8s.io", &["endpointslices"]),
        ("projectcalico.org", &of_calico),
        ("crd.projectcalico.org", &of_calico),
        ("cilium.io", &["ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies", "ciliumcidrgroups"]),
    ] {
        for (resource, verb) in resources.iter().flat_map(|resource| [(resource, "list"), (resource, "watch")]) {
            assert!(may(verb, group, resource), "{verb} {resource}.{group}");
            expected.push(format!("{verb} {resource}.{group}"));
        }
    }
    expected.sort();
    assert_eq!(rights, expected);

    for (verb, group, resource) in [
        ("list", "", "secrets"),
        ("list", "", "configmaps"),
        ("get", "", "pods"),
        ("create", "", "pods"),
        ("create", "", "pods/exec"),
        ("update", "", "pods/status"),
        ("delete", "", "nodes"),
        ("patch", "", "nodes/status"),
        ("update", "networking.k8s.io", "networkpolicies"),
        ("update", "", "services/status"),
        ("create", "", "serviceaccounts/token"),
        ("impersonate", "", "users"),
        ("*", "*", "*"),
    ] {
        assert!(!may(verb, group, resource), "{verb} {resource}");
    }
    assert_eq!(api.ask_as(&token, "GET", "/api/v1/pods", None).0, 200);
    assert_eq!(api.ask_as(&token, "GET", "/api/v1/secrets", None).0, 403);
}
