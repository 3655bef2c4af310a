//! Removes rules from a cross product: the combinations that they decided get the next matching rule.
//!
//! ```text
//!   cells of the rules --rows of their classes--> the next bit that all four have, of a rule that stays --> the same table, these cells changed
//! ```
//!
//! The cells, some hundred kilobytes, are copied, so a removal does not slow down lookups. The alternative lost: marking removed rules,
//! with a list of what each hid, adds a branch and a search to each lookup.

use super::cross::Cross;

/// Maximum of row words read for all affected cells: about a millisecond. Building a cross product takes up to four.
const MOST_WORDS: usize = 1 << 20;

impl Cross {
    /// Removes the rules with these codes from the table. Returns false if they decide too many combinations, or if the rows were not kept.
    pub(super) fn take_out(&mut self, codes: &[u32]) -> bool {
        let gone: Vec<usize> = codes.iter().filter_map(|code| self.codes.binary_search(code).ok()).collect();
        if gone.is_empty() {
            return true;
        }
        let Some(rows) = &self.rows else { return false };
        gone.iter().for_each(|bit| self.live[bit / 64] &= !(1 << (bit % 64)));
        let (live, words) = (&self.live, self.live.len());
        let [_, dsts, services, src_ports] = self.classes;
        let none = self.codes.len() - 1;
        let mut left = MOST_WORDS;
        for (at, cell) in self.cells.iter_mut().enumerate() {
            let decided = usize::from(*cell);
            if decided == none || live[decided / 64] & 1 << (decided % 64) != 0 {
                continue;
            }
            let (pair, rest) = (at / (services * src_ports), at % (services * src_ports));
            let classes = [pair / dsts, pair % dsts, rest / src_ports, rest % src_ports];
            let [a, b, c, d] = [0, 1, 2, 3].map(|axis: usize| rows[axis].row(classes[axis]));
            // No earlier rule matches this combination.
            let next = (decided / 64..words).find_map(|at| {
                left = left.saturating_sub(1);
                let met = a[at] & b[at] & c[at] & d[at] & live[at];
                (met != 0).then(|| at * 64 + met.trailing_zeros() as usize)
            });
            if left == 0 {
                return false;
            }
            *cell = u16::try_from(next.unwrap_or(none)).expect("MAX_RULES is below 2^16");
        }
        true
    }
}
