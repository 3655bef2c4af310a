//! The projection: tables refer to very large sets instead of being compiled for their members.
//!
//! ```text
//!   address --search tree of the other sets' borders--> piece  -.
//!          `--member of large set 0, 1, ...?----------> bits   -+--> bits * pieces + piece: a point of a small axis,
//!                                                                     which is what the list is compiled for
//! ```
//! No rule distinguishes two addresses with the same point, so the engine compiles a list of points instead of addresses. An address that
//! enters or leaves a large set gets another point, but the compiled list stays valid: only the reference to the set changes to its new
//! version. A list of 100 rules that names 100,000 pods is as small as one that names none.
//!
//! The price is a second search per lookup: a binary search in the set, which all tables share. A search tree per table lost: it is faster
//! for a single table, but a hundred of them take 200 MB, exceed all caches and are rebuilt with every event.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::address::Address;
use super::axis::{Axis, Classed};
use crate::addresses::Place;
use crate::simd::Simd;
use crate::{AddressSet, Addresses, PartedSet, Rule};

/// Maximum of large sets per axis that are referred to; others are compiled like small ones. Each set takes another search and doubles the
/// points.
const MAX_SETS: usize = 4;

/// Maximum of intervals of points per axis. With more, the compiled list would not be smaller than with the large sets' addresses, as in
/// the tables of a busy node's exit.
const MAX_INTERVALS: usize = 1 << 13;

/// Maps addresses to points, for the sources or the destinations of one family.
#[derive(Clone, Debug)]
pub(crate) struct Points<A> {
    /// Maps an address to its piece between the borders of the other sets.
    axis: Arc<Axis<A>>,
    pieces: u32,
}

impl<A: Address> Points<A> {
    /// Cuts the addresses into pieces at the borders of these sets. Also returns the last address of each piece.
    fn new<'a>(sets: impl Iterator<Item = &'a [(A, A)]>) -> (Self, Vec<A>)
    where
        A: 'a,
    {
        let mut lasts: Vec<A> = Vec::new();
        for &(first, last) in sets.flatten() {
            lasts.extend(first.previous());
            lasts.extend((last < A::LAST).then_some(last));
        }
        lasts.sort_unstable();
        lasts.dedup();
        let pieces = u32::try_from(lasts.len() + 1).expect("at most two for each of MAX_INTERVALS");
        let axis = Axis::new(Classed { lasts: lasts.clone(), class_of: (0..pieces).collect() });
        (Self { axis: Arc::new(axis), pieces }, lasts)
    }

    #[inline(always)]
    fn point<S: Simd>(&self, simd: S, sets: &[Arc<PartedSet>], address: A) -> A {
        let piece = self.axis.class(simd, address);
        let mut bits = 0;
        for (at, set) in (0u32..).zip(sets) {
            bits |= u32::from(A::is_in(set, address)) << at;
        }
        A::from(bits * self.pieces + piece)
    }

    /// Returns the points of a set whose borders are among `lasts`.
    fn of_set(&self, lasts: &[A], intervals: &[(A, A)], sets: usize) -> Vec<(A, A)> {
        let piece = |point: A| u32::try_from(lasts.partition_point(|&last| last < point)).expect("fewer than pieces");
        let pieces: Vec<_> = intervals.iter().map(|&(first, last)| (piece(first), piece(last))).collect();
        let each = |bits: u32| {
            let begin = bits * self.pieces;
            pieces.iter().map(move |&(first, last)| (A::from(begin + first), A::from(begin + last)))
        };
        (0..1 << sets).flat_map(each).collect()
    }

    /// Returns the points of the members of large set number `at`, of `sets` large sets.
    fn of_large(&self, at: usize, sets: usize) -> Vec<(A, A)> {
        let with = (0..1u32 << sets).filter(|bits| bits >> at & 1 != 0);
        with.map(|bits| (A::from(bits * self.pieces), A::from(bits * self.pieces + (self.pieces - 1)))).collect()
    }
}

/// Maps the memory address of a set to a value.
type ByPlace<T> = HashMap<Place, T, RandomState>;

/// The projection of one axis: the large sets, and the points of both families.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    sets: Vec<Arc<PartedSet>>,
    v4: Points<u32>,
    v6: Points<u128>,
}

