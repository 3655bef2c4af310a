//! Runs `deploy/` on a whole node: a kubelet runs the pods that the DaemonSet controller would create.

use std::fs;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::node::{Node, Pod, only_from};
use super::{deploy, pod_of};
use crate::control_plane::{Cluster, Programs, SERVER, within};
use crate::lab::Lab;
use crate::lab::lasting::{Lasting, answers, settle};
use crate::machine::NodePrograms;
use crate::manifests::kustomized;
use crate::{node_programs, require};

/// The image of `deploy/kustomization.yaml` by containerd's full name.
pub(super) const IMAGE: &str = "docker.io/library/bulkhead:0.1.0";

/// A node with one network card, owned by its kernel, and no vswitch. The cluster has all objects of `deploy/` except the DaemonSet.
fn node_with_one_card(programs: Programs, node_programs: NodePrograms) -> Node {
    let mut lab = Lab::new();
    lab.outside();
    let outside = lab.outside.as_ref().unwrap();
    lab.node.ip(&format!("addr add {}/16 dev ul0", lab.node_v4()));
    lab.node.ip(&format!("route add default via {SERVER}"));
    lab.node.sysctl("net.ipv4.ip_forward", "1");
    // A kubelet 1.20 first waits for credentials from a cloud's metadata service. This route makes that fail at once.
    lab.node.ip("route add unreachable 169.254.169.254");
    let api = Cluster::start(programs, outside, &lab.path(""));
    create_manifests(&api);
    let node = Node::without_network(Lasting::of(lab), api, node_programs);
    node.give_addresses();
    node.machine.import_bulkhead(IMAGE);
    node
}

/// Creates all objects of `deploy/` at the API server, except the DaemonSet, whose pods the tests create themselves. The ConfigMap names the API
/// server, as without kube-proxy.
pub(super) fn create_manifests(api: &Cluster) {
    for mut object in kustomized(&deploy()).into_iter().filter(|object| object["kind"] != "DaemonSet") {
        if object["kind"] == "ConfigMap" {
            // The one setting for a cluster without kube-proxy.
            object["data"]["api-server-host"] = SERVER.into();
            object["data"]["api-server-port"] = "6443".into();
        }
        api.create(&object);
    }
    // A controller creates this ConfigMap in each namespace.
    let certificate = fs::read_to_string(api.certificate()).unwrap();
    api.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": certificate},
        "metadata": {"name": "kube-root-ca.crt", "namespace": "kube-system"}}));
}

/// The pod that a folder's DaemonSet creates on a node, with the service account volume that an admission controller adds.
pub(super) fn daemon(node: &str, folder: &str, name: &str) -> Value {
    let objects = kustomized(&deploy().join(folder));
    let mut pod = pod_of(objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap(), name);
    let spec = &mut pod["spec"];
    spec["nodeName"] = node.into();
    if spec.get("serviceAccountName").is_none() {
        return pod;
    }
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}});
    let certificate =
        json!({"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
    let field = json!({"fieldPath": "metadata.namespace"});
    let namespace = json!({"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}});
    let volume = json!({"name": "account", "projected": {"sources": [token, certificate, namespace]}});
    spec["volumes"].as_array_mut().unwrap().push(volume);
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().unwrap() {
            let mount = json!({"name": "account", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true});
            match container["volumeMounts"].as_array_mut() {
                Some(mounts) => mounts.push(mount),
                None => container["volumeMounts"] = json!([mount]),
            }
        }
    }
    pod
}

/// Connections of one pod to another that are in use all the time, and new ones, one after another. The test fails if one of them does.
struct Watched {
    is_over: Arc<AtomicBool>,
    /// Each returns the longest time that a connection took for its answer, or for its handshake.
    threads: [JoinHandle<Duration>; 2],
}

impl Watched {
    const CONNECTIONS: usize = 200;

    /// Opens the connections, and returns when they are in use.
    fn start(from: &Pod, to: &Pod) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut streams: Vec<TcpStream> = (0..Self::CONNECTIONS).map(|_| from.connect(to)).collect();
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(2) {
            assert!(streams.iter_mut().all(answers));
        }
        let (from, to) = (from.clone(), to.clone());
        let longest = |is_over: &Arc<AtomicBool>, mut each: Box<dyn FnMut() + Send>| {
            let is_over = Arc::clone(is_over);
            std::thread::spawn(move || {
                let mut longest = Duration::ZERO;
                while !is_over.load(Ordering::SeqCst) {
                    let since = Instant::now();
                    each();
                    longest = longest.max(since.elapsed());
                }
                longest
            })
        };
        let mut next = 0;
        let answer = move || {
            next = (next + 1) % streams.len();
            assert!(answers(&mut streams[next]), "an established connection was lost");
        };
        let open = move || drop(from.connect(&to));
        let threads = [longest(&is_over, Box::new(answer)), longest(&is_over, Box::new(open))];
        Self { is_over, threads }
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::SeqCst);
        let [answer, handshake] = self.threads.map(|thread| thread.join().unwrap());
        let count = Self::CONNECTIONS;
        println!("longest answer of {count} connections: {answer:?}; longest handshake: {handshake:?}");
    }
}

