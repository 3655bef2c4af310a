//! Terminal output: warnings, errors and plain tables.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::args::Format;
use crate::progress;

/// Whether a write to standard output has failed because its reader has exited.
static READER_HAS_EXITED: AtomicBool = AtomicBool::new(false);

/// A writer to standard output for answers. Writing fails if standard output cannot be written, except that a broken pipe is no error: the
/// reader of a pipe has exited, as in `bulkhead test ... | head`. This and all later writes are then discarded and succeed, so that the
/// command ends with the exit code of its answer. The first write ends the command's [progress] reports on a terminal.
#[derive(Debug)]
pub struct Stdout<W = StdoutLock<'static>> {
    inner: W,
    /// Whether `write` was called before.
    has_begun: bool,
    /// Whether a write has found a broken pipe. Shared by all writers of the process.
    has_exited: &'static AtomicBool,
}

/// Locks standard output, and returns a writer for the answer. Blocks while another thread holds the lock.
pub fn stdout() -> Stdout {
    Stdout { inner: io::stdout().lock(), has_begun: false, has_exited: &READER_HAS_EXITED }
}

/// Returns false once a write to standard output has found a broken pipe, since its reader has exited. A command that prints without end must
/// then stop. Returns true before any write.
pub fn has_reader() -> bool {
    !READER_HAS_EXITED.load(Ordering::Relaxed)
}

impl<W> Stdout<W> {
    /// Returns the result of `write`, but `discarded` in place of a broken pipe. After a broken pipe, returns `discarded` without calling
    /// `write`.
    ///
    /// # Errors
    /// Any other error of `write`.
    fn unless_exited<T>(&mut self, discarded: T, write: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        if self.has_exited.load(Ordering::Relaxed) {
            return Ok(discarded);
        }
        write(&mut self.inner).or_else(|error| {
            if error.kind() != io::ErrorKind::BrokenPipe {
                return Err(error);
            }
            self.has_exited.store(true, Ordering::Relaxed);
            Ok(discarded)
        })
    }
}

impl<W: Write> Write for Stdout<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_begun {
            self.has_begun = true;
            progress::before_the_answer();
        }
        self.unless_exited(bytes.len(), |inner| inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_exited((), Write::flush)
    }
}

/// Prints an answer to standard output: as JSON, or as the text that `text` writes.
///
/// # Errors
/// If standard output cannot be written.
pub fn answer(
    format: Format,
    answer: &impl Serialize,
    text: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(stdout());
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, answer)?;
            writeln!(out)?;
        }
        Format::Text => text(&mut out)?,
    }
    out.flush()?;
    Ok(())
}

/// Prints a warning to standard error.
pub fn warn(warning: &(impl Display + ?Sized)) {
    print_line(format_args!("warning: {warning}"));
}

/// Prints a note to standard error.
pub fn note(remark: &str) {
    print_line(format_args!("{remark}"));
}

/// Prints an error and its causes to standard error.
pub fn report(error: &anyhow::Error) {
    print_line(format_args!("error: {}", told(error)));
}

/// Prints a line to standard error, in place of the progress bar.
fn print_line(line: std::fmt::Arguments<'_>) {
    progress::without_bar(|| {
        // Ignore errors: if standard error is closed, nobody can read the message.
        let _ = writeln!(io::stderr().lock(), "{line}");
    });
}

/// Returns the message of an error and its causes. Skips a cause whose message is already part of an outer one.
pub fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |mut told, cause| {
        if !told.contains(&cause) {
            told = if told.is_empty() { cause } else { format!("{told}: {cause}") };
        }
        told
    })
}

/// Returns the first `most` names separated by commas, and the number of the rest.
pub fn some_of(names: &[&str], most: usize) -> String {
    let shown = names.iter().take(most).copied().map(printable).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(most) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// Formats a YAML string, quoted only if necessary.
pub fn yaml_word(text: &str) -> String {
    const RESERVED: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !RESERVED.contains(&&*text.to_ascii_lowercase());
    // A JSON string is a YAML string.
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// Escapes control characters. Names come from files and captures, and could otherwise send escape sequences to the terminal.
pub fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() }
}

