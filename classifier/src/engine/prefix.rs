//! A prefix of IPv6 addresses, and their numbers: the varying bits of an address, moved together (see [`super::narrow`]).

/// Maximum number of runs of varying bits of a prefix. Runs are joined, with the constant bits between them, until there are so few.
const RUNS: usize = 6;

/// Spare bits above each run: eight times as many pods or nodes as the list names.
const SPARE: u32 = 3;

/// Maximum number of varying bits with spare ones, and of those that are joined to fewer runs. 32-bit numbers have room for sixteen prefixes
/// of 28 bits.
const FEW: u32 = 28;

/// A prefix that contains some of the boundaries, and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The first address.
    pub(super) first: u128,
    /// The bits that all of the prefix's boundaries share: the lowest address that has them.
    pub(super) constant: u128,
    /// A mask of the positions of the constant bits. 0 if there are no boundaries, so that every address has them.
    mask: u128,
    /// The lowest run of varying bits, and the others. One run is common and takes no loop.
    run: Run,
    more: Vec<Run>,
    /// The number of varying bits. Above 32 only until the prefix is divided.
    pub(super) bits: u32,
    /// The number of `constant`.
    pub(super) base: u32,
}

/// A run of varying bits within one half of the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    /// Whether it is in the high half.
    is_high: bool,
    /// The position of the run's lowest bit in the half.
    from: u32,
    /// The position of the run's lowest bit in the number.
    to: u32,
    /// A mask of as many bits as the run has, from position 0 on.
    mask: u64,
}

impl Run {
    /// Returns the run's bits of its half of an address, at their positions in the number.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one half; a prefix that is used has at most 32 varying bits")]
    const fn of_half(self, half: u64) -> u32 {
        ((half >> self.from & self.mask) << self.to) as u32
    }

    /// Returns the run's bits of an address, at their positions in the number.
    #[inline(always)]
    const fn of(self, address: u128) -> u32 {
        let [high, low] = halves(address);
        self.of_half(if self.is_high { high } else { low })
    }
}

/// Returns how many numbers a prefix with this many varying bits has: two to the power of `bits`. `u64::MAX` from 64 bits on.
pub(super) fn size(bits: u32) -> u64 {
    1u64.checked_shl(bits).unwrap_or(u64::MAX)
}

/// Returns the halves of an address, high half first.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
const fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// Returns the mask of the bits below the highest one that is set. 0 if none is.
#[inline(always)]
const fn below_highest(bits: u64) -> u64 {
    (1 << (u64::BITS - 1 - (bits | 1).leading_zeros())) - 1
}

/// Returns the mask of the bits below a position.
pub(super) const fn below(bit: u32) -> u128 {
    if bit < u128::BITS { (1 << bit) - 1 } else { u128::MAX }
}

impl Prefix {
    /// Makes a prefix of boundaries in any order: of all addresses, if there are none. The bits from position `limit` on are those of the
    /// boundaries.
    pub(super) fn new(boundaries: &[u128], limit: u32) -> Self {
        let one = boundaries.first().copied().unwrap_or_default();
        let different = boundaries.iter().fold(0, |bits, boundary| bits | (boundary ^ one));
        let (varying, runs) = runs(with_spare(runs(different).0, limit));
        let (run, more) = runs.split_first().map(|(run, more)| (*run, more.to_vec())).unwrap_or_default();
        let (mask, within) = match boundaries {
            [] => (0, u128::MAX),
            _ => (!varying, below(u128::BITS - varying.leading_zeros())),
        };
        Self { first: one & !within, constant: one & mask, mask, run, more, bits: varying.count_ones(), base: 0 }
    }

    /// Returns the position of the highest varying bit. 0 if none varies.
    pub(super) fn highest_varying(&self) -> u32 {
        (!self.mask).checked_ilog2().unwrap_or(0)
    }

    /// Returns a mask of the constant bits in which an address differs from the prefix. 0 if the address has all constant bits.
    #[inline(always)]
    pub(super) const fn different(&self, address: u128) -> u128 {
        (address ^ self.constant) & self.mask
    }

    /// Returns the number of an address that has the constant bits.
    #[inline(always)]
    pub(super) fn number(&self, address: u128) -> u32 {
        self.base + self.varying(address)
    }

