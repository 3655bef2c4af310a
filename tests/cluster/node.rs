//! A whole node: a kubelet and containerd run real containers for the pods of the API server, and the CNI plugin attaches them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;

use bulkhead_dataplane::io::in_namespace;
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::lab_with;
use crate::control_plane::{Cluster, Programs, kubelet_token, within};
use crate::lab::Lab;
use crate::lab::lasting::{Lasting, PATIENCE, answers, settle};
use crate::machine::{IMAGE, Machine, NodePrograms};
use crate::{node_programs, require};

/// The node's pod CIDR. It has five addresses besides the gateway's, so addresses are reused soon.
const POD_CIDR: &str = "10.244.1.64/29";

/// The port at which a pod serves a page with its own name.
const HTTP: u16 = 80;

/// The port at which a pod echoes what it receives, until the connection ends.
const ECHO: u16 = 7;

/// The containers' command: the HTTP and echo servers.
const SERVE: &str = "mkdir /www; hostname > /www/index.html; nc -ll -p 7 -e /bin/cat & exec httpd -f -p 80 -h /www";

/// A node with its control plane. Fields drop in this order, so the vswitch ends last.
pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) api: Cluster,
    lasting: Lasting,
}

impl Node {
    /// Joins a node to a cluster: starts vswitch, containerd, kubelet and CNI plugin in this order.
    fn join(programs: Programs, node_programs: NodePrograms) -> Self {
        let (lab, api) = lab_with(&[], programs);
        let mut lasting = Lasting::of(lab);
        lasting.lab.start("");
        let node = Self::without_network(lasting, api, node_programs);
        let socket = node.path("admin.sock");
        let words = ["cni", "install", "--range", POD_CIDR, "--socket", socket.to_str().unwrap()];
        node.machine.exec(env!("CARGO_BIN_EXE_bulkhead"), &words);
        // The plugin is installed first: on new pod CIDRs a kubelet checks the network at once, and otherwise every five seconds.
        node.give_addresses();
        node
    }

    /// Starts containerd and a kubelet, which registers the node. The cluster has a namespace `shop`.
    pub(super) fn without_network(lasting: Lasting, api: Cluster, programs: NodePrograms) -> Self {
        let machine = Machine::start(programs, &lasting.lab);
        let mut node = Self { machine, api, lasting };
        fs::write(node.path("kubelet.token"), kubelet_token(&node.lab().node_name())).unwrap();
        fs::write(node.path("kubelet.conf"), node.api.kubeconfig(&node.path("kubelet.token"))).unwrap();
        node.start_kubelet();
        let object = node.object();
        println!("registered after {:?}", within("the node is registered", || node.api.has(&object)));
        node.api.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        node
    }

    /// Assigns the node its pod CIDR, as a controller does.
    pub(super) fn give_addresses(&self) {
        self.api.change(&self.object(), &json!({"spec": {"podCIDR": POD_CIDR, "podCIDRs": [POD_CIDR]}}));
    }

