//! A container runtime, the CNI plugin and the real vswitch: pods are created, used while policy changes, and deleted, also while the
//! vswitch is away.

use crate::{require, require_plugins};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cni::{Runtime, Sandbox, one_datagram};
use crate::lab::netns::{Running, eventually};
use crate::lab::{Lab, policy};
use bulkhead_dataplane::io::in_namespace;
use serde_json::Value;

/// A node whose pods are created and deleted by CNI.
struct Cluster {
    lab: Lab,
    runtime: Runtime,
    /// The pods of the state by name: labels and addresses.
    pods: BTreeMap<String, (String, Vec<String>)>,
    policies: String,
}

impl Cluster {
    fn new() -> Self {
        let mut lab = Lab::new();
        lab.host();
        let runtime = Runtime::new(&lab.node, &lab.path(""), &lab.path("admin.sock"));
        Self { lab, runtime, pods: BTreeMap::new(), policies: String::new() }
    }

    /// Writes the state with the current pods and policies.
    fn write(&mut self) {
        self.lab.more_state.clear();
        for (name, (labels, addresses)) in &self.pods {
            let ips: Vec<String> = addresses.iter().map(|address| format!("{{ip: '{address}'}}")).collect();
            let status = match addresses.first() {
                None => "{phase: Pending}".to_owned(),
                Some(first) => format!("{{phase: Running, podIP: '{first}', podIPs: [{}]}}", ips.join(", ")),
            };
            writeln!(
                self.lab.more_state,
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, labels: {labels}}}\n\
                 spec: {{nodeName: {}, containers: []}}\nstatus: {status}",
                self.lab.node_name()
            )
            .unwrap();
        }
        self.lab.write_state(&self.policies);
    }

    fn start(&mut self) {
        self.write();
        let policies = self.policies.clone();
        self.lab.start(&policies);
    }

    /// Changes the policies and waits until they are in force.
    fn apply(&mut self, policies: &str) {
        policies.clone_into(&mut self.policies);
        self.lab.apply(policies);
    }

    /// Adds a Pod object without addresses to the state.
    fn declare(&mut self, name: &str, labels: &str) {
        self.pods.insert(name.to_owned(), (labels.to_owned(), Vec::new()));
        self.write();
    }

    /// Creates a pod in a kubelet's order: the Pod object, the sandbox, then the addresses in the object.
    fn create(&mut self, name: &str, labels: &str) -> Sandbox {
        self.declare(name, labels);
        let mut pod = Sandbox::new(name);
        self.runtime.add(&mut pod);
        self.report(&pod);
        pod
    }

    /// Writes a pod's addresses into the state.
    fn report(&mut self, pod: &Sandbox) {
        self.pods.get_mut(&pod.pod).unwrap().1 = pod.addresses();
        self.write();
    }

    fn delete(&mut self, pod: &Sandbox) {
        self.runtime.del(pod);
        self.pods.remove(&pod.pod);
        self.write();
    }

    fn ports(&self) -> Vec<Value> {
        let (code, text) = self.lab.ask(&["ports", "-o", "json"]);
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
    }

    fn port(&self, name: &str) -> Option<Value> {
        self.ports().into_iter().find(|port| port["name"] == name)
    }
}

/// A running cluster with one pod.
fn with_client() -> (Cluster, Sandbox) {
    let mut cluster = Cluster::new();
    cluster.start();
    let client = cluster.create("client", "{app: client}");
    (cluster, client)
}

/// Opens a TCP connection between two pods. Returns both ends.
fn connection(from: &Sandbox, to: &Sandbox, port: u16) -> (TcpStream, TcpStream) {
    let address: SocketAddr = format!("{}:{port}", to.v4()).parse().unwrap();
    let listener = in_namespace(&to.path(), || TcpListener::bind(address).unwrap()).unwrap();
    let client = in_namespace(&from.path(), || TcpStream::connect_timeout(&address, PATIENCE).unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (client, server)
}

/// Checks that one byte arrives in each direction, if necessary after TCP retransmits it.
fn assert_carries((client, server): &mut (TcpStream, TcpStream)) {
    let mut byte = [0];
    client.write_all(b"x").unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"y").unwrap();
    client.read_exact(&mut byte).unwrap();
}

/// Several times TCP's retransmission timeout.
const PATIENCE: Duration = Duration::from_secs(10);

/// The median and the maximum of some durations.
fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

fn redis(pod: &Sandbox) -> Running {
    pod.netns.serve("redis-server --port 6379 --bind 0.0.0.0 :: --protected-mode no --save  --appendonly no", 6379)
}

