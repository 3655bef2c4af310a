//! A cache line of a list of rules that differ only in their services.

use super::NO_SERVICE;

/// Flag of a code that is the index of a further cache line. Codes of rules are smaller, see [`crate::MAX_RULES`].
pub(crate) const CONTINUED: u32 = 1 << 31;

/// Up to four rules in order, on one cache line. Only their services are compared.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Services {
    /// The first service (protocol class and port) of each rule.
    pub(super) first: [u32; Self::RULES],
    /// The number of services of each rule, minus one.
    pub(super) width: [u32; Self::RULES],
    /// The code of each rule. The last element applies if no rule matches: another line ([`CONTINUED`]) or `u32::MAX`.
    pub(super) codes: [u32; Self::RULES + 1],
}

impl Services {
    /// Rules per line: four intervals fit two SSE registers, and the five codes fill the rest of the line.
    pub(crate) const RULES: usize = 4;

    /// Makes a line of up to four rules, each an interval of services and a code. `next` applies if none matches; see `codes`.
    pub(crate) fn new(rules: &[((u32, u32), u32)], next: u32) -> Self {
        let mut line = Self { first: [NO_SERVICE; 4], width: [0; 4], codes: [next; 5] };
        for (at, &((first, last), code)) in rules.iter().enumerate() {
            (line.first[at], line.width[at], line.codes[at]) = (first, last - first, code);
        }
        line
    }

    /// Returns each rule's first service, width and code.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let all = (0..Self::RULES).map(|at| (self.first[at], self.width[at], self.codes[at]));
        all.take_while(|&(first, ..)| first != NO_SERVICE)
    }

    /// Returns the index of the next line. `None` for the last line.
    pub(crate) fn next(&self) -> Option<u32> {
        let next = self.codes[Self::RULES];
        (next != u32::MAX).then_some(next & !CONTINUED)
    }
}
