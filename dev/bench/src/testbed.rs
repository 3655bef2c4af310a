//! Namespaces, programs, files and sockets around the vswitch, and the vswitch's own process.
//!
//! **Not its purpose.** The topology of a node: each subcommand has its own.
//!
//! **Invariant.** However the benchmark ends, its namespaces, programs and files are removed ([`remains`]).

pub(crate) mod folder;
pub(crate) mod load;
pub(crate) mod net;
pub(crate) mod proc;
pub(crate) mod programs;
pub(crate) mod remains;
pub(crate) mod traffic;
pub(crate) mod vswitch;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

/// Returns the program to measure: `path`, or `bulkhead` beside this program, where cargo builds it.
///
/// # Errors
/// If the program does not exist.
pub(crate) fn program(path: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = match path {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("bulkhead"),
    };
    path.canonicalize().with_context(|| {
        let path = path.display();
        format!("{path} does not exist; help: run `cargo build --release --bin bulkhead`, or name the program with --bulkhead")
    })
}

/// Prints progress on standard error, since some rows take minutes.
pub(crate) fn progress(text: &str) {
    // Without standard error the message cannot be printed.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
