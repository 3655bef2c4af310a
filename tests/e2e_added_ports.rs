//! Ports that a CNI plugin adds at the admin socket. The tests send the plugin's requests themselves.

use crate::require;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::api_server::ApiServer;
use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, inside, settle};
use crate::lab::netns::{Netns, eventually, run};
use crate::lab::{Lab, is_attached, policy};
use bulkhead_dataplane::io::in_namespace;
use serde_json::{Value, json};

/// An answer, or the code and message of a failure.
pub(crate) type Told = Result<Value, (String, String)>;

/// Sends a request to the vswitch on a new connection.
fn ask(socket: &Path, request: &str, arguments: &Value) -> Told {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    writeln!(stream, "{}", json!({"version": 1, "request": request, "arguments": arguments})).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let mut told: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    match told["failure"].take() {
        Value::Null => Ok(told["answer"].take()),
        failure => {
            let text = |field: &str| failure[field].as_str().unwrap().to_owned();
            Err((text("code"), text("message")))
        }
    }
}

/// A CNI plugin's actions for a lab's pods. A container has the name of its pod.
pub(crate) trait Plugin {
    fn socket(&self) -> PathBuf;
    /// Makes a pod as a plugin finds it: the host end is down, and the configuration does not list it.
    fn container(&mut self, name: &str, labels: &str);
    fn arguments(&self, name: &str) -> Value;
    fn add(&self, name: &str) -> Told;
    fn add_with(&self, name: &str, changes: Value) -> Told;
    fn check(&self, container: &str) -> Told;
    fn remove(&self, container: &str) -> bool;
    /// A Pod object without an address, as it is before its kubelet reports one.
    fn pending(&self, name: &str, labels: &str) -> String;
}

impl Plugin for Lab {
    fn socket(&self) -> PathBuf {
        self.path("admin.sock")
    }

    fn container(&mut self, name: &str, labels: &str) {
        self.pod(name, labels);
        unplugged(self, name);
    }

    fn arguments(&self, name: &str) -> Value {
        let pod = self.get(name);
        let mac = pod.netns.exec("cat /sys/class/net/eth0/address");
        json!({
            "container": name, "container_interface": "eth0", "pod": format!("default/{name}"), "interface": pod.interface,
            "netns": format!("/run/netns/{}", pod.netns.name()), "mac": mac.trim(), "addresses": [pod.v4, pod.v6],
            "timeout_seconds": 20,
        })
    }

    fn add(&self, name: &str) -> Told {
        ask(&self.socket(), "add_port", &self.arguments(name))
    }

    fn add_with(&self, name: &str, changes: Value) -> Told {
        ask(&self.socket(), "add_port", &changed(self.arguments(name), changes))
    }

    fn check(&self, container: &str) -> Told {
        ask(&self.socket(), "check_port", &json!({"container": container, "container_interface": "eth0"}))
    }

    fn remove(&self, container: &str) -> bool {
        let key = json!({"container": container, "container_interface": "eth0"});
        ask(&self.socket(), "remove_port", &key).unwrap()["removed"].as_bool().unwrap()
    }

    fn pending(&self, name: &str, labels: &str) -> String {
        let node = self.node_name();
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, labels: {labels}}}\n\
             spec: {{nodeName: {node}, containers: []}}\nstatus: {{phase: Pending}}\n"
        )
    }
}

/// Removes a pod from the configuration and sets the host end of its veth down.
fn unplugged(lab: &mut Lab, name: &str) {
    lab.node.ip(&format!("link set {} down", lab.get(name).interface));
    lab.configure(name, false);
}

fn changed(mut arguments: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { unreachable!() };
    arguments.as_object_mut().unwrap().extend(changes);
    arguments
}

/// A packet that a pod sends as soon as it may. It is sent only once and without ARP before, so a loss is detected.
struct FirstPacket {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl FirstPacket {
    fn prepare(lab: &Lab, from: &str, to: &str) -> Self {
        let (from, to) = (lab.get(from), lab.get(to));
        let mac = lab.node.exec(&format!("cat /sys/class/net/{}/address", from.interface));
        from.netns.ip(&format!("neigh replace 169.254.1.1 lladdr {} dev eth0 nud permanent", mac.trim()));
        let receiver = inside(to, || UdpSocket::bind((to.v4.as_str(), 0)).unwrap());
        let sender = inside(from, || UdpSocket::bind((from.v4.as_str(), 0)).unwrap());
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        Self { sender, receiver }
    }

