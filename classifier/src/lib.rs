//! # Packet classification: an ordered rule list in, one verdict per packet key out
//!
//! **Purpose.** [`Tables::build`] compiles an ordered list of [`Rule`]s into an immutable structure. For a packet's [`Key`] it returns the
//! first rule that matches. If no rule matches, the packet is denied.
//!
//! **Not its purpose.** It parses no packets and keeps no sessions; it has no clock, no I/O and no threads. A rule carries an opaque
//! [`OriginId`], whose meaning (a policy, a line of a file) the caller defines.
//!
//! ```text
//!   control: policy                                     dataplane: packets
//!   Vec<Rule> --Tables::build--> Tables (immutable) <--lookup / lookup_batch-- Key
//!   src set x dst set x services      | update         Verdict { action, rule } -> Rule.origin
//!                                     `-> Tables of the changed list, which share what has not changed
//! ```
//!
//! **Invariant.** A verdict depends only on the key and the rule list. Every engine and every batch size gives the result of a linear scan.
//! Nothing widens a rule: an empty set matches nothing, and no match is a deny.
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
//! The crate's examples show a firewall, the explanation of a verdict, and tables that follow a changing list.
//!
//! [`identity`] is an alternative form of tables: it first maps addresses to identities, then looks up rules by identity.
//!
//! Four modules implement tables. `engine` compiles a list; its documentation names the structures and their alternatives. `simd` has the
//! instructions of each CPU level. [`Tables`] combines the compiled lists of both families with their changes. [`linear`] is the scan that
//! tests compare everything with. [`classbench`] reads rule sets and traces.
//!
//! Rules are products of sets (*source addresses* x *destination addresses* x *services*), not 5-tuples: 1,000 address blocks and 20 ports
//! are one rule of 1,020 items instead of 20,000 tuples. A ClassBench 5-tuple is a rule whose sets have one member each. A set of many
//! thousand addresses that many tables share is a [`PartedSet`]: tables refer to it, so that changing the set does not recompile them.

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
mod name_index;
mod names;
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
pub use names::{InvalidName, NamePattern, NameSet};
pub use parted::PartedSet;
pub use rule::{OriginId, Rule};
pub use rule_list::RuleList;
pub use services::{PortRange, Service, ServiceSet, Services};
pub use tables::Tables;
pub use verdict::{Action, Verdict};

/// Compiles and runs the README's code with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
