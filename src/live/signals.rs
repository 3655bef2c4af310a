//! What the outside tells a running vswitch, and what it tells the outside.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// SIGTERM, SIGINT: stop.
    Stop,
    /// SIGUSR1: print the summary.
    Summary,
}

/// Receives signals from now on; without it SIGUSR1 would end the process.
pub(super) struct Requests(Receiver<Request>);

impl Requests {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the system does not let it.
    pub(super) fn listen() -> io::Result<Self> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
        let (tell, requests) = crossbeam_channel::unbounded();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                let request = if signal == SIGUSR1 { Request::Summary } else { Request::Stop };
                if tell.send(request).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self(requests))
    }

    /// Waits for a request, none when the time is over first.
    pub(super) fn wait(&self, time: Duration) -> Option<Request> {
        match self.0.recv_timeout(time) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            // The listener has died: nobody could stop the vswitch any more but by force.
            Err(RecvTimeoutError::Disconnected) => Some(Request::Stop),
        }
    }
}

/// Says that forwarding has started: to whoever waits for `ready_file`, and to systemd (`Type=notify`).
///
/// # Errors
/// When the file cannot be written, or systemd cannot be told.
pub(super) fn announce_ready(ready_file: Option<&Path>) -> io::Result<()> {
    if let Some(path) = ready_file {
        std::fs::write(path, format!("{}\n", std::process::id()))?;
    }
    std::env::var_os("NOTIFY_SOCKET").map_or(Ok(()), |name| notify(&name))
}

/// sd_notify(3): a datagram to the socket of this name; `@` stands for an abstract one.
fn notify(name: &OsStr) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(Path::new(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_told_at_a_path_and_at_an_abstract_name() {
        let path = std::env::temp_dir().join(format!("bulkhead-notify-{}", std::process::id()));
        let name = format!("bulkhead-notify-{}", std::process::id());
        let listeners = [
            (path.as_os_str().to_owned(), UnixDatagram::bind(&path).unwrap()),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap(),
            ),
        ];
        for (name, listener) in listeners {
            notify(&name).unwrap();
            let mut text = [0; 16];
            let len = listener.recv(&mut text).unwrap();
            assert_eq!(&text[..len], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(notify(path.as_os_str()).is_err(), "nobody listens");
    }

    #[test]
    fn the_ready_file_holds_the_process_id() {
        let path = std::env::temp_dir().join(format!("bulkhead-ready-{}", std::process::id()));
        announce_ready(Some(&path)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        std::fs::remove_file(&path).unwrap();
    }
}