fn pong(from: &Sandbox, to: &str) -> bool {
    let output = from.netns.output(&format!("timeout 2 redis-cli -h {to} -p 6379 ping"));
    String::from_utf8_lossy(&output.stdout).trim() == "PONG"
}

fn resolves(from: &Sandbox, server: &str) -> bool {
    let output = from.netns.output(&format!("dig +short +time=1 +tries=1 @{server} db.test A"));
    String::from_utf8_lossy(&output.stdout).trim() == "192.0.2.7"
}

const ONLY_BACKENDS: &str = "{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress], \
    ingress: [{from: [{podSelector: {matchLabels: {role: backend}}}], ports: [{port: 6379}]}]}";

#[test]
fn redis_and_dns_between_pods_follow_policy_as_it_changes() {
    require!("redis-server", "redis-cli", "dnsmasq", "dig", "ping");
    let mut cluster = Cluster::new();
    cluster.start();
    let db = cluster.create("db", "{role: db}");
    let (backend, frontend) =
        (cluster.create("backend", "{role: backend}"), cluster.create("frontend", "{role: frontend}"));
    let dns = cluster.create("dns", "{role: dns}");
    let _redis = redis(&db);
    let server =
        dns.netns.spawn("dnsmasq -k -p 53 --no-resolv --no-hosts --address=/db.test/192.0.2.7 --user=root --pid-file=");
    eventually("names are resolved", || resolves(&frontend, &dns.v4()));
    for address in db.addresses() {
        assert!(pong(&backend, &address) && pong(&frontend, &address), "{address}");
    }
    cluster.apply(&policy("only-backends", ONLY_BACKENDS));
    for address in db.addresses() {
        assert!(pong(&backend, &address) && !pong(&frontend, &address), "{address}");
    }
    assert!(resolves(&frontend, &dns.v4()));
    cluster.apply(&policy("no-egress", "{podSelector: {matchLabels: {role: frontend}}, policyTypes: [Egress]}"));
    assert!(!resolves(&frontend, &dns.v4()) && resolves(&backend, &dns.v6()) && pong(&backend, &db.v4()));
    // A pod selected by a policy is isolated from its first packet on.
    cluster.apply(&policy("only-backends", ONLY_BACKENDS));
    let late = cluster.create("late", "{role: frontend}");
    assert!(!pong(&late, &db.v4()) && resolves(&late, &dns.v4()));
    // The node reaches its pods, and they reach the node.
    let node = cluster.lab.node_v4();
    assert!(cluster.lab.node.output(&format!("ping -n -c 1 -W 1 {}", late.v4())).status.success() && late.pings(&node));
    assert_eq!(cluster.runtime.check(&late), Ok(()));
    drop(server);
    // `cni install` takes the pod CIDRs from the vswitch.
    let [bin, conf, socket] =
        ["bin", "net.d", "admin.sock"].map(|name| cluster.lab.path(name).to_str().unwrap().to_owned());
    let words = ["cni", "install", "--bin-dir", &bin, "--conf-dir", &conf, "--socket", &socket, "--timeout", "5s"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_bulkhead")).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let written = std::fs::read_to_string(cluster.lab.path("net.d/05-bulkhead.conflist")).unwrap();
    assert!(
        written.contains("\"subnet\": \"10.244.1.0/24\"") && written.contains("\"subnet\": \"fd00:244:1::/64\""),
        "{written}"
    );
    cluster.lab.stop();
}

#[test]
fn the_first_packet_after_an_add_is_forwarded_and_two_hundred_pods_leave_nothing_behind() {
    require!();
    let (mut cluster, client) = with_client();
    let mut times = Vec::new();
    for round in 0..200 {
        let name = format!("pod-{round}");
        cluster.declare(&name, "{app: server}");
        // Pod objects usually arrive before the runtime acts. A state file is read with a short delay.
        let mut pod = Sandbox::new(&name);
        times.push(cluster.runtime.add(&mut pod));
        assert!(one_datagram(&pod, &client, 7), "the first packet that the pod of round {round} sends");
        assert!(one_datagram(&client, &pod, 7), "the first packet that the pod of round {round} is sent");
        cluster.delete(&pod);
    }
    let (middle, longest) = median(times);
    println!("ADD one after another: median {middle:?}, longest {longest:?}");
    eventually("only the client's port is left", || {
        cluster.ports().iter().filter(|port| port["kind"] == "pod").count() == 1
    });
    assert_eq!(cluster.lab.node.ip("-o link show type veth").matches("bulkhead-cni").count(), 1);
    cluster.lab.stop();
}

#[test]
fn twenty_pods_are_added_at_once_and_deleted_at_once() {
    require!();
    let (mut cluster, client) = with_client();
    for round in 0..3 {
        let names: Vec<String> = (0..20).map(|number| format!("pod-{round}-{number}")).collect();
        for name in &names {
            cluster.pods.insert(name.clone(), ("{app: server}".to_owned(), Vec::new()));
        }
        cluster.write();
        let mut pods: Vec<Sandbox> = names.iter().map(|name| Sandbox::new(name)).collect();
        let (start, runtime) = (Instant::now(), &cluster.runtime);
        std::thread::scope(|scope| {
            for pod in &mut pods {
                scope.spawn(move || runtime.add(pod));
            }
        });
        println!("20 at once: {:?}", start.elapsed());
        for pod in &pods {
            assert!(one_datagram(&client, pod, 7), "{}", pod.pod);
        }
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(move || runtime.del(pod));
            }
        });
        names.iter().for_each(|name| drop(cluster.pods.remove(name)));
        cluster.write();
        eventually("their ports are gone", || cluster.ports().iter().filter(|port| port["kind"] == "pod").count() == 1);
    }
    cluster.lab.stop();
}

