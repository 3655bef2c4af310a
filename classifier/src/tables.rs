//! The compiled form of one ordered rule list.
//!
//! Today one engine stands behind the interface: the scan of the list, which is also the truth that every faster
//! engine is held against. Sets are shared with the list by reference, so building costs nothing per address.

use crate::engine::address::Address;
use crate::engine::{BLOCK, Block, Choice, Cost, Family, Fields, Protocols};
use crate::simd::{Kernel, Level, Scalar, Simd};
use crate::{Action, Key, Rule, Verdict, linear};

/// The most rules that one list may hold.
///
/// A position and an action are kept in 24 bits, so that a rule to be verified is half a cache line with its verdict.
/// 2^23 is 40 times the largest list that is measured (200,000 rules).
pub const MAX_RULES: usize = 1 << 23;

/// Why a list could not be compiled. The tables in use stay as they are.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The list is longer than [`MAX_RULES`].
    #[error("{rules} rules in one table; the most that fit are {MAX_RULES}")]
    TooManyRules {
        /// How many there are.
        rules: usize,
    },
    /// More rules overlap in every field than the engine may hold.
    #[error(
        "the rules overlap in too many ways to be compiled in bounded memory; use fewer different ranges or prefixes"
    )]
    TooComplex,
    /// The compiled form would be larger than [`BuildOptions::max_bytes`].
    #[error("the compiled rules take more than the {max_bytes} bytes that are allowed")]
    TooLarge {
        /// The bound.
        max_bytes: usize,
    },
    /// [`BuildOptions::cancelled`] said so.
    #[error("the build was cancelled")]
    Cancelled,
}

/// What a build may use.
#[derive(Clone, Copy)]
pub struct BuildOptions<'a> {
    /// The most heap bytes of the compiled form of one address family. While it is built, up to four times as much is
    /// in use.
    pub max_bytes: usize,
    /// Asked now and then; the build gives up when it says true.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Default for BuildOptions<'_> {
    /// 256 MiB, 20 times what the largest measured list (200,000 rules) takes, and not to be cancelled.
    fn default() -> Self {
        Self { max_bytes: 256 << 20, cancelled: &|| false }
    }
}

impl BuildOptions<'_> {
    /// An error when the build should stop.
    pub(crate) fn proceed(&self) -> Result<(), BuildError> {
        if (self.cancelled)() { Err(BuildError::Cancelled) } else { Ok(()) }
    }
}

/// An immutable, shareable answer to "which rule decides".
#[derive(Clone, Debug)]
pub struct Tables {
    rules: Box<[Rule]>,
    protocols: Protocols,
    v4: Family<u32>,
    v6: Family<u128>,
    level: Level,
}

impl PartialEq for Tables {
    /// Tables of equal rules are equal: the compiled form follows from the rules, up to the keys of its hashes.
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
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
        let protocols = Protocols::new(&rules);
        let v4 = Family::build(&rules, &protocols, options, choice)?;
        let v6 = Family::build(&rules, &protocols, options, choice)?;
        Ok(Self { rules: rules.into_boxed_slice(), protocols, v4, v6, level: Level::detect() })
    }

    /// The verdict on one key: that of the first matching rule, [`Verdict::NO_MATCH`] (a deny) when there is none.
    pub fn lookup(&self, key: &Key) -> Verdict {
        let mut verdict = [Verdict::NO_MATCH];
        self.level.call(Burst::<1> { tables: self, keys: std::slice::from_ref(key), verdicts: &mut verdict });
        verdict[0]
    }

    /// The verdicts on a burst of keys, each the same as [`Tables::lookup`] gives.
    ///
    /// # Panics
    /// When the two slices differ in length.
    pub fn lookup_batch(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        assert_eq!(keys.len(), verdicts.len(), "one verdict slot per key");
        if keys.len() == 1 {
            self.level.call(Burst::<1> { tables: self, keys, verdicts });
        } else {
            self.level.call(Burst::<BLOCK> { tables: self, keys, verdicts });
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
        match key.family() {
            Key::V4 => self.v4.cost(Scalar, self.fields(key)),
            _ => self.v6.cost(Scalar, self.fields(key)),
        }
    }

    /// Heap bytes of the compiled form, without the rules themselves.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes()
    }

    /// How the lists of both families were compiled, for people.
    pub fn describe(&self) -> String {
        format!("IPv4: {}; IPv6: {}; {}", self.v4.describe(), self.v6.describe(), self.level.name())
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

/// A burst of keys, in blocks of `N`.
struct Burst<'a, const N: usize> {
    tables: &'a Tables,
    keys: &'a [Key],
    verdicts: &'a mut [Verdict],
}

impl<const N: usize> Kernel for Burst<'_, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (keys, verdicts) in self.keys.chunks(N).zip(self.verdicts.chunks_mut(N)) {
            let mut block = Block::<u32, N>::new();
            let mut families = Key::V4;
            for key in keys {
                families |= key.family();
                block.push(self.tables.fields(key));
            }
            if families == Key::V4 {
                let codes = self.tables.v4.decide(simd, &block);
                for (verdict, code) in verdicts.iter_mut().zip(codes) {
                    *verdict = Verdict::from_code(code);
                }
            } else {
                self.tables.mixed::<S, N>(simd, keys, verdicts);
            }
        }
    }
}

impl Tables {
    #[inline(always)]
    fn fields<A: Address>(&self, key: &Key) -> Fields<A> {
        let (src, dst) = key.bits();
        Fields {
            src: A::from_halves(src),
            dst: A::from_halves(dst),
            service: self.protocols.point(key.protocol(), key.dst_port()),
            src_port: u32::from(key.src_port()),
        }
    }

    /// Keys of both families, and keys that no packet has (two families in one), which only the scan answers.
    #[inline(always)]
    fn mixed<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], verdicts: &mut [Verdict]) {
        let (mut v4, mut v6) = (Block::<u32, N>::new(), Block::<u128, N>::new());
        let mut odd = false;
        for key in keys {
            match key.family() {
                Key::V4 => v4.push(self.fields(key)),
                Key::V6 => v6.push(self.fields(key)),
                _ => odd = true,
            }
        }
        let v4 = self.v4.decide(simd, &v4);
        let v6 = self.v6.decide(simd, &v6);
        let (mut v4, mut v6) = (v4.iter(), v6.iter());
        for (key, verdict) in keys.iter().zip(&mut *verdicts) {
            let code = match key.family() {
                Key::V4 => v4.next(),
                Key::V6 => v6.next(),
                _ => None,
            };
            *verdict = code.map_or(Verdict::NO_MATCH, |&code| Verdict::from_code(code));
        }
        if odd {
            self.scan_odd(keys, verdicts);
        }
    }

    #[cold]
    fn scan_odd(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts).filter(|(key, _)| !matches!(key.family(), Key::V4 | Key::V6)) {
            *verdict = linear::scan(&self.rules, key);
        }
    }
}

#[cfg(test)]
mod tests;