/// Deletes a pod with its grace period and waits until its container has ended.
fn end(node: &Node, pod: &Pod) {
    node.api.delete_in_order(&pod.object);
    within("the container's end", || node.machine.process(&pod.object).is_none());
}

#[test]
fn the_manifests_wire_a_real_node_replace_its_vswitch_and_leave_nothing_when_they_are_removed() {
    let (programs, node_programs) = (programs!(), node_programs!());
    let node = node_with_one_card(programs, node_programs);
    let vswitch = node.ready(&node.api.create(&daemon(&node.lab().node_name(), "", "bulkhead-1")));
    let status = node.machine.output_in(&vswitch.object, &["bulkhead", "status"]);
    assert!(status.status.success(), "{status:?}");

    node.api.create(&only_from("backend"));
    let [db, backend, frontend] = node.run([("db", "db"), ("backend", "backend"), ("frontend", "frontend")]);
    assert!(node.gets(&backend, &db) && !node.gets(&frontend, &db));
    assert!(node.gets(&db, &frontend), "no policy selects it");
    let mut stream = backend.connect(&db);
    settle(&mut stream);

    // Without a surge: a DaemonSet's update waits for the kubelet, which takes 6 to 60 seconds to report that the pod is gone.
    end(&node, &vswitch);
    assert!(answers(&mut stream), "the kernel goes on with it");
    node.api.delete(&vswitch.object);
    let vswitch = node.ready(&node.api.create(&daemon(&node.lab().node_name(), "", "bulkhead-2")));
    within("the connection goes on", || answers(&mut stream));
    assert!(node.gets(&backend, &db) && !node.gets(&frontend, &db));

    // With the surge of `deploy/`: the new pod is ready while the old one runs, and only then does the controller delete that.
    let vswitch = {
        let new = node.ready(&node.api.create(&daemon(&node.lab().node_name(), "", "bulkhead-3")));
        let watched = Watched::start(&backend, &db);
        end(&node, &vswitch);
        within("the new one runs", || node.machine.output_in(&new.object, &["bulkhead", "status"]).status.success());
        watched.stop();
        new
    };
    assert!(answers(&mut stream) && node.gets(&backend, &db) && !node.gets(&frontend, &db));

    for pod in [&db, &backend, &frontend] {
        node.api.delete(&pod.object);
    }
    let of_the_vswitch = ["bh-host", "bh-node", "bh0", "bh1", "lo", "ul0"];
    within("their interfaces are gone", || node.machine.exec("ls", &["/sys/class/net"]).lines().eq(of_the_vswitch));
    end(&node, &vswitch);
    for object in kustomized(&deploy().join("uninstall")).iter().filter(|object| object["kind"] != "DaemonSet") {
        node.api.create(object);
    }
    node.ready(&node.api.create(&daemon(&node.lab().node_name(), "uninstall", "uninstall-1")));
    // Every BPF file system contains the kernel's own two files.
    for (folder, others) in [
        ("/etc/cni/net.d", ""),
        ("/opt/cni/bin", "loopback\n"),
        ("/sys/fs/bpf", "maps.debug\nprogs.debug\n"),
        ("/sys/class/net", "lo\nul0\n"),
    ] {
        assert_eq!(node.machine.exec("ls", &[folder]), others, "{folder}");
    }
    for folder in ["/run/bulkhead", "/var/lib/bulkhead"] {
        assert!(!node.machine.output("ls", &[folder]).status.success(), "{folder} is still there");
    }
}
