//! Reports changes of watched files, by inotify. Source: inotify(7).
//!
//! inotify watches inodes, and a path leads to another inode when any of its folders or symbolic links is replaced. So every folder that
//! the path passes is watched for the next name of the path, and the file itself for its contents:
//!
//! ```text
//!   /etc/bulkhead/config.yaml -> ..data/config.yaml, ..data -> ..2026_01
//!
//!   /                        the name etc
//!   /etc                     the name bulkhead
//!   /etc/bulkhead            the names config.yaml, ..data and ..2026_01
//!   /etc/bulkhead/..2026_01  the name config.yaml
//!   /etc/bulkhead/..2026_01/config.yaml  its contents and metadata
//! ```
//! In a folder that is read as a whole, every name counts, and every file and folder below is watched.
//!
//! A thread reads the events and wakes the reader. The thread discards events of other names, such as those of a busy `/tmp`.
//!
//! **Invariant.** If [`FileEvents::follow`] returns true, any later change wakes the reader: each folder is watched before the next name in it
//! is resolved.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use crossbeam_channel::{Receiver, Sender, TrySendError, never};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::statfs;
use rustix::io::Errno;

use super::MAX_DEPTH;

/// Changes of the names in a folder, and of the folder's own name.
const OF_FOLDER: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Changes of a file's contents and metadata, and its removal.
const OF_FILE: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// Maximum number of symbolic links in a path. The kernel's limit is the same.
const MAX_LINKS: usize = 40;

/// Pause between two readings of events, so that a folder in which other programs are busy costs little.
const GATHER: Duration = Duration::from_millis(5);

/// File systems that only this kernel changes, so that inotify reports every change: ext2 to ext4, XFS, Btrfs, F2FS, ZFS, bcachefs, tmpfs,
/// ramfs, overlayfs, SquashFS, EROFS, ISO 9660, FAT and exFAT. Others may be a network's or a hypervisor's.
/// Source: statfs(2), `include/uapi/linux/magic.h`.
const LOCAL: [u32; 14] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0x7371_7368,
    0xe0f5_e1e2,
    0x9660,
    0x4d44,
    0x2011_bab0,
];

/// The events of a watched inode that concern the reader.
#[derive(Debug)]
enum Concern {
    /// Those of these names in a folder.
    Names(BTreeSet<OsString>),
    /// All events.
    All,
}

/// State that the reader shares with the thread.
#[derive(Debug)]
struct Shared {
    inotify: OwnedFd,
    /// The watched inodes by watch descriptor. Empty if the reader is gone.
    concerns: Mutex<HashMap<i32, Concern>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Concern>> {
        // The map is replaced as a whole, so a panic leaves it complete.
        self.concerns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an event concerns the reader. An overflow of the queue and an unknown watch do: a new watch is known only after
    /// [`FileEvents::follow`] ends.
    fn concerns(&self, watch: i32, what: ReadFlags, name: Option<&OsStr>) -> bool {
        // The kernel has removed the watch, after another event that says why, or on request.
        if what.contains(ReadFlags::IGNORED) {
            return false;
        }
        match (self.lock().get(&watch), name) {
            (Some(Concern::Names(names)), Some(name)) => names.contains(name),
            _ => true,
        }
    }
}

/// A source of events about files. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct FileEvents {
    shared: Arc<Shared>,
    told: Receiver<()>,
}

