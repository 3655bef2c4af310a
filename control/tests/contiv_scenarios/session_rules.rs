//! Contiv's VPPTCP renderer tests: the session rules of a policy, and the number of requests that a change costs. Contiv's tests render
//! single deny rules, which no policy generates; the renderer's own tests have those. Here the nearest policy is used, so the final denies
//! of its lists appear too.

use bulkhead_classifier::Action;
use bulkhead_control::cache::Event;
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::session_rules::{
    SessionMatch, SessionRenderer, SessionRule, SessionScope, SessionSide, SessionTransport,
};

use super::manifest::{name, node, object, objects, pod, policy};
use super::probe::NODE;
use crate::session_table::SessionTable;

const OF_POD1: &str = "podSelector: {matchLabels: {pod: pod1}}";

fn pod_on(node: &str, short: &str, address: &str) -> String {
    pod(&format!("default/{short}"), address, node, &format!("pod: {short}"))
}

fn pod1() -> String {
    pod_on(NODE, "pod1", "10.10.1.1")
}

fn pod2() -> String {
    pod_on(NODE, "pod2", "10.10.1.2")
}

/// A policy that selects pod1.
fn on_pod1(rules: &str) -> String {
    policy("default/p", &format!("{OF_POD1}, {rules}"))
}

/// A pipeline of the node with these objects, which renders into the table.
fn pipeline(table: &SessionTable, manifests: &[String]) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Node(NODE.into()));
    pipeline.register(SessionRenderer::new(NODE.into(), table.clone()));
    pipeline.resync(objects(manifests)).unwrap();
    pipeline
}

fn rendered(manifests: &[String]) -> SessionTable {
    let table = SessionTable::default();
    pipeline(&table, manifests);
    table
}

fn apply(pipeline: &mut Pipeline, manifest: &str) {
    pipeline.apply(Event::Apply(object(manifest))).unwrap();
}

fn sorted<const N: usize>(rules: [&str; N]) -> Vec<String> {
    let mut rules = rules.map(String::from).to_vec();
    rules.sort();
    rules
}

const TCP: SessionTransport = SessionTransport::Tcp;
const UDP: SessionTransport = SessionTransport::Udp;

/// Whether a connection to pod1 from outside the node passes.
fn comes_in(table: &SessionTable, src: &str, transport: SessionTransport, port: u16) -> bool {
    table.verdict(None, src.parse().unwrap(), "10.10.1.1".parse().unwrap(), transport, port) == Action::Allow
}

#[test]
fn a_rule_towards_a_pod_is_one_global_rule_with_the_pods_port_on_the_local_side() {
    let table =
        rendered(&[pod1(), on_pod1("ingress: [{from: [{ipBlock: {cidr: 192.168.2.0/24}}], ports: [{port: 80}]}]")]);
    assert_eq!(
        table.rules(),
        sorted([
            "allow global TCP 10.10.1.1/32:80 <- 192.168.2.0/24:0",
            "deny global TCP 10.10.1.1/32:0 <- 0.0.0.0/1:0",
            "deny global TCP 10.10.1.1/32:0 <- 128.0.0.0/1:0",
            "deny global UDP 10.10.1.1/32:0 <- 0.0.0.0/1:0",
            "deny global UDP 10.10.1.1/32:0 <- 128.0.0.0/1:0",
        ])
    );
}

#[test]
fn a_rule_from_a_pod_is_one_local_rule_of_its_namespace_with_the_port_on_the_remote_side() {
    let egress = "egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 22}]}]";
    let table = rendered(&[pod1(), on_pod1(&format!("policyTypes: [Egress], {egress}"))]);
    let (ours, rest): (Vec<_>, Vec<_>) = table.rules().into_iter().partition(|rule| rule.contains("10."));
    assert_eq!(
        ours,
        sorted([
            "allow local:1 TCP 0.0.0.0/0:0 <- 10.0.0.0/8:22",
            "allow local:1 TCP 0.0.0.0/0:0 <- 10.10.1.1/32:0",
            "allow local:1 UDP 0.0.0.0/0:0 <- 10.10.1.1/32:0",
        ])
    );
    assert_eq!(rest.len(), 8, "TCP and UDP, both families, two halves each: {rest:?}");
    assert!(rest.iter().all(|rule| rule.starts_with("deny local:1 ")));
}

#[test]
fn a_deny_of_any_udp_is_two_halves() {
    let table = rendered(&[pod1(), on_pod1("ingress: [{ports: [{protocol: TCP}]}]")]);
    let denies: Vec<_> = table.rules().into_iter().filter(|rule| rule.starts_with("deny")).collect();
    assert_eq!(
        denies,
        sorted(["deny global UDP 10.10.1.1/32:0 <- 0.0.0.0/1:0", "deny global UDP 10.10.1.1/32:0 <- 128.0.0.0/1:0"])
    );
}

