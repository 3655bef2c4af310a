//! Finds sessions and dropped packets of a connection around a time.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_dataplane::{DropReason, Flow};
use serde::Serialize;

use super::time::{clock, rfc3339};
use crate::args::Why;
use crate::journal::{History, LeftOut, Verdict};
use bulkhead_answers::args::EndName;
use bulkhead_answers::destination::{DestinationNames, KnownName};
use bulkhead_answers::explain::Answer;
use bulkhead_answers::output::{end, flag_names, printable};
use bulkhead_answers::run::KnownNames;

/// Maximum number of verdicts printed: about a screen.
const MOST_SHOWN: usize = 20;

/// Sessions and dropped packets that the journal has of the connection, around the requested time.
#[derive(Serialize)]
pub(super) struct Seen {
    from: String,
    to: String,
    #[serde(skip)]
    window: (u64, u64),
    /// The first verdicts on these ends and this port.
    verdicts: Vec<Row>,
    /// Number of verdicts omitted from `verdicts`.
    more: usize,
    /// Sessions between these ends at this port.
    sessions: u64,
    /// Dropped packets between these ends at this port.
    dropped: u64,
    /// Packets dropped from the client's port, or from an unknown one, that may belong to the connection.
    unclear: Vec<Row>,
    more_unclear: usize,
    left_out: LeftOut,
    /// The client's last DNS session before the first verdict with domain names. `None` without one in the requested time before it.
    asked: Option<AskedDns>,
}

/// A DNS session of the client.
#[derive(Serialize)]
struct AskedDns {
    time: String,
    #[serde(skip)]
    at: u64,
    /// Address and port of the server that the client used.
    server: String,
}

/// A verdict, as printed.
#[derive(Serialize)]
struct Row {
    time: String,
    #[serde(skip)]
    at: u64,
    /// `FORWARDED`, `DROPPED` or `AUDIT`, as in `monitor`.
    verdict: &'static str,
    from: Option<String>,
    to: Option<String>,
    /// Protocol and flags: `TCP SYN`.
    packet: String,
    /// Length of the packet in bytes.
    length: u32,
    #[serde(rename = "in")]
    in_port: Option<String>,
    out: Option<String>,
    reason: Option<String>,
    means: Option<&'static str>,
    table: Option<String>,
    rule: Option<u32>,
    origin: Option<String>,
    audited_by: Option<String>,
    /// The destination's domain names. `None` if they do not matter for the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<DestinationNames>,
    #[serde(skip)]
    destination: Option<IpAddr>,
    /// Number of packets with this verdict.
    count: u64,
    generation: u64,
}

impl Row {
    fn new(verdict: &Verdict) -> Self {
        let text = |name: &Option<Arc<str>>| name.as_ref().map(ToString::to_string);
        let Verdict { flow, translated, reason, audited, .. } = verdict;
        let reason_of = |name: &str| DropReason::ALL.iter().find(|known| known.name() == name);
        // Policy applies to the backend, not to the Service's address.
        let to = translated.map(|sent| end(sent.dst, sent.dport)).or(flow.map(|flow| end(flow.dst, flow.dport)));
        Self {
            time: rfc3339(verdict.time),
            at: verdict.time,
            verdict: match (reason, audited) {
                (Some(_), _) => "DROPPED",
                (None, Some(_)) => "AUDIT",
                (None, None) => "FORWARDED",
            },
            from: flow.map(|flow| end(flow.src, flow.sport)),
            to,
            packet: packet(flow.as_ref(), verdict.tcp_flags),
            length: verdict.length,
            in_port: text(&verdict.in_port),
            out: text(&verdict.out_port),
            reason: text(reason),
            means: reason.as_deref().and_then(reason_of).map(|reason| reason.describe()),
            table: text(&verdict.table),
            rule: verdict.rule,
            origin: text(&verdict.origin),
            audited_by: text(audited),
            names: verdict.names.clone(),
            destination: destination(verdict),
            count: verdict.count,
            generation: verdict.generation,
        }
    }

