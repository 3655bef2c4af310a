//! Reads and checks objects' names and namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::error::{Findings, Problem, quoted};
use super::names;
use super::path::FieldPath;
use super::raw;
use crate::object::ObjectName;

/// The fields of `ObjectMeta`, including those of earlier Kubernetes versions.
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

/// The fields that decide to which pods a policy applies.
const NAMING: [&str; 2] = ["name", "namespace"];

/// The namespace and name of a policy.
pub(super) struct Place {
    /// The policy's namespace. `None` if the value is not a valid namespace name.
    pub(super) namespace: Option<Arc<str>>,
    /// The policy's name. `None` if it could not be read.
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

/// Returns the policy's namespace and name. Faults that affect neither, such as unknown fields and invalid labels, are only warnings.
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
        // After a misspelt `name`, a message about a missing name would mislead.
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

/// Moves the values of misspelt `name` and `namespace` fields to the intended fields and adds problems. Warns about all other unknown
/// fields.
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

/// Returns the probable text of a scalar: `name: 7` means "7". `None` if the value is no scalar.
pub(super) fn scalar(value: &Value) -> Option<Arc<str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the name of a namespaced object. `None` and a problem if the name or namespace is invalid. A missing namespace means `default`.
pub(super) fn object_name(
    name: Option<String>,
    namespace: Option<String>,
    problems: &mut Vec<Problem>,
) -> Option<ObjectName> {
    let base = FieldPath::of("metadata");
    let name = plain_name(name, problems);
    // An empty namespace counts as absent, as in the API server.
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "default".to_owned());
    if !names::is_dns_label(&namespace) {
        let help = "write up to 63 lower-case letters, digits and `-`";
        problems.push(Problem::new(&base.key("namespace"), format!("invalid namespace {}", quoted(&namespace)), help));
        return None;
    }
    Some(ObjectName::new(namespace, name?))
}

/// Returns the name of an object. `None` and a problem if it is missing or no DNS subdomain.
pub(super) fn plain_name(name: Option<String>, problems: &mut Vec<Problem>) -> Option<String> {
    let base = FieldPath::of("metadata");
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        problems.push(Problem::new(&base, "missing field `name`", "add `name`"));
        return None;
    };
    if !names::is_dns_subdomain(&name) {
        let help = "write lower-case letters, digits, `-` and `.`, starting and ending with a letter or digit";
        problems.push(Problem::new(&base.key("name"), format!("invalid name {}", quoted(&name)), help));
        return None;
    }
    Some(name)
}
