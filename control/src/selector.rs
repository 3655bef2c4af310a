//! Label selectors.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::labels::{Labels, NAMESPACE_NAME_LABEL};

/// A label selector: a conjunction of requirements. Without requirements, it selects everything.
///
/// Requirements are sorted and unique, so selectors with the same meaning are equal. Source: Kubernetes "Labels and Selectors",
/// `LabelSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requirement {
    /// The label's key.
    pub key: Arc<str>,
    /// The condition.
    pub condition: Condition,
}

/// A condition on the value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Condition {
    /// The label exists with one of the values. `matchLabels` becomes this condition with one value.
    In(Vec<Arc<str>>),
    /// The label does not exist, or has none of the values.
    NotIn(Vec<Arc<str>>),
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
    /// The label exists and its value contains the text. Kubernetes has no such operator, nor the next two.
    Contains(Arc<str>),
    /// The label exists and its value starts with the text.
    StartsWith(Arc<str>),
    /// The label exists and its value ends with the text.
    EndsWith(Arc<str>),
}

impl Selector {
    /// Returns the selector `{}`, which selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Creates the conjunction of the requirements.
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let mut requirements: Vec<_> = requirements
            .into_iter()
            .map(|mut requirement| {
                if let Condition::In(values) | Condition::NotIn(values) = &mut requirement.condition {
                    values.sort_unstable();
                    values.dedup();
                }
                requirement
            })
            .collect();
        requirements.sort_unstable();
        requirements.dedup();
        Self { requirements }
    }

    /// Returns the requirements, sorted.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether the labels meet every requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels))
    }

    /// Whether the selector selects a namespace of which only the name is known.
    ///
    /// Every namespace has [`NAMESPACE_NAME_LABEL`]. A requirement on any other label is not met, whatever its operator, so that a missing
    /// namespace object never widens a rule.
    pub fn matches_unknown_namespace(&self, name: &Arc<str>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| &*requirement.key == NAMESPACE_NAME_LABEL && requirement.condition.holds(Some(name)))
    }
}

impl Requirement {
    /// Whether the labels meet the requirement.
    pub fn holds(&self, labels: &Labels) -> bool {
        self.condition.holds(labels.get(&self.key))
    }
}

impl Condition {
    /// Whether a label with this value meets the condition. `None` if the label does not exist.
    pub(crate) fn holds(&self, value: Option<&Arc<str>>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Contains(text) => value.is_some_and(|value| value.contains(&**text)),
            Self::StartsWith(text) => value.is_some_and(|value| value.starts_with(&**text)),
            Self::EndsWith(text) => value.is_some_and(|value| value.ends_with(&**text)),
        }
    }
}

impl fmt::Display for Selector {
    /// Writes the selector in the syntax of `kubectl -l`: `app=web,tier in (a,b),!debug`. `<everything>` without requirements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.requirements.is_empty() {
            return f.write_str("<everything>");
        }
        for (at, Requirement { key, condition }) in self.requirements.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            match condition {
                Condition::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0])?,
                Condition::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Condition::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Condition::Exists => f.write_str(key)?,
                Condition::DoesNotExist => write!(f, "!{key}")?,
                Condition::Contains(text) => write!(f, "{key} contains '{text}'")?,
                Condition::StartsWith(text) => write!(f, "{key} starts with '{text}'")?,
                Condition::EndsWith(text) => write!(f, "{key} ends with '{text}'")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|&(k, v)| (k.into(), v.into())).collect()
    }

    fn one(key: &str, condition: Condition) -> Selector {
        Selector::new([Requirement { key: key.into(), condition }])
    }

    #[test]
    fn negative_operators_hold_where_the_key_is_absent() {
        let none = labels(&[]);
        assert!(one("a", Condition::NotIn(vec!["x".into()])).matches(&none));
        assert!(one("a", Condition::DoesNotExist).matches(&none));
        assert!(!one("a", Condition::In(vec!["x".into()])).matches(&none));
        assert!(!one("a", Condition::Exists).matches(&none));
    }

    #[test]
    fn an_empty_value_still_requires_the_key() {
        let empty = one("a", Condition::In(vec!["".into()]));
        assert!(!empty.matches(&labels(&[])));
        assert!(empty.matches(&labels(&[("a", "")])));
    }

    #[test]
    fn order_and_repeats_do_not_make_another_selector() {
        let a = Requirement { key: "a".into(), condition: Condition::In(vec!["2".into(), "1".into(), "2".into()]) };
        let b = Requirement { key: "b".into(), condition: Condition::Exists };
        let again = Requirement { key: "a".into(), condition: Condition::In(vec!["1".into(), "2".into()]) };
        assert_eq!(Selector::new([a, b.clone(), b.clone()]), Selector::new([b, again]));
    }

    #[test]
    fn a_namespace_without_an_object_is_known_by_its_name_only() {
        let name: Arc<str> = "x".into();
        assert!(Selector::everything().matches_unknown_namespace(&name));
        assert!(one(NAMESPACE_NAME_LABEL, Condition::In(vec!["x".into()])).matches_unknown_namespace(&name));
        assert!(!one(NAMESPACE_NAME_LABEL, Condition::NotIn(vec!["x".into()])).matches_unknown_namespace(&name));
        assert!(!one("team", Condition::NotIn(vec!["red".into()])).matches_unknown_namespace(&name));
        assert!(!one("team", Condition::DoesNotExist).matches_unknown_namespace(&name));
    }
}
