//! Services as workers receive them: the adapter's tables give the same answers as the resolver.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "../control/tests/services/random.rs"]
mod random;
#[path = "../control/tests/random/rng.rs"]
mod rng;

use rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};

use crate::support::{bulkhead, cases, scratch, stdout};
use bulkhead_answers::services::{Adapter, Counts, NodeHealth};
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Object, Transport};
use bulkhead_control::service::{self as control, Answer, Choice, Client, Clients, Place, Resolver, Settings};
use bulkhead_control::source::{Options, ServiceKinds, load_text};
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::{
    DropReason, Explained, Flow, PortConfig, PortKind, Routes, ServicePort, Services, Snapshot, Vip,
};
use serde_json::{Value, json};

/// A snapshot whose host port has these addresses.
fn snapshot(addresses: Vec<IpAddr>) -> Snapshot {
    let host = PortConfig { addresses, ..PortConfig::new("host", PortKind::Host) };
    Snapshot::new(1, vec![host], Vec::new(), Routes::default()).unwrap()
}

/// The kind of port on which a client's packets arrive.
fn kind_of(place: Place) -> PortKind {
    match place {
        Place::Pod => PortKind::Pod,
        Place::Host => PortKind::Host,
        Place::OtherPod | Place::Outside => PortKind::Uplink,
    }
}

/// The answer of a worker's tables to a connection.
fn explained(
    resolver: &Resolver,
    services: &Services,
    client: Client,
    to: IpAddr,
    port: Option<(Transport, u16)>,
) -> Explained {
    let snapshot = snapshot(resolver.node_addresses().collect());
    let (protocol, dport) = port.map_or((1, 0), |(transport, port)| (transport.number(), port));
    let flow = Flow { src: client.address, dst: to, protocol, sport: 40_000, dport, icmp: None };
    services.explain(&snapshot, kind_of(client.place), &flow)
}

/// The resolver's answer in the dataplane's types. One rule is the vswitch's own: a packet from the host port counts as an outside client's
/// unless its source is an address of the node.
fn decided(resolver: &Resolver, client: Client, to: IpAddr, port: Option<(Transport, u16)>) -> Explained {
    let is_hosts = client.place == Place::Host && resolver.node_addresses().any(|own| own == client.address);
    let place = if client.place == Place::Host && !is_hosts { Place::Outside } else { client.place };
    match resolver.decide(Client { place, ..client }, to, port).unwrap().answer {
        Answer::Backends(all) => {
            let told = |choice: &Choice| {
                let backend = resolver.backend(choice.backend);
                (backend.socket(), choice.rewrites_source)
            };
            Explained::Backends(all.iter().map(told).collect())
        }
        Answer::NoEndpoint => Explained::Drop(DropReason::NoEndpoint),
        Answer::NoLocalEndpoint => Explained::Drop(DropReason::NoLocalEndpoint),
        Answer::SourceRange => Explained::Drop(DropReason::ServiceSourceRange),
        Answer::UnknownPort => Explained::Drop(DropReason::UnknownServicePort),
        Answer::UnallocatedAddress(_) => Explained::Drop(DropReason::UnknownServiceAddress),
        Answer::OtherProxy | Answer::NotOurs => Explained::NotOurs,
    }
}

/// All entries of the workers' tables without the numbers of service ports, which depend on earlier states.
fn told(resolver: &Resolver, services: &Services) -> BTreeMap<Vip, (String, ServicePort)> {
    let mut vips: BTreeSet<Vip> = resolver.vips().map(dataplane_vip).collect();
    // Includes addresses that no Service has any more.
    for address in random::addresses() {
        vips.extend(random::ports().into_iter().flatten().map(|(transport, port)| Vip {
            address,
            protocol: transport.number(),
            port,
        }));
    }
    let shown = |vip: Vip| {
        let (entry, port) = services.vip(&vip)?;
        let entry = format!("{:?} {:?} {} {}", entry.inside, entry.outside, entry.is_ranged, entry.rewrites_all);
        Some((vip, (entry, port.clone())))
    };
    vips.into_iter().filter_map(shown).collect()
}