    fn object(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.lab().node_name()}})
    }

    pub(super) const fn lab(&self) -> &Lab {
        &self.lasting.lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lab().path(name)
    }

    fn start_kubelet(&mut self) {
        let config = self.path("kubelet.conf");
        self.machine.start_kubelet(&config);
    }

    /// A Pod object as its creator writes it, with the node that the scheduler has chosen.
    fn pod(&self, name: &str, role: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"role": role}},
            "spec": {"nodeName": self.lab().node_name(), "terminationGracePeriodSeconds": 1, "containers": [
                {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", SERVE],
                    "readinessProbe": {"httpGet": {"port": HTTP}, "periodSeconds": 1}}]}})
    }

    /// Waits until the kubelet reports a pod ready: its container runs and answers the probe. Returns the pod with its status.
    pub(super) fn ready(&self, created: &Value) -> Pod {
        let (uid, mut object) = (&created["metadata"]["uid"], Value::Null);
        let took = within("the pod is ready", || {
            object = self.api.get(created);
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            &object["metadata"]["uid"] == uid
                && conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        println!("{name} is ready after {took:?}");
        let address: Ipv4Addr = object["status"]["podIP"].as_str().unwrap().parse().unwrap();
        let range: Ipv4Net = POD_CIDR.parse().unwrap();
        let is_host = object["spec"]["hostNetwork"] == true;
        assert!(is_host || range.contains(&address), "{address} is not of the node's");
        Pod { address, netns: self.machine.netns(&object), object }
    }

    /// Creates pods with these names and roles, and waits until they are ready.
    pub(super) fn run<const COUNT: usize>(&self, pods: [(&str, &str); COUNT]) -> [Pod; COUNT] {
        let created = pods.map(|(name, role)| self.api.create(&self.pod(name, role)));
        created.map(|pod| self.ready(&pod))
    }

    /// Whether a container receives the page of another pod. Panics if it receives a third pod's page.
    pub(super) fn gets(&self, from: &Pod, to: &Pod) -> bool {
        // Busybox's wget resolves names, which a static program cannot do without libraries that the image lacks.
        let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 1 {} {HTTP}", to.address);
        let output = self.machine.output_in(&from.object, &["sh", "-c", &ask]);
        let page = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success() || page.lines().last() == Some(to.name()), "{page}");
        output.status.success()
    }

    /// The reserved addresses.
    fn leases(&self) -> Vec<String> {
        let files = self.machine.exec("ls", &["/run/bulkhead/ipam/bulkhead"]);
        files.lines().filter(|name| name.parse::<Ipv4Addr>().is_ok()).map(str::to_owned).collect()
    }

    /// The names of the ports that the plugin has added.
    fn ports(&self) -> Vec<String> {
        let (code, text) = self.lab().ask(&["ports", "-o", "json"]);
        assert_eq!(code, Some(0), "{text}");
        let ports: Value = serde_json::from_str(&text).unwrap();
        let pods = ports.as_array().unwrap().iter().filter(|port| port["kind"] == "pod");
        let mut names: Vec<_> = pods.map(|port| port["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

#[derive(Clone)]
pub(super) struct Pod {
    pub(super) object: Value,
    address: Ipv4Addr,
    netns: PathBuf,
}

impl Pod {
    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    /// Opens a TCP connection to another pod's echo server.
    pub(super) fn connect(&self, to: &Self) -> TcpStream {
        let address = SocketAddr::from((to.address, ECHO));
        let stream = in_namespace(&self.netns, || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// A policy that denies all ingress in the namespace, unless another policy allows it.
fn closed() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed", "namespace": "shop"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}})
}

/// A policy that allows ingress to the database only from pods with this role.
pub(super) fn only_from(role: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "database", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": role}}}]}]}})
}

#[test]
fn pods_of_a_real_kubelet_are_probed_and_judged_and_their_addresses_are_given_again() {
    only_with_tc!();
    let mut node = Node::join(programs!(), node_programs!());
    for policy in [closed(), only_from("backend")] {
        node.api.create(&policy);
    }
    // The pods become ready, so the kubelet's probes pass although all other ingress is denied.
    let [db, backend, frontend] = node.run([("db", "db"), ("backend", "backend"), ("frontend", "frontend")]);
    assert_eq!(node.ports(), ["shop/backend", "shop/db", "shop/frontend"]);
    assert!(node.gets(&backend, &db) && !node.gets(&frontend, &db) && !node.gets(&db, &backend));
    node.api.change(&frontend.object, &json!({"metadata": {"labels": {"role": "backend"}}}));
    within("the changed label", || node.gets(&frontend, &db));
    node.api.change(&frontend.object, &json!({"metadata": {"labels": {"role": "frontend"}}}));
    within("the label of before", || !node.gets(&frontend, &db));

    node.api.delete_in_order(&frontend.object);
    within("its port is gone", || node.ports() == ["shop/backend", "shop/db"]);
    // As with a StatefulSet's pod on a lost node: the server forgets the pod at once, while the node has both for a while.
    node.api.delete(&backend.object);
    let [other] = node.run([("backend", "frontend")]);
    assert!(!node.gets(&other, &db), "the pod of the same name has other labels");
    within("the first one's port is gone", || node.ports() == ["shop/backend", "shop/db"]);

    within("the addresses of those that are gone are free", || node.leases().len() == 2);
    let late = node.run([("late-1", "backend"), ("late-2", "backend")]);
    let is_reused = |pod: &Pod| [backend.address, frontend.address].contains(&pod.address);
    assert!(late.iter().any(is_reused), "there are only five");
    assert!(late.iter().all(|pod| node.gets(pod, &db)) && !node.gets(&other, &db));

    for pod in [&db, &other].into_iter().chain(&late) {
        node.api.delete_in_order(&pod.object);
    }
    within("their ports are gone", || node.ports().is_empty());
    within("their addresses are free", || node.leases().is_empty());
    node.lasting.lab.stop();
}

#[test]
fn connections_of_a_real_kubelets_pods_outlive_the_vswitch_and_the_kubelet() {
    only_with_tc!();
    let mut node = Node::join(programs!(), node_programs!());
    node.api.create(&only_from("backend"));
    let [db, backend, old] = node.run([("db", "db"), ("backend", "backend"), ("old", "backend")]);
    let mut stream = backend.connect(&db);
    settle(&mut stream);

    node.lasting.lab.kill();
    node.api.delete(&old.object);
    let created = node.api.create(&node.pod("during", "backend"));
    assert!(answers(&mut stream), "the kernel goes on with it");
    node.lasting.lab.start("");
    // The vswitch reaches the API server through itself. Until then it knows no policy and denies everything.
    println!("goes on after {:?}", within("the connection goes on", || answers(&mut stream)));
    let during = node.ready(&created);
    assert!(node.gets(&during, &db));
    within("the port of the pod that is gone", || node.ports() == ["shop/backend", "shop/db", "shop/during"]);

    node.machine.kill_kubelet();
    node.api.delete(&during.object);
    let created = node.api.create(&node.pod("after", "frontend"));
    assert!(answers(&mut stream) && node.gets(&backend, &db));
    node.start_kubelet();
    let after = node.ready(&created);
    assert!(answers(&mut stream) && !node.gets(&after, &db));
    within("the port of the pod that nobody knows any more", || {
        node.ports() == ["shop/after", "shop/backend", "shop/db"]
    });
    node.lasting.lab.stop();
}
