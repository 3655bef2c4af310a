//! Bit vectors: intersecting the rows of the four classes leaves the direct rules that match, and the tuples that may match.

use super::address::{Address, Fields};
use super::choice::{CHUNK_BITS, CHUNK_CODES, Choice};
use super::cover::{self, Covers};
use super::plan::{Plan, Shape};
use super::probe::{Probe, bits};
use super::rules::LiveRules;
use super::sides::{MeetSide, SideLines, Sides};
use super::tuples::{Tuples, lanes};
use super::{Axes, Block, Classes, Cost};
use crate::simd::{Chunk, Kernel, Simd};
use crate::{BuildError, BuildOptions};

/// Maximum of bits in a row. Longer rows exceed the caches.
const MAX_BITS: usize = 1 << 14;

/// The rows of one family, and the meaning of their bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vectors<A> {
    rows: Rows,
    /// The verdict code of each bit of a row, [`CHUNK_CODES`] per chunk. `u32::MAX` for the bits of tuples and for no bit.
    codes: Vec<u32>,
    /// The bits of a row's first word that belong to tuples.
    tuple_bits: u64,
    tuples: Tuples<A>,
    shapes: Vec<Shape>,
    direct: usize,
    classes: [usize; 4],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rows {
    /// One 64-bit word per class.
    Words(Vec<u64>),
    /// `each` chunks per class, class by class.
    Chunks { rows: Vec<Chunk>, each: usize },
    /// One chunk per class of the address axis `axis`, and `each` per class of the others: a key reads the one of its side ([`Sides`]).
    Sides { rows: Vec<Chunk>, each: usize, axis: usize },
}

impl<A: Address> Vectors<A> {
    pub(crate) fn build(
        live: &LiveRules<'_, A>,
        options: &BuildOptions<'_>,
        choice: Choice,
    ) -> Result<(Axes<A>, Self), BuildError> {
        let mut plan = Plan::new(live, choice, options)?;
        let tuples = loop {
            options.proceed()?;
            match Tuples::new(&plan.tuples, &plan.entries) {
                Ok(tuples) => break tuples,
                Err(homeless) => plan.make_direct(&homeless, live),
            }
        };
        let bits = plan.tuples.len() + plan.direct.len();
        if bits > MAX_BITS {
            return Err(BuildError::TooComplex);
        }
        let is_divisible = plan.tuples.is_empty() && bits > choice.side;
        let sides = if is_divisible { Sides::of(live, &plan.direct, choice.side, options.max_bytes) } else { None };
        let words = match &sides {
            Some(sides) => sides.rules.len() * 8,
            None if bits <= 64 => 1,
            None => bits.div_ceil(CHUNK_BITS) * 8,
        };
        let mut covers = Covers::new(words, live.last_service);
        plan.entries.iter().for_each(|entry| covers.add_entry(entry.tuple, entry));
        let places: Vec<(usize, u32)> = match &sides {
            Some(sides) => sides.bits().collect(),
            None => (plan.tuples.len()..).zip(plan.direct.iter().copied()).collect(),
        };
        let mut codes = vec![u32::MAX; words * 64];
        for (bit, rule) in places {
            covers.add_rule(u32::try_from(bit).expect("below MAX_BITS"), live, rule as usize);
            codes[bit] = live.rules[rule as usize].code;
        }
        let too_large = BuildError::TooLarge { max_bytes: options.max_bytes };
        let (mut axes, mut rows) =
            covers.cut(options.max_bytes / (words * 8), usize::MAX, options)?.ok_or(too_large)?;
        if let Some(sides) = &sides {
            sides.reduce(&mut axes, &mut rows);
        }
        cover::Rows::number(&rows, &mut axes);
        let (classes, each) = (rows.each_ref().map(cover::Rows::classes), words.div_ceil(8));
        let rows = if let Some(sides) = sides {
            sides.mark(&mut axes);
            Rows::Sides { rows: cover::Rows::chunks(&rows), each, axis: sides.axis }
        } else if words == 1 {
            Rows::Words(rows.iter().flat_map(|rows| &rows.bits).copied().collect())
        } else {
            Rows::Chunks { rows: cover::Rows::chunks(&rows), each }
        };
        let codes = by_place(&codes, each);
        let tuple_bits = if plan.tuples.len() == 64 { u64::MAX } else { (1 << plan.tuples.len()) - 1 };
        Ok((axes, Self { rows, codes, classes, direct: plan.direct.len(), tuple_bits, tuples, shapes: plan.tuples }))
    }

    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(
        &self,
        simd: S,
        classes: &Classes<N>,
        block: &Block<A, N>,
        live: &[Chunk],
        gone: &[u32],
        best: &mut [u32; N],
    ) {
        let mut tuples = [0; N];
        let len = block.len;
        match &self.rows {
            Rows::Words(rows) => {
                for at in 0..len {
                    let met = classes.iter().fold(live[0].0[0], |met, axis| met & rows[axis[at] as usize]);
                    best[at] = self.codes[(met & !self.tuple_bits).trailing_zeros() as usize];
                    tuples[at] = met & self.tuple_bits;
                }
            }
            Rows::Chunks { rows, each } => {
                let (best, tuples) = (&mut best[..len], &mut tuples[..len]);
                let lines = Lines { rows, live, codes: &self.codes, classes };
                if *each == 2 {
                    simd.call(Meet::<N, 2> { lines, aside: self.tuple_bits, best, tuples });
                } else {
                    simd.call(Meet::<N, 1> { lines, aside: self.tuple_bits, best, tuples });
                }
            }
            Rows::Sides { rows, axis, .. } => {
                let lines = SideLines { rows, axis: *axis, live, codes: &self.codes };
                simd.call(MeetSide { lines, classes, best: &mut best[..len] });
                return;
            }
        }
        if self.tuple_bits != 0 {
            simd.call(Probe { tables: &self.tuples, gone, tuples: &tuples[..len], block, best });
        }
        if let Rows::Chunks { rows, each: each @ 3.. } = &self.rows {
            let lines = Lines { rows, live, codes: &self.codes, classes };
            simd.call(MeetRest { lines, each: *each, best: &mut best[..len] });
        }
    }

