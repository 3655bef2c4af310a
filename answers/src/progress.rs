//! Tells on standard error what a command is doing once it takes longer than two seconds.
//!
//! ```text
//!  command --step--> the step in hand <--every 100 ms-- thread --> a bar on a terminal
//!                                                              '-> a line in a log
//! ```
//! **Invariant.** A terminal shows nothing of it once the command prints its answer there.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_control::source::escaped;

/// How long a command works without a word. Most answers take less.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between redraws of the bar. Ten per second look smooth.
const INTERVAL: Duration = Duration::from_millis(100);

/// Interval between lines in a log while one step goes on.
const REMINDER: Duration = Duration::from_secs(30);

/// Minimum width of the bar in columns. A narrower one is not drawn.
const SHORTEST_BAR: usize = 10;

/// The step that the command works at. `None` before the first step, and after the last.
static CURRENT: Mutex<Option<Step>> = Mutex::new(None);

/// Whether a bar is on the terminal.
static IS_DRAWN: Mutex<bool> = Mutex::new(false);

/// Whether the command prints its answer on a terminal. Later steps then stay silent.
static IS_ANSWERING: AtomicBool = AtomicBool::new(false);

/// What amounts of a step are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of a file.
    Bytes,
    /// Anything else: claims, sessions, pods.
    Count,
}

impl Unit {
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
    /// What is being done, such as `reading state.json`.
    what: String,
    /// Amount done so far, and in total. The total is `None` if it is unknown.
    done: u64,
    total: Option<u64>,
    unit: Unit,
    started: Instant,
}

