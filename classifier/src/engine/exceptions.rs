//! Addresses that entered or left a set after the list was compiled.
//!
//! ```text
//!   key --source, destination--> class of changed addresses --> the rules that name it now, in order --verify--> verdict
//!                            `-> none of them: what was compiled is right
//! ```
//!
//! A set of 100,000 pods changes with every pod, and compiling it takes milliseconds. A packet without a changed address matches the same
//! rules as before, so the compiled form stays valid for it. For other packets, the rules that name the changed address are verified one by
//! one until the list is recompiled. So a change costs as much as finding the changed addresses and the rules that name them.
//!
//! **Bounds.** At most [`MOST`] changed addresses or small blocks per family and side, and at most [`CANDIDATES`] rules for each. Beyond
//! that the list is recompiled at once.
//!
//! **Alternatives that lost.** Scanning the whole list for such a packet has no bound. Limiting that to short lists would recompile a
//! node's exit of thousands of rules with every pod of the cluster. One compiled form per set, shared between versions, leaves the question
//! which *combination* of sets has an address: for all pieces after each change, or for all sets in each lookup.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::address::Address;
use super::axis::{Axis, Classed};
use super::cover::Cover;
use super::sweep::{Bounds, Lists};
use crate::address_set::interval_among;
use crate::addresses::Place;
use crate::simd::Simd;
use crate::{AddressSet, Addresses, BuildOptions, Key, Rule, RuleList};

/// Maximum of changed addresses or small blocks of one family and side. Searching them takes two nodes.
const MOST: usize = 128;

/// Maximum of addresses in a changed block. Larger blocks come from policy edits, not from pods; verifying rules for all their traffic
/// would cost more than compiling.
const LARGEST: u128 = 256;

/// Maximum of rules that name a changed address: as many as 64 probes of 16 entries, the bound of any other lookup.
const CANDIDATES: usize = 1024;

/// Maximum of entries in all lists of rules: a megabyte.
const ALL_CANDIDATES: usize = 1 << 18;

/// Addresses that entered or left sources, and addresses that entered or left destinations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    pub(crate) src: AddressSet,
    pub(crate) dst: AddressSet,
}

impl Changed {
    pub(crate) fn is_empty(&self) -> bool {
        self.src.is_empty() && self.dst.is_empty()
    }

    /// Returns the number of changed addresses or blocks, sources and destinations together.
    pub(crate) fn intervals(&self) -> usize {
        let Self { src, dst } = self;
        [src, dst].iter().map(|set| set.v4_intervals().len() + set.v6_intervals().len()).sum()
    }
}

/// The changed addresses of a list, with the rules that name them.
#[derive(Clone, Debug)]
pub(crate) struct Exceptions {
    changed: Changed,
    /// Changed source addresses. `None` if no source address has changed.
    src: Option<Arc<Side>>,
    dst: Option<Arc<Side>>,
}

/// The changed addresses of one side, for both families.
#[derive(Debug)]
struct Side {
    v4: Named<u32>,
    v6: Named<u128>,
}

/// The changed addresses of one family, each with the list of rules that name it.
#[derive(Debug)]
struct Named<A> {
    /// Maps an address to the index of its rule list, or to [`UNCHANGED`].
    axis: Axis<A>,
    lists: Lists,
}

const UNCHANGED: u32 = u32::MAX;

impl Exceptions {
    pub(crate) fn new() -> Self {
        Self { changed: Changed::default(), src: None, dst: None }
    }

