//! Contiv's six VPPTCP scenarios. Our session table holds the rules and counts requests; the tables that the dataplane uses give the
//! verdicts.

use bulkhead_classifier::{Action, Key, protocol};
use bulkhead_control::cache::Event;
use bulkhead_control::pipeline::{Pipeline, RendererHandle};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::{Attachment, EnforcedAt};
use bulkhead_control::renderer::session_rules::{SessionTable, SourceRenderer};

use super::manifest::{node, object, objects, pod, policy};
use super::probe::NODE;

const POD1: &str = "10.10.1.1";
const POD2: &str = "10.10.1.2";

fn pods() -> Vec<String> {
    let pod = |name: &str, address| pod(&format!("default/{name}"), address, NODE, &format!("pod: {name}"));
    vec![node(NODE, "172.16.0.1"), pod("pod1", POD1), pod("pod2", POD2)]
}

fn on_pod1(rules: &str) -> String {
    policy("default/p", &format!("podSelector: {{matchLabels: {{pod: pod1}}}}, {rules}"))
}

/// A vswitch that enforces policy at the source.
struct Vswitch {
    pipeline: Pipeline,
    renderer: RendererHandle<SourceRenderer>,
}

impl Vswitch {
    /// Creates a vswitch that adopts this session table, with the pods and these objects.
    fn resumed(table: SessionTable, more: &[String]) -> Self {
        let mut pipeline = Pipeline::new(Scope::Node(NODE.into()));
        let renderer = pipeline.register(SourceRenderer::resume(NODE.into(), table));
        let manifests: Vec<String> = pods().into_iter().chain(more.iter().cloned()).collect();
        pipeline.resync(objects(&manifests)).unwrap();
        Self { pipeline, renderer }
    }

    fn new(more: &[String]) -> Self {
        Self::resumed(SessionTable::default(), more)
    }

    fn apply(&mut self, manifest: &str) {
        self.pipeline.apply(Event::Apply(object(manifest))).unwrap();
    }

    fn table(&self) -> &SessionTable {
        self.pipeline.renderer(self.renderer).table()
    }

    fn rules(&self) -> Vec<String> {
        self.table().rules().map(|rule| rule.to_string()).collect()
    }

    /// The verdict for a packet that arrives from its source: at a pod's port or the uplink.
    fn verdict(&self, src: &str, dst: &str, protocol: u8, port: u16) -> Action {
        let tables = self.pipeline.renderer(self.renderer).node_tables().unwrap();
        assert_eq!(tables.enforced_at, EnforcedAt::Source);
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let own = tables.interfaces.iter().find(|interface| interface.addresses.contains(&src));
        let uplink = tables.interfaces.iter().find(|interface| interface.attachment == Attachment::Uplink);
        let table = &tables.tables[own.or(uplink).unwrap().table].tables;
        table.lookup(&Key::new(src, dst, protocol, 40_000, port)).action()
    }

    fn passes(&self, src: &str, dst: &str, protocol: u8, port: u16) -> bool {
        self.verdict(src, dst, protocol, port) == Action::Allow
    }
}

const TCP: u8 = protocol::TCP;
const UDP: u8 = protocol::UDP;

#[test]
fn scenario_1_a_rule_about_what_comes_to_a_pod_is_one_global_rule_and_judges_what_enters_the_node() {
    let blocks = "ingress: [{from: [{ipBlock: {cidr: 192.168.2.0/24}}], ports: [{port: 80}]}]";
    let vswitch = Vswitch::new(&[on_pod1(blocks)]);
    let about = vswitch.rules().into_iter().filter(|rule| rule.contains("192.168.2.0/24"));
    assert_eq!(about.collect::<Vec<_>>(), ["allow global TCP 10.10.1.1/32:80 <- 192.168.2.0/24:0"]);
    assert!(vswitch.passes("192.168.2.9", POD1, TCP, 80));
    for (src, protocol, port) in [("192.168.2.9", TCP, 81), ("192.168.2.9", UDP, 80), ("192.168.3.9", TCP, 80)] {
        assert!(!vswitch.passes(src, POD1, protocol, port), "{src} {protocol} {port}");
    }
    assert!(vswitch.passes("192.168.3.9", POD2, TCP, 80) && vswitch.passes("172.16.0.1", POD1, TCP, 10_250));
}

