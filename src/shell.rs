//! `bulkhead completions` and `bulkhead man`: generated from the definition of the command line.

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use bulkhead_answers::output;
use clap::CommandFactory;

use crate::args::{Args, Completions, Man};

/// Prints the completion script for a shell.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn completions(args: &Completions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let mut command = Args::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    output::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes one man page for the program and one for each subcommand.
///
/// # Errors
/// If the folder cannot be created or written to.
pub(crate) fn man(args: &Man) -> anyhow::Result<ExitCode> {
    let folder = &args.out;
    let failed = || format!("cannot write man pages to {}", folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(Args::command(), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
