//! Bit vectors: intersecting the rows of the four classes leaves the direct rules that match, and the tuples that may match.

use super::address::{Address, Fields};
use super::choice::{CHUNK_BITS, Choice};
use super::cover::{self, Covers};
use super::plan::{MAX_RUN, Plan, Shape};
use super::rules::LiveRules;
use super::tuples::{Tuples, lanes};
use super::{Axes, Block, Classes, Cost};
use crate::simd::{Chunk, Kernel, List, NO_BIT, Simd};
use crate::{BuildError, BuildOptions};

/// Maximum of bits in a row. Longer rows exceed the caches.
const MAX_BITS: usize = 1 << 14;

/// Codes per chunk: one per bit, and further ones up to [`NO_BIT`].
const CHUNK_CODES: usize = NO_BIT + 1;

/// Probes whose cache misses overlap: four per key of a block, and room for a key with 64.
const PROBES: usize = 192;

/// Maximum number of entries that are verified together.
const ENTRIES: usize = 256;

/// The rows of one family, and the meaning of their bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vectors<A> {
    rows: Rows,
    /// The verdict code of each bit of a row, [`CHUNK_CODES`] per chunk. `u32::MAX` for the bits of tuples and for [`NO_BIT`].
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
        let words = if bits <= 64 { 1 } else { bits.div_ceil(512) * 8 };
        let mut covers = Covers::new(words, live.last_service);
        plan.entries.iter().for_each(|entry| covers.add_entry(entry.tuple, entry));
        let mut codes = vec![u32::MAX; plan.tuples.len()];
        for &rule in &plan.direct {
            covers.add_rule(u32::try_from(codes.len()).expect("below MAX_BITS"), live, rule as usize);
            codes.push(live.rules[rule as usize].code);
        }
        let too_large = BuildError::TooLarge { max_bytes: options.max_bytes };
        let (mut axes, rows) = covers.cut(options.max_bytes / (words * 8), usize::MAX, options)?.ok_or(too_large)?;
        let each = words.div_ceil(8);
        cover::Rows::number(&rows, &mut axes, each);
        let classes = rows.each_ref().map(cover::Rows::classes);
        let rows = if words == 1 {
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
    ) -> [u32; N] {
        let mut best = [u32::MAX; N];
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
        }
        if self.tuple_bits != 0 {
            simd.call(Probe { tables: &self.tuples, gone, tuples: &tuples[..len], block, best: &mut best });
        }
        if let Rows::Chunks { rows, each: each @ 3.. } = &self.rows {
            let lines = Lines { rows, live, codes: &self.codes, classes };
            simd.call(MeetRest { lines, each: *each, best: &mut best[..len] });
        }
        best
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
        };
        let tuples = classes.iter().fold(self.tuple_bits, |met, &class| met & row(class));
        let runs = bits(tuples).map(|tuple| self.tuples.run(self.tuples.bucket(tuple, packet)));
        let entries = runs.map(|(first, end)| (end - first) as usize).sum();
        Cost { steps: 0, chunks: self.chunks(), probes: tuples.count_ones() as usize, entries }
    }

    /// Returns the maximum cost of any lookup, without the search.
    pub(crate) fn worst_case(&self) -> Cost {
        let entries = self.tuples.worst_case() as usize;
        Cost { steps: 0, chunks: self.chunks(), probes: self.shapes.len(), entries }
    }

    /// Returns the number of chunks per row, 1 for rows of one word.
    pub(crate) fn chunks(&self) -> usize {
        match &self.rows {
            Rows::Words(_) => 1,
            Rows::Chunks { each, .. } => *each,
        }
    }

    /// Returns the chunk and bit of a direct rule. `None` if the code is not a direct rule's.
    pub(crate) fn place(&self, code: u32) -> Option<(usize, usize)> {
        place(&self.codes, code)
    }

    pub(crate) fn bytes(&self) -> usize {
        let rows = match &self.rows {
            Rows::Words(rows) => size_of_val(&rows[..]),
            Rows::Chunks { rows, .. } => size_of_val(&rows[..]),
        };
        rows + self.codes.capacity() * 4 + self.tuples.bytes()
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "bit vectors of {} direct rules and {} tuples (at most {} verified), classes {:?}",
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

/// Returns the chunk and bit of the direct rule with this code. `None` if no bit has the code.
fn place(codes: &[u32], code: u32) -> Option<(usize, usize)> {
    let at = codes.iter().position(|&direct| direct == code)?;
    Some((at / CHUNK_CODES, at % CHUNK_CODES))
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

/// For each key, probes the hash bucket of every tuple that may match.
struct Probe<'a, A, const N: usize> {
    tables: &'a Tuples<A>,
    gone: &'a [u32],
    tuples: &'a [u64],
    block: &'a Block<A, N>,
    best: &'a mut [u32; N],
}

impl<A: Address, const N: usize> Kernel for Probe<'_, A, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { tables, gone, tuples, block, best } = self;
        // Branch prediction cannot guess the number of a key's tuples and of a bucket's entries. So both are written to lists, a few items
        // at once whether they exist or not, and then processed.
        let mut keys = [lanes(block.packet(0)); N];
        let mut probes = List::<PROBES>::new();
        for (at, &tuples) in (0u32..).zip(tuples) {
            keys[at as usize % N] = lanes(block.packet(at as usize % N));
            let left = tuples & tuples.wrapping_sub(1);
            probes.push_some([(at, tuples.trailing_zeros()), (at, left.trailing_zeros())], tuples.count_ones());
            for tuple in bits(left & left.wrapping_sub(1)) {
                probes.push((at, tuple));
            }
            if probes.len() > PROBES - 66 {
                probe(simd, tables, gone, &mut probes, block, &keys, best);
            }
        }
        probe(simd, tables, gone, &mut probes, block, &keys, best);
    }
}

