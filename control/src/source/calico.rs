//! Reads Calico's objects of `projectcalico.org/v3` and `crd.projectcalico.org/v1`.
//!
//! ```text
//!  policies --policy--> metadata, tier, selectors, types --any fault--> input refused: the pods of the policy are unknown
//!               `-rule-> each rule --any fault--> strict: input refused; lenient: an Allow decides nothing, any other rule denies everything
//!  Tier, NetworkSet, GlobalNetworkSet, HostEndpoint --objects
//! ```
//! What a policy of pods cannot say, such as ports of the source, is a fault. What decides nothing about pods is passed over with a warning.
//!
//! Source: projectcalico/calico, `api/pkg/apis/projectcalico/v3` and `libcalico-go/lib/validator/v3`.

mod objects;
mod policy;
mod ports;
mod raw;
mod rule;
mod staged;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use super::error::{Findings, Problem, quoted};
use super::metadata::{self, Place};
use super::outcome::{ObjectKey, Outcome, Read};
use super::path::FieldPath;
use crate::foreign::calico::Selector;
use crate::foreign::{ForeignKind, ForeignName, ForeignObject};

/// The annotation in which Calico keeps the metadata of an object that it stores in `crd.projectcalico.org`, as JSON.
const METADATA_ANNOTATION: &str = "projectcalico.org/metadata";

/// The API group of an object. Both have the same fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// `projectcalico.org/v3`, whose server fills in defaults.
    Api,
    /// `crd.projectcalico.org/v1`, in which Calico stores the objects.
    Stored,
}

/// Reads an object of Calico, or a ServiceAccount. `None` if it is neither, or of a kind that policies do not need.
pub(super) fn read(api_version: &str, kind: &str, value: &Value) -> Option<Read> {
    let group = match api_version {
        "projectcalico.org/v3" => Group::Api,
        "crd.projectcalico.org/v1" => Group::Stored,
        "v1" if kind == "ServiceAccount" => return Some(objects::service_account(value)),
        _ => return None,
    };
    let kind = match kind {
        "NetworkPolicy" => ForeignKind::CalicoNetworkPolicy,
        "GlobalNetworkPolicy" => ForeignKind::CalicoGlobalNetworkPolicy,
        "StagedNetworkPolicy" => ForeignKind::CalicoStagedNetworkPolicy,
        "StagedGlobalNetworkPolicy" => ForeignKind::CalicoStagedGlobalNetworkPolicy,
        "StagedKubernetesNetworkPolicy" => return Some(staged::read(value)),
        "Tier" => return Some(objects::tier(value, group)),
        "NetworkSet" => return Some(objects::network_set(ForeignKind::CalicoNetworkSet, value, group)),
        "GlobalNetworkSet" => return Some(objects::network_set(ForeignKind::CalicoGlobalNetworkSet, value, group)),
        "HostEndpoint" => return Some(objects::host_endpoint(value, group)),
        _ => return None,
    };
    Some(policy::read(kind, value, group))
}

/// The name of an object, its namespace if its kind has one, and its labels.
struct Identity {
    name: ForeignName,
    namespace: Option<Arc<str>>,
    labels: crate::object::Labels,
}

