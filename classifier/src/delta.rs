//! What changed since a list was compiled.
//!
//! ```text
//!   base (shared, 100,000 rules) --without the removed--> code --moved to its present position--.
//!   added (some rules, compiled anew for each change) ----> code --moved to its present position--+--> the smaller
//! ```
//!
//! An address that entered or left a set of the base moves to another class there ([`Move`]), or is an exception until it does: for
//! packets with it the rules that name it are verified one by one ([`Exceptions`]). Another change costs as much as compiling the added rules, not the base: what a lookup pays for it is a second lookup in
//! a list of at most [`MAX_ADDED`]. The alternative, copying and changing the base's own structures, has to move
//! every later position by one in every structure, or to give rules numbers with gaps that run out.

use crate::compiled::Compiled;
use crate::engine::{Changed, Choice, Exceptions, Move};
use crate::{Action, BuildError, BuildOptions, Rule, RuleList, Verdict};

/// The most added rules, and as many removed: one word of bits for the added, so that their lookup is the quickest.
pub(crate) const MAX_ADDED: usize = 64;

/// The most moves that wait: a pod that comes and goes in each of 100 sets is one exception and 100 moves each time.
const MAX_MOVES: usize = 1 << 12;

/// Changes on top of a compiled list.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    /// Positions in the base that are gone, ascending.
    removed: Vec<u32>,
    /// Present positions of the added rules, ascending.
    added: Vec<u32>,
    /// From this position of the base on, until the next step, a rule is so much further (around zero).
    steps: Vec<(u32, u32)>,
    compiled: Option<Compiled>,
    exceptions: Exceptions,
    /// Where addresses can move in the base: what the exceptions come from, oldest first.
    moves: Vec<Move>,
    /// Whether the added rules are others than the compiled ones.
    stale: bool,
    /// Whether addresses have changed since the rules that name them were looked for.
    stale_exceptions: bool,
    /// Whether some of the changed addresses are those of added rules.
    moved_added: bool,
}

impl Delta {
    pub(crate) fn new() -> Self {
        Self {
            removed: Vec::new(),
            added: Vec::new(),
            steps: vec![(0, 0)],
            compiled: None,
            exceptions: Exceptions::new(),
            moves: Vec::new(),
            stale: false,
            stale_exceptions: false,
            moved_added: false,
        }
    }

    /// A rule was put at this position.
    pub(crate) fn insert(&mut self, at: u32) {
        let place = self.added.partition_point(|&added| added < at);
        self.added[place..].iter_mut().for_each(|added| *added += 1);
        self.stale = true;
        self.added.insert(place, at);
    }

    /// Whether the rule at this position is an added one.
    pub(crate) fn has_added(&self, at: u32) -> bool {
        self.added.binary_search(&at).is_ok()
    }

    /// The rule at this position was taken out. Its position in the base, none if it was an added one.
    pub(crate) fn remove(&mut self, at: u32) -> Option<u32> {
        let place = self.added.partition_point(|&added| added < at);
        let own = self.added.get(place) == Some(&at);
        let base = (!own).then(|| self.in_base(at - u32::try_from(place).expect("at most MAX_ADDED")));
        if own {
            self.added.remove(place);
        }
        self.stale = true;
        self.added[place..].iter_mut().for_each(|added| *added -= 1);
        if let Some(base) = base {
            self.removed.insert(self.removed.partition_point(|&removed| removed < base), base);
        }
        base
    }

    /// Addresses have entered or left the sets of the rule at a position. Returns whether there are more moves than should wait.
    pub(crate) fn note(&mut self, at: u32, action: Action, changed: &Changed) -> bool {
        let place = self.added.partition_point(|&added| added < at);
        if self.added.get(place) == Some(&at) {
            self.moved_added = true;
        } else {
            let base = self.in_base(at - u32::try_from(place).expect("at most MAX_ADDED"));
            self.moves.push(Move { code: Verdict::by(action, base).code(), changed: changed.clone() });
        }
        self.moves.len() > MAX_MOVES
    }

