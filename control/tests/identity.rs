//! Tests `engine: identity` with known answers, and on random histories with the oracle and the rule lists.

use std::collections::BTreeMap;

use crate::cases::QUESTIONS;
use crate::oracle::{Flow, Owner, State};
use crate::random::{History, Probes, Rng, Step, history, objects, shuffled};
use crate::vswitch::Vswitches;
use bulkhead_classifier::Action;
use bulkhead_control::object::{IngressIsolation, Pod};
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Engine;

fn identities(nodes: &[&str]) -> Vswitches {
    Vswitches::nodes_by(nodes, IngressIsolation::ClusterDefault, Engine::Identity)
}

#[test]
fn every_cyclonus_case_is_right_step_by_step_and_from_scratch() {
    let Some(all) = crate::cases::load("cyclonus_cases.json") else { return };
    for question in QUESTIONS {
        let compared = crate::cases::run_on(&all, question, identities);
        // All 123,669 except the diagonal.
        assert_eq!((compared.cases, compared.cells), (230, 123_669 - 13_713));
    }
}

#[test]
fn every_trap_case_is_right_step_by_step_and_from_scratch() {
    let Some(all) = crate::cases::load("trap_cases.json") else { return };
    for question in QUESTIONS {
        let compared = crate::cases::run_on(&all, question, identities);
        assert!(compared.cases == 29 && compared.cells > 10_000, "{compared:?}");
    }
}

const HISTORIES: u64 = 80;
const FLOWS: usize = 250;
/// Changes between two compared states of a history.
const STEPS_PER_STATE: usize = 6;

#[test]
fn identities_say_what_the_oracle_says_and_deny_for_the_reason_that_rule_lists_have() {
    let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..HISTORIES {
        let mut rng = Rng::new(seed);
        let History { isolation, initial, steps } = history(&mut rng);
        let [mut lists, mut identities] =
            [Engine::Acl, Engine::Identity].map(|engine| Vswitches::nodes_by(&objects::NODES, isolation, engine));
        let isolates = isolation == IngressIsolation::DefaultDeny;
        let mut state = State { isolates, ..State::default() };
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Event(event) => {
                    state.apply(&event);
                    lists.apply(&event);
                    identities.apply(&event);
                }
                Step::Resync(order) => {
                    let objects = shuffled(state.objects(), order);
                    lists.resync(&objects);
                    identities.resync(&objects);
                }
            }
            if at + 1 < initial || !(at + 1 - initial).is_multiple_of(STEPS_PER_STATE) {
                continue;
            }
            let probes = Probes::of(&state, false);
            for flow in (0..FLOWS / 5).filter_map(|_| probes.flow(&mut rng)) {
                let Owner::Pod(Pod { node: Some(node), .. }) = state.owner(flow.dst) else { continue };
                let flow = Flow { src: flow.dst, ..flow };
                let [expected, hairpin] = [&lists, &identities].map(|vswitches| vswitches.hairpin(node, &flow));
                assert_eq!(hairpin, expected, "seed {seed}, step {at}: {flow:?}");
                let denied = hairpin.is_some_and(|(action, _)| action == Action::Deny);
                *reached.entry("hairpin denied").or_default() += u64::from(denied);
            }
            for _ in 0..FLOWS {
                if let Some(flow) = probes.flow(&mut rng) {
                    compare(&state, [&lists, &identities], &flow, &format!("seed {seed}, step {at}"), &mut reached);
                }
            }
        }
    }
    println!("{reached:?}");
    let rare = ["cluster policy", "own node", "denied beyond a node", "hairpin denied"];
    for what in ["allow", "deny", "IPv4", "IPv6", "isolated"].into_iter().chain(rare) {
        assert!(reached.get(what).is_some_and(|&count| count > 200), "{what}: {reached:?}");
    }
}

fn compare(
    state: &State,
    [lists, identities]: [&Vswitches; 2],
    flow: &Flow,
    at: &str,
    reached: &mut BTreeMap<&str, u64>,
) {
    let is_asked = |end| match state.owner(end) {
        Owner::Several => false,
        Owner::Pod(pod) => pod.node.is_some(),
        _ => true,
    };
    if !is_asked(flow.src) || !is_asked(flow.dst) {
        return;
    }
    let judged = state.judge(flow);
    let [expected, hops] = [lists, identities].map(|vswitches| vswitches.hops(state, flow, true));
    let passes = hops.iter().all(|hop| hop.action == Action::Allow);
    assert_eq!(passes, judged.passes(), "{at}: {flow:?}\n{judged:?}\n{hops:?}");
    let places =
        |hops: &[crate::vswitch::Hop]| hops.iter().map(|hop| (hop.node.clone(), hop.action)).collect::<Vec<_>>();
    assert_eq!(places(&hops), places(&expected), "{at}: {flow:?}");
    let denied = |hops: &[crate::vswitch::Hop]| {
        hops.last().filter(|hop| hop.action == Action::Deny).and_then(|hop| hop.origin.clone())
    };
    assert_eq!(denied(&hops), denied(&expected), "{at}: {flow:?}");
    let mut add = |what, holds: bool| *reached.entry(what).or_default() += u64::from(holds);
    add(if passes { "allow" } else { "deny" }, true);
    add(if flow.src.is_ipv4() { "IPv4" } else { "IPv6" }, true);
    add("isolated", matches!(denied(&hops), Some(Origin::Isolation { .. })));
    add("cluster policy", hops.iter().any(|hop| matches!(hop.origin, Some(Origin::ClusterPolicy { .. }))));
    add("own node", judged.own_node);
    add("denied beyond a node", hops.len() == 2 && !passes);
}
