//! The compiled form of one ordered rule list, and how it follows the list's changes.

use std::sync::Arc;

use crate::build::{BuildError, BuildOptions, MAX_RULES};
use crate::compiled::Compiled;
use crate::delta::Delta;
use crate::engine::{BLOCK, Choice, Cost};
use crate::identity::{IdentityTables, Judge};
use crate::simd::{Kernel, Level, Scalar, Simd};
use crate::{Action, Key, Rule, RuleList, Verdict, linear};

/// An immutable, shareable answer to "which rule decides". A copy shares everything.
#[derive(Clone, Debug)]
pub struct Tables {
    rules: RuleList,
    /// The other form: then the rules are decisions, and none of what follows is there.
    identities: Option<Arc<IdentityTables>>,
    /// None: the list is scanned.
    compiled: Option<Compiled>,
    delta: Option<Arc<Delta>>,
    level: Level,
}

impl PartialEq for Tables {
    /// Tables of equal rules are equal: the compiled form follows from the rules, up to the keys of its hashes. Identities are equal where
    /// they are the same.
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
    /// [`BuildError`] when the list does not fit; nothing is dropped from it silently.
    pub fn build(rules: Vec<Rule>) -> Result<Self, BuildError> {
        Self::build_with(rules, &BuildOptions::default())
    }

    /// [`Tables::build`] with a bound on memory and a way to stop it.
    ///
    /// # Errors
    /// [`BuildError`] when the list does not fit or the build was cancelled.
    pub fn build_with(rules: Vec<Rule>, options: &BuildOptions<'_>) -> Result<Self, BuildError> {
        Self::build_as(rules, options, Choice::default())
    }

    fn build_as(rules: Vec<Rule>, options: &BuildOptions<'_>, choice: Choice) -> Result<Self, BuildError> {
        if rules.len() > MAX_RULES {
            return Err(BuildError::TooManyRules { rules: rules.len() });
        }
        let compiled = Compiled::build(&rules, options, choice)?;
        Ok(Self {
            rules: rules.into(),
            identities: None,
            compiled: Some(compiled),
            delta: None,
            level: Level::detect(),
        })
    }

    /// Tables that are ready at once, whatever the rules: lookups try one rule after the other.
    ///
    /// For a list that is asked some questions. Not for packets: a lookup costs a check per rule, which nothing bounds.
    ///
    /// # Errors
    /// [`BuildError::TooManyRules`].
    pub fn scanned(rules: Vec<Rule>) -> Result<Self, BuildError> {
        if rules.len() > MAX_RULES {
            return Err(BuildError::TooManyRules { rules: rules.len() });
        }
        Ok(Self { rules: rules.into(), identities: None, compiled: None, delta: None, level: Level::detect() })
    }

    /// Tables that look up who has an address and then what that one may do. Their rules are the decisions, in no order, with the
    /// action and the origin of each; a change of them is another [`IdentityTables`].
    pub fn of_identities(identities: Arc<IdentityTables>) -> Self {
        let rules = identities.decisions().clone();
        Self { rules, identities: Some(identities), compiled: None, delta: None, level: Level::detect() }
    }

    /// The identities; none for a rule list.
    pub fn identities(&self) -> Option<&Arc<IdentityTables>> {
        self.identities.as_ref()
    }

    /// The verdict on one key: that of the first matching rule, [`Verdict::NO_MATCH`] (a deny) when there is none.
    pub fn lookup(&self, key: &Key) -> Verdict {
        let mut verdict = Verdict::NO_MATCH;
        self.lookup_batch(std::slice::from_ref(key), std::slice::from_mut(&mut verdict));
        verdict
    }

    /// The verdicts on a burst of keys, each the same as [`Tables::lookup`] gives.
    ///
    /// # Panics
    /// When the two slices differ in length.
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

    /// The same tables on another level of the CPU, so that tests hold the levels against each other.
    #[cfg(test)]
    pub(crate) fn at(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// What the lookup of this key costs, in counted steps.
    pub fn cost(&self, key: &Key) -> Cost {
        if let Some(candidates) = self.delta.as_deref().and_then(|delta| delta.exceptions().candidates(Scalar, key)) {
            return Cost { entries: candidates.len(), ..Cost::default() };
        }
        let added = self.added().map(|added| added.cost(key)).unwrap_or_default();
        self.compiled.as_ref().map_or_else(|| self.cost_of_scan(), |compiled| compiled.cost(key)) + added
    }

    /// The most that the lookup of any key costs: what whoever writes the rules can make a packet cost.
    pub fn worst_case(&self) -> Cost {
        let named = self.delta.as_deref().map_or(0, |delta| delta.exceptions().longest());
        self.compiled.as_ref().map_or_else(|| self.cost_of_scan(), Compiled::worst_case)
            + self.added().map(Compiled::worst_case).unwrap_or_default()
            + Cost { entries: named, ..Cost::default() }
    }

    /// Heap bytes of the compiled form, without the rules themselves.
    pub fn bytes(&self) -> usize {
        let identities = self.identities.as_ref().map_or(0, |identities| identities.bytes());
        identities + self.compiled.as_ref().map_or(0, Compiled::bytes) + self.added().map_or(0, Compiled::bytes)
    }

    /// Whether the compiled form is that of the whole list, so that to compile it again would bring nothing.
    pub fn is_whole(&self) -> bool {
        self.compiled.is_some() && self.delta.is_none()
    }

    /// How the lists of both families were compiled, for people.
    pub fn describe(&self) -> String {
        if let Some(identities) = &self.identities {
            return format!("{}; {}", identities.describe(), self.level.name());
        }
        let Some(compiled) = &self.compiled else { return format!("scan of {} rules", self.rules.len()) };
        let changed = self.delta.as_deref().map(|delta| match delta.exceptions() {
            exceptions if exceptions.is_empty() => ", changed since".to_owned(),
            exceptions => {
                let (count, most) = (exceptions.len(), exceptions.longest());
                format!(", changed since (addresses in other sets: {count}, rules verified for one: at most {most})")
            }
        });
        format!("{}; {}{}", compiled.describe(), self.level.name(), changed.unwrap_or_default())
    }

    fn cost_of_scan(&self) -> Cost {
        if self.identities.is_some() {
            // Two searches of the ipcache, and two of a map each with a row.
            return Cost { steps: 4, ..Cost::default() };
        }
        Cost { entries: self.rules.len(), ..Cost::default() }
    }

    fn added(&self) -> Option<&Compiled> {
        self.delta.as_deref().and_then(Delta::compiled)
    }

    /// The rules in their order. A verdict's [`Verdict::rule`] is a position in this list.
    pub fn rules(&self) -> &RuleList {
        &self.rules
    }

    /// The rule that decided, none when no rule matched.
    pub fn deciding_rule(&self, verdict: Verdict) -> Option<&Rule> {
        verdict.rule().and_then(|at| self.rules.get(at))
    }

    /// Whether every packet gets the same action from these tables, and which.
    pub fn constant_action(&self) -> Option<Action> {
        match self.rules.first() {
            _ if self.identities.is_some() => None,
            None => Some(Action::Deny),
            Some(first) => (*first == Rule::any(first.action, first.origin)).then_some(first.action),
        }
    }
}

/// One key.
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

/// A burst of keys, in blocks.
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

/// The better of the base's codes and those of the added rules, both at their present positions.
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
    /// The verdict on a key that the compiled form is not right for: one of two families, which no packet has, or one with an
    /// address that has changed sets.
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

    /// The first rule at these positions that matches.
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