    /// Hands over the moves, after which there are no exceptions any more.
    pub(crate) fn take_moves(&mut self) -> Vec<Move> {
        self.exceptions = Exceptions::new();
        self.stale_exceptions = false;
        self.stale |= std::mem::take(&mut self.moved_added);
        std::mem::take(&mut self.moves)
    }

    /// Whether the base, as it is, says all.
    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.exceptions.is_empty()
    }

    /// The position in the base of the rule that has so many of the remaining ones before it.
    fn in_base(&self, remaining: u32) -> u32 {
        self.removed.iter().fold(remaining, |base, &removed| if removed <= base { base + 1 } else { base })
    }

    /// The present position of a remaining rule of the base.
    fn present(&self, base: u32) -> u32 {
        let before = u32::try_from(self.removed.partition_point(|&removed| removed < base)).expect("at most MAX_ADDED");
        self.added.iter().fold(base - before, |at, &added| if added <= at { at + 1 } else { at })
    }

    /// Addresses have entered or left a rule's sets. Whether the delta can hold that.
    pub(crate) fn except(&mut self, changed: &Changed) -> bool {
        let more = self.exceptions.with(changed);
        let fits = more.is_some();
        if let Some(more) = more {
            self.exceptions = more;
            self.stale_exceptions = true;
        }
        fits
    }

    /// Addresses for whose packets the compiled rules are out of date.
    #[inline]
    pub(crate) fn exceptions(&self) -> &Exceptions {
        &self.exceptions
    }

    /// How many rules were added and removed.
    #[cfg(test)]
    pub(crate) fn changes(&self) -> (usize, usize) {
        (self.added.len(), self.removed.len())
    }

    /// Whether there is more than a delta should hold.
    pub(crate) fn is_full(&self) -> bool {
        self.added.len() > MAX_ADDED || self.removed.len() > MAX_ADDED
    }

    /// Large sets have other versions, which may have gained or lost addresses that entered or left other sets before.
    pub(crate) fn replace_versions(&mut self) {
        self.stale_exceptions = true;
    }

    /// Computes what lookups need from the present rules. False where too many rules name a changed address: then the list
    /// has to be compiled.
    pub(crate) fn finish(&mut self, present: &RuleList, options: &BuildOptions<'_>) -> Result<bool, BuildError> {
        let (stale, stale_exceptions) = (std::mem::take(&mut self.stale), std::mem::take(&mut self.stale_exceptions));
        // Rules that come or go move the others.
        if (stale || stale_exceptions) && !self.exceptions.is_empty() && !self.exceptions.find(present) {
            return Ok(false);
        }
        if !stale {
            return Ok(true);
        }
        let first_after = |(before, &at): (u32, &u32)| self.in_base(at - before);
        let added = (0u32..).zip(&self.added).map(first_after);
        let mut begins: Vec<u32> = self.removed.iter().map(|removed| removed + 1).chain(added).chain([0]).collect();
        begins.sort_unstable();
        begins.dedup();
        self.steps = begins.iter().map(|&base| (base, self.present(base).wrapping_sub(base))).collect();
        let rules: Vec<Rule> = self.added.iter().map(|&at| present[at as usize].clone()).collect();
        self.compiled = if rules.is_empty() { None } else { Some(Compiled::build(&rules, options, Choice::BITS)?) };
        Ok(true)
    }

    /// The added rules, compiled; none when there are none.
    #[inline]
    pub(crate) fn compiled(&self) -> Option<&Compiled> {
        self.compiled.as_ref()
    }

    /// The code of a rule of the base at its present position.
    #[inline]
    pub(crate) fn move_base(&self, code: u32) -> u32 {
        if code == u32::MAX {
            return code;
        }
        let step = self.steps.partition_point(|&(begin, _)| begin <= code >> 1) - 1;
        code.wrapping_add(self.steps[step].1 << 1)
    }

    /// The code of an added rule at its present position.
    #[inline]
    pub(crate) fn move_added(&self, code: u32) -> u32 {
        if code == u32::MAX { code } else { self.added[(code >> 1) as usize] << 1 | code & 1 }
    }
}