    /// Writes the number of each address, in order. Returns whether all addresses have the prefix's constant bits. If not, the written
    /// numbers are meaningless.
    #[inline(always)]
    pub(super) fn numbers(&self, addresses: impl Iterator<Item = u128>, numbers: &mut [u32]) -> bool {
        // One run in one half is common: then all that the loop needs stays in registers.
        match (&self.more[..], self.run.is_high) {
            ([], false) => self.each(addresses, numbers, |address| self.run.of_half(halves(address)[1])),
            ([], true) => self.each(addresses, numbers, |address| self.run.of_half(halves(address)[0])),
            _ => self.each(addresses, numbers, |address| self.varying(address)),
        }
    }

    /// Like [`numbers`](Self::numbers). `varying` returns the varying bits of an address, moved together.
    #[inline(always)]
    fn each(&self, addresses: impl Iterator<Item = u128>, numbers: &mut [u32], varying: impl Fn(u128) -> u32) -> bool {
        // Copies stay in registers, although `numbers` is written.
        let &Self { constant, mask, base, .. } = self;
        let mut different = 0;
        for (number, address) in numbers.iter_mut().zip(addresses) {
            different |= (address ^ constant) & mask;
            *number = base + varying(address);
        }
        different == 0
    }

    /// Returns the varying bits of an address, moved together: its number, less that of `constant`.
    #[inline(always)]
    fn varying(&self, address: u128) -> u32 {
        self.more.iter().fold(self.run.of(address), |number, run| number | run.of(address))
    }

    /// Returns the number of the nearest address that has the constant bits, with no boundary of the prefix between the two. For an address
    /// below all of those, the number before [`base`](Self::base), or 0.
    #[inline(always)]
    pub(super) fn nearest(&self, address: u128) -> u32 {
        // Without branches, since addresses of the world and of a cluster mix; and in halves, as shifts of 128 bits have branches.
        let ([high, low], [high_differs, low_differs]) = (halves(address), halves(self.different(address)));
        let high_below = below_highest(high_differs);
        let low_below = if high_differs == 0 { below_highest(low_differs) } else { u64::MAX };
        let is_same = high_differs | low_differs == 0;
        let is_above = is_same | (high & high_differs & !high_below | low & low_differs & !low_below != 0);
        // The highest, or lowest, address with the same bits above the highest one that differs.
        let moved = |half: u64, below: u64| if is_above { half | below } else { half & !below };
        let moved = u128::from(moved(high, high_below)) << 64 | u128::from(moved(low, low_below));
        self.number(moved).saturating_sub(u32::from(!is_above))
    }

    /// Whether a boundary has the constant bits. False if the prefix has no boundaries.
    pub(super) const fn has(&self, boundary: u128) -> bool {
        self.mask != 0 && self.different(boundary) == 0
    }
}

/// Returns the bits with up to [`SPARE`] bits above each run, if they are few. Then addresses that enter a set later have numbers too, and
/// the list need not be built again. The spare bits are below position `limit`.
fn with_spare(bits: u128, limit: u32) -> u128 {
    let spare = (0..SPARE).fold(bits, |bits, _| bits | bits << 1) & below(limit);
    if spare.count_ones() <= FEW { spare } else { bits }
}

/// Joins runs across the narrowest constant bits between them: until there are at most [`RUNS`], and further while the bits are few. Returns
/// the bits and the runs, lowest first.
fn runs(mut bits: u128) -> (u128, Vec<Run>) {
    loop {
        let runs = split(bits);
        let end = |run: &Run| run.from + run.mask.count_ones();
        let gaps = runs.windows(2).filter(|pair| pair[0].is_high == pair[1].is_high);
        let narrowest = gaps.min_by_key(|pair| pair[1].from - end(&pair[0]));
        let Some([lower, upper]) = narrowest.and_then(|pair| pair.first_chunk()) else { return (bits, runs) };
        let gap = below(upper.from) & !below(end(lower));
        let joined = bits | if lower.is_high { gap << 64 } else { gap };
        if runs.len() <= RUNS && joined.count_ones() > FEW {
            return (bits, runs);
        }
        bits = joined;
    }
}

/// Returns the runs of set bits within each half, lowest first.
fn split(bits: u128) -> Vec<Run> {
    let (mut runs, mut to) = (Vec::new(), 0);
    for is_high in [false, true] {
        let mut left = halves(bits)[usize::from(!is_high)];
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
