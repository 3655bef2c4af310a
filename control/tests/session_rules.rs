//! The session rules against the oracle: random clusters and histories, one session table a node, random connections.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod oracle;
mod random;
#[path = "contiv_scenarios/session_table.rs"]
mod session_table;

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::Action;
use bulkhead_control::object::IngressIsolation;
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::session_rules::{SessionRenderer, SessionTransport};
use oracle::{Flow, Judgement, Owner, Side, State};
use random::{History, Probes, Rng, Step, history, objects, shuffled};
use session_table::SessionTable;

/// Histories, and connections at one point of each.
const HISTORIES: u64 = 60;
const FLOWS: usize = 300;
/// Every how many changes a history is looked at.
const STEPS_PER_STATE: usize = 5;

/// Whether one end lets the connection through.
fn open(judged: &Judgement, direction: Direction) -> bool {
    match judged.side(direction) {
        Side::NotIsolated | Side::Allowed(_) => true,
        Side::Denied(_) => judged.own_node,
        Side::Tier(decision) => decision.accepts,
    }
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
        for (at, step) in steps.into_iter().enumerate() {
            match step.narrowed() {
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
