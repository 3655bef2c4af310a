//! A line of a list of rules that differ in their services and source ports only.

use super::{CONTINUED, NO_SERVICE};

/// Up to four rules in order, on one cache line. The lines of a list lie behind each other.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    /// Each rule's first service.
    pub(super) first: [u32; Self::RULES],
    /// How many services it has, less one.
    pub(super) width: [u32; Self::RULES],
    /// Each rule's first source port, then how many it has, less one.
    pub(super) src_ports: [u16; 2 * Self::RULES],
    /// Their codes, which are below 2^24; the first one has [`CONTINUED`] set when the list goes on with the next line.
    pub(super) codes: [u32; Self::RULES],
}

/// A rule of a line: its services and its source ports, first and last, and its code.
pub(crate) type Rule = ((u32, u32), (u16, u16), u32);

impl Transport {
    /// Rules of a line: what fits on it.
    pub(crate) const RULES: usize = 4;

    /// A line of up to four rules, and whether the list goes on.
    pub(crate) fn new(rules: &[Rule], continued: bool) -> Self {
        let mut line = Self { first: [NO_SERVICE; 4], width: [0; 4], src_ports: [0; 8], codes: [0; 4] };
        for (at, &((first, last), (port, last_port), code)) in rules.iter().enumerate() {
            (line.first[at], line.width[at], line.codes[at]) = (first, last - first, code);
            (line.src_ports[at], line.src_ports[Self::RULES + at]) = (port, last_port - port);
        }
        line.codes[0] |= if continued { CONTINUED } else { 0 };
        line
    }

    /// What [`super::Simd::pick_transport`] says when these of the line's rules match, a bit per rule.
    #[inline(always)]
    pub(super) fn picked(&self, inside: u32) -> u32 {
        let code = self.codes[inside.trailing_zeros() as usize % Self::RULES] & !CONTINUED;
        let none = CONTINUED | (self.codes[0] >> 31).wrapping_sub(1);
        if inside == 0 { none } else { code }
    }

    /// The code of each rule that holds the service and the source port.
    pub(crate) fn matching(&self, service: u32, src_port: u32) -> impl Iterator<Item = u32> + '_ {
        let inside = move |at: usize| {
            let ports = (u32::from(self.src_ports[at]), u32::from(self.src_ports[Self::RULES + at]));
            (service.wrapping_sub(self.first[at]) <= self.width[at]) & (src_port.wrapping_sub(ports.0) <= ports.1)
        };
        (0..self.rules()).filter(move |&at| inside(at)).map(|at| self.codes[at] & !CONTINUED)
    }

    /// How many rules are on it.
    pub(crate) fn rules(&self) -> usize {
        self.first.iter().take_while(|&&first| first != NO_SERVICE).count()
    }

    /// Whether the list goes on with the next line.
    pub(crate) fn is_continued(&self) -> bool {
        self.codes[0] & CONTINUED != 0
    }
}
