//! Conditions on pods that label selectors of Kubernetes cannot express: those of other products' policies.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{NAMESPACE_NAME_LABEL, Namespace, Pod};
use crate::selector::{Condition, Requirement, Selector};

/// A condition on a pod, its namespace and its service account.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Filter {
    /// All conditions hold. Without any: every pod.
    All(Vec<Filter>),
    /// At least one of the conditions holds. Without any: no pod.
    Any(Vec<Filter>),
    /// The condition does not hold.
    Not(Box<Filter>),
    /// A label of the pod.
    Label(Requirement),
    /// A label of the pod's namespace.
    NamespaceLabel(Requirement),
    /// The pod is in one of these namespaces.
    Namespaces(Vec<Arc<str>>),
    /// The name of the pod's service account.
    ServiceAccount(Condition),
}

impl Filter {
    /// Whether the condition holds for a pod. `namespace` is the pod's namespace, `None` if its object is missing: a condition that depends on
    /// labels of such a namespace other than its name does not hold, whatever stands around it, so that a missing object never selects.
    pub fn holds(&self, pod: &Pod, namespace: Option<&Namespace>) -> bool {
        self.decide(pod, namespace).unwrap_or(false)
    }

    /// As [`Filter::holds`]. `None` if it depends on unknown labels.
    fn decide(&self, pod: &Pod, namespace: Option<&Namespace>) -> Option<bool> {
        let of = |filter: &Self| filter.decide(pod, namespace);
        match self {
            Self::All(filters) => conjunction(filters.iter().map(of)),
            Self::Any(filters) => {
                conjunction(filters.iter().map(|filter| of(filter).map(|holds| !holds))).map(|none| !none)
            }
            Self::Not(filter) => of(filter).map(|holds| !holds),
            Self::Label(requirement) => Some(requirement.holds(&pod.labels)),
            Self::NamespaceLabel(requirement) => match namespace {
                Some(namespace) => Some(requirement.holds(&namespace.labels)),
                None if &*requirement.key == NAMESPACE_NAME_LABEL => {
                    Some(Selector::new([requirement.clone()]).matches_unknown_namespace(&pod.name.namespace))
                }
                None => None,
            },
            Self::Namespaces(names) => Some(names.contains(&pod.name.namespace)),
            Self::ServiceAccount(condition) => Some(condition.holds(Some(&pod.service_account_name().into()))),
        }
    }

    /// Whether the condition depends on labels of namespaces.
    pub fn has_namespace_labels(&self) -> bool {
        match self {
            Self::All(filters) | Self::Any(filters) => filters.iter().any(Self::has_namespace_labels),
            Self::Not(filter) => filter.has_namespace_labels(),
            Self::NamespaceLabel(_) => true,
            Self::Label(_) | Self::Namespaces(_) | Self::ServiceAccount(_) => false,
        }
    }
}

/// Returns whether all hold. `None` if that depends on an unknown one.
fn conjunction(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = Some(true);
    for holds in all {
        match holds {
            Some(false) => return Some(false),
            Some(true) => {}
            None => known = None,
        }
    }
    known
}

impl fmt::Display for Filter {
    /// Writes the condition in the syntax of Calico's selectors, where that has one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, filters: &[Self], between: &str, none: &str| {
            if filters.is_empty() {
                return f.write_str(none);
            }
            for (at, filter) in filters.iter().enumerate() {
                if at > 0 {
                    f.write_str(between)?;
                }
                match filter {
                    Self::All(inner) | Self::Any(inner) if inner.len() > 1 => write!(f, "({filter})")?,
                    _ => write!(f, "{filter}")?,
                }
            }
            Ok(())
        };
        match self {
            Self::All(filters) => list(f, filters, " && ", "all()"),
            Self::Any(filters) => list(f, filters, " || ", "!all()"),
            Self::Not(filter) => write!(f, "!({filter})"),
            Self::Label(requirement) => write!(f, "{}", Selector::new([requirement.clone()])),
            Self::NamespaceLabel(requirement) => write!(f, "namespace({})", Selector::new([requirement.clone()])),
            Self::Namespaces(names) => write!(f, "namespace in ({})", names.join(",")),
            Self::ServiceAccount(condition) => {
                let requirement = Requirement { key: "service account".into(), condition: condition.clone() };
                write!(f, "{}", Selector::new([requirement]))
            }
        }
    }
}
