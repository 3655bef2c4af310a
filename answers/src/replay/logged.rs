//! Judges the flows of logs with the vswitches of all nodes. Prints a table, or a line of JSON per flow.

use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use bulkhead_control::object::PodName;
use serde::Serialize;
use serde_json::json;

use super::{FILE_BUFFER, open, rfc3339};
use crate::args::{Format, Replay};
use crate::flows::verdict::{Fate, FlowVerdict, Judge};
use crate::flows::{self, Listeners, Observations, ObservedFlow, SeenEnd};
use crate::output::{self, Columns};
use crate::progress::{self, Unit};
use crate::run::{self, Attribution, Input};

/// Maximum number of rows in the table. JSON has all.
const MAX_ROWS: usize = 1_000;

/// Maximum number of kinds of unread lines, and of notes on sources, that are printed.
const MAX_TOLD: usize = 10;

/// Judges the logs. Prints nothing if a log cannot be read to its end.
pub(super) fn run(args: &Replay) -> anyhow::Result<()> {
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let (pipeline, services) = run::load_with_services(&input, None, true)?;
    let mut seen = Observations::new(args.state.lenient);
    read([], &args.flows, (false, None), &mut seen)?;
    let flows = flows_of(&mut seen)?;
    let mut judge = Judge::new(&pipeline, services, settings, args.state.strictness());
    let mut out = BufWriter::with_capacity(FILE_BUFFER, output::stdout());
    let mut totals = Totals::default();
    let mut table = Columns::new(&["SESSIONS", "FROM", "TO", "SERVICE", "VERDICT", "LOGGED", "WHY"]);
    let unread: u64 = seen.unread.values().sum();
    progress::step_of("judging sessions", flows.len() as u64, Unit::Count);
    for (at, flow) in flows.iter().enumerate() {
        progress::advance(1);
        let verdict = judge.judge(&flow.conversation)?;
        totals.count(flow, &verdict.fate);
        match args.output {
            Format::Json => {
                serde_json::to_writer(&mut out, &line(at, flow, &verdict))?;
                out.write_all(b"\n")?;
            }
            Format::Text if at < MAX_ROWS => table.row(row(flow, &verdict)),
            Format::Text => {}
        }
    }
    match args.output {
        Format::Json => {
            serde_json::to_writer(&mut out, &json!({ "summary": { "flows": totals, "unread": unread } }))?;
            out.write_all(b"\n")?;
        }
        Format::Text => {
            table.write(&mut out)?;
            if let Some(more) = flows.len().checked_sub(MAX_ROWS).filter(|&more| more > 0) {
                writeln!(out, "... and {more} flows beyond the first {MAX_ROWS}")?;
            }
            totals.write(flows.len(), unread, &mut out)?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Reads captures, then flow logs. `-` is standard input. `how` is as for [`read_capture`].
///
/// # Errors
/// [`LogError`](flows::LogError) if one of them cannot be opened or read. Those before it were read.
pub fn read<'a>(
    captures: impl IntoIterator<Item = &'a PathBuf>,
    logs: &[PathBuf],
    (pickup, mut listeners): How<'_, '_>,
    into: &mut Observations,
) -> anyhow::Result<()> {
    for path in captures {
        read_capture(path, (pickup, listeners.as_deref_mut()), into)?;
    }
    for path in logs {
        flows::read(&path.display().to_string(), open(path, "flow log")?, into)?;
    }
    Ok(())
}

/// How captures are read: whether the sender of the first packet of a TCP connection is taken as its client if the start is missing, and
/// what learns the names of servers from DNS.
pub type How<'a, 'b> = (bool, Option<&'a mut Listeners<'b>>);

/// Reads the sessions of a capture.
///
/// # Errors
/// If it cannot be opened or is damaged.
pub fn read_capture(path: &Path, (pickup, listeners): How<'_, '_>, into: &mut Observations) -> anyhow::Result<()> {
    let reader = open(path, "capture")?;
    flows::from_capture(&path.display().to_string(), reader, pickup, listeners, into)?;
    Ok(())
}

/// Takes out the flows. Prints what was not read, and losses that sources report, to standard error.
///
/// # Errors
/// [`LogError::TooMany`](flows::LogError::TooMany) if there are more than [`flows::MAX_FLOWS`] flows and `seen` was made without `lenient`.
pub fn flows_of(seen: &mut Observations) -> anyhow::Result<Vec<ObservedFlow>> {
    let flows = seen.flows()?;
    for (what, count) in seen.remarks.iter().take(MAX_TOLD) {
        output::note(&format!("{count} {}", output::printable(what)));
    }
    for (what, count) in seen.unread.iter().take(MAX_TOLD) {
        output::warn(&format!("not read: {count} times: {}", output::printable(what)));
    }
    let more: u64 = seen.unread.values().skip(MAX_TOLD).sum();
    if more > 0 {
        output::warn(&format!("not read: {more} more, for other reasons"));
    }
    Ok(flows)
}

#[derive(Serialize)]
struct Line<'a> {
    flow: usize,
    from: EndLine<'a>,
    to: EndLine<'a>,
    protocol: Option<u8>,
    port: Option<u16>,
    service_address: Option<SocketAddr>,
    sessions: u64,
    packets: Option<u64>,
    bytes: Option<u64>,
    first: Option<String>,
    last: Option<String>,
    logged: Option<&'a str>,
    verdict: &'static str,
    /// Drop reason. `None` if the flow is not dropped.
    reason: Option<&'static str>,
    /// Why the verdict is unknown. `None` if it is known.
    unknown: Option<&'a str>,
    #[serde(flatten)]
    attribution: Attribution,
    service: Option<&'a str>,
    /// Audited policies that would deny the flow, at any possible endpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audited_by: Vec<String>,
    file: &'a str,
    line: u64,
}

#[derive(Serialize)]
struct EndLine<'a> {
    address: Option<IpAddr>,
    pod: Option<&'a PodName>,
}

