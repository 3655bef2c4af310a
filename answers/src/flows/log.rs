//! Reads flow logs. Detects the format of each line, so a file may mix logs of several tools.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use bulkhead_dataplane::io::CaptureError;
use serde_json::Value;

use super::{MAX_FLOWS, Observations, Place, Read1, conntrack, hubble, own};
use crate::bundle::weight;

/// Maximum length of a line in bytes. Hubble's lines have a few thousand.
const MAX_LINE: u64 = 1 << 20;

/// Maximum size of a session list in bytes. `bulkhead sessions` lists up to 10,000 sessions of about 400 bytes.
const MAX_DOCUMENT: u64 = 1 << 23;

/// Maximum [weight](weight::of_line) of a JSON object: 10,000 sessions of 20 fields. A value needs many times the memory of its text.
const MAX_WEIGHT: u64 = 1 << 25;

/// Number of unreadable lines after which a file without a readable one is no flow log, even with --lenient.
const MAX_UNREAD: u64 = 1 << 20;

/// Maximum number of faults that are counted separately. Some of them quote the line.
const MAX_FAULTS: usize = 1000;

/// Why a flow log or a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be read.
    #[error("cannot read the flow log {file}: {error}")]
    Read {
        /// Path of the file.
        file: Arc<str>,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// A line cannot be parsed.
    #[error(
        "{file}:{line}: {fault}\n  help: a flow log is output of `hubble observe -o json`, `conntrack -L`, `conntrack -E -o timestamp` or \
         `bulkhead sessions -o json`; with --lenient, unreadable lines are counted and skipped"
    )]
    Line {
        /// Path of the file.
        file: Arc<str>,
        /// Line number, from 1.
        line: u64,
        /// What is wrong with the line.
        fault: String,
    },
    /// The capture is damaged. Packets before the damage were counted.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// There are more than [`MAX_FLOWS`] flows.
    #[error(
        "{place}: more than {MAX_FLOWS} flows: different clients, servers, ports and verdicts\n  help: read a log of a shorter time; with \
         --lenient, further flows are counted and left out"
    )]
    TooMany {
        /// Position of the first observation of a flow that was left out.
        place: Place,
    },
}

/// Reads a log to its end.
///
/// # Errors
/// [`LogError`] if the file cannot be read or, unless `into` is lenient, a line cannot be parsed or there are too many flows. Lines before it were
/// read.
pub fn read(file: &str, mut from: impl BufRead, into: &mut Observations) -> Result<(), LogError> {
    let name: Arc<str> = file.into();
    let failed = |error| LogError::Read { file: name.clone(), error };
    let (mut line, mut bytes) = (0, Vec::new());
    let (mut read, mut unread) = (0_u64, 0_u64);
    loop {
        bytes.clear();
        if (&mut from).take(MAX_LINE).read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
            return Ok(());
        }
        line += 1;
        let is_cut = bytes.len() as u64 == MAX_LINE && !bytes.ends_with(b"\n");
        let outcome = if is_cut {
            skip_line(&mut from).map_err(failed)?;
            Err(format!("the line exceeds {MAX_LINE} bytes"))
        } else if bytes.trim_ascii() == b"{" {
            // A document of several lines extends to the end of the file.
            (&mut from).take(MAX_DOCUMENT).read_to_end(&mut bytes).map_err(failed)?;
            document(&name, &bytes, line, into)
        } else {
            one(&name, &bytes, line, into)
        };
        match outcome {
            Ok(()) => (into.read, read) = (into.read + 1, read + 1),
            Err(_) if into.lenient && read == 0 && unread == MAX_UNREAD => {
                let fault = format!("neither this line nor the {MAX_UNREAD} before it can be read");
                return Err(LogError::Line { file: name, line, fault });
            }
            Err(fault) if into.lenient => {
                unread += 1;
                into.cannot_read(fault);
            }
            Err(fault) => return Err(LogError::Line { file: name, line, fault }),
        }
        into.check()?;
    }
}

impl Observations {
    /// Counts a line that cannot be read.
    fn cannot_read(&mut self, fault: String) {
        let is_counted = self.unread.len() < MAX_FAULTS || self.unread.contains_key(&fault);
        let fault = if is_counted { fault } else { "other faults".to_owned() };
        *self.unread.entry(fault).or_default() += 1;
    }
}

/// Skips the rest of a line without storing it.
fn skip_line(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = from.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let length = end.map_or(buffer.len(), |end| end + 1);
        from.consume(length);
        if end.is_some() {
            return Ok(());
        }
    }
}

fn one(file: &Arc<str>, bytes: &[u8], line: u64, into: &mut Observations) -> Read1 {
    let text = std::str::from_utf8(bytes).map_err(|_| "the line is not UTF-8 text".to_owned())?.trim();
    match text.chars().next() {
        None => Ok(()),
        Some('{') => document(file, text.as_bytes(), line, into),
        Some('[') if text.len() == 1 || text.starts_with("[{") || text.starts_with("[ {") => {
            Err("the line is a JSON array, but one flow per line is expected; convert it with `jq -c '.[]'`".to_owned())
        }
        Some(_) => conntrack::read(file, text, line, into),
    }
}

/// Parses a JSON object. Its fields identify the tool that wrote it.
fn document(file: &Arc<str>, bytes: &[u8], line: u64, into: &mut Observations) -> Read1 {
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(format!("the document exceeds {MAX_DOCUMENT} bytes"));
    }
    if weight::of_line(bytes) > MAX_WEIGHT {
        return Err("the JSON object has more values than a flow or a list of 10,000 sessions".to_owned());
    }
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("cannot parse the JSON object: {error}"))?;
    if value.get("sessions").is_some() {
        return own::read(file, &value, line, into);
    }
    hubble::read(file, &value, line, into)
}
