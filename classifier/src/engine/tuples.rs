//! Hash tables of the rules behind tuples: one probe finds the few rules that may match.
//!
//! ```text
//!   tuple --mask, hash--> heads[h] .. heads[h + 1] --> entries, best first
//! ```
//!
//! Entries are sorted by bucket, so a bucket is two neighbouring numbers and a run of entries; no chain is followed. Fingerprints are not
//! worthwhile: thanks to the rows, more than nine of ten probes find a rule (measured on every set).

use ahash::RandomState;

use super::address::{Address, Fields};
use super::plan::{Entry, MAX_RUN, Shape};
use crate::simd::{Simd, prefetch};

/// A packed rule to verify: 32 bytes for IPv4, two per cache line. A prefix is stored as an interval.
///
/// Service and source port are in the high bits of their fields. The low bits of `first` hold the rule's code, which saves a cache line.
/// The packet's low bits are ones, so they do not affect the comparison.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed<A> {
    first: Fields<A>,
    width: Fields<A>,
}

/// At least half of the buckets stay empty, so that few keys share one. A bucket takes 4 bytes; a needless entry costs more than the
/// bucket's cache line.
const BUCKETS_PER_ENTRY: usize = 4;

/// Bits below the 24-bit service and the 16-bit source port in 32 bits.
const SERVICE_SHIFT: u32 = 8;
const PORT_SHIFT: u32 = 16;

/// Returns a number whose lowest `bits` bits are ones.
const fn low_ones(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Returns a packet's fields in the form for [`Tuples::verify`].
#[inline(always)]
pub(crate) fn lanes<A: Address>(packet: Fields<A>) -> Fields<A> {
    let service = packet.service << SERVICE_SHIFT | low_ones(SERVICE_SHIFT);
    Fields { service, src_port: packet.src_port << PORT_SHIFT | low_ones(PORT_SHIFT), ..packet }
}

/// The fields that a tuple hashes, and its range of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple<A> {
    src_mask: A,
    dst_mask: A,
    service_mask: u32,
    shift: u32,
    base: u32,
}

/// The hash tables of all tuples, in common arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tuples<A> {
    tuples: Vec<Tuple<A>>,
    heads: Vec<u32>,
    entries: Vec<Packed<A>>,
    seed: u64,
    longest_runs: Vec<u32>,
}

impl<A: Address> Tuples<A> {
    /// Places the entries into buckets. If a bucket overflows [`MAX_RUN`], returns as an error the codes of the rules beyond it.
    pub(crate) fn new(shapes: &[Shape], entries: &[Entry<A>]) -> Result<Self, Vec<u32>> {
        let keyed = RandomState::new();
        let mut by_tuple = vec![0usize; shapes.len()];
        entries.iter().for_each(|entry| by_tuple[entry.tuple as usize] += 1);
        let mut doubling = 1;
        loop {
            let placed = Self::place(shapes, &by_tuple, entries, keyed.hash_one(doubling), doubling);
            let homeless = placed.homeless();
            if homeless.is_empty() {
                return Ok(placed);
            }
            // More buckets separate the different keys of a bucket. At 8 entries per bucket and two buckets per entry, the first try fails
            // for about one list in a thousand.
            doubling *= 2;
            if doubling > 8 {
                return Err(homeless);
            }
        }
    }

    fn place(shapes: &[Shape], by_tuple: &[usize], entries: &[Entry<A>], seed: u64, doubling: usize) -> Self {
        let mut base = 0u32;
        let mut tuples = Vec::with_capacity(shapes.len());
        for (shape, &count) in shapes.iter().zip(by_tuple) {
            let buckets = (count * BUCKETS_PER_ENTRY * doubling).next_power_of_two().max(2);
            tuples.push(Tuple {
                src_mask: A::mask(shape.src),
                dst_mask: A::mask(shape.dst),
                service_mask: if shape.service { u32::MAX } else { 0 },
                shift: 64 - buckets.trailing_zeros(),
                base,
            });
            base += u32::try_from(buckets).expect("at most 64 times MAX_RULES");
        }
        let mut placed =
            Self { tuples, heads: vec![0; base as usize + 1], entries: Vec::new(), seed, longest_runs: Vec::new() };
        let mut order: Vec<(u32, u32, u32)> = (0u32..)
            .zip(entries)
            .map(|(at, entry)| {
                let fields = Fields { src: entry.src.0, dst: entry.dst.0, service: entry.service.0, src_port: 0 };
                (placed.bucket(entry.tuple, &fields), entry.code, at)
            })
            .collect();
        order.sort_unstable();
        for &(bucket, ..) in &order {
            placed.heads[bucket as usize + 1] += 1;
        }
        for at in 1..placed.heads.len() {
            placed.heads[at] += placed.heads[at - 1];
        }
        placed.entries = order.iter().map(|&(.., at)| Packed::new(&entries[at as usize])).collect();
        placed.longest_runs = placed.runs();
        placed
    }

    /// Returns for each tuple the number of entries in its fullest bucket.
    fn runs(&self) -> Vec<u32> {
        let ends = self
            .tuples
            .iter()
            .skip(1)
            .map(|tuple| tuple.base)
            .chain([u32::try_from(self.heads.len() - 1).expect("as built")]);
        let span = |(tuple, end): (&Tuple<A>, u32)| &self.heads[tuple.base as usize..=end as usize];
        self.tuples
            .iter()
            .zip(ends)
            .map(span)
            .map(|heads| heads.windows(2).map(|run| run[1] - run[0]).max().unwrap_or(0))
            .collect()
    }

