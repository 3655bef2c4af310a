//! `bulkhead top`: activity of a running vswitch as a live screen, text or lines of JSON.
//!
//! ```text
//!   admin socket --status, ports, policies--> Sample --[ Tracker: differences by time ]--> Picture --[ view ]--> lines of a screen
//!        (separate thread)                                                                        `-[ plain ]-> text, JSON
//!   terminal --bytes--[ keys ]--> Key --[ Choices: order, filter, pause ]----------------------------^
//! ```
//!
//! Samples, pictures, choices and lines are values, converted by pure functions; only [`terminal`] and [`sample`] have side effects.
//! [`paint`] converts lines to terminal output. A separate thread queries the vswitch, because an answer may take seconds if a worker is
//! stuck, and the user must be able to quit meanwhile.
//!
//! No terminal library: lines in six colours need few escape sequences, and the libraries' key readers do not notice a hang-up, or block
//! other events while waiting for the rest of a sequence.
//!
//! **Invariant.** A rate is the difference of two counters of one process, divided by the time that this process measured between the
//! readings. Otherwise the rate is unknown: no rate is negative or jumps after a restart.

mod choices;
mod figures;
mod keys;
mod paint;
mod picture;
mod plain;
mod sample;
mod terminal;
mod text;
mod view;

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;

use crate::args;
use bulkhead_answers::args::Format;
use choices::Choices;

/// Shows the vswitch's activity until the user quits or the requested number of intervals is reached.
///
/// # Errors
/// If no vswitch answers, or the terminal cannot be used.
pub fn run(args: &args::Top) -> anyhow::Result<ExitCode> {
    let first = sample::Sample::take(&args.socket)?;
    let choices = Choices::new(args.sort, &args.port);
    let is_screen = args.output == Format::Text && args.count.is_none();
    if is_screen && stdin().is_terminal() && stdout().is_terminal() {
        return terminal::run(args, first, choices);
    }
    plain::run(args, first, &choices)
}
