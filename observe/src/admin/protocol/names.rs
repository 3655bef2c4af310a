//! Answer to `names`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A filter of learned addresses. `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NameFilter {
    /// Name of the pod's port. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The domain name. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Maximum number of listed addresses. 0 returns only the numbers.
    pub limit: usize,
}

/// The addresses that pods have learned by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedNames {
    /// Name of the node that answers.
    pub node: String,
    /// Number of ports of pods whose rules name domains.
    pub pods: usize,
    /// The DNS servers whose answers are believed. Empty if no rule names domains.
    pub servers: Vec<IpNet>,
    /// Seconds for which an address is valid after its TTL.
    pub grace_seconds: f64,
    /// Number of addresses that match the filter.
    pub matching: usize,
    /// The first of them, by pod, name and address.
    pub names: Vec<LearnedName>,
    /// Counts since the start.
    pub counters: NameTotals,
}

/// An address that a pod may connect to by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LearnedName {
    /// Name of the pod's port.
    pub pod: String,
    /// The domain name of the question.
    pub name: String,
    /// An address from the answer.
    pub address: IpAddr,
    /// Seconds until new connections need another answer.
    pub seconds: u64,
}

/// Counts of DNS messages of pods whose rules name domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameTotals {
    /// Queries to trusted servers.
    pub queries: u64,
    /// Answers to open questions.
    pub answers: u64,
    /// Addresses that answers have opened.
    pub addresses: u64,
    /// Answers to no open question.
    pub unasked: u64,
    /// Messages that were not understood.
    pub malformed: u64,
    /// Messages of which a part was missing.
    pub incomplete: u64,
    /// Addresses not opened, because the pod or the name has too many.
    pub full: u64,
}
