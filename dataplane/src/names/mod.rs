//! Learns from forwarded DNS answers which addresses pods may reach by rules that name domains.
//!
//! **Purpose.** Rules can name domains ([`Rule::names`](bulkhead_classifier::Rule::names)). Whether such a rule matches a packet depends on
//! the names under which the sending pod has learned the packet's destination. The worker that forwards a DNS answer to a pod stores the
//! answer's addresses before it forwards the answer.
//!
//! ```text
//!   query  of a pod ------> Questions: remembered, 64 per pod
//!   answer to a pod ------> is its question open? -> Message: addresses -> Learned (shared by all workers) -> the answer is forwarded
//!   first packet of a pod -> names of its destination in Learned -> the pod's table -> verdict
//! ```
//! The pod connects after it has received the answer. So any worker that judges the pod's first packet finds the stored addresses: no
//! packet waits, and neither a proxy nor new tables are needed.
//!
//! **Not its purpose.** This module does not block DNS, change answers or resolve names itself.
//!
//! **Invariant.** A worker learns only from answers of trusted servers to open questions of the same pod, with the same addresses, ports,
//! protocol, id and question. A message that cannot be parsed is forwarded, and nothing is learned from it.

mod datagrams;
mod hellos;
#[cfg_attr(not(target_os = "linux"), path = "kept/nowhere.rs")]
mod kept;
mod learned;
mod message;
#[cfg(test)]
pub(crate) mod numbers;
mod questions;
mod streams;

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, protocol};

pub(crate) use datagrams::{Added, Datagrams};
pub(crate) use hellos::{Hello, Hellos, Sent, names_its_server};
#[cfg(target_os = "linux")]
pub(crate) use kept::FoundNames;
pub(crate) use kept::KeptNames;
pub use learned::{Full, Holder, Learned, LearnedCounts, NameId, Swept};
#[cfg(test)]
pub(crate) use message::tests::encoder::Encoder;
pub(crate) use message::{Fault, Message};
pub(crate) use questions::{Asker, Questions};
pub(crate) use streams::{Segment, Streams};

use crate::flow::Translation;
use crate::{Flow, PortId};

/// Maximum TTL in seconds, one day: the default of resolvers such as unbound (`cache-max-ttl`). Longer TTLs are shortened to it. Otherwise
/// the owner of a zone below an allowed name could use up the memory for names.
pub(crate) const LONGEST_TTL: u32 = 86_400;

/// The port of DNS servers (RFC 1035 §4.2).
pub(crate) const DNS: u16 = 53;

/// The ports with rules that name domains, and the DNS servers from whose answers these ports learn. A part of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Addresses of the trusted servers themselves, not of Services in front of them.
    servers: AddressSet,
    /// Time in nanoseconds for which an address is valid after its TTL.
    grace: u64,
    /// The holder of each port, by port id. `None` for ports without rules that name domains.
    holders: Vec<Option<Holder>>,
    server_names: ServerNameCheck,
    /// Whether the holders learn the addresses of all names. Otherwise they learn those of the names that their rules name.
    learns_all: bool,
}

/// What happens to connections that were allowed by name and whose client names a server that the policy does not allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerNameCheck {
    /// Server names are not read.
    #[default]
    Off,
    /// The connection goes on and is reported like one that an audited policy would deny.
    Audit,
    /// The connection is cut.
    Drop,
}

/// A pod that learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learner {
    /// The number of the pod in this process.
    pub holder: Holder,
    /// The name of the pod's port. With an address of the pod, it identifies the pod in other processes.
    pub port: Arc<str>,
    /// The pod's own addresses.
    pub addresses: Vec<IpAddr>,
}

/// The place of a packet in a DNS conversation of a pod with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) asker: Asker,
    /// Whether the packet goes from the pod to the server. False for a packet from the server to the pod.
    pub(crate) is_query: bool,
}

impl Learned {
    /// Returns the text of a name, in lower case and without a final dot. `None` if the id is unknown.
    pub fn text(&self, id: NameId) -> Option<String> {
        let mut text = None;
        self.with_name(id, |name| text = Some(name.to_owned()));
        text
    }
}

impl Names {
    /// Creates the part of a snapshot. `holders` has one element per port id: `None` for ports without rules that name domains. `grace` is
    /// the time in nanoseconds for which an address stays valid after its TTL, because clients may cache answers longer.
    pub const fn new(servers: AddressSet, grace: u64, holders: Vec<Option<Holder>>) -> Self {
        Self { servers, grace, holders, server_names: ServerNameCheck::Off, learns_all: false }
    }