/// Probes (key, tuple) pairs in rounds, so that the cache misses of a round overlap.
#[inline(always)]
fn probe<A: Address, S: Simd, const N: usize>(
    simd: S,
    tables: &Tuples<A>,
    gone: &[u32],
    probes: &mut List<PROBES>,
    block: &Block<A, N>,
    keys: &[Fields<A>; N],
    best: &mut [u32; N],
) {
    for (at, tuple) in probes.items() {
        *tuple = tables.bucket(*tuple, &block.packet(*at as usize % N));
        tables.prefetch_bucket(*tuple);
    }
    let mut entries = List::<ENTRIES>::new();
    for &mut (at, bucket) in probes.items() {
        let (first, end) = tables.run(bucket);
        tables.prefetch_run((first, end));
        entries.push_some([(at, first), (at, first + 1), (at, first + 2), (at, first + 3)], end - first);
        for entry in first + 4..end {
            entries.push((at, entry));
        }
        if entries.len() > ENTRIES - MAX_RUN - 4 {
            verify(simd, tables, gone, &mut entries, keys, best);
        }
    }
    verify(simd, tables, gone, &mut entries, keys, best);
    probes.clear();
}

/// Compares keys with the entries of their buckets, given as pairs of key and entry, and keeps each key's smallest matching code.
#[inline(always)]
fn verify<A: Address, S: Simd, const N: usize>(
    simd: S,
    tables: &Tuples<A>,
    gone: &[u32],
    entries: &mut List<ENTRIES>,
    keys: &[Fields<A>; N],
    best: &mut [u32; N],
) {
    for &mut (at, entry) in entries.items() {
        let best = &mut best[at as usize % N];
        *best = tables.verify(simd, entry, &keys[at as usize % N], gone).min(*best);
    }
    entries.clear();
}

/// Returns the positions of the set bits.
#[inline(always)]
fn bits(mut left: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let at = left.trailing_zeros();
        (left != 0).then(|| {
            left &= left - 1;
            at
        })
    })
}
