//! Properties that hold for every text.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::*;
use crate::object::Policy;

/// Values that resemble policies in places, so that random values pass the first checks.
pub(super) fn value() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "spec",
        "podSelector",
        "namespaceSelector",
        "ingress",
        "egress",
        "from",
        "to",
        "ports",
        "port",
        "endPort",
        "protocol",
        "ipBlock",
        "cidr",
        "except",
        "matchLabels",
        "matchExpressions",
        "key",
        "operator",
        "values",
        "policyTypes",
        "items",
        "metadata",
        "name",
        "labels",
        "status",
        "podIPs",
        "endpoints",
        "addresses",
        "hints",
        "loadBalancer",
        "ip",
        "x",
    ]);
    let words = prop::sample::select(vec![
        "",
        "a",
        "Ingress",
        "Egress",
        "TCP",
        "tcp",
        "In",
        "Exists",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "fd00::/8",
        "10.0.0.1",
        "80",
        "v1",
        "Pod",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1_i64..70_000).prop_map(Value::from),
        words.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..4).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}

/// Returns a valid spec in which one place has a random value.
fn spec() -> impl Strategy<Value = Value> {
    let good = json!({
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [{"podSelector": {}, "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}}],
             "ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}],
        "egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": "dns", "protocol": "UDP"}]}],
    });
    let places = [
        "",
        "/podSelector",
        "/podSelector/matchLabels",
        "/podSelector/matchLabels/app",
        "/policyTypes",
        "/policyTypes/0",
        "/ingress",
        "/ingress/0",
        "/ingress/0/from",
        "/ingress/0/from/0",
        "/ingress/0/from/0/podSelector",
        "/ingress/0/from/0/namespaceSelector",
        "/ingress/0/from/0/namespaceSelector/matchExpressions/0/values",
        "/ingress/0/ports",
        "/ingress/0/ports/0",
        "/ingress/0/ports/0/port",
        "/ingress/0/ports/0/endPort",
        "/ingress/1/from/0/ipBlock",
        "/ingress/1/from/0/ipBlock/cidr",
        "/ingress/1/from/0/ipBlock/except",
        "/egress",
        "/egress/0/to",
        "/egress/0/ports/0/protocol",
    ];
    (prop::sample::select(places.to_vec()), value()).prop_map(move |(place, value)| {
        let mut spec = good.clone();
        *spec.pointer_mut(place).expect("the places are there") = value;
        spec
    })
}

fn only_policy(loaded: &Loaded) -> &Policy {
    match loaded.objects.as_slice() {
        [Object::Policy(policy)] => policy,
        other => panic!("one policy expected: {other:?}"),
    }
}

#[test]
fn lenient_is_strict_or_closed_and_never_in_between() {
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config::with_cases(2000));
    let result = runner.run(&spec(), |spec| {
        let subject = spec.pointer("/podSelector").cloned();
        let text = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": spec}).to_string();
        let lenient = load_text("t", &text, Strictness::Lenient).expect("the name is readable, so there is a policy");
        let policy = only_policy(&lenient);
        match load_text("t", &text, Strictness::Strict) {
            Ok(strict) => {
                accepted.set(accepted.get() + 1);
                prop_assert_eq!(only_policy(&strict), policy);
                prop_assert!(policy.fault.is_none());
            }
            Err(_) => {
                refused.set(refused.get() + 1);
                prop_assert!(policy.fault.is_some());
                prop_assert_eq!((&policy.ingress, &policy.egress), (&Some(vec![]), &Some(vec![])));
                if subject != Some(json!({"matchLabels": {"app": "web"}})) {
                    // A changed subject is either read completely or selects everything.
                    let alone = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"},
                        "spec": {"podSelector": subject}});
                    let alone = load_text("t", &alone.to_string(), Strictness::Strict);
                    let expected = alone.map(|alone| only_policy(&alone).subject.clone()).unwrap_or_default();
                    prop_assert_eq!(&policy.subject, &expected);
                }
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(accepted.get() > 50 && refused.get() > 50, "accepted {accepted:?}, refused {refused:?}");
}

#[test]
fn yaml_and_json_of_the_same_value_are_read_the_same() {
    let reached = Cell::new(0);
    let mut runner = TestRunner::new(Config::with_cases(500));
    let result = runner.run(&spec(), |spec| {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": spec});
        let json = load_text("t", &object.to_string(), Strictness::Lenient).unwrap();
        // After the document marker, the same text is parsed as YAML, of which JSON is a subset.
        let yaml = load_text("t", &format!("---\n{object}"), Strictness::Lenient).unwrap();
        let (mut json, mut yaml) = (only_policy(&json).clone(), only_policy(&yaml).clone());
        (json.position, yaml.position) = (None, None);
        reached.set(reached.get() + usize::from(json.fault.is_none()));
        prop_assert_eq!(json, yaml);
        Ok(())
    });
    result.unwrap();
    assert!(reached.get() > 20, "{reached:?}");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*", lenient in any::<bool>()) {
        let strictness = if lenient { Strictness::Lenient } else { Strictness::Strict };
        let _ = load_text("t", &text, strictness);
    }

    #[test]
    fn no_mixture_of_marks_makes_it_panic(pieces in prop::collection::vec(prop::sample::select(vec![
        "{", "}", "[", "]", "\"", "'", ":", ": ", ",", "- ", "\n", "  ", "\t", "---\n", "...\n", "&a ", "*a", "<<: ", "? ", "| \n", "!!str ",
        "%YAML 1.2\n", "#", "items", "apiVersion: v1\n", "kind: List\n", "kind: Pod\n", "a", "0", "\\", "\u{feff}", "\u{0}", "\r", "~", "\u{e9}",
    ]), 0..40)) {
        let text: String = pieces.concat();
        let position = Position { file: "t".into(), document: 1, line: 1, path: "items[0]".into() };
        let _ = load_text("t", &text, Strictness::Strict);
        let _ = line_in(&text, &position, "spec.a[1]");
    }

    #[test]
    fn no_object_makes_it_panic(value in value(), kind in prop::sample::select(vec!["Deployment", "CronJob", "Pod", "Namespace", "Node", "List", "PodList", "NetworkPolicy", "Service", "EndpointSlice"])) {
        let mut value = value;
        if let Some(fields) = value.as_object_mut() {
            let api_version = match kind {
                "NetworkPolicy" => "networking.k8s.io/v1",
                "Deployment" => "apps/v1",
                "CronJob" => "batch/v1",
                "EndpointSlice" => "discovery.k8s.io/v1",
                _ => "v1",
            };
            fields.insert("apiVersion".to_owned(), api_version.into());
            fields.insert("kind".to_owned(), kind.into());
        }
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            let templates = Templates::Read(Vec::new());
            let options = Options { strictness, services: ServiceKinds::Read, templates, ..Options::default() };
            if let Err(errors) = load_text("t", &value.to_string(), options) {
                prop_assert!(errors.shown().iter().all(|error| !error.problem.is_empty() && !error.help.is_empty()));
            }
        }
    }
}
