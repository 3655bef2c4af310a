//! Receives signals, and announces that the vswitch is ready.

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

/// A stop signal within this time after the first is the same request: `timeout` and `sudo` forward a signal that their process group also
/// receives.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// A request that arrives as a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// SIGTERM, SIGINT: stop.
    Stop,
    /// SIGUSR1: print the summary.
    Summary,
    /// SIGHUP: check the files now. Daemons reload on SIGHUP, and ending the vswitch would cut off all pods.
    Look,
}

/// Distinguishes a second stop signal from a repetition of the first.
#[derive(Debug, Default)]
struct Stopping {
    /// When the first stop signal arrived. `None` before it.
    since: Option<Instant>,
}

impl Stopping {
    /// Whether a stop signal at this time must end the process at once.
    fn is_urgent(&mut self, now: Instant) -> bool {
        now.duration_since(*self.since.get_or_insert(now)) >= SAME_REQUEST
    }
}

/// Receives signals from now on. Without this, SIGUSR1 and SIGHUP would end the process. A second stop signal ends the process at once: the
/// kernel releases the interfaces, and no summary is printed. A closed channel means stop: the listener is dead, and only SIGKILL would
/// still end the vswitch.
///
/// # Errors
/// If the signal handlers cannot be installed, or the thread cannot be started.
pub(super) fn listen() -> io::Result<Receiver<Request>> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])?;
    let (tell, requests) = crossbeam_channel::unbounded();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stopping = Stopping::default();
        for signal in signals.forever() {
            let request = match signal {
                SIGUSR1 => Request::Summary,
                SIGHUP => Request::Look,
                // The exit code with which shells report a signal.
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

/// Checks that the ready file can be written later, without writing it.
///
/// # Errors
/// If its folder does not exist, or the path is a folder.
pub(super) fn check_ready_file(path: &Path) -> io::Result<()> {
    // `ready` has the parent ``, which means the current folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !std::fs::metadata(folder)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
}

/// Announces that forwarding has started: writes `ready_file` and notifies systemd (`Type=notify`).
///
/// # Errors
/// If the file cannot be written, or systemd cannot be notified.
pub(super) fn announce_ready(ready_file: Option<&Path>) -> io::Result<()> {
    if let Some(path) = ready_file {
        std::fs::write(path, format!("{}\n", std::process::id()))?;
    }
    std::env::var_os("NOTIFY_SOCKET").map_or(Ok(()), |name| notify(&name))
}

/// Sends a datagram to this socket, as sd_notify(3). A leading `@` marks an abstract name.
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
        // The time counts from the first signal: repeated signals do not restart it.
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
