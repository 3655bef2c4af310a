//! The compiled form of one ordered rule list.
//!
//! Today one engine stands behind the interface: the scan of the list, which is also the truth that every faster
//! engine is held against. Sets are shared with the list by reference, so building costs nothing per address.

use crate::{Action, Key, Rule, Verdict};

/// The most rules that one list may hold.
///
/// A position is kept in 32 bits with the last value for "none". 2^24 is 80 times the largest list that is measured
/// (200,000 rules) and keeps any structure with a few words per rule below a gigabyte.
pub const MAX_RULES: usize = 1 << 24;

/// Why a list could not be compiled. The tables in use stay as they are.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The list is longer than [`MAX_RULES`].
    #[error("{rules} rules in one table; the most that fit are {MAX_RULES}")]
    TooManyRules {
        /// How many there are.
        rules: usize,
    },
}

/// An immutable, shareable answer to "which rule decides".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    rules: Box<[Rule]>,
}

impl Tables {
    /// Compiles an ordered list: the first rule that matches a key decides.
    ///
    /// # Errors
    /// [`BuildError`] when the list does not fit; nothing is dropped from it silently.
    pub fn build(rules: Vec<Rule>) -> Result<Self, BuildError> {
        if rules.len() > MAX_RULES {
            return Err(BuildError::TooManyRules { rules: rules.len() });
        }
        Ok(Self { rules: rules.into_boxed_slice() })
    }

    /// The verdict on one key: that of the first matching rule, [`Verdict::NO_MATCH`] (a deny) when there is none.
    pub fn lookup(&self, key: &Key) -> Verdict {
        for (at, rule) in (0u32..).zip(&self.rules) {
            if rule.matches(key) {
                return Verdict::by(rule.action, at);
            }
        }
        Verdict::NO_MATCH
    }

    /// The verdicts on a burst of keys, each the same as [`Tables::lookup`] gives.
    ///
    /// # Panics
    /// When the two slices differ in length.
    pub fn lookup_batch(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        assert_eq!(keys.len(), verdicts.len(), "one verdict slot per key");
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = self.lookup(key);
        }
    }

    /// The rules in their order. A verdict's [`Verdict::rule`] is a position in this slice.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule that decided, none when no rule matched.
    pub fn deciding_rule(&self, verdict: Verdict) -> Option<&Rule> {
        verdict.rule().and_then(|at| self.rules.get(at))
    }

    /// Whether every packet gets the same action from these tables, and which.
    pub fn constant_action(&self) -> Option<Action> {
        match &*self.rules {
            [] => Some(Action::Deny),
            [first, ..] => (*first == Rule::any(first.action, first.origin)).then_some(first.action),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addresses, OriginId, PortRange, Service, Services, protocol};

    fn key(src: &str, port: u16) -> Key {
        Key::new(src.parse().unwrap(), "10.0.0.9".parse().unwrap(), protocol::TCP, 40_000, port)
    }

    fn rule(src: &str, port: u16, action: Action, origin: u32) -> Rule {
        Rule {
            src: Addresses::prefix(src.parse().unwrap()),
            services: Services::Set(std::sync::Arc::new(
                [Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) }]
                    .into_iter()
                    .collect(),
            )),
            ..Rule::any(action, OriginId(origin))
        }
    }

    #[test]
    fn the_first_matching_rule_wins_and_is_named() {
        let tables =
            Tables::build(vec![rule("10.0.0.1/32", 80, Action::Deny, 7), rule("10.0.0.0/24", 80, Action::Allow, 8)])
                .unwrap();
        let verdict = tables.lookup(&key("10.0.0.1", 80));
        assert_eq!((verdict.action(), verdict.rule()), (Action::Deny, Some(0)));
        assert_eq!(tables.deciding_rule(verdict).map(|r| r.origin), Some(OriginId(7)));
        assert_eq!(tables.lookup(&key("10.0.0.2", 80)).rule(), Some(1));
    }

    #[test]
    fn no_match_is_a_deny_that_names_no_rule() {
        let tables = Tables::build(vec![rule("10.0.0.0/24", 80, Action::Allow, 1)]).unwrap();
        assert_eq!(tables.lookup(&key("10.0.1.1", 80)), Verdict::NO_MATCH);
        assert_eq!(Tables::build(vec![]).unwrap().lookup(&key("10.0.0.1", 80)), Verdict::NO_MATCH);
    }

    #[test]
    fn a_burst_gets_the_answers_of_single_lookups() {
        let tables = Tables::build(vec![rule("10.0.0.0/24", 80, Action::Allow, 1)]).unwrap();
        let keys = [key("10.0.0.1", 80), key("10.0.0.1", 81), key("10.1.0.1", 80)];
        let mut verdicts = [Verdict::by(Action::Allow, 0); 3];
        tables.lookup_batch(&keys, &mut verdicts);
        assert_eq!(verdicts.map(Verdict::is_allow), [true, false, false]);
    }

    #[test]
    fn an_empty_set_matches_nothing() {
        let nothing =
            Rule { src: Addresses::from(crate::AddressSet::default()), ..Rule::any(Action::Allow, OriginId(0)) };
        assert!(!Tables::build(vec![nothing]).unwrap().lookup(&key("10.0.0.1", 80)).is_allow());
    }
}
