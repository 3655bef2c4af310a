//! Memory use while following a large cluster, against a bound. Ignored by default because it takes long; run it with
//! `cargo test --release -p bulkhead-cluster --test kubernetes memory -- --ignored --nocapture --test-threads 1`

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bulkhead_cluster::kubernetes::{Access, Follower, Notice, Purpose, Settings};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::service::{self, Resolver};
use bulkhead_control::source::ServiceKinds;
use serde_json::json;

use super::api_server::ApiServer;

const PODS: usize = 100_000;
const BOUND_MIB: u64 = 300;

/// A field of /proc/self/status, in MiB.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "takes long; see the module"]
fn a_hundred_thousand_pods_fit() {
    let server = ApiServer::start(1);
    server.synthesize(PODS);
    for number in 0..400 {
        let name = format!("team-{number}");
        server.put(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": name}}}),
        );
        let peer = json!({"namespaceSelector": {"matchLabels": {"team": format!("team-{}", (number + 1) % 400)}}});
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]});
        server.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "p", "namespace": name}, "spec": spec}));
    }
    for number in 0..1000 {
        let address = format!("172.16.{}.{}", number / 250, number % 250 + 1);
        server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}")},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}}));
    }
    let path = std::env::temp_dir().join(format!("bulkhead-memory-{}", std::process::id()));
    std::fs::write(&path, server.kubeconfig()).unwrap();
    let before = memory("VmRSS");
    let (tell, notices) = channel();
    let started = Instant::now();
    let access = Access::Kubeconfig { path: path.clone(), context: None };
    let follower =
        Follower::start(Settings { access, ..Settings::default() }, move |notice| drop(tell.send(notice))).unwrap();
    let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
    while notices.recv_timeout(Duration::from_secs(300)).unwrap() != Notice::Changed(Purpose::Policy) {}
    println!("listed after {:?}: {} MiB", started.elapsed(), memory("VmRSS") - before);
    let batch = follower.take(Purpose::Policy).unwrap().unwrap();
    assert_eq!(batch.events.len(), PODS + 1800);
    pipeline.apply_batch(batch.events).unwrap();
    println!("compiled after {:?}: {} MiB", started.elapsed(), memory("VmRSS") - before);
    let lists = follower.health().lists;
    server.forget();
    while follower.health().lists < lists + 4 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (now, peak) = (memory("VmRSS") - before, memory("VmHWM") - before);
    println!("listed again after {:?}: {now} MiB, {peak} MiB at most, the server's pages included", started.elapsed());
    std::fs::remove_file(&path).unwrap();
    assert!(now <= BOUND_MIB, "{now} MiB");
}

const SERVICES: usize = 10_000;
/// The bound in MiB: 64 for the resolver with its objects, as documented, and the rest for this test's client and server.
const SERVICES_BOUND_MIB: u64 = 80;

/// The follower keeps the objects to compare them with the server's events. The resolver shares them.
#[test]
#[ignore = "takes long; see the module"]
fn ten_thousand_services_fit() {
    let server = ApiServer::start(1);
    server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}));
    server.synthesize_services(SERVICES);
    let path = std::env::temp_dir().join(format!("bulkhead-memory-of-services-{}", std::process::id()));
    std::fs::write(&path, server.kubeconfig()).unwrap();
    let before = memory("RssAnon");
    let (tell, notices) = channel();
    let access = Access::Kubeconfig { path: path.clone(), context: None };
    let settings = Settings { access, services: ServiceKinds::Read, ..Settings::default() };
    let follower = Follower::start(settings, move |notice| drop(tell.send(notice))).unwrap();
    while notices.recv_timeout(Duration::from_secs(300)).unwrap() != Notice::Changed(Purpose::Services) {}
    println!("listed: {} MiB", memory("RssAnon") - before);
    let mut resolver = Resolver::new("node-1".into(), service::Settings::default());
    let batch = follower.take(Purpose::Services).unwrap().unwrap();
    assert_eq!(batch.events.len(), 2 * SERVICES + 1);
    resolver.apply_batch(batch.events);
    assert_eq!(resolver.listed().ports.len(), SERVICES);
    println!("resolved: {} MiB", memory("RssAnon") - before);
    let lists = follower.health().lists;
    server.forget();
    while follower.health().lists < lists + 6 {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(follower.take(Purpose::Services).is_none(), "nothing has changed");
    let now = memory("RssAnon") - before;
    println!("listed again: {now} MiB, the server's pages included");
    std::fs::remove_file(&path).unwrap();
    assert!(now <= SERVICES_BOUND_MIB, "{now} MiB");
}