    fn send(&self) {
        self.sender.send(b"first").unwrap();
    }

    fn arrives(&self) -> bool {
        self.receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        self.receiver.recv(&mut [0; 8]).is_ok()
    }
}

/// A policy: pod `a` accepts only packets from pods with `app: b`.
fn only_b() -> String {
    policy(
        "only-b",
        "{podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress], \
         ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}",
    )
}

#[test]
fn the_first_packet_after_the_answer_is_forwarded_and_judged_by_the_policies_of_the_pods_labels() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    for name in ["b", "c"] {
        lab.container(name, "{}");
        lab.hide(name, true);
        lab.more_state += &lab.pending(name, &format!("{{app: {name}}}"));
    }
    lab.start(&only_b());
    let to = lab.get("a").v4.clone();
    for (name, passes) in [("b", true), ("c", false)] {
        let pod = lab.get(name);
        assert!(lab.node.ip(&format!("link show {}", pod.interface)).contains("state DOWN"));
        let first = FirstPacket::prepare(&lab, name, "a");
        let answer = lab.add(name).unwrap();
        first.send();
        println!("{name}: {answer}");
        assert_eq!(first.arrives(), passes, "{name}: {}", lab.ask(&["status"]).1);
        assert_eq!((&answer["port"], &answer["state"]), (&format!("default/{name}").into(), &"open".into()));
        assert_eq!(answer["interface"], pod.interface.as_str());
        assert_eq!(lab.pings(name, &to), passes, "{name}");
        assert!(is_attached(&lab.node, &pod.interface));
        let checked = lab.check(name).unwrap();
        assert_eq!((&checked["state"], &checked["why"]), (&"open".into(), &Value::Null));
        assert_eq!(checked["addresses"], json!([pod.v4, pod.v6]));
    }
    assert!(lab.pings("a", &lab.get("b").v4), "what others send to it finds it");
    for _ in 0..10 {
        assert!(lab.remove("b"));
        lab.node.ip(&format!("link set {} down", lab.get("b").interface));
        let first = FirstPacket::prepare(&lab, "b", "a");
        lab.add("b").unwrap();
        first.send();
        assert!(first.arrives(), "{}", lab.ask(&["status"]).1);
    }
    // A repeated request returns the same answer at once.
    assert_eq!(lab.add("b").unwrap()["port"], "default/b");
    let (code, text) = lab.ask(&["status"]);
    assert!(code == Some(0) && text.contains("ports: 3 of 3 open; 2 of them were added"), "{text}");
    let (_, text) = lab.ask(&["ports", "-o", "json"]);
    let ports: Value = serde_json::from_str(&text).unwrap();
    let of_b = ports.as_array().unwrap().iter().find(|port| port["name"] == "default/b").unwrap();
    assert_eq!(of_b["container"], json!({"container": "b", "container_interface": "eth0"}));
    assert_eq!((&ports[0]["name"], &ports[0]["container"]), (&"default/a".into(), &Value::Null));
    assert!(lab.ask(&["ports"]).1.contains("CONTAINER"));
    // Reloading the configuration keeps the added ports.
    lab.more_config.push_str("denied: refuse\n");
    lab.write_config();
    eventually("the configuration is taken over", || lab.count("ports and routes of the configuration") > 0);
    assert_eq!(lab.check("b").unwrap()["state"], "open");
    assert!(lab.pings("b", &to));
    assert!(lab.remove("b") && !lab.remove("b"), "what is not there any more is no failure");
    assert!(!lab.pings("b", &to) && !is_attached(&lab.node, &lab.get("b").interface));
    assert_eq!(lab.check("b").unwrap_err().0, "unknown_port");
    let kept = ask(&lab.socket(), "retain_ports", &json!({"keep": []})).unwrap();
    assert_eq!(kept, json!({"removed": ["default/c"]}));
    assert!(lab.ask(&["status"]).1.contains("ports: 1 of 1 open\n"), "those of the configuration stay");
    lab.stop();
}

