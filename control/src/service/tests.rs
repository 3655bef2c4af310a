//! Tests of single rules of the resolver. `control/tests/services.rs` has the known answers and the comparison with a naive reference.

use super::*;
use crate::cache::Event;
use crate::fixtures::name;
use crate::object::{
    ClusterService, Endpoint, EndpointPort, EndpointSlice, HostPort, Labels, Node, Object, Pod, ServicePort, ZONE_LABEL,
};

fn service(text: &str, ip: &str) -> ClusterService {
    ClusterService {
        name: name(text),
        created: None,
        proxy: None,
        labels: Default::default(),
        selector: Default::default(),
        cluster_ips: vec![ip.parse().unwrap()],
        external_ips: vec![],
        balancer_ips: vec![],
        ports: vec![ServicePort { name: "http".into(), transport: Transport::Tcp, port: 80, node_port: None }],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: None,
        health_check_port: None,
    }
}

fn endpoint(address: &str, ready: bool) -> Endpoint {
    let address = address.parse().unwrap();
    Endpoint { address, node: Some("n".into()), ready, serving: ready, terminating: false, hints: None }
}

fn slice(text: &str, service: &str, endpoints: Vec<Endpoint>) -> Event {
    let ports = vec![EndpointPort { name: "http".into(), transport: Transport::Tcp, port: 8080 }];
    let slice = EndpointSlice { name: name(text), service: Some(service.into()), headless: false, ports, endpoints };
    Event::Apply(Object::EndpointSlice(slice.into()))
}

fn apply(resolver: &mut Resolver, service: ClusterService) -> Changes {
    resolver.apply(Event::Apply(Object::Service(service.into())))
}

fn listed() -> Resolver {
    let mut resolver = Resolver::new("n".into(), Settings::default());
    resolver.listed();
    resolver
}

fn vip(text: &str) -> Vip {
    let socket: SocketAddr = text.parse().unwrap();
    Vip { address: socket.ip(), transport: Transport::Tcp, port: socket.port() }
}

fn owner(resolver: &Resolver, text: &str) -> Option<String> {
    let (id, _) = resolver.vip(&vip(text))?;
    Some(resolver.port(id)?.name.owner.to_string())
}

#[test]
fn nothing_is_known_before_all_is_listed() {
    let mut resolver = Resolver::new("n".into(), Settings::default());
    assert!(apply(&mut resolver, service("x/a", "10.96.0.1")).is_empty());
    let client = Client { address: "10.0.0.1".parse().unwrap(), place: Place::Pod };
    let to = "10.96.0.1".parse().unwrap();
    assert_eq!((resolver.decide(client, to, Some((Transport::Tcp, 80))), resolver.epoch()), (None, 0));
    let changes = resolver.listed();
    assert_eq!((changes.ports.len(), changes.vips.len(), resolver.epoch()), (1, 1, 1));
    assert_eq!(resolver.decide(client, to, Some((Transport::Tcp, 80))).unwrap().answer, Answer::NoEndpoint);
    assert!(resolver.listed().is_empty());
}

#[test]
fn a_flip_of_one_endpoint_tells_its_service_port_and_itself_and_nothing_else() {
    let mut resolver = listed();
    apply(&mut resolver, service("x/a", "10.96.0.1"));
    apply(&mut resolver, service("x/b", "10.96.0.2"));
    let both = |ready| vec![endpoint("10.0.0.1", true), endpoint("10.0.0.2", ready)];
    resolver.apply(slice("x/a-1", "a", both(true)));
    resolver.apply(slice("x/b-1", "b", both(true)));
    let (a, _) = resolver.vip(&vip("10.96.0.1:80")).unwrap();
    let before = resolver.port(a).unwrap().clone();
    let changes = resolver.apply(slice("x/a-1", "a", both(false)));
    let second = before.cluster[1];
    let expected =
        Changes { ports: [a].into(), backends: [second].into(), backend_ports: [a].into(), ..Changes::default() };
    assert_eq!(changes, expected);
    assert_eq!(*resolver.port(a).unwrap().cluster, before.cluster[..1]);
    assert!(!resolver.backend(second).serving);
    assert!(resolver.apply(slice("x/a-1", "a", both(false))).is_empty(), "the same again");
}