    /// Looks up one packet. Returns the code of its first matching rule.
    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(
        &self,
        simd: S,
        [a, b, c, d]: [u32; 4],
        packet: &Fields<A>,
        live: &[Chunk],
        gone: &[u32],
    ) -> u32 {
        let (mut best, tuples) = match &self.rows {
            Rows::Words(rows) => {
                let row = |class: u32| rows[class as usize];
                let met = row(a) & row(b) & row(c) & row(d) & live[0].0[0];
                (self.codes[(met & !self.tuple_bits).trailing_zeros() as usize], met & self.tuple_bits)
            }
            Rows::Chunks { rows, .. } => {
                let row = |class: u32| &rows[class as usize];
                let (tuples, place) = simd.meet([row(a), row(b), row(c), row(d), &live[0]], self.tuple_bits);
                (self.codes[place], tuples)
            }
            Rows::Sides { rows, axis, .. } => {
                let lines = SideLines { rows, axis: *axis, live, codes: &self.codes };
                let (divided, other) = lines.ordered(a, b);
                return lines.first(simd, divided, [other, c, d]);
            }
        };
        if tuples != 0 {
            let lanes = lanes(*packet);
            for tuple in bits(tuples) {
                let (first, end) = self.tuples.run(self.tuples.bucket(tuple, packet));
                for entry in first..end {
                    best = best.min(self.tuples.verify(simd, entry, &lanes, gone));
                }
            }
        }
        if let Rows::Chunks { rows, each } = &self.rows {
            for chunk in 1..*each {
                // Bits are in the order of rules. With only two chunks, reading the second is cheaper than a mispredicted branch.
                if *each > 2 && best < self.codes[chunk * CHUNK_CODES] {
                    break;
                }
                let row = |class: u32| &rows[class as usize + chunk];
                let place = simd.meet([row(a), row(b), row(c), row(d), &live[chunk]], 0).1;
                best = best.min(self.codes[chunk * CHUNK_CODES + place]);
            }
        }
        best
    }

    /// Returns the cost of one lookup, without the search.
    pub(crate) fn cost(&self, classes: [u32; 4], packet: &Fields<A>) -> Cost {
        let row = |class: u32| match &self.rows {
            Rows::Words(rows) => rows[class as usize],
            Rows::Chunks { rows, .. } => rows[class as usize].0[0],
            Rows::Sides { .. } => 0,
        };
        let tuples = classes.iter().fold(self.tuple_bits, |met, &class| met & row(class));
        let runs = bits(tuples).map(|tuple| self.tuples.run(self.tuples.bucket(tuple, packet)));
        let entries = runs.map(|(first, end)| (end - first) as usize).sum();
        Cost { steps: 0, chunks: self.intersected(), probes: tuples.count_ones() as usize, entries }
    }

    /// Returns the maximum cost of any lookup, without the search.
    pub(crate) fn worst_case(&self) -> Cost {
        let entries = self.tuples.worst_case() as usize;
        Cost { steps: 0, chunks: self.intersected(), probes: self.shapes.len(), entries }
    }