#[test]
fn a_peer_that_waits_for_a_pods_data_is_told_when_the_plugin_removes_the_pods_port() {
    require!("ip");
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.container("b", "{app: b}");
    lab.start("");
    lab.add("b").unwrap();
    echo(lab.get("b"), 7777);
    let mut stream = connect(lab.get("a"), lab.get("b"), 7777, PATIENCE).unwrap();
    settle(&mut stream);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let reading = std::thread::spawn(move || stream.read(&mut [0]).map_err(|error| error.kind()));
    assert!(lab.remove("b"));
    assert_eq!(reading.join().unwrap(), Err(ErrorKind::ConnectionReset));
    // The object is still there, and its pod has no port.
    let refused = connect(lab.get("a"), lab.get("b"), 7777, Duration::from_secs(20)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    lab.stop();
}

#[test]
fn a_pod_whose_object_is_late_waits_for_it_and_nobody_else_does() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    for name in ["b", "c"] {
        lab.container(name, "{app: b}");
        lab.hide(name, true);
    }
    lab.start(&only_b());
    let (code, message) = lab.add_with("c", json!({"timeout_seconds": 1})).unwrap_err();
    assert_eq!(code, "timeout");
    assert!(
        message.contains("default/c is not served") && message.contains("the pod's object is not known yet"),
        "{message}"
    );
    let (socket, arguments, lab) = (lab.socket(), lab.arguments("b"), &mut lab);
    std::thread::scope(|scope| {
        let adding = scope.spawn(move || ask(&socket, "add_port", &arguments));
        eventually("it waits", || lab.check("b").is_ok());
        let checked = lab.check("b").unwrap();
        assert!(checked["why"].as_str().unwrap().contains("the pod's object is not known yet"), "{checked}");
        let started = Instant::now();
        assert_eq!(lab.ask(&["status"]).0, Some(0));
        println!("a status while one waits took {:?}", started.elapsed());
        assert!(!adding.is_finished());
        // b's object has labels but no address; c's has both.
        lab.more_state += &lab.pending("b", "{app: b}");
        lab.hide("c", false);
        lab.apply(&only_b());
        let answer = adding.join().unwrap().unwrap();
        assert!(answer["waited_ms"].as_u64().unwrap() > 0, "{answer}");
        assert!(lab.pings("b", &lab.get("a").v4));
    });
    // The port opens although no request waits for it any more.
    assert_eq!(lab.check("c").unwrap()["state"], "open");
    assert!(lab.pings("c", &lab.get("a").v4));
    lab.stop();
}