impl Side {
    /// Builds the projection of one address field, and the points of each of its sets. `None` if the field names no large set, or too many
    /// others to be worthwhile.
    fn new(rules: &[Rule], field: fn(&Rule) -> &Addresses) -> Option<(Self, ByPlace<Addresses>)> {
        let mut sets: Vec<Arc<PartedSet>> = Vec::new();
        let mut others: ByPlace<&AddressSet> = HashMap::default();
        for addresses in rules.iter().map(field) {
            match addresses {
                Addresses::Any => {}
                Addresses::Parted(set) if sets.iter().any(|known| Arc::ptr_eq(known, set)) => {}
                Addresses::Parted(set) if sets.len() < MAX_SETS => sets.push(set.clone()),
                Addresses::Parted(set) => drop(others.insert(Arc::as_ptr(set).addr(), set.flat())),
                Addresses::Set(set) => drop(others.insert(Arc::as_ptr(set).addr(), set)),
            }
        }
        let count = |of: fn(&AddressSet) -> usize| others.values().map(|set| of(set)).sum::<usize>() << sets.len();
        let (v4, v6) = (count(|set| set.v4_intervals().len()), count(|set| set.v6_intervals().len()));
        if sets.is_empty() || v4.max(v6) > MAX_INTERVALS {
            return None;
        }
        let (v4, v4_lasts) = Points::new(others.values().map(|set| set.v4_intervals()));
        let (v6, v6_lasts) = Points::new(others.values().map(|set| set.v6_intervals()));
        let mut points = ByPlace::default();
        for (&place, set) in &others {
            let v4 = v4.of_set(&v4_lasts, set.v4_intervals(), sets.len());
            let v6 = v6.of_set(&v6_lasts, set.v6_intervals(), sets.len());
            points.insert(place, AddressSet::of_intervals(v4, v6).into());
        }
        for (at, set) in sets.iter().enumerate() {
            let (v4, v6) = (v4.of_large(at, sets.len()), v6.of_large(at, sets.len()));
            points.insert(Arc::as_ptr(set).addr(), AddressSet::of_intervals(v4, v6).into());
        }
        Some((Self { sets, v4, v6 }, points))
    }

    #[inline(always)]
    fn v4(&self) -> FamilySide<'_, u32> {
        FamilySide { sets: &self.sets, points: &self.v4 }
    }

    #[inline(always)]
    fn v6(&self) -> FamilySide<'_, u128> {
        FamilySide { sets: &self.sets, points: &self.v6 }
    }
}

/// Translates source and destination addresses to points, for lists that refer to very large sets.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    src: Option<Side>,
    dst: Option<Side>,
}

impl Projection {
    /// Returns the projection of a list, and the list in points. `None` if the list is to be compiled for addresses.
    pub(crate) fn of(rules: &[Rule]) -> Option<(Self, Vec<Rule>)> {
        let large = |addresses: &Addresses| matches!(addresses, Addresses::Parted(_));
        if !rules.iter().any(|rule| large(&rule.src) || large(&rule.dst)) {
            return None;
        }
        let (src, dst) = (Side::new(rules, |rule| &rule.src), Side::new(rules, |rule| &rule.dst));
        if src.is_none() && dst.is_none() {
            return None;
        }
        let points = |side: &Option<(Side, ByPlace<Addresses>)>, addresses: &Addresses| {
            let points = side.as_ref().and_then(|(_, points)| points.get(&addresses.place()?));
            points.unwrap_or(addresses).clone()
        };
        let projected = rules.iter().map(|rule| Rule {
            src: points(&src, &rule.src),
            dst: points(&dst, &rule.dst),
            ..rule.clone()
        });
        let projected = projected.collect();
        Some((Self { src: src.map(|(side, _)| side), dst: dst.map(|(side, _)| side) }, projected))
    }

    #[inline(always)]
    pub(crate) fn v4(&self) -> FamilyProjection<'_, u32> {
        FamilyProjection { src: self.src.as_ref().map(Side::v4), dst: self.dst.as_ref().map(Side::v4) }
    }

    #[inline(always)]
    pub(crate) fn v6(&self) -> FamilyProjection<'_, u128> {
        FamilyProjection { src: self.src.as_ref().map(Side::v6), dst: self.dst.as_ref().map(Side::v6) }
    }

    /// Returns the maximum of additional search steps per packet: nodes of the trees, and halvings of the sets.
    pub(crate) fn steps(&self) -> usize {
        let halvings = |set: &Arc<PartedSet>| (usize::BITS - set.intervals().leading_zeros()) as usize;
        let side = |side: &Side| {
            side.v4.axis.depth().max(side.v6.axis.depth()) + side.sets.iter().map(halvings).sum::<usize>()
        };
        self.src.iter().chain(&self.dst).map(side).sum()
    }

    /// Returns the heap bytes, without those of the large sets.
    pub(crate) fn bytes(&self) -> usize {
        self.src.iter().chain(&self.dst).map(|side| side.v4.axis.bytes() + side.v6.axis.bytes()).sum()
    }

    /// Compares the sets that a compiled rule names before and after a change, on an axis (0 for sources, 1 for destinations).
    pub(crate) fn reference<'a>(&self, axis: usize, old: &'a Addresses, new: &'a Addresses) -> Reference<'a> {
        match (old, new) {
            (Addresses::Parted(old), Addresses::Parted(new)) if Arc::ptr_eq(old, new) => Reference::Unchanged,
            (Addresses::Parted(old), Addresses::Parted(new)) if self.refers(axis, old) => Reference::Version(old, new),
            (Addresses::Parted(old), _) if self.refers(axis, old) => Reference::Another,
            (_, Addresses::Parted(new)) if self.refers(axis, new) => Reference::Another,
            _ => Reference::Unchanged,
        }
    }

    /// Whether the projection refers to the set on an axis.
    fn refers(&self, axis: usize, set: &Arc<PartedSet>) -> bool {
        let side = [&self.src, &self.dst][axis].as_ref();
        side.is_some_and(|side| side.sets.iter().any(|known| Arc::ptr_eq(known, set)))
    }
}

