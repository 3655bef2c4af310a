//! Detects changes of files: inotify says when to look, and a comparison of the files' size, times and identity says whether they changed.
//!
//! ```text
//!   inotify --> [ events ] --wake--> look --as before--> wait for an event, at most SAFETY
//!                                     ^ `--different--> look again after REST --the same--> read
//!                                     `--changing------------'
//! ```
//! A file is not read while it is being written: a change counts when two looks in a row see the same, and the reader looks once more after
//! it has read. Half of a policy file is a valid but different state, so programs should write a new file and rename it.
//!
//! inotify does not report what another machine changes on a network file system. Files there, and those that the kernel does not let watch,
//! are polled every [`INTERVAL`], which costs a thousandth of a core for a few files.

mod events;

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, never};

use crate::log;
use events::FileEvents;

/// Interval of looks at files whose changes the kernel does not report. With [`REST`] and compiling, it must fit into the 100 ms within
/// which a change takes effect.
const INTERVAL: Duration = Duration::from_millis(50);

/// Interval of looks at files whose changes the kernel reports. Only what happens outside of the file system needs them, such as a mount
/// over a folder.
const SAFETY: Duration = Duration::from_secs(30);

/// Minimum time between two looks. A file that looks the same after it is no longer being written.
const REST: Duration = Duration::from_millis(15);

/// The pause after a look is at least this many times as long as the look: a large folder on a slow disk is looked at less often.
const SHARE: u32 = 20;

/// Maximum depth of folders, as when reading: a link to a parent folder would never end.
const MAX_DEPTH: usize = 32;

/// Identifies one version of a file. The inode, because a rename may keep size and times. The change time, because a program can set the
/// modification time but not this one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    path: PathBuf,
    file: Option<(u64, u64, u64, i64, i64, i64, i64)>,
    /// Whether reading may never end: a pipe, a socket or a device.
    endless: bool,
}

/// The versions of all watched files at one time.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Look(Vec<Version>);

impl Look {
    /// Reads the versions of the files at these paths, and in folders.
    pub(crate) fn at(paths: &[PathBuf]) -> Self {
        let mut look = Self::default();
        for path in paths {
            look.add(path, MAX_DEPTH);
        }
        look
    }

    fn add(&mut self, path: &Path, depth: usize) {
        let file = fs::metadata(path).ok();
        let is_folder = file.as_ref().is_some_and(Metadata::is_dir);
        let endless = file.as_ref().is_some_and(|file| !file.is_dir() && !file.is_file());
        let identity = |file: Metadata| {
            let (size, mtime) = (file.size(), (file.mtime(), file.mtime_nsec()));
            (file.dev(), file.ino(), size, mtime.0, mtime.1, file.ctime(), file.ctime_nsec())
        };
        self.0.push(Version { path: path.to_owned(), file: file.map(identity), endless });
        if !is_folder || depth == 0 {
            return;
        }
        let mut inside: Vec<PathBuf> = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
        inside.sort();
        for path in inside {
            self.add(&path, depth - 1);
        }
    }
}

/// Watches files and folders for changes.
#[derive(Debug)]
pub(crate) struct Watch {
    paths: Vec<PathBuf>,
    /// The files' versions when the caller last read them.
    read: Look,
    /// The files' versions at the last look.
    last: Look,
    /// The kernel's events. `None` if it reports none: the files are polled.
    events: Option<FileEvents>,
    /// When to look next if no event arrives.
    next: Instant,
    /// When an event may cause the next look.
    earliest: Instant,
}

