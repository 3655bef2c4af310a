//! What the outside tells a running vswitch, and what it tells the outside.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// A signal to stop that comes so soon after the first is the same request: `timeout` and `sudo` pass a signal on that
/// their whole process group gets as well.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// SIGTERM, SIGINT: stop.
    Stop,
    /// SIGUSR1: print the summary.
    Summary,
    /// SIGHUP: look at the files now. To daemons it means to reload, and ending one would cut all pods off.
    Look,
}

/// Tells the second signal to stop from the first.
#[derive(Debug, Default)]
struct Stopping {
    /// When the first one came.
    since: Option<Instant>,
}

impl Stopping {
    /// Whether a signal to stop that comes now is not to wait for anything.
    fn is_urgent(&mut self, now: Instant) -> bool {
        now.duration_since(*self.since.get_or_insert(now)) >= SAME_REQUEST
    }
}

/// Receives signals from now on, as requests; without it SIGUSR1 and SIGHUP would end the process. A second signal to stop ends
/// the process at once, whatever it waits for: the kernel gives the interfaces back, and nothing is printed. A channel that is
/// closed means to stop: the listener has died, and nobody could stop the vswitch any more but by force.
///
/// # Errors
/// When the system does not let it.
pub(super) fn listen() -> io::Result<Receiver<Request>> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])?;
    let (tell, requests) = crossbeam_channel::unbounded();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stopping = Stopping::default();
        for signal in signals.forever() {
            let request = match signal {
                SIGUSR1 => Request::Summary,
                SIGHUP => Request::Look,
                // As the shell shows that a signal has ended a program.
                _ if stopping.is_urgent(Instant::now()) => signal_hook::low_level::exit(128 + signal),
                _ => Request::Stop,
            };
            if tell.send(request).is_err() {
                break;
            }
        }
    })?;
    Ok(requests)
}

/// Whether the ready file can be written when its time comes, as far as can be told without writing it.
///
/// # Errors
/// When it cannot.
pub(super) fn check_ready_file(path: &Path) -> io::Result<()> {
    // `ready` has the parent ``, which stands for the current folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !std::fs::metadata(folder)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
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
    fn a_second_signal_to_stop_is_urgent_and_the_same_one_passed_on_is_not() {
        let (mut stopping, first) = (Stopping::default(), Instant::now());
        assert!(!stopping.is_urgent(first), "the first one stops it in order");
        assert!(!stopping.is_urgent(first) && !stopping.is_urgent(first + SAME_REQUEST / 2));
        // Counted from the first: whoever asks again and again is heard.
        assert!(stopping.is_urgent(first + SAME_REQUEST) && stopping.is_urgent(first + SAME_REQUEST * 60));
    }

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
    fn a_ready_file_that_has_no_folder_is_found_before_it_is_written() {
        let folder = std::env::temp_dir();
        assert!(check_ready_file(Path::new("ready")).is_ok() && check_ready_file(&folder.join("ready")).is_ok());
        for wrong in [folder.join("no-such-folder/ready"), folder, "/dev/null/ready".into()] {
            assert!(check_ready_file(&wrong).is_err(), "{}", wrong.display());
        }
    }

    #[test]
    fn the_ready_file_holds_the_process_id() {
        let path = std::env::temp_dir().join(format!("bulkhead-ready-{}", std::process::id()));
        announce_ready(Some(&path)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        std::fs::remove_file(&path).unwrap();
    }
}
