//! Compiles a syntax tree to a list of tests. Each names its successors.

use super::Subject;
use super::parse::Tree;
use super::predicate::Predicate;

/// The successor of a test that decides that the packet matches.
const MATCHES: u16 = u16::MAX;
/// The successor of a test that decides that the packet does not match.
const FAILS: u16 = u16::MAX - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    predicate: Predicate,
    /// Index of the next test if this one holds: an earlier element of the list, [`MATCHES`] or [`FAILS`].
    holds: u16,
    fails: u16,
}

/// Tests, in reverse order of evaluation. An empty program matches every packet.
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

    /// Adds a condition that is evaluated before all others. A packet must satisfy it too.
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

    /// Adds a subtree with the given successors. Returns the index of its first test. Successors are added first, so all jumps go to
    /// earlier elements.
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