#[test]
fn a_backend_that_comes_back_is_another_one() {
    let mut resolver = listed();
    apply(&mut resolver, service("x/a", "10.96.0.1"));
    resolver.apply(slice("x/a-1", "a", vec![endpoint("10.0.0.1", true)]));
    let (id, _) = resolver.vip(&vip("10.96.0.1:80")).unwrap();
    let first = resolver.port(id).unwrap().cluster[0];
    let incarnation = resolver.backend(first).incarnation;
    // A backend keeps its id while others are added.
    resolver.apply(slice("x/a-1", "a", vec![endpoint("10.0.0.0", true), endpoint("10.0.0.1", true)]));
    assert_eq!(resolver.port(id).unwrap().cluster[1], first);
    resolver.apply(slice("x/a-1", "a", vec![]));
    assert_eq!(resolver.backend_count(), 0);
    resolver.apply(slice("x/a-1", "a", vec![endpoint("10.0.0.0", true), endpoint("10.0.0.1", true)]));
    let again: Vec<BackendId> = resolver.port(id).unwrap().cluster.to_vec();
    assert!(again.contains(&first) && resolver.backend(first).incarnation == incarnation + 1);
}

#[test]
fn a_vip_is_that_of_the_stronger_kind_then_of_the_older_service_then_of_the_first_name_in_every_order() {
    let created = |second: u8| Timestamp::parse(&format!("2026-01-01T00:00:{second:02}Z"));
    let external = |text: &str, ip: &str, second: Option<u8>| ClusterService {
        created: second.and_then(created),
        external_ips: vec!["192.0.2.1".parse().unwrap()],
        ..service(text, ip)
    };
    let old = external("x/z", "10.96.0.1", Some(1));
    let new = external("x/a", "10.96.0.2", Some(2));
    let ageless = [external("x/b", "10.96.0.3", None), external("x/c", "10.96.0.4", None)];
    let own = service("x/own", "192.0.2.1");
    let all = [own, old, new, ageless[0].clone(), ageless[1].clone()];
    for turn in 0..all.len() {
        let mut resolver = listed();
        for at in 0..all.len() {
            apply(&mut resolver, all[(at + turn) % all.len()].clone());
        }
        for (at, expected) in ["x/own", "x/z", "x/a", "x/b", "x/c"].into_iter().enumerate() {
            assert_eq!(owner(&resolver, "192.0.2.1:80").as_deref(), Some(expected), "turn {turn}");
            let changes = resolver.apply(Event::DeleteService(all[at].name.clone()));
            assert!(changes.vips.contains(&vip("192.0.2.1:80")));
        }
        assert_eq!((owner(&resolver, "192.0.2.1:80"), resolver.vips().count()), (None, 0));
    }
    // A Service that is deleted and created again under its name counts as new.
    let mut resolver = listed();
    apply(&mut resolver, external("x/z", "10.96.0.1", Some(1)));
    apply(&mut resolver, external("x/a", "10.96.0.2", Some(2)));
    let changes = apply(&mut resolver, external("x/z", "10.96.0.1", Some(3)));
    assert!(changes.vips.contains(&vip("192.0.2.1:80")));
    assert_eq!(owner(&resolver, "192.0.2.1:80").as_deref(), Some("x/a"));
}

#[test]
fn nothing_is_left_of_what_is_gone() {
    let mut resolver = listed();
    for round in 0..3 {
        let balanced = ClusterService {
            balancer_ips: vec!["198.51.100.1".parse().unwrap()],
            health_check_port: Some(30_000),
            ..service("x/a", "10.96.0.1")
        };
        resolver.apply(slice("x/a-1", "a", vec![endpoint("10.0.0.1", true)]));
        apply(&mut resolver, balanced);
        assert_eq!(resolver.health_check(30_000).map(|check| check.ipv4), Some(1), "round {round}");
        // The slice moves to a Service that does not exist, then is deleted.
        resolver.apply(slice("x/a-1", "other", vec![endpoint("10.0.0.1", true)]));
        assert_eq!((resolver.backend_count(), resolver.health_check(30_000).unwrap().ipv4), (0, 0));
        resolver.apply(Event::DeleteEndpointSlice(name("x/a-1")));
        resolver.apply(Event::DeleteService(name("x/a")));
        assert!(resolver.services.is_empty() && resolver.cluster_ips.is_empty());
        assert_eq!(
            (resolver.vips().count(), resolver.ports().count(), resolver.health_check_ports().count()),
            (0, 0, 0)
        );
    }
    assert_eq!(resolver.ports.len(), 1, "places are used again");
}

