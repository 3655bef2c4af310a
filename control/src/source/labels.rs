//! Reads label selectors with the API server's checks.

use std::sync::Arc;

use super::error::{Findings, quoted};
use super::names;
use super::path::FieldPath;
use super::raw::{Mapping, Part, RawExpression, RawSelector};
use crate::selector::{Condition, Requirement, Selector};

/// Returns the selector, or one that selects everything if it is absent. `None` as for [`selector`].
pub(super) fn optional_selector(
    raw: &Part<RawSelector>,
    path: &FieldPath,
    findings: &mut Findings,
) -> Option<Selector> {
    match raw {
        None => Some(Selector::everything()),
        Some(Mapping(raw)) => selector(raw, path, findings),
    }
}

/// Returns the selector. `None` if any requirement is invalid: with fewer requirements it would select more.
pub(super) fn selector(raw: &RawSelector, base: &FieldPath, findings: &mut Findings) -> Option<Selector> {
    let before = findings.problems.len();
    let mut requirements = Vec::new();
    for (key, value) in raw.match_labels.iter().flatten() {
        let path = base.key("matchLabels").key(key);
        label_key(key, &path, findings);
        label_value(value, &path, findings);
        requirements
            .push(Requirement { key: key.as_str().into(), condition: Condition::In(vec![value.as_str().into()]) });
    }
    for (at, Mapping(expression)) in raw.match_expressions.iter().flatten().enumerate() {
        requirements.extend(requirement(expression, &base.key("matchExpressions").index(at), findings));
    }
    (findings.problems.len() == before).then(|| Selector::new(requirements))
}

fn requirement(raw: &RawExpression, base: &FieldPath, findings: &mut Findings) -> Option<Requirement> {
    label_key(&raw.key, &base.key("key"), findings);
    Some(Requirement { key: raw.key.as_str().into(), condition: condition(raw, base, findings)? })
}

/// Returns the condition on the label's value. `None` if it is invalid.
pub(super) fn condition(raw: &RawExpression, base: &FieldPath, findings: &mut Findings) -> Option<Condition> {
    let values: Vec<Arc<str>> = raw.values.iter().flatten().map(|value| value.as_str().into()).collect();
    for (at, value) in values.iter().enumerate() {
        label_value(value, &base.key("values").index(at), findings);
    }
    match raw.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            let text = format!("operator {} without values", raw.operator);
            findings.problem(&base.key("values"), text, "add at least one value");
            None
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let text = format!("operator {} with values", raw.operator);
            findings.problem(&base.key("values"), text, "remove the values, or write In or NotIn");
            None
        }
        "In" => Some(Condition::In(values)),
        "NotIn" => Some(Condition::NotIn(values)),
        "Exists" => Some(Condition::Exists),
        "DoesNotExist" => Some(Condition::DoesNotExist),
        other => {
            let text = format!("unknown operator {}", quoted(other));
            findings.problem(&base.key("operator"), text, "write In, NotIn, Exists or DoesNotExist");
            None
        }
    }
}

pub(super) fn label_key(key: &str, path: &FieldPath, findings: &mut Findings) {
    if !names::is_label_key(key) {
        let help = "write up to 63 letters, digits, `-`, `_` and `.`, optionally after a domain and `/`";
        findings.problem(path, format!("invalid label key {}", quoted(key)), help);
    }
}

pub(super) fn label_value(value: &str, path: &FieldPath, findings: &mut Findings) {
    if !names::is_label_value(value) {
        let help = "write up to 63 letters, digits, `-`, `_` and `.`, starting and ending with a letter or digit";
        findings.problem(path, format!("invalid label value {}", quoted(value)), help);
    }
}