    /// Makes the holders learn the addresses of all names, also of those that no rule names.
    #[must_use]
    pub fn learning_all(self) -> Self {
        Self { learns_all: true, ..self }
    }

    /// Returns whether the holders learn the addresses of all names.
    pub(crate) const fn learns_all(&self) -> bool {
        self.learns_all
    }

    /// Sets whether the server names of connections that were allowed by name are compared with the policy.
    #[must_use]
    pub fn checking_server_names(self, server_names: ServerNameCheck) -> Self {
        Self { server_names, ..self }
    }

    /// Returns whether the server names of connections that were allowed by name are compared with the policy.
    pub const fn server_names(&self) -> ServerNameCheck {
        self.server_names
    }

    /// Returns the addresses of the trusted servers themselves, not of Services in front of them.
    pub const fn servers(&self) -> &AddressSet {
        &self.servers
    }

    /// Returns the time in nanoseconds for which an address is valid after its TTL.
    pub const fn grace(&self) -> u64 {
        self.grace
    }

    /// Returns the holder of a port. `None` if the port has no rules that name domains.
    pub fn holder(&self, port: PortId) -> Option<Holder> {
        self.holders.get(port.index()).copied().flatten()
    }

    /// Returns the holders of all ports with rules that name domains.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.holders.iter().copied().flatten()
    }

    /// Returns when an address with this TTL in seconds, learned at `now`, stops being valid. The TTL is shortened to [`LONGEST_TTL`] and
    /// lengthened by the grace. Both times are in nanoseconds since 1970.
    pub(crate) fn until(&self, now: u64, ttl: u32) -> u64 {
        now.saturating_add(u64::from(ttl.min(LONGEST_TTL)) * 1_000_000_000).saturating_add(self.grace)
    }

    /// Returns the place of a forwarded packet in the DNS conversation of a pod that has a holder with a trusted server. `None` for all other
    /// packets. `received` has the packet's addresses and ports when it was received, `sent` those after translation: `None` if it is not
    /// translated.
    pub(crate) fn part(
        &self,
        (in_port, out): (PortId, PortId),
        received: &Flow,
        sent: Option<&Translation>,
    ) -> Option<Part> {
        let Flow { src, dst, sport, dport, protocol, .. } = *received;
        let sent = sent.copied().unwrap_or(Translation { src, dst, sport, dport });
        // The pod's side has the port of DNS: behind a Service, the server's own port may be another.
        let query = self.holder(in_port).filter(|_| dport == DNS);
        let (holder, client, server) = match query {
            Some(holder) => (holder, (src, sport), (sent.dst, sent.dport)),
            None => (self.holder(out).filter(|_| sent.sport == DNS)?, (sent.dst, sent.dport), (src, sport)),
        };
        let is_dns = matches!(protocol, protocol::UDP | protocol::TCP) && self.servers.contains(server.0);
        is_dns.then_some(Part { asker: Asker { holder, client, server, protocol }, is_query: query.is_some() })
    }
}

/// Counts of DNS messages between trusted servers and pods with rules that name domains, of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameCounters {
    /// Queries to trusted servers about names that a rule of the pod names.
    pub queries: u64,
    /// Answers to open questions about names that a rule of the pod names.
    pub answers: u64,
    /// Stored addresses of these answers.
    pub addresses: u64,
    /// Ignored answers about such names, because they answer no open question: forged, repeated, or later than [`PATIENCE`].
    pub unasked: u64,
    /// Messages that could not be parsed, or that are about names that no rule can name, such as the root.
    pub malformed: u64,
    /// Packets whose messages the worker could not read completely: incomplete datagrams, truncated packets, and segments of streams that it does not
    /// follow.
    pub incomplete: u64,
    /// Addresses that were not stored, because of a limit on addresses, names or holdings.
    pub full: u64,
    /// Connections whose client has named an allowed server: see [`ServerNameCheck`].
    pub matched: u64,
    /// Connections whose client has named a server that the policy does not allow, or none.
    pub mismatched: u64,
}

pub use questions::PATIENCE;

impl NameCounters {
    /// Adds the counts of another worker.
    pub const fn add(&mut self, other: &Self) {
        let Self { queries, answers, addresses, unasked, malformed, incomplete, full, matched, mismatched } = other;
        self.queries += *queries;
        self.answers += *answers;
        self.addresses += *addresses;
        self.unasked += *unasked;
        self.malformed += *malformed;
        self.incomplete += *incomplete;
        self.full += *full;
        self.matched += *matched;
        self.mismatched += *mismatched;
    }
}
