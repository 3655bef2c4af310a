//! # Observed flows: connections from captures and flow logs
//!
//! **Purpose.** One type for all sources, so that `replay --flows` and `learn` do not depend on the tool that recorded the traffic; and a
//! judge that evaluates flows with the current state.
//!
//! **Not its purpose.** It judges no packets: `replay` does that for captures.
//!
//! ```text
//!  Hubble JSON lines --hubble----.
//!  conntrack lines --conntrack---+--> sessions --fold--> observed flows --verdict--> allow | deny | unknown, why
//!  bulkhead sessions --own-------|
//!  captures --packets------------'
//! ```
//! A session is one connection, identified by its ends, ports and protocol. A flow combines all sessions that differ only in the client's
//! port. `learn` also distinguishes them by the domain names that the client had resolved to the server ([`Observations::by_name`]): a rule
//! may allow only those with a name.
//!
//! **Invariant.** What a log does not say is unknown, with the reason, and never guessed: without a known client there is no destination
//! port. A line that cannot be parsed is an error, or is counted with --lenient.
//!
//! **Bounds.** Sources of any length are read in bounded memory. Sessions that have not been seen for long are folded into their flows
//! ([`recent`]). More than [`MAX_FLOWS`] flows are an error, or are counted with --lenient.

mod conntrack;
pub mod find;
mod hubble;
mod listening;
mod log;
mod names;
mod own;
mod packets;
mod recent;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_control::object::{PodName, Transport};
use indexmap::IndexMap;
use indexmap::map::Entry;

pub use listening::Listeners;
pub use log::{LogError, read};
pub use names::ResolvedNames;
pub use packets::from_capture;
use recent::Recent;

/// Maximum number of flows of all sources of an answer. A flow takes about 330 bytes, so that they take 43 MB.
pub const MAX_FLOWS: usize = 1 << 17;

/// Outcome of parsing a line: `Err` describes the fault.
type Read1 = Result<(), String>;

/// One end of a flow, as the source describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeenEnd {
    /// IPv4 or IPv6 address. `None` if the source does not give it.
    pub address: Option<IpAddr>,
    /// The pod's name. `None` if the source does not give it.
    pub pod: Option<PodName>,
}

impl SeenEnd {
    /// Returns an end that is known by its address only.
    pub const fn at(address: IpAddr) -> Self {
        Self { address: Some(address), pod: None }
    }
}

impl fmt::Display for SeenEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { pod: Some(pod), .. } => write!(f, "{pod}"),
            Self { address: Some(address), .. } => write!(f, "{address}"),
            Self { pod: None, address: None } => f.write_str("?"),
        }
    }
}

/// What a source does not say about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// Which end opened the connection. `from` and `to` are then in arbitrary but stable order.
    Opener,
    /// The protocol of the connection.
    Protocol,
    /// The destination port of the connection.
    Port,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opener => "the log does not say which end opened the connection",
            Self::Protocol => "the log does not give the protocol",
            Self::Port => "the log does not give the destination port",
        })
    }
}

/// Ends, protocol and port of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Conversation {
    /// The client, unless `missing` is [`Missing::Opener`].
    pub from: SeenEnd,
    /// The server. For a translated connection, the backend.
    pub to: SeenEnd,
    /// IANA protocol number. `None` if unknown.
    pub protocol: Option<u8>,
    /// Destination port. `None` if unknown or if the protocol has no ports.
    pub port: Option<u16>,
    /// Type and code of the first ICMP message. `None` for other protocols, or if unknown.
    pub icmp: Option<(u8, u8)>,
    /// The Service address and port before translation. `None` if the connection is not known to be translated.
    pub service: Option<SocketAddr>,
    /// The most important missing fact. `None` if the flow can be judged.
    pub missing: Option<Missing>,
}

impl Conversation {
    /// Returns the transport protocol. `None` for protocols without ports.
    pub fn transport(&self) -> Option<Transport> {
        Transport::ALL.into_iter().find(|transport| Some(transport.number()) == self.protocol)
    }

    /// Sets `missing` to the most important missing fact.
    fn checked(mut self) -> Self {
        let lacks_port = self.transport().is_some() && self.port.is_none();
        let fault = if self.protocol.is_none() { Some(Missing::Protocol) } else { None };
        let fault = self.missing.or(fault).or(lacks_port.then_some(Missing::Port));
        self.missing = fault;
        if fault == Some(Missing::Opener) {
            // Either port may be the client's.
            self.port = None;
            if self.to < self.from {
                std::mem::swap(&mut self.from, &mut self.to);
            }
        }
        self
    }

