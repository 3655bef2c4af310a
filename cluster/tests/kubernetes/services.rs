//! Services and endpoint slices: their batches are separate from policy, and a server that hides them removes no policy.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_cluster::kubernetes::{Changes, Kind, Settings};
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, Transport};
use bulkhead_control::service::{self, Resolver, Vip};
use bulkhead_control::source::{Options, ServiceKinds, Strictness, load_text};
use serde_json::{Value, json};

use super::api_server::{ApiServer, Fault};
use super::{CLOSED, Cluster, LONG, NODE, OPEN, impatient, node, pod, server};

fn service(name: &str, number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "y", "annotations": {"long": "x".repeat(99)}, "managedFields": [{}]},
        "spec": {"clusterIP": format!("10.96.0.{number}"), "ports": [{"port": 80, "targetPort": 8080}]}})
}

fn slice(service: &str, numbers: &[usize]) -> Value {
    let endpoint = |number: &usize| {
        json!({"addresses": [format!("10.1.0.{number}")], "nodeName": NODE, "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "p"}})
    };
    let endpoints: Vec<Value> = numbers.iter().map(endpoint).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "namespace": "y", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080}], "endpoints": endpoints})
}

/// The server of the other tests with two Services and their slices.
fn with_services(seed: u64) -> ApiServer {
    let server = server(seed);
    server.put_all(vec![service("a", 1), service("b", 2), slice("a", &[5, 6]), slice("b", &[7])]);
    server
}

fn following(server: ApiServer) -> Cluster {
    Cluster::with(server, Settings { services: ServiceKinds::Read, timing: impatient(), ..Settings::default() })
}

/// The objects that remain after applying all batches, by a short name.
fn replayed(batches: &[Changes]) -> BTreeMap<String, Object> {
    let mut known = BTreeMap::new();
    for event in batches.iter().flat_map(|batch| &batch.events) {
        match event {
            Event::Apply(object) => {
                let name = match object {
                    Object::Node(node) => format!("node {}", node.name),
                    Object::Service(service) => format!("service {}", service.name),
                    Object::EndpointSlice(slice) => format!("slice {}", slice.name),
                    other => panic!("{other:?} is none of the resolver's"),
                };
                known.insert(name, object.clone());
            }
            Event::DeleteNode(name) => drop(known.remove(&format!("node {name}"))),
            Event::DeleteService(name) => drop(known.remove(&format!("service {name}"))),
            Event::DeleteEndpointSlice(name) => drop(known.remove(&format!("slice {name}"))),
            other => panic!("{other:?} is none of the resolver's"),
        }
    }
    known
}

/// Waits until the batches add up to the server's objects as read from a file.
fn converge(cluster: &mut Cluster) {
    cluster.converge();
    let options = Options { strictness: Strictness::Lenient, services: ServiceKinds::Read, ..Options::default() };
    let loaded = load_text("state.json", &cluster.server.state(), options).unwrap();
    let is_wanted = |object: &Object| matches!(object, Object::Node(_) | Object::Service(_) | Object::EndpointSlice(_));
    let events = loaded.objects.into_iter().filter(is_wanted).map(Event::Apply).collect();
    let expected = replayed(&[Changes { events, ..Changes::default() }]);
    cluster.until("the server's Services", |cluster| replayed(&cluster.services) == expected);
}

/// The number of lists of a resource, counted by their first pages.
fn lists(cluster: &Cluster, resource: &str) -> usize {
    let is_list = |path: &&String| {
        path.contains(&format!("/{resource}?")) && !path.contains("watch") && !path.contains("continue")
    };
    cluster.server.requests().iter().filter(is_list).count()
}

