//! Follows an API server with injected faults: the known state converges to the server's, is never incomplete, and never opens a closed
//! pod.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "support/api_server.rs"]
mod api_server;
#[path = "kubernetes/foreign.rs"]
mod foreign;
#[path = "kubernetes/memory.rs"]
mod memory;
#[path = "kubernetes/services.rs"]
mod services;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use api_server::{ApiServer, Fault};
use bulkhead_classifier::{Action, Key};
use bulkhead_cluster::kubernetes::{Access, Changes, Follower, Kind, Notice, Purpose, Settings, Timing};
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Enforcement, Object};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::source::{ForeignKinds, Options, Strictness, load_text};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Time limit for each condition that a test waits for.
const LONG: Duration = Duration::from_secs(60);

fn impatient() -> Timing {
    Timing {
        gather: Duration::from_millis(2),
        first_pause: Duration::from_millis(5),
        longest_pause: Duration::from_millis(50),
        contact: Duration::from_millis(60),
        answer: Duration::from_secs(2),
        page: Duration::from_secs(2),
        page_size: 3,
        watch_seconds: 5,
        silence: Duration::from_secs(2),
    }
}

/// A follower with its server, and everything that it has delivered.
struct Cluster {
    server: ApiServer,
    follower: Follower,
    notices: Receiver<Notice>,
    troubles: Vec<String>,
    pipeline: Pipeline,
    batches: Vec<Changes>,
    /// The batches of Services and endpoint slices.
    services: Vec<Changes>,
    refused: Vec<String>,
    /// What the follower has counted of policies that it does not read.
    unread: Vec<Vec<(Kind, Option<usize>)>>,
    /// How policies of other products are read.
    foreign: ForeignKinds,
    folder: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

impl Cluster {
    fn new(server: ApiServer) -> Self {
        Self::with(server, Settings { timing: impatient(), ..Settings::default() })
    }

    fn with(server: ApiServer, settings: Settings) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bulkhead-kubernetes-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("kubeconfig");
        std::fs::write(&path, server.kubeconfig()).unwrap();
        let (tell, notices) = channel();
        let access = Access::Kubeconfig { path, context: None };
        let foreign = settings.foreign;
        let follower = Follower::start(Settings { access, ..settings }, move |notice| drop(tell.send(notice))).unwrap();
        Self {
            server,
            follower,
            notices,
            troubles: Vec::new(),
            pipeline: Pipeline::new(Scope::Node(NODE.into())).auditing(Enforcement::Enforce),
            batches: Vec::new(),
            services: Vec::new(),
            refused: Vec::new(),
            unread: Vec::new(),
            foreign,
            folder,
        }
    }

    /// Handles pending notices, and those that arrive within `moment`.
    fn follow(&mut self, moment: Duration) {
        let end = Instant::now() + moment;
        while let Ok(notice) = self.notices.recv_timeout(end.saturating_duration_since(Instant::now())) {
            match notice {
                Notice::Trouble(_, text) => self.troubles.push(text),
                Notice::Connected(_) => {}
                Notice::Unread(counts) => self.unread.push(counts),
                Notice::Changed(Purpose::Services) => {
                    self.services.extend(self.follower.take(Purpose::Services).map(Result::unwrap));
                }
                Notice::Changed(Purpose::Policy) => match self.follower.take(Purpose::Policy) {
                    Some(Ok(batch)) => {
                        self.pipeline.apply_batch(batch.events.clone()).unwrap();
                        self.batches.push(batch);
                    }
                    Some(Err(errors)) => self.refused.push(errors.to_string()),
                    None => {}
                },
            }
        }
        assert!(!self.follower.is_dead());
    }

    /// Handles notices until the condition holds. Panics after [`LONG`].
    fn until(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) {
        let end = Instant::now() + LONG;
        while !holds(self) {
            assert!(Instant::now() < end, "{what} does not come: {:?} {:?}", self.follower.health(), self.troubles);
            self.follow(Duration::from_millis(5));
        }
    }

    /// Waits until the delivered state has the same verdicts as the server's objects read from a file.
    fn converge(&mut self) {
        let expected = verdicts(&from_scratch(&self.server.state(), self.foreign));
        self.until("the server's state", |cluster| {
            !cluster.batches.is_empty() && verdicts(&cluster.pipeline) == expected
        });
    }

    fn passes(&self, from: &str, to: &str) -> bool {
        passes(&self.pipeline, from, to, 80)
    }

    fn objects(&self) -> Vec<(Kind, Option<usize>)> {
        self.follower.health().objects
    }
}

