//! Prints answers as JSON.

use std::io::Write;

use serde::Serialize;

/// Writes a value as indented JSON, with a line end.
///
/// # Errors
/// If writing fails.
pub(super) fn print_json(out: &mut impl Write, value: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}
