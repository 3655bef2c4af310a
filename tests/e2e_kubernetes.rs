//! A vswitch that follows an API server behind its own uplink, so that it forwards its own connection to the server.

use crate::require;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::api_server::ApiServer;
use crate::lab::Lab;
use crate::lab::lasting::{PATIENCE, connect, echo, inside};
use crate::lab::netns::run;
use crate::objects::{beside_a_server, deny, node, pod};
use bulkhead_dataplane::io::in_namespace;
use serde_json::{Value, json};

const SERVER: &str = "172.18.0.100";

/// The time limit for changes, several times the longest pause between reconnects. The tests check that changes take effect, not how soon.
const LONG: Duration = Duration::from_secs(60);

fn within(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// A lab with two pods, and a server outside that has their objects.
fn lab() -> (Lab, ApiServer) {
    let mut lab = beside_a_server(&["client", "server"]);
    let namespace = Path::new("/run/netns").join(lab.outside.as_ref().unwrap().name());
    let listener = in_namespace(&namespace, || TcpListener::bind((SERVER, 6443)).unwrap()).unwrap();
    let server = ApiServer::at(listener, 1);
    server.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    server.put(node(&lab));
    for name in ["client", "server"] {
        server.put(pod(&lab, name));
    }
    std::fs::write(lab.path("kubeconfig"), server.kubeconfig()).unwrap();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig}}".to_owned();
    (lab, server)
}

fn reaches_server(lab: &Lab) -> bool {
    lab.node.output(&format!("ping -n -c 1 -W 1 {SERVER}")).status.success()
}

#[test]
fn a_node_reaches_its_server_through_the_vswitch_and_the_servers_policies_take_effect() {
    require!("ping");
    let (mut lab, api) = lab();
    api.go_down();
    lab.start("");
    let server = lab.get("server").v4.clone();
    // Before the first state the node reaches the world, but its pods reach nothing.
    assert!(lab.count("ready: ") == 1 && lab.count("denying: no state is loaded") == 1, "{}", lab.log());
    within("the node's own traffic", || reaches_server(&lab));
    assert!(!lab.pings("client", &server) && !lab.pings("client", SERVER) && !lab.pings("client", &lab.node_v4()));
    assert!(!lab.outside.as_ref().unwrap().output(&format!("ping -n -c 1 -W 1 {server}")).status.success());
    let summary = lab.summary();
    assert_eq!((&summary["source"]["connected"], &summary["source"]["synced"]), (&false.into(), &false.into()));

    api.come_back();
    within("the first state", || lab.pings("client", &server));
    assert!(lab.pings("client", SERVER) && reaches_server(&lab));
    let summary = lab.summary();
    assert_eq!((&summary["source"]["synced"], &summary["source"]["objects"]["Pod"]), (&true.into(), &2.into()));

    api.put(deny());
    println!("created, in force after {:?}", within("the policy", || !lab.pings("client", &server)));
    assert!(lab.pings("server", &lab.get("client").v4));
    api.delete("NetworkPolicy", "default", "deny");
    println!("deleted, in force after {:?}", within("the policy's end", || lab.pings("client", &server)));

    // While the server is away, the last known state stays in force. Changes take effect when the server is back.
    api.go_down();
    within("the loss is logged", || lab.count("the last good state, ") > 0);
    api.put(deny());
    assert!(lab.pings("client", &server) && lab.pings("client", SERVER));
    let summary = lab.summary();
    assert!(
        summary["source"]["connected"] == false && summary["source"]["age_seconds"].as_f64() > Some(0.0),
        "{summary:#}"
    );
    api.come_back();
    within("the change", || !lab.pings("client", &server));
    lab.stop();
}

#[test]
fn a_start_without_the_server_goes_on_with_the_last_good_state_where_that_is_wanted() {
    // Following the server does not depend on how the vswitch attaches.
    only_with_tc!();
    require!("ping");
    let (mut lab, api) = lab();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig, when_unreachable: last_good, folder: kept}}".to_owned();
    api.put(deny());
    lab.start("");
    let (client, server) = (lab.get("client").v4.clone(), lab.get("server").v4.clone());
    within("the state", || lab.pings("server", &client));
    let kept = lab.path("kept").join(format!("last-good-{}.gz", lab.node_name()));
    within("it is kept", || kept.exists());
    lab.stop();
    api.go_down();
    api.delete("NetworkPolicy", "default", "deny");

    lab.start("");
    assert_eq!(lab.count("the last good state is in force: 5 objects"), 1, "{}", lab.log());
    within("the last good state", || lab.pings("server", &client));
    assert!(!lab.pings("client", &server), "the policy of then");
    api.come_back();
    within("the server's state", || lab.pings("client", &server));
    lab.stop();

    // A damaged file is not used.
    let mut bytes = std::fs::read(&kept).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&kept, bytes).unwrap();
    api.go_down();
    lab.start("");
    assert_eq!(lab.count("the last good state is not used"), 1, "{}", lab.log());
    assert!(!lab.pings("server", &client));
    lab.stop();
}

/// Allows only TCP port 80 to the pod `server`.
fn cilium() -> Value {
    json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]}]}})
}

