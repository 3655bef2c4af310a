//! Random changes of a policy: strict and lenient mode agree, and a changed rule allows no more.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::super::super::tests_properties::value;
use super::*;
use crate::foreign::calico::Rule;

/// Values that occur in Calico's policies, and others.
fn changed() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "",
        "Allow",
        "Deny",
        "Pass",
        "Log",
        "allow",
        "TCP",
        "ICMP",
        "6",
        "all()",
        "global()",
        "has(a)",
        "a == 'b'",
        "a = b",
        "(",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "fd00::/8",
        "10.0.0.1",
        "80",
        "1:5",
        "5:1",
        "http",
        "Ingress",
    ]);
    let word = words.prop_map(Value::from);
    prop_oneof![
        3 => word.clone(),
        2 => prop::collection::vec(word, 0..3).prop_map(Value::from),
        1 => (-1i64..300).prop_map(Value::from),
        3 => value(),
    ]
}

fn good() -> Value {
    json!({
        "tier": "default", "order": 10, "selector": "app == 'web'", "types": ["Ingress", "Egress"],
        "ingress": [
            {"action": "Allow", "protocol": "TCP", "source": {"selector": "a == 'b'", "nets": ["10.0.0.0/8"]}, "destination": {"ports": [80, "1:5", "http"]}},
            {"action": "Deny", "ipVersion": 4, "source": {"namespaceSelector": "all()", "notSelector": "has(c)", "notNets": ["10.0.0.0/8"]}},
            {"action": "Pass", "protocol": "ICMP", "icmp": {"type": 8, "code": 0}},
        ],
        "egress": [{"action": "Allow", "destination": {"serviceAccounts": {"names": ["a"]}, "notPorts": [1]}, "protocol": "UDP"}],
    })
}

const PLACES: [&str; 33] = [
    "/tier",
    "/order",
    "/selector",
    "/types",
    "/types/0",
    "/ingress",
    "/ingress/0",
    "/ingress/0/action",
    "/ingress/0/protocol",
    "/ingress/0/source",
    "/ingress/0/source/selector",
    "/ingress/0/source/nets",
    "/ingress/0/source/nets/0",
    "/ingress/0/destination",
    "/ingress/0/destination/ports",
    "/ingress/0/destination/ports/0",
    "/ingress/0/destination/ports/1",
    "/ingress/1",
    "/ingress/1/action",
    "/ingress/1/ipVersion",
    "/ingress/1/source/namespaceSelector",
    "/ingress/1/source/notSelector",
    "/ingress/1/source/notNets",
    "/ingress/2/protocol",
    "/ingress/2/icmp",
    "/ingress/2/icmp/type",
    "/ingress/2/icmp/code",
    "/egress",
    "/egress/0/destination",
    "/egress/0/destination/serviceAccounts",
    "/egress/0/destination/serviceAccounts/names",
    "/egress/0/destination/notPorts",
    "/egress/0/protocol",
];

fn policy_of(text: &str, strictness: Strictness) -> Option<Policy> {
    let loaded = load(text, strictness).ok()?;
    policies(&loaded).first().map(|&policy| policy.clone())
}

#[test]
fn a_faulty_rule_is_replaced_by_one_that_allows_no_more_and_the_others_stay() {
    let text = |spec: &Value| {
        let metadata = json!({"name": "p", "namespace": "x"});
        json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})
            .to_string()
    };
    let whole = policy_of(&text(&good()), Strictness::Strict).unwrap();
    let (accepted, replaced, refused) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let count = |cell: &Cell<usize>| cell.set(cell.get() + 1);
    let mut runner = TestRunner::new(Config::with_cases(4000));
    let change = (prop::sample::select(&PLACES[..]), changed());
    let result = runner.run(&change, |(place, value)| {
        let mut spec = good();
        *spec.pointer_mut(place).unwrap() = value;
        let (strict, lenient) =
            (policy_of(&text(&spec), Strictness::Strict), policy_of(&text(&spec), Strictness::Lenient));
        match (strict, lenient) {
            (Some(strict), lenient) => {
                count(&accepted);
                prop_assert_eq!(Some(strict), lenient);
            }
            (None, Some(lenient)) => {
                count(&replaced);
                prop_assert!(lenient.fault.is_some());
                let is_closed = |rule: &Rule| [Action::Log, Action::Deny].map(Rule::everything).contains(rule);
                let known = |rule: &Rule, others: &[Rule]| is_closed(rule) || others.contains(rule);
                prop_assert!(lenient.ingress.iter().all(|rule| known(rule, &whole.ingress)), "{:?}", lenient.ingress);
                prop_assert!(lenient.egress.iter().all(|rule| known(rule, &whole.egress)), "{:?}", lenient.egress);
            }
            (None, None) => count(&refused),
        }
        Ok(())
    });
    result.unwrap();
    let reached = [accepted.get(), replaced.get(), refused.get()];
    assert!(reached.iter().all(|&count| count > 100), "{reached:?}");
}

#[test]
fn no_object_of_calico_makes_it_panic() {
    let kinds = prop::sample::select(vec![
        "NetworkPolicy",
        "GlobalNetworkPolicy",
        "StagedNetworkPolicy",
        "StagedKubernetesNetworkPolicy",
        "Tier",
        "NetworkSet",
        "GlobalNetworkSet",
        "HostEndpoint",
    ]);
    let mut runner = TestRunner::new(Config::with_cases(2000));
    let result = runner.run(&(kinds, value(), any::<bool>()), |(kind, value, is_stored)| {
        let mut value = value;
        if let Some(fields) = value.as_object_mut() {
            let version = if is_stored { "crd.projectcalico.org/v1" } else { "projectcalico.org/v3" };
            fields.insert("apiVersion".to_owned(), version.into());
            fields.insert("kind".to_owned(), kind.into());
        }
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            if let Err(errors) = load(&value.to_string(), strictness) {
                prop_assert!(errors.shown().iter().all(|error| !error.problem.is_empty() && !error.help.is_empty()));
            }
        }
        Ok(())
    });
    result.unwrap();
}