impl FileEvents {
    /// Starts the thread, without watching any file.
    ///
    /// # Errors
    /// If the kernel has no inotify or its limits are reached, or the thread cannot be started.
    pub(super) fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared { inotify: inotify::init(CreateFlags::CLOEXEC)?, concerns: Mutex::default() });
        let (tell, told) = crossbeam_channel::bounded(1);
        let reading = Arc::clone(&shared);
        std::thread::Builder::new().name("files".into()).spawn(move || read(&reading, &tell))?;
        Ok(Self { shared, told })
    }

    /// Returns the channel with a message when a watched file may have changed. It closes if the kernel's events end.
    pub(super) const fn told(&self) -> &Receiver<()> {
        &self.told
    }

    /// Watches these paths as they lead now, and nothing else. Returns whether the kernel reports every later change; not if a file system
    /// is not local, a file may not be watched, or the kernel's limit of watches is reached.
    pub(super) fn follow(&self, paths: &[PathBuf]) -> bool {
        let inotify = &self.shared.inotify;
        let mut walk = Walk { inotify, concerns: HashMap::new(), seen: HashSet::new(), is_whole: true };
        for path in paths {
            match std::path::absolute(path) {
                Ok(path) => walk.resolve(PathBuf::from("/"), names(&path), MAX_DEPTH),
                Err(_) => walk.is_whole = false,
            }
        }
        let Walk { concerns, is_whole, .. } = walk;
        let before = std::mem::replace(&mut *self.shared.lock(), concerns);
        let now = self.shared.lock();
        for watch in before.into_keys().filter(|watch| !now.contains_key(watch)) {
            // Fails if the inode is gone, and the watch with it.
            let _ = inotify::remove_watch(inotify, watch);
        }
        is_whole
    }
}

impl Drop for FileEvents {
    fn drop(&mut self) {
        self.told = never();
        let watches = std::mem::take(&mut *self.shared.lock());
        // The kernel reports each removal, which makes the thread find that its channel is closed.
        for watch in watches.into_keys() {
            let _ = inotify::remove_watch(&self.shared.inotify, watch);
        }
    }
}

/// Reads events until the reader is gone.
fn read(shared: &Shared, tell: &Sender<()>) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(shared.inotify.as_fd(), &mut buffer);
    loop {
        let mut is_concerned = false;
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    is_concerned |= shared.concerns(event.wd(), event.events(), name);
                }
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            if events.is_buffer_empty() {
                break;
            }
        }
        // A message that is still in the channel covers this event.
        let is_to_be_told = is_concerned || shared.lock().is_empty();
        if is_to_be_told && matches!(tell.try_send(()), Err(TrySendError::Disconnected(()))) {
            return;
        }
        std::thread::sleep(GATHER);
    }
}

/// Resolves paths and adds watches on the way.
struct Walk<'a> {
    inotify: &'a OwnedFd,
    concerns: HashMap<i32, Concern>,
    /// Files and folders that are already watched as a whole. A folder may have a link to a folder above.
    seen: HashSet<PathBuf>,
    is_whole: bool,
}

impl Walk<'_> {
    /// Follows `names` from the folder `at`, which has no symbolic link in its path, and watches all that they lead to.
    fn resolve(&mut self, mut at: PathBuf, mut names: VecDeque<OsString>, depth: usize) {
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            // First the watch, then the look at the name, so that no change in between is missed.
            if !self.watch(&at, OF_FOLDER, Some(&name)) {
                return;
            }
            let next = at.join(&name);
            match fs::read_link(&next) {
                Ok(target) if links < MAX_LINKS => {
                    links += 1;
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    self::names(&target).into_iter().rev().for_each(|name| names.push_front(name));
                }
                // Too many links: nothing is at the path until one of them changes.
                Ok(_) => return,
                Err(_) => at = next,
            }
        }
        self.whole(&at, depth);
    }

    /// Watches a file, or a folder with all that is in it.
    fn whole(&mut self, at: &Path, depth: usize) {
        let Ok(file) = fs::symlink_metadata(at) else { return };
        if !self.seen.insert(at.to_owned()) {
            return;
        }
        if file.is_file() {
            self.watch(at, OF_FILE, None);
            return;
        }
        // Pipes, sockets and devices are not read.
        if !file.is_dir() || !self.watch(at, OF_FOLDER, None) || depth == 0 {
            return;
        }
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_symlink() => self.resolve(at.to_owned(), [entry.file_name()].into(), depth - 1),
                _ => self.whole(&entry.path(), depth - 1),
            }
        }
    }

    /// Watches an inode, in a folder for one name or for all. Returns false if nothing is there, or it cannot be watched.
    fn watch(&mut self, at: &Path, what: WatchFlags, name: Option<&OsStr>) -> bool {
        let watch = match inotify::add_watch(self.inotify, at, what) {
            Ok(watch) => watch,
            // The folder above is watched for this name.
            Err(Errno::NOENT | Errno::NOTDIR) => return false,
            Err(_) => {
                self.is_whole = false;
                return false;
            }
        };
        self.is_whole &= is_local(at);
        let concern = self.concerns.entry(watch).or_insert_with(|| Concern::Names(BTreeSet::new()));
        match (&mut *concern, name) {
            (Concern::Names(names), Some(name)) => drop(names.insert(name.to_owned())),
            (Concern::Names(_), None) => *concern = Concern::All,
            (Concern::All, _) => {}
        }
        true
    }
}

