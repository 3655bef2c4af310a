//! The result of reading one object: the object or its stand-in, with messages.

use std::sync::Arc;

use super::error::{Findings, Problem};
use crate::object::Object;

/// The semantics for objects of `extensions/v1beta1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    /// As API servers since Kubernetes 1.7 define them.
    V1,
    /// As defined in 2016: policies only allow, and namespaces isolate by annotation.
    V1beta1,
}

/// The result of reading one object of a supported kind, with or without errors.
#[derive(Debug)]
pub(super) struct Read {
    /// Kind, namespace and name for messages. Contains only the parts that could be read; empty if no part could.
    pub(super) label: String,
    /// The key that no second object may have. `None` if the name could not be read.
    pub(super) key: Option<ObjectKey>,
    /// The object to use.
    pub(super) outcome: Outcome,
    /// Problems and warnings about the object.
    pub(super) findings: Findings,
}

impl Read {
    /// Returns the result for a value whose kind and name are unknown.
    pub(super) fn nameless(problem: Problem) -> Self {
        let findings = Findings { problems: vec![problem], ..Findings::default() };
        Self { label: String::new(), key: None, outcome: Outcome::Nothing, findings }
    }
}

/// The object that the compiler uses. The variant is [`Outcome::Object`] exactly if the findings contain no problem.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The object, read without a problem.
    Object(Object),
    /// A stand-in for an object with a problem, used in lenient mode. It allows no more than any possible meaning of the object.
    Closed(Object),
    /// No stand-in, in lenient mode: the object's subject could not be read, so no pod can be restricted.
    Nothing,
    /// No stand-in is possible, and ignoring the object would allow traffic that it denies. Every mode refuses the input.
    Unreadable,
}

/// The identity of an object in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ObjectKey {
    /// The kind, such as `Pod`.
    pub(super) kind: &'static str,
    /// The object's namespace. Empty for kinds without a namespace.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}
