//! The output formats of `bulkhead lint`.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::count;
use super::finding::{Also, CHECKS, Finding, Place, Severity};
use super::hits::Window;
use crate::output::{printable, some_of};
use crate::sarif;

/// All findings, and the sources of hits.
#[derive(Serialize)]
pub(super) struct Report {
    findings: Vec<Finding>,
    errors: usize,
    warnings: usize,
    notes: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hits: Vec<Window>,
}

impl Report {
    pub(super) fn new(findings: Vec<Finding>, hits: Vec<Window>) -> Self {
        let [errors, warnings, notes] =
            [Severity::Error, Severity::Warning, Severity::Note].map(|severity| count(&findings, severity));
        Self { findings, errors, warnings, notes, hits }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for finding in &self.findings {
            let place = place(finding.file.as_deref(), finding.line);
            let subject = subject(finding);
            let (severity, id) = (finding.severity.name(), finding.id);
            writeln!(out, "{}{severity}: {}: {id}", printable(&place), printable(&subject))?;
            writeln!(out, "    {}", printable(&finding.reason))?;
            also(finding, out)?;
            for Place { rule, file, line } in finding.by.iter().filter(|by| by.file.is_some()) {
                writeln!(out, "      {}{}", printable(&self::place(file.as_deref(), *line)), printable(rule))?;
            }
            writeln!(out, "    help: {}", printable(&finding.mend))?;
        }
        for window in &self.hits {
            writeln!(out, "hits: {}", printable(&window.told()))?;
        }
        let Self { errors, warnings, notes, .. } = self;
        match self.findings.len() {
            0 => writeln!(out, "nothing found"),
            all => {
                let count = |of: usize, word: &str| format!("{of} {word}{}", if of == 1 { "" } else { "s" });
                let [errors, warnings, notes] =
                    [count(*errors, "error"), count(*warnings, "warning"), count(*notes, "note")];
                let places: usize = self.findings.iter().map(|finding| finding.count).sum();
                let places = if places > all { format!(", at {places} places") } else { String::new() };
                writeln!(out, "{all} found: {errors}, {warnings}, {notes}{places}")
            }
        }
    }

    pub(super) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    pub(super) fn sarif(&self, out: &mut impl Write) -> io::Result<()> {
        let rules: Vec<(&str, &str)> = CHECKS.iter().map(|check| (check.id, check.text)).collect();
        let results: Vec<Value> = self.findings.iter().map(result).collect();
        sarif::write("bulkhead lint", &rules, &results, out)
    }
}

/// Returns the rule or policy that a finding is about: `shop/web ingress[1]`.
fn subject(finding: &Finding) -> String {
    match (finding.direction, finding.rule) {
        (Some(direction), Some(rule)) => format!("{} {direction}[{rule}]", finding.policy),
        _ => finding.policy.clone(),
    }
}

/// Maximum number of ranges of rules in one line.
const MAX_RANGES: usize = 8;

/// Writes the other places of a finding: how many, in which rules, and the first ones.
fn also(finding: &Finding, out: &mut impl Write) -> io::Result<()> {
    if finding.count == 1 {
        return Ok(());
    }
    let rules = match finding.direction {
        Some(direction) if finding.rules.len() > 1 => format!(", in {direction}[{}]", ranges(&finding.rules)),
        _ => String::new(),
    };
    let places = if finding.count == 2 { "place" } else { "places" };
    writeln!(out, "    the same at {} more {places}{rules}:", finding.count - 1)?;
    for Also { path, file, line, reason } in &finding.places {
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        writeln!(out, "      {}{}{}", printable(&place(file.as_deref(), *line)), printable(path), printable(&reason))?;
    }
    match finding.count - 1 - finding.places.len() {
        0 => Ok(()),
        more => writeln!(out, "      and {more} more"),
    }
}

/// Returns ascending numbers as ranges, such as `0-3, 7`, of which at most [`MAX_RANGES`] are named.
fn ranges(numbers: &[usize]) -> String {
    let parts: Vec<String> = numbers
        .chunk_by(|one, next| one + 1 == *next)
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    some_of(&parts.iter().map(String::as_str).collect::<Vec<_>>(), MAX_RANGES)
}

fn place(file: Option<&str>, line: Option<usize>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{file}:{line}: "),
        (Some(file), None) => format!("{file}: "),
        _ => String::new(),
    }
}

fn result(finding: &Finding) -> Value {
    let at = |file: &Option<String>, line: Option<usize>| Some(sarif::location(file.as_ref()?, line?));
    let locations: Vec<Value> = at(&finding.file, finding.line).into_iter().collect();
    let places = finding.places.iter().map(|also| (&also.file, also.line));
    let places = places.chain(finding.by.iter().map(|by| (&by.file, by.line)));
    let related: Vec<Value> = places.filter_map(|(file, line)| at(file, line)).collect();
    json!({
        "ruleId": finding.id,
        "level": finding.severity.name(),
        "message": { "text": format!("{}: {}; {}", subject(finding), finding.reason, finding.mend) },
        "locations": locations,
        "occurrenceCount": finding.count,
        "relatedLocations": related,
    })
}
