//! The compiled form of an ordered rule list.

use std::sync::Arc;

use crate::build::{BuildError, BuildOptions, MAX_RULES};
use crate::compiled::Compiled;
use crate::delta::Delta;
use crate::engine::{BLOCK, Choice, Cost};
use crate::identity::{IdentityTables, Judge};
use crate::name_index::NameIndex;
use crate::simd::{Kernel, Level, Scalar, Simd};
use crate::{Action, Key, Rule, RuleList, ServiceSet, Services, Verdict, linear};

/// An immutable, shareable lookup structure: from a key to the first rule that matches. Clones share everything.
#[derive(Clone, Debug)]
pub struct Tables {
    rules: RuleList,
    /// Identity tables. `None` for a rule list. If set, `rules` has their decisions, and `compiled` and `delta` are `None`.
    identities: Option<Arc<IdentityTables>>,
    /// The compiled list. `None` if each lookup scans the list.
    compiled: Option<Compiled>,
    delta: Option<Arc<Delta>>,
    /// The index of the rules that name domains, which the compiled list omits. `None` if no rule names domains.
    names: Option<Arc<NameIndex>>,
    level: Level,
}

impl PartialEq for Tables {
    /// Tables of equal rules are equal, since the rules determine the compiled form up to hash keys. Identity tables are equal if they are
    /// the same object.
    fn eq(&self, other: &Self) -> bool {
        match (&self.identities, &other.identities) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => self.rules == other.rules,
            _ => false,
        }
    }
}

impl Eq for Tables {}

impl Tables {
    /// Compiles an ordered list: the first rule that matches a key decides.
    ///
    /// # Errors
    /// [`BuildError`] if the list exceeds a limit. No rule is dropped silently.
    pub fn build(rules: Vec<Rule>) -> Result<Self, BuildError> {
        Self::build_with(rules, &BuildOptions::default())
    }

    /// Compiles an ordered list, with a memory limit and a way to cancel.
    ///
    /// # Errors
    /// [`BuildError`] if the list exceeds a limit or the build was cancelled.
    pub fn build_with(rules: Vec<Rule>, options: &BuildOptions<'_>) -> Result<Self, BuildError> {
        Self::build_as(rules, options, Choice::default())
    }

    fn build_as(rules: Vec<Rule>, options: &BuildOptions<'_>, choice: Choice) -> Result<Self, BuildError> {
        if rules.len() > MAX_RULES {
            return Err(BuildError::TooManyRules { rules: rules.len() });
        }
        let names = NameIndex::of(&rules).map(Arc::new);
        let compiled = match &names {
            None => Compiled::build(&rules, options, choice)?,
            Some(_) => Compiled::build(&without_named(&rules), options, choice)?,
        };
        Ok(Self {
            rules: rules.into(),
            identities: None,
            compiled: Some(compiled),
            delta: None,
            names,
            level: Level::detect(),
        })
    }

    /// Makes tables without compiling: each lookup scans the list.
    ///
    /// For a few lookups offline. Not for packets: the cost of a lookup grows with the list, without a bound.
    ///
    /// # Errors
    /// [`BuildError::TooManyRules`].
    pub fn scanned(rules: Vec<Rule>) -> Result<Self, BuildError> {
        if rules.len() > MAX_RULES {
            return Err(BuildError::TooManyRules { rules: rules.len() });
        }
        Ok(Self::scanning(rules.into(), Level::detect()))
    }

    /// Makes tables that map addresses to identities and look up policy by identity. Their rules are the unordered decisions, each with its
    /// action and origin. Any change needs new [`IdentityTables`].
    pub fn of_identities(identities: Arc<IdentityTables>) -> Self {
        let rules = identities.decisions().clone();
        Self { rules, identities: Some(identities), compiled: None, delta: None, names: None, level: Level::detect() }
    }

    /// Returns the identity tables. `None` for a rule list.
    pub fn identities(&self) -> Option<&Arc<IdentityTables>> {
        self.identities.as_ref()
    }

    /// Returns the verdict of the first matching rule, or [`Verdict::NO_MATCH`] (a deny).
    pub fn lookup(&self, key: &Key) -> Verdict {
        let mut verdict = Verdict::NO_MATCH;
        self.lookup_batch(std::slice::from_ref(key), std::slice::from_mut(&mut verdict));
        verdict
    }

    /// Looks up a burst of keys. Each verdict equals that of [`Tables::lookup`].
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn lookup_batch(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        assert_eq!(keys.len(), verdicts.len(), "one verdict slot per key");
        if let Some(tables) = self.identities.as_deref() {
            self.level.call(Judge { tables, keys, verdicts });
        } else if let ([key], [verdict]) = (keys, &mut *verdicts) {
            self.level.call(Single { tables: self, key, verdict });
        } else {
            self.level.call(Burst { tables: self, keys, verdicts });
        }
    }

