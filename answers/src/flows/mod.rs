//! # Observed flows: what captures and flow logs say of who talked to whom
//!
//! **Purpose.** One type for all sources, so that a question about real traffic (`replay --flows`, `learn`) does not care which tool has
//! recorded it. And the judge that says what today's state makes of each.
//!
//! **Not its purpose.** No packet is judged here: `replay` does that for captures, packet by packet.
//!
//! ```text
//!  Hubble JSON lines --hubble----.
//!  conntrack lines --conntrack---+--> sessions --fold--> observed flows --verdict--> allow | deny | unknown, why
//!  bulkhead sessions --own-------|
//!  captures --packets------------'
//! ```
//! A session is one connection, known by its ends, its ports and its protocol. A flow stands for all sessions that differ in the
//! client's port alone.
//!
//! **Invariant.** What a log does not say is unknown, with the reason, and never a guess: without an opener there is no destination
//! port. A line that cannot be read is an error, or counted where the user is lenient.

mod conntrack;
pub mod find;
mod hubble;
mod log;
mod own;
mod packets;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_control::object::{PodName, Transport};

pub use log::{LogError, read};
pub use packets::{PacketError, from_capture};

/// What reading one line gives: an error is the fault of the line.
type Read1 = Result<(), String>;

/// One end of a flow, as its source tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeenEnd {
    /// Its address.
    pub address: Option<IpAddr>,
    /// The pod that the source says it is.
    pub pod: Option<PodName>,
}

impl SeenEnd {
    /// The end of this address.
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

/// What a source does not say of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// Which of the two ends has opened it. The ends are then in the order in which they were seen.
    Opener,
    /// The protocol.
    Protocol,
    /// The destination port.
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

/// Who talked to whom, over what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Conversation {
    /// Who has opened it, unless that is [`Missing::Opener`].
    pub from: SeenEnd,
    /// With whom; of a translated connection the one that it was given.
    pub to: SeenEnd,
    /// The IANA protocol number.
    pub protocol: Option<u8>,
    /// The destination port, where the protocol has ports.
    pub port: Option<u16>,
    /// Type and code of the ICMP message that opens it.
    pub icmp: Option<(u8, u8)>,
    /// The address and port that a translated connection was made to.
    pub service: Option<SocketAddr>,
    /// What the source does not say.
    pub missing: Option<Missing>,
}

impl Conversation {
    /// The transport protocol, where it has ports.
    pub fn transport(&self) -> Option<Transport> {
        Transport::ALL.into_iter().find(|transport| Some(transport.number()) == self.protocol)
    }

    /// Fills in what is missing: the gravest first.
    fn checked(mut self) -> Self {
        let lacks_port = self.transport().is_some() && self.port.is_none();
        let fault = if self.protocol.is_none() { Some(Missing::Protocol) } else { None };
        let fault = self.missing.or(fault).or(lacks_port.then_some(Missing::Port));
        self.missing = fault;
        if fault == Some(Missing::Opener) {
            // Either of the ports may be the client's.
            self.port = None;
            if self.to < self.from {
                std::mem::swap(&mut self.from, &mut self.to);
            }
        }
        self
    }

    /// `TCP 80`, `ICMP echo`, `protocol 47`.
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

/// What a source says of the fate of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Said {
    /// Whether it says that the session, or a part of it, did not pass.
    pub dropped: bool,
    /// In its own words, `DROPPED (POLICY_DENIED)`; empty where it says nothing.
    pub words: Arc<str>,
}

/// Where something was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file as the user named it.
    pub file: Arc<str>,
    /// The line, or the packet of a capture, from 1.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// How much of something was seen, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Sessions.
    pub sessions: u64,
    /// Those of them of which an answer was seen.
    pub answered: u64,
    /// Packets of both directions; none where the source does not count them.
    pub packets: Option<u64>,
    /// Bytes of both directions; none where the source does not count them.
    pub bytes: Option<u64>,
    /// The first sign of it, in nanoseconds since 1970-01-01 UTC; none where the source has no times.
    pub first: Option<u64>,
    /// The last one.
    pub last: Option<u64>,
    /// Where the first one was read.
    pub place: Place,
}