/// Returns an object's name. `None` and a problem if it is missing or invalid.
fn identity(kind: ForeignKind, value: &Value, group: Group, findings: &mut Findings) -> Option<Identity> {
    let is_namespaced = matches!(
        kind,
        ForeignKind::CalicoNetworkPolicy | ForeignKind::CalicoStagedNetworkPolicy | ForeignKind::CalicoNetworkSet
    );
    let before = findings.problems.len();
    let Place { namespace, name } = metadata::place(value, findings);
    let has_namespace = value.pointer("/metadata/namespace").is_some_and(|one| !one.is_null() && one != "");
    if !is_namespaced && has_namespace {
        let text = format!("a {} has no namespace", kind.name());
        findings.problem(&FieldPath::of("metadata").key("namespace"), text, "remove it");
    }
    let name = name?;
    if findings.problems.len() > before {
        return None;
    }
    let stored = stored_metadata(value).filter(|_| group == Group::Stored);
    let text = |key: &str| stored.as_ref().and_then(|stored| stored.get(key)?.as_str());
    let tier = value.pointer("/spec/tier").and_then(Value::as_str).unwrap_or_default();
    let own = match (text("name"), name.strip_prefix("default.")) {
        (Some(name), _) if !name.is_empty() => name.into(),
        // The prefix under which earlier versions of Calico stored the policies of the default tier.
        (_, Some(own)) if group == Group::Stored && kind.is_policy() && matches!(tier, "" | "default") => own.into(),
        _ => name,
    };
    let mut labels = crate::object::Labels::new();
    let stored_labels = stored.as_ref().and_then(|stored| stored.get("labels"));
    for all in value.pointer("/metadata/labels").into_iter().chain(stored_labels).filter_map(Value::as_object) {
        let texts = all.iter().filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
        labels.extend(texts);
    }
    let namespace = namespace.filter(|_| is_namespaced);
    let name = match &namespace {
        Some(namespace) => format!("{namespace}/{own}").into(),
        None => own,
    };
    Some(Identity { name: ForeignName { kind, name }, namespace, labels })
}

/// Returns the metadata that Calico has stored in an annotation. `None` if there is none.
fn stored_metadata(value: &Value) -> Option<Value> {
    let text = value.pointer("/metadata/annotations")?.get(METADATA_ANNOTATION)?.as_str()?;
    serde_json::from_str(text).ok()
}

/// Returns the result of reading an object. `fallback` is the outcome of an object with problems.
fn finished(
    kind: ForeignKind,
    value: &Value,
    name: Option<ForeignName>,
    object: Option<ForeignObject>,
    findings: Findings,
    fallback: Outcome,
) -> Read {
    let label = match (&name, value.pointer("/metadata/name").and_then(Value::as_str)) {
        (Some(name), _) => name.to_string(),
        (None, Some(text)) => format!("{} {text}", kind.name()),
        (None, None) => kind.name().to_owned(),
    };
    let key = name.map(|name| ObjectKey { kind: name.kind.name(), namespace: "".into(), name: name.name });
    let outcome = match object {
        Some(object) if findings.problems.is_empty() => Outcome::Object(object.into()),
        _ => fallback,
    };
    Read { label, key, outcome, findings }
}

/// Parses a selector. `None` if the text is absent or empty. Adds a problem and returns [`Selector::All`] if it is invalid.
fn selector(text: Option<&str>, allows_global: bool, path: &FieldPath, findings: &mut Findings) -> Option<Selector> {
    let text = text.filter(|text| !text.is_empty())?;
    match Selector::parse(text) {
        Ok(selector) if !selector.has_global() || (allows_global && selector == Selector::Global) => {
            return Some(selector);
        }
        Ok(_) if allows_global => {
            findings.problem(path, "`global()` cannot be combined", "write `global()` alone, in a rule of its own");
        }
        Ok(_) => {
            let help = "write it in the `namespaceSelector` of a rule's source or destination";
            findings.problem(path, "`global()` cannot be used here", help);
        }
        Err(error) => {
            let help = match text.contains(['\n', '\r']) {
                // Calico takes only spaces and tabs as white space.
                true => "write it in one line, or after `>-` with equal indentation: a selector has no line breaks",
                false => "write for example `app == 'web' && tier in {'a', 'b'}`",
            };
            findings.problem(path, format!("invalid selector {}: {error}", quoted(text)), help);
        }
    }
    Some(Selector::All)
}

fn missing(path: &FieldPath, field: &str) -> Problem {
    Problem::new(path, format!("missing field `{field}`"), format!("add `{field}`"))
}
