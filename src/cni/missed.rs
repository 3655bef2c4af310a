//! Ports that the vswitch has to forget and was not there to be told.
//!
//! ```text
//!   DEL, the vswitch away --> /run/bulkhead/missed-deletions/bh....json --> the next ADD, DEL or GC tells it --> the file is removed
//! ```
//!
//! The folder is beside the vswitch's socket, and gone after a reboot as its ports are.
//!
//! **Invariant.** What was missed is made up for before a port is added, so an address that is given to another pod is not still the
//! old one's, and nobody takes a port away that was added again in the meantime: whoever makes up for something holds the folder's lock,
//! and `ADD` waits for it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::attachment::Attachment;
use super::daemon::{Daemon, failure};
use super::error::Code;
use crate::admin::{AskError, PortKey};
use crate::output;

/// The folder's name.
const FOLDER: &str = "missed-deletions";

/// See the module.
#[derive(Debug)]
pub(super) struct Missed {
    folder: PathBuf,
}

/// A file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    version: u32,
    container: String,
    container_interface: String,
}

/// Counts the changes of [`Entry`].
const VERSION: u32 = 1;

impl Missed {
    /// What was missed by the vswitch with this socket.
    pub(super) fn of(socket: &Path) -> Self {
        Self { folder: socket.parent().unwrap_or(Path::new("/")).join(FOLDER) }
    }

    /// Keeps for later that a port is to be removed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn keep(&self, attachment: &Attachment) -> io::Result<()> {
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true).mode(0o700).create(&self.folder)?;
        let Attachment { container, interface, .. } = attachment.clone();
        let entry = Entry { version: VERSION, container, container_interface: interface };
        let path = self.folder.join(attachment.node_end());
        let new = path.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, serde_json::to_vec(&entry)?)?;
        fs::rename(&new, path.with_extension("json")).inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// Tells the vswitch what it has missed.
    ///
    /// # Errors
    /// When it does not answer: what it was not told stays.
    pub(super) fn make_up(&self, daemon: Daemon<'_>) -> Result<(), AskError> {
        if self.files().is_empty() {
            return Ok(());
        }
        // Without a lock it would be made up for twice, which is as good but for the invariant.
        let _lock = self.lock().inspect_err(|error| output::warn(&format!("{}: {error}", self.folder.display())));
        for path in self.files() {
            match fs::read(&path).map(|text| serde_json::from_slice::<Entry>(&text)) {
                Ok(Ok(Entry { container, container_interface, .. })) => {
                    match daemon.remove_port(PortKey { container, container_interface }) {
                        Err(error) if failure(&error).code == Code::TryAgain => return Err(error),
                        // To ask again would not help.
                        Err(error) => output::warn(&format!("{}: removed, {error}", path.display())),
                        Ok(()) => {}
                    }
                }
                Ok(Err(error)) => output::warn(&format!("{}: removed, it is not understood: {error}", path.display())),
                // Somebody else was quicker.
                Err(_) => continue,
            }
            let _ = fs::remove_file(&path);
        }
        Ok(())
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
    }

    fn lock(&self) -> io::Result<File> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.folder.join("lock"))?;
        file.lock()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn attachment(container: &str) -> Attachment {
        Attachment { network: "pods".into(), container: container.into(), interface: "eth0".into() }
    }

    /// Answers so many requests with this line. Returns what was asked.
    fn answer(listener: UnixListener, times: usize, line: &'static str) -> std::thread::JoinHandle<Vec<String>> {
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

    #[test]
    fn what_was_missed_is_made_up_for_once_and_stays_while_nobody_answers() {
        let scratch = crate::live::scratch::Scratch::new("missed-deletions");
        let socket = scratch.path().join("admin.sock");
        let (missed, daemon) = (Missed::of(&socket), Daemon { socket: &socket });
        missed.make_up(daemon).unwrap();
        for container in ["c1", "c2", "c1"] {
            missed.keep(&attachment(container)).unwrap();
        }
        assert_eq!(missed.files().len(), 2, "of one container once");
        assert!(matches!(missed.make_up(daemon), Err(AskError::Unreachable { .. })));
        assert_eq!(missed.files().len(), 2);

        let asked = answer(UnixListener::bind(&socket).unwrap(), 2, r#"{"version":1,"answer":{"removed":true}}"#);
        missed.make_up(daemon).unwrap();
        let asked = asked.join().unwrap().concat();
        for part in
            [r#""request":"remove_port""#, r#""container":"c1","container_interface":"eth0""#, r#""container":"c2""#]
        {
            assert!(asked.contains(part), "{asked}");
        }
        assert!(missed.files().is_empty());
    }

    #[test]
    fn what_can_never_be_made_up_for_holds_nothing_back() {
        let scratch = crate::live::scratch::Scratch::new("missed-for-good");
        let socket = scratch.path().join("admin.sock");
        let (missed, daemon) = (Missed::of(&socket), Daemon { socket: &socket });
        missed.keep(&attachment("c1")).unwrap();
        fs::write(missed.folder.join("damaged.json"), "{").unwrap();
        let refusal = r#"{"version":1,"failure":{"code":"malformed","message":"no","help":""}}"#;
        let asked = answer(UnixListener::bind(&socket).unwrap(), 1, refusal);
        missed.make_up(daemon).unwrap();
        assert_eq!(asked.join().unwrap().len(), 1);
        assert!(missed.files().is_empty());
    }
}