    /// Returns protocol and port as text: `TCP 80`, `ICMP echo`, `protocol 47`.
    pub fn service_name(&self) -> String {
        let port = |name: &str| self.port.map_or_else(|| format!("{name} ?"), |port| format!("{name} {port}"));
        match (self.protocol, self.icmp) {
            (Some(protocol::ICMP), Some((8, _))) => "ICMP echo".to_owned(),
            (Some(protocol::ICMPV6), Some((128, _))) => "ICMPv6 echo".to_owned(),
            (Some(protocol::ICMP), Some((kind, code))) => format!("ICMP type {kind} code {code}"),
            (Some(protocol::ICMPV6), Some((kind, code))) => format!("ICMPv6 type {kind} code {code}"),
            (Some(protocol::ICMP), None) => "ICMP".to_owned(),
            (Some(protocol::ICMPV6), None) => "ICMPv6".to_owned(),
            (Some(number), _) => match self.transport() {
                Some(transport) => port(transport.name()),
                None => format!("protocol {number}"),
            },
            (None, _) => port("?"),
        }
    }
}

/// What happened to a session, according to the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Said {
    /// Whether the source reports at least one drop.
    pub dropped: bool,
    /// The source's wording, such as `DROPPED (POLICY_DENIED)`. Empty if the source does not report verdicts.
    pub words: Arc<str>,
}

/// Position of an observation in a log or capture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Path as given by the user.
    pub file: Arc<str>,
    /// Line, or packet of a capture, from 1.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Number of sessions, packets and bytes, and when they were seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Number of sessions.
    pub sessions: u64,
    /// Number of sessions with a reply.
    pub answered: u64,
    /// Packets in both directions. `None` if the source does not count them.
    pub packets: Option<u64>,
    /// Bytes in both directions. `None` if the source does not count them.
    pub bytes: Option<u64>,
    /// First observation, in nanoseconds since 1970-01-01 UTC. `None` if the source has no times.
    pub first: Option<u64>,
    /// Last observation, in nanoseconds since 1970-01-01 UTC. `None` if the source has no times.
    pub last: Option<u64>,
    /// Position of the first observation.
    pub place: Place,
}

impl Tally {
    /// Returns an empty tally whose first observation is at `place`.
    const fn at(place: Place) -> Self {
        Self { sessions: 0, answered: 0, packets: None, bytes: None, first: None, last: None, place }
    }

    fn seen(&mut self, time: Option<u64>) {
        let Some(time) = time else { return };
        self.first = Some(self.first.map_or(time, |first| first.min(time)));
        self.last = Some(self.last.map_or(time, |last| last.max(time)));
    }

    /// Adds the counts of another tally, and extends the times to include its.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (one, other) => one.or(other),
        };
        self.sessions += other.sessions;
        self.answered += other.answered;
        (self.packets, self.bytes) = (sum(self.packets, other.packets), sum(self.bytes, other.bytes));
        self.seen(other.first);
        self.seen(other.last);
    }
}

/// All sessions between two ends at one port for which the source reports the same fate and, if requested, the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFlow {
    /// Ends, protocol and port of the flow.
    pub conversation: Conversation,
    /// Whether the source reports drops of these sessions.
    pub said: Said,
    /// The server's names, by which its clients knew it. Empty unless requested by [`Observations::by_name`].
    pub names: ResolvedNames,
    /// Counts and times of its sessions.
    pub tally: Tally,
}

/// One observation of a session: a line of a log, or a summary of the session in a capture.
#[derive(Clone, Debug)]
struct Sign {
    conversation: Conversation,
    /// The client's port, which distinguishes sessions between the same ends. `None` if unknown.
    client_port: Option<u16>,
    said: Said,
    /// The server's names according to this observation.
    names: ResolvedNames,
    /// Number of sessions that used these ports one after another. Above 1 only for captures.
    sessions: u64,
    answered: bool,
    /// Whether the session is over: the next observation belongs to another one.
    ends: bool,
    counts: Option<(u64, u64)>,
    times: (Option<u64>, Option<u64>),
    line: u64,
}

/// Identifies the session of an observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SessionKey {
    conversation: Conversation,
    client_port: Option<u16>,
}

#[derive(Clone, Debug)]
struct Session {
    said: Said,
    names: ResolvedNames,
    tally: Tally,
    ended: bool,
}

/// The flows of the sessions that are over, or have not been seen for long.
#[derive(Debug)]
struct Folded {
    /// Counts and times of each flow, in the order in which the flows were found.
    flows: IndexMap<(Conversation, Said, ResolvedNames), Tally>,
    /// Maximum number of flows: [`MAX_FLOWS`], or fewer in tests.
    most: usize,
    /// Number of sessions that were left out because their flow would have been one more than the maximum.
    left_out: u64,
    /// Position of the first observation of the first session that was left out. `None` if none was.
    left_out_at: Option<Place>,
}

impl Folded {
    /// Adds a session to its flow, or counts it as left out.
    fn add(&mut self, conversation: Conversation, Session { said, names, tally, .. }: Session) {
        let is_full = self.flows.len() >= self.most;
        match self.flows.entry((conversation, said, names)) {
            Entry::Vacant(_) if is_full => {
                self.left_out += tally.sessions;
                self.left_out_at.get_or_insert(tally.place);
            }
            Entry::Vacant(vacant) => _ = vacant.insert(tally),
            Entry::Occupied(mut occupied) => {
                let flow = occupied.get_mut();
                flow.add(&tally);
                flow.place = tally.place.min(flow.place.clone());
            }
        }
    }
}