#[test]
fn scenario_2_a_rule_about_what_a_pod_sends_is_one_local_rule_of_its_namespace_and_judges_at_its_port() {
    let blocks = "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 22}]}]";
    let vswitch = Vswitch::new(&[on_pod1(blocks)]);
    let about = vswitch.rules().into_iter().filter(|rule| rule.contains("10.0.0.0/8"));
    assert_eq!(about.collect::<Vec<_>>(), ["allow local:1 TCP 0.0.0.0/0:0 <- 10.0.0.0/8:22"]);
    assert!(vswitch.passes(POD1, "10.9.9.9", TCP, 22) && vswitch.passes(POD1, POD2, TCP, 22));
    assert!(!vswitch.passes(POD1, "10.9.9.9", TCP, 23) && !vswitch.passes(POD1, "11.0.0.1", TCP, 22));
    assert!(vswitch.passes(POD2, "11.0.0.1", TCP, 22), "another pod's port");
}

#[test]
fn scenario_3_a_deny_of_any_udp_is_two_halves_and_judges_all_addresses() {
    let vswitch = Vswitch::new(&[on_pod1("ingress: [{ports: [{protocol: TCP}]}]")]);
    let denies = vswitch.rules().into_iter().filter(|rule| rule.starts_with("deny global"));
    let halves = ["0.0.0.0/1", "128.0.0.0/1"].map(|half| format!("deny global UDP 10.10.1.1/32:0 <- {half}:0"));
    assert_eq!(denies.collect::<Vec<_>>(), halves);
    for src in ["8.8.8.8", "200.0.0.1", POD2] {
        assert!(!vswitch.passes(src, POD1, UDP, 53) && vswitch.passes(src, POD1, TCP, 53), "{src}");
        // Protocols without session rules are judged by the 6-tuples.
        assert!(
            !vswitch.passes(src, POD1, protocol::SCTP, 53) && !vswitch.passes(src, POD1, protocol::ICMP, 0),
            "{src}"
        );
    }
}

#[test]
fn scenario_4_a_change_of_one_pods_data_costs_the_requests_of_what_differs() {
    let blocks = |last: u8, port: u16| {
        let block = |at: u8| format!("{{ipBlock: {{cidr: 192.168.{at}.0/24}}}}");
        // Not adjacent: adjacent blocks would become one. The node is also allowed TCP and UDP.
        let from: Vec<_> = [1, 3, last].map(block).to_vec();
        on_pod1(&format!("ingress: [{{from: [{}], ports: [{{port: {port}}}]}}]", from.join(", ")))
    };
    let mut vswitch = Vswitch::new(&[blocks(5, 80)]);
    let start = vswitch.table().requests();
    // Dump and ping. At the pod: three blocks, four denies and the node. At the other pod: two denies.
    assert_eq!(start, 2 + 3 + 4 + 2 + 2);
    vswitch.apply(&blocks(7, 80));
    assert_eq!(vswitch.table().requests(), start + 2, "one block for another");
    assert!(vswitch.passes("192.168.7.1", POD1, TCP, 80) && !vswitch.passes("192.168.5.1", POD1, TCP, 80));
    vswitch.apply(&blocks(7, 81));
    assert_eq!(vswitch.table().requests(), start + 2 + 6, "another port for three blocks");
    vswitch.apply(&blocks(7, 81));
    assert_eq!(vswitch.table().requests(), start + 8, "a repetition");
}

#[test]
fn scenario_5_a_change_of_two_pods_data_costs_the_requests_of_both_and_no_others() {
    let both = |port: u16| {
        let subject = "podSelector: {matchExpressions: [{key: pod, operator: In, values: [pod1, pod2]}]}";
        let from = "from: [{ipBlock: {cidr: 192.168.0.0/16}}]";
        policy("default/p", &format!("{subject}, ingress: [{{{from}, ports: [{{port: {port}}}]}}]"))
    };
    let mut vswitch = Vswitch::new(&[both(80)]);
    let start = vswitch.table().requests();
    assert_eq!(start, 2 + vswitch.table().len() as u64);
    vswitch.apply(&both(81));
    assert_eq!(vswitch.table().requests(), start + 4, "one rule for another for each pod");
    for pod in [POD1, POD2] {
        assert!(vswitch.passes("192.168.0.1", pod, TCP, 81) && !vswitch.passes("192.168.0.1", pod, TCP, 80), "{pod}");
    }
}