fn line<'a>(at: usize, flow: &'a ObservedFlow, verdict: &'a FlowVerdict) -> Line<'a> {
    let end = |end: &'a SeenEnd| EndLine { address: end.address, pod: end.pod.as_ref() };
    let ObservedFlow { conversation, said, tally, .. } = flow;
    Line {
        flow: at,
        from: end(&conversation.from),
        to: end(&conversation.to),
        protocol: conversation.protocol,
        port: conversation.port,
        service_address: conversation.service,
        sessions: tally.sessions,
        packets: tally.packets,
        bytes: tally.bytes,
        first: tally.first.map(rfc3339),
        last: tally.last.map(rfc3339),
        logged: Some(&*said.words).filter(|words| !words.is_empty()),
        verdict: verdict.fate.name(),
        reason: verdict.reason.map(|reason| reason.name()),
        unknown: if let Fate::Unknown(why) = &verdict.fate { Some(why) } else { None },
        attribution: run::attribution(verdict.origin.as_ref()),
        service: verdict.service.as_deref(),
        audited_by: verdict.audited_by.iter().map(ToString::to_string).collect(),
        file: &tally.place.file,
        line: tally.place.line,
    }
}

fn row(flow: &ObservedFlow, verdict: &FlowVerdict) -> [String; 7] {
    let ObservedFlow { conversation, said, tally, .. } = flow;
    let to = match &verdict.service {
        Some(service) => format!("{service} ({})", conversation.to),
        None => conversation.to.to_string(),
    };
    [
        tally.sessions.to_string(),
        verdict.from.clone().unwrap_or_else(|| conversation.from.to_string()),
        verdict.to.clone().filter(|_| verdict.service.is_none()).unwrap_or(to),
        conversation.service_name(),
        verdict.fate.name().to_owned(),
        if said.words.is_empty() { "-".to_owned() } else { said.words.to_string() },
        verdict.why(),
    ]
}

/// Numbers of flows and sessions by verdict.
#[derive(Default, Serialize)]
struct Totals {
    allow: u64,
    deny: u64,
    unknown: u64,
    /// Sessions that the state denies, but that were not dropped when recorded.
    cut: u64,
    /// Sessions that the state allows, but that were dropped when recorded.
    opened: u64,
}

impl Totals {
    fn count(&mut self, flow: &ObservedFlow, fate: &Fate) {
        let says = !flow.said.words.is_empty();
        match fate {
            Fate::Allow => self.allow += 1,
            Fate::Deny => self.deny += 1,
            Fate::Unknown(_) => self.unknown += 1,
        }
        self.cut += u64::from(says && !flow.said.dropped && *fate == Fate::Deny);
        self.opened += u64::from(flow.said.dropped && *fate == Fate::Allow);
    }

    fn write(&self, flows: usize, unread: u64, out: &mut impl Write) -> io::Result<()> {
        let Self { allow, deny, unknown, cut, opened } = self;
        writeln!(out, "\n{flows} flows: {allow} allowed, {deny} denied, {unknown} unknown")?;
        if *cut > 0 {
            writeln!(out, "  {cut} are denied now and were not dropped when they were logged")?;
        }
        if *opened > 0 {
            writeln!(out, "  {opened} are allowed now and were dropped when they were logged")?;
        }
        if unread > 0 {
            writeln!(out, "  {unread} lines could not be read")?;
        }
        Ok(())
    }
}