fn dataplane_vip(vip: &control::Vip) -> Vip {
    Vip { address: vip.address, protocol: vip.transport.number(), port: vip.port }
}

/// The number of random histories, each with dozens of states.
const SEEDS: u64 = 60;

#[test]
fn workers_are_told_what_the_resolver_decides_after_any_history() {
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..SEEDS {
        let (mut rng, mut of_pods) = (Rng::new(seed), Rng::new(!seed));
        let mut pods = Vec::new();
        let settings = random::settings(&mut rng);
        let mut adapter = Adapter::new(random::NODE.into(), settings.clone());
        let mut inventory: BTreeMap<String, Event> = BTreeMap::new();
        let (mut services, mut health) = (None, NodeHealth::default());
        let mut epoch = 0;
        for step in 0..30 {
            let batch = random::batch(&mut rng);
            batch.iter().for_each(|event| drop(inventory.insert(name_of(event), event.clone())));
            adapter.apply(batch.clone());
            if of_pods.chance(40) {
                pods = random::pods(&mut of_pods);
                adapter.set_host_ports(pods.iter().map(|pod| (pod, &*pod.addresses)));
            }
            if step < 4 {
                assert!(adapter.take().is_none(), "nothing is published before all is listed");
                continue;
            }
            adapter.listed();
            services = adapter.take().map(|update| update.services).or(services);
            assert!(adapter.take().is_none(), "nothing has changed since");
            health = adapter.take_health().unwrap_or(health);
            assert!(adapter.take_health().is_none(), "nothing has changed since");
            *reached.entry("health checks".to_owned()).or_default() += health.checks.len();
            let services = services.as_ref().unwrap();
            assert!(services.epoch() >= epoch);
            epoch = services.epoch();
            let context = format!("seed {seed}, step {step}: {batch:#?}");
            compare(adapter.resolver(), services, &mut reached, &context);
        }
        let mut fresh = Adapter::new(random::NODE.into(), settings);
        fresh.listed();
        fresh.apply(inventory.into_values());
        fresh.set_host_ports(pods.iter().map(|pod| (pod, &*pod.addresses)));
        let (known, again) = (services.unwrap(), fresh.take().unwrap().services);
        assert_eq!(told(adapter.resolver(), &known), told(fresh.resolver(), &again), "seed {seed}");
        assert_eq!(adapter.counts(), fresh.counts(), "seed {seed}");
        assert_eq!(health, fresh.take_health().unwrap(), "the health checks, seed {seed}");
        for address in random::addresses() {
            assert_eq!(known.source_for(address), again.source_for(address));
        }
    }
    println!("{reached:?}");
    for (answer, least) in [
        ("NotOurs", 1_000),
        ("NoEndpoint", 1_000),
        ("NoLocalEndpoint", 1_000),
        ("ServiceSourceRange", 500),
        ("UnknownServicePort", 1_000),
        ("UnknownServiceAddress", 1_000),
        ("backends", 5_000),
        ("a source that stays", 5_000),
        ("a source that is rewritten", 1_000),
        ("health checks", 500),
    ] {
        assert!(reached.get(answer).is_some_and(|&count| count >= least), "{answer}: {reached:?}");
    }
}

/// The kind and name of the object that an event changes.
fn name_of(event: &Event) -> String {
    match event {
        Event::Apply(Object::Service(service)) => format!("service {}", service.name),
        Event::DeleteService(name) => format!("service {name}"),
        Event::Apply(Object::EndpointSlice(slice)) => format!("slice {}", slice.name),
        Event::DeleteEndpointSlice(name) => format!("slice {name}"),
        Event::Apply(Object::Node(node)) => format!("node {}", node.name),
        Event::DeleteNode(name) => format!("node {name}"),
        other => panic!("{other:?}"),
    }
}

