//! The admin socket: JSON lines for whoever may open the file.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::connections::{Place, Stage};
use super::{CONNECTIONS, Connections};
use crate::admin::{Answer, Failure, Request, read_request};
use crate::live::log;

/// Bytes of a request. The longest one names all containers of a node, which have IDs of 64 letters.
const LONGEST: u64 = 1 << 18;

/// How long a connection may say nothing.
const IDLE: Duration = Duration::from_secs(60);

/// How long a reader may take for one answer.
const WRITTEN: Duration = Duration::from_secs(10);

/// The socket's file. Dropped, it is removed if it is still this one.
pub(in crate::live) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Makes the file, for its owner only. What an earlier process has left there is replaced; one that is alive is not. None, which
    /// is said, when there can be none.
    pub(in crate::live) fn bind(path: &Path) -> Option<Self> {
        let name = path.display();
        if UnixStream::connect(path).is_ok() {
            log::warn(&format!(
                "no admin socket: another vswitch answers at {name}\nhelp: give each vswitch of a machine an admin.socket of its own"
            ));
            return None;
        }
        Self::try_bind(path)
            .inspect_err(|error| {
                log::warn(&format!(
                    "no admin socket: {name}: {error}\nhelp: name another place: admin: {{socket: PATH}}"
                ));
            })
            .ok()
    }

    fn try_bind(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Under another name until only its owner may open it.
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(format!(".{}", std::process::id()));
        let hidden = PathBuf::from(hidden);
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden)?;
        let placed = fs::set_permissions(&hidden, Permissions::from_mode(0o600))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::metadata(&hidden))
            .and_then(|made| fs::rename(&hidden, path).map(|()| made.ino()));
        let inode = placed.inspect_err(|_| {
            let _ = fs::remove_file(&hidden);
        })?;
        Ok(Self { listener, path: path.to_owned(), inode })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Has `answer` answer until this is dropped.
pub(in crate::live) async fn serve<A>(listener: Listener, answer: impl Fn(Request) -> A + Clone + Send + Sync + 'static)
where
    A: Future<Output = Result<Value, Failure>> + Send + 'static,
{
    let accepting = listener.listener.try_clone().and_then(tokio::net::UnixListener::from_std);
    let accepting = match accepting {
        Ok(accepting) => accepting,
        Err(error) => return log::error(&format!("the admin socket cannot be served: {error}")),
    };
    let connections = Connections::new(CONNECTIONS);
    loop {
        let Ok((stream, _)) = accepting.accept().await else {
            // Out of descriptors, for one: no reason to burn a core.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        connections.serve(|place| async move {
            // What goes wrong with a client is the client's.
            let _ = converse(stream, &place, answer).await;
        });
    }
}

async fn converse<A: Future<Output = Result<Value, Failure>>>(
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
                Ok(request) if !admits(&request, place) => Err(Failure::new(
                    "not_ready",
                    "too many ports are being added or removed at once",
                    "ask again later",
                )),
                Ok(request) => answer(request).await,
                Err(failure) => Err(failure),
            },
            false => Err(Failure::new("too_long", format!("a request has at most {LONGEST} bytes"), "")),
        };
        timeout(WRITTEN, write(&mut writer, &Answer::of(answer))).await??;
        place.enter(Stage::Answered);
        if !is_whole {
            return Ok(());
        }
    }
}

/// Whether there is room for what the connection is for now.
fn admits(request: &Request, place: &Place) -> bool {
    use Request::{AddPort, CheckPort, RemovePort, RetainPorts};
    let is_of_ports = matches!(request, AddPort(_) | RemovePort(_) | CheckPort(_) | RetainPorts { .. });
    place.enter(if is_of_ports { Stage::Changing } else { Stage::Asking })
}

async fn write(writer: &mut (impl AsyncWriteExt + Unpin), answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::scratch::Scratch;

    #[test]
    fn only_the_owner_may_open_the_socket_and_a_stale_one_is_replaced() {
        let scratch = Scratch::new("admin-socket");
        let path = scratch.path().join("run/admin.sock");
        let first = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Listener::bind(&path).is_none(), "the first one is alive");
        assert!(UnixStream::connect(&path).is_ok(), "and keeps its file");
        // What a killed process leaves: a file that nobody answers at.
        let stale = scratch.path().join("stale.sock");
        drop(UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        let taken = Listener::bind(&stale).unwrap();
        assert!(UnixStream::connect(&stale).is_ok());
        drop((first, taken));
        assert!(!path.exists() && !stale.exists());
    }
}