    fn scanning(rules: RuleList, level: Level) -> Self {
        let names = NameIndex::of(rules.iter()).map(Arc::new);
        Self { rules, identities: None, compiled: None, delta: None, names, level }
    }

    /// Returns the verdict of the first rule that has a pattern for this name of the destination and otherwise matches the key.
    /// [`Verdict::NO_MATCH`] if no rule does. `name` is in lower case without a final dot.
    ///
    /// The verdict about a packet is the first ([`Verdict::precedes`]) of those for each of its destination's names and of
    /// [`Tables::lookup`].
    pub fn lookup_name(&self, key: &Key, name: &str) -> Verdict {
        self.names.as_deref().map_or(Verdict::NO_MATCH, |index| index.lookup(name, key, &self.rules))
    }

    /// Whether a pattern of any rule matches a name in lower case without a final dot.
    pub fn names(&self, name: &str) -> bool {
        self.names.as_deref().is_some_and(|index| index.has(name))
    }

    /// Whether any rule names domains.
    pub const fn has_names(&self) -> bool {
        self.names.is_some()
    }

    /// Returns the tables for another CPU level, so that tests can compare levels.
    #[cfg(test)]
    pub(crate) fn at(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Returns the cost of one [`Tables::lookup`], in counted steps.
    pub fn cost(&self, key: &Key) -> Cost {
        if let Some(candidates) = self.delta.as_deref().and_then(|delta| delta.exceptions().candidates(Scalar, key)) {
            return Cost { entries: candidates.len(), ..Cost::default() };
        }
        let added = self.added().map(|added| added.cost(key)).unwrap_or_default();
        self.compiled.as_ref().map_or_else(|| self.cost_of_scan(), |compiled| compiled.cost(key)) + added
    }

    /// Returns the maximum cost of any lookup, and of one lookup of a name: what a rule's author can make a packet cost.
    pub fn worst_case(&self) -> Cost {
        let changed = self.delta.as_deref().map_or(0, |delta| delta.exceptions().longest());
        let named = self.names.as_deref().map_or(0, NameIndex::longest);
        self.compiled.as_ref().map_or_else(|| self.cost_of_scan(), Compiled::worst_case)
            + self.added().map(Compiled::worst_case).unwrap_or_default()
            + Cost { entries: changed + named, ..Cost::default() }
    }

    /// Returns the heap bytes of the compiled form and of the index of names, without the rules.
    pub fn bytes(&self) -> usize {
        let identities = self.identities.as_ref().map_or(0, |identities| identities.bytes());
        let names = self.names.as_deref().map_or(0, NameIndex::bytes);
        identities + names + self.compiled.as_ref().map_or(0, Compiled::bytes) + self.added().map_or(0, Compiled::bytes)
    }

    /// Whether the compiled form covers the whole list, so that compiling again would gain nothing.
    pub fn is_whole(&self) -> bool {
        self.compiled.is_some() && self.delta.is_none()
    }

    /// Describes the compiled structures, for people.
    pub fn describe(&self) -> String {
        if let Some(identities) = &self.identities {
            return format!("{}; {}", identities.describe(), self.level.name());
        }
        let Some(compiled) = &self.compiled else { return format!("scan of {} rules", self.rules.len()) };
        let changed = self.delta.as_deref().map(|delta| match delta.exceptions() {
            exceptions if exceptions.is_empty() => ", changed since".to_owned(),
            exceptions => {
                let (count, most) = (exceptions.len(), exceptions.longest());
                format!(", changed since (exceptions: {count} addresses, at most {most} rules verified for one)")
            }
        });
        format!("{}; {}{}", compiled.describe(), self.level.name(), changed.unwrap_or_default())
    }

    fn cost_of_scan(&self) -> Cost {
        if self.identities.is_some() {
            // Two searches in the ipcache, and two in policy maps with one row each.
            return Cost { steps: 4, ..Cost::default() };
        }
        Cost { entries: self.rules.len(), ..Cost::default() }
    }

    fn added(&self) -> Option<&Compiled> {
        self.delta.as_deref().and_then(Delta::compiled)
    }

    /// Returns the rules in order. [`Verdict::rule`] is a position in this list.
    pub fn rules(&self) -> &RuleList {
        &self.rules
    }

    /// Returns the rule that decided. `None` if no rule matched.
    pub fn deciding_rule(&self, verdict: Verdict) -> Option<&Rule> {
        verdict.rule().and_then(|at| self.rules.get(at))
    }

    /// Returns the action that every packet gets. `None` if it depends on the packet.
    pub fn constant_action(&self) -> Option<Action> {
        match self.rules.first() {
            _ if self.identities.is_some() => None,
            None => Some(Action::Deny),
            Some(first) => (*first == Rule::any(first.action, first.origin)).then_some(first.action),
        }
    }
}

/// Returns the list with each rule that names domains replaced by one that matches nothing, so that all rules keep their positions.
fn without_named(rules: &[Rule]) -> Vec<Rule> {
    let nothing = Services::from(ServiceSet::default());
    let without = |rule: &Rule| match rule.names {
        None => rule.clone(),
        Some(_) => Rule { services: nothing.clone(), ..Rule::any(rule.action, rule.origin) },
    };
    rules.iter().map(without).collect()
}

/// Looks up one key, in code compiled for a CPU level.
struct Single<'a> {
    tables: &'a Tables,
    key: &'a Key,
    verdict: &'a mut Verdict,
}

