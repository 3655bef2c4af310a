//! Updates tables after changes of their list.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Tables;
use crate::build::{BuildError, BuildOptions, MAX_RULES};
use crate::compiled::Compiled;
use crate::delta::Delta;
use crate::difference::{self, Change, Differences};
use crate::engine::{Changed, Reference, Replacements};
use crate::{Addresses, Rule, RuleList, Verdict};

/// Number of rules below which a list is recompiled after a change: that takes less than a millisecond, and lookups then search one list.
const MIN_SHARED: usize = 1 << 10;

/// Share of a list's intervals above which replaced rules cause a recompile (one in `REWRITTEN`). Compiling these rules separately would
/// then take as long as compiling all, and lookups would search both.
const REWRITTEN: usize = 4;

/// Maximum of address pieces that are copied with each change, which takes 20 us. In larger tables, changed addresses become exceptions
/// first.
const MAX_COPIED: usize = 1 << 12;

/// A rule with more changed intervals than this, and than a quarter of its own, is treated as a new rule: someone has edited the policy.
const FEW_MOVED: usize = 16;

impl Tables {
    /// Returns the tables of the changed list. `self` stays unchanged and shares what did not change.
    ///
    /// In a long list a change costs some tens of microseconds, and later lookups search one more small list. [`Change::Replace`] with a
    /// few other addresses takes as long as finding the difference. If the list is a cross product, later lookups cost the same as before.
    /// In very large tables and other structures, lookups of the changed addresses verify the rules that name them one by one, at most
    /// 1,024. That lasts until 128 addresses have changed.
    ///
    /// A new version of a set that the tables refer to ([`Addresses::Parted`]) costs nothing extra, if all rules that named the old version
    /// name the new one.
    ///
    /// Short lists of few addresses are recompiled after any change, and long lists
    ///
    /// * after 64 insertions or removals;
    /// * if a rule that matches everything is removed and other rules follow it;
    /// * if more than 1,024 rules name a changed address;
    /// * if replaced rules that differ in more addresses than that have a quarter of all intervals;
    /// * if removed rules decided very many combinations of a cross product (up to 65,535 rules, some milliseconds).
    ///
    /// # Errors
    /// [`BuildError`] as for [`Tables::build_with`].
    ///
    /// # Panics
    /// If a change names a position beyond the list. In debug builds also for identity tables, which have no list.
    pub fn update(&self, changes: &[Change], options: &BuildOptions<'_>) -> Result<Self, BuildError> {
        self.update_as(changes, options, MIN_SHARED)
    }

    /// Returns the tables of another list, which is similar to this one: [`Tables::update`] with the difference.
    ///
    /// Rules that share their sets with these tables (the same `Arc`) are compared in constant time, so callers should keep unchanged sets.
    /// If the lists differ too much, the new one is compiled as soon as that is known.
    ///
    /// # Errors
    /// [`BuildError`] as for [`Tables::build_with`].
    pub fn changed_to(&self, rules: &[Rule], options: &BuildOptions<'_>) -> Result<Self, BuildError> {
        self.changed_to_as(rules, options, MIN_SHARED)
    }

