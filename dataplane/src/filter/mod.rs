//! Packet filters in the syntax of `pcap-filter(7)`, limited to addresses, ports and protocols.
//!
//! **Purpose.** [`Filter::parse`] compiles an expression, and reports where an expression is wrong. [`Filter::matches`] evaluates it.
//!
//! **Not its purpose.** The rest of the syntax: link-layer addresses, lengths, bytes at an offset, host names.
//!
//! ```text
//!   text --token--> tokens --parse--> tree --program--> tests, each with two successors: the exact answer
//!                                        `---sieve----> conditions that every matching packet meets
//! ```
//! A packet that the sieve rejects costs a nanosecond or less. The sieve's first test runs over a burst in one loop without
//! branches, on words prepared by the parser. The program runs only for packets that pass.
//!
//! As in libpcap, `and` and `or` have equal precedence and associate to the left, and `not` binds tighter. A value without a qualifier
//! inherits those of the previous value: `port 80 or 443`.
//!
//! **Invariant.** An expression has at most [`LONGEST`] bytes, [`MOST_TESTS`] tests and [`DEEPEST`] nested parentheses, so parsing and
//! evaluation are bounded. A program never repeats a test.

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

/// Maximum length of an expression in bytes: a screen full of addresses.
pub const LONGEST: usize = 4096;

/// Maximum number of tests of an expression. Each may take a nanosecond per packet that passes the sieve.
pub const MOST_TESTS: usize = 256;

/// Maximum depth of nested parentheses: more than a person writes, and little stack.
pub const DEEPEST: usize = 32;

/// A packet's fields that filters test.
pub(crate) trait Subject {
    /// Returns the IANA protocol number.
    fn protocol(&self) -> u8;
    fn is_v6(&self) -> bool;
    /// Source and destination address.
    fn addresses(&self) -> [IpAddr; 2];
    /// Source and destination port. 0 for protocols without ports.
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

/// A compiled filter. The default filter matches every packet. Two filters are equal if they have the same tests in the same order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    program: Program,
    sieve: Sieve,
}

impl Filter {
    /// Compiles an expression. An empty one matches every packet.
    ///
    /// # Errors
    /// [`FilterError`], with the position of the first error.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let tree = parse::parse(text)?;
        Ok(tree.map(|tree| Self { program: Program::of(&tree), sieve: Sieve::of(&tree) }).unwrap_or_default())
    }

    /// Restricts the filter to packets from or to these addresses.
    #[must_use]
    pub fn with_an_end_in(self, addresses: Arc<HashSet<IpAddr>>) -> Self {
        let sieve = self.sieve.with_an_end_in(&addresses);
        Self { program: self.program.after(Predicate::Among(Sides::Either, addresses)), sieve }
    }

    /// Whether the filter matches every packet, including those without addresses.
    pub fn is_everything(&self) -> bool {
        self.program.is_empty()
    }

    /// Cheap conditions that every matching packet meets.
    #[inline]
    pub(crate) const fn sieve(&self) -> &Sieve {
        &self.sieve
    }

    /// Whether the filter matches packets of this flow.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.program.run(flow)
    }

    /// Like [`Filter::matches`], without converting the packet to a [`Flow`].
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
