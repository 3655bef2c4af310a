//! The rules behind tuples: one hash probe finds the few that may match.
//!
//! ```text
//!   tuple --mask, hash--> heads[h] .. heads[h + 1] --> entries, best first
//! ```
//!
//! Entries lie in the order of their buckets, so a bucket is two neighbouring numbers and a run of neighbouring
//! entries: no chain is followed. There is no fingerprint: the rows let a probe through only when it finds something
//! in more than nine of ten cases (measured on every set), so a filter before the entries would be paid for nothing.

use ahash::RandomState;

use super::address::{Address, Fields};
use super::plan::{Entry, MAX_RUN, Shape};
use crate::simd::{Simd, prefetch};

/// A rule as it is verified: 32 bytes for IPv4, two to a cache line. A prefix is an interval like any other.
///
/// The service and the source port are in the high bits of their lanes. The low bits of `first` hold the rule's code,
/// which costs no further line that way; as the packet's low bits are ones, they do not change a comparison.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed<A> {
    first: Fields<A>,
    width: Fields<A>,
}

/// Half of the buckets and more stay empty, so that few keys share one: a bucket is 4 bytes, an entry in vain is more
/// work than the bucket's cache line.
const BUCKETS_PER_ENTRY: usize = 4;

/// Bits below the service and the source port: what 32 leave beside 24 and 16.
const SERVICE_SHIFT: u32 = 8;
const PORT_SHIFT: u32 = 16;

/// Ones in the low bits.
const fn low_ones(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// A packet's fields as [`Tuples::verify`] wants them.
#[inline(always)]
pub(crate) fn lanes<A: Address>(packet: Fields<A>) -> Fields<A> {
    let service = packet.service << SERVICE_SHIFT | low_ones(SERVICE_SHIFT);
    Fields { service, src_port: packet.src_port << PORT_SHIFT | low_ones(PORT_SHIFT), ..packet }
}

/// What a tuple hashes, and where its buckets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple<A> {
    src_mask: A,
    dst_mask: A,
    service_mask: u32,
    shift: u32,
    base: u32,
}

/// Every tuple's buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tuples<A> {
    tuples: Vec<Tuple<A>>,
    heads: Vec<u32>,
    entries: Vec<Packed<A>>,
    seed: u64,
    longest_runs: Vec<u32>,
}

impl<A: Address> Tuples<A> {
    /// Places the entries. Those that did not find room in a bucket of [`MAX_RUN`] come back as an error, as the
    /// codes of their rules.
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
            // A bucket holds keys that differ: more buckets part them. At 8 per bucket and two buckets per entry the
            // first try fails for about one list in a thousand.
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

    /// The longest run of each tuple.
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

    /// The codes of the entries beyond the bound of their bucket.
    fn homeless(&self) -> Vec<u32> {
        let beyond =
            |run: &[u32]| self.entries[run[0] as usize..run[1] as usize].iter().skip(MAX_RUN).map(Packed::code);
        self.heads.windows(2).flat_map(beyond).collect()
    }

    /// The bucket of a packet in a tuple: where its run is in `heads`.
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

    /// Asks for the line that holds the bucket's run.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, bucket: u32) {
        prefetch(&self.heads, bucket as usize);
    }

    /// The bucket's run of entries.
    #[inline(always)]
    pub(crate) fn run(&self, bucket: u32) -> (u32, u32) {
        let bucket = bucket as usize;
        (self.heads[bucket], self.heads[bucket + 1])
    }

    /// Asks for the first and the last line of a run.
    #[inline(always)]
    pub(crate) fn prefetch_run(&self, (first, end): (u32, u32)) {
        prefetch(&self.entries, first as usize);
        prefetch(&self.entries, (end as usize).wrapping_sub(1));
    }

    /// The entry's code, or `u32::MAX` when it does not match or is gone. An OR instead of a choice, which would be a branch.
    #[inline(always)]
    pub(crate) fn verify<S: Simd>(&self, simd: S, entry: u32, lanes: &Fields<A>, gone: &[u32]) -> u32 {
        let entry = &self.entries[entry as usize];
        let code = entry.code() | u32::from(A::within(simd, &entry.first, &entry.width, lanes)).wrapping_sub(1);
        if !gone.is_empty() && gone.binary_search(&code).is_ok() { u32::MAX } else { code }
    }

    /// The most entries that one packet can make a lookup verify.
    pub(crate) fn worst_case(&self) -> u32 {
        self.longest_runs.iter().sum()
    }

    /// Heap bytes.
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

    /// The adversary knows everything, the key of the hash too, and has rules for a single bucket.
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

    /// No key helps where the hashed fields are the same. What has no room is named, for the rows.
    #[test]
    fn rules_of_one_key_beyond_the_bound_are_sent_back() {
        let entries: Vec<Entry<u32>> = (0..100).map(|code| entry(code, 9)).collect();
        let homeless = Tuples::new(&SHAPES, &entries).unwrap_err();
        assert_eq!(homeless.len(), 100 - MAX_RUN);
        assert!(homeless.iter().all(|&code| code as usize >= MAX_RUN), "the best rules stay");
    }
}