    fn write(&self, about: u64, out: &mut impl Write) -> io::Result<()> {
        let name = |text: &Option<String>, none: &str| text.as_deref().map_or_else(|| none.to_owned(), printable);
        write!(out, "   {}  {:<9}  ", clock(self.at, about), self.verdict)?;
        if self.from.is_some() {
            write!(out, "{} -> {}  {}", name(&self.from, ""), name(&self.to, ""), self.packet)?;
        } else {
            write!(out, "in from {}", name(&self.in_port, "an unknown port"))?;
        }
        for beside in [&self.reason, &self.origin].into_iter().flatten() {
            write!(out, "  {}", printable(beside))?;
        }
        if let Some(origin) = &self.audited_by {
            write!(out, "  not enforced, or it would be denied: {}", printable(origin))?;
        }
        if let (Some(names), Some(destination)) = (&self.names, self.destination) {
            write!(out, "  {}", names.words(destination, self.at))?;
        }
        if self.count > 1 {
            write!(out, "  x{}", self.count)?;
        }
        writeln!(out)
    }
}

/// The earliest rows, up to the printed maximum, because a journal may hold a gigabyte of verdicts.
#[derive(Default)]
struct First {
    rows: Vec<Row>,
    /// Number of verdicts added, including those not kept in `rows`.
    count: usize,
}

impl First {
    /// Adds a row. Verdicts of several workers are not in order, so it may be the earliest.
    fn take(&mut self, verdict: &Verdict) {
        self.count += 1;
        let place = self.rows.partition_point(|row| row.at <= verdict.time);
        if place < MOST_SHOWN {
            self.rows.truncate(MOST_SHOWN - 1);
            self.rows.insert(place, Row::new(verdict));
        }
    }

    const fn more(&self) -> usize {
        self.count - self.rows.len()
    }
}

/// Returns the protocol and the TCP flags: `TCP SYN`.
fn packet(flow: Option<&Flow>, tcp_flags: Option<u8>) -> String {
    let Some(flow) = flow else { return "unknown".into() };
    match (flow.protocol, flow.icmp) {
        (protocol::TCP, _) => format!("TCP {}", flag_names(tcp_flags.unwrap_or(0)).join(",")).trim_end().to_owned(),
        (protocol::UDP, _) => "UDP".into(),
        (protocol::SCTP, _) => "SCTP".into(),
        (protocol::ICMP, Some((kind, code))) => format!("ICMP type {kind} code {code}"),
        (protocol::ICMPV6, Some((kind, code))) => format!("ICMPv6 type {kind} code {code}"),
        (number, _) => format!("protocol {number}"),
    }
}

/// The ends of the connection, to compare verdicts with.
struct Ends {
    from: BTreeSet<IpAddr>,
    to: BTreeSet<(IpAddr, u16)>,
    protocol: u8,
    /// Name of the vswitch's port of the client. `None` if unknown.
    port: Option<String>,
}

/// Whether a verdict is on the connection in question.
enum Concern {
    It,
    MayBe,
    No,
}

