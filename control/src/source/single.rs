//! Reads one object at a time, for callers that receive objects from an API server instead of files.
//!
//! [`Faults`] outlive the reading of an object: a server sends an object once, but each batch reports the faults of all objects.

use std::sync::Arc;

use serde_json::Value;

pub use super::cluster_policy::{Unknown, needs_labels};
use super::decode::{Decoded, Inherited, decode};
use super::error::{Findings, Problem, SourceError, SourceErrors};
pub use super::fallback::exclude_namespaces;
use super::foreign_policies;
use super::load::consequence;
use super::options::ForeignKinds;
use super::outcome::{ObjectKey, Outcome, Read};
use crate::object::Object;

/// The result of reading one object.
#[derive(Debug)]
pub struct Single {
    /// The object, or for a faulty one a stand-in that allows no more than any of its possible meanings. `None` if no stand-in is safe.
    pub object: Option<Object>,
    /// The problems and warnings about the object. `None` if it has neither.
    pub faults: Option<Box<Faults>>,
}

/// The problems and warnings about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The object's kind, namespace and name, for messages. Empty if no part could be read.
    label: String,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// See [`Self::is_survived()`].
    is_survived: bool,
    /// The end of the remedy: how the faulty object is treated until it is repaired.
    consequence: &'static str,
}

/// Reads an object. `api_version` and `kind` apply if the object itself does not contain them. The semantics of `extensions/v1beta1` are
/// those of current API servers. Objects of other products are read as `foreign` says.
///
/// `None` if the kind is unsupported, or another product's and `foreign` is [`ForeignKinds::Skip`].
pub fn read(value: Value, api_version: &str, kind: &str, foreign: ForeignKinds) -> Option<Single> {
    let read = match decode(value, &Inherited::new(api_version, kind)) {
        // Current API servers no longer use the model of 2016.
        Decoded::Read(read) | Decoded::BySemantics { v1: read, .. } => *read,
        Decoded::Foreign(problem) => Read::nameless(*problem),
        Decoded::OtherProduct { read, .. } if foreign != ForeignKinds::Skip => {
            foreign_policies::prepared(*read, foreign)
        }
        Decoded::Skipped { .. }
        | Decoded::OtherProduct { .. }
        | Decoded::Workload(_)
        | Decoded::Unreadable(_)
        | Decoded::NoObject(_) => return None,
    };
    let faults = Faults::new(read.label, read.findings, &read.outcome);
    let object = match read.outcome {
        Outcome::Object(object) | Outcome::Closed(object) => Some(object),
        Outcome::Nothing | Outcome::Unreadable => None,
    };
    Some(Single { object, faults })
}

/// Returns the name of an object of another product as its policies and answers know it: after its namespace and `/` if it has one.
/// `None` if it is unreadable.
pub fn foreign_name(value: Value, api_version: &str, kind: &str) -> Option<Arc<str>> {
    let Decoded::OtherProduct { read, .. } = decode(value, &Inherited::new(api_version, kind)) else { return None };
    let ObjectKey { namespace, name, .. } = read.key?;
    Some(if namespace.is_empty() { name } else { format!("{namespace}/{name}").into() })
}

impl Single {
    /// Whether a part of the object is invalid.
    pub fn has_problems(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.has_problems())
    }
}

impl Faults {
    /// Returns `None` if there are no problems and no warnings.
    fn new(label: String, findings: Findings, outcome: &Outcome) -> Option<Box<Self>> {
        let Findings { problems, warnings, .. } = findings;
        let is_clean = problems.is_empty() && warnings.is_empty();
        (!is_clean).then(|| {
            Box::new(Self {
                label,
                problems,
                warnings,
                is_survived: !matches!(outcome, Outcome::Unreadable),
                consequence: consequence(outcome),
            })
        })
    }

    /// Whether a part of the object is invalid. False if there are only warnings.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Whether the other objects may take effect without this one. False if traffic that this object denies would then pass.
    pub const fn is_survived(&self) -> bool {
        self.is_survived
    }

    /// Adds the problems to `told`. Messages contain `place` instead of a file name.
    pub fn tell_problems(&self, place: &str, told: &mut SourceErrors) {
        let consequence = if self.is_survived { self.consequence } else { "" };
        told.extend(self.problems.iter().map(|problem| self.error(place, problem, consequence)));
    }

    /// Adds the warnings to `told`. Messages contain `place` instead of a file name.
    pub fn tell_warnings(&self, place: &str, told: &mut SourceErrors) {
        told.extend(self.warnings.iter().map(|warning| self.error(place, warning, "")));
    }

    fn error(&self, place: &str, problem: &Problem, consequence: &str) -> SourceError {
        SourceError {
            file: place.into(),
            document: 0,
            line: None,
            object: Some(self.label.clone()).filter(|label| !label.is_empty()),
            path: problem.path.to_string(),
            problem: problem.text.clone(),
            help: format!("{}{consequence}", problem.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_read_alone_and_its_faults_name_the_place() {
        let pod = json!({"metadata": {"name": "a", "namespace": "x"}, "spec": {}});
        let clean = read(pod, "v1", "Pod", ForeignKinds::Skip).unwrap();
        assert!(matches!(clean.object, Some(Object::Pod(_))) && clean.faults.is_none(), "{clean:?}");
        assert!(read(json!({"metadata": {"name": "a"}}), "apps/v1", "Deployment", ForeignKinds::Skip).is_none());
        let policy = json!({"metadata": {"name": "p", "namespace": "x"}, "spec": {"ingres": []}});
        let closed = read(policy, "networking.k8s.io/v1", "NetworkPolicy", ForeignKinds::Skip).unwrap();
        assert!(matches!(closed.object, Some(Object::Policy(_))));
        let faults = closed.faults.unwrap();
        assert!(faults.has_problems() && faults.is_survived());
        let (mut problems, mut warnings) = (SourceErrors::default(), SourceErrors::default());
        faults.tell_problems("kubernetes", &mut problems);
        faults.tell_warnings("kubernetes", &mut warnings);
        let text = problems.to_string();
        assert!(text.starts_with("kubernetes: NetworkPolicy x/p: ") && text.contains("isolates its pods"), "{text}");
        assert!(warnings.is_empty(), "{warnings}");
    }
}
