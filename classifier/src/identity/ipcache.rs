//! The ipcache, which maps addresses to numbers.

use std::net::IpAddr;

use ahash::AHashSet;
use ipnet::IpNet;

use super::ranges::{Cut, Ranges};
use crate::AddressSet;
use crate::engine::address::Address;
use crate::simd::Scalar;

/// The ipcache: maps each address to a number. Unknown addresses have number 0.
#[derive(Clone, Debug)]
pub struct IpCache {
    pub(super) v4: Ranges<u32>,
    pub(super) v6: Ranges<u128>,
}

impl Default for IpCache {
    fn default() -> Self {
        Self { v4: Ranges::all(0), v6: Ranges::all(0) }
    }
}

impl IpCache {
    /// Returns the number of an address. 0 for an unknown address.
    pub fn get(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(v4) => self.v4.get(Scalar, v4.into()),
            IpAddr::V6(v6) => self.v6.get(Scalar, v6.into()),
        }
    }

    /// Returns the ipcache with changes. For each address in one of `changes`, `next` returns the new number. Its arguments are the old
    /// number and the positions of the changes that contain the address, ascending.
    #[must_use]
    pub fn changed(&self, changes: &[&AddressSet], mut next: impl FnMut(u32, &[usize]) -> u32) -> Self {
        let (v4, v4_groups) = cuts(changes.iter().map(|set| set.v4_intervals()));
        let (v6, v6_groups) = cuts(changes.iter().map(|set| set.v6_intervals()));
        let v4 = if v4.is_empty() {
            self.v4.clone()
        } else {
            self.v4.changed(&v4, &mut |number, group| next(number, &v4_groups[group]))
        };
        let v6 = if v6.is_empty() {
            self.v6.clone()
        } else {
            self.v6.changed(&v6, &mut |number, group| next(number, &v6_groups[group]))
        };
        Self { v4, v6 }
    }

    /// Returns the ipcache with each number `n` replaced by `number(n)`.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(u32) -> u32) -> Self {
        Self { v4: self.v4.renumbered(&number), v6: self.v6.renumbered(&number) }
    }

    /// Returns every number that at least one address has, including 0 for unknown addresses.
    pub fn numbers(&self) -> AHashSet<u32> {
        let (v4, v6) = (self.v4.all_pieces(), self.v6.all_pieces());
        v4.iter().map(|&(_, number)| number).chain(v6.iter().map(|&(_, number)| number)).collect()
    }

    /// Returns the known addresses as the fewest prefixes with their numbers, ascending, IPv4 first.
    pub fn entries(&self) -> Vec<(IpNet, u32)> {
        fn told<A: Address>(pieces: &[(A, u32)]) -> impl Iterator<Item = (A, A, u32)> + '_ {
            let firsts = std::iter::once(A::ZERO).chain(pieces.iter().filter_map(|(last, _)| last.next()));
            firsts.zip(pieces).map(|(first, &(last, number))| (first, last, number)).filter(|piece| piece.2 != 0)
        }
        let mut entries = Vec::new();
        let mut add = |set: AddressSet, number| entries.extend(set.prefixes().map(|prefix| (prefix, number)));
        for (first, last, number) in told(&self.v4.all_pieces()) {
            add(AddressSet::of_intervals(vec![(first, last)], vec![]), number);
        }
        for (first, last, number) in told(&self.v6.all_pieces()) {
            add(AddressSet::of_intervals(vec![], vec![(first, last)]), number);
        }
        entries
    }

    /// Returns the number of pieces: ranges of addresses with one number.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether no address has a number other than 0.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Returns the heap memory of the ipcache in bytes.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes()
    }
}

/// Cuts the address space where the set of changes differs. Returns the cuts, each with a group number, and the changes of each group.
fn cuts<'a, A: Address>(changes: impl Iterator<Item = &'a [(A, A)]>) -> (Vec<Cut<A>>, Vec<Vec<usize>>) {
    // Sorted by point: the point, whether the change begins there or has ended before, and the change.
    let mut events: Vec<(A, bool, usize)> = Vec::new();
    for (change, intervals) in changes.enumerate() {
        for &(first, last) in intervals {
            events.push((first, true, change));
            events.extend(last.next().map(|after| (after, false, change)));
        }
    }
    events.sort_unstable();
    let (mut cuts, mut groups): (Vec<Cut<A>>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    let mut numbers = ahash::AHashMap::<Vec<usize>, usize>::new();
    let (mut active, mut from) = (Vec::<usize>::new(), A::ZERO);
    let mut close = |from: A, last: A, active: &Vec<usize>| {
        if active.is_empty() {
            return;
        }
        let group = *numbers.entry(active.clone()).or_insert_with(|| {
            groups.push(active.clone());
            groups.len() - 1
        });
        cuts.push((from, last, group));
    };
    for (point, begins, change) in events {
        if point > from {
            close(from, point.previous().expect("there is one below"), &active);
            from = point;
        }
        match active.binary_search(&change) {
            Err(at) if begins => active.insert(at, change),
            Ok(at) if !begins => drop(active.remove(at)),
            _ => {}
        }
    }
    close(from, A::LAST, &active);
    (cuts, groups)
}
