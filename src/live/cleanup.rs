//! `bulkhead cleanup`: what a vswitch has left in the kernel is removed.

use std::path::PathBuf;
use std::process::ExitCode;

use bulkhead_dataplane::io::remove_tc_datapath;

use super::config::{Config, DEFAULT_PINS, Pins};
use super::kernel::TRUNK;
use super::log;
use crate::args::Cleanup;

/// Removes pinned links and maps, and the trunk. Exit code 0, also when there is nothing.
///
/// # Errors
/// When a vswitch runs here, or the system refuses.
pub(crate) fn cleanup(args: &Cleanup) -> anyhow::Result<ExitCode> {
    let pins = match &args.config {
        Some(path) => Config::read(path)?.pins,
        None => Pins::Default,
    };
    let pins = match pins {
        Pins::Default => Some(PathBuf::from(DEFAULT_PINS)),
        Pins::Path(path) => Some(path),
        Pins::None => None,
    };
    let had = remove_tc_datapath(&TRUNK.map(str::to_owned), pins.as_deref())?;
    log::info(if had { "removed what a vswitch had left" } else { "there is nothing to remove" });
    log::finish();
    Ok(ExitCode::SUCCESS)
}