fn from_scratch(state: &str, foreign: ForeignKinds) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Node(NODE.into())).auditing(Enforcement::Enforce);
    let options = Options { strictness: Strictness::Lenient, foreign, ..Options::default() };
    pipeline.resync(load_text("state.json", state, options).unwrap().objects).unwrap();
    pipeline
}

/// Every address that a pod or a node may have, and one address outside the cluster.
fn addresses() -> Vec<IpAddr> {
    let pods = (1..=PODS).map(|number| format!("10.1.0.{number}"));
    pods.chain(["192.0.2.1", "192.0.2.2", "198.51.100.7"].map(str::to_owned))
        .map(|text| text.parse().unwrap())
        .collect()
}

fn passes(pipeline: &Pipeline, from: &str, to: &str, port: u16) -> bool {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let tables = pipeline.node_tables(NODE).unwrap();
    let interface = tables.interfaces.iter().find(|interface| interface.addresses.contains(&to)).unwrap();
    let key = Key::new(from, to, 6, 40_000, port);
    tables.tables[interface.table].tables.lookup(&key).action() == Action::Allow
}

/// Per interface, whether each packet of a fixed set is allowed.
fn verdicts(pipeline: &Pipeline) -> BTreeMap<String, Vec<bool>> {
    let Some(tables) = pipeline.node_tables(NODE) else { return BTreeMap::new() };
    let all = addresses();
    let of = |interface: &bulkhead_control::renderer::acl::Interface| {
        let table = &tables.tables[interface.table].tables;
        let keys = all.iter().flat_map(|&from| all.iter().map(move |&to| (from, to)));
        let keys = keys.flat_map(|(from, to)| [80, 81].map(|port| Key::new(from, to, 6, 40_000, port)));
        keys.map(|key| table.lookup(&key).action() == Action::Allow).collect()
    };
    let name = |interface: &bulkhead_control::renderer::acl::Interface| {
        format!("{:?} {:?}", interface.attachment, interface.addresses)
    };
    tables.interfaces.iter().map(|interface| (name(interface), of(interface))).collect()
}

const PODS: usize = 12;

fn namespace(name: &str, team: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team,
        "kubernetes.io/metadata.name": name}}})
}

fn node(number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}")},
        "spec": {"podCIDRs": [format!("10.{number}.0.0/16")]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("192.0.2.{number}")}]}})
}

fn pod(namespace: &str, name: &str, number: usize, app: &str) -> Value {
    let address = format!("10.1.0.{number}");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"app": app},
            "managedFields": [{"manager": "kubelet"}], "uid": "u"},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "startTime": format!("2026-01-01T00:00:{number:02}Z")}})
}

fn deny_all(namespace: &str) -> Value {
    policy(namespace, "deny-all", &json!({"podSelector": {}, "policyTypes": ["Ingress"]}))
}

fn policy(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn cluster_policy(name: &str, action: &str, priority: u64, app: &str) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": {"tier": "Admin", "priority": priority,
        "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}},
        "ingress": [{"name": "r", "action": action, "from": [{"namespaces": {}}]}]}})
}

/// A server with two namespaces: policy denies all ingress of the pods of `x`, and none of `y`. Its lists take several pages.
fn server(seed: u64) -> ApiServer {
    let server = ApiServer::start(seed);
    for object in [namespace("x", "red"), namespace("y", "blue"), node(1), node(2), deny_all("x")] {
        server.put(object);
    }
    for number in 1..=4 {
        server.put(pod("x", &format!("closed-{number}"), number, "web"));
        server.put(pod("y", &format!("open-{number}"), number + 4, "db"));
    }
    server
}

const CLOSED: &str = "10.1.0.1";
const OPEN: &str = "10.1.0.5";

#[test]
fn the_state_comes_whole_and_changes_come_as_they_happen() {
    let mut cluster = Cluster::new(server(1));
    cluster.converge();
    assert!(cluster.batches[0].is_whole && cluster.batches.len() == 1, "{:?}", cluster.batches);
    assert!(!cluster.passes(OPEN, CLOSED) && cluster.passes(CLOSED, OPEN));
    let pages =
        cluster.server.requests().iter().filter(|path| path.contains("pods") && path.contains("continue")).count();
    assert_eq!(pages, 2, "8 pods in pages of 3");
    cluster.server.delete("NetworkPolicy", "x", "deny-all");
    cluster.converge();
    assert!(cluster.passes(OPEN, CLOSED));
    cluster.server.put(deny_all("y"));
    cluster.converge();
    assert!(!cluster.passes(CLOSED, OPEN));
    assert!(cluster.batches[1..].iter().all(|batch| !batch.is_whole && batch.events.len() == 1));
    let health = cluster.follower.health();
    assert!(health.is_connected && health.is_synced && health.age().unwrap() < LONG, "{health:?}");
    assert_eq!(health.objects[Kind::Pod as usize], (Kind::Pod, Some(8)));
    assert_eq!(health.objects[Kind::ClusterNetworkPolicy as usize].1, None, "the server does not have it");
    assert!(cluster.troubles.is_empty(), "{:?}", cluster.troubles);
}

