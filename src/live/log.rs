//! What a running vswitch says: one line per event on standard error, with time and level.
//!
//! `tracing` was the alternative. The packet path logs nothing, so what is left is a few lines per
//! hour; a subscriber with its filters and formats would be the largest dependency of the program for that.
//!
//! The summaries go to standard output from here as well: neither stream may keep the threads that enforce waiting ([`outlet`]).
//!
//! [`outlet`]: super::outlet

use std::fmt::Display;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use super::outlet::{Faults, LAST_WAIT, Outlet};

/// Events that wait for a slow reader: an incident's worth, 100 KB or so.
const WAITING_EVENTS: usize = 1024;

/// Summaries that wait for a slow reader. Those of a large node have megabytes.
const WAITING_SUMMARIES: usize = 8;

/// Something that was meant to happen.
pub(crate) fn info(text: &(impl Display + ?Sized)) {
    line("info", text);
}

/// Something to look at; the vswitch goes on.
pub(crate) fn warn(text: &(impl Display + ?Sized)) {
    line("warning", text);
}

/// Something that keeps the vswitch from doing what it was told.
pub(crate) fn error(text: &(impl Display + ?Sized)) {
    line("error", text);
    let told = (humantime::format_rfc3339_millis(SystemTime::now()).to_string(), text.to_string());
    *last_told() = Some(told);
}

/// The last error that was said: when, as RFC 3339, and what.
pub(super) fn last_error() -> Option<(String, String)> {
    last_told().clone()
}

fn last_told() -> MutexGuard<'static, Option<(String, String)>> {
    static LAST: Mutex<Option<(String, String)>> = Mutex::new(None);
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event may have several lines: those after the first are indented, so that each event starts with a time.
fn line(level: &str, text: &(impl Display + ?Sized)) {
    errors().put(stamped(level, &text.to_string()));
}

/// The error that ends the process, in the form that every subcommand has.
pub(crate) fn last(error: &anyhow::Error) {
    errors().put(format!("error: {error:#}\n"));
}

/// Has a summary printed.
pub(crate) fn print(summary: String) {
    output().put(summary);
}

/// Waits until everything is printed, but not for a reader that reads nothing.
pub(crate) fn finish() {
    // What cannot be printed is an event.
    if !output().finish(LAST_WAIT) {
        warn("standard output is not read: the summary was not printed");
    }
    errors().finish(LAST_WAIT);
}

fn errors() -> &'static Outlet {
    static OUTLET: OnceLock<Outlet> = OnceLock::new();
    OUTLET.get_or_init(|| {
        let missed = |count| stamped("warning", &format!("{count} events are not here: they were not read in time"));
        // When standard error is gone there is nobody to tell.
        let faults = Faults { missed, failed: |_| {} };
        Outlet::start("stderr", io::stderr().as_fd().try_clone_to_owned(), WAITING_EVENTS, faults)
    })
}

fn output() -> &'static Outlet {
    static OUTLET: OnceLock<Outlet> = OnceLock::new();
    OUTLET.get_or_init(|| {
        let missed = |count| {
            // Not among the summaries, which are a program's input.
            warn(&format!("standard output was not read in time: {count} summaries were not printed"));
            String::new()
        };
        // Whoever reads the output may be gone; that is no reason to stop forwarding.
        let faults = Faults { missed, failed: |fault| error(&format!("cannot print the summary: {fault}")) };
        Outlet::start("stdout", io::stdout().as_fd().try_clone_to_owned(), WAITING_SUMMARIES, faults)
    })
}

fn stamped(level: &str, text: &str) -> String {
    render(&humantime::format_rfc3339_millis(SystemTime::now()), level, text)
}

fn render(time: &impl Display, level: &str, text: &str) -> String {
    let mut lines = text.lines().map(crate::output::printable);
    let mut out = format!("{time} {level}: {}\n", lines.next().unwrap_or_default());
    for more in lines {
        out.push_str("  ");
        out.push_str(&more);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_starts_with_its_time_and_cannot_forge_another_one() {
        assert_eq!(render(&"T", "info", "ready"), "T info: ready\n");
        assert_eq!(render(&"T", "error", "a\nT info: b\u{1b}[2J"), "T error: a\n  T info: b\\u{1b}[2J\n");
    }
}
