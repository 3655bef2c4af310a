//! The rows of a subcommand: measured one after another, and printed as one table.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::args::Format;
use crate::table::{self, Line};
use crate::testbed::{self, remains};

/// A row of the command line, its name, and what measures it.
pub(crate) type Row<R, B> = (R, &'static str, fn(&B) -> anyhow::Result<Vec<Line>>);

/// Measures the rows that are asked for, all where none is, and prints what came of it. `about` is an object with what programs are
/// told of the run. A row that cannot be measured says why and holds no other back.
///
/// # Errors
/// When the table cannot be written.
pub(crate) fn run<R: PartialEq, B>(
    rows: &[Row<R, B>],
    only: &[R],
    bench: &B,
    format: Format,
    mut about: Value,
) -> anyhow::Result<ExitCode> {
    remains::clean_up_on_signals()?;
    let mut lines = Vec::new();
    for (_, name, measure) in rows.iter().filter(|(row, ..)| only.is_empty() || only.contains(row)) {
        testbed::progress(&format!("measuring {name}"));
        match measure(bench) {
            Ok(measured) => lines.extend(measured),
            Err(error) => lines.push(Line::skipped(name, "not measured".to_owned(), format!("{error:#}"))),
        }
    }
    let mut out = std::io::stdout().lock();
    match format {
        Format::Text => table::write(&lines, &mut out)?,
        Format::Json => {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            about["kernel"] = release.trim().into();
            about["lines"] = table::json(&lines);
            writeln!(out, "{about:#}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
