//! The output formats of `bulkhead diff`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use bulkhead_control::reachability::Protocol;
use serde_json::{Value, json};

use super::because::{Because, Place};
use super::flows::{FlowChange, Flows};
use super::{Change, Count, NAMED, OnlyIn};
use crate::args::DiffFormat;
use crate::output::{printable, some_of};
use crate::sarif;

/// Maximum number of ends listed per side in text.
const SHOWN: usize = 6;

/// Maximum number of rows in Markdown. A pull request comment holds about 65,000 characters.
const MARKDOWN_ROWS: usize = 200;

/// Writes changes as they arrive.
pub(super) struct Form<'a, W> {
    format: DiffFormat,
    out: &'a mut W,
    first: bool,
    /// Rows for people, written at the end. Changes that differ only in family or service share a row.
    rows: BTreeMap<Row, Services>,
}

/// Services of a row, by family.
#[derive(Debug, Default)]
struct Services {
    by_family: BTreeMap<&'static str, Vec<(Protocol, String)>>,
    /// Position of the rule that decides now, else of the one that decided before. `None` if neither is in a file.
    at: Option<Place>,
}

/// A line of text or Markdown. Newly allowed connections are sorted first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    is_denied: bool,
    from: String,
    to: String,
    because: String,
}

impl Row {
    fn of(change: &Change<'_>) -> Self {
        let except = change.except.map_or_else(String::new, |except| format!(" (not its {except})"));
        let [from, to] = change.told.map(shortened);
        Self {
            is_denied: !change.is_allowed(),
            from,
            to: format!("{to}{except}"),
            because: printable(&told(change.because)),
        }
    }

    fn word(&self) -> &'static str {
        if self.is_denied { "newly denied" } else { "newly allowed" }
    }
}

impl Services {
    fn add(&mut self, change: &Change<'_>) {
        let services = self.by_family.entry(change.family).or_default();
        let service = (change.kind, service(change));
        // Long lists may be equal after shortening, and share a row then.
        if !services.contains(&service) {
            services.push(service);
        }
        let reasons = change.because.after.iter().chain(&change.because.before);
        let place = || reasons.flat_map(|reason| &reason.at).next().cloned();
        self.at = self.at.take().or_else(place);
    }

    /// Returns the services as text, each with its address families: `TCP 80` and `IPv4, IPv6`.
    fn told(&self) -> Vec<(String, String)> {
        let mut told: Vec<(String, String)> = Vec::new();
        for (family, services) in &self.by_family {
            let services = together(services);
            match told.iter_mut().find(|(known, _)| *known == services) {
                Some((_, families)) => families.push_str(&format!(", {family}")),
                None => told.push((services, (*family).to_owned())),
            }
        }
        told
    }
}

/// Joins services: `TCP 80, 443-500; UDP *`, or `everything` for all ports of all protocols.
fn together(services: &[(Protocol, String)]) -> String {
    let whole = |protocol: Protocol| match protocol {
        Protocol::Other => OTHER.to_owned(),
        _ => format!("{} *", protocol.name()),
    };
    let is_all = Protocol::ALL.into_iter().all(|protocol| services.iter().any(|(_, text)| *text == whole(protocol)));
    match is_all {
        true => "everything".to_owned(),
        false => services.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("; "),
    }
}

/// Returns the first [`SHOWN`] ends of a side, and the number of the rest. JSON has all.
fn shortened(ends: &[String]) -> String {
    some_of(&ends.iter().map(String::as_str).collect::<Vec<_>>(), SHOWN)
}

/// Printed name of protocols without ports.
const OTHER: &str = "other protocols";

