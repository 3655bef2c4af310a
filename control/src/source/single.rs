//! One object at a time, for code that gets objects from elsewhere than files: each is read as if a file held it.
//!
//! An object keeps its [`Faults`] after it is read: a server sends an object once, and each batch reports the faults of all objects.

use serde_json::Value;

pub use super::cluster_policy::{Unknown, needs_labels};
use super::decode::{Decoded, Inherited, decode};
use super::error::{Findings, Problem, SourceError, SourceErrors};
pub use super::fallback::exclude_namespaces;
use super::load::consequence;
use super::outcome::Outcome;
use crate::object::Object;

/// An object as it was read.
#[derive(Debug)]
pub struct Single {
    /// The object, or a substitute that allows no more than any possible meaning of a faulty one. `None` if no substitute is safe.
    pub object: Option<Object>,
    /// What is not in order with it; `None` if nothing is.
    pub faults: Option<Box<Faults>>,
}

/// What is not in order with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// What messages call the object.
    label: String,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Whether a substitute exists that allows no more than the object can mean.
    is_survived: bool,
    /// What the remedy ends with.
    consequence: &'static str,
}

/// Reads an object, whose kind is the one given unless it says its own. Of two models it is read by that of today's servers.
///
/// `None` if it is of a kind that is not read.
pub fn read(value: Value, api_version: &str, kind: &str) -> Option<Single> {
    let read = match decode(value, &Inherited::new(api_version, kind)) {
        // Servers know the model of 2016 no more.
        Decoded::Read(read) | Decoded::BySemantics { v1: read, .. } => *read,
        Decoded::Skipped { .. } | Decoded::Workload(_) | Decoded::Unreadable(_) => return None,
    };
    let faults = Faults::new(read.label, read.findings, &read.outcome);
    let object = match read.outcome {
        Outcome::Object(object) | Outcome::Closed(object) => Some(object),
        Outcome::Nothing | Outcome::Unreadable => None,
    };
    Some(Single { object, faults })
}

impl Single {
    /// Whether a part of the object is not understood.
    pub fn has_problems(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.has_problems())
    }
}

impl Faults {
    /// `None` if the object is in order.
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

    /// Whether there is a part of the object that is not understood, rather than one that deserves a look.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Whether the other objects may take effect without this one. False if traffic that this object forbids would pass without it.
    pub const fn is_survived(&self) -> bool {
        self.is_survived
    }

    /// Adds what is not understood. `place` is what messages name instead of a file.
    pub fn tell_problems(&self, place: &str, told: &mut SourceErrors) {
        let consequence = if self.is_survived { self.consequence } else { "" };
        told.extend(self.problems.iter().map(|problem| self.error(place, problem, consequence)));
    }

    /// Adds what deserves a look. `place` is what messages name instead of a file.
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
        let clean = read(pod, "v1", "Pod").unwrap();
        assert!(matches!(clean.object, Some(Object::Pod(_))) && clean.faults.is_none(), "{clean:?}");
        assert!(read(json!({"metadata": {"name": "a"}}), "apps/v1", "Deployment").is_none());
        let policy = json!({"metadata": {"name": "p", "namespace": "x"}, "spec": {"ingres": []}});
        let closed = read(policy, "networking.k8s.io/v1", "NetworkPolicy").unwrap();
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