fn compare(resolver: &Resolver, services: &Services, reached: &mut BTreeMap<String, usize>, context: &str) {
    for client in random::clients() {
        for to in random::addresses() {
            for port in random::ports() {
                if client.address.is_ipv4() != to.is_ipv4() {
                    continue;
                }
                let found = explained(resolver, services, client, to, port);
                let expected = decided(resolver, client, to, port);
                note(&expected, reached);
                assert_eq!(found, expected, "{client:?} to {to} {port:?}\n{context}");
            }
        }
    }
}

fn note(answer: &Explained, reached: &mut BTreeMap<String, usize>) {
    let mut count = |what: &str, times: usize| *reached.entry(what.to_owned()).or_default() += times;
    match answer {
        Explained::NotOurs => count("NotOurs", 1),
        Explained::Drop(reason) => count(&format!("{reason:?}"), 1),
        Explained::Backends(all) => {
            count("backends", 1);
            let rewritten = all.iter().filter(|(_, rewrites)| *rewrites).count();
            count("a source that is rewritten", rewritten);
            count("a source that stays", all.len() - rewritten);
        }
    }
}

/// The known answers: default settings, which a case may override, and objects.
struct Known {
    all: Value,
}

impl Known {
    fn load() -> Option<Self> {
        let text = fs::read_to_string(cases()?.join("service_cases.json")).unwrap();
        Some(Self { all: serde_json::from_str(&text).unwrap() })
    }

    fn packets(&self) -> &[Value] {
        self.all["cases"].as_array().unwrap()
    }

    fn settings(&self, case: &Value) -> Settings {
        let mut settings = self.all["defaults"].clone();
        for (key, value) in case["settings"].as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        Settings::parse("settings", &settings.to_string()).unwrap()
    }

    fn objects(&self, case: &Value) -> Vec<Object> {
        let lists = self.all["objects"][case["objects"].as_str().unwrap()].as_object().unwrap().values();
        let items: Vec<&Value> = lists.flat_map(|list| list.as_array().unwrap()).collect();
        let text = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        let options = Options { services: ServiceKinds::Read, ..Options::default() };
        load_text("case.json", &text, options).unwrap_or_else(|errors| panic!("{errors}")).objects
    }
}

/// Compares the workers' answer with a case. Returns the expected action.
fn check(case: &Value, settings: &Settings, objects: &[Object], adapter: &mut Adapter, services: &Services) -> String {
    let address = |value: &Value| value["ip"].as_str().unwrap().parse::<IpAddr>().unwrap();
    let (from, to) = (address(&case["client"]), address(&case["dst"]));
    let transport = Transport::from_name(case["dst"]["protocol"].as_str().unwrap());
    let port = u16::try_from(case["dst"]["port"].as_u64().unwrap()).unwrap();
    let client = Clients::new(adapter.resolver().node(), settings, objects).at(from, to);
    let found = explained(adapter.resolver(), services, client, to, transport.map(|transport| (transport, port)));
    let expect = &case["expect"];
    let context = format!("case {} ({}): {}\nfound {found:?}", case["id"], case["objects"], case["why"]);
    let texts = |value: &Value| -> BTreeSet<SocketAddr> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().parse().unwrap()).collect()
    };
    let action = match &found {
        Explained::NotOurs => "pass",
        Explained::Drop(DropReason::NoEndpoint | DropReason::UnknownServicePort) => "reject",
        Explained::Drop(_) => "drop",
        Explained::Backends(_) => "dnat",
    };
    assert_eq!(action, expect["action"].as_str().unwrap(), "{context}");
    if let Explained::Backends(all) = &found {
        assert_eq!(
            all.iter().map(|(socket, _)| *socket).collect::<BTreeSet<_>>(),
            texts(&expect["backends"]),
            "{context}"
        );
        let rewritten = all.iter().filter(|(_, rewrites)| *rewrites).map(|(socket, _)| *socket);
        let rewritten: BTreeSet<SocketAddr> = rewritten.collect();
        assert!(texts(&expect["snat"]["must"]).is_subset(&rewritten), "{context}");
        assert!(expect["snat"]["must_not"] != true || rewritten.is_empty(), "{context}");
    }
    action.to_owned()
}

