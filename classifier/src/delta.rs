//! Changes on top of a compiled list.
//!
//! ```text
//!   base (shared, 100,000 rules) --without the removed--> code --moved to its present position--.
//!   added (some rules, compiled again at each change) ----> code --moved to its present position--+--> the smaller
//! ```
//!
//! An address that enters or leaves a set of the base moves to another class there ([`Move`]). Until it does, it is an exception: packets
//! with it verify the rules that name it one by one ([`Exceptions`]).
//!
//! Any other change compiles only the added rules, and each lookup then searches a second list of at most [`MAX_ADDED`] rules. Changing a
//! copy of the base lost: it would renumber all later positions in every structure, or need rule numbers with gaps, which run out.

use crate::compiled::Compiled;
use crate::engine::{Changed, Choice, Exceptions, Move};
use crate::{Action, BuildError, BuildOptions, Rule, RuleList, Verdict};

/// Maximum of added rules, and of removed ones. The bits of 64 added rules fit one word, which makes their lookup the fastest.
pub(crate) const MAX_ADDED: usize = 64;

/// Maximum of pending moves. A pod that comes and goes in each of 100 sets is one exception but 100 moves each time.
const MAX_MOVES: usize = 1 << 12;

#[derive(Clone, Debug)]
pub(crate) struct Delta {
    /// Removed rules, by their positions in the base, ascending.
    removed: Vec<u32>,
    /// Positions of the added rules in the present list, ascending.
    added: Vec<u32>,
    /// How far the compiled rules have moved: from the first number's position in the compiled list until the next step, add the second
    /// number (wrapping) for the present position.
    steps: Vec<(u32, u32)>,
    compiled: Option<Compiled>,
    exceptions: Exceptions,
    /// Changes of the address sets of base rules that the compiled base does not contain yet, oldest first. Source of `exceptions`.
    moves: Vec<Move>,
    /// Whether the added rules have changed since `compiled` was built.
    stale: bool,
    /// Whether addresses have changed since `exceptions` was computed.
    stale_exceptions: bool,
    /// Whether the address set of an added rule has changed.
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

    /// Records that a rule was inserted at a position.
    pub(crate) fn insert(&mut self, at: u32) {
        let place = self.added.partition_point(|&added| added < at);
        self.added[place..].iter_mut().for_each(|added| *added += 1);
        self.stale = true;
        self.added.insert(place, at);
    }

    /// Whether the rule at this position was added after the base was compiled.
    pub(crate) fn has_added(&self, at: u32) -> bool {
        self.added.binary_search(&at).is_ok()
    }

    /// Records that the rule at a position was removed. Returns its position in the base, or `None` if the base does not contain it.
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

    /// Records that addresses entered or left the sets of the rule at a position. Returns true if more moves are pending than
    /// [`MAX_MOVES`].
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

    /// Removes and returns all pending moves. Also drops the exceptions, which were made from them.
    pub(crate) fn take_moves(&mut self) -> Vec<Move> {
        self.exceptions = Exceptions::new();
        self.stale_exceptions = false;
        self.stale |= std::mem::take(&mut self.moved_added);
        std::mem::take(&mut self.moves)
    }

    /// Whether the compiled base alone gives the verdict for every key: no added or removed rules and no exceptions.
    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.exceptions.is_empty()
    }

    /// Returns the position in the compiled list of the rule that has `remaining` unremoved rules before it.
    fn in_base(&self, remaining: u32) -> u32 {
        self.removed.iter().fold(remaining, |base, &removed| if removed <= base { base + 1 } else { base })
    }

    /// Returns the present position of a rule at this position of the compiled list, which must not be removed.
    fn present(&self, base: u32) -> u32 {
        let before = u32::try_from(self.removed.partition_point(|&removed| removed < base)).expect("at most MAX_ADDED");
        self.added.iter().fold(base - before, |at, &added| if added <= at { at + 1 } else { at })
    }

    /// Adds exceptions for addresses that entered or left a rule's sets. Returns false if there are too many.
    pub(crate) fn except(&mut self, changed: &Changed) -> bool {
        let more = self.exceptions.with(changed);
        let fits = more.is_some();
        if let Some(more) = more {
            self.exceptions = more;
            self.stale_exceptions = true;
        }
        fits
    }

    /// Returns the addresses that changed after the compilation, with the rules to verify for packets that have them.
    #[inline]
    pub(crate) fn exceptions(&self) -> &Exceptions {
        &self.exceptions
    }

    /// Returns the number of added rules and the number of removed rules.
    #[cfg(test)]
    pub(crate) fn changes(&self) -> (usize, usize) {
        (self.added.len(), self.removed.len())
    }

    /// Whether the delta has more than [`MAX_ADDED`] added or removed rules, so that the list must be compiled again.
    pub(crate) fn is_full(&self) -> bool {
        self.added.len() > MAX_ADDED || self.removed.len() > MAX_ADDED
    }

    /// Records that large sets have new versions. Addresses that are exceptions may have entered or left these sets too.
    pub(crate) fn replace_versions(&mut self) {
        self.stale_exceptions = true;
    }

    /// Prepares lookups in the present rules. Returns false if too many rules name an exception, so that the list must be compiled.
    pub(crate) fn finish(&mut self, present: &RuleList, options: &BuildOptions<'_>) -> Result<bool, BuildError> {
        let (stale, stale_exceptions) = (std::mem::take(&mut self.stale), std::mem::take(&mut self.stale_exceptions));
        // Insertions and removals change the positions of the exceptions' rules.
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

    /// Returns the added rules, compiled. `None` without added rules.
    #[inline]
    pub(crate) fn compiled(&self) -> Option<&Compiled> {
        self.compiled.as_ref()
    }

    /// Translates a code of the base to the rule's present position.
    #[inline]
    pub(crate) fn move_base(&self, code: u32) -> u32 {
        if code == u32::MAX {
            return code;
        }
        let step = self.steps.partition_point(|&(begin, _)| begin <= code >> 1) - 1;
        code.wrapping_add(self.steps[step].1 << 1)
    }

    /// Translates a code of an added rule to its present position.
    #[inline]
    pub(crate) fn move_added(&self, code: u32) -> u32 {
        if code == u32::MAX { code } else { self.added[(code >> 1) as usize] << 1 | code & 1 }
    }
}
