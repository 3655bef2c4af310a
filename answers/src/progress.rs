//! Reports on standard error which step a command works at, if the command takes longer than two seconds.
//!
//! ```text
//!  command --step--> the current step <--every 100 ms-- thread --> a bar on a terminal
//!                                                              '-> a line in a log
//! ```
//! **Invariant.** While the command prints its answer on a terminal, no bar is drawn there.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_control::source::escaped;

/// The time from the start of a command to its first report. Most commands end before.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between redraws of the bar. Ten per second look smooth.
const INTERVAL: Duration = Duration::from_millis(100);

/// Interval between lines in a log about the same step: a log of a slow command stays short.
const REMINDER: Duration = Duration::from_secs(30);

/// Minimum width of the bar in columns. A narrower one is not drawn.
const SHORTEST_BAR: usize = 10;

/// The state of this process's report.
static STATE: Mutex<State> = Mutex::new(State { step: None, is_drawn: false, is_answering: false });

/// What the command works at, and what is on its terminal.
#[derive(Debug)]
struct State {
    /// The step that the command works at. `None` before the first step, and after the last.
    step: Option<Step>,
    /// Whether the terminal shows a bar.
    is_drawn: bool,
    /// Whether the command has begun to print its answer on a terminal. Later steps are then not reported.
    is_answering: bool,
}

/// The unit of a step's amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of a file.
    Bytes,
    /// Items, such as claims or sessions.
    Count,
}

impl Unit {
    /// Formats an amount: `1.46 KiB` of bytes, `1500` items.
    fn amount(self, amount: u64) -> String {
        match self {
            Self::Bytes => bytes(amount),
            Self::Count => amount.to_string(),
        }
    }
}

/// A part of a command's work.
#[derive(Debug)]
struct Step {
    /// The work in words, such as `reading state.json`.
    what: String,
    /// The amount of work done so far, in `unit`.
    done: u64,
    /// The whole amount of work, in `unit`. `None` if it is unknown.
    total: Option<u64>,
    unit: Unit,
    started: Instant,
}

/// The thread that reports the command's steps. Dropping it ends the thread and removes the bar.
#[derive(Debug)]
pub struct Progress {
    /// Ends the thread when it is dropped. `None` only while `Progress` is dropped.
    end: Option<Sender<()>>,
    /// `None` if the system has no threads. Then nothing is reported.
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the thread.
    pub fn start() -> Self {
        let (end, ended) = mpsc::channel();
        let mut reporter = Reporter { started: Instant::now(), last_line: None };
        let report = move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                reporter.report();
            }
        };
        Self { end: Some(end), thread: std::thread::Builder::new().name("progress".into()).spawn(report).ok() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        finish();
    }
}

/// Begins a step whose amount of work is unknown.
pub fn step(what: impl AsRef<str>) {
    begin(what.as_ref(), None, Unit::Count);
}

/// Begins a step whose work has a known amount, in `unit`.
pub fn step_of(what: impl AsRef<str>, total: u64, unit: Unit) {
    begin(what.as_ref(), Some(total), unit);
}

fn begin(what: &str, total: Option<u64>, unit: Unit) {
    let mut state = state();
    if !state.is_answering {
        let what = escaped(what).into_owned();
        state.step = Some(Step { what, done: 0, total, unit, started: Instant::now() });
    }
}

/// Adds an amount to the work done of the current step, in the step's unit.
pub fn advance(amount: u64) {
    if let Some(step) = &mut state().step {
        step.done += amount;
    }
}

/// Ends the current step, and removes the bar.
pub fn finish() {
    let mut state = state();
    state.step = None;
    state.remove_bar();
}

/// Calls `write`, which prints lines to standard error, after removing the bar from the terminal. The next report draws it again.
pub(crate) fn without_bar(write: impl FnOnce()) {
    let mut state = state();
    state.remove_bar();
    write();
}

/// Ends all reports if standard output is a terminal. Must be called before the first byte of the answer.
pub(crate) fn before_the_answer() {
    if io::stdout().is_terminal() {
        state().is_answering = true;
        finish();
    }
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn remove_bar(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            print("\r\x1b[K");
        }
    }
}

fn print(text: &str) {
    // Ignore errors: the command does not depend on its reports.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Decides what to report, and when.
#[derive(Debug)]
struct Reporter {
    /// When the command started.
    started: Instant,
    /// The time of the last line in a log, and the step that it named. `None` before the first line, and always on a terminal.
    last_line: Option<(Instant, String)>,
}

impl Reporter {
    /// Reports the current step if that is due.
    fn report(&mut self) {
        // Locked until the bar is drawn, so that the bar does not outlive its step.
        let mut state = state();
        let columns = columns();
        if let Some(text) = state.step.as_ref().and_then(|step| self.text(step, Instant::now(), columns)) {
            state.is_drawn = columns.is_some();
            print(&text);
        }
    }

    /// Returns the text to print at the time `now`: a bar for a terminal that is `columns` wide, or a line for a log if `columns` is `None`.
    /// Returns `None` if nothing is due.
    fn text(&mut self, step: &Step, now: Instant, columns: Option<usize>) -> Option<String> {
        if now.duration_since(self.started) < PATIENCE {
            return None;
        }
        let elapsed = now.duration_since(step.started);
        if let Some(columns) = columns {
            return Some(format!("\r{}\x1b[K", line(step, elapsed, columns)));
        }
        let is_due = self.last_line.as_ref().is_none_or(|(when, what)| {
            now.duration_since(*when) >= if *what == step.what { REMINDER } else { PATIENCE }
        });
        is_due.then(|| {
            self.last_line = Some((now, step.what.clone()));
            let of = |total| format!(", {} of {}", step.unit.amount(step.done), step.unit.amount(total));
            let amount = step.total.map(of).unwrap_or_default();
            format!("{}: {}{amount}\n", step.what, seconds(elapsed.as_secs_f64()))
        })
    }
}

/// A reader that adds the bytes it reads to the current step.
pub(crate) struct Reading<R>(pub(crate) R);

impl<R: Read> Read for Reading<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        advance(read as u64);
        Ok(read)
    }
}

