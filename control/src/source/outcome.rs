//! What reading one object results in.

use std::sync::Arc;

use super::error::Findings;
use crate::object::Object;

/// Which of the two models `extensions/v1beta1` is read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    V1,
    V1beta1,
}

/// An object of a kind that is read, understood or not.
pub(super) struct Read {
    /// Its kind, namespace and name as far as they are known; empty when nothing is.
    pub(super) label: String,
    /// What no other object may share; none when the name is not known.
    pub(super) key: Option<ObjectKey>,
    pub(super) outcome: Outcome,
    pub(super) findings: Findings,
}

/// What an object stands for. It is [`Outcome::Object`] exactly when there is no problem among the findings.
pub(super) enum Outcome {
    /// Itself.
    Object(Object),
    /// It was not understood: this one, which allows no more than any that could be meant, where faults are survived.
    Closed(Object),
    /// Nothing, where faults are survived: nobody can say for whom it would count.
    Nothing,
    /// Nothing can stand for it, and without it what it forbids would pass: the input is refused in every mode.
    Unreadable,
}

/// What identifies an object in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ObjectKey {
    pub(super) kind: &'static str,
    /// Empty for kinds without a namespace.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}