#[test]
fn services_come_whole_with_their_nodes_and_then_as_they_change_and_policy_hears_nothing_of_them() {
    let mut cluster = following(with_services(80));
    converge(&mut cluster);
    let first = &cluster.services[0];
    assert!(first.is_whole && first.heard.is_none() && first.events.len() == 6, "{first:?}");
    let mut resolver = Resolver::new(NODE.into(), service::Settings::default());
    assert!(resolver.apply_batch(first.events.clone()).is_empty());
    assert_eq!(resolver.listed().ports.len(), 2);
    let vip = Vip { address: "10.96.0.1".parse().unwrap(), transport: Transport::Tcp, port: 80 };
    let (port, _) = resolver.vip(&vip).unwrap();
    assert_eq!(resolver.port(port).unwrap().cluster.len(), 2);

    cluster.server.put(slice("a", &[5]));
    converge(&mut cluster);
    cluster.server.delete("Service", "y", "b");
    cluster.server.delete("EndpointSlice", "y", "b-1");
    converge(&mut cluster);
    let later: Vec<&Event> = cluster.services[1..].iter().flat_map(|batch| &batch.events).collect();
    assert!(cluster.services[1..].iter().all(|batch| !batch.is_whole && batch.heard.is_some()));
    assert!(matches!(later[0], Event::Apply(Object::EndpointSlice(_))) && later.len() == 3, "{later:?}");
    assert_eq!(cluster.batches.len(), 1, "none of that is about policy: {:?}", &cluster.batches[1..]);
    let objects = cluster.objects();
    assert_eq!((objects[Kind::Service as usize].1, objects[Kind::EndpointSlice as usize].1), (Some(1), Some(1)));

    // A node belongs to both purposes, a pod only to policy.
    let mut zoned = node(1);
    zoned["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z"});
    cluster.server.put(zoned);
    converge(&mut cluster);
    let (services, policy) = (cluster.services.len(), cluster.batches.len());
    assert_eq!(policy, 2);
    cluster.server.put(pod("y", "new", 9, "db"));
    cluster.until("the pod", |cluster| cluster.batches.len() > policy);
    cluster.follow(Duration::from_millis(50));
    assert_eq!(cluster.services.len(), services);
    assert!(cluster.troubles.is_empty(), "{:?}", cluster.troubles);
    let health = cluster.follower.health().services.unwrap();
    assert!(health.is_connected && health.is_listed && health.age().unwrap() < LONG, "{health:?}");
}

#[test]
fn without_a_wish_for_services_nobody_asks_for_them() {
    let mut cluster = Cluster::new(with_services(81));
    cluster.converge();
    cluster.server.put(node(3));
    cluster.until("the node", |cluster| cluster.batches.len() > 1);
    assert!(cluster.services.is_empty() && cluster.follower.health().services.is_none());
    assert_eq!(cluster.objects()[Kind::Service as usize].1, None);
    let asked = cluster.server.requests().into_iter().find(|path| path.contains("services") || path.contains("slices"));
    assert_eq!(asked, None);
}

#[test]
fn a_server_that_does_not_show_services_takes_no_policy_away_and_says_what_to_do() {
    type Take = fn(&ApiServer, &str, bool);
    let (forbid, withdraw): (Take, Take) =
        (|server, kind, is_so| server.forbid(kind, is_so), |server, kind, is_so| server.serve(kind, !is_so));
    for (seed, kind, take_away, said) in [
        (
            82,
            "EndpointSlice",
            forbid,
            "{apiGroups: [\"discovery.k8s.io\"], resources: [endpointslices], verbs: [list, watch]}",
        ),
        (83, "Service", forbid, "{apiGroups: [\"\"], resources: [services], verbs: [list, watch]}"),
        (
            84,
            "EndpointSlice",
            withdraw,
            "no endpointslices of discovery.k8s.io/v1 or discovery.k8s.io/v1beta1\n  help: Services need Kubernetes 1.17",
        ),
    ] {
        let server = server(seed);
        take_away(&server, kind, true);
        let mut cluster = following(server);
        cluster.converge();
        assert!(!cluster.passes(OPEN, CLOSED) && cluster.passes(CLOSED, OPEN), "{kind}");
        cluster.until("trouble", |cluster| !cluster.troubles.is_empty());
        cluster.follow(Duration::from_millis(200));
        assert_eq!(cluster.troubles.len(), 1, "the error is reported once: {:?}", cluster.troubles);
        assert!(cluster.troubles[0].contains(said), "{:?}", cluster.troubles);
        let health = cluster.follower.health();
        assert!(health.is_connected && health.is_synced && health.last_error.is_none(), "{health:?}");
        assert!(health.age().unwrap() < LONG);
        let services = health.services.unwrap();
        assert!(!services.is_connected && !services.is_listed && services.age().is_none(), "{services:?}");
        assert_eq!(services.last_error.as_ref(), Some(&cluster.troubles[0]));
        assert!(cluster.services.is_empty(), "half of them would refuse connections");

        take_away(&cluster.server, kind, false);
        cluster.server.put_all(vec![service("a", 1), slice("a", &[5])]);
        converge(&mut cluster);
        assert!(cluster.services[0].is_whole && cluster.follower.health().services.unwrap().is_connected);

        // If the follower loses the right, the known objects stay.
        take_away(&cluster.server, kind, true);
        cluster.server.break_connections();
        cluster.until("trouble", |cluster| cluster.troubles.len() > 1);
        let gone = |event: &Event| matches!(event, Event::DeleteService(_) | Event::DeleteEndpointSlice(_));
        assert!(!cluster.services.iter().any(|batch| batch.events.iter().any(gone)));
        assert!(cluster.follower.health().services.unwrap().is_listed);
    }
}