#[test]
fn a_pod_that_the_api_does_not_know_yet_is_waited_for_and_then_tried_again() {
    require!();
    let mut cluster = Cluster::new();
    cluster.start();
    cluster.runtime.plugins[0]["timeout_seconds"] = 1.into();
    let mut pod = Sandbox::new("late");
    let error = cluster.runtime.try_add(&mut pod).unwrap_err();
    assert_eq!(error["code"], 11, "{error}");
    println!("{error}");
    assert!(cluster.port("default/late").is_none(), "{:?}", cluster.ports());
    cluster.runtime.plugins[0]["timeout_seconds"] = 20.into();
    let runtime = &cluster.runtime;
    let (lab, pods) = (&mut cluster.lab, &mut pod);
    std::thread::scope(|scope| {
        let adding = scope.spawn(move || runtime.add(pods));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!adding.is_finished(), "policy by labels is not known before the object is");
        lab.more_state = format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: late, namespace: default}}\nspec: {{nodeName: {}, containers: []}}\n",
            lab.node_name()
        );
        lab.write_state("");
        adding.join().unwrap();
    });
    assert_eq!(cluster.port("default/late").unwrap()["state"], "open");
    cluster.lab.stop();
}

#[test]
fn pods_outlive_the_vswitch_and_their_end_while_it_is_away_is_made_up_for() {
    require!("ping");
    let mut cluster = Cluster::new();
    cluster.start();
    let [a, b, c] = ["a", "b", "c"].map(|name| cluster.create(name, "{app: x}"));
    assert!(a.pings(&b.v4()) && a.pings(&c.v4()));
    let mut connections: Vec<_> = (0..200).map(|at| connection(&a, &b, 7000 + at)).collect();
    connections.iter_mut().for_each(assert_carries);
    cluster.lab.kill();
    // The vswitch is killed: ADD fails, and DEL succeeds.
    let mut new = Sandbox::new("new");
    assert_eq!(cluster.runtime.try_add(&mut new).unwrap_err()["code"], 11);
    cluster.runtime.del(&c);
    assert_eq!(std::fs::read_dir(cluster.lab.path("missed-deletions")).unwrap().count(), 1);
    cluster.pods.remove("c");
    cluster.start();
    for (from, to) in [(&a, &b), (&b, &a)] {
        eventually("pods of before talk again", || from.pings(&to.v4()) && from.pings(&to.v6()));
        assert_eq!(cluster.runtime.check(from), Ok(()));
    }
    connections.iter_mut().for_each(assert_carries);
    assert!(cluster.port("default/c").is_none(), "it has read of the end when it started");
    let folder = cluster.lab.path("missed-deletions");
    let is_missed = |path: &Path| path.extension().is_some_and(|extension| extension == "json");
    assert!(!std::fs::read_dir(folder).unwrap().any(|entry| is_missed(&entry.unwrap().path())));
    // The address of c is free, and the next pod gets it.
    let d = cluster.create("d", "{app: x}");
    assert!(one_datagram(&a, &d, 7));
    cluster.lab.stop();
}

