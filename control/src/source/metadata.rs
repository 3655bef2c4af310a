//! Names and namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::error::{Findings, Problem, quoted};
use super::names;
use super::path::FieldPath;
use super::raw;
use crate::object::ObjectName;

/// The fields of `ObjectMeta`, those of earlier versions of Kubernetes included.
const FIELDS: [&str; 17] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
    "clusterName",
    "initializers",
];

/// The fields on which it depends which pods a policy is about.
const NAMING: [&str; 2] = ["name", "namespace"];

/// Where a policy belongs.
pub(super) struct Place {
    /// None when no namespace can have what is written there as its name.
    pub(super) namespace: Option<Arc<str>>,
    /// None when it cannot be read.
    pub(super) name: Option<Arc<str>>,
}

#[derive(Default, Deserialize)]
struct Names {
    name: Option<String>,
    namespace: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only whether they have this shape matters")]
struct Notes {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// Where the policy belongs. What is wrong is a problem only where that depends on it: a field that nobody knows, or a label
/// that is none, is worth a warning.
pub(super) fn place(value: &Value, findings: &mut Findings) -> Place {
    let base = FieldPath::of("metadata");
    let Some(metadata) = value.get("metadata") else {
        let problem = Problem::new(&FieldPath::default(), "missing field `metadata`", "add `metadata` with a `name`");
        findings.problems.push(problem);
        return Place { namespace: Some("default".into()), name: None };
    };
    let mut metadata = metadata.clone();
    let before = findings.problems.len();
    restore_misspelt(&mut metadata, &base, findings);
    match raw::typed::<Names>(&metadata, &base) {
        // Whoever has misspelt the name has not forgotten it.
        Ok(Names { name, namespace }) => {
            if findings.problems.len() == before
                && let Some(name) = object_name(name, namespace, &mut findings.problems)
            {
                if let Err(problem) = raw::typed::<Notes>(&metadata, &base) {
                    findings.warnings.push(problem);
                }
                return Place { namespace: Some(name.namespace), name: Some(name.name) };
            }
        }
        Err(problem) => findings.problems.push(problem),
    }
    let namespace = match metadata.get("namespace") {
        None | Some(Value::Null) => Some("default".into()),
        Some(Value::String(text)) if text.is_empty() => Some("default".into()),
        Some(written) => scalar(written).filter(|text| names::is_dns_label(text)),
    };
    let name = metadata.get("name").and_then(scalar).filter(|text| names::is_dns_subdomain(text));
    Place { namespace, name }
}

/// Puts the values of misspelt naming fields where they were meant to be, as problems, and warns of all other fields that are
/// not known.
fn restore_misspelt(metadata: &mut Value, base: &FieldPath, findings: &mut Findings) {
    let Some(fields) = metadata.as_object_mut() else { return };
    let unknown: Vec<String> = fields.keys().filter(|key| !FIELDS.contains(&key.as_str())).cloned().collect();
    for key in unknown {
        let (path, text) = (base.key(&key), format!("unknown field {}", quoted(&key)));
        match names::nearest(&key, FIELDS).filter(|field| NAMING.contains(field)) {
            Some(meant) if !fields.contains_key(meant) => {
                findings.problem(&path, text, format!("did you mean `{meant}`?"));
                let value = fields.remove(&key).unwrap_or_default();
                fields.insert(meant.to_owned(), value);
            }
            _ => findings.warning(&path, text, "remove it if it is a mistake; no policy depends on it"),
        }
    }
}

/// The text that a scalar was written as, as far as that is known: `name: 7` is hardly anything but "7".
pub(super) fn scalar(value: &Value) -> Option<Arc<str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The name of a namespaced object, checked.
pub(super) fn object_name(
    name: Option<String>,
    namespace: Option<String>,
    problems: &mut Vec<Problem>,
) -> Option<ObjectName> {
    let base = FieldPath::of("metadata");
    let name = plain_name(name, problems);
    // As the API server: an empty namespace is an absent one.
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "default".to_owned());
    if !names::is_dns_label(&namespace) {
        let help = "write up to 63 lower-case letters, digits and `-`";
        problems.push(Problem::new(&base.key("namespace"), format!("invalid namespace {}", quoted(&namespace)), help));
        return None;
    }
    Some(ObjectName::new(namespace, name?))
}

/// The name of an object, checked.
pub(super) fn plain_name(name: Option<String>, problems: &mut Vec<Problem>) -> Option<String> {
    let base = FieldPath::of("metadata");
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        problems.push(Problem::new(&base, "missing field `name`", "add `name`"));
        return None;
    };
    if !names::is_dns_subdomain(&name) {
        let help = "write lower-case letters, digits, `-` and `.`, a letter or digit first and last";
        problems.push(Problem::new(&base.key("name"), format!("invalid name {}", quoted(&name)), help));
        return None;
    }
    Some(name)
}