impl Tally {
    /// Nothing yet, first seen here.
    const fn at(place: Place) -> Self {
        Self { sessions: 0, answered: 0, packets: None, bytes: None, first: None, last: None, place }
    }

    fn seen(&mut self, time: Option<u64>) {
        let Some(time) = time else { return };
        self.first = Some(self.first.map_or(time, |first| first.min(time)));
        self.last = Some(self.last.map_or(time, |last| last.max(time)));
    }

    /// Takes another one in.
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

/// All sessions between two ends over one protocol and port, of which the source says the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFlow {
    /// Who talked to whom.
    pub conversation: Conversation,
    /// What the source says became of them.
    pub said: Said,
    /// How much.
    pub tally: Tally,
}

/// One sign of a session: a line of a log, or a capture's whole knowledge of it.
#[derive(Clone, Debug)]
struct Sign {
    conversation: Conversation,
    /// Tells sessions between the same ends apart.
    client_port: Option<u16>,
    said: Said,
    /// How many sessions one after the other; more than one only in captures.
    sessions: u64,
    answered: bool,
    /// Whether the session is over: the next sign is that of another one.
    ends: bool,
    counts: Option<(u64, u64)>,
    times: (Option<u64>, Option<u64>),
    line: u64,
}

/// A session that signs belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SessionKey {
    conversation: Conversation,
    client_port: Option<u16>,
}

#[derive(Clone, Debug)]
struct Session {
    said: Said,
    tally: Tally,
    ended: bool,
}

/// What sources have told so far.
#[derive(Debug, Default)]
pub struct Observations {
    sessions: HashMap<SessionKey, Session>,
    /// Lines that could not be read and packets that were not understood, where that is no error: what is wrong, and how many.
    pub unread: std::collections::BTreeMap<String, u64>,
    /// Remarks on what the sources themselves say is lost or left out, and how often.
    pub remarks: std::collections::BTreeMap<String, u64>,
    /// Lines and packets that were read.
    pub read: u64,
}

impl Observations {
    fn add(&mut self, file: &Arc<str>, sign: Sign) {
        let Sign { conversation, client_port, said, sessions, answered, ends, counts, times, line } = sign;
        let key = SessionKey { conversation: conversation.checked(), client_port };
        let new = || Session {
            said: Said::default(),
            tally: Tally::at(Place { file: file.clone(), line }),
            // So that its first sign counts it.
            ended: true,
        };
        let session = self.sessions.entry(key).or_insert_with(new);
        // An end without a beginning in the log counts as well.
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
        // One part that was dropped is enough.
        if said > session.said {
            session.said = said;
        }
    }

    fn remark(&mut self, remark: impl Into<String>, count: u64) {
        *self.remarks.entry(remark.into()).or_default() += count;
    }

    /// The flows, in the order of their ends.
    pub fn flows(self) -> Vec<ObservedFlow> {
        let mut flows: HashMap<(Conversation, Said), Tally> = HashMap::new();
        for (SessionKey { conversation, .. }, Session { said, tally, .. }) in self.sessions {
            match flows.entry((conversation, said)) {
                std::collections::hash_map::Entry::Vacant(vacant) => drop(vacant.insert(tally)),
                std::collections::hash_map::Entry::Occupied(mut occupied) => {
                    let flow = occupied.get_mut();
                    flow.add(&tally);
                    flow.place = tally.place.min(flow.place.clone());
                }
            }
        }
        let flow = |((conversation, said), tally)| ObservedFlow { conversation, said, tally };
        let mut flows: Vec<ObservedFlow> = flows.into_iter().map(flow).collect();
        flows.sort_unstable_by(|a, b| (&a.conversation, &a.said).cmp(&(&b.conversation, &b.said)));
        flows
    }
}
