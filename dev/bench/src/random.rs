//! Random numbers of generated rules and packets.

/// A random number generator, xorshift64 (Marsaglia 2003): repeatable, with a few instructions per number.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `bound`. 0 if `bound` is 0.
    #[inline]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let scaled = ((self.0 >> 32) * u64::from(bound)) >> 32;
        u32::try_from(scaled).expect("a product of two 32-bit numbers, shifted by 32")
    }

    /// Returns a number below `bound`. 0 if `bound` is 0.
    pub(crate) fn below_u8(&mut self, bound: u8) -> u8 {
        u8::try_from(self.below(bound.into())).expect("below a bound of eight bits")
    }

    /// Returns a number below `bound`. 0 if `bound` is 0.
    pub(crate) fn below_u16(&mut self, bound: u16) -> u16 {
        u16::try_from(self.below(bound.into())).expect("below a bound of 16 bits")
    }
}
