//! Client of the admin socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::protocol::{Answer, Failure, Request, VERSION};

/// Timeout for an answer. Workers answer the vswitch within milliseconds; it waits two seconds for a stuck one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum length of an answer in bytes. The tables of a node with hundreds of pods have some megabytes.
const LONGEST: u64 = 1 << 28;

/// Why the vswitch did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the socket.
    #[error("cannot reach a vswitch at {}: {source}\n  help: {}", socket.display(), help(source))]
    Unreachable {
        /// Path of the socket.
        socket: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The connection failed or timed out.
    #[error("the vswitch at {} does not respond: {source}", socket.display())]
    Silent {
        /// Path of the socket.
        socket: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The vswitch closed the connection.
    #[error("the vswitch at {} closed the connection without an answer", socket.display())]
    Ended {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The answer could not be parsed.
    #[error("cannot parse the answer of {}: {source}", socket.display())]
    NotUnderstood {
        /// Path of the socket.
        socket: PathBuf,
        /// The JSON parser's error.
        source: serde_json::Error,
    },
    /// The vswitch rejected the request.
    #[error("{}{}{}", .0.message, if .0.help.is_empty() { "" } else { "\n  help: " }, .0.help)]
    Failed(Failure),
}

fn help(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "start the vswitch, or pass --socket if its configuration has another path in admin.socket"
        }
        ErrorKind::PermissionDenied => "run the command as root",
        _ => "say --socket",
    }
}

/// Sends a request to the vswitch at this socket and parses its answer.
///
/// # Errors
/// If no vswitch answers, it rejects the request, or the answer cannot be parsed.
pub fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> anyhow::Result<T> {
    let answer = exchange(socket, request, PATIENCE)?;
    serde_json::from_value(answer).with_context(|| format!("cannot parse the answer of {}", socket.display()))
}

/// What SIGINT (Ctrl-C) and SIGTERM do to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnSignal {
    /// The process ends at once.
    Die,
    /// The stream ends, so that the caller can finish its output. A second signal ends the process at once.
    Finish,
}

/// Has the vswitch end the stream at the first signal: it does so once the client has closed its side.
fn finish_at_signal(stream: UnixStream) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for (count, signal) in signals.forever().enumerate() {
            // If the vswitch is gone or hangs, the next signal helps.
            if count > 0 || stream.shutdown(Shutdown::Write).is_err() {
                signal_hook::low_level::exit(128 + signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Starts a stream. Calls `begin` with the answer, then `each` with each line until it breaks or the stream ends.
///
/// # Errors
/// If no vswitch answers, it rejects the request, an answer cannot be parsed, or a callback fails.
pub(super) fn watch<T: DeserializeOwned>(
    socket: &Path,
    request: &Request,
    on_signal: OnSignal,
    mut begin: impl FnMut(T) -> anyhow::Result<()>,
    mut each: impl FnMut(&str) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    let place = || socket.to_owned();
    let silent = |source| AskError::Silent { socket: place(), source };
    let not_understood = |source| AskError::NotUnderstood { socket: place(), source };
    let mut stream = UnixStream::connect(socket).map_err(|source| AskError::Unreachable { socket: place(), source })?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
    let mut line = serde_json::to_value(request).map_err(not_understood)?;
    line["version"] = VERSION.into();
    writeln!(stream, "{line}").and_then(|()| stream.flush()).map_err(silent)?;
    let later = stream.try_clone().map_err(silent)?;
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    if (&mut reader).take(LONGEST).read_line(&mut text).map_err(silent)? == 0 {
        return Err(AskError::Ended { socket: place() }.into());
    }
    let answer: Answer = serde_json::from_str(&text).map_err(not_understood)?;
    if let Some(failure) = answer.failure {
        return Err(AskError::Failed(failure).into());
    }
    let answer = serde_json::from_value(answer.answer.unwrap_or_default()).map_err(not_understood)?;
    // From here on, silence means that nothing happens.
    later.set_read_timeout(None).map_err(silent)?;
    begin(answer)?;
    if on_signal == OnSignal::Finish {
        finish_at_signal(later).map_err(silent)?;
    }
    loop {
        text.clear();
        match (&mut reader).take(LONGEST).read_line(&mut text) {
            Ok(0) => return Ok(()),
            Ok(_) if each(text.trim_end())?.is_break() => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(silent(error).into()),
        }
    }
}

/// Sends one request and returns its answer. `patience` is the timeout of each read and write.
///
/// # Errors
/// If no answer is received.
pub fn exchange(socket: &Path, request: &impl Serialize, patience: Duration) -> Result<Value, AskError> {
    let place = || socket.to_owned();
    let silent = |source| AskError::Silent { socket: place(), source };
    let not_understood = |source| AskError::NotUnderstood { socket: place(), source };
    let mut stream = UnixStream::connect(socket).map_err(|source| AskError::Unreachable { socket: place(), source })?;
    stream.set_read_timeout(Some(patience)).map_err(silent)?;
    stream.set_write_timeout(Some(patience)).map_err(silent)?;
    let mut line = serde_json::to_value(request).map_err(not_understood)?;
    line["version"] = VERSION.into();
    writeln!(stream, "{line}").and_then(|()| stream.flush()).map_err(silent)?;
    let mut text = String::new();
    let length = match BufReader::new(stream.take(LONGEST)).read_line(&mut text) {
        // The vswitch closed the connection while we were writing.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
        read => read.map_err(silent)?,
    };
    if length == 0 {
        return Err(AskError::Ended { socket: place() });
    }
    let answer: Answer = serde_json::from_str(&text).map_err(not_understood)?;
    match answer.failure {
        Some(failure) => Err(AskError::Failed(failure)),
        None => Ok(answer.answer.unwrap_or_default()),
    }
}