/// The same slice as Kubernetes writes it before 1.21.
fn old_slice(service: &str, numbers: &[usize]) -> Value {
    let mut slice = slice(service, numbers);
    slice["apiVersion"] = "discovery.k8s.io/v1beta1".into();
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["topology"] = json!({"kubernetes.io/hostname": endpoint["nodeName"].take()});
    }
    slice
}

#[test]
fn an_old_server_has_its_endpoint_slices_read_and_an_upgrade_of_it_changes_none() {
    let server = server(89);
    server.set_old(true);
    server.put_all(vec![service("a", 1), service("b", 2), old_slice("a", &[5, 6]), old_slice("b", &[7])]);
    let mut cluster = following(server);
    converge(&mut cluster);
    let nodes = |cluster: &Cluster| -> Vec<_> {
        let slices = replayed(&cluster.services).into_values().filter_map(|object| match object {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        });
        slices.flat_map(|slice| slice.endpoints.iter().map(|one| one.node.clone()).collect::<Vec<_>>()).collect()
    };
    assert_eq!(nodes(&cluster), vec![Some(NODE.into()); 3]);
    cluster.server.put(old_slice("a", &[5]));
    converge(&mut cluster);
    cluster.server.break_connections();
    cluster.server.put(old_slice("b", &[7, 8]));
    converge(&mut cluster);
    // One list, which found the old version, and watches of it alone.
    assert_eq!(lists(&cluster, "v1/endpointslices"), 1);
    assert_eq!(lists(&cluster, "v1beta1/endpointslices"), 1);
    let wrong = |path: &String| path.contains("/v1/endpointslices?watch");
    assert!(!cluster.server.requests().iter().any(wrong));

    // An upgraded server has the same objects in the new version alone.
    let batches = cluster.services.len();
    cluster.server.set_old(false);
    cluster.server.put_all(vec![slice("a", &[5]), slice("b", &[7, 8])]);
    cluster.server.break_connections();
    cluster.until("the new version", |cluster| lists(cluster, "v1/endpointslices") == 2);
    cluster.server.put(slice("b", &[9]));
    converge(&mut cluster);
    assert_eq!(cluster.services.len(), batches + 1, "{:?}", &cluster.services[batches..]);
    assert!(cluster.follower.health().services.unwrap().is_connected);
}

#[test]
fn after_a_lost_place_services_are_listed_anew_and_only_what_differs_is_told() {
    let mut cluster = following(with_services(85));
    converge(&mut cluster);
    cluster.server.go_down();
    cluster.server.delete("Service", "y", "b");
    cluster.server.delete("EndpointSlice", "y", "b-1");
    cluster.server.put(slice("a", &[5, 6, 8]));
    cluster.server.forget();
    cluster.follow(Duration::from_millis(100));
    assert_eq!(cluster.services.len(), 1);
    cluster.server.come_back();
    converge(&mut cluster);
    let mut told: Vec<String> =
        cluster.services[1..].iter().flat_map(|batch| &batch.events).map(|event| format!("{event:?}")).collect();
    told.sort();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("Apply(EndpointSlice(") && told[1].starts_with("DeleteEndpointSlice("), "{told:?}");
    assert!(told[2].starts_with("DeleteService("), "{told:?}");
    assert_eq!((lists(&cluster, "services"), lists(&cluster, "endpointslices")), (2, 2));
}

