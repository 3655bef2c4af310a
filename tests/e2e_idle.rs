//! An idle vswitch sleeps: its threads wait for events, however many ports there are and whichever way they came.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use bulkhead_dataplane::io::in_namespace;
use serde_json::json;

use crate::api_server::ApiServer;
use crate::e2e_added_ports::Plugin;
use crate::lab::Lab;
use crate::lab::netns::eventually_within;
use crate::require;

/// Number of pods. Each costs nothing, so a test with few shows what one with many would.
const PODS: usize = 6;
/// The time in which wake-ups are counted. A thread that polls wakes up dozens of times.
const TIME: Duration = Duration::from_secs(4);
/// Maximum number of wake-ups of a thread in this time: the kernel's late messages about the test's own interfaces.
const MOST: u64 = 4;

/// Threads that have nothing to do on an idle node. Workers look for expired sessions, `journal` writes that the vswitch is alive, and
/// `files` sees the events of the other tests' folders.
const SLEEPERS: [&str; 11] = [
    "addresses",
    "admin",
    "audit",
    "bulkhead",
    "interfaces",
    "kubernetes",
    "links",
    "policy",
    "ports",
    "signals",
    "stream",
];

/// Returns how often the process's threads have gone to sleep since their start, by the thread's name.
fn sleeps(lab: &Lab) -> BTreeMap<String, u64> {
    let tasks = format!("/proc/{}/task", lab.vswitch().id());
    let mut sleeps = BTreeMap::new();
    for task in fs::read_dir(tasks).unwrap() {
        let task = task.unwrap().path();
        // A thread may have ended.
        let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        *sleeps.entry(field("Name:").to_owned()).or_default() +=
            field("voluntary_ctxt_switches:").parse::<u64>().unwrap();
    }
    sleeps
}

/// Asserts that the threads without work sleep, once the vswitch has done all that a start entails.
fn sleeps_soundly(lab: &Lab) {
    lab.until_linked();
    // The pods' kernels send router solicitations for a while, which the stream reports.
    eventually_within(60, "the threads sleep", || {
        let before = sleeps(lab);
        std::thread::sleep(TIME);
        let after = sleeps(lab);
        let woken = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
        let awake: Vec<_> =
            SLEEPERS.iter().map(|name| (*name, woken(name))).filter(|(_, woken)| *woken > MOST).collect();
        println!("woken more than {MOST} times within {} s: {awake:?}", TIME.as_secs());
        awake.is_empty()
    });
}

#[test]
fn no_thread_polls_for_ports_of_the_configuration() {
    require!();
    only_with_tc!();
    let mut lab = Lab::new();
    for number in 0..PODS {
        lab.pod(&format!("pod{number}"), "{}");
    }
    lab.start("");
    sleeps_soundly(&lab);
    lab.stop();
}

#[test]
fn no_thread_polls_for_ports_that_a_plugin_has_added_on_a_node_with_an_api_server() {
    require!();
    only_with_tc!();
    let mut lab = Lab::new();
    lab.pod("configured", "{}");
    let namespace = Path::new("/run/netns").join(lab.node.name());
    let listener = in_namespace(&namespace, || TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let api = ApiServer::at(listener, 1);
    api.be_quiet();
    fs::write(lab.path("kubeconfig"), api.kubeconfig()).unwrap();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig}}".to_owned();
    let node = lab.node_name();
    api.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"podCIDRs": ["10.244.1.0/24"]}}));
    let pods: Vec<String> = (0..PODS).map(|number| format!("pod{number}")).collect();
    for pod in &pods {
        lab.container(pod, "{}");
        api.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "default"},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Pending"}}));
    }
    lab.start("");
    for pod in &pods {
        lab.add(pod).unwrap();
    }
    sleeps_soundly(&lab);
    lab.stop();
}
