//! Computes the changes between two ordered lists.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use ahash::RandomState;

use crate::{AddressSet, Addresses, Rule, RuleList};

/// Number of rules that are searched ahead, in both lists, for the next rule that both have.
const WINDOW: usize = 64;

/// A change of a list. Positions refer to the list after all earlier changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Inserts a rule at a position up to the list's length. Later rules move up by one.
    Insert {
        /// The new rule's position.
        at: usize,
        /// The new rule.
        rule: Rule,
    },
    /// Removes a rule.
    Remove {
        /// The removed rule's position.
        at: usize,
    },
    /// Replaces a rule. Fast for any size of sets if only a few addresses differ.
    Replace {
        /// The replaced rule's position.
        at: usize,
        /// The new rule.
        rule: Rule,
    },
}

/// Calls `take` with the changes that turn `old` into `new`, until it returns `Break`.
pub(crate) fn each_change(
    old: &RuleList,
    new: &[Rule],
    mut take: impl FnMut(Change) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let start = old.iter().zip(new).take_while(|(before, rule)| before == rule).count();
    let most = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(before, rule)| before == rule).count();
    let (old, new): (Vec<&Rule>, _) = (old.iter().take(old.len() - end).skip(start).collect(), &new[..new.len() - end]);
    // `from` is a position in the rest of the old list. `at` is one in the new list, and also in the list as changed so far.
    let (mut from, mut at) = (0, start);
    while from < old.len() && at < new.len() {
        let (removed, inserted) = if old[from] == &new[at] { (0, 0) } else { apart(&old[from..], &new[at..]) };
        (0..removed).try_for_each(|_| take(Change::Remove { at }))?;
        (at..at + inserted).try_for_each(|at| take(Change::Insert { at, rule: new[at].clone() }))?;
        (from, at) = (from + removed, at + inserted);
        if old[from] != &new[at] {
            take(Change::Replace { at, rule: new[at].clone() })?;
        }
        (from, at) = (from + 1, at + 1);
    }
    (from..old.len()).try_for_each(|_| take(Change::Remove { at }))?;
    (at..new.len()).try_for_each(|at| take(Change::Insert { at, rule: new[at].clone() }))
}

/// Returns how many rules were removed and how many inserted before the next rule that both lists have. Returns zeros if the first rules
/// correspond to each other, or if no common rule is within [`WINDOW`].
fn apart(old: &[&Rule], new: &[Rule]) -> (usize, usize) {
    let (before, rule) = (old[0], &new[0]);
    let nearest = |same: fn(&Rule, &Rule) -> bool| {
        let removed = (1..WINDOW).find(|&far| old.get(far).is_some_and(|before| same(before, rule)));
        let inserted = (1..WINDOW).find(|&far| new.get(far).is_some_and(|rule| same(before, rule)));
        match (removed, inserted) {
            (Some(far), other) if other.is_none_or(|other| far <= other) => Some((far, 0)),
            (_, Some(far)) => Some((0, far)),
            _ => None,
        }
    };
    // Equal rules are searched first: rules of single addresses are similar to all their neighbours.
    nearest(|a, b| a == b)
        .or_else(|| similar(before, rule).then_some((0, 0)))
        .or_else(|| nearest(similar))
        .unwrap_or((0, 0))
}

/// Whether a rule may be a version of the other with a few more or fewer members in its sets.
fn similar(a: &Rule, b: &Rule) -> bool {
    same_but_addresses(a, b) && close(&a.src, &b.src) && close(&a.dst, &b.dst)
}

fn close(a: &Addresses, b: &Addresses) -> bool {
    match (a, b) {
        (Addresses::Set(a), Addresses::Set(b)) => {
            a.v4_intervals().len().abs_diff(b.v4_intervals().len()) < WINDOW
                && a.v6_intervals().len().abs_diff(b.v6_intervals().len()) < WINDOW
        }
        (Addresses::Any, Addresses::Any) | (Addresses::Parted(_), Addresses::Parted(_)) => true,
        _ => false,
    }
}

/// Whether the rules differ at most in their addresses.
pub(crate) fn same_but_addresses(a: &Rule, b: &Rule) -> bool {
    a.origin == b.origin
        && a.action == b.action
        && a.src_ports == b.src_ports
        && a.services == b.services
        && a.names == b.names
}

/// A cache of differences between sets: many rules may share a changed set, which is compared once.
#[derive(Default)]
pub(crate) struct Differences {
    /// The differences found so far, by the memory addresses of the two compared sets.
    known: HashMap<[usize; 2], Difference, RandomState>,
}

struct Difference {
    changed: Arc<AddressSet>,
    /// Keeps the two sets alive, so that their memory addresses stay unique.
    _sets: [Arc<AddressSet>; 2],
}

impl Differences {
    /// Returns the addresses that are in exactly one of the sets. `None` if one is [`Addresses::Any`] or the kinds differ.
    pub(crate) fn between(&mut self, a: &Addresses, b: &Addresses) -> Option<Arc<AddressSet>> {
        match (a, b) {
            (Addresses::Any, Addresses::Any) => Some(Arc::default()),
            (Addresses::Set(a), Addresses::Set(b)) => {
                let places = [a, b].map(|set| Arc::as_ptr(set).addr());
                let difference = || Difference { changed: Arc::new(a.difference(b)), _sets: [a.clone(), b.clone()] };
                Some(self.known.entry(places).or_insert_with(difference).changed.clone())
            }
            // Reads only the parts that the two do not share.
            (Addresses::Parted(a), Addresses::Parted(b)) => Some(Arc::new(a.difference(b))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, OriginId};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_changes_make_the_new_list(old in prop::collection::vec(0u32..6, 0..90), new in prop::collection::vec(0u32..6, 0..90), same in any::<bool>()) {
            let rules = |origins: &[u32]| origins.iter().map(|&at| Rule::any(Action::Allow, OriginId(at))).collect::<Vec<_>>();
            let new = if same { let mut new = old.clone(); new.truncate(80); new.insert(new.len() / 2, 9); new } else { new };
            let (mut list, new) = (rules(&old), rules(&new));
            let mut all = Vec::new();
            let end = each_change(&RuleList::from(list.clone()), &new, |change| {
                all.push(change);
                ControlFlow::Continue(())
            });
            prop_assert!(end.is_continue());
            let count = all.len();
            for change in all {
                match change {
                    Change::Insert { at, rule } => list.insert(at, rule),
                    Change::Remove { at } => drop(list.remove(at)),
                    Change::Replace { at, rule } => list[at] = rule,
                }
            }
            prop_assert_eq!(&list, &new);
            prop_assert!(!same || count <= 12, "{} changes for one insertion", count);
        }
    }

    #[test]
    fn no_change_is_looked_for_after_the_last_that_is_wanted() {
        let rules = |from: u32| (from..from + 500).map(|at| Rule::any(Action::Allow, OriginId(at))).collect::<Vec<_>>();
        let mut seen = 0;
        let end = each_change(&RuleList::from(rules(0)), &rules(5000), |_| {
            seen += 1;
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((seen, end), (3, ControlFlow::Break(())));
    }
}
