//! Collects the sessions of a capture without judging packets.

use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_dataplane::Flow;
use bulkhead_dataplane::conversation::{self, Frame, Part};
use bulkhead_dataplane::io::CaptureReader;

use super::recent::Recent;
use super::{Conversation, Listeners, LogError, Missing, Observations, ResolvedNames, Said, SeenEnd, Sign};

/// Both ends with ports, lower one first, and the protocol. Equal for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    low: (IpAddr, u16),
    high: (IpAddr, u16),
    protocol: u8,
}

/// A session of the capture: its opener, counts and times so far.
struct Session {
    /// Whether `low` opened the session. `None` if unknown.
    low_opens: Option<bool>,
    icmp: Option<(u8, u8)>,
    /// The server's names when the client began the session.
    names: ResolvedNames,
    sessions: u64,
    is_over: bool,
    answered: bool,
    packets: u64,
    bytes: u64,
    first: u64,
    last: u64,
    line: u64,
}

/// Adds the sessions of a capture. Returns the number of packets. If the start of a TCP connection is missing, `pickup` takes the sender of
/// the first captured packet as the client; otherwise the client is unknown. With `listeners`, sessions have the server's names.
///
/// # Errors
/// [`LogError::Capture`] if the file is damaged, [`LogError::TooMany`] if there are too many flows. Packets before the fault were counted.
pub fn from_capture<R: Read>(
    file: &str,
    read: R,
    pickup: bool,
    listeners: Option<&mut Listeners<'_>>,
    into: &mut Observations,
) -> Result<u64, LogError> {
    let mut sessions = Recent::default();
    let mut count = 0;
    let outcome = collect(file, read, pickup, listeners, (&mut sessions, &mut count), into);
    into.read += count;
    let name: Arc<str> = file.into();
    for (ends, session) in sessions.drain() {
        into.add(&name, sign(&ends, &session));
    }
    outcome.map(|()| count)
}

fn collect<R: Read>(
    file: &str,
    read: R,
    pickup: bool,
    mut listeners: Option<&mut Listeners<'_>>,
    (sessions, count): (&mut Recent<Ends, Session>, &mut u64),
    into: &mut Observations,
) -> Result<(), LogError> {
    let name: Arc<str> = file.into();
    let mut reader = CaptureReader::new(file, read)?;
    while let Some(packet) = reader.next_packet()? {
        *count += 1;
        match conversation::read(packet.link, packet.data, packet.original_len) {
            Ok(Frame::Conversation(flow, part)) => {
                if let Some(listeners) = listeners.as_deref_mut() {
                    listeners.hear(&packet, &flow, false);
                }
                let new = || Session {
                    low_opens: None,
                    icmp: flow.icmp,
                    names: ResolvedNames::default(),
                    sessions: 1,
                    is_over: false,
                    answered: false,
                    packets: 0,
                    bytes: 0,
                    first: packet.time,
                    last: packet.time,
                    line: packet.number,
                };
                let retire = |(ends, session)| into.add(&name, sign(&ends, &session));
                let entry = sessions.value(ends(&flow), new, retire);
                let is_first = entry.take(&flow, part, pickup);
                if let Some(listeners) = listeners.as_deref().filter(|_| is_first) {
                    entry.names.join(&listeners.names_of(flow.src, flow.dst, packet.time));
                }
                entry.packets += 1;
                entry.bytes += packet.original_len as u64;
                entry.first = entry.first.min(packet.time);
                entry.last = entry.last.max(packet.time);
            }
            // The first fragment has the ports and counts for the session.
            Ok(Frame::LaterFragment(flow)) => {
                if let Some(listeners) = listeners.as_deref_mut() {
                    listeners.hear(&packet, &flow, true);
                }
                into.remark(format!("later fragments in {file}, not counted"), 1);
            }
            Ok(Frame::Control) => {}
            Err(reason) => *into.unread.entry(format!("packets of {file}: {}", reason.describe())).or_default() += 1,
        }
        into.check()?;
    }
    Ok(())
}

fn ends(flow: &Flow) -> Ends {
    // An echo identifier is in one or both port fields, but is not a port.
    let is_ported = flow.icmp.is_none();
    let end = |address, port| (address, if is_ported { port } else { 0 });
    let (src, dst) = (end(flow.src, flow.sport), end(flow.dst, flow.dport));
    Ends { low: src.min(dst), high: src.max(dst), protocol: flow.protocol }
}

impl Session {
    /// Adds a packet, except to the counts. Returns whether the client begins a session with it, possibly once more.
    fn take(&mut self, flow: &Flow, part: Part, pickup: bool) -> bool {
        let is_ported = flow.icmp.is_none();
        let from_low = if is_ported { (flow.src, flow.sport) <= (flow.dst, flow.dport) } else { flow.src <= flow.dst };
        match part {
            Part::Opens => {
                if self.is_over {
                    self.sessions += 1;
                    self.is_over = false;
                    self.low_opens = None;
                }
                self.icmp = flow.icmp;
                self.low_opens.get_or_insert(from_low);
            }
            Part::Answers => {
                self.low_opens.get_or_insert(!from_low);
            }
            Part::Unmarked => {
                self.low_opens.get_or_insert(from_low);
            }
            Part::Continues | Part::Ends if pickup => {
                self.low_opens.get_or_insert(from_low);
            }
            Part::Continues | Part::Ends => {}
        }
        self.is_over |= part == Part::Ends;
        self.answered |= self.low_opens == Some(!from_low);
        part == Part::Opens || (self.packets == 0 && self.low_opens == Some(from_low))
    }
}

fn sign(ends: &Ends, session: &Session) -> Sign {
    let (client, server) = if session.low_opens == Some(false) { (ends.high, ends.low) } else { (ends.low, ends.high) };
    let has_ports = matches!(ends.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
    let icmp = session.icmp.map(|(kind, code)| match kind {
        // Only the reply to an echo was captured (RFC 792, RFC 4443).
        0 => (8, code),
        129 => (128, code),
        _ => (kind, code),
    });
    Sign {
        conversation: Conversation {
            from: SeenEnd::at(client.0),
            to: SeenEnd::at(server.0),
            protocol: Some(ends.protocol),
            port: has_ports.then_some(server.1),
            icmp,
            service: None,
            missing: session.low_opens.is_none().then_some(Missing::Opener),
        },
        client_port: has_ports.then_some(client.1),
        said: Said::default(),
        names: session.names.clone(),
        sessions: session.sessions,
        answered: session.answered,
        ends: false,
        counts: Some((session.packets, session.bytes)),
        times: (Some(session.first), Some(session.last)),
        line: session.line,
    }
}
