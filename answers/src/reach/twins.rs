//! Finds equal rows and columns of a square table.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// A square table of small numbers, one per source and destination. Equal answers have equal numbers.
#[derive(Debug)]
pub(super) struct Square {
    size: usize,
    cells: Vec<u32>,
}

impl Square {
    pub(super) fn new(size: usize, mut cell: impl FnMut(usize, usize) -> u32) -> Self {
        let mut cells = Vec::with_capacity(size * size);
        for from in 0..size {
            cells.extend((0..size).map(|to| cell(from, to)));
        }
        Self { size, cells }
    }

    pub(super) fn at(&self, from: usize, to: usize) -> u32 {
        self.cells[from * self.size + to]
    }

    /// Whether exchanging the two indexes leaves the table as it is. `has_own` tells whether the cell of an index with itself has a meaning.
    fn are_twins(&self, one: usize, other: usize, has_own: impl Fn(usize) -> bool) -> bool {
        let among = self.at(one, other);
        let own = |at: usize| !has_own(at) || self.at(at, at) == among;
        let third = |at: &usize| *at != one && *at != other;
        among == self.at(other, one)
            && own(one)
            && own(other)
            && (0..self.size)
                .filter(third)
                .all(|at| self.at(one, at) == self.at(other, at) && self.at(at, one) == self.at(at, other))
    }

    /// Returns groups of indexes that can be exchanged without changing the table. That is an equivalence relation, so the first of each
    /// group represents all. Only indexes of the same `part` are grouped; one without a part stays alone. `has_own` is that of `are_twins`.
    ///
    /// Twins have equal rows and columns if both cells of an index with itself become what the two answer each other. Hashes of such rows
    /// and columns find the candidates, so that not every pair must be compared.
    pub(super) fn twins(
        &self,
        part: impl Fn(usize) -> Option<usize>,
        has_own: impl Fn(usize) -> bool,
    ) -> Vec<Vec<usize>> {
        let hasher = RandomState::new();
        let mix = |is_row: bool, at: usize, value: u32| hasher.hash_one((is_row, at, value));
        let mut columns = vec![0u64; self.size];
        for from in 0..self.size {
            for (to, sum) in columns.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                *sum = sum.wrapping_add(mix(false, from, self.at(from, to)));
            }
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut by_look: HashMap<(usize, u32, u64), usize> = HashMap::new();
        for (at, column) in columns.into_iter().enumerate() {
            let Some(part) = part(at) else {
                groups.push(vec![at]);
                continue;
            };
            let row = (0..self.size).filter(|&to| to != at).map(|to| mix(true, to, self.at(at, to)));
            let look = row.fold(column, u64::wrapping_add);
            let mut among: Vec<u32> = match has_own(at) {
                true => vec![self.at(at, at)],
                false => (0..self.size).filter(|&to| to != at).map(|to| self.at(at, to)).collect(),
            };
            among.sort_unstable();
            among.dedup();
            let keys = among.into_iter().map(|value| {
                let whole = look.wrapping_add(mix(true, at, value)).wrapping_add(mix(false, at, value));
                (part, value, whole)
            });
            let keys: Vec<_> = keys.collect();
            let known = keys.iter().filter_map(|key| by_look.get(key).copied());
            match known.into_iter().find(|&group| self.are_twins(groups[group][0], at, &has_own)) {
                Some(group) => groups[group].push(at),
                None => {
                    by_look.extend(keys.into_iter().map(|key| (key, groups.len())));
                    groups.push(vec![at]);
                }
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::tests::Random;

    /// The same by comparing every pair.
    fn slow(table: &Square, part: impl Fn(usize) -> Option<usize>, has_own: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for at in 0..table.size {
            let fits = |group: &&mut Vec<usize>| {
                part(at).is_some() && part(group[0]) == part(at) && table.are_twins(group[0], at, &has_own)
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(at),
                None => groups.push(vec![at]),
            }
        }
        groups
    }

    #[test]
    fn the_quick_search_finds_the_twins_that_comparing_every_pair_finds() {
        let (mut random, mut merged, mut single) = (Random(7), 0, 0);
        for _ in 0..2_000 {
            let size = 1 + usize::from(random.byte() % 9);
            // A table of few looks, so that twins occur.
            let looks: Vec<u8> = (0..size).map(|_| random.byte() % 4).collect();
            let values: Vec<u32> = (0..16).map(|_| u32::from(random.byte() % 3)).collect();
            let noise = random.byte() % 3 == 0;
            let table = Square::new(size, |from, to| {
                let value = values[usize::from(looks[from] * 4 + looks[to])];
                if noise && random.byte() < 20 { value + 1 } else { value }
            });
            let owns: Vec<bool> = (0..size).map(|_| random.byte() % 2 == 0).collect();
            let parts: Vec<Option<usize>> = (0..size).map(|_| usize::from(random.byte() % 3).checked_sub(1)).collect();
            let (part, has_own) = (|at: usize| parts[at], |at: usize| owns[at]);
            let groups = table.twins(part, has_own);
            assert_eq!(groups, slow(&table, part, has_own), "{table:?} {owns:?} {parts:?}");
            merged += groups.iter().filter(|group| group.len() > 1).count();
            single += groups.iter().filter(|group| group.len() == 1).count();
        }
        assert!(merged > 500 && single > 500, "{merged} {single}");
    }
}
