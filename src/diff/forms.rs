//! The forms of the answer.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::because::Because;
use super::flows::{FlowChange, Flows};
use super::{Change, Count, OnlyIn};
use crate::args::DiffFormat;
use crate::output::{printable, some_of};
use crate::sarif;

/// Ends of a side that people are told.
const SHOWN: usize = 6;

/// Writes changes as they come.
pub(super) struct Form<'a, W> {
    format: DiffFormat,
    out: &'a mut W,
    first: bool,
    /// What text and Markdown tell at the end: lines that differ in the family alone are one.
    rows: BTreeMap<Row, Vec<&'static str>>,
    sarif: Vec<Value>,
}

/// A line for people; what is newly allowed comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    is_denied: bool,
    from: String,
    to: String,
    service: String,
    because: String,
}

impl Row {
    fn of(change: &Change<'_>) -> Self {
        let except = change.except.map_or_else(String::new, |except| format!(" (not its {except})"));
        Self {
            is_denied: !change.is_allowed(),
            from: shortened(change.from),
            to: format!("{}{except}", shortened(change.to)),
            service: service(change),
            because: printable(&told(change.because)),
        }
    }

    fn word(&self) -> &'static str {
        if self.is_denied { "newly denied" } else { "newly allowed" }
    }
}

/// A side's ends, the first of them where there are more than a person reads. JSON has all.
fn shortened(ends: &str) -> String {
    some_of(&ends.split(", ").collect::<Vec<_>>(), SHOWN)
}

/// `TCP 80, 443-500`, `TCP *`, `other protocols`.
fn service(change: &Change<'_>) -> String {
    if change.protocol == "other" {
        return "other protocols".into();
    }
    let port = |&(first, last): &(u16, u16)| match (first, last) {
        (0, u16::MAX) => "*".into(),
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    let ports: Vec<String> = change.ports.iter().map(port).collect();
    format!("{} {}", change.protocol, ports.join(", "))
}

/// `before: ..; now: ..`.
fn told(because: &Because) -> String {
    let all = |reasons: &[super::because::Reason]| {
        reasons.iter().map(super::because::Reason::told).collect::<Vec<_>>().join(" and ")
    };
    format!("before: {}; now: {}", all(&because.before), all(&because.after))
}

impl<'a, W: Write> Form<'a, W> {
    pub(super) fn new(format: DiffFormat, out: &'a mut W) -> Self {
        Self { format, out, first: true, rows: BTreeMap::new(), sarif: Vec::new() }
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
            DiffFormat::Text | DiffFormat::Markdown => {
                let families = self.rows.entry(Row::of(change)).or_default();
                if !families.contains(&change.family) {
                    families.push(change.family);
                }
            }
            DiffFormat::Sarif => self.sarif.push(sarif_result(change)),
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
                let rules = [("newly-allowed", ""), ("newly-denied", "")];
                sarif::write("bulkhead diff", &rules, &std::mem::take(&mut self.sarif), self.out)
            }
            DiffFormat::Text => self.text(count, flows),
            DiffFormat::Markdown => self.markdown(count, only, flows),
        }
    }

    fn text(&mut self, count: &Count, flows: Option<&Flows>) -> io::Result<()> {
        for (row, families) in &self.rows {
            let sign = if row.is_denied { '-' } else { '+' };
            let Row { from, to, service, because, .. } = row;
            writeln!(self.out, "{sign} {from} -> {to}  {service} ({})", families.join(", "))?;
            writeln!(self.out, "    {}; {because}", row.word())?;
        }
        writeln!(self.out, "{}", summary(&self.rows, count))?;
        flows.map_or(Ok(()), |flows| self.flows(flows, ""))
    }

    /// What becomes of real flows, a line each.
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
        for (row, families) in &self.rows {
            let Row { from, to, service, because, .. } = row;
            let cells = [row.word(), from, to, service, &families.join(", "), because].map(cell);
            writeln!(self.out, "| {} |", cells.join(" | "))?;
        }
        for (names, state) in [(&only.only_before, "old"), (&only.only_after, "new")] {
            if !names.is_empty() {
                writeln!(self.out, "\nIn the {state} state only, not compared: {}", cell(&names.join(", ")))?;
            }
        }
        flows.map_or(Ok(()), |flows| self.flows(flows, "* "))
    }
}

fn summary(rows: &BTreeMap<Row, Vec<&'static str>>, count: &Count) -> String {
    if count.allowed + count.denied == 0 {
        return "no difference".into();
    }
    let denied = rows.keys().filter(|row| row.is_denied).count();
    format!("{} newly allowed, {denied} newly denied", rows.len() - denied)
}

/// One result, at the rule that decides now, else at the one that did.
fn sarif_result(change: &Change<'_>) -> Value {
    let row = Row::of(change);
    let (rule, level) = if row.is_denied { ("newly-denied", "note") } else { ("newly-allowed", "warning") };
    let text =
        format!("{} -> {} {} ({}) is {}; {}", row.from, row.to, row.service, change.family, row.word(), row.because);
    let reasons = change.because.after.iter().chain(&change.because.before);
    let place = reasons.flat_map(|reason| &reason.at).next();
    let locations: Vec<Value> = place.map(|place| sarif::location(&place.file, place.line)).into_iter().collect();
    json!({ "ruleId": rule, "level": level, "message": { "text": text }, "locations": locations })
}
