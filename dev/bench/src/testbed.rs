//! What a benchmark needs around the vswitch: namespaces, programs, files and sockets, and the vswitch's own process.
//!
//! **Not its purpose.** How a node is wired: each subcommand has nodes of its own.
//!
//! **Invariant.** What ends early, in whatever way, takes its namespaces, programs and files with it ([`remains`]).

pub(crate) mod folder;
pub(crate) mod net;
pub(crate) mod proc;
pub(crate) mod programs;
pub(crate) mod remains;
pub(crate) mod traffic;
pub(crate) mod vswitch;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

/// The program that is measured: the one at this path, or the one that lies beside this one, as cargo builds them.
///
/// # Errors
/// When there is none.
pub(crate) fn program(path: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = match path {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("bulkhead"),
    };
    path.canonicalize().with_context(|| {
        let path = path.display();
        format!("no program at {path}; help: `cargo build --release --bin bulkhead`, or --bulkhead PATH")
    })
}

/// Says on standard error what is going on: some rows take minutes.
pub(crate) fn progress(text: &str) {
    // When standard error is gone there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