#[test]
fn what_changes_nothing_is_no_batch() {
    let mut cluster = Cluster::new(server(2));
    cluster.converge();
    for _ in 0..3 {
        let mut again = pod("x", "closed-1", 1, "web");
        again["metadata"]["annotations"] = json!({"unrelated": "yes"});
        cluster.server.put(again);
        cluster.follow(Duration::from_millis(50));
    }
    // Listing everything again delivers no batch either.
    let lists = cluster.follower.health().lists;
    cluster.server.forget();
    cluster.server.break_connections();
    cluster.until("a list", |cluster| cluster.follower.health().lists >= lists + 4);
    cluster.follow(Duration::from_millis(100));
    assert_eq!(cluster.batches.len(), 1, "{:?}", &cluster.batches[1..]);
}

#[test]
fn what_vanishes_while_nobody_watches_is_gone_with_the_next_list_and_nothing_else_is() {
    let mut cluster = Cluster::new(server(3));
    cluster.converge();
    cluster.server.go_down();
    cluster.server.delete("Pod", "y", "open-2");
    cluster.server.put(pod("y", "open-9", 9, "db"));
    cluster.server.forget();
    cluster.follow(Duration::from_millis(100));
    assert_eq!(cluster.batches.len(), 1);
    let health = cluster.follower.health();
    assert!(!health.is_connected && health.is_synced && health.last_error.is_some(), "{health:?}");
    assert!(!cluster.passes(OPEN, CLOSED) && cluster.passes(CLOSED, OPEN), "the last good state is known");
    cluster.server.come_back();
    cluster.converge();
    let events: Vec<&Event> = cluster.batches[1..].iter().flat_map(|batch| &batch.events).collect();
    assert!(
        matches!(&events[..], [Event::DeletePod(gone), Event::Apply(Object::Pod(new))] if &*gone.name == "open-2" && &*new.name.name == "open-9"),
        "{events:?}"
    );
    cluster.until("contact", |cluster| cluster.follower.health().is_connected);
}

/// Injects each fault alone and often, during the first lists and afterwards.
#[test]
fn no_fault_makes_half_a_state_or_opens_anything_and_all_are_survived() {
    for (seed, fault) in (10..).zip(Fault::ALL) {
        let server = server(seed);
        server.set_faults(&[fault], 30);
        let mut cluster = Cluster::new(server);
        cluster.converge();
        let first = &cluster.batches[0];
        assert_eq!(first.events.len(), 13, "{fault:?}: all objects, {first:?}");
        assert_eq!(cluster.batches.len(), 1, "{fault:?}: {:?}", &cluster.batches[1..]);
        for round in 0..12 {
            cluster.server.put(pod("y", "changing", 9, if round % 2 == 0 { "web" } else { "db" }));
            cluster.server.put(pod("x", &format!("new-{round}"), 10, "web"));
            cluster.follow(Duration::from_millis(20));
            cluster.server.delete("Pod", "x", &format!("new-{round}"));
            cluster.follow(Duration::from_millis(20));
            assert!(!cluster.passes(OPEN, CLOSED), "{fault:?}");
        }
        cluster.converge();
        let happened = cluster.server.happened();
        assert!(happened.get(&format!("{fault:?}")).copied().unwrap_or_default() > 0, "{fault:?} did not happen");
        let stable = |event: &Event| match event {
            Event::DeletePod(name) => !name.name.starts_with("new-") && &*name.name != "changing",
            Event::DeletePolicy(_) | Event::DeleteNamespace(_) | Event::DeleteNode(_) => true,
            _ => false,
        };
        let lost: Vec<_> =
            cluster.batches.iter().flat_map(|batch| &batch.events).filter(|event| stable(event)).collect();
        assert!(lost.is_empty(), "{fault:?}: {lost:?} were there all the time");
        assert!(cluster.refused.is_empty(), "{:?}", cluster.refused);
    }
}