/// Waits for several times the longest pause between two reconnects.
fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn with_an_api_server_a_pod_is_served_when_the_server_has_told_of_it_and_not_of_an_earlier_one() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("a", "{}");
    lab.container("b", "{}");
    let name = lab.node_name();
    let object = |pod: &str, uid: &str, labels: Value, status: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "default", "uid": uid, "labels": labels},
            "spec": {"nodeName": name, "containers": []}, "status": status})
    };
    let namespace = Path::new("/run/netns").join(lab.node.name());
    let listener = in_namespace(&namespace, || TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let api = ApiServer::at(listener, 1);
    api.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDRs": ["10.244.1.0/24"]}}));
    let v4 = &lab.get("a").v4.clone();
    api.put(object("a", "1", json!({"app": "a"}), json!({"phase": "Running", "podIP": v4, "podIPs": [{"ip": v4}]})));
    // An earlier pod of the same name, with other labels and an address that was returned.
    api.put(object(
        "b",
        "2",
        json!({"app": "x"}),
        json!({"phase": "Running", "podIP": "10.244.1.99", "podIPs": [{"ip": "10.244.1.99"}]}),
    ));
    api.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "only-b", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}]}}));
    std::fs::write(lab.path("kubeconfig"), api.kubeconfig()).unwrap();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig}}".to_owned();
    api.go_down();
    lab.start("");
    let (code, message) = lab.add_with("b", json!({"pod_uid": "3"})).unwrap_err();
    assert!(code == "not_ready" && message.contains("no state"), "{code} {message}");
    assert_eq!(lab.check("b").unwrap_err().0, "unknown_port", "it was not added");
    api.come_back();
    within("the first state", || lab.ask(&["status"]).0 == Some(0));
    let (code, message) = lab.add_with("b", json!({"pod_uid": "3", "timeout_seconds": 1})).unwrap_err();
    assert!(code == "timeout" && message.contains("of another pod with the same name"), "{code} {message}");
    std::thread::scope(|scope| {
        let (socket, arguments) = (lab.socket(), changed(lab.arguments("b"), json!({"pod_uid": "3"})));
        let adding = scope.spawn(move || ask(&socket, "add_port", &arguments));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!adding.is_finished());
        api.put(object("b", "3", json!({"app": "b"}), json!({"phase": "Pending"})));
        println!("{}", adding.join().unwrap().unwrap());
    });
    assert!(lab.pings("b", v4));
    // The kubelet reports the address, and the port stays open.
    let own = &lab.get("b").v4;
    api.put(object("b", "3", json!({"app": "c"}), json!({"phase": "Running", "podIP": own, "podIPs": [{"ip": own}]})));
    within("its new label counts", || !lab.pings("b", v4));
    assert_eq!(lab.check("b").unwrap()["addresses"], json!([own]));
    lab.stop();
}

#[test]
fn of_two_containers_of_a_pod_the_newer_one_is_served_and_the_older_one_again_when_that_is_gone() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    for name in ["b", "second"] {
        lab.container(name, "{}");
        lab.hide(name, true);
    }
    lab.more_state += &lab.pending("b", "{app: b}");
    lab.start(&only_b());
    let to = lab.get("a").v4.clone();
    lab.add("b").unwrap();
    assert!(lab.pings("b", &to));
    let answer = lab.add_with("second", json!({"pod": "default/b"})).unwrap();
    assert_eq!(
        (&answer["port"], &answer["interface"]),
        (&"default/b".into(), &lab.get("second").interface.as_str().into())
    );
    assert!(lab.pings("second", &to) && !lab.pings("b", &to));
    let older = lab.check("b").unwrap();
    assert!(
        older["state"] == "closed" && older["why"].as_str().unwrap().contains("a newer container of default/b"),
        "{older}"
    );
    assert!(is_attached(&lab.node, &lab.get("b").interface), "it is held and not left to the node's kernel");
    assert!(lab.ask(&["ports"]).1.contains("default/b@b/eth0"));
    let (code, message) = lab.add("b").unwrap_err();
    assert!(code == "refused" && message.contains("a newer container"), "{message}");
    // Removing the newer container's port does not affect other pods.
    assert!(lab.remove("second"));
    eventually("the older one has its place again", || lab.check("b").unwrap()["state"] == "open");
    assert!(lab.pings("b", &to));
    lab.stop();
}

#[test]
fn a_port_that_cannot_be_served_holds_back_no_other_one() {
    require!("ping");
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.container("b", "{app: b}");
    lab.container("c", "{app: c}");
    lab.start(&only_b());
    let configured = lab.get("a").interface.clone();
    let (v4, taken) = (lab.get("a").v4.clone(), lab.get("b").interface.clone());
    let bad = changed(lab.arguments("c"), json!({"container": "bad", "interface": "nothing", "timeout_seconds": 2}));
    let socket = lab.socket();
    std::thread::scope(|scope| {
        let late = scope.spawn(move || ask(&socket, "add_port", &bad));
        eventually("it waits", || lab.check("bad").is_ok());
        let answer = lab.add("b").unwrap();
        println!("beside a bad one: {answer}");
        assert!(!late.is_finished());
        assert!(lab.pings("b", &v4));
        for (changes, why) in [
            (json!({"interface": configured}), "is the interface of default/a in the configuration"),
            (json!({"interface": taken}), "is the interface of default/b (container b)"),
            (json!({"pod": "default/a"}), "the configuration has a port for default/a"),
            (json!({"addresses": [v4]}), "is the address of default/a, whose port is open"),
            (json!({"pod": "nobody"}), "is not namespace/name"),
        ] {
            let (code, message) = lab.add_with("c", changes).unwrap_err();
            assert!(code == "refused" && message.contains(why), "{code}: {message}");
        }
        let (code, message) = late.join().unwrap().unwrap_err();
        assert!(code == "timeout" && message.contains("no interface: nothing does not exist"), "{code}: {message}");
    });
    assert_eq!(lab.check("c").unwrap_err().0, "unknown_port");
    // The interface appears later.
    let interface = &lab.get("c").interface;
    lab.node.ip(&format!("link set {interface} name nothing"));
    eventually("it is served", || lab.check("bad").unwrap()["state"] == "open");
    lab.stop();
}

