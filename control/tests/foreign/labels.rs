//! Labels and Kubernetes' label selectors.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::random::Rng;

pub(crate) type Labels = BTreeMap<String, String>;

/// Makes labels of pairs.
pub(crate) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// A selector with `matchLabels` and `matchExpressions`. Without both it matches everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabelSelector {
    pub(crate) labels: Labels,
    pub(crate) expressions: Vec<(String, Operator, Vec<String>)>,
}

impl LabelSelector {
    /// Whether the selector matches an object. `value` returns the value of a label, or `None` if the object does not have it.
    pub(crate) fn matches<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        let equal = self.labels.iter().all(|(key, wanted)| value(key) == Some(wanted));
        equal
            && self.expressions.iter().all(|(key, operator, values)| {
                let among = value(key).map(|found| values.iter().any(|one| one == found));
                match operator {
                    Operator::In => among == Some(true),
                    Operator::NotIn => among != Some(true),
                    Operator::Exists => among.is_some(),
                    Operator::DoesNotExist => among.is_none(),
                }
            })
    }

    /// Whether the selector matches these labels.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        self.matches(|key| labels.get(key).map(String::as_str))
    }

    /// Whether a requirement is about a key that satisfies `is`.
    pub(crate) fn names(&self, is: impl Fn(&str) -> bool) -> bool {
        self.labels.keys().any(|key| is(key)) || self.expressions.iter().any(|(key, ..)| is(key))
    }

    pub(crate) fn json(&self) -> Value {
        let expressions = self.expressions.iter().map(|(key, operator, values)| match operator {
            Operator::In | Operator::NotIn => {
                json!({"key": key, "operator": format!("{operator:?}"), "values": values})
            }
            _ => json!({"key": key, "operator": format!("{operator:?}")}),
        });
        let mut object = json!({});
        if !self.labels.is_empty() {
            object["matchLabels"] = json!(self.labels);
        }
        if !self.expressions.is_empty() {
            object["matchExpressions"] = expressions.collect();
        }
        object
    }

    /// Returns a random selector with at most two requirements. `keys` lists the keys to choose from, each with the values that labels of the
    /// random cluster have. A selector without requirements matches everything.
    pub(crate) fn random(rng: &mut Rng, keys: &[(&str, &[&str])]) -> Self {
        let mut selector = Self::default();
        for _ in 0..rng.below(3) {
            let (key, values) = rng.pick(keys);
            let value = rng.pick(values).to_owned();
            match rng.below(6) {
                0..=2 => drop(selector.labels.insert(key.to_owned(), value)),
                3 => selector.expressions.push((key.to_owned(), Operator::In, vec![value, "other".to_owned()])),
                4 => selector.expressions.push((key.to_owned(), Operator::NotIn, vec![value])),
                _ => {
                    let operator = if rng.chance(50) { Operator::Exists } else { Operator::DoesNotExist };
                    selector.expressions.push((key.to_owned(), operator, Vec::new()));
                }
            }
        }
        selector
    }
}
