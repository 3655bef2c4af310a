//! `bulkhead completions` and `bulkhead man`: what shells and `man` know of the command line, made of its own description.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Args, Completions, Man};

/// Prints the script that completes the command line in a shell.
///
/// # Errors
/// When nobody reads it.
pub(crate) fn completions(args: &Completions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let mut command = Args::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the program and one for each subcommand.
///
/// # Errors
/// When the folder cannot be written to.
pub(crate) fn man(args: &Man) -> anyhow::Result<ExitCode> {
    let folder = &args.out;
    let failed = || format!("cannot write man pages to {}", folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(Args::command(), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