#[test]
fn the_nodes_zone_and_addresses_resolve_what_depends_on_them() {
    let node = |zone: &str, address: &str| {
        Event::Apply(Object::Node(Node {
            name: "n".into(),
            labels: Labels::from([(ZONE_LABEL.into(), zone.into())]),
            addresses: vec![address.parse().unwrap()],
            pod_cidrs: vec![],
            terminating: false,
        }))
    };
    let mut resolver = listed();
    resolver.apply(node("a", "192.0.2.1"));
    let mut with_port = service("x/a", "10.96.0.1");
    with_port.ports[0].node_port = Some(30_001);
    apply(&mut resolver, with_port);
    let hinted = |address: &str, zone: &str| Endpoint {
        hints: Some(Box::new(crate::object::Hints { nodes: vec![], zones: vec![zone.into()] })),
        ..endpoint(address, true)
    };
    resolver.apply(slice("x/a-1", "a", vec![hinted("10.0.0.1", "a"), hinted("10.0.0.2", "b")]));
    let (id, _) = resolver.vip(&vip("192.0.2.1:30001")).unwrap();
    let list = |resolver: &Resolver| -> Vec<String> {
        let port = resolver.port(id).unwrap();
        port.cluster.iter().map(|&id| resolver.backend(id).socket().to_string()).collect()
    };
    assert_eq!(list(&resolver), ["10.0.0.1:8080"]);
    assert!(resolver.apply(node("a", "192.0.2.1")).is_empty());
    let changes = resolver.apply(node("b", "192.0.2.1"));
    assert_eq!((list(&resolver), changes.ports.len()), (vec!["10.0.0.2:8080".to_owned()], 1));
    let changes = resolver.apply(node("b", "192.0.2.9"));
    assert_eq!(changes.vips, [vip("192.0.2.1:30001"), vip("192.0.2.9:30001")].into());
    resolver.apply(Event::DeleteNode("n".into()));
    assert_eq!((list(&resolver).len(), resolver.vip(&vip("192.0.2.9:30001"))), (2, None));
}

