//! Packet filters in the syntax of `pcap-filter(7)`, limited to addresses, ports and protocols.
//!
//! **Purpose.** [`Filter::parse`] compiles an expression, and reports where an expression is wrong. [`Filter::matches`] evaluates it.
//!
//! **Not its purpose.** The rest of the syntax: link-layer addresses, lengths, bytes at an offset, host names.
//!
//! ```text
//!   text --token--> tokens --parse--> tree --program--> tests with two ways on each: the truth
//!                                        `---sieve----> what every packet that it selects must have
//! ```
//! A packet costs a nanosecond or less while a filter selects nothing. The sieve's first test runs over a burst in one loop without
//! branches, on words prepared by the parser. The program runs only for packets that pass.
//!
//! As in libpcap, `and` and `or` have equal precedence and associate to the left, and `not` binds tighter. A value without a qualifier
//! inherits those of the previous value: `port 80 or 443`.
//!
//! **Invariant.** An expression has at most [`LONGEST`] bytes, [`MOST_TESTS`] tests and [`DEEPEST`] nested parentheses, so parsing and
//! evaluation are bounded. A program only jumps forward.

mod error;
mod parse;
mod predicate;
mod program;
mod sieve;
#[cfg(test)]
mod tests;
mod token;

use std::collections::HashSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

pub use error::FilterError;
use predicate::{Predicate, Sides};
use program::Program;
use sieve::Sieve;
pub(crate) use sieve::{Pair, Test};

use crate::Flow;

/// Bytes of an expression: a screen full of addresses.
pub const LONGEST: usize = 4096;

/// Tests of an expression. Each may cost a packet that passes the sieve a nanosecond.
pub const MOST_TESTS: usize = 256;

/// Parentheses in each other: more than anybody writes by hand, and little stack.
pub const DEEPEST: usize = 32;

/// What a filter asks of a packet.
pub(crate) trait Subject {
    /// The IANA protocol number.
    fn protocol(&self) -> u8;
    fn is_v6(&self) -> bool;
    /// Source and destination.
    fn addresses(&self) -> [IpAddr; 2];
    /// Source and destination; 0 where there are none.
    fn ports(&self) -> [u16; 2];
}

impl Subject for Flow {
    fn protocol(&self) -> u8 {
        self.protocol
    }

    fn is_v6(&self) -> bool {
        self.src.is_ipv6()
    }

    fn addresses(&self) -> [IpAddr; 2] {
        [self.src, self.dst]
    }

    fn ports(&self) -> [u16; 2] {
        [self.sport, self.dport]
    }
}

/// A filter that is ready to run. The default one matches everything. Two are equal when they ask the same questions in the same order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    program: Program,
    sieve: Sieve,
}

impl Filter {
    /// Reads an expression. An empty one matches everything.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let tree = parse::parse(text)?;
        Ok(tree.map(|tree| Self { program: Program::of(&tree), sieve: Sieve::of(&tree) }).unwrap_or_default())
    }

    /// This one, for packets from or to one of the addresses alone.
    #[must_use]
    pub fn with_an_end_in(self, addresses: Arc<HashSet<IpAddr>>) -> Self {
        let sieve = self.sieve.with_an_end_in(&addresses);
        Self { program: self.program.after(Predicate::Among(Sides::Either, addresses)), sieve }
    }

    /// Whether it matches everything, also what has no addresses.
    pub fn is_everything(&self) -> bool {
        self.program.is_empty()
    }

    /// What a packet must have to match.
    #[inline]
    pub(crate) const fn sieve(&self) -> &Sieve {
        &self.sieve
    }

    /// Whether it matches packets of this flow.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.program.run(flow)
    }

    /// The same, of what need not be made a flow for it.
    #[inline]
    pub(crate) fn selects(&self, subject: &impl Subject) -> bool {
        self.program.run(subject)
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::parse(text)
    }
}
