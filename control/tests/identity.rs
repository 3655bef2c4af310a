//! `engine: identity` against known answers, and against the oracle and the rule lists on random histories.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails, and a skipped one says so")]

mod cases;
mod oracle;
mod random;
mod vswitch;

use std::collections::BTreeMap;

use bulkhead_classifier::Action;
use bulkhead_control::object::IngressIsolation;
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Engine;
use bulkhead_control::source::Strictness;
use cases::{Cell, QUESTIONS, Question};
use oracle::changes::events;
use oracle::{Flow, Owner, State};
use random::{History, Probes, Rng, Step, history, objects, shuffled};
use vswitch::Vswitches;

fn identities(nodes: &[&str]) -> Vswitches {
    Vswitches::nodes_by(nodes, IngressIsolation::ClusterDefault, Engine::Identity)
}

/// All cells of a file, in a pipeline a node that follows the steps and in one that starts with each.
fn run(file: &str, question: Question) -> Option<(usize, usize)> {
    let (mut compared, mut wrong, all) = (0, Vec::new(), cases::load(file)?);
    for (at_case, case) in all.iter().enumerate() {
        let steps = case["steps"].as_array().unwrap();
        let nodes = cases::nodes_of(steps);
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let (mut running, mut before) = (identities(&nodes), State::default());
        for (at, step) in steps.iter().enumerate() {
            let state = question.asked_of(cases::state(step, Strictness::Strict));
            events(&before, &state, at_case % 2 == 0).iter().for_each(|event| running.apply(event));
            let mut scratch = identities(&nodes);
            scratch.resync(&state.objects());
            for Cell { flow, passes, what } in cases::asked(step, question) {
                compared += 1;
                let answers = [running.allow(&state, &flow), scratch.allow(&state, &flow)];
                if answers != [passes; 2] {
                    wrong.push(format!("case {} step {at}: {what} must be {passes}: {answers:?}", case["id"]));
                }
            }
            before = state;
        }
    }
    wrong.truncate(40);
    assert!(wrong.is_empty(), "wrong (running, from scratch):\n  {}", wrong.join("\n  "));
    Some((all.len(), compared))
}

#[test]
fn every_cyclonus_case_is_right_step_by_step_and_from_scratch() {
    let all = QUESTIONS.map(|question| run("cyclonus_cases.json", question));
    let [Some(all), Some(ingress), Some(egress)] = all else { return };
    println!("{all:?} {ingress:?} {egress:?}");
    // All 123,669 but the diagonal.
    assert_eq!([all, ingress, egress], [(230, 123_669 - 13_713); 3]);
}

#[test]
fn every_trap_case_is_right_step_by_step_and_from_scratch() {
    for question in QUESTIONS {
        let Some((cases, cells)) = run("trap_cases.json", question) else { return };
        assert_eq!(cases, 29);
        assert!(cells > 10_000, "only {cells} cells were compared");
    }
}

const HISTORIES: u64 = 80;
const FLOWS: usize = 250;
/// Every how many changes a history is looked at.
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
            for _ in 0..FLOWS {
                if let Some(flow) = probes.flow(&mut rng) {
                    compare(&state, [&lists, &identities], &flow, &format!("seed {seed}, step {at}"), &mut reached);
                }
            }
        }
    }
    println!("{reached:?}");
    for what in ["allow", "deny", "IPv4", "IPv6", "isolated", "cluster policy", "own node", "denied beyond a node"] {
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
    let places = |hops: &[vswitch::Hop]| hops.iter().map(|hop| (hop.node.clone(), hop.action)).collect::<Vec<_>>();
    assert_eq!(places(&hops), places(&expected), "{at}: {flow:?}");
    let denied =
        |hops: &[vswitch::Hop]| hops.last().filter(|hop| hop.action == Action::Deny).and_then(|hop| hop.origin.clone());
    assert_eq!(denied(&hops), denied(&expected), "{at}: {flow:?}");
    let mut add = |what, holds: bool| *reached.entry(what).or_default() += u64::from(holds);
    add(if passes { "allow" } else { "deny" }, true);
    add(if flow.src.is_ipv4() { "IPv4" } else { "IPv6" }, true);
    add("isolated", matches!(denied(&hops), Some(Origin::Isolation { .. })));
    add("cluster policy", hops.iter().any(|hop| matches!(hop.origin, Some(Origin::ClusterPolicy { .. }))));
    add("own node", judged.own_node);
    add("denied beyond a node", hops.len() == 2 && !passes);
}
