//! Reads pods, namespaces and nodes: the object, or its stand-in if it could not be parsed.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::cluster::{NODE_KIND, POD_KIND, checked_namespace, checked_node, checked_pod};
use super::error::Findings;
use super::fallback;
use super::outcome::{Model, ObjectKey, Outcome, Read};
use super::path::FieldPath;
use super::raw;
use crate::object::Object;

pub(super) fn pod(value: &Value) -> Read {
    read(POD_KIND, true, value, |raw, findings| checked_pod(raw, findings).map(Object::from), fallback::pod)
}

pub(super) fn namespace(value: &Value, model: Model) -> Read {
    let build = |raw, findings: &mut Findings| checked_namespace(raw, value, model, findings);
    read("Namespace", false, value, build, |value| fallback::namespace(value, model))
}

pub(super) fn node(value: &Value) -> Read {
    read(NODE_KIND, false, value, |raw, findings| checked_node(raw, findings).map(Object::Node), fallback::node)
}

/// Reads an object of one kind: parses its fields as `T` and checks them with `build`. If either finds a fault, `fallback` makes the
/// outcome.
pub(super) fn read<T: DeserializeOwned>(
    kind: &'static str,
    namespaced: bool,
    value: &Value,
    build: impl FnOnce(T, &mut Findings) -> Option<Object>,
    fallback: impl FnOnce(&Value) -> Outcome,
) -> Read {
    let mut findings = Findings::default();
    let object = match raw::typed::<T>(value, &FieldPath::default()) {
        Ok(raw) => build(raw, &mut findings),
        Err(problem) => {
            findings.problems.push(problem);
            None
        }
    };
    let (label, key) = identify(kind, namespaced, value);
    let outcome = match object {
        Some(object) if findings.problems.is_empty() => Outcome::Object(object),
        _ => fallback(value),
    };
    Read { label, key, outcome, findings }
}

fn identify(kind: &'static str, namespaced: bool, value: &Value) -> (String, Option<ObjectKey>) {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
    let own = || text("/metadata/namespace").filter(|namespace| !namespace.is_empty());
    let namespace = if namespaced { own().unwrap_or("default") } else { "" };
    let Some(name) = text("/metadata/name") else { return (kind.to_owned(), None) };
    let label = if namespaced { format!("{kind} {namespace}/{name}") } else { format!("{kind} {name}") };
    (label, Some(ObjectKey { kind, namespace: namespace.into(), name: name.into() }))
}
