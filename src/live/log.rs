//! What a running vswitch says: one line per event on standard error, with time and level.
//!
//! `tracing` was the alternative. The packet path logs nothing, so what is left is the control thread's few lines per
//! hour; a subscriber with its filters and formats would be the largest dependency of the program for that.

use std::fmt::Display;
use std::io::Write;
use std::time::SystemTime;

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
}

/// An event may have several lines: those after the first are indented, so that each event starts with a time.
fn line(level: &str, text: &(impl Display + ?Sized)) {
    let time = humantime::format_rfc3339_millis(SystemTime::now());
    // When standard error is gone there is nobody to tell. One write, so that lines of threads do not mix.
    let _ = std::io::stderr().lock().write_all(render(&time, level, &text.to_string()).as_bytes());
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
