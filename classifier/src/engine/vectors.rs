//! Bit vectors: the rows of the four classes are intersected; what is left are direct rules that match and tuples
//! that may.

use super::address::Address;
use super::plan::{Plan, Shape};
use super::rules::LiveRules;
use super::tuples::Tuples;
use super::{Axes, Block, Classes, Covers};
use crate::BuildError;
use crate::simd::{Chunk, Simd};

/// Bits of a row. More make rows that no cache holds.
const MAX_BITS: usize = 1 << 14;

/// The most bytes of rows per axis.
const MAX_ROW_BYTES: usize = 64 << 20;

/// Probes that wait for their cache lines together.
const PROBES: usize = 128;

/// The rows of one family and what their bits mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vectors<A> {
    rows: Rows,
    /// The code of each bit; `u32::MAX` for a tuple's.
    codes: Vec<u32>,
    /// The tuples' bits, all in the first word.
    tuple_bits: u64,
    tuples: Tuples<A>,
    shapes: Vec<Shape>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rows {
    /// One word per class.
    Words([Vec<u64>; 4]),
    /// A number of chunks per class.
    Chunks { rows: [Vec<Chunk>; 4], each: usize },
}

impl<A: Address> Vectors<A> {
    pub(crate) fn build(live: &LiveRules<'_, A>) -> Result<(Axes<A>, Self), BuildError> {
        let mut plan = Plan::new(live);
        let tuples = match Tuples::new(&plan.tuples, &plan.entries) {
            Ok(tuples) => tuples,
            Err(homeless) => {
                plan.make_direct(&homeless, live);
                Tuples::new(&plan.tuples, &plan.entries).map_err(|_| BuildError::TooComplex)?
            }
        };
        let bits = plan.tuples.len() + plan.direct.len();
        if bits > MAX_BITS {
            return Err(BuildError::TooComplex);
        }
        let words = if bits <= 64 { 1 } else { bits.div_ceil(512) * 8 };
        let mut covers = Covers::new(bits, words);
        plan.entries.iter().for_each(|entry| covers.add_entry(entry.tuple, entry));
        let mut codes = vec![u32::MAX; plan.tuples.len()];
        for &rule in &plan.direct {
            covers.add_rule(u32::try_from(codes.len()).expect("below MAX_BITS"), live, rule as usize);
            codes.push(live.rules[rule as usize].code);
        }
        let (mut axes, rows) = covers.cut(MAX_ROW_BYTES / (words * 8)).ok_or(BuildError::TooComplex)?;
        let rows = if words == 1 {
            Rows::Words(rows.map(|rows| rows.bits))
        } else {
            let each = words / 8;
            let place = |class| class * u32::try_from(each).expect("below MAX_BITS / 512");
            axes.src.renumber(place);
            axes.dst.renumber(place);
            axes.service.renumber(place);
            axes.src_port.renumber(place);
            let chunks = |rows: super::Rows| {
                rows.bits.chunks_exact(8).map(|words| Chunk(words.try_into().expect("chunks of eight"))).collect()
            };
            Rows::Chunks { rows: rows.map(chunks), each }
        };
        let tuple_bits = if plan.tuples.len() == 64 { u64::MAX } else { (1 << plan.tuples.len()) - 1 };
        Ok((axes, Self { rows, codes, tuple_bits, tuples, shapes: plan.tuples }))
    }

    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, classes: &Classes<N>, block: &Block<A, N>) -> [u32; N] {
        let mut best = [u32::MAX; N];
        let mut probes = Probes::new();
        match &self.rows {
            Rows::Words([a, b, c, d]) => {
                for at in 0..block.len {
                    let met = a[classes[0][at] as usize]
                        & b[classes[1][at] as usize]
                        & c[classes[2][at] as usize]
                        & d[classes[3][at] as usize];
                    let direct = met & !self.tuple_bits;
                    if direct != 0 {
                        best[at] = self.codes[direct.trailing_zeros() as usize];
                    }
                    self.probe(&mut probes, met & self.tuple_bits, at, block, &mut best);
                }
                self.verify(&mut probes, block, &mut best);
            }
            Rows::Chunks { rows, each } => {
                for at in 0..block.len {
                    let mut met = Chunk([0; 8]);
                    let mut occupied = simd.intersect(self.chunk(rows, classes, at, 0), &mut met);
                    let first = met.0[0];
                    met.0[0] = first & !self.tuple_bits;
                    occupied = occupied & !1 | u8::from(met.0[0] != 0);
                    if occupied != 0 {
                        best[at] = self.code(&met, occupied, 0);
                    }
                    self.probe(&mut probes, first & self.tuple_bits, at, block, &mut best);
                }
                self.verify(&mut probes, block, &mut best);
                for at in 0..block.len {
                    for chunk in 1..*each {
                        // Bits are in the order of their rules: no later chunk has a better one.
                        if best[at] < self.codes[chunk * 512] {
                            break;
                        }
                        let mut met = Chunk([0; 8]);
                        let occupied = simd.intersect(self.chunk(rows, classes, at, chunk), &mut met);
                        if occupied != 0 {
                            best[at] = best[at].min(self.code(&met, occupied, chunk));
                            break;
                        }
                    }
                }
            }
        }
        best
    }

    #[inline(always)]
    fn chunk<'a, const N: usize>(&self, rows: &'a [Vec<Chunk>; 4], classes: &Classes<N>, at: usize, chunk: usize) -> [&'a Chunk; 4] {
        std::array::from_fn(|axis| &rows[axis][classes[axis][at] as usize + chunk])
    }

    /// The code of the first bit of a chunk that is not empty.
    #[inline(always)]
    fn code(&self, met: &Chunk, occupied: u8, chunk: usize) -> u32 {
        let word = occupied.trailing_zeros() as usize;
        self.codes[chunk * 512 + word * 64 + met.0[word].trailing_zeros() as usize]
    }

    /// Notes the buckets to look into.
    #[inline(always)]
    fn probe<const N: usize>(&self, probes: &mut Probes, mut tuples: u64, at: usize, block: &Block<A, N>, best: &mut [u32; N]) {
        if probes.len + self.tuples.len() > PROBES {
            self.verify(probes, block, best);
        }
        let fields = block.fields(at);
        while tuples != 0 {
            let bucket = self.tuples.bucket(tuples.trailing_zeros(), &fields);
            self.tuples.prefetch_bucket(bucket);
            probes.items[probes.len] = (at as u32, bucket);
            probes.len += 1;
            tuples &= tuples - 1;
        }
    }

    /// Looks into the buckets that were noted.
    #[inline(always)]
    fn verify<const N: usize>(&self, probes: &mut Probes, block: &Block<A, N>, best: &mut [u32; N]) {
        let mut runs = [(0, 0); PROBES];
        let items = &probes.items[..probes.len];
        for (run, &(_, bucket)) in runs.iter_mut().zip(items) {
            *run = self.tuples.run(bucket);
            self.tuples.prefetch_run(*run);
        }
        for (&run, &(at, _)) in runs.iter().zip(items) {
            let at = at as usize;
            best[at] = self.tuples.verify(run, &block.fields(at), best[at]);
        }
        probes.len = 0;
    }

    pub(crate) fn bytes(&self) -> usize {
        let rows: usize = match &self.rows {
            Rows::Words(rows) => rows.iter().map(|rows| rows.capacity() * 8).sum(),
            Rows::Chunks { rows, .. } => rows.iter().map(|rows| rows.capacity() * 64).sum(),
        };
        rows + self.codes.capacity() * 4 + self.tuples.bytes()
    }

    pub(crate) fn describe(&self) -> String {
        let classes = match &self.rows {
            Rows::Words(rows) => rows.each_ref().map(Vec::len),
            Rows::Chunks { rows, each } => rows.each_ref().map(|rows| rows.len() / each),
        };
        format!(
            "bit vectors of {} direct rules and {} tuples (at most {} verified), classes {classes:?}",
            self.codes.len() - self.shapes.len(),
            self.shapes.len(),
            self.tuples.worst_case(),
        )
    }
}

struct Probes {
    items: [(u32, u32); PROBES],
    len: usize,
}

impl Probes {
    #[inline(always)]
    fn new() -> Self {
        Self { items: [(0, 0); PROBES], len: 0 }
    }
}