/// The projection of the sources or the destinations of one family, as part of a [`FamilyProjection`].
#[derive(Clone, Copy, Debug)]
struct FamilySide<'a, A> {
    sets: &'a [Arc<PartedSet>],
    points: &'a Points<A>,
}

/// Translates the addresses of one family to points. A side without a projection keeps its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FamilyProjection<'a, A> {
    src: Option<FamilySide<'a, A>>,
    dst: Option<FamilySide<'a, A>>,
}

impl<A: Address> FamilyProjection<'_, A> {
    /// Returns the points of a packet's source and destination.
    #[inline(always)]
    pub(crate) fn points<S: Simd>(self, simd: S, src: A, dst: A) -> (A, A) {
        let point = |side: Option<FamilySide<'_, A>>, address| {
            side.map_or(address, |FamilySide { sets, points }| points.point(simd, sets, address))
        };
        (point(self.src, src), point(self.dst, dst))
    }
}

/// Tells how a change of a rule affects its reference to a large set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reference<'a> {
    /// The rule refers to the same large set before and after, or to none.
    Unchanged,
    /// The rule refers to the second set instead of the first. Possible without compiling only if all rules make the same change.
    Version(&'a Arc<PartedSet>, &'a Arc<PartedSet>),
    /// The rule now names a set for which it was not compiled, so the list must be compiled again.
    Another,
}

/// New versions of large sets.
///
/// **Invariant.** A compiled rule that names a set of the projection was compiled for that set. So neither a rule's own change nor a set's
/// change may make another rule name such a set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replacements {
    /// The replaced sets of each axis: 0 for sources, 1 for destinations.
    all: [Vec<Replacement>; 2],
}

#[derive(Clone, Debug)]
struct Replacement {
    old: Arc<PartedSet>,
    new: Arc<PartedSet>,
    /// The number of compiled rules that name `new` instead of `old`.
    rules: usize,
}

impl Replacements {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.iter().all(Vec::is_empty)
    }

    /// Records that a compiled rule names `new` on an axis instead of `old`, to which the projection refers. Returns false if another rule
    /// replaces `old` by a different set.
    pub(crate) fn note(&mut self, axis: usize, old: &Arc<PartedSet>, new: &Arc<PartedSet>) -> bool {
        let known = self.all[axis].iter_mut().find(|known| Arc::ptr_eq(&known.old, old));
        match known {
            Some(known) => {
                let agrees = Arc::ptr_eq(&known.new, new);
                known.rules += usize::from(agrees);
                agrees
            }
            None => {
                self.all[axis].push(Replacement { old: old.clone(), new: new.clone(), rules: 1 });
                true
            }
        }
    }

    /// Records that a rule was removed, which may be one of the recorded ones.
    pub(crate) fn remove(&mut self, rule: &Rule) {
        for (all, addresses) in self.all.iter_mut().zip([&rule.src, &rule.dst]) {
            let Addresses::Parted(set) = addresses else { continue };
            let named = all.iter_mut().filter(|one| Arc::ptr_eq(&one.new, set));
            named.for_each(|one| one.rules = one.rules.saturating_sub(1));
        }
    }

    /// Returns the projection with the new versions. `None` if a rule of the changed list still names an old version, or names a new one
    /// without being compiled for the old one.
    pub(crate) fn apply<'a>(
        self,
        projection: &Projection,
        rules: impl Iterator<Item = &'a Rule>,
    ) -> Option<Projection> {
        let mut named = self.all.each_ref().map(|all| vec![0; all.len()]);
        for rule in rules {
            for ((all, named), addresses) in self.all.iter().zip(&mut named).zip([&rule.src, &rule.dst]) {
                let Addresses::Parted(set) = addresses else { continue };
                if all.iter().any(|one| Arc::ptr_eq(&one.old, set)) {
                    return None;
                }
                for (one, count) in all.iter().zip(named) {
                    *count += usize::from(Arc::ptr_eq(&one.new, set));
                }
            }
        }
        let agrees =
            |(all, named): (&Vec<Replacement>, &Vec<usize>)| all.iter().map(|one| one.rules).eq(named.iter().copied());
        if !self.all.iter().zip(&named).all(agrees) {
            return None;
        }
        let mut projection = projection.clone();
        for (all, side) in self.all.iter().zip([&mut projection.src, &mut projection.dst]) {
            for set in side.iter_mut().flat_map(|side| &mut side.sets) {
                if let Some(one) = all.iter().find(|one| Arc::ptr_eq(&one.old, set)) {
                    *set = one.new.clone();
                }
            }
        }
        Some(projection)
    }
}