#[test]
fn a_bookmark_is_where_a_watch_goes_on() {
    let mut cluster = following(with_services(86));
    converge(&mut cluster);
    // Changes of other kinds raise the server's version. This watch learns of that only from bookmarks.
    cluster.server.put(pod("y", "new", 9, "db"));
    let version = cluster.server.version();
    cluster.until("the pod", |cluster| cluster.batches.len() > 1);
    // Several times the interval of bookmarks.
    cluster.follow(Duration::from_secs(1));
    cluster.server.compact(0);
    cluster.server.break_connections();
    cluster.server.put(slice("a", &[6]));
    converge(&mut cluster);
    let goes_on =
        |path: &String| path.contains("/endpointslices?watch") && path.contains(&format!("resourceVersion={version}&"));
    assert!(cluster.server.requests().iter().any(goes_on));
    assert_eq!((lists(&cluster, "services"), lists(&cluster, "endpointslices")), (1, 1), "listed once");
}

#[test]
fn a_faulty_slice_loses_its_faulty_endpoints_and_a_faulty_service_is_left_out() {
    let mut cluster = following(with_services(87));
    converge(&mut cluster);
    let mut wrong = slice("a", &[5, 6]);
    wrong["endpoints"][0]["addresses"][0] = "nowhere".into();
    let mut unclear = service("b", 2);
    unclear["spec"]["clusterIP"] = "nowhere".into();
    cluster.server.put_all(vec![wrong, unclear]);
    converge(&mut cluster);
    let last = cluster.services.last().unwrap();
    let told = last.warnings.to_string();
    assert!(last.faulty == 2 && told.contains("EndpointSlice y/a-1") && told.contains("Service y/b"), "{told}");
    cluster.server.put(pod("y", "new", 9, "db"));
    cluster.until("the pod", |cluster| cluster.batches.len() > 1);
    let policy = cluster.batches.last().unwrap();
    assert!(policy.faulty == 0 && policy.warnings.is_empty(), "policy is not concerned");
}

/// Injects each fault alone and often, during the first lists and afterwards.
#[test]
fn services_survive_every_fault_of_the_server() {
    for (seed, fault) in (90..).zip(Fault::ALL) {
        let server = with_services(seed);
        server.set_faults(&[fault], 30);
        let mut cluster = following(server);
        converge(&mut cluster);
        assert!(cluster.services[0].is_whole && cluster.services[0].events.len() == 6, "{fault:?}");
        for round in 0..6 {
            cluster.server.put(slice("a", &[5, 6 + round % 3]));
            cluster.server.put(service(&format!("new-{round}"), 10 + round));
            cluster.follow(Duration::from_millis(20));
            cluster.server.delete("Service", "y", &format!("new-{round}"));
            cluster.follow(Duration::from_millis(20));
        }
        converge(&mut cluster);
        let lost = |event: &Event| match event {
            Event::DeleteService(name) => !name.name.starts_with("new-"),
            Event::DeleteEndpointSlice(_) | Event::DeleteNode(_) => true,
            _ => false,
        };
        let lost: Vec<_> =
            cluster.services.iter().flat_map(|batch| &batch.events).filter(|event| lost(event)).collect();
        assert!(lost.is_empty(), "{fault:?}: {lost:?} were there all the time");
    }
}

/// The streaming parser skips unused fields. This must not change the objects.
#[test]
fn the_clusters_of_the_known_answers_read_from_a_server_as_from_a_file() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let path = env::var_os("BULKHEAD_CASES").map_or_else(beside, PathBuf::from).join("service_cases.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
        println!("skipped: {} is absent; set BULKHEAD_CASES", path.display());
        return;
    };
    let cases: Value = serde_json::from_str(&text).unwrap();
    let mut cluster = following(ApiServer::start(88));
    let (mut before, mut services) = (Vec::<Value>::new(), 0);
    for objects in cases["objects"].as_object().unwrap().values() {
        let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        for gone in &before {
            let kind = gone["kind"].as_str().unwrap();
            assert!(cluster.server.delete(kind, &text(gone, "namespace"), &text(gone, "name")), "{gone}");
        }
        before = objects.as_object().unwrap().values().flat_map(|list| list.as_array().unwrap().clone()).collect();
        services += before.iter().filter(|object| object["kind"] == "Service").count();
        cluster.server.put_all(before.clone());
        converge(&mut cluster);
    }
    assert!(services > 70 && cluster.services.len() > 50, "{services} Services, {} batches", cluster.services.len());
}