#[test]
fn scenario_6_a_resync_after_a_restart_is_a_dump_a_ping_and_the_difference() {
    let open = |port: u16| on_pod1(&format!("ingress: [{{from: [{{podSelector: {{}}}}], ports: [{{port: {port}}}]}}]"));
    let before = Vswitch::new(&[open(80)]);
    let (rules, requests) = (before.rules(), before.table().requests());
    let same = Vswitch::resumed(before.table().clone(), &[open(80)]);
    assert_eq!((same.rules(), same.table().requests()), (rules, requests + 2), "a dump and a ping");
    assert!(same.passes(POD2, POD1, TCP, 80) && !same.passes(POD2, POD1, TCP, 81));
    let other = Vswitch::resumed(before.table().clone(), &[open(81)]);
    // At the uplink, pod1 and pod2 are sources. At the other pod's port, pod1 is the destination.
    assert_eq!(other.table().requests(), requests + 2 + 2 * 3);
    assert!(!other.passes(POD2, POD1, TCP, 80) && other.passes(POD2, POD1, TCP, 81));
    let none = Vswitch::resumed(before.table().clone(), &[]);
    assert!(none.table().is_empty() && none.passes("8.8.8.8", POD1, UDP, 1));
}

#[test]
fn b12_to_b14_do_not_happen_at_our_ports() {
    let mut vswitch = Vswitch::new(&[]);
    assert!(vswitch.passes(POD2, POD1, TCP, 81));
    vswitch.apply(&on_pod1("ingress: [{ports: [{protocol: TCP}]}]"));
    assert!(!vswitch.passes(POD2, POD1, UDP, 81), "B12: the neighbour's table follows without a resync");
    assert!(vswitch.passes(POD2, POD1, TCP, 81) && vswitch.passes("8.8.8.8", POD1, TCP, 81), "B13");
    let v6 = pod("default/pod6", "fd00::6", NODE, "pod: pod1");
    vswitch.apply(&v6);
    assert!(!vswitch.passes("fd00::9", "fd00::6", UDP, 53) && vswitch.passes("fd00::9", "fd00::6", TCP, 53), "B14");
}

#[test]
fn rules_that_do_not_fit_leave_the_last_tables_whole_and_are_tried_again() {
    let mut pipeline = Pipeline::new(Scope::Node(NODE.into()));
    let renderer = pipeline.register(SourceRenderer::with_limit(NODE.into(), 20));
    let many = |ports: u16| on_pod1(&format!("ingress: [{{ports: [{{port: 1, endPort: {ports}}}]}}]"));
    pipeline.resync(objects(&[pods(), vec![many(3)]].concat())).unwrap();
    let generation = pipeline.renderer(renderer).node_tables().unwrap().generation;
    let error = pipeline.apply(Event::Apply(object(&many(30)))).unwrap_err();
    assert!(error.source.to_string().contains("more than 20 session rules"), "{}", error.source);
    pipeline.apply(Event::Apply(object(&many(30)))).unwrap_err();
    let mut vswitch = Vswitch { pipeline, renderer };
    assert_eq!(vswitch.pipeline.renderer(renderer).node_tables().unwrap().generation, generation);
    assert!(vswitch.passes("8.8.8.8", POD1, TCP, 3) && !vswitch.passes("8.8.8.8", POD1, TCP, 4));
    vswitch.apply(&many(2));
    assert!(vswitch.passes("8.8.8.8", POD1, TCP, 2) && !vswitch.passes("8.8.8.8", POD1, TCP, 3));
}

#[test]
fn an_event_that_changes_nothing_for_the_ports_publishes_nothing() {
    let mut vswitch = Vswitch::new(&[on_pod1("ingress: []")]);
    let generation = |vswitch: &Vswitch| {
        let renderer = vswitch.pipeline.renderer(vswitch.renderer);
        renderer.node_tables().unwrap().generation
    };
    let before = generation(&vswitch);
    vswitch.apply(&pod("default/elsewhere", "10.10.10.1", "node-2", "pod: other"));
    vswitch.apply(&on_pod1("ingress: []"));
    assert_eq!(generation(&vswitch), before);
    vswitch.apply(&pod("default/pod3", "10.10.2.1", NODE, "pod: pod3"));
    assert_eq!(generation(&vswitch), before + 1, "a pod that comes has a port");
}
