//! # Packet classification: an ordered rule list in, one verdict per packet key out
//!
//! **Purpose.** [`Tables::build`] turns an ordered list of [`Rule`]s into an immutable structure that answers, for a
//! packet's [`Key`], which rule decides. The first rule that matches wins; when none does, the packet is denied.
//!
//! **Not its purpose.** No packets are parsed, no sessions kept; no clock, no I/O and no threads. A rule carries an
//! opaque [`OriginId`]; what it stands for (a policy, a line of a file) is the caller's business.
//!
//! ```text
//!   whoever has the rules                              whoever has the packets
//!   Vec<Rule> --Tables::build--> Tables (immutable) <--lookup / lookup_batch-- Key
//!   src set x dst set x services      | update         Verdict { action, rule } -> Rule.origin
//!                                     `-> Tables of the changed list, which share what has not changed
//! ```
//!
//! **Invariant.** A verdict is a function of the key and the rule list alone: every engine and every batch size gives
//! the answer of a scan from the first rule to the last. Nothing in here can widen a rule: an empty set matches
//! nothing, and no match is a deny.
//!
//! ```
//! use bulkhead_classifier::{Action, Addresses, Key, OriginId, Rule, Tables, protocol};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tables = Tables::build(vec![
//!     Rule { src: Addresses::prefix("10.0.0.66/32".parse()?), ..Rule::any(Action::Deny, OriginId(0)) },
//!     Rule { src: Addresses::prefix("10.0.0.0/8".parse()?), ..Rule::any(Action::Allow, OriginId(1)) },
//! ])?;
//! let from = |src: [u8; 4]| Key::new(src.into(), [10, 1, 0, 1].into(), protocol::UDP, 50_000, 53);
//! assert_eq!(tables.lookup(&from([10, 0, 0, 66])).rule(), Some(0));
//! assert!(tables.lookup(&from([10, 0, 0, 67])).is_allow());
//! // No rule matches: denied.
//! assert!(!tables.lookup(&from([192, 0, 2, 1])).is_allow());
//! # Ok(())
//! # }
//! ```
//!
//! The examples of the crate show a firewall, what a verdict is explained by, and how tables follow a list that changes.
//!
//! [`identity`] is the other form of tables: addresses are looked up first, and rules are by the identity that has them.
//!
//! Four modules make a table: `engine` compiles a list (its text says which structure is taken when, and what lost),
//! `simd` holds the instructions of the CPU's level, [`Tables`] is both families' compiled lists and their changes, and
//! [`linear`] is the scan that everything is held against. [`classbench`] reads rule sets and traces.
//!
//! Rules are products of sets (*source addresses* x *destination addresses* x *services*), not 5-tuples: 1,000 address
//! blocks and 20 ports are one rule of 1,020 items instead of 20,000 tuples. A ClassBench 5-tuple is
//! the special case where each set has one member. A set of many thousands that many rules and many tables name is a
//! [`PartedSet`]: tables refer to it, and a change of it is no change of theirs.

mod address_set;
mod addresses;
mod build;
pub mod classbench;
mod compiled;
mod delta;
mod difference;
mod engine;
pub mod identity;
mod key;
pub mod linear;
mod parted;
mod rule;
mod rule_list;
mod services;
mod simd;
mod tables;
mod verdict;

pub use address_set::AddressSet;
pub use addresses::Addresses;
pub use build::{BuildError, BuildOptions, MAX_RULES};
pub use difference::Change;
pub use engine::Cost;
pub use key::{Key, protocol};
pub use parted::PartedSet;
pub use rule::{OriginId, Rule};
pub use rule_list::RuleList;
pub use services::{PortRange, Service, ServiceSet, Services};
pub use tables::Tables;
pub use verdict::{Action, Verdict};

/// Its code is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
