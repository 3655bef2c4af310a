//! Policy maps: the verdict for each identity and service, compiled from the rules of one list.
//!
//! ```text
//!  identity --its sets--> the rules that name one of them --tiers, in order--> row: services -> verdict
//! ```
//! Identities that the same rules name share a row. A row is computed by evaluating the tiers in order: services that a tier passes or does
//! not match are decided by the next tier. So rules need no splitting, and no list is too complex.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::identity::{IdentityTables, PolicyMap, Row};
use bulkhead_classifier::{Action, OriginId, RuleList, Verdict};

use super::parties::{OWN_NODE, Parties, Tag, tag};
use crate::contract::{Peers, RuleAction, TieredList};
use crate::decision::decide;
use crate::origin::{Direction, Origins};

/// The decisions (action and origin) in all policy maps, each with a number.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    all: Vec<(Action, OriginId)>,
    numbers: AHashMap<(Action, OriginId), u32>,
    rules: RuleList,
}

impl Decisions {
    pub(super) fn verdict(&mut self, action: Action, origin: OriginId) -> Verdict {
        let number = *self.numbers.entry((action, origin)).or_insert_with(|| {
            self.all.push((action, origin));
            u32::try_from(self.all.len() - 1).expect("fewer decisions than rules fit a table")
        });
        IdentityTables::verdict(action, number)
    }

    /// Returns the action and origin of a verdict. `None` if the number is unknown.
    pub(super) fn get(&self, verdict: Verdict) -> Option<(Action, OriginId)> {
        self.all.get(verdict.rule()?).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns a rule list with one rule for each decision, at the index of its number.
    pub(super) fn rules(&mut self) -> RuleList {
        if self.rules.len() != self.all.len() {
            let rule = |&(action, origin): &(Action, OriginId)| IdentityTables::decision(action, origin);
            self.rules = self.all.iter().map(rule).collect::<Vec<_>>().into();
        }
        self.rules.clone()
    }
}

/// A rule list that at least one endpoint uses, with its policy map.
#[derive(Debug)]
pub(super) struct Listed {
    list: Arc<TieredList>,
    direction: Direction,
    /// Number of endpoints that use the list.
    pub(super) users: usize,
    /// The positions of the rules that name all addresses, and by set those of the rules that name the set.
    everybody: Vec<usize>,
    by_tag: AHashMap<Tag, Vec<usize>>,
    /// The map's rows. `by_rules` finds the row of an identity by the positions of the rules that name it.
    rows: Vec<Row>,
    by_rules: AHashMap<Vec<usize>, usize>,
    pub(super) map: Arc<PolicyMap>,
}

impl Listed {
    /// Creates the entry of a list. Its map is not compiled yet.
    pub(super) fn new(list: Arc<TieredList>, direction: Direction) -> Self {
        let (mut everybody, mut by_tag) = (Vec::new(), AHashMap::<Tag, Vec<usize>>::new());
        for (at, rule) in list.rules.iter().enumerate() {
            match &rule.peers {
                Peers::Any => everybody.push(at),
                // Lists with such rules are compiled to egress tables.
                Peers::Names { .. } => {}
                Peers::OwnNode => by_tag.entry(OWN_NODE).or_default().push(at),
                Peers::Sets(sets) => sets.iter().for_each(|&set| by_tag.entry(tag(set)).or_default().push(at)),
            }
        }
        let (rows, by_rules) = (Vec::new(), AHashMap::new());
        let map = Arc::new(PolicyMap::new(&[], &[Row::new()]));
        Self { list, direction, users: 0, everybody, by_tag, rows, by_rules, map }
    }

    /// Returns the sets that the rules name.
    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        self.by_tag.keys().copied()
    }

    pub(super) fn origins(&self) -> impl Iterator<Item = OriginId> + '_ {
        self.list.rules.iter().map(|rule| rule.origin)
    }

    /// Discards all rows, because verdicts were renumbered.
    pub(super) fn forget_rows(&mut self) {
        self.rows.clear();
        self.by_rules.clear();
    }

    /// Returns the row for addresses in these sets. `None` if no known identity matches the same rules.
    pub(super) fn known_row(&self, sets: &[Tag]) -> Option<&Row> {
        self.rows.get(*self.by_rules.get(&self.rules_naming(sets))?)
    }

    /// Returns the positions of the rules that name addresses in these sets, ascending.
    fn rules_naming(&self, sets: &[Tag]) -> Vec<usize> {
        let named = sets.iter().filter_map(|tag| self.by_tag.get(tag)).flatten();
        let mut rules: Vec<usize> = self.everybody.iter().chain(named).copied().collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    fn row(&mut self, sets: &[Tag], decisions: &mut Decisions) -> usize {
        let rules = self.rules_naming(sets);
        if let Some(&known) = self.by_rules.get(&rules) {
            return known;
        }
        self.rows.push(row(&self.list, &rules, self.direction, decisions));
        self.by_rules.insert(rules, self.rows.len() - 1);
        self.rows.len() - 1
    }

    /// Compiles the policy map: the verdicts for each identity that the rules name, and for all other identities.
    pub(super) fn compile(&mut self, parties: &Parties, decisions: &mut Decisions) {
        let unknown = self.row(&[], decisions);
        debug_assert_eq!(unknown, 0, "the first row is that of the unknown");
        let named: BTreeSet<u32> = self.by_tag.keys().flat_map(|&tag| parties.in_set(tag)).collect();
        let identities: Vec<(u32, usize)> =
            named.into_iter().map(|identity| (identity, self.row(parties.sets_of(identity), decisions))).collect();
        self.map = Arc::new(PolicyMap::new(&identities, &self.rows));
    }
}

/// Evaluates these rules, which are sorted by tier.
fn row(list: &TieredList, rules: &[usize], direction: Direction, decisions: &mut Decisions) -> Row {
    let pieces = decide(rules.iter().map(|&at| &list.rules[at]), |_, _| {});
    let verdict = |(services, by)| {
        let verdict = match by {
            Some((RuleAction::Deny, origin)) => decisions.verdict(Action::Deny, origin),
            Some((_, origin)) => decisions.verdict(Action::Allow, origin),
            None => decisions.verdict(Action::Allow, Origins::not_isolated(direction)),
        };
        (services, verdict)
    };
    pieces.into_iter().map(verdict).collect()
}
