//! The cross product: a table of the first matching rule for every combination of classes.
//!
//! If the classes of the four axes have few combinations (one pod's table: sources times services), this is the fastest structure: one load
//! after the four searches. It also withstands tuple space explosion by nested prefixes and ranges: 8,193 rules with 8,192 masks have 9,537
//! combinations.
//!
//! The rows of the table, with a bit for each rule and class, are kept for changes. They give the next rule of a combination when a rule is
//! removed ([`super::removal`]), and the class of an address that enters or leaves sets ([`super::moves`]).

use std::sync::Arc;

use super::address::Address;
use super::cover::{Covers, Rows};
use super::rules::LiveRules;
use super::{Axes, Classes};
use crate::{BuildError, BuildOptions};

/// Longest list that is tried, since a cell has 16 bits. All mask shapes that an attacker can nest around one packet, 33 times 33 prefix
/// lengths and 60 ranges, have few combinations, but would be too many for the other structures.
const MAX_RULES: usize = u16::MAX as usize;

/// Maximum of classes per axis. With [`MAX_RULES`] it bounds the rows to 64 MiB.
const MAX_CLASSES: usize = 1 << 13;

/// Maximum of 64-bit words in all rows that are kept: 4 MiB. A list of 100 rules takes some KiB, one of 5,000 some hundred KiB. A list with
/// more is recompiled when it changes.
const MAX_ROWS: usize = 1 << 19;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cross {
    /// For each combination of classes: the index in `codes` of the first matching rule. An index takes half the memory of a code.
    pub(super) cells: Vec<u16>,
    /// The code of each rule, and as the last element `u32::MAX` for "no rule".
    pub(super) codes: Vec<u32>,
    pub(super) classes: [usize; 4],
    /// The rules that cover each class of the four axes, by their index in `codes`. `None` if the rows are too large to keep.
    pub(super) rows: Option<Arc<[Rows; 4]>>,
    /// A bit for each rule: 1 unless the rule was removed after the build.
    pub(super) live: Vec<u64>,
    /// The number of classes that [`super::moves`] has added since the build.
    pub(super) added: usize,
}

impl Cross {
    /// Builds the table. Also returns the axes, whose class numbers are summands of a cell's index. `None` if there are too many cells.
    pub(crate) fn build<A: Address>(
        live: &LiveRules<'_, A>,
        options: &BuildOptions<'_>,
        max_cells: usize,
    ) -> Result<Option<(Axes<A>, Self)>, BuildError> {
        let bits = live.rules.len();
        if bits > MAX_RULES {
            return Ok(None);
        }
        let mut covers = Covers::new(bits.div_ceil(64).max(1), live.last_service);
        for (bit, rule) in (0u32..).zip(0..bits) {
            covers.add_rule(bit, live, rule);
        }
        let Some((mut axes, rows)) = covers.cut(MAX_CLASSES, max_cells, options)? else { return Ok(None) };
        let all = vec![u64::MAX; rows[0].words];
        let cells = fill(&rows, &all, bits, options)?;
        let codes = live.rules.iter().map(|rule| rule.code).chain([u32::MAX]).collect();
        let [_, dst, service, src_port] =
            rows.each_ref().map(|rows| u32::try_from(rows.classes()).expect("at most MAX_CLASSES"));
        axes.renumber(
            [dst * service * src_port, service * src_port, src_port, 1].map(|factor| move |class| class * factor),
        );
        let classes = rows.each_ref().map(Rows::classes);
        let is_kept = rows.iter().map(|rows| rows.bits.len()).sum::<usize>() <= MAX_ROWS;
        let rows = is_kept.then(|| Arc::new(rows));
        Ok(Some((axes, Self { cells, codes, classes, rows, live: all, added: 0 })))
    }

    #[inline(always)]
    pub(crate) fn decide<const N: usize>(&self, classes: &Classes<N>, codes: &mut [u32]) {
        for (at, code) in codes.iter_mut().enumerate() {
            let cell = classes[0][at] + classes[1][at] + classes[2][at] + classes[3][at];
            *code = self.codes[usize::from(self.cells[cell as usize])];
        }
    }

    #[inline(always)]
    pub(crate) fn decide_one(&self, [a, b, c, d]: [u32; 4]) -> u32 {
        self.codes[usize::from(self.cells[(a + b + c + d) as usize])]
    }

    pub(crate) fn cells(&self) -> usize {
        self.cells.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let rows = self.rows.iter().flat_map(|rows| rows.iter()).map(|rows| rows.bits.capacity()).sum::<usize>();
        self.cells.capacity() * size_of::<u16>()
            + self.codes.capacity() * size_of::<u32>()
            + (rows + self.live.capacity()) * size_of::<u64>()
    }
}

/// Returns for each combination of classes the first live bit in the intersection of their rows, or `none` if no live bit is set.
fn fill(rows: &[Rows; 4], live: &[u64], none: usize, options: &BuildOptions<'_>) -> Result<Vec<u16>, BuildError> {
    let [a, b, c, d] = rows.each_ref().map(Rows::classes);
    let mut cells = Vec::with_capacity(a * b * c * d);
    let mut pairs = Pairs::new(rows, live, none);
    for i in 0..a {
        options.proceed()?;
        (0..b).for_each(|j| pairs.fill(i, j, &mut cells));
    }
    Ok(cells)
}

/// Computes the table's cells for pairs of a source class and a destination class.
pub(super) struct Pairs<'a> {
    rows: &'a [Rows; 4],
    live: &'a [u64],
    none: usize,
    /// The nonzero words of the intersection of the pair's rows, with their indices. Few words: most classes are covered by few rules.
    some: Vec<(usize, u64)>,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(rows: &'a [Rows; 4], live: &'a [u64], none: usize) -> Self {
        Self { rows, live, none, some: Vec::new() }
    }

    /// Appends the cells of a pair of classes, for all services and source ports.
    pub(super) fn fill(&mut self, src: usize, dst: usize, cells: &mut Vec<u16>) {
        let Self { rows: [a, b, c, d], live, none, some } = self;
        let words = a.row(src).iter().zip(b.row(dst)).zip(*live).map(|((a, b), live)| a & b & live);
        some.clear();
        some.extend(words.enumerate().filter(|&(_, word)| word != 0));
        for k in 0..c.classes() {
            let c = c.row(k);
            for l in 0..d.classes() {
                let d = d.row(l);
                let first = some.iter().find_map(|&(at, word)| {
                    let met = word & c[at] & d[at];
                    (met != 0).then(|| at * 64 + met.trailing_zeros() as usize)
                });
                cells.push(u16::try_from(first.unwrap_or(*none)).expect("MAX_RULES is below 2^16"));
            }
        }
    }
}