/// Denies TCP port 80 to the pod `server`, before other policies.
fn calico() -> Value {
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy", "metadata": {"name": "default.web", "namespace": "default"},
        "spec": {"order": 1, "selector": "app == 'server'", "types": ["Ingress"], "ingress": [
            {"action": "Deny", "protocol": "TCP", "destination": {"ports": [80]}}, {"action": "Allow"}]}})
}

#[test]
fn policies_of_cilium_and_calico_at_the_server_are_counted_audited_and_enforced() {
    // Following the server does not depend on how the vswitch attaches.
    only_with_tc!();
    require!("ping");
    let (mut lab, api) = lab();
    api.serve("ciliumnetworkpolicies", true);
    api.put(cilium());
    let with = |lab: &mut Lab, how: &str| {
        lab.state = format!("{{kubernetes: {{kubeconfig: kubeconfig}}, foreign_policies: {how}}}");
        lab.start("");
    };
    let connects = |lab: &Lab, port: u16| connect(lab.get("client"), lab.get("server"), port, PATIENCE).is_ok();
    echo(lab.get("server"), 80);
    echo(lab.get("server"), 81);

    with(&mut lab, "off");
    within("the first state", || connects(&lab, 81));
    within("the warning", || lab.count("policies of other products have no effect: 1 CiliumNetworkPolicy") == 1);
    assert_eq!(lab.summary()["state"]["unenforced_kinds"], 1, "{:#}", lab.summary());
    lab.stop();

    with(&mut lab, "audit");
    within("the first state", || connects(&lab, 81));
    let report = || lab.ask(&["audit", "report"]);
    within("the report", || report().1.contains("CiliumNetworkPolicy default/web"));
    within("the connection that it would deny", || report().0 == Some(1));
    lab.stop();

    api.serve("calico-networkpolicies", true);
    with(&mut lab, "enforce");
    within("the first state", || connects(&lab, 80));
    assert!(!connects(&lab, 81));
    let explain = |port: &str| {
        let words = ["explain", "--live", "--from", "default/client", "--to", "default/server", "--port", port];
        lab.ask(&words)
    };
    let (code, told) = explain("81");
    assert!(code == Some(1) && told.contains("CiliumNetworkPolicy default/web"), "{told}");
    let (code, told) = lab.ask(&["wait", "ciliumnetworkpolicy/web"]);
    assert!(code == Some(0) && told.contains("CiliumNetworkPolicy default/web is enforced"), "{told}");
    api.put(calico());
    within("the policy of Calico", || !connects(&lab, 80));
    let (code, told) = explain("80");
    assert!(code == Some(1) && told.contains("Calico NetworkPolicy default/web"), "{told}");
    api.delete("calico-networkpolicies", "default", "default.web");
    api.delete("ciliumnetworkpolicies", "default", "web");
    within("the end of both", || connects(&lab, 80) && connects(&lab, 81));
    lab.stop();
}

/// A container's view of its cluster: environment variables, and the files of a service account in the folder where a kubelet mounts them.
struct ServiceAccount {
    folder: PathBuf,
}

impl ServiceAccount {
    /// Makes the folder with the CA certificate for a server at this address. Returns the path of the server's certificate and key.
    fn new(folder: PathBuf, address: &str) -> (Self, PathBuf) {
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.parent().unwrap().join(name).to_str().unwrap().to_owned();
        let [ca_key, ca, key, certificate, both] =
            ["ca.key", "ca.crt", "server.key", "server.crt", "server.pem"].map(path);
        let make = |subject: &str, key: &str, certificate: &str, more: &[&str]| {
            let words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", subject];
            run("openssl", &[&words[..], &["-keyout", key, "-out", certificate], more].concat());
        };
        make("/CN=authority", &ca_key, &ca, &[]);
        let name = format!("subjectAltName=IP:{address}");
        let more = ["-CA", &ca, "-CAkey", &ca_key, "-addext", &name, "-addext", "basicConstraints=critical,CA:FALSE"];
        make("/CN=server", &key, &certificate, &more);
        let text = |path: &str| std::fs::read_to_string(path).unwrap();
        std::fs::write(&both, text(&key) + &text(&certificate)).unwrap();
        std::fs::write(folder.join("ca.crt"), text(&ca)).unwrap();
        std::fs::write(folder.join("namespace"), "kube-system").unwrap();
        (Self { folder }, both.into())
    }

    /// Replaces the token atomically by swapping a symbolic link, as a kubelet does.
    fn renew(&self, token: &str) {
        let (file, link) = (format!("..{token}"), self.folder.join("..new"));
        std::fs::write(self.folder.join(&file), token).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::fs::rename(link, self.folder.join("token")).unwrap();
    }