/// Returns a change's protocol and ports: `TCP 80, 443-500`, `TCP *`, `other protocols`.
fn service(change: &Change<'_>) -> String {
    if change.kind == Protocol::Other {
        return match change.except_protocols {
            [] => OTHER.into(),
            except => format!("{OTHER} except {}", except.join(", ")),
        };
    }
    if let Protocol::Number(_) = change.kind {
        return messages(change);
    }
    let port = |&(first, last): &(u16, u16)| match (first, last) {
        (0, u16::MAX) => "*".into(),
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    let ports: Vec<String> = change.ports.iter().map(port).collect();
    format!("{} {}", change.protocol, ports.join(", "))
}

/// Returns a protocol without ports, and for ICMP the types and codes: `ICMP *`, `ICMP 8, 13:0, 16-18`, `protocol 47`.
fn messages(change: &Change<'_>) -> String {
    if !change.kind.is_icmp() {
        return change.protocol.to_string();
    }
    let message = |&(first, last): &(u16, u16)| {
        let ([kind, code], [last_kind, last_code]) = (first.to_be_bytes(), last.to_be_bytes());
        match (code, last_code) {
            _ if (first, last) == (0, u16::MAX) => "*".to_owned(),
            (0, u8::MAX) if kind == last_kind => kind.to_string(),
            (0, u8::MAX) => format!("{kind}-{last_kind}"),
            _ if first == last => format!("{kind}:{code}"),
            _ => format!("{kind}:{code}-{last_kind}:{last_code}"),
        }
    };
    let messages: Vec<String> = change.ports.iter().map(message).collect();
    format!("{} {}", change.protocol, messages.join(", "))
}

/// Returns the reasons of both states: `before: ..; now: ..`.
fn told(because: &Because) -> String {
    let all = |reasons: &[super::because::Reason]| {
        reasons.iter().map(super::because::Reason::told).collect::<Vec<_>>().join(" and ")
    };
    format!("before: {}; now: {}", all(&because.before), all(&because.after))
}

impl<'a, W: Write> Form<'a, W> {
    pub(super) fn new(format: DiffFormat, out: &'a mut W) -> Self {
        Self { format, out, first: true, rows: BTreeMap::new() }
    }

    pub(super) fn begin(&mut self) -> io::Result<()> {
        match self.format {
            DiffFormat::Json => write!(self.out, "{{\"changes\":["),
            DiffFormat::Text | DiffFormat::Markdown | DiffFormat::Sarif => Ok(()),
        }
    }

    pub(super) fn change(&mut self, change: &Change<'_>) -> io::Result<()> {
        match self.format {
            DiffFormat::Json => {
                writeln!(self.out, "{}", if self.first { "" } else { "," })?;
                serde_json::to_writer(&mut *self.out, change)?;
                self.first = false;
            }
            DiffFormat::Text | DiffFormat::Markdown | DiffFormat::Sarif => {
                self.rows.entry(Row::of(change)).or_default().add(change);
            }
        }
        Ok(())
    }

    pub(super) fn end(&mut self, count: &Count, only: &OnlyIn, flows: Option<&Flows>) -> io::Result<()> {
        match self.format {
            DiffFormat::Json => {
                write!(self.out, "\n],\"only_before\":")?;
                serde_json::to_writer(&mut *self.out, &only.only_before)?;
                write!(self.out, ",\"only_after\":")?;
                serde_json::to_writer(&mut *self.out, &only.only_after)?;
                if let Some(flows) = flows {
                    write!(self.out, ",\"flows\":")?;
                    serde_json::to_writer(&mut *self.out, flows)?;
                }
                writeln!(self.out, "}}")
            }
            DiffFormat::Sarif => {
                let results = self.rows.iter().flat_map(|(row, services)| sarif_results(row, services));
                let flows = flows.into_iter().flat_map(|flows| &flows.changed).map(sarif_flow);
                let results: Vec<Value> = results.chain(flows).collect();
                sarif::write("bulkhead diff", &RULES, &results, self.out)
            }
            DiffFormat::Text => self.text(count, flows),
            DiffFormat::Markdown => self.markdown(count, only, flows),
        }
    }

    fn text(&mut self, count: &Count, flows: Option<&Flows>) -> io::Result<()> {
        for (row, services) in &self.rows {
            let sign = if row.is_denied { '-' } else { '+' };
            let Row { from, to, because, .. } = row;
            for (service, families) in services.told() {
                writeln!(self.out, "{sign} {from} -> {to}  {service} ({families})")?;
            }
            writeln!(self.out, "    {}; {because}", row.word())?;
        }
        writeln!(self.out, "{}", summary(&self.rows, count))?;
        flows.map_or(Ok(()), |flows| self.flows(flows, ""))
    }

    /// Writes the effect on observed flows, one line each.
    fn flows(&mut self, flows: &Flows, bullet: &str) -> io::Result<()> {
        writeln!(self.out)?;
        for flow in &flows.changed {
            let word = if flow.is_cut() { "cut" } else { "opened" };
            let counted =
                |count: Option<u64>, of: &str| count.map_or_else(String::new, |count| format!(", {count} {of}"));
            let (packets, bytes) = (counted(flow.packets, "packets"), counted(flow.bytes, "bytes"));
            let ends = printable(&format!("{} -> {}", flow.from, flow.to));
            let why = printable(&told(&flow.because));
            let FlowChange { service, sessions, .. } = flow;
            writeln!(self.out, "{bullet}{word}: {ends}  {service}: {sessions} sessions{packets}{bytes}; {why}")?;
        }
        for (why, sessions) in &flows.unknown {
            writeln!(self.out, "{bullet}unknown: {sessions} sessions: {}", printable(why))?;
        }
        let sessions = |cut: bool| -> u64 {
            flows.changed.iter().filter(|flow| flow.is_cut() == cut).map(|flow| flow.sessions).sum()
        };
        let unknown: u64 = flows.unknown.values().sum();
        let (cut, opened, same) = (sessions(true), sessions(false), flows.same);
        writeln!(self.out, "{bullet}sessions seen: {cut} cut, {opened} opened, {same} as before, {unknown} unknown")
    }

    fn markdown(&mut self, count: &Count, only: &OnlyIn, flows: Option<&Flows>) -> io::Result<()> {
        writeln!(self.out, "### Reachability\n\n{}", summary(&self.rows, count))?;
        if !self.rows.is_empty() {
            writeln!(self.out, "\n| | From | To | Service | Family | Because |\n|-|-|-|-|-|-|")?;
        }
        let cell = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace('*', "\\*").replace('<', "&lt;");
        for (row, services) in self.rows.iter().take(MARKDOWN_ROWS) {
            let Row { from, to, because, .. } = row;
            for (service, families) in services.told() {
                let cells = [row.word(), from, to, &service, &families, because].map(cell);
                writeln!(self.out, "| {} |", cells.join(" | "))?;
            }
        }
        if let Some(more) = self.rows.len().checked_sub(MARKDOWN_ROWS).filter(|&more| more > 0) {
            writeln!(self.out, "\nand {more} more; `-o text` and `-o json` have all")?;
        }
        for (names, state) in [(&only.only_before, "old"), (&only.only_after, "new")] {
            if !names.is_empty() {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                writeln!(self.out, "\nIn the {state} state only, not compared: {}", cell(&some_of(&names, NAMED)))?;
            }
        }
        flows.map_or(Ok(()), |flows| self.flows(flows, "* "))
    }
}

fn summary(rows: &BTreeMap<Row, Services>, count: &Count) -> String {
    if count.allowed + count.denied == 0 {
        return "no difference".into();
    }
    let denied = rows.keys().filter(|row| row.is_denied).count();
    format!("{} newly allowed, {denied} newly denied", rows.len() - denied)
}

/// The kinds of SARIF results: id and description of each.
const RULES: [(&str, &str); 4] = [
    ("newly-allowed", "Connections get through that did not before"),
    ("newly-denied", "Connections no longer get through"),
    ("flow-cut", "Connections that were seen would no longer get through"),
    ("flow-opened", "Connections that were seen would get through now"),
];

/// Returns one result per printed line, at the rule that decides now, else at the one that decided before.
fn sarif_results(row: &Row, services: &Services) -> Vec<Value> {
    let (rule, level) = if row.is_denied { ("newly-denied", "note") } else { ("newly-allowed", "warning") };
    let result = |(service, families): (String, String)| {
        let Row { from, to, because, .. } = row;
        let text = format!("{from} -> {to} {service} ({families}) is {}; {because}", row.word());
        sarif_result(rule, level, &text, services.at.as_ref())
    };
    services.told().into_iter().map(result).collect()
}

/// Returns a SARIF warning about an observed flow that the change cuts or opens.
fn sarif_flow(flow: &FlowChange) -> Value {
    let (rule, word) = if flow.is_cut() { ("flow-cut", "cut") } else { ("flow-opened", "opened") };
    let FlowChange { from, to, service, sessions, because, .. } = flow;
    let text = printable(&format!("{from} -> {to} {service}: {sessions} seen sessions are {word}; {}", told(because)));
    let place = because.after.iter().chain(&because.before).flat_map(|reason| &reason.at).next();
    sarif_result(rule, "warning", &text, place)
}

fn sarif_result(rule: &str, level: &str, text: &str, place: Option<&Place>) -> Value {
    let locations: Vec<Value> = place.map(|place| sarif::location(&place.file, place.line)).into_iter().collect();
    json!({ "ruleId": rule, "level": level, "message": { "text": text }, "locations": locations })
}
