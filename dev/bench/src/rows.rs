//! Measures the rows of a subcommand and prints them as one table.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::args::Format;
use crate::table::{self, Line};
use crate::testbed::{self, remains};

/// A row's value on the command line, its name, and its measurement.
pub(crate) type Row<R, B> = (R, &'static str, fn(&B) -> anyhow::Result<Vec<Line>>);

/// Measures the rows in `only`, or all if it is empty, and prints the results. `about` describes the run in the JSON output. A row that
/// fails is printed with the reason; the others continue.
///
/// # Errors
/// If the table cannot be written.
pub(crate) fn run<R: PartialEq, B>(
    rows: &[Row<R, B>],
    only: &[R],
    bench: &B,
    format: Format,
    about: Value,
) -> anyhow::Result<ExitCode> {
    remains::clean_up_on_signals()?;
    print(&measure(rows, only, bench), format, about)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the rows in `only`, or all if it is empty. A row that fails becomes a line with the reason.
pub(crate) fn measure<R: PartialEq, B>(rows: &[Row<R, B>], only: &[R], bench: &B) -> Vec<Line> {
    let mut lines = Vec::new();
    for (_, name, measure) in rows.iter().filter(|(row, ..)| only.is_empty() || only.contains(row)) {
        testbed::progress(&format!("measuring {name}"));
        match measure(bench) {
            Ok(measured) => lines.extend(measured),
            Err(error) => lines.push(Line::skipped(name, "not measured".to_owned(), format!("{error:#}"))),
        }
    }
    lines
}

/// Prints lines as a table or as JSON. `about` describes the run in the JSON output, as an object to which this adds the lines.
///
/// # Errors
/// If the table cannot be written.
pub(crate) fn print(lines: &[Line], format: Format, mut about: Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Text => table::write(lines, &mut out)?,
        Format::Json => {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            about["kernel"] = release.trim().into();
            about["lines"] = table::json(lines);
            writeln!(out, "{about:#}")?;
        }
    }
    Ok(())
}
