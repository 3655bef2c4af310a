//! Port deletions that the CNI plugin could not report because the vswitch was down.
//!
//! ```text
//!   DEL, the vswitch away --> /run/bulkhead/missed-deletions/bh....json --> the vswitch's next start    --> the file is removed
//!                                                                      `-> the next ADD, DEL or GC ----'
//! ```
//!
//! The CNI plugin writes the files, the vswitch reads them at its start. The plugin's next run reports files written during that start. The
//! folder is next to the vswitch's socket, and disappears on reboot like the ports.
//!
//! **Invariant.** Missed deletions are applied before a port is added. A reassigned address thus no longer belongs to the old pod, and no
//! port is removed that was added again later: the folder is locked meanwhile, and `ADD` waits for the lock. A starting vswitch has not
//! opened its socket yet.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::PortKey;

const FOLDER: &str = "missed-deletions";

/// Timeout for the lock. The holder waits for a few requests of milliseconds each; a stopped holder must not block the vswitch's start.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between attempts to lock.
const PAUSE: Duration = Duration::from_millis(10);

/// The port deletions that a vswitch missed while it was down, one file for each.
#[derive(Debug)]
pub struct Missed {
    folder: PathBuf,
}

/// Content of a file: one missed deletion.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    version: u32,
    container: String,
    container_interface: String,
}

/// Incremented when [`Entry`] changes incompatibly.
const VERSION: u32 = 1;

impl Missed {
    /// Returns the missed deletions of the vswitch with this socket.
    pub fn of(socket: &Path) -> Self {
        Self { folder: socket.parent().unwrap_or(Path::new("/")).join(FOLDER) }
    }

    /// Records that a port must be removed. `name` is the file's name, which must be the same for the same port.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&self, name: &str, key: PortKey) -> io::Result<()> {
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true).mode(0o700).create(&self.folder)?;
        let PortKey { container, container_interface } = key;
        let entry = Entry { version: VERSION, container, container_interface };
        let path = self.folder.join(name);
        let new = path.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, serde_json::to_vec(&entry)?)?;
        fs::rename(&new, path.with_extension("json")).inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// Calls `remove` for each missed deletion and deletes its file. Calls `warn` for unreadable files.
    ///
    /// # Errors
    /// The first error of `remove`. The files of this and later ports are kept.
    pub fn make_up<E>(&self, mut remove: impl FnMut(PortKey) -> Result<(), E>, warn: impl Fn(&str)) -> Result<(), E> {
        if self.files().is_empty() {
            return Ok(());
        }
        // Without the lock, a deletion may be applied twice, which violates only the invariant.
        let _lock = self.lock(PATIENCE).inspect_err(|error| warn(&format!("{}: {error}", self.folder.display())));
        for path in self.files() {
            match fs::read(&path).map(|text| serde_json::from_slice::<Entry>(&text)) {
                Ok(Ok(Entry { container, container_interface, .. })) => {
                    remove(PortKey { container, container_interface })?;
                }
                Ok(Err(error)) => warn(&format!("{}: removed, it is not understood: {error}", path.display())),
                // Another process was faster.
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

    fn lock(&self, patience: Duration) -> io::Result<File> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.folder.join("lock"))?;
        let deadline = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::*;

    fn key(container: &str) -> PortKey {
        PortKey { container: container.into(), container_interface: "eth0".into() }
    }

    #[test]
    fn what_was_missed_is_made_up_for_once_and_stays_when_it_cannot_be() {
        let scratch = crate::scratch::Scratch::new("missed-deletions");
        let missed = Missed::of(&scratch.path().join("admin.sock"));
        let no_warning = |text: &str| panic!("{text}");
        missed.make_up(Err, no_warning).unwrap();
        for container in ["c1", "c2", "c1"] {
            missed.keep(&format!("bh{container}"), key(container)).unwrap();
        }
        assert_eq!(missed.files().len(), 2, "of one container once");
        assert!(missed.make_up(Err, no_warning).is_err());
        assert_eq!(missed.files().len(), 2);
        let mut told = Vec::new();
        let remove = |key| -> Result<(), Infallible> {
            told.push(key);
            Ok(())
        };
        missed.make_up(remove, no_warning).unwrap();
        told.sort();
        assert_eq!(told, [key("c1"), key("c2")]);
        assert!(missed.files().is_empty());
    }

    #[test]
    fn whoever_holds_the_lock_holds_the_others_back_for_a_while_only() {
        let scratch = crate::scratch::Scratch::new("missed-lock");
        let missed = Missed::of(&scratch.path().join("admin.sock"));
        missed.keep("bhc1", key("c1")).unwrap();
        let held = missed.lock(Duration::ZERO).unwrap();
        let error = missed.lock(2 * PAUSE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        drop(held);
        assert!(missed.lock(Duration::ZERO).is_ok());
    }

    #[test]
    fn a_damaged_file_is_told_and_holds_nothing_back() {
        let scratch = crate::scratch::Scratch::new("missed-damaged");
        let missed = Missed::of(&scratch.path().join("admin.sock"));
        missed.keep("bhc1", key("c1")).unwrap();
        fs::write(missed.folder.join("damaged.json"), "{").unwrap();
        let (removed, warnings) = (RefCell::new(0), RefCell::new(Vec::new()));
        let remove = |_| -> Result<(), Infallible> {
            *removed.borrow_mut() += 1;
            Ok(())
        };
        missed.make_up(remove, |text| warnings.borrow_mut().push(text.to_owned())).unwrap();
        assert_eq!(*removed.borrow(), 1);
        assert!(warnings.borrow().len() == 1 && warnings.borrow()[0].contains("damaged.json"), "{warnings:?}");
        assert!(missed.files().is_empty());
    }
}