#[test]
fn a_host_port_is_its_pods_at_every_address_of_the_node_and_behind_all_but_external_addresses() {
    let node = Node {
        name: "n".into(),
        labels: Labels::new(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        pod_cidrs: vec![],
        terminating: false,
    };
    let Object::Pod(mut pod) = crate::fixtures::pod("x/p", "10.0.0.1,fd00::1", "n", "") else { unreachable!() };
    Arc::make_mut(&mut pod).host_ports =
        [HostPort { address: None, transport: Transport::Tcp, number: 80, port: 8080 }].into();
    let mut resolver = Resolver::new("n".into(), Settings { masquerade_all: true, ..Settings::default() });
    let with = |resolver: &mut Resolver, pod: &Pod| resolver.set_host_ports([(pod, &*pod.addresses)]);
    assert!(with(&mut resolver, &pod).is_empty(), "nothing is listed");
    resolver.apply(Event::Apply(Object::Node(node)));
    assert!(resolver.listed().vips.contains(&vip("192.0.2.1:80")));
    let more = ["169.254.20.10", "127.0.0.1", "2001:db8::1"].map(|address| address.parse().unwrap());
    assert_eq!(resolver.set_more_addresses(more.into()).vips.len(), 2, "not at the loopback address");
    let client = |text: &str| Client { address: text.parse().unwrap(), place: Place::Outside };
    let given = |resolver: &Resolver, from: &str, to: &str| {
        let found = resolver.decide(client(from), to.parse().unwrap(), Some((Transport::Tcp, 80))).unwrap();
        let Answer::Backends(all) = found.answer else { panic!("{found:?}") };
        assert!(found.service.is_none() && all.len() == 1);
        (resolver.backend(all[0].backend).socket().to_string(), all[0].rewrites_source)
    };
    assert_eq!(given(&resolver, "198.51.100.1", "169.254.20.10"), ("10.0.0.1:8080".into(), false));
    assert_eq!(given(&resolver, "2001:db8::9", "2001:db8::1"), ("[fd00::1]:8080".into(), false));
    assert_eq!(given(&resolver, "10.0.0.1", "192.0.2.1"), ("10.0.0.1:8080".into(), true), "itself");
    // A Service's external address does not take over a host port; a load balancer address does.
    let mut service = service("x/a", "10.96.0.1");
    service.external_ips = vec!["192.0.2.1".parse().unwrap()];
    apply(&mut resolver, service.clone());
    assert_eq!(owner(&resolver, "192.0.2.1:80").as_deref(), Some("pod x/p"));
    service.balancer_ips = std::mem::take(&mut service.external_ips);
    apply(&mut resolver, service);
    assert_eq!(owner(&resolver, "192.0.2.1:80").as_deref(), Some("x/a"));
    resolver.apply(Event::DeleteService(name("x/a")));
    let (id, _) = resolver.vip(&vip("192.0.2.1:80")).unwrap();
    assert!(with(&mut resolver, &pod).is_empty(), "the same again");
    let ended = Pod { finished: true, ..Pod::clone(&pod) };
    assert!(with(&mut resolver, &ended).ports.contains(&id));
    assert_eq!((resolver.vips().count(), resolver.ports().count(), resolver.backend_count()), (0, 0, 0));
}

#[test]
fn settings_are_read_from_json_and_yaml_and_faults_name_place_and_remedy() {
    let read = |text: &str| Settings::parse("s.yaml", text);
    let full = read(
        r#"{"cluster_cidrs": ["10.244.0.0/16"], "service_cidrs": ["10.96.0.0/16", "fd00::/112"], "node_port_addresses": ["primary"],
        "masquerade_all": true, "service_proxy_name": "other"}"#,
    )
    .unwrap();
    assert_eq!((full.cluster_cidrs.len(), full.service_cidrs.len(), full.masquerade_all), (1, 2, true));
    assert!(full.is_ours(Some("other")) && !full.is_ours(None) && !full.is_ours(Some("")));
    let both = read("source_addresses: [10.244.1.1, 'fd00::1']\nhash_seed: some text\n").unwrap();
    assert_eq!((both.source_addresses.len(), &*both.hash_seed), (2, "some text"));
    let blocks = read("node_port_addresses: [192.0.2.0/24]\nexternal_ips: []\n").unwrap();
    assert_eq!(blocks.node_port_addresses, NodePortAddresses::In(vec!["192.0.2.0/24".parse().unwrap()]));
    assert_eq!((&blocks.external_ips, read("{}").unwrap()), (&Some(vec![]), Settings::default()));
    for (text, parts) in [
        (
            "cluster_cidrs: []\nservice_cdirs: []\n",
            vec!["s.yaml:2", "unknown field `service_cdirs`", "did you mean `service_cidrs`?"],
        ),
        ("colour: red\n", vec!["unknown field `colour`", "keys are cluster_cidrs, service_cidrs"]),
        ("service_cidrs: [10.96.0.0]\n", vec!["s.yaml:1", "has no prefix length", "write 10.96.0.0/32"]),
        ("node_port_addresses: [primary, 192.0.2.0/24]\n", vec!["`primary` cannot be combined"]),
        ("node_port_addresses: []\n", vec!["node_port_addresses is empty"]),
        ("masquerade_all: 7\n", vec!["s.yaml:1"]),
        ("source_addresses: [10.244.1.01]\n", vec!["s.yaml:1", "invalid address", "remove the leading zeros"]),
        ("source_addresses: [10.244.1.1, 10.244.2.1]\n", vec!["10.244.1.1 and 10.244.2.1 are of one family"]),
        ("source_addresses: ['::']\n", vec!["no host can answer to ::"]),
        ("source_adresses: []\n", vec!["did you mean `source_addresses`?"]),
        ("", vec!["s.yaml: the file is empty"]),
        ("[]", vec!["s.yaml"]),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(parts.iter().all(|part| error.contains(part)) && error.contains("\n  help: "), "{text}: {error}");
    }
}
