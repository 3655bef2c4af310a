//! An ordered rule list whose versions share unchanged parts.

use std::ops::Index;
use std::sync::Arc;

use crate::Rule;

/// Returns how many rules a part has. A change copies one part and the list of parts; together they are smallest if both are the square
/// root of the list. More than 512 rules would take microseconds to copy; fewer than 16 are not worth an allocation.
fn size_of_parts(rules: usize) -> usize {
    rules.isqrt().clamp(16, 512)
}

/// An ordered list of rules in parts. Clones and later versions share unchanged parts.
#[derive(Clone, Debug, Default)]
pub struct RuleList {
    parts: Vec<Arc<[Rule]>>,
    /// For each part, the number of rules before it. The last element is the number of all rules.
    starts: Vec<usize>,
}

impl RuleList {
    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rule at a position. `None` beyond the end.
    pub fn get(&self, at: usize) -> Option<&Rule> {
        if at >= self.len() {
            return None;
        }
        let (part, at) = self.place(at);
        self.parts[part].get(at)
    }

    /// Returns the first rule. `None` for an empty list.
    pub fn first(&self) -> Option<&Rule> {
        self.get(0)
    }

    /// Iterates over the rules in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Rule> + '_ {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// Returns the part that holds a position, and the index in it. The position must be below the length.
    fn place(&self, at: usize) -> (usize, usize) {
        let part = self.starts.partition_point(|&start| start <= at) - 1;
        (part, at - self.starts[part])
    }

    /// Inserts a rule at a position. Later rules move up by one.
    pub(crate) fn insert(&mut self, at: usize, rule: Rule) {
        if self.is_empty() {
            *self = Self::from(vec![rule]);
            return;
        }
        // An insertion at the end goes behind the last rule of the last part.
        let (part, within) = if at == self.len() { self.after_last() } else { self.place(at) };
        let mut rules = self.parts[part].to_vec();
        rules.insert(within, rule);
        let most = size_of_parts(self.len());
        let second = if rules.len() > 2 * most { rules.split_off(most) } else { Vec::new() };
        self.parts[part] = rules.into();
        if !second.is_empty() {
            self.parts.insert(part + 1, second.into());
        }
        self.count();
    }

    /// Replaces the rule at a position. A part is copied once, however many of its rules change.
    pub(crate) fn replace(&mut self, at: usize, rule: Rule) {
        let (part, within) = self.place(at);
        Arc::make_mut(&mut self.parts[part])[within] = rule;
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let (part, within) = self.place(at);
        let mut rules = self.parts[part].to_vec();
        rules.remove(within);
        if rules.is_empty() {
            self.parts.remove(part);
        } else {
            self.parts[part] = rules.into();
        }
        self.count();
    }

    fn after_last(&self) -> (usize, usize) {
        (self.parts.len() - 1, self.parts[self.parts.len() - 1].len())
    }

    fn count(&mut self) {
        let mut all = 0;
        self.starts.clear();
        self.starts.push(0);
        self.starts.extend(self.parts.iter().map(|part| {
            all += part.len();
            all
        }));
    }
}

impl From<Vec<Rule>> for RuleList {
    fn from(rules: Vec<Rule>) -> Self {
        let mut list = Self::default();
        let part = size_of_parts(rules.len());
        let mut rules = rules.into_iter().peekable();
        while rules.peek().is_some() {
            list.parts.push(rules.by_ref().take(part).collect());
        }
        list.count();
        list
    }
}

impl Index<usize> for RuleList {
    type Output = Rule;

    /// Returns the rule at a position. Panics if the position is beyond the end.
    fn index(&self, at: usize) -> &Rule {
        self.get(at).expect("a position in the list")
    }
}

impl PartialEq for RuleList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for RuleList {}

impl PartialEq<[Rule]> for RuleList {
    fn eq(&self, other: &[Rule]) -> bool {
        self.iter().eq(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, OriginId};
    use proptest::prelude::*;

    fn rule(origin: u32) -> Rule {
        Rule::any(Action::Allow, OriginId(origin))
    }

    proptest! {
        #[test]
        fn a_list_changes_like_a_vector(start in 0u32..1300, changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..40)) {
            let mut vector: Vec<Rule> = (0..start).map(rule).collect();
            let mut list = RuleList::from(vector.clone());
            for (origin, (insert, at)) in (5000..).zip(changes) {
                if insert || vector.is_empty() {
                    let at = at.index(vector.len() + 1);
                    vector.insert(at, rule(origin));
                    list.insert(at, rule(origin));
                } else {
                    let at = at.index(vector.len());
                    vector.remove(at);
                    list.remove(at);
                }
            }
            prop_assert!(list == *vector);
            prop_assert_eq!(list.len(), vector.len());
            prop_assert_eq!(list.get(vector.len()), None);
            prop_assert!((0..vector.len()).all(|at| list[at] == vector[at]));
        }
    }
}