impl Kernel for Single<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { tables, key, verdict } = self;
        let Some(compiled) = &tables.compiled else {
            *verdict = linear::scan(tables.rules.iter(), key);
            return;
        };
        let mut code = compiled.decide_one(simd, key);
        let mut odd = !matches!(key.family(), Key::V4 | Key::V6);
        if let Some(delta) = &tables.delta {
            code = delta.move_base(code);
            if let Some(added) = delta.compiled() {
                code = code.min(delta.move_added(added.decide_one(simd, key)));
            }
            odd |= !delta.exceptions().is_empty();
        }
        *verdict = Verdict::from_code(code);
        if odd {
            tables.correct(simd, key, verdict);
        }
    }
}

/// Looks up a burst of keys, block by block, in code compiled for a CPU level.
struct Burst<'a> {
    tables: &'a Tables,
    keys: &'a [Key],
    verdicts: &'a mut [Verdict],
}

impl Kernel for Burst<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Some(compiled) = &self.tables.compiled else {
            for (key, verdict) in self.keys.iter().zip(self.verdicts) {
                *verdict = linear::scan(self.tables.rules.iter(), key);
            }
            return;
        };
        let mut odd = false;
        for (keys, verdicts) in self.keys.chunks(BLOCK).zip(self.verdicts.chunks_mut(BLOCK)) {
            let mut codes = [u32::MAX; BLOCK];
            odd |= compiled.decide(simd, keys, &mut codes);
            if let Some(delta) = &self.tables.delta {
                combine(simd, delta, keys, &mut codes);
                odd |= !delta.exceptions().is_empty();
            }
            for (verdict, code) in verdicts.iter_mut().zip(codes) {
                *verdict = Verdict::from_code(code);
            }
        }
        if odd {
            for (key, verdict) in self.keys.iter().zip(self.verdicts) {
                self.tables.correct(simd, key, verdict);
            }
        }
    }
}

/// Combines the base's codes with those of the added rules, after translating both to present positions. The smaller code wins.
#[inline(always)]
fn combine<S: Simd, const N: usize>(simd: S, delta: &Delta, keys: &[Key], codes: &mut [u32; N]) {
    codes.iter_mut().for_each(|code| *code = delta.move_base(*code));
    if let Some(added) = delta.compiled() {
        let mut better = [u32::MAX; N];
        added.decide(simd, keys, &mut better);
        codes.iter_mut().zip(better).for_each(|(code, added)| *code = delta.move_added(added).min(*code));
    }
}

impl Tables {
    /// Corrects the verdict of a key for which the compiled form does not hold: one of mixed families, which no packet has, or one with an
    /// address that is an exception.
    #[inline(always)]
    fn correct<S: Simd>(&self, simd: S, key: &Key, verdict: &mut Verdict) {
        if !matches!(key.family(), Key::V4 | Key::V6) {
            *verdict = self.scan(key);
        } else if let Some(candidates) =
            self.delta.as_deref().and_then(|delta| delta.exceptions().candidates(simd, key))
        {
            *verdict = self.verify(candidates, key);
        }
    }

    #[cold]
    fn scan(&self, key: &Key) -> Verdict {
        linear::scan(self.rules.iter(), key)
    }

    /// Returns the verdict of the first rule at these positions that matches.
    #[cold]
    fn verify(&self, positions: &[u32], key: &Key) -> Verdict {
        let rules = positions.iter().map(|&at| (at, &self.rules[at as usize]));
        let first = rules.into_iter().find(|(_, rule)| rule.matches(key));
        first.map_or(Verdict::NO_MATCH, |(at, rule)| Verdict::by(rule.action, at))
    }
}

mod update;

#[cfg(test)]
mod tests;