/// Addresses of the node that its Node object lacks, but that the case's client uses.
fn more_addresses(case: &Value, node: &str, settings: &Settings, objects: &[Object]) -> BTreeSet<IpAddr> {
    let clients = Clients::new(&node.into(), settings, objects);
    let to: IpAddr = case["dst"]["ip"].as_str().unwrap().parse().unwrap();
    if clients.may_be_nodes(to) { [to].into() } else { BTreeSet::new() }
}

/// An adapter that takes the state of each cluster in turn, and its latest tables.
type Kept = (Adapter, Inventory, Option<std::sync::Arc<Services>>);

#[test]
fn every_packet_of_the_known_answers_is_right_from_scratch_and_after_other_clusters() {
    let Some(known) = Known::load() else { return };
    let mut actions: BTreeMap<String, usize> = BTreeMap::new();
    let mut running: BTreeMap<(String, String), Kept> = BTreeMap::new();
    for case in known.packets() {
        let (node, settings, objects) = (case["node"].as_str().unwrap(), known.settings(case), known.objects(case));
        let more = more_addresses(case, node, &settings, &objects);
        let mut adapter = Adapter::of(node.into(), settings.clone(), &objects);
        adapter.set_more_addresses(more.clone());
        let services = adapter.take().unwrap().services;
        let action = check(case, &settings, &objects, &mut adapter, &services);
        *actions.entry(action).or_default() += 1;

        let key = (node.to_owned(), case["settings"].to_string());
        let (adapter, inventory, services) = running.entry(key).or_insert_with(|| {
            let mut adapter = Adapter::new(node.into(), settings.clone());
            adapter.listed();
            (adapter, Inventory::default(), None)
        });
        adapter.apply(inventory.replace(objects.clone()));
        adapter.set_more_addresses(more);
        *services = adapter.take().map(|update| update.services).or(services.take());
        let services = services.clone().unwrap();
        check(case, &settings, &objects, adapter, &services);
    }
    println!("{actions:?}");
    assert_eq!(actions.values().sum::<usize>(), 174);
    assert!(actions.len() == 4, "{actions:?}");
}

/// A node with a UDP Service and a TCP Service, both with these endpoints on node `n1`: address, ready, serving.
fn cluster(endpoints: &[(&str, bool, bool)], more: &str) -> Vec<Object> {
    let endpoint = |(address, ready, serving): &(&str, bool, bool)| {
        format!(
            "{{addresses: [{address}], nodeName: n1, conditions: {{ready: {ready}, serving: {serving}, terminating: {}}}}}",
            !ready
        )
    };
    let endpoints: Vec<String> = endpoints.iter().map(endpoint).collect();
    let endpoints = endpoints.join(", ");
    let service = |name: &str, protocol: &str, ip: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: x}}, spec: {{clusterIPs: [{ip}], ports: [{{port: 53, protocol: {protocol}}}]}}}}\n\
             ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {{name: {name}-1, namespace: x, \
             labels: {{kubernetes.io/service-name: {name}}}}}, ports: [{{name: '', port: 5353, protocol: {protocol}}}], endpoints: [{endpoints}]}}\n"
        )
    };
    let node = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.244.1.0/24, 'fd00:244:1::/64']}}\n\
                ---\n{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.244.2.0/24]}}\n";
    let text = format!("{node}{}{}{more}", service("dns", "UDP", "10.96.0.10"), service("web", "TCP", "10.96.0.20"));
    let options = Options { services: ServiceKinds::Read, ..Options::default() };
    load_text("cluster.yaml", &text, options).unwrap_or_else(|errors| panic!("{errors}")).objects
}

/// An adapter that takes the state of each cluster in turn and reports stale UDP flows.
struct Running(Adapter, Inventory);

impl Running {
    fn new(objects: Vec<Object>) -> Self {
        let mut running = Self(Adapter::new("n1".into(), Settings::default()), Inventory::default());
        running.0.apply(running.1.replace(objects));
        running.0.listed();
        let _ = running.0.take();
        running
    }

    fn stale_after(&mut self, objects: Vec<Object>) -> Vec<String> {
        self.0.apply(self.1.replace(objects));
        let update = self.0.take();
        update.iter().flat_map(|update| &update.stale).map(ToString::to_string).collect()
    }
}

