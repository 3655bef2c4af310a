//! Calico's selectors, as trees.

use std::fmt;

use crate::foreign::labels::Labels;
use crate::random::Rng;

#[derive(Clone, Debug)]
pub(crate) enum Selector {
    All,
    Has(String),
    Equal(String, String),
    NotEqual(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Contains(String, String),
    StartsWith(String, String),
    EndsWith(String, String),
    Not(Box<Selector>),
    And(Vec<Selector>),
    Or(Vec<Selector>),
}

impl Selector {
    /// Whether the selector matches labels. `prefix` stands before each key of the selector, and `all` is the value of `all()`.
    pub(crate) fn matches(&self, labels: &Labels, prefix: &str, all: bool) -> bool {
        let value = |key: &String| labels.get(&format!("{prefix}{key}"));
        match self {
            Self::All => all,
            Self::Has(key) => value(key).is_some(),
            Self::Equal(key, wanted) => value(key) == Some(wanted),
            Self::NotEqual(key, other) => value(key) != Some(other),
            Self::In(key, values) => value(key).is_some_and(|found| values.contains(found)),
            Self::NotIn(key, values) => value(key).is_none_or(|found| !values.contains(found)),
            Self::Contains(key, part) => value(key).is_some_and(|found| found.contains(part.as_str())),
            Self::StartsWith(key, part) => value(key).is_some_and(|found| found.starts_with(part.as_str())),
            Self::EndsWith(key, part) => value(key).is_some_and(|found| found.ends_with(part.as_str())),
            Self::Not(inner) => !inner.matches(labels, prefix, all),
            Self::And(terms) => terms.iter().all(|term| term.matches(labels, prefix, all)),
            Self::Or(terms) => terms.iter().any(|term| term.matches(labels, prefix, all)),
        }
    }

    /// The operators that occur, for the count of features.
    pub(crate) fn operators(&self, found: &mut Vec<&'static str>) {
        found.push(match self {
            Self::All => "all()",
            Self::Has(_) => "has()",
            Self::Equal(..) => "==",
            Self::NotEqual(..) => "!=",
            Self::In(..) => "in",
            Self::NotIn(..) => "not in",
            Self::Contains(..) => "contains",
            Self::StartsWith(..) => "starts with",
            Self::EndsWith(..) => "ends with",
            Self::Not(_) => "!",
            Self::And(_) => "&&",
            Self::Or(_) => "||",
        });
        match self {
            Self::Not(inner) => inner.operators(found),
            Self::And(terms) | Self::Or(terms) => terms.iter().for_each(|term| term.operators(found)),
            _ => {}
        }
    }

    /// Makes a selector about these keys, each with its possible values.
    pub(crate) fn random(rng: &mut Rng, keys: &[(&str, &[&str])]) -> Self {
        match rng.below(10) {
            0 => Self::Not(Box::new(Self::random(rng, keys))),
            1 | 2 => Self::And(vec![Self::random(rng, keys), Self::random(rng, keys)]),
            3 => Self::Or(vec![Self::random(rng, keys), Self::random(rng, keys)]),
            _ => Self::term(rng, keys),
        }
    }

    fn term(rng: &mut Rng, keys: &[(&str, &[&str])]) -> Self {
        let (key, values) = rng.pick(keys);
        let (key, value) = (key.to_owned(), rng.pick(values).to_owned());
        let middle = value.len().div_ceil(2);
        match rng.below(10) {
            0 => Self::All,
            1 => Self::Has(key),
            2 => Self::NotEqual(key, value),
            3 => Self::In(key, vec![value, "other".to_owned()]),
            4 => Self::NotIn(key, vec![value]),
            5 => Self::Contains(key, value[1..].to_owned()),
            6 => Self::StartsWith(key, value[..middle].to_owned()),
            7 => Self::EndsWith(key, value[middle..].to_owned()),
            _ => Self::Equal(key, value),
        }
    }
}

impl fmt::Display for Selector {
    /// Writes the selector with parentheses only where the operators' precedence needs them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |values: &[String]| values.iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(", ");
        match self {
            Self::All => write!(f, "all()"),
            Self::Has(key) => write!(f, "has({key})"),
            Self::Equal(key, value) => write!(f, "{key} == '{value}'"),
            Self::NotEqual(key, value) => write!(f, "{key} != \"{value}\""),
            Self::In(key, values) => write!(f, "{key} in {{ {} }}", set(values)),
            Self::NotIn(key, values) => write!(f, "{key} not in {{{}}}", set(values)),
            Self::Contains(key, value) => write!(f, "{key} contains '{value}'"),
            Self::StartsWith(key, value) => write!(f, "{key} starts with '{value}'"),
            Self::EndsWith(key, value) => write!(f, "{key} ends with \"{value}\""),
            Self::Not(inner) => match **inner {
                Self::And(_) | Self::Or(_) => write!(f, "!({inner})"),
                _ => write!(f, "!{inner}"),
            },
            Self::And(terms) => {
                for (at, term) in terms.iter().enumerate() {
                    let and = if at == 0 { "" } else { " && " };
                    match term {
                        Self::Or(_) => write!(f, "{and}({term})")?,
                        _ => write!(f, "{and}{term}")?,
                    }
                }
                Ok(())
            }
            Self::Or(terms) => {
                write!(f, "{}", terms.iter().map(Self::to_string).collect::<Vec<_>>().join(" || "))
            }
        }
    }
}
