//! Tables of 6-tuples, and what a transaction did to them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::Action;
use ipnet::IpNet;

use crate::object::PodName;
use crate::renderer::contiv::tuple::SixTuple;

/// A table's name: a function of its rules, so that a stack that kept its tables over a restart knows them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName(pub(super) u64);

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TableName {
    /// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv) over words of 64 bits in place of bytes; the rotation lets the high
    /// bits of a word reach the low ones of the result. Equal names of different rules are told apart by the cache.
    pub(super) fn of(rules: &[SixTuple]) -> Self {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let words = rules.iter().flat_map(|rule| {
            let [src, dst] = [rule.src, rule.dst].map(network_words);
            let service = rule.service.map_or(u64::MAX, |service| {
                let ports = u64::from(service.ports.first) << 16 | u64::from(service.ports.last);
                u64::from(service.protocols.0) << 40 | u64::from(service.protocols.1) << 32 | ports
            });
            let action = u64::from(rule.action == Action::Allow);
            [src[0], src[1], src[2], dst[0], dst[1], dst[2], service, action]
        });
        Self(words.fold(OFFSET, |hash, word| (hash ^ word).wrapping_mul(PRIME).rotate_left(29)))
    }
}

fn network_words(network: Option<IpNet>) -> [u64; 3] {
    match network {
        None => [u64::MAX; 3],
        Some(IpNet::V4(net)) => [u64::from(net.prefix_len()), 4, u32::from(net.addr()).into()],
        Some(IpNet::V6(net)) => {
            let bits = u128::from(net.addr());
            let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).expect("masked to 64 bits");
            [u64::from(net.prefix_len()) | 6 << 32, half(bits >> 64), half(bits)]
        }
    }
}

/// Sorted rules under a name. One without rules is not applied: it allows everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The name, different from that of every other table of the cache.
    pub id: TableName,
    /// The rules; the first that matches decides.
    pub rules: Vec<SixTuple>,
}

/// One step from the previous tables to the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// A local table is new (no previous pods), is gone (no pods), or has other pods.
    Local {
        /// The table; never one without rules.
        table: Arc<Table>,
        /// Who had it.
        previous: BTreeSet<PodName>,
        /// Who has it.
        pods: BTreeSet<PodName>,
    },
    /// The node's exit has other rules.
    Global {
        /// The table; one without rules when nobody is restricted any more.
        table: Arc<Table>,
    },
}