#[test]
fn flows_of_udp_end_where_a_backend_serves_no_more_or_its_vip_is_gone_and_where_a_vip_is_new() {
    let (a, b) = (("10.244.1.2", true, true), ("10.244.2.2", true, true));
    let mut running = Running::new(cluster(&[a, b], ""));
    let ending = ("10.244.1.2", false, true);
    assert!(running.stale_after(cluster(&[ending, b], "")).is_empty(), "it still answers");
    // Only the endpoint's condition changed. It was in no list before.
    assert_eq!(running.stale_after(cluster(&[("10.244.1.2", false, false), b], "")), ["10.244.1.2"]);
    assert!(running.stale_after(cluster(&[a, b], "")).is_empty());
    assert_eq!(running.stale_after(cluster(&[b], "")), ["10.244.1.2"], "it is gone");
    let without_udp = |objects: Vec<Object>| -> Vec<Object> {
        let is_dns = |object: &Object| matches!(object, Object::Service(service) if &*service.name.name == "dns");
        objects.into_iter().filter(|object| !is_dns(object)).collect()
    };
    assert_eq!(running.stale_after(without_udp(cluster(&[b], ""))), ["10.244.2.2"], "the Service is gone");
    assert_eq!(running.stale_after(cluster(&[b], "")), ["10.96.0.10"], "what went there untranslated");
    assert_eq!(running.stale_after(Vec::new()), ["10.244.2.2"], "of UDP alone");
}

#[test]
fn a_source_that_has_to_change_becomes_the_first_of_the_nodes_block_or_what_the_settings_say() {
    let sources = |settings: &str| {
        let settings = Settings::parse("s", settings).unwrap();
        let services = Adapter::of("n1".into(), settings, &cluster(&[], "")).take().unwrap().services;
        let of = |address: &str| services.source_for(address.parse().unwrap()).map(|source| source.to_string());
        [of("192.0.2.1"), of("2001:db8::1")]
    };
    let texts = |all: [&str; 2]| all.map(|text| Some(text.to_owned()));
    assert_eq!(sources("{}"), texts(["10.244.1.1", "fd00:244:1::1"]));
    assert_eq!(sources("source_addresses: [10.244.1.250]"), texts(["10.244.1.250", "fd00:244:1::1"]));
    // A CIDR with a single address has none for this, and without a Node object there is no CIDR.
    let one = "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.9.9.9/32]}}";
    let loaded = load_text("node.yaml", one, Options::default()).unwrap();
    let services = Adapter::of("n1".into(), Settings::default(), &loaded.objects).take().unwrap().services;
    assert_eq!(services.source_for("192.0.2.1".parse().unwrap()), None);
    let mut nobody = Adapter::of("other".into(), Settings::default(), &cluster(&[], ""));
    assert_eq!(nobody.take().unwrap().services.source_for("192.0.2.1".parse().unwrap()), None);
}