impl Watch {
    /// Watches from now on: any later change is reported.
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        let now = Instant::now();
        let (paths, events) = (paths.to_vec(), watch(paths));
        let mut watch = Self { paths, read: Look::default(), last: Look::default(), events, next: now, earliest: now };
        watch.look();
        watch.read = watch.last.clone();
        watch
    }

    /// Makes the next [`Self::has_changed`] look, however short ago the last look was.
    pub(crate) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Returns when to call [`Self::has_changed`] if no event arrives.
    pub(crate) const fn next_look(&self) -> Instant {
        self.next
    }

    /// Returns the channel of the kernel's events. Pass what it receives to [`Self::hear`].
    pub(crate) fn events(&self) -> Receiver<()> {
        self.events.as_ref().map_or_else(never, |events| events.told().clone())
    }

    /// Takes an event, after which the files may have changed. If the kernel's events have ended, the files are polled from now on.
    pub(crate) fn hear(&mut self, event: Result<(), RecvError>) {
        if event.is_err() {
            self.events = None;
        }
        self.next = self.next.min(self.earliest);
    }

    /// Waits until [`Self::has_changed`] must look.
    pub(crate) fn wait(&mut self) {
        while let Some(left) = self.next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            match self.events().recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) => self.hear(Ok(())),
                Err(RecvTimeoutError::Disconnected) => self.hear(Err(RecvError)),
            }
        }
    }

    /// Looks now. Returns whether the files are the same as when they were last read.
    pub(crate) fn is_read(&self) -> bool {
        Look::at(&self.paths) == self.read
    }

    /// Returns a path that was neither a file nor a folder at the last look, as reading it may never end. Ignores names in folders that are
    /// not read. `None` if all paths are files or folders.
    pub(crate) fn endless(&self) -> Option<&Path> {
        let is_read = |path: &Path| {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            self.paths.iter().any(|named| named == path)
                || ["yaml", "yml", "json"].iter().any(|known| ending.eq_ignore_ascii_case(known))
        };
        self.last.0.iter().find(|version| version.endless && is_read(&version.path)).map(|version| &*version.path)
    }

    /// Whether the files have changed and are no longer being written. The caller must then read them and call [`Watch::was_read`].
    pub(crate) fn has_changed(&mut self) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        let before = std::mem::take(&mut self.last);
        self.look();
        let (at_rest, has_changed) = (self.last == before, self.last != self.read);
        if has_changed && !at_rest {
            self.next = self.earliest;
        }
        at_rest && has_changed
    }

    /// Looks at the files, and sets the times of the next look.
    fn look(&mut self) {
        let started = Instant::now();
        // First the watches: a change after the look causes an event.
        let is_told = self.events.as_ref().is_some_and(|events| events.follow(&self.paths));
        self.last = Look::at(&self.paths);
        let share = started.elapsed() * SHARE;
        self.earliest = started + REST.max(share);
        self.next = started + if is_told { SAFETY } else { INTERVAL.max(share) };
    }

    /// Records that the files were read after [`Watch::has_changed`]. Returns false if they changed meanwhile: the caller must discard what
    /// it read, and the change is reported again.
    pub(crate) fn was_read(&mut self) -> bool {
        let now = Look::at(&self.paths);
        let same = now == self.last;
        if same {
            self.read = now;
        } else {
            self.last = now;
            self.next = Instant::now() + REST;
        }
        same
    }
}

