//! The side that asks.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::de::DeserializeOwned;

use super::protocol::{Answer, Request, VERSION};

/// How long to wait for an answer. The vswitch asks its workers, which answer in milliseconds; one that is stuck is given two
/// seconds there.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longer answers are none: all tables of a node with hundreds of pods have some megabytes.
const LONGEST: u64 = 1 << 28;

/// Asks the vswitch at this socket.
///
/// # Errors
/// When none answers, with the remedy; or what it says is wrong.
pub(super) fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> anyhow::Result<T> {
    let name = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| {
        let help = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "no vswitch runs here, or its configuration names another socket (admin.socket); say --socket"
            }
            ErrorKind::PermissionDenied => "only root may ask",
            _ => "say --socket",
        };
        anyhow!("cannot reach a vswitch at {name}: {error}\n  help: {help}")
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_value(request)?;
    line["version"] = VERSION.into();
    let told = writeln!(stream, "{line}").and_then(|()| stream.flush());
    told.with_context(|| format!("cannot ask the vswitch at {name}"))?;
    let mut text = String::new();
    let read = BufReader::new(stream.take(LONGEST)).read_line(&mut text);
    let length = read.with_context(|| format!("the vswitch at {name} does not answer"))?;
    if length == 0 {
        bail!("the vswitch at {name} has ended the connection without an answer");
    }
    let answer: Answer =
        serde_json::from_str(&text).with_context(|| format!("the answer of {name} is not understood"))?;
    match (answer.answer, answer.failure) {
        (_, Some(failure)) if failure.help.is_empty() => bail!("{}", failure.message),
        (_, Some(failure)) => bail!("{}\n  help: {}", failure.message, failure.help),
        (Some(value), None) => {
            serde_json::from_value(value).with_context(|| format!("the answer of {name} is not understood"))
        }
        (None, None) => bail!("the vswitch at {name} has answered nothing"),
    }
}
