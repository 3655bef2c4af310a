//! From a tree to tests that each say which one is next.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::protocol;
use ipnet::IpNet;

use super::Subject;
use super::parse::Tree;

/// Which ends of a packet a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sides {
    Source,
    Destination,
    Either,
    Both,
}

impl Sides {
    #[inline]
    fn of<T>(self, [source, destination]: [T; 2], test: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => test(source),
            Self::Destination => test(destination),
            Self::Either => test(source) || test(destination),
            Self::Both => test(source) && test(destination),
        }
    }
}

/// One question about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Predicate {
    /// Whether it is IPv6.
    Family(bool),
    Protocol(u8),
    /// Whether ports are in the range, of a protocol that has ports.
    Ports(Sides, u16, u16),
    /// Network and mask.
    V4(Sides, u32, u32),
    V6(Sides, u128, u128),
    Among(Sides, Arc<HashSet<IpAddr>>),
}

impl Predicate {
    /// Whether addresses are in a network.
    pub(super) fn net(sides: Sides, net: IpNet) -> Self {
        match net {
            IpNet::V4(net) => Self::V4(sides, net.network().into(), net.netmask().into()),
            IpNet::V6(net) => Self::V6(sides, net.network().into(), net.netmask().into()),
        }
    }

    #[inline]
    fn holds(&self, subject: &impl Subject) -> bool {
        match self {
            Self::Family(v6) => subject.is_v6() == *v6,
            Self::Protocol(number) => subject.protocol() == *number,
            Self::Ports(sides, low, high) => {
                let has_ports = matches!(subject.protocol(), protocol::TCP | protocol::UDP | protocol::SCTP);
                has_ports && sides.of(subject.ports(), |port| (*low..=*high).contains(&port))
            }
            Self::V4(sides, net, mask) => {
                let is_in = |address| matches!(address, IpAddr::V4(address) if u32::from(address) & mask == *net);
                !subject.is_v6() && sides.of(subject.addresses(), is_in)
            }
            Self::V6(sides, net, mask) => {
                let is_in = |address| matches!(address, IpAddr::V6(address) if u128::from(address) & mask == *net);
                subject.is_v6() && sides.of(subject.addresses(), is_in)
            }
            Self::Among(sides, addresses) => sides.of(subject.addresses(), |address| addresses.contains(&address)),
        }
    }
}

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