/// Returns a source of events. `None` if there is nothing to watch, or the kernel refuses (logged).
fn watch(paths: &[PathBuf]) -> Option<FileEvents> {
    let events = (!paths.is_empty()).then(FileEvents::new)?;
    let events = events.inspect_err(|error| {
        log::warn(&format!("the kernel does not report changes of files; they are polled 20 times a second: {error}"));
    });
    events.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::symlink;

    /// Looks without waiting, so that no test depends on time.
    fn look(watch: &mut Watch) -> bool {
        watch.next = Instant::now();
        watch.has_changed()
    }

    #[test]
    fn a_change_counts_when_the_file_has_come_to_rest() {
        let folder = Scratch::new("watch-rest");
        let file = folder.write("a", "1");
        let mut watch = Watch::new(std::slice::from_ref(&file));
        assert!(!look(&mut watch) && !look(&mut watch));
        fs::write(&file, "22").unwrap();
        assert!(!look(&mut watch), "it may still be written");
        fs::write(&file, "333").unwrap();
        assert!(!look(&mut watch), "indeed it was");
        assert!(look(&mut watch));
        assert!(watch.was_read());
        assert!(!look(&mut watch));
    }

    #[test]
    fn what_changes_while_it_is_read_is_read_again() {
        let folder = Scratch::new("watch-again");
        let file = folder.write("a", "1");
        let mut watch = Watch::new(std::slice::from_ref(&file));
        fs::write(&file, "22").unwrap();
        assert!(!look(&mut watch));
        assert!(look(&mut watch));
        fs::write(&file, "333").unwrap();
        assert!(!watch.was_read());
        assert!(look(&mut watch) && watch.was_read());
    }

    #[test]
    fn an_event_makes_a_look_due_that_nothing_else_would_have_caused_soon() {
        let folder = Scratch::new("watch-event");
        let file = folder.write("a", "1");
        let mut watch = Watch::new(std::slice::from_ref(&file));
        assert!(watch.next_look() > Instant::now() + INTERVAL * 100, "the files are not polled");
        fs::write(&file, "22").unwrap();
        while !watch.has_changed() {
            watch.wait();
        }
        assert!(watch.was_read() && watch.next_look() < Instant::now() + SAFETY);
    }

    #[test]
    fn what_the_kernel_reports_no_changes_of_is_polled() {
        let watch = Watch::new(&["/proc/self/status".into()]);
        assert!(watch.next_look() < Instant::now() + INTERVAL * 100);
        let folder = Scratch::new("watch-polled");
        let file = folder.write("a", "1");
        let mut watch = Watch::new(std::slice::from_ref(&file));
        // The kernel's events end.
        watch.hear(Err(RecvError));
        fs::write(&file, "22").unwrap();
        while !watch.has_changed() {
            watch.wait();
        }
        assert!(watch.was_read() && watch.next_look() < Instant::now() + INTERVAL * 100);
    }

    #[test]
    fn renaming_removing_and_files_in_folders_are_changes() {
        let folder = Scratch::new("watch-rename");
        folder.write("a", "1");
        let new = folder.write("b", "2");
        let mut watch = Watch::new(&[folder.path().to_owned()]);
        let mut changed = |what: &str| {
            look(&mut watch);
            assert!(look(&mut watch) && watch.was_read(), "{what}");
        };
        fs::rename(&new, folder.path().join("a")).unwrap();
        changed("another file by the same name");
        fs::remove_file(folder.path().join("a")).unwrap();
        changed("removed");
        fs::create_dir(folder.path().join("below")).unwrap();
        folder.write("below/c", "3");
        changed("below");
    }

    #[test]
    fn a_config_map_that_points_its_link_elsewhere_has_changed() {
        let folder = Scratch::new("watch-configmap");
        fs::create_dir(folder.path().join("..1")).unwrap();
        fs::create_dir(folder.path().join("..2")).unwrap();
        folder.write("..1/state.yaml", "same");
        folder.write("..2/state.yaml", "same");
        symlink("..1", folder.path().join("..data")).unwrap();
        symlink("..data/state.yaml", folder.path().join("state.yaml")).unwrap();
        let mut watch = Watch::new(&[folder.path().join("state.yaml")]);
        symlink("..2", folder.path().join("..new")).unwrap();
        fs::rename(folder.path().join("..new"), folder.path().join("..data")).unwrap();
        look(&mut watch);
        assert!(look(&mut watch));
    }

    #[test]
    fn what_may_never_end_is_named_where_it_would_be_read() {
        let folder = Scratch::new("watch-endless");
        folder.write("a.yaml", "1");
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        assert_eq!(Watch::new(&[folder.path().to_owned()]).endless(), None, "nobody reads this name");
        symlink("socket", folder.path().join("b.yaml")).unwrap();
        assert_eq!(Watch::new(&[folder.path().to_owned()]).endless(), Some(&*folder.path().join("b.yaml")));
        let named = folder.path().join("socket");
        assert_eq!(Watch::new(std::slice::from_ref(&named)).endless(), Some(&*named));
    }

    #[test]
    fn a_link_to_a_folder_above_ends() {
        let folder = Scratch::new("watch-loop");
        symlink(".", folder.path().join("again")).unwrap();
        // Fewer than the kernel would follow, which is 40.
        assert_eq!(Look::at(&[folder.path().to_owned()]).0.len(), MAX_DEPTH + 1);
    }
}
