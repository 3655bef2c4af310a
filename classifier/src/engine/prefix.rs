//! A prefix of IPv6 addresses, and the numbers of its addresses: their varying bits, moved together (see [`super::narrow`]).

/// Maximum number of runs of varying bits of a prefix. Runs are joined, with the constant bits between them, until there are so few.
const RUNS: usize = 6;

/// Spare bits above each run: eight times as many pods or nodes as the list names.
const SPARE: u32 = 3;

/// Maximum number of varying bits with spare ones. It leaves numbers for other prefixes and the gaps.
const FEW: u32 = 24;

/// A prefix that contains some of the boundaries, and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The bits that all of the prefix's boundaries share, and a mask of their positions.
    constant: u128,
    mask: u128,
    /// The lowest run of varying bits, and the others. One run is common and takes no loop.
    run: Run,
    more: Vec<Run>,
    /// The number of varying bits.
    pub(super) bits: u32,
    /// The number of the address with no varying bit set. `None` if no number is left, only for a prefix without varying bits.
    pub(super) base: Option<u32>,
    /// The first and last address.
    pub(super) first: u128,
    pub(super) last: u128,
    /// The lowest address with the constant bits. No boundary of the prefix is below it.
    pub(super) lowest: u128,
}

/// A run of varying bits within one half of the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    /// Whether it is in the high half.
    is_high: bool,
    /// The position of the lowest bit in the half, and in the number.
    from: u32,
    to: u32,
    /// The run's bits, moved to position 0.
    mask: u64,
}

impl Run {
    /// Returns the run's bits of an address, at their positions in the number.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one half; a prefix that is used has at most 32 varying bits")]
    const fn of(self, address: u128) -> u32 {
        let half = if self.is_high { (address >> 64) as u64 } else { address as u64 };
        ((half >> self.from & self.mask) << self.to) as u32
    }
}

/// Returns how many numbers this many bits have.
pub(super) const fn size(bits: u32) -> u128 {
    if bits < u128::BITS { 1 << bits } else { u128::MAX }
}

/// Returns the mask of the bits below a position.
pub(super) const fn below(bit: u32) -> u128 {
    if bit < u128::BITS { (1 << bit) - 1 } else { u128::MAX }
}

impl Prefix {
    /// Makes a prefix of these ascending boundaries: of all addresses, if there are none. The bits from position `limit` on are those of the
    /// boundaries.
    pub(super) fn new(boundaries: &[u128], limit: u32) -> Self {
        let one = boundaries.first().copied().unwrap_or_default();
        let different = boundaries.iter().fold(0, |bits, boundary| bits | (boundary ^ one));
        let (varying, runs) = runs(with_spare(different, limit));
        let (run, more) = runs.split_first().map(|(run, more)| (*run, more.to_vec())).unwrap_or_default();
        let within = if boundaries.is_empty() { u128::MAX } else { below(u128::BITS - varying.leading_zeros()) };
        let mask = if boundaries.is_empty() { 0 } else { !varying };
        Self {
            constant: one & mask,
            mask,
            run,
            more,
            bits: varying.count_ones(),
            base: None,
            first: one & !within,
            last: one | within,
            lowest: one & mask,
        }
    }

    /// Returns the bits of an address that differ from the prefix's constant bits.
    #[inline(always)]
    pub(super) const fn different(&self, address: u128) -> u128 {
        (address ^ self.constant) & self.mask
    }

    /// Whether the address has the prefix's constant bits.
    #[inline(always)]
    pub(super) const fn agrees(&self, address: u128) -> bool {
        self.different(address) == 0
    }

    /// Returns the varying bits of an address, moved together.
    #[inline(always)]
    pub(super) fn varying(&self, address: u128) -> u32 {
        self.more.iter().fold(self.run.of(address), |number, run| number | run.of(address))
    }

    /// Returns the number, counted from the base, of an address in the prefix that differs from its constant bits and is above the lowest
    /// address with them.
    pub(super) fn nearest(&self, address: u128) -> u32 {
        let at = u128::BITS - 1 - self.different(address).leading_zeros();
        if address >> at & 1 == 1 {
            // Above all boundaries with the same higher bits.
            self.varying(address | below(at))
        } else {
            // Below them, and above the lowest such address, so that the higher varying bits are not all 0.
            self.varying(address & !below(at)) - 1
        }
    }

    /// Returns the numbers of the interval's addresses in the prefix. `None` if there are none.
    pub(super) fn interval(&self, first: u128, last: u128) -> Option<(u32, u32)> {
        let base = self.base?;
        if last < self.first || first > self.last {
            return None;
        }
        let from = if first > self.first { self.varying(first) } else { 0 };
        let to = if last < self.last {
            self.varying(last + 1).checked_sub(1)?
        } else {
            u32::try_from(size(self.bits) - 1).expect("at most 32 varying bits")
        };
        (from <= to).then_some((base + from, base + to))
    }

    /// Whether this boundary is between two numbers of the prefix.
    pub(super) fn has(&self, boundary: u128) -> bool {
        let has_boundaries = self.mask != 0;
        has_boundaries && self.base.is_some() && self.agrees(boundary)
    }
}

/// Returns the bits with up to [`SPARE`] bits above each run, if they are few. Then addresses that enter a set later have numbers too, and
/// the list need not be built again. The spare bits are below position `limit`.
fn with_spare(bits: u128, limit: u32) -> u128 {
    let spare = (0..SPARE).fold(bits, |bits, _| bits | bits << 1) & below(limit);
    if spare.count_ones() <= FEW { spare } else { bits }
}

/// Joins the runs of bits with the narrowest gaps until there are at most [`RUNS`]. Returns the bits and the runs, lowest first.
fn runs(mut bits: u128) -> (u128, Vec<Run>) {
    loop {
        let runs = split(bits);
        if runs.len() <= RUNS {
            return (bits, runs);
        }
        let end = |run: &Run| run.from + run.mask.count_ones();
        let gaps = runs.windows(2).filter(|pair| pair[0].is_high == pair[1].is_high);
        let narrowest = gaps.min_by_key(|pair| pair[1].from - end(&pair[0]));
        let Some([lower, upper]) = narrowest.and_then(|pair| pair.first_chunk()) else { return (bits, runs) };
        let gap = below(upper.from) & !below(end(lower));
        bits |= if lower.is_high { gap << 64 } else { gap };
    }
}

/// Returns the runs of set bits within each half, lowest first.
#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn split(bits: u128) -> Vec<Run> {
    let (mut runs, mut to) = (Vec::new(), 0);
    for is_high in [false, true] {
        let mut left = if is_high { (bits >> 64) as u64 } else { bits as u64 };
        while left != 0 {
            let from = left.trailing_zeros();
            let length = (left >> from).trailing_ones();
            let mask = if length == u64::BITS { u64::MAX } else { (1 << length) - 1 };
            // A prefix with more than 32 varying bits is divided before it is used.
            runs.push(Run { is_high, from, to: to.min(31), mask });
            left &= !(mask << from);
            to += length;
        }
    }
    runs
}
