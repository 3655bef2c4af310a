//! A line of a list of rules that differ in their services only.

use super::NO_SERVICE;

/// Marks the number of a further line among codes, which are below it: see [`crate::MAX_RULES`].
pub(crate) const CONTINUED: u32 = 1 << 31;

/// Up to four rules in order, on one cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Services {
    /// Each rule's first service.
    pub(super) first: [u32; Self::RULES],
    /// How many services it has, less one.
    pub(super) width: [u32; Self::RULES],
    /// Their codes, and what follows when none of them matches: another line ([`CONTINUED`]), or `u32::MAX`.
    pub(super) codes: [u32; Self::RULES + 1],
}

impl Services {
    /// Rules of a line: four intervals are two SSE registers, and the codes and what follows fill the rest.
    pub(crate) const RULES: usize = 4;

    /// A line of up to four intervals of services with their rules' codes.
    pub(crate) fn new(rules: &[((u32, u32), u32)], next: u32) -> Self {
        let mut line = Self { first: [NO_SERVICE; 4], width: [0; 4], codes: [next; 5] };
        for (at, &((first, last), code)) in rules.iter().enumerate() {
            (line.first[at], line.width[at], line.codes[at]) = (first, last - first, code);
        }
        line
    }

    /// The first service, the width and the code of each rule.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let all = (0..Self::RULES).map(|at| (self.first[at], self.width[at], self.codes[at]));
        all.take_while(|&(first, ..)| first != NO_SERVICE)
    }

    /// The line after this one.
    pub(crate) fn next(&self) -> Option<u32> {
        let next = self.codes[Self::RULES];
        (next != u32::MAX).then_some(next & !CONTINUED)
    }
}