#[test]
fn nothing_is_handed_over_before_all_kinds_are_known() {
    for kind in ["Namespace", "Node", "Pod", "NetworkPolicy"] {
        let server = server(30);
        server.forbid(kind, true);
        let mut cluster = Cluster::new(server);
        cluster.until("trouble", |cluster| !cluster.troubles.is_empty());
        cluster.follow(Duration::from_millis(100));
        assert!(cluster.batches.is_empty() && cluster.follower.take(Purpose::Policy).is_none(), "{kind}");
        assert_eq!(cluster.troubles.len(), 1, "the error is reported once: {:?}", cluster.troubles);
        assert!(cluster.troubles[0].contains("verbs: [list, watch]"), "{:?}", cluster.troubles);
        cluster.server.forbid(kind, false);
        cluster.converge();
    }
}

#[test]
fn cluster_policies_come_and_go_with_their_kind() {
    let server = server(40);
    let mut cluster = Cluster::new(server);
    cluster.converge();
    cluster.server.put(cluster_policy("deny", "Deny", 1, "db"));
    assert!(cluster.passes(CLOSED, OPEN));
    cluster.server.serve("ClusterNetworkPolicy", true);
    cluster.until("the policy", |cluster| !cluster.passes(CLOSED, OPEN));
    assert_eq!(cluster.objects()[Kind::ClusterNetworkPolicy as usize].1, Some(1));
    cluster.converge();
    cluster.server.put(cluster_policy("deny", "Accept", 1, "web"));
    cluster.converge();
    assert!(cluster.passes(OPEN, CLOSED), "before NetworkPolicy");
    cluster.server.serve("ClusterNetworkPolicy", false);
    cluster.until("its end", |cluster| !cluster.passes(OPEN, CLOSED));
    assert_eq!(cluster.objects()[Kind::ClusterNetworkPolicy as usize].1, None);
}

#[test]
fn a_kind_that_is_there_and_may_not_be_read_holds_the_first_state_back_unless_it_is_ignored() {
    let forbidden = |seed| {
        let server = server(seed);
        server.serve("AdminNetworkPolicy", true);
        server.forbid("AdminNetworkPolicy", true);
        server
    };
    let mut cluster = Cluster::new(forbidden(50));
    cluster.until("trouble", |cluster| !cluster.troubles.is_empty());
    cluster.follow(Duration::from_millis(100));
    assert!(cluster.batches.is_empty());
    assert!(cluster.troubles[0].contains("resources: [adminnetworkpolicies]"), "{:?}", cluster.troubles);
    let ignored = ["AdminNetworkPolicy".parse().unwrap()].into();
    let settings = Settings { ignored, timing: impatient(), ..Settings::default() };
    let mut cluster = Cluster::with(forbidden(51), settings);
    cluster.converge();
    assert!(cluster.troubles.is_empty(), "{:?}", cluster.troubles);
}