    /// Returns the exceptions extended by more addresses. Call [`Exceptions::find`] next. `None` if there would be too many addresses.
    pub(crate) fn with(&self, more: &Changed) -> Option<Self> {
        let changed =
            Changed { src: united(&self.changed.src, &more.src)?, dst: united(&self.changed.dst, &more.dst)? };
        Some(Self { changed, src: self.src.clone(), dst: self.dst.clone() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Finds the rules of the present list that name the addresses. Returns false if there are too many.
    ///
    /// Not cancellable, since it takes little time.
    pub(crate) fn find(&mut self, rules: &RuleList) -> bool {
        let Changed { src, dst } = &self.changed;
        self.src = (!src.is_empty()).then(|| Side::new(src, rules, |rule| &rule.src)).flatten().map(Arc::new);
        self.dst = (!dst.is_empty()).then(|| Side::new(dst, rules, |rule| &rule.dst)).flatten().map(Arc::new);
        src.is_empty() == self.src.is_none() && dst.is_empty() == self.dst.is_none()
    }

    /// Returns the positions of the rules that may match the key, in order. `None` if neither address is an exception.
    #[inline(always)]
    pub(crate) fn candidates<S: Simd>(&self, simd: S, key: &Key) -> Option<&[u32]> {
        let (src, dst) = key.bits();
        let (by_src, by_dst) = (self.src.as_deref(), self.dst.as_deref());
        let by_src = by_src.and_then(|side| side.rules(simd, key.family(), src));
        let by_dst = by_dst.and_then(|side| side.rules(simd, key.family(), dst));
        match (by_src, by_dst) {
            // Each list contains all rules that match.
            (Some(a), Some(b)) => Some(if b.len() < a.len() { b } else { a }),
            (a, b) => a.or(b),
        }
    }

    /// Returns the maximum number of rules verified for one key.
    pub(crate) fn longest(&self) -> usize {
        self.src
            .iter()
            .chain(&self.dst)
            .map(|side| side.v4.lists.longest().max(side.v6.lists.longest()))
            .max()
            .unwrap_or(0)
    }

    /// Returns the number of changed addresses or blocks that are exceptions.
    pub(crate) fn len(&self) -> usize {
        self.changed.intervals()
    }
}

/// Returns the union. `None` if it has too many intervals, or if a block of `more` is too large.
fn united(before: &AddressSet, more: &AddressSet) -> Option<AddressSet> {
    if more.subtract(before).is_empty() {
        return Some(before.clone());
    }
    let set = before.union(more);
    let small = |count: u128| count < LARGEST;
    let fits = set.v4_intervals().len() <= MOST
        && set.v6_intervals().len() <= MOST
        && more.v4_intervals().iter().all(|&(first, last)| small(u128::from(last - first)))
        && more.v6_intervals().iter().all(|&(first, last)| small(last - first));
    fits.then_some(set)
}

impl Side {
    fn new(changed: &AddressSet, rules: &RuleList, of: fn(&Rule) -> &Addresses) -> Option<Self> {
        Some(Self { v4: Named::new(changed, rules, of)?, v6: Named::new(changed, rules, of)? })
    }

    #[inline(always)]
    fn rules<S: Simd>(&self, simd: S, family: u8, address: [u64; 2]) -> Option<&[u32]> {
        match family {
            Key::V4 => self.v4.rules(simd, address),
            Key::V6 => self.v6.rules(simd, address),
            // The engine does not look up such keys.
            _ => None,
        }
    }
}

impl<A: Address> Named<A> {
    fn new(changed: &AddressSet, rules: &RuleList, of: fn(&Rule) -> &Addresses) -> Option<Self> {
        let changed = A::intervals(changed);
        if changed.is_empty() {
            let nothing = Classed { lasts: Vec::new(), class_of: vec![UNCHANGED] };
            return Some(Self { axis: Axis::new(nothing), lists: Lists::new(Bounds { longest: 0, items: 0 }) });
        }
        // The changed addresses in each set. Many rules share a set, mostly neighbours.
        let mut sets: Vec<(Place, Vec<(A, A)>)> = Vec::new();
        let mut places: HashMap<Place, usize, RandomState> = HashMap::default();
        let (mut cover, mut at) = (Cover::new(), 0);
        for (position, rule) in (0u32..).zip(rules.iter()) {
            let addresses = of(rule);
            let intervals = match addresses.place() {
                None => changed,
                Some(place) => {
                    if sets.get(at).is_none_or(|&(last, _)| last != place) {
                        at = *places.entry(place).or_insert_with(|| {
                            sets.push((place, members(addresses, changed)));
                            sets.len() - 1
                        });
                    }
                    &sets[at].1
                }
            };
            if !intervals.is_empty() {
                cover.add_set(position, intervals);
            }
        }
        let bounds = Bounds { longest: CANDIDATES, items: ALL_CANDIDATES };
        let (pieces, lists) = cover.lists(bounds, &BuildOptions::default()).ok().flatten()?;
        Some(Self { axis: Axis::new(only(changed, &pieces.classed())), lists })
    }

    #[inline(always)]
    fn rules<S: Simd>(&self, simd: S, address: [u64; 2]) -> Option<&[u32]> {
        let list = self.axis.class(simd, A::from_halves(address));
        (list != UNCHANGED).then(|| self.lists.get(list as usize))
    }
}

/// Returns the subset of the addresses in `few` that are members of a rule's address field.
fn members<A: Address>(addresses: &Addresses, few: &[(A, A)]) -> Vec<(A, A)> {
    match addresses {
        Addresses::Any => few.to_vec(),
        Addresses::Set(set) => interval_among(A::intervals(set), few),
        Addresses::Parted(set) => A::among(set, few),
    }
}

/// Returns the pieces with their classes inside `intervals`, and class [`UNCHANGED`] outside.
fn only<A: Address>(intervals: &[(A, A)], pieces: &Classed<A>) -> Classed<A> {
    let mut only = Classed { lasts: Vec::new(), class_of: Vec::new() };
    let ends = pieces.lasts.iter().copied().chain([A::LAST]);
    let mut pieces = ends.zip(&pieces.class_of).peekable();
    for &(first, last) in intervals {
        if let Some(before) = first.previous() {
            only.lasts.push(before);
            only.class_of.push(UNCHANGED);
        }
        while pieces.next_if(|&(end, _)| end < first).is_some() {}
        // A piece may reach into the next interval.
        while let Some(&(end, &class)) = pieces.peek() {
            only.lasts.push(end.min(last));
            only.class_of.push(class);
            if end >= last {
                break;
            }
            pieces.next();
        }
    }
    if only.lasts.last() == Some(&A::LAST) {
        only.lasts.pop();
    } else {
        only.class_of.push(UNCHANGED);
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;
    use crate::{Action, OriginId};
    use std::net::IpAddr;

    fn set(addresses: &[&str]) -> AddressSet {
        addresses.iter().map(|address| address.parse::<IpAddr>().unwrap()).collect()
    }

    fn found(changed: &Changed, rules: Vec<Rule>) -> Option<Exceptions> {
        let mut exceptions = Exceptions::new().with(changed)?;
        exceptions.find(&RuleList::from(rules)).then_some(exceptions)
    }

    fn from(src: Addresses, dst: Addresses) -> Rule {
        Rule { src, dst, ..Rule::any(Action::Allow, OriginId(0)) }
    }

    #[test]
    fn a_key_is_concerned_where_its_address_has_changed_and_by_the_rules_that_name_it() {
        let ends =
            ["0.0.0.0", "10.0.0.1", "255.255.255.255", "fd00::1", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"];
        let all = ["0.0.0.0", "0.0.0.1", "10.0.0.0", "10.0.0.1", "10.0.0.2", "255.255.255.254", "255.255.255.255"];
        let more = ["::", "::1", "fd00::", "fd00::1", "fd00::2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"];
        let changed = Changed { src: set(&ends), dst: set(&["10.0.0.2", "fd00::2"]) };
        let rules = vec![
            from(set(&all[..3]).into(), Addresses::Any),
            from(Addresses::Any, set(&["10.0.0.2", "fd00::2"]).into()),
            from(set(&more).into(), set(&["::1"]).into()),
            from(set(&ends).into(), Addresses::Any),
            from(set(&["10.9.9.9"]).into(), set(&["10.9.9.9"]).into()),
        ];
        let exceptions = found(&changed, rules.clone()).unwrap();
        for family in [&all[..], &more[..]] {
            for src in family {
                for dst in family {
                    let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
                    let named = |of: fn(&Rule) -> &Addresses, address| -> Vec<u32> {
                        (0..).zip(&rules).filter(|(_, rule)| of(rule).contains(address)).map(|(at, _)| at).collect()
                    };
                    let by_src = changed.src.contains(src).then(|| named(|rule| &rule.src, src));
                    let by_dst = changed.dst.contains(dst).then(|| named(|rule| &rule.dst, dst));
                    let candidates = exceptions.candidates(Scalar, &Key::new(src, dst, 6, 1, 1)).map(<[u32]>::to_vec);
                    assert_eq!(candidates.is_some(), by_src.is_some() || by_dst.is_some(), "{src} to {dst}");
                    assert!(candidates == by_src || candidates == by_dst, "{src} to {dst}");
                }
            }
        }
        let none = found(&Changed::default(), rules).unwrap();
        assert!(none.is_empty());
        assert_eq!(none.candidates(Scalar, &Key::new("::".parse().unwrap(), "::".parse().unwrap(), 6, 1, 1)), None);
    }

    #[test]
    fn many_or_large_blocks_are_no_exceptions() {
        let with = |exceptions: &Exceptions, src: AddressSet| exceptions.with(&Changed { src, ..Changed::default() });
        let block: ipnet::IpNet = "10.0.0.0/23".parse().unwrap();
        assert!(with(&Exceptions::new(), AddressSet::from_iter([block])).is_none());
        let pods = |count: u32| (0..count).map(|at| IpAddr::from((2 * at).to_be_bytes())).collect::<AddressSet>();
        let full = with(&Exceptions::new(), pods(128)).unwrap();
        assert!(with(&full, set(&["10.0.0.1"])).is_none());
        assert!(with(&full, set(&["fd00::1"])).is_some());
        assert!(full.with(&Changed { dst: set(&["10.0.0.1"]), ..Changed::default() }).is_some());
    }

    #[test]
    fn an_address_that_too_many_rules_name_is_no_exception() {
        let changed = Changed { src: set(&["10.0.0.1"]), ..Changed::default() };
        let named = |count: usize| vec![from(set(&["10.0.0.1", "10.0.0.9"]).into(), Addresses::Any); count];
        assert_eq!(found(&changed, named(CANDIDATES)).map(|exceptions| exceptions.longest()), Some(CANDIDATES));
        assert!(found(&changed, named(CANDIDATES + 1)).is_none());
        // Rules about other addresses do not count, regardless of their number.
        let others = vec![from(set(&["10.0.0.9"]).into(), Addresses::Any); 10 * CANDIDATES];
        assert_eq!(found(&changed, others).map(|exceptions| exceptions.longest()), Some(0));
    }
}
