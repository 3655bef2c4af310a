//! Compares session rules with the oracle, on random clusters, histories and connections, with one session table per node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::oracle::{Flow, Judgement, Owner, Side, State};
use crate::random::{History, Probes, Rng, Step, history, objects, shuffled};
use crate::session_table::SessionTable;
use bulkhead_classifier::{Action, Addresses, Rule};
use bulkhead_control::cache::Event;
use bulkhead_control::object::{IngressIsolation, Object};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::{Pipeline, RendererHandle};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::AclTable;
use bulkhead_control::renderer::session_rules::{SessionRenderer, SessionTransport, SourceRenderer};
use bulkhead_control::source::{Strictness, load_text};

/// Histories, and connections per compared state.
const HISTORIES: u64 = 60;
const FLOWS: usize = 300;
/// Changes between two compared states of a history.
const STEPS_PER_STATE: usize = 5;

/// Whether one end allows the connection.
fn open(judged: &Judgement, direction: Direction) -> bool {
    match judged.side(direction) {
        Side::NotIsolated | Side::Allowed(_) | Side::Exempt => true,
        Side::Denied(_) => judged.own_node,
        Side::Tier(decision) => decision.accepts,
        Side::End(..) => false,
    }
}

/// The steps without those that lead to too many session rules: wide port ranges, and policies of other products, which combine denies,
/// regions and protocols.
fn with_few_rules(steps: Vec<Step>) -> impl Iterator<Item = Step> {
    steps.into_iter().filter(|step| !step.is_foreign()).map(Step::narrowed)
}

#[test]
fn session_rules_let_through_what_the_oracle_allows_at_both_ends_of_every_node() {
    let mut reached: BTreeMap<(&str, bool), u64> = BTreeMap::new();
    for seed in 0..HISTORIES {
        let mut rng = Rng::new(seed);
        let History { isolation, initial, steps } = history(&mut rng);
        let tables: BTreeMap<Arc<str>, SessionTable> =
            objects::NODES.iter().map(|&node| (node.into(), SessionTable::default())).collect();
        let mut pipeline = Pipeline::with_default_isolation(Scope::Cluster, isolation);
        for (node, table) in &tables {
            pipeline.register(SessionRenderer::new(node.clone(), table.clone()));
        }
        let isolates = isolation == IngressIsolation::DefaultDeny;
        let mut state = State { isolates, ..State::default() };
        for (at, step) in with_few_rules(steps).enumerate() {
            match step {
                Step::Event(event) => {
                    state.apply(&event);
                    pipeline.apply(event).unwrap();
                }
                Step::Resync(order) => pipeline.resync(shuffled(state.objects(), order)).unwrap(),
            }
            if at + 1 < initial || !(at + 1 - initial).is_multiple_of(STEPS_PER_STATE) {
                continue;
            }
            let probes = Probes::of(&state, false);
            for _ in 0..FLOWS {
                if let Some(flow) = probes.flow(&mut rng) {
                    check(seed, at, &state, &tables, &flow, &mut reached);
                }
            }
        }
    }
    for what in ["local", "local, same node", "global", "IPv6", "UDP", "cluster policy", "Pass"] {
        for allowed in [false, true] {
            assert!(reached.get(&(what, allowed)).is_some_and(|&count| count > 500), "{what} {allowed}: {reached:?}");
        }
    }
}

fn check(
    seed: u64,
    at: usize,
    state: &State,
    tables: &BTreeMap<Arc<str>, SessionTable>,
    flow: &Flow,
    reached: &mut BTreeMap<(&str, bool), u64>,
) {
    let Some(transport) = SessionTransport::ALL.into_iter().find(|transport| transport.number() == flow.protocol)
    else {
        return;
    };
    if flow.port == 0 {
        return;
    }
    let judged = state.judge(flow);
    let (src, dst) = (state.owner(flow.src), state.owner(flow.dst));
    let node_of = |owner: &Owner<'_>| match owner {
        Owner::Pod(pod) => pod.node.clone(),
        _ => None,
    };
    let same_node = node_of(&src).is_some() && node_of(&src) == node_of(&dst);
    let mut compare = |what, node: &Arc<str>, opener, expected: bool| {
        let have = tables[node].verdict(opener, flow.src, flow.dst, transport, flow.port) == Action::Allow;
        assert_eq!(have, expected, "seed {seed}, step {at}, {what} of {node}: {flow:?}\n{:#?}", tables[node].rules());
        let family = if flow.src.is_ipv6() { "IPv6" } else { "IPv4" };
        let transport = if transport == SessionTransport::Udp { "UDP" } else { "TCP" };
        let tier = |direction| match judged.side(direction) {
            Side::Tier(_) => Some("cluster policy"),
            _ => None,
        };
        let passed = (!judged.passed.is_empty()).then_some("Pass");
        let tiers = [Direction::Egress, Direction::Ingress].into_iter().filter_map(tier).chain(passed);
        for what in [what, family, transport].into_iter().chain(tiers) {
            *reached.entry((what, expected)).or_default() += 1;
        }
    };
    if let (Owner::Pod(pod), Some(node)) = (&src, node_of(&src)) {
        let what = if same_node { "local, same node" } else { "local" };
        let expected = open(&judged, Direction::Egress) && (!same_node || open(&judged, Direction::Ingress));
        compare(what, &node, Some(&pod.name), expected);
    }
    if let Some(node) = node_of(&dst).filter(|_| !same_node) {
        compare("global", &node, None, open(&judged, Direction::Ingress));
    }
}

