//! The folder in which the reserved addresses of one network are files, as `host-local` keeps them.
//!
//! ```text
//!   <dataDir>/<network>/10.244.1.7          container ID, CR LF, interface name: the owner of the address
//!                       last_reserved_ip.0  the address that was last assigned from set 0
//!                       lock                locked (flock) while a process reads or changes the folder
//!                       .bulkhead-cni.new   a file that is being written; the next process removes what a killed one has left
//! ```
//!
//! Files of `host-local`, because a node's pods keep their addresses when the configuration changes from one allocator to the other, in
//! both directions. Both may even serve one network at the same time. A file of our own format would need a migration that can fail.
//!
//! A file gets its name after its content is on the disk, so it has its whole content or does not exist. `host-local` creates an address's
//! file empty and writes it then: if it is killed between, no `DEL` finds the address again. Such a file keeps its address reserved.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::environment::check_identifier;
use crate::error::{Code, Error};

/// Separates container ID and interface name in an address's file. `host-local` writes it so on every platform.
const SEPARATOR: &str = "\r\n";
/// `host-local` ignores the name, because it is not an address.
const NEW: &str = ".bulkhead-cni.new";
const LOCK: &str = "lock";

/// A change of the folder. Tests end the process before any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Write,
    Sync,
    Link,
    Rename,
    Remove,
    SyncFolder,
}

/// A function that the store calls before each step. Its error ends the command, as a failure of the step does.
pub(super) type Before<'a> = &'a dyn Fn(Step) -> io::Result<()>;

/// The locked folder. The lock ends with the value, or with the process.
pub(super) struct Store<'a> {
    folder: &'a Path,
    before: Before<'a>,
    _lock: File,
}

/// The container and interface that have an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) container: String,
    /// `None` in files of old versions of `host-local`, which have only the container's ID.
    pub(super) interface: Option<String>,
}

impl Owner {
    /// Parses a file's content. `None` if the file is empty or damaged.
    fn read(content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?.trim();
        let (container, interface) = text.split_once(SEPARATOR).map_or((text, None), |(id, name)| (id, Some(name)));
        check_identifier(container).ok()?;
        Some(Self { container: container.to_owned(), interface: interface.map(str::to_owned) })
    }

    /// Whether an attachment has the address.
    pub(super) fn is(&self, container: &str, interface: &str) -> bool {
        self.container == container && self.interface.as_ref().is_none_or(|name| name == interface)
    }
}

/// A reserved address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) address: IpAddr,
    /// `None` if the file is empty or damaged.
    pub(super) owner: Option<Owner>,
    file: PathBuf,
}

impl<'a> Store<'a> {
    /// Locks the folder, which is created if it does not exist. Waits for other processes.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn open(folder: &'a Path, before: Before<'a>) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(|error| failed("create", folder, &error))?;
        let path = folder.join(LOCK);
        // The mode that `host-local` gives the file.
        let lock = OpenOptions::new().read(true).append(true).create(true).mode(0o750).open(&path);
        let lock = lock.and_then(|lock| lock.lock().map(|()| lock)).map_err(|error| failed("lock", &path, &error))?;
        let store = Self { folder, before, _lock: lock };
        let new = folder.join(NEW);
        if new.exists() {
            store.remove(&new)?;
        }
        Ok(store)
    }

    /// Locks the folder like [`Self::open`]. `None` if it does not exist, so that no address is reserved.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn existing(folder: &'a Path, before: Before<'a>) -> Result<Option<Self>, Error> {
        match folder.try_exists() {
            Ok(true) => Self::open(folder, before).map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(failed("read", folder, &error)),
        }
    }

    /// Returns all reserved addresses, in no order.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn leases(&self) -> Result<Vec<Lease>, Error> {
        let unread = |error: io::Error| failed("read", self.folder, &error);
        let mut leases = Vec::new();
        for entry in fs::read_dir(self.folder).map_err(unread)? {
            let name = entry.map_err(unread)?.file_name();
            let Some(address) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let file = self.folder.join(&name);
            let content = fs::read(&file).map_err(|error| failed("read", &file, &error))?;
            leases.push(Lease { address, owner: Owner::read(&content), file });
        }
        Ok(leases)
    }

    /// Returns the address that was last assigned from a set. `None` if none was, or if the file is damaged.
    pub(super) fn last(&self, set: usize) -> Option<IpAddr> {
        fs::read_to_string(self.last_file(set)).ok()?.trim().parse().ok()
    }

    /// Reserves an address that no file has.
    ///
    /// # Errors
    /// [`Code::Io`] with the file, also if it exists.
    pub(super) fn reserve(&self, address: IpAddr, container: &str, interface: &str) -> Result<(), Error> {
        let file = self.folder.join(address.to_string());
        let new = self.write(&format!("{container}{SEPARATOR}{interface}"))?;
        // Unlike a rename, a link never replaces a file. So a process that ignores the lock does no harm.
        self.step(Step::Link, "create", &file, || fs::hard_link(&new, &file))?;
        self.remove(&new)
    }

    /// Records the address that was last assigned from a set.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn set_last(&self, set: usize, address: IpAddr) -> Result<(), Error> {
        let (new, file) = (self.write(&address.to_string())?, self.last_file(set));
        self.step(Step::Rename, "replace", &file, || fs::rename(&new, &file))
    }

    /// Releases an address.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.remove(&lease.file)
    }

    /// Writes the folder to the disk, so that earlier changes survive a power failure.
    ///
    /// # Errors
    /// [`Code::Io`] with the folder.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.step(Step::SyncFolder, "write", self.folder, || File::open(self.folder)?.sync_all())
    }

    /// Writes a text to the temporary file [`NEW`] and syncs it. Returns the file's path.
    fn write(&self, text: &str) -> Result<PathBuf, Error> {
        let new = self.folder.join(NEW);
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let mut file = self.step(Step::Create, "create", &new, create)?;
        self.step(Step::Write, "write", &new, || file.write_all(text.as_bytes()))?;
        self.step(Step::Sync, "write", &new, || file.sync_all())?;
        Ok(new)
    }

    /// Removes a file. Succeeds if it does not exist.
    fn remove(&self, file: &Path) -> Result<(), Error> {
        self.step(Step::Remove, "remove", file, || match fs::remove_file(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    /// Carries out a step. Its error is [`Code::Io`] with the verb and the file.
    fn step<T>(
        &self,
        step: Step,
        verb: &str,
        file: &Path,
        carry_out: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, Error> {
        (self.before)(step).and_then(|()| carry_out()).map_err(|error| failed(verb, file, &error))
    }

    /// Returns the path of the file with the address that was last assigned from the set with this index.
    fn last_file(&self, set: usize) -> PathBuf {
        self.folder.join(format!("last_reserved_ip.{set}"))
    }
}

/// Returns the error about a file that cannot be read or changed.
fn failed(verb: &str, file: &Path, error: &io::Error) -> Error {
    let details = format!("cannot {verb} {}: {error}; ipam.dataDir names the folder", file.display());
    Error::new(Code::Io, "the reserved addresses cannot be read or changed", details)
}
