//! Answer to `names`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A filter of learned addresses. An address must match both `pod` and `name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NameFilter {
    /// Name of the pod's port. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The domain name, in lower case without a final dot. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Maximum number of listed addresses, up to 10,000. With 0, the answer has only counts.
    pub limit: usize,
}

/// The addresses that pods have learned by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedNames {
    /// Name of the node that answers.
    pub node: String,
    /// Number of ports of pods whose rules name domains.
    pub pods: usize,
    /// The addresses of trusted DNS servers. Empty if no rule names domains.
    pub servers: Vec<IpNet>,
    /// Seconds for which an address is valid after its TTL. 0 if no rule names domains.
    pub grace_seconds: f64,
    /// Number of addresses that match the filter.
    pub matching: usize,
    /// The first of these addresses in order of pod, name and address, at most `limit` and 10,000. If `matching` is larger, the others are
    /// left out.
    pub names: Vec<LearnedName>,
    /// Counts since the start of the vswitch's process.
    pub counters: NameTotals,
}

/// An address that a pod may connect to by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LearnedName {
    /// Name of the pod's port.
    pub pod: String,
    /// The domain name in the question of the DNS answer.
    pub name: String,
    /// An address from the answer.
    pub address: IpAddr,
    /// Full seconds until new connections to the address need another answer.
    pub seconds: u64,
}

/// Counts of DNS messages and addresses of pods whose rules name domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameTotals {
    /// Queries to trusted servers, for any name.
    pub queries: u64,
    /// Answers to open questions, for names that match a rule of the pod.
    pub answers: u64,
    /// Addresses learned from these answers.
    pub addresses: u64,
    /// Answers for such names to no open question: forged, repeated, or too late.
    pub unasked: u64,
    /// Messages that were not understood.
    pub malformed: u64,
    /// Messages of which a part was missing.
    pub incomplete: u64,
    /// Addresses that were not learned, because the pod or the name has too many.
    pub full: u64,
    /// Connections allowed by name whose client has named an allowed server. 0 unless server names are verified.
    pub matched: u64,
    /// Connections allowed by name whose client has named another server or none. 0 unless server names are verified.
    pub mismatched: u64,
}
