//! Random selectors: the pods that a selector resolves to are those whose labels it holds for, and its text is read back.

use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::foreign::calico::{Selector, pods};
use crate::foreign::{ForeignObject, Surroundings};
use crate::selector::{Condition, Requirement};

const KEYS: [&str; 9] = [
    "app",
    "other",
    "pcns.team",
    "pcns.projectcalico.org/name",
    "pcsa.role",
    "pcsa.projectcalico.org/name",
    "projectcalico.org/namespace",
    "projectcalico.org/serviceaccount",
    "projectcalico.org/orchestrator",
];

const VALUES: [&str; 8] = ["web", "db", "red", "x", "z", "robot", "machine", "k8s"];

fn selector() -> impl Strategy<Value = Selector> {
    let value = || prop::sample::select(&VALUES[..]).prop_map(Arc::<str>::from);
    let values = || prop::collection::vec(value(), 0..3);
    let part = || prop::sample::select(vec!["", "e", "r", "ro", "t", "8s"]).prop_map(Arc::<str>::from);
    let condition = prop_oneof![
        values().prop_map(Condition::In),
        values().prop_map(Condition::NotIn),
        Just(Condition::Exists),
        part().prop_map(Condition::Contains),
        part().prop_map(Condition::StartsWith),
        part().prop_map(Condition::EndsWith),
    ];
    let label = (prop::sample::select(&KEYS[..]), condition)
        .prop_map(|(key, condition)| Selector::Label(Requirement { key: key.into(), condition }));
    let leaf = prop_oneof![8 => label, 1 => Just(Selector::All)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let several = || prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            inner.clone().prop_map(|selector| Selector::Not(Box::new(selector))),
            several().prop_map(Selector::And),
            several().prop_map(Selector::Or),
        ]
    })
}

/// Writes a selector in Calico's syntax.
fn text(selector: &Selector) -> String {
    let list = |selectors: &[Selector], between: &str| {
        let parts: Vec<_> = selectors.iter().map(|selector| format!("({})", text(selector))).collect();
        parts.join(between)
    };
    let set = |values: &[Arc<str>]| {
        let mut out = String::from("{");
        values.iter().for_each(|value| write!(out, "'{value}',").unwrap());
        out + "}"
    };
    match selector {
        Selector::All => "all()".to_owned(),
        Selector::Global => "global()".to_owned(),
        Selector::Not(selector) => format!("!({})", text(selector)),
        Selector::And(selectors) => list(selectors, " && "),
        Selector::Or(selectors) => list(selectors, "||"),
        Selector::Label(Requirement { key, condition }) => match condition {
            Condition::In(values) if values.len() == 1 => format!("{key} == \"{}\"", values[0]),
            Condition::NotIn(values) if values.len() == 1 => format!("{key} != '{}'", values[0]),
            Condition::In(values) => format!("{key} in {}", set(values)),
            Condition::NotIn(values) => format!("{key} not in {}", set(values)),
            Condition::Exists => format!("has({key})"),
            Condition::DoesNotExist => format!("!has({key})"),
            Condition::Contains(part) => format!("{key} contains '{part}'"),
            Condition::StartsWith(part) => format!("{key} starts with '{part}'"),
            Condition::EndsWith(part) => format!("{key} ends with '{part}'"),
        },
    }
}

/// All labels of a pod as selectors see them.
fn labels(world: &World, surroundings: &Surroundings, pod: &Pod) -> BTreeMap<String, Arc<str>> {
    let (namespace, account) = (&pod.name.namespace, Arc::<str>::from(pod.service_account_name()));
    let mut labels: BTreeMap<String, Arc<str>> =
        pod.labels.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
    labels.insert("projectcalico.org/namespace".into(), namespace.clone());
    labels.insert("projectcalico.org/orchestrator".into(), "k8s".into());
    labels.insert("projectcalico.org/serviceaccount".into(), account.clone());
    labels.insert("pcns.projectcalico.org/name".into(), namespace.clone());
    labels.insert("pcsa.projectcalico.org/name".into(), account.clone());
    for (key, value) in &world.namespaces[namespace].labels {
        labels.insert(format!("pcns.{key}"), value.clone());
    }
    let name = crate::object::ObjectName::new(namespace.clone(), account);
    for (key, value) in surroundings.service_accounts.get(&name).into_iter().flat_map(|account| &account.labels) {
        labels.insert(format!("pcsa.{key}"), value.clone());
    }
    labels
}

#[test]
fn a_selector_resolves_to_the_pods_for_whose_labels_it_holds() {
    let world = world("");
    let mut surroundings = Surroundings::default();
    for (name, role) in [("x/default", ""), ("x/robot", "machine"), ("z/default", "")] {
        let labels = [("role", role)].into_iter().filter(|(_, value)| !value.is_empty());
        let labels = labels.map(|(key, value)| (key.into(), value.into())).collect();
        let name = crate::fixtures::name(name);
        let object = ForeignObject::ServiceAccount(crate::foreign::ServiceAccount { name, labels });
        surroundings.set(object.name(), Some(Arc::new(object)));
    }
    let mut reached = [0, 0, 0];
    let config = proptest::test_runner::Config { cases: 4096, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&(selector(),), |(selector,)| {
            let read = Selector::parse(&text(&selector)).unwrap();
            let resolved = pods::of(&selector, &surroundings);
            for pod in &world.pods {
                let labels = labels(&world, &surroundings, pod);
                let wanted = selector.holds(&|key| labels.get(key));
                prop_assert_eq!(read.holds(&|key| labels.get(key)), wanted, "{}", text(&selector));
                let selects = resolved.as_ref().is_some_and(|peer| world.selects(peer, pod));
                prop_assert_eq!(selects, wanted, "{} {} {:?}", pod.name, text(&selector), resolved);
            }
            Ok(())
        })
        .unwrap();
    // The generator reaches selectors of each form.
    for _ in 0..256 {
        let sample = selector().new_tree(&mut runner).unwrap().current();
        match pods::of(&sample, &surroundings) {
            None => reached[0] += 1,
            Some(peer) if peer.filter.is_none() => reached[1] += 1,
            Some(_) => reached[2] += 1,
        }
    }
    assert!(reached.iter().all(|&count| count > 10), "{reached:?}");
}
