//! Progress bar on standard error while reading a file.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use crate::output::printable;

/// Interval between redraws. 20 per second look smooth.
const INTERVAL: Duration = Duration::from_millis(50);

/// Minimum width of the bar in columns. A narrower one is not drawn.
const SHORTEST_BAR: usize = 10;

/// A reader that shows a progress bar, and clears the line when dropped.
pub(crate) struct Progress {
    source: Box<dyn Read>,
    /// The progress bar. `None` if the length is unknown or standard error is not a terminal.
    bar: Option<Bar>,
}

struct Bar {
    name: String,
    /// Bytes in the file, and bytes read.
    length: u64,
    read: u64,
    started: Instant,
    /// When the bar was last drawn. `None` before the first time.
    drawn: Option<Instant>,
}

impl Progress {
    /// Returns a reader of `source`. `name` is shown beside the bar. `length` is in bytes, `None` if unknown.
    pub(super) fn new(source: Box<dyn Read>, name: &str, length: Option<u64>) -> Self {
        let length = length.filter(|_| columns().is_some());
        let bar = |length| Bar { name: printable(name), length, read: 0, started: Instant::now(), drawn: None };
        Self { source, bar: length.map(bar) }
    }
}

impl Read for Progress {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        if let Some(bar) = &mut self.bar {
            bar.advance(read);
        }
        Ok(read)
    }
}

impl Bar {
    fn advance(&mut self, read: usize) {
        self.read += read as u64;
        let now = Instant::now();
        if now.duration_since(self.drawn.unwrap_or(self.started)) >= INTERVAL
            && let Some(columns) = columns()
        {
            self.drawn = Some(now);
            let line = line(&self.name, self.read, self.length, now.duration_since(self.started), columns);
            show(&format!("\r{line}\x1b[K"));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            show("\r\x1b[K");
        }
    }
}

fn show(text: &str) {
    // Ignore errors: the bar is not essential.
    let _ = io::stderr().lock().write_all(text.as_bytes());
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

/// Returns name, bar, bytes and remaining time, one column shorter than the terminal to keep the cursor in the line.
fn line(name: &str, read: u64, length: u64, elapsed: Duration, columns: usize) -> String {
    // A file may grow while it is read.
    let length = length.max(read).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a bar has few characters, and the time left is a guess")]
    let share = read as f64 / length as f64;
    let left = elapsed.as_secs_f64() * (1.0 - share) / share;
    let left = Duration::try_from_secs_f64(left.round()).unwrap_or(Duration::ZERO);
    let after = format!("{}/{} {}", bytes(read), bytes(length), humantime::format_duration(left));
    let room = columns.saturating_sub(1);
    let wide = room.saturating_sub(name.chars().count() + after.chars().count() + 2);
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

    #[test]
    fn the_line_has_name_bar_bytes_and_the_time_left_and_fits() {
        let of = |read, columns| line("a.pcap", read, 4 << 20, Duration::from_secs(30), columns);
        assert_eq!(of(1 << 20, 60), format!("a.pcap {}{} 1.00 MiB/4.00 MiB 1m 30s", "█".repeat(6), "░".repeat(21)));
        assert_eq!(of(4 << 20, 30), "a.pcap 4.00 MiB/4.00 MiB 0s", "no room for a bar");
        assert_eq!(of(0, 60).chars().count(), 59, "the time left is not known");
        for columns in 0..100 {
            assert!(of(5 << 20, columns).chars().count() < columns.max(1), "{columns}");
        }
    }

    #[test]
    fn bytes_have_a_unit_of_1024_of_the_one_before() {
        let told = [0, 1023, 1024, 1500, 1_500_000, u64::MAX].map(bytes);
        assert_eq!(told, ["0 B", "1023 B", "1.00 KiB", "1.46 KiB", "1.43 MiB", "16.00 EiB"]);
    }
}