    /// A script that runs the vswitch in the environment of the pod's container.
    fn container(&self, host: &str, port: u16) -> PathBuf {
        let program = self.folder.parent().unwrap().join("container");
        let (folder, bulkhead) = (self.folder.display(), env!("CARGO_BIN_EXE_bulkhead"));
        // The script uses its own mount namespace, in which /var contains only the service account.
        let script = format!(
            "#!/bin/sh\nexec unshare --mount sh -ec '\n  mount -t tmpfs tmpfs /var\n  \
             at=/var/run/secrets/kubernetes.io/serviceaccount\n  mkdir -p $at\n  mount --bind {folder} $at\n  \
             export KUBERNETES_SERVICE_HOST={host} KUBERNETES_SERVICE_PORT={port}\n  exec {bulkhead} \"$@\"' sh \"$@\"\n"
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        program
    }
}

#[test]
fn in_a_pod_of_the_cluster_the_service_account_is_enough_and_its_renewed_token_is_used() {
    // Following the server does not depend on how the vswitch attaches.
    only_with_tc!();
    require!("ping", "openssl", "socat", "unshare", "mount");
    let (mut lab, api) = lab();
    let (account, server) = ServiceAccount::new(lab.path("account"), SERVER);
    account.renew("first");
    api.admit("first");
    let outside = lab.outside.as_ref().unwrap();
    let listen = format!("OPENSSL-LISTEN:443,bind={SERVER},fork,reuseaddr,verify=0,cert={}", server.display());
    let _tls = outside.serve(&format!("socat {listen} TCP:{SERVER}:6443"), 443);
    lab.state = "{kubernetes: {}}".to_owned();
    lab.launch(&account.container(SERVER, 443), "", &[]);
    lab.wait_until_ready();
    let server = lab.get("server").v4.clone();
    within("the first state", || lab.pings("client", &server));
    assert_eq!(lab.summary()["source"]["connected"], true);

    // The server rejects the old token. The kubelet writes the new one shortly afterwards.
    api.admit("second");
    api.put(deny());
    within("the refusal is logged", || lab.count("the server rejects the credential (401)") > 0);
    assert!(lab.pings("client", &server), "what was known last stays in force");
    account.renew("second");
    println!("with the new token after {:?}", within("the policy", || !lab.pings("client", &server)));
    assert_eq!(lab.summary()["source"]["connected"], true);
    lab.stop();
}

/// The rate of events when a large cluster restarts all its pods.
const EVENTS_PER_SECOND: u32 = 10_000;

/// Pods of another node, selected by the policy's peer labels.
const STRANGERS: u32 = 1_000;

/// A pod of another node whose label decides whether policy allows it.
fn stranger(at: u32, is_let_in: bool) -> Value {
    let address = format!("10.244.{}.{}", 2 + at / 250, at % 250 + 1);
    let labels = json!({"tier": if is_let_in { "front" } else { "back" }});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("stranger-{at}"), "namespace": "default", "labels": labels},
        "spec": {"nodeName": "node-2", "containers": [{"name": "main", "image": "none"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
}

#[test]
fn ten_thousand_pod_events_a_second_cost_no_packet() {
    // Following the server does not depend on how the vswitch attaches.
    only_with_tc!();
    require!("ping");
    let (mut lab, api) = lab();
    // All packets go through a worker.
    lab.more_config = "flow_cache: false\n".to_owned();
    let from = json!([{"podSelector": {"matchLabels": {"tier": "front"}}}, {"podSelector": {"matchLabels": {"app": "client"}}}]);
    api.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "front", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": ["Ingress"], "ingress": [{"from": from}]}}));
    api.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "marked", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"marked": "yes"}}, "policyTypes": ["Ingress"]}}));
    (0..STRANGERS).for_each(|at| api.put(stranger(at, true)));
    lab.start("");
    let (client, server) = (lab.get("client"), lab.get("server"));
    within("the first state", || lab.pings("client", &server.v4) && lab.pings("server", &client.v4));
    let receiver = inside(server, || UdpSocket::bind((server.v4.as_str(), 0)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let sender = inside(client, || UdpSocket::bind((client.v4.as_str(), 0)).unwrap());
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let is_over = AtomicBool::new(false);
    let (sent, (received, longest)) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            let start = Instant::now();
            while !is_over.load(Ordering::Relaxed) && start.elapsed() < 2 * LONG {
                sender.send(b"x").unwrap();
                sent += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        let receiving = scope.spawn(|| {
            let (mut received, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
            while receiver.recv(&mut [0; 8]).is_ok() {
                received += 1;
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            (received, longest)
        });
        let (start, events) = (Instant::now(), 3 * EVENTS_PER_SECOND);
        for event in 0..events {
            api.put(stranger(event % STRANGERS, event / STRANGERS % 2 == 1));
            let due = start + Duration::from_secs(1) / EVENTS_PER_SECOND * event;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        println!("{events} events in {:?}", start.elapsed());
        // Events are processed in order, so this last change shows that all earlier ones were processed.
        let mut last = pod(&lab, "client");
        last["metadata"]["labels"]["marked"] = "yes".into();
        api.put(last);
        println!("the last one after {:?}", within("the last one", || !lab.pings("server", &client.v4)));
        is_over.store(true, Ordering::Relaxed);
        (sending.join().unwrap(), receiving.join().unwrap())
    });
    println!("{received} of {sent} packets, the longest time without one {longest:?}");
    assert!(sent > 500 && received == sent, "{received} of {sent}");
    lab.stop();
}