#[test]
fn a_change_of_one_pods_data_costs_the_requests_of_what_differs() {
    let blocks = |last: u8, port: u16| {
        let block = |at: u8| format!("{{ipBlock: {{cidr: 192.168.{at}.0/24}}}}");
        // Not adjacent: adjacent blocks would become one.
        let from: Vec<_> = [1, 3, last].map(block).to_vec();
        on_pod1(&format!("ingress: [{{from: [{}], ports: [{{port: {port}}}]}}]", from.join(", ")))
    };
    let table = SessionTable::default();
    let mut pipeline = pipeline(&table, &[pod1(), blocks(5, 80)]);
    assert_eq!(table.requests(), 2 + 3 + 4, "dump and ping, three blocks, four denies");
    apply(&mut pipeline, &blocks(7, 80));
    assert_eq!(table.requests(), 9 + 2, "one block for another");
    apply(&mut pipeline, &blocks(7, 81));
    assert_eq!(table.requests(), 11 + 6, "another port for three blocks");
    apply(&mut pipeline, &blocks(7, 81));
    assert_eq!(table.requests(), 17, "a repetition");
}

#[test]
fn a_change_of_two_pods_data_costs_the_requests_of_both_and_no_others() {
    let both = |port: u16| {
        let subject = "podSelector: {matchExpressions: [{key: pod, operator: In, values: [pod1, pod2]}]}";
        let from = "from: [{ipBlock: {cidr: 192.168.0.0/16}}]";
        policy("default/p", &format!("{subject}, ingress: [{{{from}, ports: [{{port: {port}}}]}}]"))
    };
    let table = SessionTable::default();
    let mut pipeline = pipeline(&table, &[pod1(), pod2(), both(80)]);
    let start = table.requests();
    let global = table.rules().iter().filter(|rule| rule.contains("global")).count();
    assert_eq!(global, 2 + 8, "an allow and four denies for each pod");
    let between = table.rules().len() - global;
    assert_eq!(between, 4, "neither of the pods may go to the other, TCP and UDP");
    assert_eq!(start, 2 + global + between);
    apply(&mut pipeline, &both(81));
    assert_eq!(table.requests(), start + 4, "one rule for another for each pod");
}

#[test]
fn a_resync_after_a_restart_with_equal_state_is_a_dump_and_a_ping() {
    let manifests = [pod1(), pod2(), on_pod1("ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]")];
    let table = rendered(&manifests);
    let (before, rules) = (table.requests(), table.rules());
    pipeline(&table, &manifests);
    assert_eq!((table.requests(), table.rules()), (before + 2, rules));
}

#[test]
fn a_resync_after_a_restart_with_another_state_is_a_dump_a_ping_and_the_difference() {
    let start = |port: u16| on_pod1(&format!("ingress: [{{ports: [{{port: {port}}}, {{port: 443}}]}}]"));
    let table = rendered(&[pod1(), start(80)]);
    let foreign = SessionSide { network: "0.0.0.0/0".parse().unwrap(), port: 0 };
    table.add_foreign(SessionRule {
        matches: SessionMatch { scope: SessionScope::Global, transport: TCP, local: foreign, remote: foreign },
        action: Action::Allow,
    });
    let before = table.requests();
    pipeline(&table, &[pod1(), start(81)]);
    assert_eq!(table.requests(), before + 2 + 4, "two halves of one port for two of another");
    pipeline(&table, &[pod1()]);
    assert_eq!((table.rules(), table.foreign()), (vec![], 1), "somebody else's rule stays");
}

#[test]
fn b12_a_policy_of_one_pod_is_enforced_at_its_neighbour_whose_configuration_did_not_change() {
    let table = SessionTable::default();
    let mut pipeline = pipeline(&table, &[pod1(), pod2()]);
    let passes = |table: &SessionTable, port| {
        let (src, dst) = ("10.10.1.2".parse().unwrap(), "10.10.1.1".parse().unwrap());
        table.verdict(Some(&name("default/pod2")), src, dst, TCP, port) == Action::Allow
    };
    assert!(passes(&table, 80) && passes(&table, 81));
    apply(&mut pipeline, &on_pod1("ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]"));
    assert!(passes(&table, 80) && !passes(&table, 81), "without a resync");
    pipeline.apply(Event::DeletePolicy(name("default/p"))).unwrap();
    assert!(passes(&table, 81));
    assert_eq!(table.rules(), [""; 0], "nothing is left behind");
}

#[test]
fn b13_an_allow_of_all_tcp_from_everywhere_is_there_when_the_rest_is_denied() {
    let table = rendered(&[pod1(), on_pod1("ingress: [{ports: [{protocol: TCP}]}]")]);
    assert!(comes_in(&table, "8.8.8.8", TCP, 80) && comes_in(&table, "200.0.0.1", TCP, 1));
    assert!(!comes_in(&table, "8.8.8.8", UDP, 80) && !comes_in(&table, "200.0.0.1", UDP, 1));
}