/// Histories whose tables are compared with those of a new renderer, and changes between comparisons.
const COMPARED: u64 = 40;
const STEPS_PER_COMPARISON: usize = 2;

/// The rule lists of a node at the source, by table name, with the origins' meanings.
fn lists(pipeline: &Pipeline, renderer: RendererHandle<SourceRenderer>) -> BTreeMap<Arc<str>, Vec<String>> {
    let Some(published) = pipeline.renderer(renderer).node_tables() else { return BTreeMap::new() };
    let line = |rule: &Rule| {
        let ends = [&rule.src, &rule.dst].map(Addresses::members);
        format!("{:?} {ends:?} {:?} {:?}", rule.action, rule.services, pipeline.origins().get(rule.origin).unwrap())
    };
    let of = |table: &AclTable| (table.name.clone(), table.tables.rules().iter().map(line).collect());
    published.tables.iter().map(of).collect()
}

#[test]
fn tables_that_followed_events_are_those_of_the_whole_state() {
    let mut reached = 0;
    for seed in 1_000..1_000 + COMPARED {
        let mut rng = Rng::new(seed);
        let History { isolation, initial, steps } = history(&mut rng);
        let node: Arc<str> = objects::NODES[0].into();
        let of = || {
            let mut pipeline = Pipeline::with_default_isolation(Scope::Node(node.clone()), isolation);
            let renderer = pipeline.register(SourceRenderer::new(node.clone()));
            (pipeline, renderer)
        };
        let (mut pipeline, renderer) = of();
        let mut state = State { isolates: isolation == IngressIsolation::DefaultDeny, ..State::default() };
        for (at, step) in with_few_rules(steps).enumerate() {
            match step {
                // Skipped: pods of a terminating namespace retain deleted policies, which a fresh start does not know.
                Step::Event(Event::DeleteNamespace(_)) => {}
                Step::Event(Event::Apply(Object::Namespace(namespace))) if namespace.terminating => {}
                Step::Event(event) => {
                    state.apply(&event);
                    pipeline.apply(event).unwrap();
                }
                Step::Resync(order) => pipeline.resync(shuffled(state.objects(), order)).unwrap(),
            }
            if at + 1 < initial || !(at + 1 - initial).is_multiple_of(STEPS_PER_COMPARISON) {
                continue;
            }
            let (mut fresh, from_scratch) = of();
            fresh.resync(state.objects()).unwrap();
            let [followed, expected] = [lists(&pipeline, renderer), lists(&fresh, from_scratch)];
            assert_eq!(followed, expected, "seed {seed}, change {at}");
            reached += followed.values().map(Vec::len).sum::<usize>();
        }
    }
    assert!(reached > 50_000, "{reached}");
}

/// Pods of a node with their labels, and two policies for port 80 of `t`: `app` allows pods with the label `app`, `tier` those with `tier`.
fn labelled(pods: [(&str, &str); 4]) -> Vec<Object> {
    let pod = |(at, (name, labels)): (usize, (&str, &str))| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x, labels: {{{labels}}}}}\n\
             spec: {{nodeName: n1}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.{}}}]}}\n",
            at + 1
        )
    };
    let policy = |label: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {label}, namespace: x}}\n\
             spec: {{podSelector: {{matchLabels: {{is: target}}}}, policyTypes: [Ingress], \
             ingress: [{{from: [{{podSelector: {{matchLabels: {{{label}: a}}}}}}], ports: [{{port: 80}}]}}]}}\n"
        )
    };
    let text: String = pods.into_iter().enumerate().map(pod).chain(["app", "tier"].map(policy)).collect();
    load_text("state", &text, Strictness::Strict).unwrap().objects
}

#[test]
fn where_another_rule_of_the_receiver_lets_the_same_through_the_senders_table_names_that_one() {
    let with = |labels| labelled([("a", labels), ("b", "app: a"), ("c", "tier: a"), ("t", "is: target")]);
    let mut pipeline = Pipeline::new(Scope::Node("n1".into()));
    let renderer = pipeline.register(SourceRenderer::new("n1".into()));
    pipeline.resync(with("app: a, tier: a")).unwrap();
    let deciding = |pipeline: &Pipeline| -> BTreeSet<String> {
        let published = pipeline.renderer(renderer).node_tables().unwrap();
        let table = published.tables.iter().find(|table| &*table.name == "local:x/a").unwrap();
        let origins = table.tables.rules().iter().filter_map(|rule| pipeline.origins().get(rule.origin));
        origins.filter(|origin| matches!(origin, Origin::Policy { .. })).map(ToString::to_string).collect()
    };
    let requests = |pipeline: &Pipeline| pipeline.renderer(renderer).table().requests();
    assert_eq!(deciding(&pipeline), ["x/app ingress[0]".to_owned()].into());
    let before = requests(&pipeline);
    let moved = with("tier: a").into_iter().find(|object| matches!(object, Object::Pod(pod) if &*pod.name.name == "a"));
    pipeline.apply(Event::Apply(moved.unwrap())).unwrap();
    assert_eq!(requests(&pipeline), before, "as many connections pass as before");
    assert_eq!(deciding(&pipeline), ["x/tier ingress[0]".to_owned()].into());
}