#[test]
fn an_object_that_cannot_be_read_holds_back_no_other_one() {
    let mut cluster = Cluster::new(server(60));
    cluster.converge();
    cluster.server.put(policy("y", "typo", &json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingres": []})));
    cluster.server.put(pod("x", "new", 9, "web"));
    cluster.converge();
    let last = cluster.batches.last().unwrap();
    assert_eq!(last.faulty, 1);
    let told = last.warnings.to_string();
    assert!(told.contains("NetworkPolicy y/typo") && told.contains("ingres"), "{told}");
    assert!(!cluster.passes(CLOSED, OPEN), "it isolates");
    cluster.server.delete("NetworkPolicy", "y", "typo");
    cluster.converge();
    assert!(cluster.passes(CLOSED, OPEN) && cluster.batches.last().unwrap().warnings.is_empty());
}

#[test]
fn a_cluster_policy_that_nothing_can_stand_for_holds_back_the_state_until_it_is_mended() {
    let server = server(61);
    server.serve("ClusterNetworkPolicy", true);
    let mut cluster = Cluster::new(server);
    cluster.converge();
    let mut wrong = cluster_policy("odd", "Deny", 1, "db");
    wrong["spec"]["tier"] = "Other".into();
    cluster.server.put(wrong);
    cluster.until("the refusal", |cluster| !cluster.refused.is_empty());
    assert!(cluster.refused[0].contains("ClusterNetworkPolicy odd"), "{:?}", cluster.refused);
    assert!(cluster.passes(CLOSED, OPEN), "what was known stays");
    cluster.server.put(cluster_policy("odd", "Deny", 1, "db"));
    cluster.converge();
    assert!(!cluster.passes(CLOSED, OPEN));
}

#[test]
fn a_burst_is_few_batches() {
    let mut cluster = Cluster::new(server(70));
    cluster.converge();
    for round in 0..500 {
        cluster.server.put(pod("y", "open-1", 5, if round % 2 == 0 { "web" } else { "db" }));
    }
    cluster.server.put(pod("y", "last", 12, "db"));
    cluster.converge();
    assert!(cluster.batches.len() < 250, "{} batches", cluster.batches.len());
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

fn random_change(rng: &mut Rng, server: &ApiServer) {
    let space = rng.pick(&["x", "y", "z"]);
    let name = rng.pick(&["a", "b", "c", "d"]);
    let selector = |rng: &mut Rng| match rng.below(3) {
        0 => json!({}),
        _ => json!({"matchLabels": {"app": rng.pick(&["web", "db"])}}),
    };
    match rng.below(12) {
        0..4 => {
            let number = usize::try_from(rng.below(PODS as u64 - 4)).unwrap() + 5;
            let app = rng.pick(&["web", "db", "cache"]);
            server.put(pod(space, name, number, app));
        }
        4..6 => drop(server.delete("Pod", space, name)),
        6 => server.put(namespace(space, rng.pick(&["red", "blue"]))),
        7 => {
            let space = rng.pick(&["y", "z"]);
            server.delete("Namespace", "", space);
        }
        8 | 9 => {
            let (subject, from, teams) = (selector(rng), selector(rng), rng.pick(&["red", "blue"]));
            let peer = json!({"podSelector": from, "namespaceSelector": {"matchLabels": {"team": teams}}});
            let port = if rng.below(2) == 0 { 80 } else { 81 };
            let rule = json!({"from": [peer], "ports": [{"port": port}]});
            let spec = json!({"podSelector": subject, "policyTypes": ["Ingress"], "ingress": [rule]});
            let misspelt = json!({"podSelector": {}, "ingres": []});
            server.put(policy(space, name, if rng.below(10) == 0 { &misspelt } else { &spec }));
        }
        10 => drop(server.delete("NetworkPolicy", space, name)),
        _ => {
            let action = rng.pick(&["Accept", "Deny", "Pass"]);
            let app = rng.pick(&["web", "db"]);
            if rng.below(2) == 0 {
                // Cluster policies accept only traffic to `db`: the pods that this test checks must stay closed.
                let app = if action == "Accept" { "db" } else { app };
                server.put(cluster_policy(name, action, rng.below(100), app));
            } else {
                server.delete("ClusterNetworkPolicy", "", name);
            }
        }
    }
}

/// Combines random objects, random faults, server outages and forgotten events.
#[test]
fn after_any_history_the_tables_are_those_of_the_servers_objects() {
    let mut happened = BTreeMap::new();
    let mut batches = 0;
    let has_enough = |batches: usize, faults: &BTreeMap<_, u64>| batches > 50 && faults.len() >= Fault::ALL.len() / 2;
    // A busy machine merges more changes into one batch, and needs more histories.
    for seed in 0..30 {
        if seed >= 6 && has_enough(batches, &happened) {
            break;
        }
        let mut rng = Rng(seed);
        let server = server(seed);
        server.serve("ClusterNetworkPolicy", true);
        server.set_faults(&Fault::ALL, 12);
        let mut cluster = Cluster::new(server);
        for _ in 0..25 {
            for _ in 0..rng.below(8) {
                random_change(&mut rng, &cluster.server);
            }
            match rng.below(12) {
                0 => cluster.server.forget(),
                1 => cluster.server.break_connections(),
                2 => {
                    cluster.server.go_down();
                    cluster.follow(Duration::from_millis(30));
                    random_change(&mut rng, &cluster.server);
                    cluster.server.come_back();
                }
                _ => {}
            }
            cluster.follow(Duration::from_millis(rng.below(30)));
            if cluster.pipeline.node_tables(NODE).is_some() && !cluster.batches.is_empty() {
                assert!(!cluster.passes("198.51.100.7", CLOSED), "seed {seed}: what is closed all the time was open");
            }
        }
        // Faults continue at a low rate; the state must converge nevertheless.
        cluster.server.set_faults(&Fault::ALL, 4);
        cluster.converge();
        let opened = cluster
            .batches
            .iter()
            .flat_map(|batch| &batch.events)
            .any(|event| matches!(event, Event::DeletePolicy(name) if &*name.name == "deny-all"));
        assert!(!opened, "seed {seed}");
        assert!(cluster.refused.is_empty(), "{:?}", cluster.refused);
        batches += cluster.batches.len();
        for (fault, count) in cluster.server.happened() {
            *happened.entry(fault).or_insert(0) += count;
        }
    }
    println!("{batches} batches, faults: {happened:?}");
    // Another test covers each fault. Which faults occur here depends on the timing of requests and changes.
    assert!(has_enough(batches, &happened), "{batches} batches, {happened:?}");
}