#[test]
fn b14_ipv6_is_denied_and_allowed_like_ipv4() {
    let pod1 = pod_on(NODE, "pod1", "fd00::1");
    let rules = "ingress: [{from: [{ipBlock: {cidr: 'fd00:2::/32'}}], ports: [{port: 80}]}], egress: []";
    let table = rendered(&[pod1, on_pod1(&format!("policyTypes: [Ingress, Egress], {rules}"))]);
    let pod = "fd00::1".parse().unwrap();
    let comes_in = |src: &str, port| table.verdict(None, src.parse().unwrap(), pod, TCP, port) == Action::Allow;
    assert!(comes_in("fd00:2::1", 80));
    assert!(!comes_in("fd00:2::1", 81) && !comes_in("fd00:3::1", 80) && !comes_in("1::1", 80));
    let goes_out =
        |dst: &str| table.verdict(Some(&name("default/pod1")), pod, dst.parse().unwrap(), UDP, 53) == Action::Allow;
    assert!(!goes_out("1::1") && !goes_out("fd00::2") && goes_out("fd00::1"), "but to itself");
}

#[test]
fn the_own_node_comes_in_and_a_pod_of_another_node_has_no_rules() {
    let remote = pod_on("node-2", "pod6", "10.10.10.1");
    let table =
        rendered(&[node(NODE, "172.16.0.1"), pod1(), remote, policy("default/deny", "podSelector: {}, ingress: []")]);
    assert!(comes_in(&table, "172.16.0.1", TCP, 10_250) && !comes_in(&table, "172.16.0.2", TCP, 10_250));
    assert!(table.rules().iter().all(|rule| !rule.contains("10.10.10.1")), "{:?}", table.rules());
}

#[test]
fn after_a_failed_request_the_next_transaction_starts_with_a_dump_and_repairs_the_table() {
    let table = SessionTable::default();
    let mut pipeline = pipeline(&table, &[pod1(), pod2()]);
    let closed = |port: u16| object(&on_pod1(&format!("ingress: [{{ports: [{{port: {port}}}]}}]")));
    table.fail_after(Some(3));
    let error = pipeline.apply(Event::Apply(closed(80))).unwrap_err();
    assert!(error.source.to_string().contains("the stack is gone"), "{error}");
    table.fail_after(None);
    let Object::Pod(other) = object(&pod_on(NODE, "pod3", "10.10.2.1")) else { unreachable!() };
    pipeline.apply(Event::Apply(Object::Pod(other))).unwrap();
    let whole = [pod1(), pod2(), on_pod1("ingress: [{ports: [{port: 80}]}]"), pod_on(NODE, "pod3", "10.10.2.1")];
    assert_eq!(table.rules(), rendered(&whole).rules());
}

#[test]
fn while_a_policy_replaces_another_no_more_passes_than_with_one_of_them() {
    let policies = ["ingress: [{ports: [{port: 80}]}]", "ingress: [{ports: [{port: 81}]}, {ports: [{protocol: UDP}]}]"];
    for (old, new) in [(0, 1), (1, 0)] {
        let done = {
            let table = SessionTable::default();
            let mut pipeline = pipeline(&table, &[pod1(), on_pod1(policies[old])]);
            let start = table.requests();
            apply(&mut pipeline, &on_pod1(policies[new]));
            table.requests() - start
        };
        assert!(done > 4);
        for stop in 0..done {
            let table = SessionTable::default();
            let mut pipeline = pipeline(&table, &[pod1(), on_pod1(policies[old])]);
            let before =
                [80, 81, 82].map(|port| [TCP, UDP].map(|transport| comes_in(&table, "8.8.8.8", transport, port)));
            let goal = rendered(&[pod1(), on_pod1(policies[new])]);
            let after =
                [80, 81, 82].map(|port| [TCP, UDP].map(|transport| comes_in(&goal, "8.8.8.8", transport, port)));
            table.fail_after(Some(stop));
            pipeline.apply(Event::Apply(object(&on_pod1(policies[new])))).unwrap_err();
            for (at, port) in [80, 81, 82].into_iter().enumerate() {
                for (of, transport) in [TCP, UDP].into_iter().enumerate() {
                    let now = comes_in(&table, "8.8.8.8", transport, port);
                    assert!(!now || before[at][of] || after[at][of], "{transport:?}:{port} after {stop} requests");
                }
            }
        }
    }
}

#[test]
fn the_rules_of_a_pod_without_an_application_follow_when_it_has_one() {
    let table = SessionTable::default();
    table.set_application(&name("default/pod1"), false);
    let mut pipeline = pipeline(&table, &[pod1(), on_pod1("policyTypes: [Egress], egress: []")]);
    assert_eq!(table.rules(), [""; 0]);
    table.set_application(&name("default/pod1"), true);
    apply(&mut pipeline, &pod2());
    assert!(table.rules().iter().any(|rule| rule.starts_with("deny local:")), "{:?}", table.rules());
}