    pub(super) fn changed_to_as(
        &self,
        rules: &[Rule],
        options: &BuildOptions<'_>,
        min_shared: usize,
    ) -> Result<Self, BuildError> {
        let mut update = Update::of(self);
        let end = difference::each_change(&self.rules, rules, |change| {
            update.apply(&change);
            if update.compiled.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if end.is_break() {
            update.rules = rules.to_vec().into();
        }
        self.with(update, options, min_shared)
    }

    pub(super) fn update_as(
        &self,
        changes: &[Change],
        options: &BuildOptions<'_>,
        min_shared: usize,
    ) -> Result<Self, BuildError> {
        let mut update = Update::of(self);
        changes.iter().for_each(|change| update.apply(change));
        self.with(update, options, min_shared)
    }

    fn with(&self, update: Update, options: &BuildOptions<'_>, min_shared: usize) -> Result<Self, BuildError> {
        let Update { rules, mut delta, compiled, replaced, only_versions, gone, movable, overflowed, .. } = update;
        if rules.len() > MAX_RULES {
            return Err(BuildError::TooManyRules { rules: rules.len() });
        }
        if self.compiled.is_none() {
            return Ok(Self::scanning(rules, self.level));
        }
        let is_long = |compiled: &Compiled| {
            self.rules.len() >= min_shared || intervals(&self.rules, compiled.projection().is_none()) >= min_shared
        };
        let compiled = compiled.filter(|compiled| only_versions || is_long(compiled));
        if !replaced.is_empty() {
            delta.replace_versions();
        }
        // Pending moves are applied whenever the base is copied anyway.
        let moves = match movable {
            Some(pieces) if overflowed || pieces <= MAX_COPIED || !gone.is_empty() => delta.take_moves(),
            _ => Vec::new(),
        };
        let changed = |compiled: Compiled| {
            if moves.is_empty() && gone.is_empty() { Some(compiled) } else { compiled.changed(&moves, &gone) }
        };
        let compiled = compiled.and_then(|compiled| compiled.with(replaced, rules.iter()));
        let Some(compiled) = compiled.and_then(changed) else {
            return Self::build_with(rules.iter().cloned().collect(), options);
        };
        if only_versions && delta.exceptions().is_empty() {
            return Ok(Self {
                rules,
                identities: None,
                compiled: Some(compiled),
                delta: self.delta.clone(),
                names: None,
                level: self.level,
            });
        }
        if !delta.finish(&rules, options)? {
            return Self::build_with(rules.iter().cloned().collect(), options);
        }
        let delta = (!delta.is_empty() || movable.is_none()).then(|| Arc::new(delta));
        Ok(Self { rules, identities: None, compiled: Some(compiled), delta, names: None, level: self.level })
    }
}

/// Returns the number of intervals in a list's sets, a measure for the cost of compiling. Tables with a projection do not compile large
/// sets.
fn intervals(rules: &RuleList, with_large: bool) -> usize {
    let intervals = |addresses: &Addresses| match addresses {
        Addresses::Parted(_) if !with_large => 0,
        addresses => addresses.intervals(),
    };
    rules.iter().map(|rule| intervals(&rule.src) + intervals(&rule.dst)).sum()
}

/// The state of an update of tables: the parts of the new tables, before they are complete.
struct Update {
    rules: RuleList,
    delta: Delta,
    /// The compiled base. `None` if the changes need a full build. Then only the list is updated: a delta of 100,000 changes would take
    /// seconds and be discarded.
    compiled: Option<Compiled>,
    differences: Differences,
    /// Large sets of the compiled rules that have new versions.
    replaced: Replacements,
    /// Whether all changes so far only replace versions of large sets.
    only_versions: bool,
    /// Number of intervals of replaced rules, and the number above which a recompile is cheaper (computed once).
    rewritten: usize,
    most_rewritten: Option<usize>,
    /// Codes of the rules that were removed from the base. They are removed together, since removing all costs as much as removing one.
    gone: Vec<u32>,
    /// Number of address pieces that may move between classes; see [`Compiled::movable`].
    movable: Option<usize>,
    /// Whether more addresses have changed than [`Delta`] can hold as exceptions.
    overflowed: bool,
}

impl Update {
    fn of(tables: &Tables) -> Self {
        Self {
            rules: tables.rules.clone(),
            delta: tables.delta.as_deref().cloned().unwrap_or_else(Delta::new),
            // A list with rules that name domains is built again, which also indexes them. Such lists are few.
            compiled: tables.compiled.clone().filter(|_| !tables.has_names()),
            differences: Differences::default(),
            replaced: Replacements::default(),
            only_versions: true,
            rewritten: 0,
            most_rewritten: None,
            gone: Vec::new(),
            movable: tables.compiled.as_ref().and_then(Compiled::movable),
            overflowed: false,
        }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Insert { at, rule } => self.insert(*at, rule),
            Change::Remove { at } => self.remove(*at),
            Change::Replace { at, rule } if self.compiled.is_none() || self.follows(*at, rule) => {
                self.rules.replace(*at, rule.clone());
            }
            Change::Replace { at, rule } => {
                self.remove(*at);
                self.insert(*at, rule);
                self.rewritten += rule.src.intervals() + rule.dst.intervals();
            }
        }
        let names = match change {
            Change::Insert { rule, .. } | Change::Replace { rule, .. } => rule.names.is_some(),
            Change::Remove { .. } => false,
        };
        if names || self.delta.is_full() || self.has_rewritten_much() {
            self.compiled = None;
        }
    }

    fn has_rewritten_much(&mut self) -> bool {
        let rules = &self.rules;
        let intervals = || rules.iter().map(|rule| rule.src.intervals() + rule.dst.intervals()).sum::<usize>();
        // For few intervals, counting those of all rules is not worth the time.
        self.rewritten > MIN_SHARED
            && self.rewritten > *self.most_rewritten.get_or_insert_with(|| intervals() / REWRITTEN)
    }

    /// Follows a replaced rule that differs by a few addresses: they move in the compiled list, or become exceptions. Returns false if that
    /// is not possible.
    fn follows(&mut self, at: usize, rule: &Rule) -> bool {
        let before = &self.rules[at];
        if !difference::same_but_addresses(before, rule) {
            return false;
        }
        // Added rules are recompiled anyway.
        let compiled = self.compiled.as_ref().filter(|_| !self.delta.has_added(position(at)));
        let projection = compiled.and_then(Compiled::projection);
        let mut changed = Changed::default();
        for (axis, old, new, changed) in
            [(0, &before.src, &rule.src, &mut changed.src), (1, &before.dst, &rule.dst, &mut changed.dst)]
        {
            match projection.map_or(Reference::Unchanged, |projection| projection.reference(axis, old, new)) {
                Reference::Version(old, new) if self.replaced.note(axis, old, new) => {}
                Reference::Version(..) | Reference::Another => return false,
                Reference::Unchanged => {
                    let Some(difference) = self.differences.between(old, new) else { return false };
                    changed.clone_from(&difference);
                }
            }
        }
        if changed.is_empty() {
            return true;
        }
        self.only_versions = false;
        let Some(pieces) = self.movable else { return self.delta.except(&changed) };
        if changed.intervals() > FEW_MOVED.max((rule.src.intervals() + rule.dst.intervals()) / 4) {
            return false;
        }
        self.overflowed |= self.delta.note(position(at), rule.action, &changed);
        self.overflowed = self.overflowed || pieces > MAX_COPIED && !self.delta.except(&changed);
        true
    }

    fn insert(&mut self, at: usize, rule: &Rule) {
        self.only_versions = false;
        assert!(at <= self.rules.len(), "an insertion at {at} of a list of {}", self.rules.len());
        self.rules.insert(at, rule.clone());
        if self.compiled.is_some() {
            self.delta.insert(position(at));
        }
    }

    fn remove(&mut self, at: usize) {
        self.only_versions = false;
        let rule = &self.rules[at];
        self.replaced.remove(rule);
        let (action, is_any) = (rule.action, *rule == Rule::any(rule.action, rule.origin));
        self.rules.remove(at);
        let Some(compiled) = self.compiled.take() else { return };
        let base = self.delta.remove(position(at));
        // Rules after one that matches everything were not compiled.
        let uncovers = base.is_some() && is_any && at < self.rules.len();
        self.compiled = (!uncovers).then_some(compiled);
        self.gone.extend(base.map(|base| Verdict::by(action, base).code()));
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("lists are shorter than MAX_RULES")
}

#[cfg(test)]
mod tests;
