//! Compares the rules that `lint` calls dead with compiling each random state without the rule.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;

use bulkhead_control::object::{IngressIsolation, Object};
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::reachability::difference::Difference;
use bulkhead_control::reachability::removal::Removals;
use bulkhead_control::source::{Strictness, load_text};

use super::makers::Makers;
use super::subject::{RuleKey, Subject};
use super::{dead, nobody};
use crate::claims::tests::{Random, state};

/// Number of random states. `control/tests/reachability` tests the engine; this tests that the output equals the engine's result.
const STATES: u64 = 600;

fn reachability(objects: Vec<Object>) -> Reachability {
    let mut pipeline = Pipeline::without_tables(IngressIsolation::default());
    pipeline.resync(objects).unwrap();
    Reachability::of(&pipeline, pipeline.mirror().unwrap())
}

fn without(objects: &[Object], (name, direction, rule): &RuleKey) -> Vec<Object> {
    let mut objects = objects.to_vec();
    for object in &mut objects {
        let Object::Policy(policy) = object else { continue };
        if policy.name == *name {
            let policy = std::sync::Arc::make_mut(policy);
            let rules = if *direction == Direction::Ingress { &mut policy.ingress } else { &mut policy.egress };
            drop(rules.as_mut().unwrap().remove(*rule));
        }
    }
    objects
}

#[test]
fn a_rule_is_called_dead_exactly_when_nothing_changes_without_it_and_is_told_by_its_policy_or_by_itself() {
    let mut reached: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..STATES {
        let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (text, _) = state(&mut random);
        let objects = load_text("state", &text, Strictness::Strict).unwrap().objects;
        let mut pipeline = Pipeline::with_every_rule(IngressIsolation::default());
        pipeline.resync(objects.clone()).unwrap();
        let whole = Reachability::of(&pipeline, pipeline.mirror().unwrap());
        let mut removals = Removals::of(&whole, pipeline.origins());
        let subjects = Subject::all(pipeline.cache());
        let makers = Makers::new(pipeline.cache(), &[]);
        let mut told = Vec::new();
        for subject in subjects.iter().filter(|subject| !subject.pods.is_empty()) {
            told.extend(subject.rules.iter().flat_map(|rule| nobody::rule(pipeline.cache(), &makers, subject, rule)));
        }
        let dead = dead::find(&pipeline, &mut removals, &makers, &subjects, &told);
        let before = reachability(objects.clone());
        for subject in &subjects {
            for rule in &subject.rules {
                let key = (subject.name.clone(), rule.direction, rule.at);
                let changes_nothing = Difference::of(&before, &reachability(without(&objects, &key))).is_empty();
                let is_called_dead = dead.rules.contains(&key);
                assert_eq!(is_called_dead, changes_nothing, "seed {seed}: {key:?}\n{text}");
                let place = Some((rule.direction, rule.at));
                let all = || dead.found.iter().chain(&told).filter(|found| found.policy == subject.name);
                let is_told = all().any(|found| found.rule == place || found.rule.is_none());
                assert!(!is_called_dead || is_told, "seed {seed}: {key:?} is dead and not told\n{text}");
                *reached.entry(if is_called_dead { "dead" } else { "alive" }).or_default() += 1;
            }
        }
        for found in dead.found {
            *reached.entry(found.check.id).or_default() += 1;
        }
    }
    for what in ["dead", "alive", "redundant-rule", "blocked-rule", "policy-changes-nothing", "policy-selects-nobody"] {
        assert!(reached.get(what).is_some_and(|&count| count >= 5), "{what}: {reached:?}");
    }
}

/// Returns the findings about dead rules and policies in a state with a pod whose cluster policy `agents` has these egress rules, in the
/// form "path, check".
fn dead_with(egress: &str) -> Vec<String> {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: agent, namespace: shop, labels: {{app: agent}}}}, spec: {{nodeName: n1}}, \
         status: {{phase: Running, podIP: 10.244.1.5}}}}\n---\n\
         {{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: agents}}, spec: {{tier: Admin, \
         priority: 10, subject: {{pods: {{podSelector: {{matchLabels: {{app: agent}}}}}}}}, egress: [{egress}]}}}}"
    );
    let mut pipeline = Pipeline::with_every_rule(IngressIsolation::default());
    pipeline.resync(load_text("state", &text, Strictness::Strict).unwrap().objects).unwrap();
    let state = Reachability::of(&pipeline, pipeline.mirror().unwrap());
    let subjects = Subject::all(pipeline.cache());
    let mut removals = Removals::of(&state, pipeline.origins());
    let dead = dead::find(&pipeline, &mut removals, &Makers::new(pipeline.cache(), &[]), &subjects, &[]);
    let told = |found: &super::Found<'_>| {
        let at = found.rule.map_or("policy".to_owned(), |(direction, at)| format!("{direction}[{at}]"));
        format!("{at} {}", found.check.id)
    };
    dead.found.iter().map(told).collect()
}

#[test]
fn a_rule_is_not_dead_if_a_learned_name_would_decide_without_it() {
    let names = |port: u16| {
        format!(
            "{{action: Accept, to: [{{domainNames: [www.example.com]}}], protocols: [{{tcp: {{destinationPort: {{number: {port}}}}}}}]}}"
        )
    };
    let deny = |block: &str| format!("{{action: Deny, to: [{{networks: [{block}]}}]}}");
    let accept = |block: &str| format!("{{action: Accept, to: [{{networks: [{block}]}}]}}");
    let all = deny("0.0.0.0/0");
    let metadata = deny("169.254.169.254/32");
    let denied_before = dead_with(&[&metadata, &*names(80), &all].map(String::from).join(", "));
    assert!(denied_before.is_empty(), "{denied_before:?}");
    assert_eq!(dead_with(&format!("{metadata}, {all}")), ["egress[0] redundant-rule"]);
    assert_eq!(
        dead_with(&format!("{}, {metadata}, {}, {all}", deny("169.254.0.0/16"), names(80))),
        ["egress[1] shadowed-rule"]
    );
    assert_eq!(dead_with(&format!("{}, {}", accept("0.0.0.0/0"), names(80))), ["policy policy-changes-nothing"]);
    let dead = dead_with(&format!("{}, {}, {all}", names(443), names(80)));
    assert!(dead.is_empty(), "{dead:?}");
}
