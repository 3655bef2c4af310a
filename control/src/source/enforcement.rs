//! Reads the annotation that sets whether a policy is enforced.

use serde_json::Value;

use super::error::{Findings, quoted};
use super::names;
use super::path::FieldPath;
use crate::object::{DENIED_ANNOTATION, ENFORCEMENT_ANNOTATION, Enforcement};

/// The prefix of Bulkhead's annotation keys.
const OWN: &str = "bulkhead.dev/";

/// Returns the value of [`ENFORCEMENT_ANNOTATION`], or `None` if the object has no such annotation.
///
/// An invalid value means [`Enforcement::Enforce`], so that a typo opens nothing. It is a warning, not a fault, because the object's spec
/// is valid.
pub(super) fn of(object: &Value, findings: &mut Findings) -> Option<Enforcement> {
    let annotations = object.pointer("/metadata/annotations")?.as_object()?;
    let is_unknown =
        |key: &&String| key.starts_with(OWN) && ![ENFORCEMENT_ANNOTATION, DENIED_ANNOTATION].contains(&key.as_str());
    for key in annotations.keys().filter(is_unknown) {
        if names::nearest(key, [ENFORCEMENT_ANNOTATION]).is_some() {
            let path = FieldPath::of("metadata").key("annotations").key(key);
            let help = format!("did you mean `{ENFORCEMENT_ANNOTATION}`?");
            findings.warning(&path, "unknown annotation, which has no effect", help);
        }
    }
    let annotation = annotations.get(ENFORCEMENT_ANNOTATION)?;
    let known = annotation.as_str().and_then(Enforcement::from_name);
    Some(known.unwrap_or_else(|| {
        let path = FieldPath::of("metadata").key("annotations").key(ENFORCEMENT_ANNOTATION);
        let text = annotation.as_str().map_or_else(|| annotation.to_string(), str::to_owned);
        let words = [Enforcement::Audit, Enforcement::Enforce].map(Enforcement::name);
        let help = match names::nearest(&text, words) {
            Some(word) => format!("did you mean `{word}`?"),
            None => "write audit or enforce".to_owned(),
        };
        findings.warning(&path, format!("unknown value {}, treated as enforce", quoted(&text)), help);
        Enforcement::Enforce
    }))
}
