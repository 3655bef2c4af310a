//! Serves the admin socket: one JSON line per request and answer. The socket file's mode controls who may connect.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::connections::{Place, Stage};
use super::{CONNECTIONS, Connections};
use crate::listener::Listener;
use crate::stream::StreamCounts;
use bulkhead_observe::admin::{Answer, Failure, Request, read_request};

/// Maximum request length in bytes. The longest request lists all containers of a node, whose IDs have 64 characters.
const LONGEST: u64 = 1 << 18;

/// Connections are closed after this time without a request.
const IDLE: Duration = Duration::from_secs(60);

/// How long a client may take to read one answer.
const WRITTEN: Duration = Duration::from_secs(10);

/// The answer to a request.
pub(crate) enum Reply {
    /// A single JSON value.
    Value(Value),
    /// A JSON value, followed by a stream of lines, with the counters of streams.
    Lines(Value, Receiver<String>, Arc<StreamCounts>),
}

/// Maximum bytes of lines written with one call.
const BATCH: usize = 1 << 16;

/// Serves requests with `answer` until the future is dropped.
pub(crate) async fn serve<A>(listener: Listener, answer: impl Fn(Request) -> A + Clone + Send + Sync + 'static)
where
    A: Future<Output = Result<Reply, Failure>> + Send + 'static,
{
    let Some(accepting) = listener.accepting("the admin socket") else { return };
    let connections = Connections::new(CONNECTIONS);
    loop {
        let Ok((stream, _)) = accepting.accept().await else {
            // For example, the process has no descriptors left. Avoids a busy loop.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        connections.serve(|place| async move {
            // A client's errors concern only that client.
            let _ = converse(stream, &place, answer).await;
        });
    }
}

async fn converse<A: Future<Output = Result<Reply, Failure>>>(
    stream: tokio::net::UnixStream,
    place: &Place,
    answer: impl Fn(Request) -> A,
) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = timeout(IDLE, (&mut reader).take(LONGEST).read_until(b'\n', &mut line)).await??;
        if read == 0 {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n");
        let answer = match is_whole || line.len() < usize::try_from(LONGEST).unwrap_or(usize::MAX) {
            true => match read_request(&line) {
                Ok(request) if !admits(&request, place) => Err(no_room(&request)),
                Ok(request) => answer(request).await,
                Err(failure) => Err(failure),
            },
            false => Err(Failure::new("too_long", format!("a request has at most {LONGEST} bytes"), "")),
        };
        let (answer, lines) = match answer {
            Ok(Reply::Value(value)) => (Ok(value), None),
            Ok(Reply::Lines(value, lines, counts)) => (Ok(value), Some((lines, counts))),
            Err(failure) => (Err(failure), None),
        };
        timeout(WRITTEN, write(&mut writer, &Answer::of(answer))).await??;
        if let Some((lines, counts)) = lines {
            let written = write_lines(&mut reader, &mut writer, lines).await;
            let is_stuck = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
            counts.disconnected.fetch_add(u64::from(is_stuck), Ordering::Relaxed);
            return written;
        }
        place.enter(Stage::Answered);
        if !is_whole {
            return Ok(());
        }
    }
}

/// Writes lines until the stream ends, or the client sends a byte or disconnects.
///
/// # Errors
/// The client does not read.
async fn write_lines(
    reader: &mut (impl AsyncReadExt + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    mut lines: Receiver<String>,
) -> io::Result<()> {
    let mut byte = [0];
    loop {
        let first = tokio::select! {
            line = lines.recv() => line,
            _ = reader.read(&mut byte) => return Ok(()),
        };
        let Some(mut batch) = first else { return Ok(()) };
        while batch.len() < BATCH
            && let Ok(line) = lines.try_recv()
        {
            batch.push_str(&line);
        }
        timeout(WRITTEN, writer.write_all(batch.as_bytes())).await??;
    }
}

/// Whether the limits have room for a connection with this request.
fn admits(request: &Request, place: &Place) -> bool {
    use Request::{AddPort, CheckPort, Monitor, RemovePort, RetainPorts, Trace};
    place.enter(match request {
        AddPort(_) | RemovePort(_) | CheckPort(_) | RetainPorts { .. } => Stage::Changing,
        Monitor(_) | Trace(_) => Stage::Watching,
        _ => Stage::Asking,
    })
}

/// Returns the error for a request whose stage is full. Other stages end their oldest connection instead.
fn no_room(request: &Request) -> Failure {
    match request {
        Request::Monitor(_) | Request::Trace(_) => {
            let message = format!("{} clients watch already, which is the limit", CONNECTIONS.watching);
            Failure::new("busy", message, "end a monitor, trace or capture that nobody reads")
        }
        _ => Failure::new("not_ready", "too many clients wait for ports", "ask again later"),
    }
}

async fn write(writer: &mut (impl AsyncWriteExt + Unpin), answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_cannot_watch_is_told_that_too_many_do_and_one_who_adds_a_port_that_too_many_wait() {
        let refused = |text: &[u8]| {
            let Failure { code, message, .. } = no_room(&read_request(text).unwrap());
            format!("{code}: {message}")
        };
        let watching = "busy: 16 clients watch already, which is the limit";
        assert_eq!(refused(br#"{"version":1,"request":"monitor"}"#), watching);
        assert_eq!(refused(br#"{"version":1,"request":"trace","arguments":{}}"#), watching);
        let removes =
            br#"{"version":1,"request":"remove_port","arguments":{"container":"c","container_interface":"eth0"}}"#;
        assert_eq!(refused(removes), "not_ready: too many clients wait for ports");
    }
}
