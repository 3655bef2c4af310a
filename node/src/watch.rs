//! Whether files have changed, by asking for their size, times and identity again and again.
//!
//! inotify was the alternative. It watches inodes, so a mounted ConfigMap (where a symbolic link is pointed elsewhere) and an
//! editor that renames need watches on every folder of every path, and a queue that overflows needs this code all the same.
//! Asking for a few files 20 times a second costs a thousandth of a core.
//!
//! A file that is being written is not read: a change counts when the files look the same at two looks in a row, and the
//! reader looks once more after it has read. Half of a policy file is a state without the other half, so whoever can
//! should write a new file and rename it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often to look. This, [`REST`] and the compilation must fit into the 100 ms within which a change takes effect.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

/// How long after a look that found something else the next one is.
const REST: Duration = Duration::from_millis(15);

/// Looking may take this part of the time: a large folder on a slow disk is looked at less often.
const SHARE: u32 = 20;

/// As when reading: a link to a folder above would never end.
const MAX_DEPTH: usize = 32;

/// What tells one version of a file from another. The inode, because a rename may keep size and times; the change time,
/// because a program may set the modification time but not this one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    path: PathBuf,
    file: Option<(u64, u64, u64, i64, i64, i64, i64)>,
    /// Reading it might never end: a pipe, a socket, a device.
    endless: bool,
}

/// How the files looked at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Look(Vec<Version>);

impl Look {
    /// Looks at the paths, and at everything in those that are folders.
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

/// Watches some paths.
#[derive(Debug)]
pub(crate) struct Watch {
    paths: Vec<PathBuf>,
    /// How they looked when they were last read.
    read: Look,
    /// How they looked last.
    last: Look,
    interval: Duration,
    next: Instant,
}

impl Watch {
    /// Watches from now on: what changes after this call is a change.
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        Self::every(INTERVAL, paths)
    }

    /// As [`new`](Self::new), looking this often.
    pub(crate) fn every(interval: Duration, paths: &[PathBuf]) -> Self {
        let look = Look::at(paths);
        Self { paths: paths.to_vec(), read: look.clone(), last: look, interval, next: Instant::now() + interval }
    }

    /// Looks at the next opportunity, however soon after the last one that is.
    pub(crate) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// When the paths are looked at next.
    pub(crate) const fn next_look(&self) -> Instant {
        self.next
    }

    /// Whether the files look as they did when they were last read, now that somebody asks.
    pub(crate) fn is_read(&self) -> bool {
        Look::at(&self.paths) == self.read
    }

    /// What at the last look was neither a file nor a folder: to read it may take for ever. In folders only by the names
    /// that are read at all.
    pub(crate) fn endless(&self) -> Option<&Path> {
        let is_read = |path: &Path| {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            self.paths.iter().any(|named| named == path)
                || ["yaml", "yml", "json"].iter().any(|known| ending.eq_ignore_ascii_case(known))
        };
        self.last.0.iter().find(|version| version.endless && is_read(&version.path)).map(|version| &*version.path)
    }

    /// Whether the files have changed and have come to rest. To be followed by reading them and [`Watch::was_read`].
    pub(crate) fn has_changed(&mut self) -> bool {
        let started = Instant::now();
        if started < self.next {
            return false;
        }
        let now = Look::at(&self.paths);
        let at_rest = now == self.last;
        self.last = now;
        let has_changed = self.last != self.read;
        let pause = if has_changed && !at_rest { REST } else { self.interval };
        self.next = started + pause.max(started.elapsed() * SHARE);
        at_rest && has_changed
    }

    /// Says that the files were read since the last [`Watch::has_changed`]. False when they have changed meanwhile, so that
    /// what was read is to be forgotten; they will be reported again.
    pub(crate) fn was_read(&mut self) -> bool {
        let now = Look::at(&self.paths);
        let same = now == self.last;
        if same {
            self.read = now;
        } else {
            self.last = now;
        }
        same
    }
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