#[test]
fn added_ports_and_their_connections_outlive_the_process() {
    require!("ping", "mount");
    only_with_tc!();
    let mut lasting = Lasting::new();
    let lab = &mut lasting.lab;
    for name in ["b", "c"] {
        unplugged(lab, name);
    }
    lab.start("");
    lab.add("b").unwrap();
    lab.add("c").unwrap();
    echo(lab.get("c"), 6379);
    let mut stream = connect(lab.get("b"), lab.get("c"), 6379, PATIENCE).unwrap();
    settle(&mut stream);
    let kept = lab.path("ports-node-1.json");
    assert!(kept.exists());
    lab.kill();
    assert!(answers(&mut stream), "the kernel goes on with it");
    lab.start("");
    for name in ["b", "c"] {
        assert_eq!(lab.check(name).unwrap()["state"], "open", "{name}");
    }
    assert!(answers(&mut stream), "and so does the next process");
    assert!(lab.pings("a", &lab.get("b").v4) && lab.pings("c", &lab.get("b").v4));
    assert_eq!(lab.add("b").unwrap()["port"], "default/b", "the plugin asks again");
    assert!(answers(&mut stream), "which changes nothing");
    // Removing a port ends its sessions: the next container with the address inherits none.
    let sessions = || {
        let (_, text) = lab.ask(&["sessions", "--port", "default/c", "-o", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["matching"].clone()
    };
    assert_ne!(sessions(), 0);
    assert!(lab.remove("c"));
    eventually("its sessions have ended", || sessions() == 0);
    assert!(!answers(&mut stream));
    lab.add("c").unwrap();
    assert!(!answers(&mut stream), "what was is not picked up");
    assert!(answers(&mut connect(lab.get("b"), lab.get("c"), 6379, PATIENCE).unwrap()));
    // A damaged file is put aside with an error in the log. Ports of the configuration are not affected.
    lab.stop();
    std::fs::write(&kept, "{\"format\":\"bulkhead-added").unwrap();
    lab.start("");
    assert_eq!(lab.count("the added ports are lost"), 1);
    assert_eq!(lab.check("b").unwrap_err().0, "unknown_port");
    assert!(kept.with_extension("json.damaged").exists());
    lab.add("b").unwrap();
    assert!(lab.pings("b", &lab.get("a").v4));
    lab.stop();
}

/// Creates `count` veths named `v0`, `v1`, ... whose other ends are in one namespace. Both ends are down.
fn veths(lab: &Lab, count: usize) -> Netns {
    let inside = Netns::new("inside");
    let lines: String = (0..count)
        .map(|at| {
            format!(
                "link add v{at} type veth peer name c{at} netns {}\nlink set dev v{at} addrgenmode none\n",
                inside.name()
            )
        })
        .collect();
    let path = lab.path("batch");
    std::fs::write(&path, lines).unwrap();
    run("ip", &["-n", lab.node.name(), "-batch", path.to_str().unwrap()]);
    inside.shell("for link in $(ls /sys/class/net | grep ^c); do ip link set $link up; done");
    inside
}

/// The arguments of the request for container number `at`, with its pod and veth.
fn numbered(at: usize) -> Value {
    json!({"container": format!("container-{at}"), "container_interface": "eth0", "pod": format!("default/pod-{at}"),
        "interface": format!("v{at}"), "addresses": [format!("10.244.1.{}", 100 + at)], "timeout_seconds": 30})
}

/// Sends many requests at once, each on its own connection. Returns the sorted duration of each, and the total duration.
fn at_once(socket: &Path, request: &str, all: &[Value]) -> (Vec<Duration>, Duration) {
    let started = Instant::now();
    let mut each: Vec<Duration> = std::thread::scope(|scope| {
        let one = |arguments| {
            scope.spawn(move || {
                let started = Instant::now();
                ask(socket, request, arguments).unwrap();
                started.elapsed()
            })
        };
        let threads: Vec<_> = all.iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    each.sort_unstable();
    (each, started.elapsed())
}

fn key_of(arguments: &Value) -> Value {
    json!({"container": arguments["container"], "container_interface": arguments["container_interface"]})
}

#[test]
fn twenty_at_once_are_added_and_removed_again_and_again_and_nothing_is_left() {
    require!("ping");
    const AT_ONCE: usize = 20;
    const ROUNDS: usize = 10;
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.container("b", "{app: b}");
    lab.more_state = (0..AT_ONCE).map(|at| lab.pending(&format!("pod-{at}"), "{app: c}")).collect();
    lab.start(&only_b());
    lab.add("b").unwrap();
    let _inside = veths(&lab, AT_ONCE);
    let ports: Vec<Value> = (0..AT_ONCE).map(numbered).collect();
    let keys: Vec<Value> = ports.iter().map(key_of).collect();
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let (each, _) = at_once(&lab.socket(), "add_port", &ports);
        slowest = slowest.max(each[AT_ONCE - 1]);
        assert!(lab.pings("b", &lab.get("a").v4), "round {round}");
        at_once(&lab.socket(), "remove_port", &keys);
    }
    println!("{} ports, {AT_ONCE} at once: the slowest took {slowest:?}", AT_ONCE * ROUNDS);
    has_status(&lab, "ports: 2 of 2 open; 1 of them were added");
    for at in 0..AT_ONCE {
        assert!(!is_attached(&lab.node, &format!("v{at}")), "v{at} is given back");
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(lab.path("ports-node-1.json")).unwrap()).unwrap();
    assert_eq!(kept["ports"].as_array().unwrap().len(), 1, "{kept}");
    lab.stop();
}

/// Waits until the status contains this text. A status may be slightly old.
fn has_status(lab: &Lab, text: &str) {
    eventually(text, || lab.ask(&["status"]).1.contains(text));
}

#[test]
fn a_hundred_and_ten_are_added_at_once_and_all_are_open_again_after_a_kill() {
    require!();
    only_with_tc!();
    const PODS: usize = 110;
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.more_state = (0..PODS).map(|at| lab.pending(&format!("pod-{at}"), "{app: c}")).collect();
    lab.start(&only_b());
    let _inside = veths(&lab, PODS);
    let ports: Vec<Value> = (0..PODS).map(numbered).collect();
    let keys: Vec<Value> = ports.iter().map(key_of).collect();
    let mut one_by_one: Vec<Duration> = ports
        .iter()
        .map(|port| {
            let started = Instant::now();
            ask(&lab.socket(), "add_port", port).unwrap();
            started.elapsed()
        })
        .collect();
    one_by_one.sort_unstable();
    println!("one after another: median {:?}, slowest {:?}", one_by_one[PODS / 2], one_by_one[PODS - 1]);
    let (_, all) = at_once(&lab.socket(), "remove_port", &keys);
    println!("{PODS} removed at once: {all:?}");
    has_status(&lab, "ports: 1 of 1 open\n");
    let (each, all) = at_once(&lab.socket(), "add_port", &ports);
    println!("{PODS} at once: {all:?}, median {:?}", each[PODS / 2]);
    has_status(&lab, "ports: 111 of 111 open; 110 of them were added");
    lab.kill();
    let started = Instant::now();
    lab.start(&only_b());
    println!("{PODS} are open again after {:?}", started.elapsed());
    assert!(lab.log().contains("ready: node node-1, 111 of 111 ports open"), "it is ready when all are");
    lab.stop();
}