#[test]
fn pods_of_another_plugin_are_judged_as_well() {
    require!("ping");
    require_plugins!();
    let mut cluster = Cluster::new();
    let mut ours = cluster.runtime.plugins.remove(0);
    let mut ipam = ours.as_object_mut().unwrap().shift_remove("ipam").unwrap();
    ipam["type"] = "host-local".into();
    ipam["ranges"].as_array_mut().unwrap().truncate(1);
    ipam["routes"] = serde_json::json!([{"dst": "0.0.0.0/0"}]);
    cluster.runtime.plugins = vec![serde_json::json!({"type": "ptp", "ipam": ipam}), ours];
    cluster.start();
    let [a, b] = ["a", "b"].map(|name| cluster.create(name, &format!("{{app: {name}}}")));
    assert!(one_datagram(&a, &b, 7) && one_datagram(&b, &a, 7));
    // The other plugin assigns the first address of the block to the node.
    let before = complaints(&cluster);
    assert!(
        before
            .iter()
            .any(|line| line.contains("10.244.1.1, the source address of masqueraded connections to Services")),
        "{before:?}"
    );
    cluster.apply(&policy("closed", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}"));
    assert!(!a.pings(&b.v4()) && b.pings(&a.v4()));
    assert_eq!(cluster.runtime.check(&a), Ok(()));
    // GC of another network removes nothing here, even if the interfaces belong to another plugin.
    let mut conf = cluster.runtime.plugins[1].clone();
    conf["cniVersion"] = "1.1.0".into();
    conf["cni.dev/valid-attachments"] = serde_json::json!([]);
    cluster.runtime.network = "storage".to_owned();
    assert_eq!(cluster.runtime.run("GC", &a, &conf), Ok(Value::Null));
    cluster.runtime.network = "pods".to_owned();
    assert!(cluster.port("default/a").is_some() && cluster.port("default/b").is_some());
    conf["cni.dev/valid-attachments"] = serde_json::json!([{"containerID": a.id, "ifname": "eth0"}]);
    assert_eq!(cluster.runtime.run("GC", &a, &conf), Ok(Value::Null));
    eventually("its port is gone", || cluster.port("default/b").is_none());
    assert!(cluster.port("default/a").is_some());
    cluster.delete(&a);
    cluster.delete(&b);
    eventually("their ports are gone", || cluster.ports().iter().all(|port| port["kind"] != "pod"));
    assert_eq!(complaints(&cluster), before, "pods that end are nothing to look at");
    cluster.lab.stop();
}

#[test]
fn a_pod_for_which_there_are_no_buffers_is_refused_with_the_number_that_is_enough() {
    require!();
    only_with_xdp!();
    let mut cluster = Cluster::new();
    // Two rings of 1,024 frames, for the host's port and one pod, and the frames in flight.
    cluster.lab.more_config = "workers: {frames: 4096}\n".to_owned();
    cluster.start();
    let first = cluster.create("first", "{app: x}");
    cluster.declare("second", "{app: x}");
    cluster.runtime.plugins[0]["timeout_seconds"] = 1.into();
    let mut second = Sandbox::new("second");
    let error = cluster.runtime.try_add(&mut second).unwrap_err();
    let details = error["details"].as_str().unwrap();
    for says in ["it needs 1024 receive buffers", "set workers.frames to at least 5120, plus 1024 for each"] {
        assert!(error["code"] == 11 && details.contains(says), "{error}");
    }
    // The frames that the deleted pod returned are enough for the next one.
    cluster.delete(&first);
    cluster.runtime.plugins[0]["timeout_seconds"] = 20.into();
    cluster.runtime.add(&mut second);
    cluster.lab.stop();
}

/// The warnings and errors of the log.
fn complaints(cluster: &Cluster) -> Vec<String> {
    let log = cluster.lab.log();
    let told = log.lines().filter(|line| line.contains(" warning: ") || line.contains(" error: "));
    told.map(str::to_owned).collect()
}

#[test]
fn pods_that_end_in_whatever_order_are_no_warning() {
    require!();
    let (mut cluster, client) = with_client();
    let before = complaints(&cluster);
    let [told, gone_before, gone_after] =
        ["told", "gone-before", "gone-after"].map(|name| cluster.create(name, "{app: server}"));
    for pod in [&told, &gone_before, &gone_after] {
        assert!(one_datagram(&client, pod, 7), "{}", pod.pod);
    }
    cluster.delete(&told);
    // Deleting a namespace also deletes its veth.
    let vanish = |pod: &Sandbox| drop(crate::lab::netns::ip(&format!("netns del {}", pod.netns.name())));
    vanish(&gone_before);
    eventually("its port is closed", || cluster.port("default/gone-before").unwrap()["state"] == "absent");
    cluster.delete(&gone_before);
    cluster.delete(&gone_after);
    vanish(&gone_after);
    // DEL also works for a pod whose ADD failed because the state does not know it.
    cluster.runtime.plugins[0]["timeout_seconds"] = 1.into();
    assert_eq!(cluster.runtime.try_add(&mut Sandbox::new("unknown")).unwrap_err()["code"], 11);
    eventually("only the client's port is left", || {
        cluster.ports().iter().filter(|port| port["kind"] == "pod").count() == 1
    });
    assert_eq!(complaints(&cluster), before, "{}", cluster.lab.log());
    cluster.lab.stop();
}