/// Returns the names of a path, `..` included.
fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Whether only this kernel changes the files of the file system at a path.
fn is_local(path: &Path) -> bool {
    statfs(path).is_ok_and(|system| LOCAL.iter().any(|&magic| i128::from(system.f_type) == i128::from(magic)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Instant;

    use super::*;
    use crate::scratch::Scratch;

    /// Longer than a busy machine needs for an event.
    const LONG: Duration = Duration::from_secs(20);

    /// The name of a change, and a function that makes the change in a folder.
    type Change<'a> = (&'a str, &'a dyn Fn(&Path));

    /// Watches a path, makes each change in turn, and asserts that each wakes the reader.
    fn all_wake(folder: &Scratch, path: &str, changes: &[Change<'_>]) {
        let (events, paths) = (FileEvents::new().unwrap(), [folder.path().join(path)]);
        for (what, change) in changes {
            assert!(events.follow(&paths), "{what}");
            // What the last change still causes comes before the next one.
            std::thread::sleep(4 * GATHER);
            let _ = events.told().try_recv();
            change(folder.path());
            assert!(events.told().recv_timeout(LONG).is_ok(), "{what}");
        }
    }

    #[test]
    fn every_way_to_change_a_file_wakes_the_reader() {
        let folder = Scratch::new("events-file");
        folder.write("a", "1");
        folder.write("b", "1");
        all_wake(
            &folder,
            "a",
            &[
                ("written", &|at| fs::write(at.join("a"), "2").unwrap()),
                ("replaced", &|at| fs::rename(at.join("b"), at.join("a")).unwrap()),
                ("written after it was replaced", &|at| fs::write(at.join("a"), "3").unwrap()),
                ("its mode", &|at| fs::set_permissions(at.join("a"), fs::Permissions::from_mode(0o600)).unwrap()),
                ("another name of it", &|at| fs::hard_link(at.join("a"), at.join("c")).unwrap()),
                ("written by that name", &|at| fs::write(at.join("c"), "4").unwrap()),
                ("removed", &|at| fs::remove_file(at.join("a")).unwrap()),
                ("created", &|at| fs::write(at.join("a"), "5").unwrap()),
            ],
        );
    }

    #[test]
    fn another_folder_or_link_on_the_way_to_a_file_wakes_the_reader() {
        let folder = Scratch::new("events-way");
        let config_map = |at: &Path, version: &str| {
            fs::create_dir(at.join("etc/map").join(version)).unwrap();
            fs::write(at.join("etc/map").join(version).join("a"), "same").unwrap();
            symlink(version, at.join("etc/map/..new")).unwrap();
            fs::rename(at.join("etc/map/..new"), at.join("etc/map/..data")).unwrap();
        };
        all_wake(
            &folder,
            "etc/map/a",
            &[
                ("the first folder", &|at| fs::create_dir(at.join("etc")).unwrap()),
                ("the second folder", &|at| fs::create_dir(at.join("etc/map")).unwrap()),
                ("a link to nothing", &|at| symlink("..data/a", at.join("etc/map/a")).unwrap()),
                ("its target", &|at| config_map(at, "..1")),
                ("another target", &|at| config_map(at, "..2")),
                ("the last target's file", &|at| fs::write(at.join("etc/map/..2/a"), "other").unwrap()),
                ("another folder of the name", &|at| {
                    fs::create_dir_all(at.join("new/map")).unwrap();
                    fs::rename(at.join("etc"), at.join("old")).unwrap();
                    fs::rename(at.join("new"), at.join("etc")).unwrap();
                }),
                ("the file in it", &|at| fs::write(at.join("etc/map/a"), "third").unwrap()),
            ],
        );
    }

    #[test]
    fn a_change_anywhere_below_a_folder_or_behind_a_link_in_it_wakes_the_reader() {
        let folder = Scratch::new("events-below");
        fs::create_dir_all(folder.path().join("state/below")).unwrap();
        fs::create_dir(folder.path().join("elsewhere")).unwrap();
        folder.write("elsewhere/b", "1");
        symlink("..", folder.path().join("state/above")).unwrap();
        symlink("../elsewhere/b", folder.path().join("state/b")).unwrap();
        all_wake(
            &folder,
            "state",
            &[
                ("a new file", &|at| fs::write(at.join("state/below/a"), "1").unwrap()),
                ("its contents", &|at| fs::write(at.join("state/below/a"), "2").unwrap()),
                ("a new folder", &|at| fs::create_dir_all(at.join("state/more/yet")).unwrap()),
                ("a file in it", &|at| fs::write(at.join("state/more/yet/a"), "1").unwrap()),
                ("what a link leads to", &|at| fs::write(at.join("elsewhere/b"), "2").unwrap()),
                ("the link", &|at| fs::remove_file(at.join("state/b")).unwrap()),
            ],
        );
    }

    #[test]
    fn another_file_in_a_folder_on_the_way_concerns_nobody() {
        let folder = Scratch::new("events-names");
        let (a, events) = (folder.write("a", "1"), FileEvents::new().unwrap());
        events.follow(&[a]);
        let known = events.shared.lock();
        let is_parent = |concern: &Concern| matches!(concern, Concern::Names(names) if names.contains(OsStr::new("a")));
        let (&parent, _) = known.iter().find(|(_, concern)| is_parent(concern)).unwrap();
        let watched = known.len();
        drop(known);
        let concerns = |watch, what, name: Option<&str>| events.shared.concerns(watch, what, name.map(OsStr::new));
        assert!(!concerns(parent, ReadFlags::CREATE, Some("other")));
        assert!(concerns(parent, ReadFlags::MOVED_TO, Some("a")) && concerns(parent, ReadFlags::MOVE_SELF, None));
        assert!(concerns(-1, ReadFlags::QUEUE_OVERFLOW, None) && !concerns(parent, ReadFlags::IGNORED, None));
        // Paths that are no longer followed are no longer watched.
        events.follow(&[folder.path().join("missing/b")]);
        assert_eq!(events.shared.lock().len(), watched - 1, "all but the file itself");
    }

    #[test]
    fn what_the_kernel_does_not_report_is_not_relied_on() {
        let events = FileEvents::new().unwrap();
        assert!(!events.follow(&["/proc/self/status".into()]), "its contents change without an event");
        let folder = Scratch::new("events-local");
        assert!(events.follow(&[folder.path().to_owned()]));
    }

    #[test]
    fn the_thread_ends_with_its_reader() {
        let (folder, events) = (Scratch::new("events-end"), FileEvents::new().unwrap());
        events.follow(&[folder.path().to_owned()]);
        let shared = Arc::downgrade(&events.shared);
        drop(events);
        let started = Instant::now();
        while shared.strong_count() > 0 {
            assert!(started.elapsed() < LONG, "the thread still has its state");
            std::thread::sleep(GATHER);
        }
    }
}