/// Replaces everything except ASCII letters, digits, `-`, `.` and `_` with `_`, for use in a file name.
#[cfg(target_os = "linux")]
pub fn file_name(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    text.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
}

/// Formats an address, with the port unless it is 0.
pub fn end(address: IpAddr, port: u16) -> String {
    if port == 0 { address.to_string() } else { SocketAddr::new(address, port).to_string() }
}

/// Returns the names of the TCP flags that are set.
pub fn flag_names(flags: u8) -> Vec<&'static str> {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    NAMES.into_iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1).map(|(_, name)| name).collect()
}

/// Escapes text for a cell of a Markdown table.
pub fn markdown(text: &str) -> String {
    let text = printable(text).replace('\\', "\\\\").replace('|', "\\|").replace('*', "\\*").replace('`', "\\`");
    text.replace('<', "&lt;")
}

/// A text table. Each column is as wide as its widest cell. Columns of numbers are right-aligned.
#[derive(Debug, Default)]
pub struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Returns a table with these headings and no rows.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// Writes the table. The last column is not padded.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        let numeric = |at: usize| {
            let mut cells = self.rows.iter().skip(1).filter_map(|row| row.get(at));
            self.rows.len() > 1 && cells.all(|cell| !cell.is_empty() && cell.chars().all(|c| c.is_ascii_digit()))
        };
        let shape: Vec<_> = (0..columns).map(|at| (width(at).unwrap_or(0), numeric(at))).collect();
        for row in &self.rows {
            for (at, (cell, &(width, numeric))) in row.iter().zip(&shape).enumerate() {
                let gap = if at > 0 { "  " } else { "" };
                match (numeric, at + 1 == row.len()) {
                    (true, _) => write!(out, "{gap}{cell:>width$}")?,
                    (false, false) => write!(out, "{gap}{cell:<width$}")?,
                    (false, true) => write!(out, "{gap}{cell}")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe whose reader exits after this number of bytes. Flushing fails with another error once they are written.
    struct Pipe(usize);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            if self.0 == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn output_is_discarded_after_a_broken_pipe_and_only_then() {
        static HAS_EXITED: AtomicBool = AtomicBool::new(false);
        let mut out = Stdout { inner: Pipe(5), has_begun: false, has_exited: &HAS_EXITED };
        out.write_all(b"abcde").unwrap();
        assert_eq!(out.flush().unwrap_err().kind(), io::ErrorKind::StorageFull, "any other error is one");
        assert!(!HAS_EXITED.load(Ordering::Relaxed));
        out.write_all(b"f").unwrap();
        assert!(HAS_EXITED.load(Ordering::Relaxed));
        out.inner.0 = 100;
        out.write_all(b"abc").and_then(|()| out.flush()).unwrap();
        assert_eq!(out.inner.0, 100, "the pipe is not written again");
    }

    #[test]
    fn columns_line_up_and_numbers_stand_to_the_right() {
        let mut table = Columns::new(&["NAME", "PACKETS", "WHY"]);
        table.row(["a".into(), "5".into(), "x".into()]);
        table.row(["longer".into(), "1234".into(), "long reason".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let expected = "NAME    PACKETS  WHY\na             5  x\nlonger     1234  long reason\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = io::Error::other("no room");
        let with_its_cause = anyhow::anyhow!(cause).context("cannot write: no room\n  help: make some");
        assert_eq!(told(&with_its_cause), "cannot write: no room\n  help: make some");
        assert_eq!(told(&anyhow::anyhow!("no room").context("cannot write")), "cannot write: no room");
    }

    #[test]
    fn a_cell_of_a_markdown_table_stays_one() {
        assert_eq!(markdown("a|b *c* `d` <e>\n"), "a\\|b \\*c\\* \\`d\\` &lt;e>\\\\n");
    }

    #[test]
    fn a_hostile_name_cannot_command_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("web-1"), "web-1");
    }
}