impl Ends {
    fn concern(&self, verdict: &Verdict) -> Concern {
        let is_senders = self.port.as_deref().is_some_and(|port| verdict.in_port.as_deref() == Some(port));
        let Some(flow) = verdict.flow else {
            // If the port is known, only the client's matters.
            return if is_senders || verdict.in_port.is_none() { Concern::MayBe } else { Concern::No };
        };
        let goes_to = |address, port| self.to.contains(&(address, port)) && flow.protocol == self.protocol;
        let arrives =
            goes_to(flow.dst, flow.dport) || verdict.translated.is_some_and(|sent| goes_to(sent.dst, sent.dport));
        let is_own = self.from.contains(&flow.src);
        let is_answer = flow.protocol == self.protocol
            && self.to.contains(&(flow.src, flow.sport))
            && self.from.contains(&flow.dst);
        // Later fragments and truncated packets have no ports.
        let has_ports = (flow.sport, flow.dport) != (0, 0)
            && matches!(flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        match verdict.reason.is_some() {
            _ if arrives && is_own => Concern::It,
            true if is_answer => Concern::It,
            // Spoofed, from another of its addresses, or without ports (ping, fragment). Its other connections do not matter.
            true if is_senders && !(is_own && has_ports) => Concern::MayBe,
            _ => Concern::No,
        }
    }
}

/// Returns the destination that policy judged: behind a Service, the backend. `None` without a flow.
fn destination(verdict: &Verdict) -> Option<IpAddr> {
    verdict.translated.map(|sent| sent.dst).or(verdict.flow.map(|flow| flow.dst))
}

/// Returns the last DNS session of these clients from `since` to `until`, in nanoseconds since 1970. `None` without one.
fn asked(history: &History<'_>, clients: &BTreeSet<IpAddr>, (since, until): (u64, u64)) -> Option<AskedDns> {
    let mut last: Option<(u64, Flow)> = None;
    history.verdicts(since, until, |verdict| {
        let is_dns = |flow: &Flow| {
            flow.dport == 53 && matches!(flow.protocol, protocol::UDP | protocol::TCP) && clients.contains(&flow.src)
        };
        if let Some(flow) = verdict.flow.filter(is_dns).filter(|_| verdict.reason.is_none())
            && last.is_none_or(|(time, _)| time < verdict.time)
        {
            last = Some((verdict.time, flow));
        }
    });
    last.map(|(at, flow)| AskedDns { time: rfc3339(at), at, server: end(flow.dst, flow.dport) })
}

/// Returns the journal's verdicts on the connection around `at`, in nanoseconds since 1970, and the destination's domain names in them that
/// were open to new connections at that time, or may have been.
pub(super) fn find(history: &History<'_>, args: &Why, answer: &Answer, at: u64) -> (Seen, KnownNames) {
    let around = u64::try_from(args.around.as_nanos()).unwrap_or(u64::MAX);
    let window = (at.saturating_sub(around), at.saturating_add(around));
    let (from, to) = answer.ends();
    let port = if let EndName::Pod(name) = &args.asked.from { Some(name.to_string()) } else { None };
    let ends = Ends { from, to, protocol: answer.transport(), port };
    let mut seen = Seen {
        from: rfc3339(window.0),
        to: rfc3339(window.1),
        window,
        verdicts: Vec::new(),
        more: 0,
        sessions: 0,
        dropped: 0,
        unclear: Vec::new(),
        more_unclear: 0,
        left_out: history.left_out(window.0, window.1),
        asked: None,
    };
    let (mut own, mut unclear) = (First::default(), First::default());
    let (mut known, mut first_named) = (BTreeSet::new(), None);
    history.verdicts(window.0, window.1, |verdict| match ends.concern(&verdict) {
        Concern::It => {
            let of = if verdict.reason.is_some() { &mut seen.dropped } else { &mut seen.sessions };
            *of = of.saturating_add(verdict.count);
            own.take(&verdict);
            if let (Some(names), Some(destination)) = (&verdict.names, destination(&verdict)) {
                first_named = Some(first_named.map_or(verdict.time, |first: u64| first.min(verdict.time)));
                let is_open = |name: &&KnownName| name.until.is_none_or(|until| until > at);
                let open = names.names().iter().filter(is_open).take(MOST_SHOWN.saturating_sub(known.len()));
                known.extend(open.map(|name| (Arc::clone(&name.name), destination)));
            }
        }
        Concern::MayBe => unclear.take(&verdict),
        Concern::No => {}
    });
    (seen.more, seen.more_unclear) = (own.more(), unclear.more());
    (seen.verdicts, seen.unclear) = (own.rows, unclear.rows);
    seen.asked = first_named.and_then(|first| asked(history, &ends.from, (first.saturating_sub(around), first)));
    let mut names = KnownNames::default();
    known.into_iter().for_each(|(name, address)| names.insert(&name, address));
    (seen, names)
}

impl Seen {
    pub(super) fn write(&self, about: u64, out: &mut impl Write) -> io::Result<()> {
        let (from, to) = (clock(self.window.0, about), clock(self.window.1, about));
        writeln!(out, "\nSeen from {from} to {to}:")?;
        if self.verdicts.is_empty() {
            writeln!(out, "   no new sessions and no drops between these ends")?;
        }
        self.verdicts.iter().try_for_each(|row| row.write(about, out))?;
        if self.more > 0 {
            writeln!(
                out,
                "   and {} more; in total {} sessions and {} dropped packets",
                self.more, self.sessions, self.dropped
            )?;
        }
        if let Some(AskedDns { at, server, .. }) = &self.asked {
            writeln!(out, "   the client's last DNS session before: asked {server} at {}", clock(*at, about))?;
        }
        if !self.unclear.is_empty() {
            writeln!(out, "   also dropped, from the sender's port or an unknown port:")?;
            self.unclear.iter().try_for_each(|row| row.write(about, out))?;
        }
        if self.more_unclear > 0 {
            writeln!(out, "   and {} more", self.more_unclear)?;
        }
        let LeftOut { sessions, dropped, unheard, .. } = self.left_out;
        if self.left_out.total() > 0 {
            writeln!(
                out,
                "   not recorded of this time, of all ends: {sessions} sessions and {dropped} dropped packets over the journal's rate, \
                 {unheard} for which there was no room"
            )?;
        }
        Ok(())
    }
}
