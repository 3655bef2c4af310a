//! Domain names: learns from DNS answers which addresses pods have for which names.
//!
//! **Purpose.** Rules can name domains ([`Rule::names`](bulkhead_classifier::Rule::names)). Whether such a rule matches depends on what the
//! sending pod has learned. The worker that forwards a pod's DNS answer stores the answer's addresses before it forwards the answer.
//!
//! ```text
//!   query  of a pod ------> Questions: remembered, 64 per pod
//!   answer to a pod ------> is its question open? -> Message: addresses -> Learned (shared by all workers) -> the answer is forwarded
//!   first packet of a pod -> names of its destination in Learned -> the pod's table -> verdict
//! ```
//! The pod's first packet is caused by the answer. So each worker that sees the packet sees what was stored, without a wait, a proxy or new
//! tables.
//!
//! **Not its purpose.** It blocks no DNS and changes no answer. It does not resolve names itself.
//!
//! **Invariant.** Only an answer from a trusted server to an open question of the same pod is believed: same addresses, ports, protocol, id
//! and question. Whatever is not understood is forwarded and teaches nothing.

#[cfg_attr(not(target_os = "linux"), path = "kept/nowhere.rs")]
mod kept;
mod learned;
mod message;
mod questions;
mod streams;

use std::net::IpAddr;

use bulkhead_classifier::AddressSet;

#[cfg(target_os = "linux")]
pub(crate) use kept::FoundNames;
pub use kept::KeptNames;
pub use learned::{Holder, Learned, LearnedCounts, NameId, Swept};
pub(crate) use message::{Fault, Message};
pub(crate) use questions::{Asker, Questions};
pub(crate) use streams::{Segment, Streams};

use crate::flow::Translation;
use crate::{Flow, PortId};

/// The longest TTL in seconds that counts, one day: the default of resolvers such as unbound (`cache-max-ttl`). Longer ones would let the owner of a zone
/// below an allowed name use up the memory for names.
pub(crate) const LONGEST_TTL: u32 = 86_400;

/// The port of DNS servers (RFC 1035 §4.2).
pub(crate) const DNS: u16 = 53;

/// The ports whose DNS answers are read, and the servers that are believed. A part of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The trusted servers, by their addresses after translation.
    servers: AddressSet,
    /// Time in nanoseconds for which an address is valid after its TTL.
    grace: u64,
    /// By port id. `None` for ports without rules that name domains.
    holders: Vec<Option<Holder>>,
}

/// The part of a packet in a DNS conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// From a pod to a server.
    Query(Asker),
    /// From a server to a pod.
    Answer(Asker),
}

impl Learned {
    /// Returns a name's text. `None` if the name is unknown.
    pub fn text(&self, id: NameId) -> Option<String> {
        let mut text = None;
        self.with_name(id, |name| text = Some(name.to_owned()));
        text
    }
}

impl Names {
    /// Creates the part of a snapshot. `holders` has one element per port. `grace` is in nanoseconds: clients may cache answers longer than their
    /// TTL.
    pub const fn new(servers: AddressSet, grace: u64, holders: Vec<Option<Holder>>) -> Self {
        Self { servers, grace, holders }
    }

    /// Returns the trusted servers.
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

    /// Returns all holders.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.holders.iter().copied().flatten()
    }

    /// Returns the time in nanoseconds since 1970 until which an address with this TTL in seconds is valid.
    pub(crate) fn until(&self, now: u64, ttl: u32) -> u64 {
        now.saturating_add(u64::from(ttl.min(LONGEST_TTL)) * 1_000_000_000).saturating_add(self.grace)
    }

    /// Returns the part of a forwarded packet in a DNS conversation with a trusted server. `None` for all other packets. `received` is the
    /// packet's flow, `sent` its translation, `None` if it is not translated.
    pub(crate) fn part(
        &self,
        (in_port, out): (PortId, PortId),
        received: &Flow,
        sent: Option<&Translation>,
    ) -> Option<Part> {
        let sent = sent.copied().unwrap_or(Translation {
            src: received.src,
            dst: received.dst,
            sport: received.sport,
            dport: received.dport,
        });
        let asker = |holder, client, server: (IpAddr, u16)| {
            let is_trusted = self.servers.contains(server.0);
            is_trusted.then_some(Asker { holder, client, server, protocol: received.protocol })
        };
        // The pod's side has the port of DNS: behind a Service, the server's own port may be another.
        if let Some(holder) = self.holder(in_port).filter(|_| received.dport == DNS) {
            return asker(holder, (received.src, received.sport), (sent.dst, sent.dport)).map(Part::Query);
        }
        let holder = self.holder(out).filter(|_| sent.sport == DNS)?;
        asker(holder, (sent.dst, sent.dport), (received.src, received.sport)).map(Part::Answer)
    }
}

/// Counts of a worker's DNS packets of pods with rules that name domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameCounters {
    /// Queries to trusted servers.
    pub queries: u64,
    /// Answers to open questions.
    pub answers: u64,
    /// Addresses of answers that were stored.
    pub addresses: u64,
    /// Answers to no open question: forged, repeated, or later than [`PATIENCE`].
    pub unasked: u64,
    /// Messages that were not understood.
    pub malformed: u64,
    /// Messages of which the worker has not all bytes.
    pub incomplete: u64,
    /// Addresses that were not stored, because their pod or name has too many.
    pub full: u64,
}

pub use questions::PATIENCE;

impl NameCounters {
    /// Adds the counts of another worker.
    pub const fn add(&mut self, other: &Self) {
        let Self { queries, answers, addresses, unasked, malformed, incomplete, full } = other;
        self.queries += *queries;
        self.answers += *answers;
        self.addresses += *addresses;
        self.unasked += *unasked;
        self.malformed += *malformed;
        self.incomplete += *incomplete;
        self.full += *full;
    }
}
