//! From a tree to tests that each say which one is next.

use super::Subject;
use super::parse::Tree;
use super::predicate::Predicate;

/// The packet matches.
const MATCHES: u16 = u16::MAX;
/// It does not.
const FAILS: u16 = u16::MAX - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    predicate: Predicate,
    /// The test that comes next, which stands before this one in the list; or [`MATCHES`] or [`FAILS`].
    holds: u16,
    fails: u16,
}

/// Tests, the first one last. Without any everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    tests: Vec<Test>,
    first: u16,
}

impl Program {
    pub(super) fn of(tree: &Tree) -> Self {
        let mut program = Self { tests: Vec::new(), first: MATCHES };
        program.first = program.add(tree, MATCHES, FAILS);
        program
    }

    /// The program, if the predicate holds.
    pub(super) fn after(mut self, predicate: Predicate) -> Self {
        let holds = if self.is_empty() { MATCHES } else { self.first };
        self.first = self.test(predicate, holds, FAILS);
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tests.is_empty()
    }

    fn test(&mut self, predicate: Predicate, holds: u16, fails: u16) -> u16 {
        let at = u16::try_from(self.tests.len()).expect("the number of tests is bounded");
        self.tests.push(Test { predicate, holds, fails });
        at
    }

    /// Adds a part that goes on at one of two places. Returns where it begins. What comes later is there already: so every way leads
    /// down the list.
    fn add(&mut self, tree: &Tree, holds: u16, fails: u16) -> u16 {
        match tree {
            Tree::Test(predicate) => self.test(predicate.clone(), holds, fails),
            Tree::Not(tree) => self.add(tree, fails, holds),
            Tree::All(all) => all.iter().rev().fold(holds, |next, part| self.add(part, next, fails)),
            Tree::Any(any) => any.iter().rev().fold(fails, |next, part| self.add(part, holds, next)),
        }
    }

    #[inline]
    pub(super) fn run(&self, subject: &impl Subject) -> bool {
        if self.tests.is_empty() {
            return true;
        }
        let mut at = self.first;
        while let Some(test) = self.tests.get(usize::from(at)) {
            at = if test.predicate.holds(subject) { test.holds } else { test.fails };
        }
        at == MATCHES
    }
}