/// Tells the command's steps until it is dropped.
#[derive(Debug)]
pub struct Progress {
    /// Whether to end, and its signal.
    end: Arc<(Mutex<bool>, Condvar)>,
    /// `None` where there are no threads.
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts telling.
    pub fn start() -> Self {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let its_end = Arc::clone(&end);
        let mut teller = Teller { started: Instant::now(), told: None };
        let tell = move || {
            let (is_over, signal) = &*its_end;
            let mut is_over = locked(is_over);
            while !*is_over {
                is_over = signal.wait_timeout(is_over, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
                teller.tell();
            }
        };
        Self { end, thread: std::thread::Builder::new().name("progress".into()).spawn(tell).ok() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        finish();
        *locked(&self.end.0) = true;
        self.end.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Says what the command does from now on. The amount of work is unknown.
pub fn step(what: impl AsRef<str>) {
    begin(what.as_ref(), None, Unit::Count);
}

/// Says what the command does from now on, and how much of it there is.
pub fn step_of(what: impl AsRef<str>, total: u64, unit: Unit) {
    begin(what.as_ref(), Some(total), unit);
}

fn begin(what: &str, total: Option<u64>, unit: Unit) {
    if IS_ANSWERING.load(Ordering::Relaxed) {
        return;
    }
    *locked(&CURRENT) = Some(Step { what: escaped(what).into_owned(), done: 0, total, unit, started: Instant::now() });
}

/// Adds to what is done of the current step.
pub fn advance(amount: u64) {
    if let Some(step) = &mut *locked(&CURRENT) {
        step.done += amount;
    }
}

/// Ends the current step, and removes the bar.
pub fn finish() {
    *locked(&CURRENT) = None;
    without_bar(|| {});
}

/// Calls `write`, which writes lines to standard error, while no bar is on the terminal.
pub(crate) fn without_bar(write: impl FnOnce()) {
    let mut is_drawn = locked(&IS_DRAWN);
    if *is_drawn {
        show("\r\x1b[K");
        *is_drawn = false;
    }
    write();
}

/// Ends the current step if the answer goes to the terminal on which the bar is.
pub(crate) fn before_the_answer() {
    if io::stdout().is_terminal() {
        IS_ANSWERING.store(true, Ordering::Relaxed);
        finish();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn show(text: &str) {
    // Ignore errors: the progress is not essential.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Decides what to write, and when.
#[derive(Debug)]
struct Teller {
    started: Instant,
    /// When the last line of a log was written, and its step. `None` before the first.
    told: Option<(Instant, String)>,
}

impl Teller {
    fn tell(&mut self) {
        let current = locked(&CURRENT);
        let columns = columns();
        if let Some(text) = current.as_ref().and_then(|step| self.text(step, Instant::now(), columns)) {
            // The step cannot end meanwhile, so the bar does not outlive it.
            let mut is_drawn = locked(&IS_DRAWN);
            *is_drawn = columns.is_some();
            show(&text);
        }
    }

    /// Returns the text to write at a time: a bar for a terminal with `columns`, or a line for a log. `None` if nothing is due.
    fn text(&mut self, step: &Step, now: Instant, columns: Option<usize>) -> Option<String> {
        if now.duration_since(self.started) < PATIENCE {
            return None;
        }
        let elapsed = now.duration_since(step.started);
        if let Some(columns) = columns {
            return Some(format!("\r{}\x1b[K", line(step, elapsed, columns)));
        }
        let is_due = self.told.as_ref().is_none_or(|(when, what)| {
            now.duration_since(*when) >= if *what == step.what { REMINDER } else { PATIENCE }
        });
        is_due.then(|| {
            self.told = Some((now, step.what.clone()));
            let of = |total| format!(", {} of {}", step.unit.amount(step.done), step.unit.amount(total));
            let amount = step.total.map(of).unwrap_or_default();
            format!("{}: {}{amount}\n", step.what, seconds(elapsed.as_secs_f64()))
        })
    }
}

/// A reader whose bytes advance the current step.
pub(crate) struct Reading<R>(pub(crate) R);

impl<R: Read> Read for Reading<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        advance(read as u64);
        Ok(read)
    }
}

/// Formats a time in whole seconds: `1m 30s`.
fn seconds(count: f64) -> String {
    let whole = Duration::try_from_secs_f64(count.round()).unwrap_or(Duration::ZERO);
    humantime::format_duration(whole).to_string()
}

/// Returns the width of the terminal on standard error. `None` if it is not a terminal.
#[cfg(target_os = "linux")]
fn columns() -> Option<usize> {
    rustix::termios::tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns `None`: the width is unknown on other systems.
#[cfg(not(target_os = "linux"))]
const fn columns() -> Option<usize> {
    None
}

/// Returns the step's name, a bar, its amounts and the remaining time, or the name and the time so far if the step has no known end. One
/// column shorter than the terminal to keep the cursor in the line.
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

/// Formats a size: `15 B`, `1.46 KiB`.
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
    fn nothing_is_told_for_two_seconds_then_a_bar_or_each_step_once_and_again_after_half_a_minute() {
        let started = Instant::now();
        let at = |millis| started + Duration::from_millis(millis);
        let reading = step_at("reading s.json", 0, None, Unit::Count, started);
        let judging = step_at("judging", 30, Some(100), Unit::Count, at(1000));
        let mut bar = Teller { started, told: None };
        assert_eq!(bar.text(&reading, at(1999), Some(80)), None);
        assert_eq!(bar.text(&reading, at(2000), Some(80)).unwrap(), "\rreading s.json 2s\x1b[K");
        assert!(bar.text(&judging, at(2100), Some(80)).unwrap().ends_with("░ 30/100 3s\x1b[K"));
        let mut log = Teller { started, told: None };
        let told: Vec<(u64, String)> = (0..500)
            .map(|tick| tick * 100)
            .filter_map(|time| Some((time, log.text(if time < 3000 { &reading } else { &judging }, at(time), None)?)))
            .collect();
        let expected =
            [(2000, "reading s.json: 2s\n"), (4000, "judging: 3s, 30 of 100\n"), (34_000, "judging: 33s, 30 of 100\n")];
        assert_eq!(told, expected.map(|(time, text)| (time, text.to_owned())));
    }

    #[test]
    fn bytes_have_a_unit_of_1024_of_the_one_before() {
        let told = [0, 1023, 1024, 1500, 1_500_000, u64::MAX].map(bytes);
        assert_eq!(told, ["0 B", "1023 B", "1.00 KiB", "1.46 KiB", "1.43 MiB", "16.00 EiB"]);
    }
}
