//! The merged connectivity matrix as Markdown and CSV.

use std::io::{self, Write};

use super::NAMED_COLUMNS;
use super::kinds::Answer;
use super::merged::Merged;
use crate::fabric::Reached;
use crate::output::{markdown, printable};

/// Writes the answer as Markdown: a matrix for at most [`NAMED_COLUMNS`] rows, else, or with `--focus`, a list of the allowed connections.
///
/// # Errors
/// If `out` cannot be written.
pub(super) fn markdown_table(merged: &Merged, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "### Who reaches whom at {}\n", merged.ports().join(", "))?;
    match merged.is_focused() || merged.ends.len() > NAMED_COLUMNS {
        true => list(merged, out),
        false => matrix(merged, out),
    }
}

fn matrix(merged: &Merged, out: &mut impl Write) -> io::Result<()> {
    let names: Vec<String> = merged.ends.iter().map(|end| markdown(&end.title())).collect();
    writeln!(out, "| from \\ to | {} |", names.join(" | "))?;
    writeln!(out, "|-|{}", "-|".repeat(names.len()))?;
    for (from, name) in names.iter().enumerate() {
        let cell = |to: usize| match (merged.is_asked(from, to), merged.services(from, to)) {
            (false, _) => String::new(),
            (true, none) if none.is_empty() => "-".into(),
            (true, services) => services,
        };
        let cells: Vec<String> = (0..names.len()).map(cell).collect();
        writeln!(out, "| {name} | {} |", cells.join(" | "))?;
    }
    writeln!(out, "\nRows connect to columns. A cell has the ports that get through; `-` is none of them.")
}

fn list(merged: &Merged, out: &mut impl Write) -> io::Result<()> {
    let mut rows = 0;
    for (from, end) in merged.ends.iter().enumerate() {
        // Destinations with the same ports share a row, in the order of their first occurrence.
        let mut by_services: Vec<(String, Vec<String>)> = Vec::new();
        for (to, other) in merged.ends.iter().enumerate() {
            let services = merged.services(from, to);
            if services.is_empty() {
                continue;
            }
            let title = markdown(&other.title());
            match by_services.iter_mut().find(|(known, _)| *known == services) {
                Some((_, ends)) => ends.push(title),
                None => by_services.push((services, vec![title])),
            }
        }
        for (services, ends) in by_services {
            if rows == 0 {
                writeln!(out, "| From | To | Ports |\n|-|-|-|")?;
            }
            rows += 1;
            writeln!(out, "| {} | {} | {services} |", markdown(&end.title()), ends.join(", "))?;
        }
    }
    match rows {
        0 => writeln!(out, "Nobody reaches anybody."),
        _ => writeln!(out, "\nWhat is not listed is denied."),
    }
}

/// Writes one record per pair of ends, port and address family (RFC 4180).
pub(super) fn csv(merged: &Merged, out: &mut impl Write) -> io::Result<()> {
    let head = ["from", "from_pods", "to", "to_pods", "family", "protocol", "port", "verdict", "audited", "own_node"];
    record(&head.map(str::to_owned), out)?;
    let count = |pods: usize| if pods == 0 { String::new() } else { pods.to_string() };
    for line in merged.lines() {
        let fields = [
            printable(&line.from.unmistakable()),
            count(line.from.pods.len()),
            printable(&line.to.unmistakable()),
            count(line.to.pods.len()),
            line.family.to_owned(),
            line.port.protocol.to_string(),
            line.port.number(),
            line.answer.elsewhere.verdict().to_owned(),
            (line.answer.elsewhere == Reached::Audited).to_string(),
            own_node(line.answer).to_owned(),
        ];
        record(&fields, out)?;
    }
    out.flush()
}

/// Returns the verdict between a pod and its own node if it differs from the others.
fn own_node(Answer { elsewhere, own_node }: Answer) -> &'static str {
    match (own_node == elsewhere, own_node) {
        (true, _) => "",
        (false, Reached::Audited) => "audited",
        (false, reached) => reached.verdict(),
    }
}

/// Writes a CSV record. Quotes fields with separators and doubles quotes inside them (RFC 4180, section 2).
fn record(fields: &[String], out: &mut impl Write) -> io::Result<()> {
    let quoted = |field: &String| match field.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.clone(),
    };
    write!(out, "{}\r\n", fields.iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_has_a_comma_a_quote_or_an_end_of_a_line_is_quoted() {
        let mut out = Vec::new();
        let fields = ["a b", "", "x,y", "say \"no\"", "one\r\ntwo", "\"", "é'`;"].map(str::to_owned);
        record(&fields, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a b,,\"x,y\",\"say \"\"no\"\"\",\"one\r\ntwo\",\"\"\"\",é'`;\r\n");
    }
}
