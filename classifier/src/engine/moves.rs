//! Moves addresses that enter or leave the sets of rules to other classes of a cross product.
//!
//! ```text
//!   rules whose sets an address has entered or left --their bits turned over in the row of its class--> another row
//!   another row --that of a class?--> the pieces of the address get this class
//!              `--no---------------> a new class, with its cells
//! ```
//!
//! The result equals a build of the changed list, except for class numbers, and lookups cost the same. A pod's table of 1,000 members
//! applies ten moves in 15 us, where a build takes 80 us. A node's exit of 85,000 members applies a thousand in 1.5 ms, where a build takes
//! 6 ms. Most of the time is copying the search tree. So a single address in a large table is an exception first
//! ([`Exceptions`](super::Exceptions)). Lookups of exceptions verify rules one by one, and there can be 128 of them.
//!
//! Pieces and classes without addresses remain until the axis is cut again or the list is rebuilt.
//!
//! **Alternatives that lost.** Compiling the changed rules separately: it took 40 % of a batch of 1,000 pods, and lookups searched twice.
//! More exceptions than 128: each of 250 tables would search the rules that name them after every event.

use std::sync::Arc;

use super::address::Address;
use super::axis::Axis;
use super::choice::MAX_CELLS;
use super::cover::Rows;
use super::cross::{Cross, Pairs};
use super::{Axes, Changed};
use crate::AddressSet;

/// Maximum of classes added before the next build. Unused classes take cells too.
const MOST_ADDED: usize = 256;

/// Maximum number of rows that are compared to find a class with a given row: about a millisecond.
const MOST_COMPARED: usize = 1 << 19;

/// Addresses that entered or left the sets of one compiled rule.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) code: u32,
    pub(crate) changed: Changed,
}

/// A point of an axis at and above which a rule's coverage is inverted: covered points become uncovered and vice versa.
#[derive(Clone, Copy, Debug)]
struct Toggle<A> {
    point: A,
    bit: usize,
}

impl Cross {
    /// Applies the moves. Returns the changed axes. `None` if only a build can apply them; the table is then unusable.
    pub(super) fn follow<A: Address>(&mut self, axes: &Axes<A>, moves: &[Move]) -> Option<Axes<A>> {
        let src = self.toggles::<A>(moves, |changed| &changed.src)?;
        let dst = self.toggles::<A>(moves, |changed| &changed.dst)?;
        let mut axes = axes.clone();
        if src.is_empty() && dst.is_empty() {
            return Some(axes);
        }
        let mut shared = self.rows.take()?;
        let rows = Arc::make_mut(&mut shared);
        let [srcs, dsts, services, src_ports] = self.classes;
        let cells_of_pair = services * src_ports;
        let mut left = (MOST_ADDED.saturating_sub(self.added), MOST_COMPARED);
        // Class numbers are the indices of the classes' first cells.
        turn(&mut axes.dst, &dst, &mut rows[1], cells_of_pair, &mut left)?;
        let of_source = |dsts: usize| u32::try_from(dsts * cells_of_pair).ok();
        let (before, after) = (of_source(dsts)?, of_source(rows[1].classes())?);
        if before != after {
            axes.src.renumber(|number| number / before * after);
        }
        let factor = rows[1].classes() * cells_of_pair;
        turn(&mut axes.src, &src, &mut rows[0], factor, &mut left)?;
        self.added = MOST_ADDED - left.0;
        let classes = [rows[0].classes(), rows[1].classes()];
        if classes != [srcs, dsts] {
            if classes[0] * classes[1] * cells_of_pair > MAX_CELLS {
                return None;
            }
            self.extend(rows, classes);
        }
        self.rows = Some(shared);
        Some(axes)
    }

    /// Returns in ascending order the points at which the moves invert a rule's coverage. `None` if a rule is not in the table.
    fn toggles<A: Address>(&self, moves: &[Move], of: fn(&Changed) -> &AddressSet) -> Option<Vec<Toggle<A>>> {
        let mut toggles = Vec::new();
        for Move { code, changed } in moves {
            let intervals = A::intervals(of(changed));
            if intervals.is_empty() {
                continue;
            }
            let bit = self.codes.binary_search(code).ok()?;
            for &(first, last) in intervals {
                toggles.push(Toggle { point: first, bit });
                toggles.extend(last.next().map(|point| Toggle { point, bit }));
            }
        }
        toggles.sort_unstable_by_key(|toggle| toggle.point);
        Some(toggles)
    }

    /// Adds the cells of new source and destination classes to the table.
    fn extend(&mut self, rows: &[Rows; 4], [srcs, dsts]: [usize; 2]) {
        let [old_srcs, old_dsts, services, src_ports] = self.classes;
        let each = services * src_ports;
        let mut cells = Vec::with_capacity(srcs * dsts * each);
        let mut pairs = Pairs::new(rows, &self.live, self.codes.len() - 1);
        for src in 0..srcs {
            let known = if src < old_srcs { old_dsts } else { 0 };
            cells.extend_from_slice(&self.cells[src.min(old_srcs) * old_dsts * each..][..known * each]);
            (known..dsts).for_each(|dst| pairs.fill(src, dst, &mut cells));
        }
        (self.cells, self.classes) = (cells, [srcs, dsts, services, src_ports]);
    }
}

/// Moves the pieces between toggles to the classes of their new rows. Class numbers are multiples of `factor`. `left` limits the number of
/// new classes and of compared rows. `None` if a limit is exceeded.
fn turn<A: Address>(
    axis: &mut Axis<A>,
    toggles: &[Toggle<A>],
    rows: &mut Rows,
    factor: usize,
    left: &mut (usize, usize),
) -> Option<()> {
    if toggles.is_empty() {
        return Some(());
    }
    let mut ends: Vec<A> = toggles.iter().filter_map(|toggle| toggle.point.previous()).collect();
    ends.dedup();
    if !axis.ends_at(&ends) {
        *axis = axis.cut_at(&ends);
    }
    // The rules whose coverage is inverted at the present point.
    let (mut turned, mut count) = (vec![0u64; rows.words], 0);
    let mut toggles = toggles.iter().peekable();
    while let Some(&&Toggle { point: first, .. }) = toggles.peek() {
        while let Some(Toggle { bit, .. }) = toggles.next_if(|toggle| toggle.point == first) {
            turned[bit / 64] ^= 1 << (bit % 64);
            count = if turned[bit / 64] & 1 << (bit % 64) == 0 { count - 1 } else { count + 1 };
        }
        if count == 0 {
            continue;
        }
        let last = toggles.peek().and_then(|next| next.point.previous()).unwrap_or(A::LAST);
        let class = |number: u32| {
            let class = class_of(rows, number as usize / factor, &turned, left)?;
            u32::try_from(class * factor).ok()
        };
        if !axis.replace((first, last), class) {
            return None;
        }
    }
    Some(())
}

/// Returns the class whose row is that of `class` with the bits in `turned` inverted. Adds the class if it does not exist. `None` if a
/// limit is exceeded.
fn class_of(rows: &mut Rows, class: usize, turned: &[u64], left: &mut (usize, usize)) -> Option<usize> {
    let row: Vec<u64> = rows.row(class).iter().zip(turned).map(|(word, turned)| word ^ turned).collect();
    let classes = rows.classes();
    left.1 = left.1.checked_sub(classes)?;
    if let Some(class) = rows.bits.chunks_exact(rows.words).position(|other| other == row) {
        return Some(class);
    }
    left.0 = left.0.checked_sub(1)?;
    rows.bits.extend(row);
    Some(classes)
}
