//! The merged table as Markdown, for a pull request, and as CSV.

use std::io::{self, Write};

use super::NAMED_COLUMNS;
use super::merged::Merged;
use crate::fabric::Reached;
use crate::output::{markdown, printable};

/// A matrix where it fits a page, else a list of who reaches whom.
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
        // Destinations at the same ports are one row, in the order of the first of each.
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

/// A record for each two ends, port and family, as RFC 4180 has it.
pub(super) fn csv(merged: &Merged, out: &mut impl Write) -> anyhow::Result<()> {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(out);
    writer.write_record(["from", "from_pods", "to", "to_pods", "family", "protocol", "port", "verdict", "audited"])?;
    let count = |pods: usize| if pods == 0 { String::new() } else { pods.to_string() };
    for line in merged.lines() {
        writer.write_record([
            printable(&line.from.unmistakable()),
            count(line.from.pods.len()),
            printable(&line.to.unmistakable()),
            count(line.to.pods.len()),
            line.family.to_owned(),
            line.port.transport.to_string(),
            line.port.port.to_string(),
            line.reached.verdict().to_owned(),
            (line.reached == Reached::Audited).to_string(),
        ])?;
    }
    writer.flush()?;
    Ok(())
}