    /// Returns the number of chunks that the rules' bits take, 1 for rows of one word.
    pub(crate) fn chunks(&self) -> usize {
        match &self.rows {
            Rows::Words(_) => 1,
            Rows::Chunks { each, .. } | Rows::Sides { each, .. } => *each,
        }
    }

    /// Returns the number of chunks that a lookup intersects.
    fn intersected(&self) -> usize {
        if matches!(self.rows, Rows::Sides { .. }) { 1 } else { self.chunks() }
    }

    /// Returns the chunk and bit of each bit of a direct rule: one, or one on each side that the rule is on. Empty if no direct rule has the
    /// code.
    pub(crate) fn places(&self, code: u32) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = self.codes.iter().enumerate().filter(move |&(_, &direct)| direct == code);
        all.map(|(at, _)| (at / CHUNK_CODES, at % CHUNK_CODES))
    }

    pub(crate) fn bytes(&self) -> usize {
        let rows = match &self.rows {
            Rows::Words(rows) => size_of_val(&rows[..]),
            Rows::Chunks { rows, .. } | Rows::Sides { rows, .. } => size_of_val(&rows[..]),
        };
        rows + self.codes.capacity() * 4 + self.tuples.bytes()
    }

    pub(crate) fn describe(&self) -> String {
        let sides = match self.rows {
            Rows::Sides { each, axis, .. } => {
                format!(" on {each} sides of the {}", if axis == 0 { "sources" } else { "destinations" })
            }
            _ => String::new(),
        };
        format!(
            "bit vectors of {} direct rules{sides} and {} tuples (at most {} verified), classes {:?}",
            self.direct,
            self.shapes.len(),
            self.tuples.worst_case(),
            self.classes,
        )
    }
}

/// Distributes the codes, in the order of their bits, over chunks of [`CHUNK_CODES`] each.
fn by_place(codes: &[u32], chunks: usize) -> Vec<u32> {
    let mut placed = vec![u32::MAX; chunks * CHUNK_CODES];
    for (placed, codes) in placed.chunks_exact_mut(CHUNK_CODES).zip(codes.chunks(CHUNK_BITS)) {
        placed[..codes.len()].copy_from_slice(codes);
    }
    placed
}

/// The operands of a block's intersections: rows, and the bits of the rules not removed.
#[derive(Clone, Copy)]
struct Lines<'a, const N: usize> {
    rows: &'a [Chunk],
    live: &'a [Chunk],
    /// The verdict code of each bit.
    codes: &'a [u32],
    classes: &'a Classes<N>,
}

/// Intersects the first `CHUNKS` (1 or 2) chunks of each key. Returns the first direct rule, and the tuples that may have an earlier one.
/// Always reads both chunks, since branch prediction cannot guess whether the first decides.
struct Meet<'a, const N: usize, const CHUNKS: usize> {
    lines: Lines<'a, N>,
    aside: u64,
    best: &'a mut [u32],
    tuples: &'a mut [u64],
}

impl<const N: usize, const CHUNKS: usize> Kernel for Meet<'_, N, CHUNKS> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Lines { rows, live, codes, classes } = self.lines;
        let second = if CHUNKS == 2 { &codes[CHUNK_CODES..] } else { &[] };
        let live = &live[..CHUNKS];
        let [a, b, c, d] = classes;
        let keys = a.iter().zip(b).zip(c.iter().zip(d));
        for ((((&a, &b), (&c, &d)), best), tuples) in keys.zip(self.best).zip(self.tuples) {
            let row = |class: u32| &rows[class as usize..][..CHUNKS];
            let [a, b, c, d] = [row(a), row(b), row(c), row(d)];
            let (first, place) = simd.meet([&a[0], &b[0], &c[0], &d[0], &live[0]], self.aside);
            *tuples = first;
            *best = codes[place];
            if CHUNKS == 2 {
                *best = second[simd.meet([&a[1], &b[1], &c[1], &d[1], &live[1]], 0).1].min(*best);
            }
        }
    }
}

/// Intersects further chunks as long as they can have an earlier rule.
struct MeetRest<'a, const N: usize> {
    lines: Lines<'a, N>,
    each: usize,
    best: &'a mut [u32],
}

impl<const N: usize> Kernel for MeetRest<'_, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Lines { rows, live, codes, classes } = self.lines;
        for (at, best) in self.best.iter_mut().enumerate() {
            for chunk in 1..self.each {
                let codes = &codes[chunk * CHUNK_CODES..][..CHUNK_CODES];
                // Bits are in the order of rules.
                if *best < codes[0] {
                    break;
                }
                let row = |axis: usize| &rows[classes[axis][at] as usize + chunk];
                *best = codes[simd.meet([row(0), row(1), row(2), row(3), &live[chunk]], 0).1].min(*best);
            }
        }
    }
}