/// Formats a number of seconds, rounded to whole ones: `1m 30s`. Formats a number that is not finite, or negative, as `0s`.
fn seconds(count: f64) -> String {
    let whole = Duration::try_from_secs_f64(count.round()).unwrap_or(Duration::ZERO);
    humantime::format_duration(whole).to_string()
}

/// Returns the width in columns of the terminal on standard error. `None` if standard error is not a terminal.
#[cfg(target_os = "linux")]
fn columns() -> Option<usize> {
    rustix::termios::tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns the width in columns of the terminal on standard error: always `None`, since only Linux reports it here. Commands then report in
/// lines, as in a log.
#[cfg(not(target_os = "linux"))]
const fn columns() -> Option<usize> {
    None
}

/// Returns a step's line on a terminal: name, bar, amounts and remaining time, or name and elapsed time if the total amount is unknown. Has
/// one column less than the terminal, so that the cursor stays in the line.
fn line(step: &Step, elapsed: Duration, columns: usize) -> String {
    let room = columns.saturating_sub(1);
    let Some(total) = step.total else {
        return format!("{} {}", step.what, seconds(elapsed.as_secs_f64())).chars().take(room).collect();
    };
    // A file may grow while it is read.
    let total = total.max(step.done).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a bar has few characters, and the time left is a guess")]
    let share = step.done as f64 / total as f64;
    let left = seconds(elapsed.as_secs_f64() * (1.0 - share) / share);
    let after = format!("{}/{} {left}", step.unit.amount(step.done), step.unit.amount(total));
    let (name, wide) = (&step.what, room.saturating_sub(step.what.chars().count() + after.chars().count() + 2));
    let whole = if wide < SHORTEST_BAR {
        format!("{name} {after}")
    } else {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of the columns of a terminal"
        )]
        let filled = ((share * wide as f64) as usize).min(wide);
        format!("{name} {}{} {after}", "█".repeat(filled), "░".repeat(wide - filled))
    };
    whole.chars().take(room).collect()
}

/// Formats a number of bytes with a binary unit: `15 B`, `1.46 KiB`.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let unit = (count.ilog2() / 10) as usize - 1;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let value = count as f64 / (1_u64 << (10 * (unit + 1))) as f64;
    format!("{value:.2} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_at(what: &str, done: u64, total: Option<u64>, unit: Unit, started: Instant) -> Step {
        Step { what: what.into(), done, total, unit, started }
    }

    #[test]
    fn the_line_has_name_bar_amounts_and_the_time_left_and_fits() {
        let now = Instant::now();
        let of = |done, columns| {
            line(&step_at("a.pcap", done, Some(4 << 20), Unit::Bytes, now), Duration::from_secs(30), columns)
        };
        assert_eq!(of(1 << 20, 60), format!("a.pcap {}{} 1.00 MiB/4.00 MiB 1m 30s", "█".repeat(6), "░".repeat(21)));
        assert_eq!(of(4 << 20, 30), "a.pcap 4.00 MiB/4.00 MiB 0s", "no room for a bar");
        assert_eq!(of(0, 60).chars().count(), 59, "the time left is not known");
        for columns in 0..100 {
            assert!(of(5 << 20, columns).chars().count() < columns.max(1), "{columns}");
            let endless = step_at("compiling", 0, None, Unit::Count, now);
            assert!(line(&endless, Duration::from_secs(7), columns).chars().count() < columns.max(1), "{columns}");
        }
    }

    #[test]
    fn reports_begin_after_two_seconds_and_a_log_names_each_step_once_and_again_after_half_a_minute() {
        let started = Instant::now();
        let at = |millis| started + Duration::from_millis(millis);
        let reading = step_at("reading s.json", 0, None, Unit::Count, started);
        let judging = step_at("judging", 30, Some(100), Unit::Count, at(1000));
        let mut bar = Reporter { started, last_line: None };
        assert_eq!(bar.text(&reading, at(1999), Some(80)), None);
        assert_eq!(bar.text(&reading, at(2000), Some(80)).unwrap(), "\rreading s.json 2s\x1b[K");
        assert!(bar.text(&judging, at(2100), Some(80)).unwrap().ends_with("░ 30/100 3s\x1b[K"));
        let mut log = Reporter { started, last_line: None };
        let lines: Vec<(u64, String)> = (0..500)
            .map(|tick| tick * 100)
            .filter_map(|time| Some((time, log.text(if time < 3000 { &reading } else { &judging }, at(time), None)?)))
            .collect();
        let expected =
            [(2000, "reading s.json: 2s\n"), (4000, "judging: 3s, 30 of 100\n"), (34_000, "judging: 33s, 30 of 100\n")];
        assert_eq!(lines, expected.map(|(time, text)| (time, text.to_owned())));
    }

    #[test]
    fn bytes_have_a_unit_of_1024_of_the_one_before() {
        let texts = [0, 1023, 1024, 1500, 1_500_000, u64::MAX].map(bytes);
        assert_eq!(texts, ["0 B", "1023 B", "1.00 KiB", "1.46 KiB", "1.43 MiB", "16.00 EiB"]);
    }
}