#[test]
fn pods_of_all_nodes_are_inside_and_a_change_of_them_is_published() {
    let external = "---\n{apiVersion: v1, kind: Service, metadata: {name: out, namespace: x}, spec: {clusterIPs: [10.96.0.30], \
                    externalIPs: [198.51.100.1], externalTrafficPolicy: Local, ports: [{port: 80}]}}\n\
                    ---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: out-1, namespace: x, \
                    labels: {kubernetes.io/service-name: out}}, ports: [{name: '', port: 8080}], endpoints: [{addresses: [10.244.2.2], nodeName: n2}]}\n";
    let mut adapter = Adapter::of("n1".into(), Settings::default(), &cluster(&[], external));
    let ask = |services: &Services, from: &str| {
        let to = "198.51.100.1".parse().unwrap();
        let flow = Flow { src: from.parse().unwrap(), dst: to, protocol: 6, sport: 1, dport: 80, icmp: None };
        services.explain(&snapshot(Vec::new()), PortKind::Uplink, &flow)
    };
    let services = adapter.take().unwrap().services;
    assert!(matches!(ask(&services, "10.244.2.9"), Explained::Backends(_)));
    assert_eq!(ask(&services, "10.244.3.9"), Explained::Drop(DropReason::NoLocalEndpoint), "it is outside");
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDRs: [10.244.3.0/24]}}\n";
    let loaded = load_text("node.yaml", node, Options::default()).unwrap();
    adapter.apply(loaded.objects.into_iter().map(Event::Apply));
    let services = adapter.take().expect("there are more pods").services;
    assert!(matches!(ask(&services, "10.244.3.9"), Explained::Backends(_)));
    adapter.apply([Event::DeleteNode("n3".into())]);
    let services = adapter.take().expect("there are fewer").services;
    assert_eq!(ask(&services, "10.244.3.9"), Explained::Drop(DropReason::NoLocalEndpoint));
    adapter.apply([Event::DeleteNode("n3".into()), Event::DeletePod(bulkhead_control::object::PodName::new("x", "a"))]);
    assert!(adapter.take().is_none());
    assert_eq!(adapter.counts(), Counts { listed: true, services: 3, vips: 4, backends: 1 });
}

/// A pcap file of these IP packets.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    // The header of pcap: magic, version 2.4, time zone, accuracy, snap length, LINKTYPE_RAW.
    let number = |value: usize| u32::try_from(value).unwrap().to_le_bytes();
    let mut file =
        [&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &number(65_535), &number(101)].concat();
    for (at, packet) in packets.iter().enumerate() {
        file.extend([number(at), number(0), number(packet.len()), number(packet.len())].concat());
        file.extend(packet);
    }
    file
}

#[test]
fn a_replay_translates_by_the_services_of_the_state() {
    let pod = |name: &str, address: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop}}, spec: {{nodeName: node-1}}, \
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}}}\n"
        )
    };
    let pods = scratch("replay-pods.yaml", &format!("{}{}", pod("client", "10.244.1.2"), pod("web", "10.244.1.20")));
    let settings = scratch("replay-settings.yaml", "service_cidrs: [10.96.0.0/16]\n");
    let packet = |sport: u16, to: &str| {
        let to: SocketAddr = to.parse().unwrap();
        let src = "10.244.1.2".parse().unwrap();
        Probe { src, dst: to.ip(), kind: ProbeKind::Tcp, sport, dport: to.port() }.request().unwrap()
    };
    let to_service = (0..20).map(|at| packet(40_000 + at, "10.96.0.20:80"));
    let packets: Vec<_> = to_service.chain([packet(1, "10.96.0.20:81"), packet(2, "10.96.9.9:80")]).collect();
    let capture = scratch("replay-services.pcap", &capture(&packets));
    let replay = |states: &[&str], more: &[&str]| -> Vec<(String, String)> {
        let args =
            [&["replay", "-o", "json", "--node", "node-1"], more, &["--state"], states, &["--", &capture]].concat();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lines = stdout(&bulkhead(&args), 0);
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["packet"].is_u64()).map(|line| (text(&line["out"]), text(&line["reason"]))).collect()
    };
    let state = ["examples/services.yaml", &pods];
    let outs = |answers: &[(String, String)]| -> BTreeSet<String> {
        answers[..20].iter().map(|(out, _)| out.clone()).collect()
    };
    let answers = replay(&state, &[]);
    assert_eq!(outs(&answers), ["shop/web".to_owned(), "uplink".to_owned()].into(), "to the backends of both nodes");
    assert_eq!((&*answers[20].1, &*answers[21].0), ("unknown_service_port", "uplink"));
    assert_eq!(replay(&state, &["--settings", &settings])[21].1, "unknown_service_address");
    // Without Services, the address is treated like any other.
    let nodes = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [10.244.1.0/24]}, \
                 status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}";
    let nodes = scratch("replay-nodes.yaml", nodes);
    let answers = replay(&[&nodes, &pods], &["--settings", &settings]);
    assert!(answers.len() == 22 && answers.iter().all(|(out, _)| out == "uplink"), "{answers:?}");
}
