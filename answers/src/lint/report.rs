//! The output formats of `bulkhead lint`.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::count;
use super::finding::{CHECKS, Finding, Place, Severity};
use super::hits::Window;
use crate::output::printable;
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
                writeln!(out, "{all} found: {errors}, {warnings}, {notes}")
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
    let related: Vec<Value> = finding.by.iter().filter_map(|by| at(&by.file, by.line)).collect();
    json!({
        "ruleId": finding.id,
        "level": finding.severity.name(),
        "message": { "text": format!("{}: {}; {}", subject(finding), finding.reason, finding.mend) },
        "locations": locations,
        "relatedLocations": related,
    })
}
