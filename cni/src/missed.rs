//! Removals that the vswitch has missed while it was down, and that a later command delivers.

use super::daemon::{Daemon, failure};
use super::error::Code;
use bulkhead_answers::output;
use bulkhead_observe::admin::{AskError, Missed};

/// Delivers the recorded removals to the vswitch.
///
/// # Errors
/// [`AskError`] if the vswitch does not answer. Undelivered removals stay recorded.
pub(super) fn make_up(missed: &Missed, daemon: Daemon<'_>) -> Result<(), AskError> {
    let remove = |key| match daemon.remove_port(key) {
        Err(error) if failure(&error).code == Code::TryAgain => Err(error),
        // A retry would fail again.
        Err(error) => {
            output::warn(&format!("the vswitch refused to remove a port, and the removal is not retried: {error}"));
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    missed.make_up(remove, output::warn)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;
    use crate::scratch::Scratch;
    use bulkhead_observe::admin::PortKey;

    /// Starts a thread that answers the next `times` requests with `line`. It returns the requests.
    fn answer(socket: &Path, times: usize, line: &'static str) -> std::thread::JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let answered = (0..times).map(|_| {
                let (stream, _) = listener.accept().unwrap();
                let mut asked = String::new();
                BufReader::new(&stream).read_line(&mut asked).unwrap();
                writeln!(&stream, "{line}").unwrap();
                asked
            });
            answered.collect()
        })
    }

    fn keep(missed: &Missed, container: &str) {
        let key = PortKey { container: container.into(), container_interface: "eth0".into() };
        missed.keep(container, key).unwrap();
    }

    #[test]
    fn what_was_missed_is_told_once_and_stays_while_nobody_answers() {
        let scratch = Scratch::new("missed-told");
        let socket = scratch.path().join("admin.sock");
        let (missed, daemon) = (Missed::of(&socket), Daemon { socket: &socket });
        keep(&missed, "c1");
        keep(&missed, "c2");
        assert!(matches!(make_up(&missed, daemon), Err(AskError::Unreachable { .. })));
        let asked = answer(&socket, 2, r#"{"version":1,"answer":{"removed":true}}"#);
        make_up(&missed, daemon).unwrap();
        let asked = asked.join().unwrap().concat();
        for part in
            [r#""request":"remove_port""#, r#""container":"c1","container_interface":"eth0""#, r#""container":"c2""#]
        {
            assert!(asked.contains(part), "{asked}");
        }
        // No removal is left to deliver, so the missing vswitch causes no error.
        make_up(&missed, daemon).unwrap();
    }

    #[test]
    fn what_can_never_be_made_up_for_holds_nothing_back() {
        let scratch = Scratch::new("missed-for-good");
        let socket = scratch.path().join("admin.sock");
        let (missed, daemon) = (Missed::of(&socket), Daemon { socket: &socket });
        keep(&missed, "c1");
        let refusal = r#"{"version":1,"failure":{"code":"malformed","message":"no","help":""}}"#;
        let asked = answer(&socket, 1, refusal);
        make_up(&missed, daemon).unwrap();
        assert_eq!(asked.join().unwrap().len(), 1);
        make_up(&missed, daemon).unwrap();
    }
}