/// All sessions read from captures and flow logs so far, with their losses.
#[derive(Debug)]
pub struct Observations {
    /// Whether lines that cannot be read, and flows beyond the maximum, are counted instead of being errors.
    lenient: bool,
    /// Whether flows are distinguished by the server's names.
    by_name: bool,
    /// The sessions that were seen last.
    sessions: Recent<SessionKey, Session>,
    folded: Folded,
    /// Number of sessions that were folded although the source does not say that they are over.
    idle: u64,
    /// Unreadable lines and packets that are not an error, counted by fault.
    pub unread: std::collections::BTreeMap<String, u64>,
    /// Losses and omissions that the sources report, with their number.
    pub remarks: std::collections::BTreeMap<String, u64>,
    /// Number of lines and packets read.
    pub read: u64,
}

impl Observations {
    /// Returns no observations. With `lenient`, lines that cannot be read, and flows beyond [`MAX_FLOWS`], are counted instead of being errors.
    pub fn new(lenient: bool) -> Self {
        let folded = Folded { flows: IndexMap::new(), most: MAX_FLOWS, left_out: 0, left_out_at: None };
        let (unread, remarks) = Default::default();
        Self { lenient, by_name: false, sessions: Recent::default(), folded, idle: 0, unread, remarks, read: 0 }
    }

    /// Distinguishes flows by the server's names that the clients had resolved.
    #[must_use]
    pub fn by_name(self) -> Self {
        Self { by_name: true, ..self }
    }

    /// Adds an observation to its session. Folds sessions that have not been seen for long.
    fn add(&mut self, file: &Arc<str>, sign: Sign) {
        let Sign { conversation, client_port, said, names, sessions, answered, ends, counts, times, line } = sign;
        let key = SessionKey { conversation: conversation.checked(), client_port };
        let new = || Session {
            said: Said::default(),
            names: ResolvedNames::default(),
            tally: Tally::at(Place { file: file.clone(), line }),
            // So that the first observation counts it.
            ended: true,
        };
        let (folded, idle, by_name) = (&mut self.folded, &mut self.idle, self.by_name);
        let session = self.sessions.value(key, new, |(key, session)| {
            *idle += u64::from(!session.ended);
            folded.add(key.conversation, session);
        });
        // Also count a session whose start is not in the log.
        if session.ended {
            session.tally.sessions += sessions.max(1);
        }
        session.ended = ends;
        session.tally.answered = session.tally.sessions.min(session.tally.answered + u64::from(answered));
        if let Some((packets, bytes)) = counts {
            let sum = |before: Option<u64>, more: u64| Some(before.unwrap_or(0).saturating_add(more));
            session.tally.packets = sum(session.tally.packets, packets);
            session.tally.bytes = sum(session.tally.bytes, bytes);
        }
        session.tally.seen(times.0);
        session.tally.seen(times.1);
        if by_name {
            session.names.join(&names);
        }
        // One reported drop marks the whole session.
        if said > session.said {
            session.said = said;
        }
    }

    /// Counts a loss or omission.
    fn remark(&mut self, remark: impl Into<String>, count: u64) {
        *self.remarks.entry(remark.into()).or_default() += count;
    }

    /// Checks that no flow had to be left out.
    ///
    /// # Errors
    /// [`LogError::TooMany`] if there are more than [`MAX_FLOWS`] flows, unless the observations are lenient.
    fn check(&self) -> Result<(), LogError> {
        match &self.folded.left_out_at {
            Some(place) if !self.lenient => Err(LogError::TooMany { place: place.clone() }),
            _ => Ok(()),
        }
    }

    /// Takes out the flows, ordered by their ends, so that no observations remain. Adds remarks about sessions that were left out or may count
    /// twice.
    ///
    /// # Errors
    /// [`LogError::TooMany`] if there are more than [`MAX_FLOWS`] flows, unless the observations are lenient.
    pub fn flows(&mut self) -> Result<Vec<ObservedFlow>, LogError> {
        for (key, session) in self.sessions.drain() {
            self.folded.add(key.conversation, session);
        }
        self.check()?;
        let (idle, left_out) = (std::mem::take(&mut self.idle), std::mem::take(&mut self.folded.left_out));
        if idle > 0 {
            self.remark(
                "sessions were idle for long; one that went on later, or is in a further file, counts twice",
                idle,
            );
        }
        if left_out > 0 {
            self.remark(format!("sessions of flows beyond the first {MAX_FLOWS}, which are left out"), left_out);
        }
        let flow = |((conversation, said, names), tally)| ObservedFlow { conversation, said, names, tally };
        let mut flows: Vec<ObservedFlow> = std::mem::take(&mut self.folded.flows).into_iter().map(flow).collect();
        flows.sort_unstable_by(|a, b| (&a.conversation, &a.said, &a.names).cmp(&(&b.conversation, &b.said, &b.names)));
        Ok(flows)
    }
}