    /// Returns the codes of the entries beyond the first [`MAX_RUN`] of each bucket.
    fn homeless(&self) -> Vec<u32> {
        let beyond =
            |run: &[u32]| self.entries[run[0] as usize..run[1] as usize].iter().skip(MAX_RUN).map(Packed::code);
        self.heads.windows(2).flat_map(beyond).collect()
    }

    /// Returns a packet's bucket in a tuple, as an index into `heads`.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the shift leaves as many bits as the tuple has buckets")]
    pub(crate) fn bucket(&self, tuple: u32, fields: &Fields<A>) -> u32 {
        let at = &self.tuples[tuple as usize];
        let hash = A::mix(
            fields.src & at.src_mask,
            fields.dst & at.dst_mask,
            fields.service & at.service_mask,
            self.seed ^ u64::from(at.base),
        );
        at.base + (hash >> at.shift) as u32
    }

    /// Prefetches the position of a bucket's entries, which [`Tuples::run`] reads. `bucket` comes from [`Tuples::bucket`].
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, bucket: u32) {
        prefetch(&self.heads, bucket as usize);
    }

    /// Returns the range of a bucket's entries: the index of the first one, and the index after the last one.
    #[inline(always)]
    pub(crate) fn run(&self, bucket: u32) -> (u32, u32) {
        let bucket = bucket as usize;
        (self.heads[bucket], self.heads[bucket + 1])
    }

    /// Prefetches the first and last cache line of a range of entries.
    #[inline(always)]
    pub(crate) fn prefetch_run(&self, (first, end): (u32, u32)) {
        prefetch(&self.entries, first as usize);
        prefetch(&self.entries, (end as usize).wrapping_sub(1));
    }

    /// Returns the entry's code, or `u32::MAX` if the entry does not match the packet or is in `gone`. Uses OR to avoid a branch.
    #[inline(always)]
    pub(crate) fn verify<S: Simd>(&self, simd: S, entry: u32, lanes: &Fields<A>, gone: &[u32]) -> u32 {
        let entry = &self.entries[entry as usize];
        let code = entry.code() | u32::from(A::within(simd, &entry.first, &entry.width, lanes)).wrapping_sub(1);
        if !gone.is_empty() && gone.binary_search(&code).is_ok() { u32::MAX } else { code }
    }

    /// Returns the maximum number of entries that one lookup verifies.
    pub(crate) fn worst_case(&self) -> u32 {
        self.longest_runs.iter().sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tuples.capacity() * size_of::<Tuple<A>>()
            + self.heads.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<Packed<A>>()
    }
}

impl<A: Address> Packed<A> {
    fn new(entry: &Entry<A>) -> Self {
        let ((src, src_length), (dst, dst_length)) = (entry.src, entry.dst);
        let (service, last_service) = entry.service;
        let (src_port, last_src_port) = entry.src_ports;
        let raised = |service: u32, src_port: u32| (service << SERVICE_SHIFT, src_port << PORT_SHIFT);
        let (width_service, width_src_port) = raised(last_service - service, last_src_port - src_port);
        let (service, src_port) = raised(service, src_port);
        Self {
            first: Fields {
                src,
                dst,
                service: service | entry.code >> PORT_SHIFT,
                src_port: src_port | entry.code & low_ones(PORT_SHIFT),
            },
            width: Fields {
                src: !A::mask(src_length),
                dst: !A::mask(dst_length),
                service: width_service | low_ones(SERVICE_SHIFT),
                src_port: width_src_port | low_ones(PORT_SHIFT),
            },
        }
    }

    #[inline(always)]
    fn code(&self) -> u32 {
        (self.first.service & low_ones(SERVICE_SHIFT)) << PORT_SHIFT | self.first.src_port & low_ones(PORT_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 1] = [Shape { src: 32, dst: 32, service: false }];

    fn entry(code: u32, src: u32) -> Entry<u32> {
        let ports = (0, u32::from(u16::MAX));
        Entry { code, tuple: 0, src: (src, 32), dst: (1, 32), service: (0, u32::MAX), src_ports: ports, rule: code }
    }

    /// An adversary who knows the hash's key has rules for a single bucket. The builder finds another key.
    #[test]
    fn rules_made_for_one_key_of_the_hash_find_another() {
        const SEED: u64 = 0x0123_4567_89ab_cdef;
        let empty = Tuples::<u32>::place(&SHAPES, &[512], &[], SEED, 1);
        let chosen = (0..).filter(|&src| empty.bucket(0, &Fields { src, dst: 1, service: 0, src_port: 0 }) == 7);
        let entries: Vec<Entry<u32>> = (0u32..).zip(chosen).map(|(code, src)| entry(code, src)).take(512).collect();
        let attacked = Tuples::place(&SHAPES, &[512], &entries, SEED, 1);
        assert_eq!(attacked.worst_case(), 512, "the attack works where the key is known");
        let tuples = Tuples::new(&SHAPES, &entries).expect("under another key they spread");
        assert!(tuples.worst_case() as usize <= MAX_RUN);
    }

    /// No key helps if the hashed fields are equal. Rules without room are returned for the rows.
    #[test]
    fn rules_of_one_key_beyond_the_bound_are_sent_back() {
        let entries: Vec<Entry<u32>> = (0..100).map(|code| entry(code, 9)).collect();
        let homeless = Tuples::new(&SHAPES, &entries).unwrap_err();
        assert_eq!(homeless.len(), 100 - MAX_RUN);
        assert!(homeless.iter().all(|&code| code as usize >= MAX_RUN), "the best rules stay");
    }
}
