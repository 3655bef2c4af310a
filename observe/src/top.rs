//! `bulkhead top`: what a running vswitch does, as a live screen, as text, or as lines of JSON.
//!
//! ```text
//!   admin socket --status, ports, policies--> Sample --[ Tracker: differences by time ]--> Picture --[ view ]--> lines of a screen
//!        (a thread of its own)                                                                    `-[ plain ]-> text, JSON
//!   terminal --bytes--[ keys ]--> Key --[ Choices: order, filter, pause ]----------------------------^
//! ```
//!
//! Samples, pictures, choices and lines are values, and what makes one of the other is a function: only [`terminal`] and [`sample`]
//! touch anything. [`paint`] makes bytes for a terminal of lines. The vswitch is asked on a thread of its own, because an answer may take seconds when a worker is stuck, and a person
//! who wants to quit does not wait for that.
//!
//! A terminal library lost: rows of text in six colours need few sequences, and a library's readers of keys do not notice a terminal that
//! hangs up, or wait for the rest of a sequence while samples and signals wait for them.
//!
//! **Invariant.** A rate is the difference of two counters of one process, divided by the time between their readings as that process
//! measured it. Where there is no such difference there is no rate: none is ever negative, or a leap after a restart.

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

/// Shows what the vswitch does until somebody has seen enough.
///
/// # Errors
/// When no vswitch answers, with the remedy, or the terminal cannot be used.
pub fn run(args: &args::Top) -> anyhow::Result<ExitCode> {
    let first = sample::Sample::take(&args.socket)?;
    let choices = Choices::new(args.sort, &args.port);
    let is_screen = args.output == Format::Text && args.count.is_none();
    if is_screen && stdin().is_terminal() && stdout().is_terminal() {
        return terminal::run(args, first, choices);
    }
    plain::run(args, first, &choices)
}
