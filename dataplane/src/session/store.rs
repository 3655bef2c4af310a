//! Session tables in files, so that sessions outlive the process.
//!
//! A worker's table maps its entries and their records from a shared file, normally on a tmpfs. Every change is in the file at once and
//! survives if the process is killed. The index and the lists are not in the file but are rebuilt from the entries. So the number of
//! workers and the hash key may change, and the file need not be trusted. Mapping the file with its index would start about 100 ms faster
//! with half a million sessions, but then packets would follow untrusted numbers into memory.
//!
//! ```text
//!   folder/ lock                    locked by the process that uses the folder
//!           current/0, 1, ...       one file per worker: header | entries | links | rewrites
//!           current/clients         the backends of clients of Services with affinity, for all workers
//!           current/names           the addresses that pods have learned by name, for all workers
//!           next/                   files of a process that is still adopting sessions, then renamed to current
//!           previous/               the former current, only while next is being renamed
//! ```
//!
//! **Adoption.** A file is rejected as a whole, and counted, if its header shows another layout, another boot or another length, or if an
//! entry is invalid. An entry that was being written when the process died is left out: its key is written last and erased first. All other
//! entries keep their state but lose their epoch, and get the ports that have their addresses now. The first packet of each is judged by the
//! tables in force, as after a policy change.
//!
//! A tmpfs can run out of memory, and a missing page would raise a signal while a packet is processed. So the file grows in steps that are
//! written before use. A table whose file cannot grow is full.

mod growth;
mod header;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::budget::MAX_CAPACITY;
use super::direction::Direction;
use super::entry::Entry;
use super::links::Links;
use super::memory::Column;
use super::{Key, Rewrite, SessionMemoryError};
use crate::PortKind;
use crate::names::{FoundNames, KeptNames, Learned, NameId};
use crate::service::{ClientAffinity, FoundClients};
use header::{Header, START};

pub(super) use growth::Growth;
pub(crate) use growth::TableFile;

/// Name of the file with the last backends of clients.
const CLIENTS: &str = "clients";
/// Name of the file with the addresses that pods have learned by name.
const NAMES: &str = "names";

/// Entries by which a file grows: 448 KiB, written in about 100 µs. A table of half a million needs 122 steps.
const STEP: usize = 4096;

/// Maximum length in bytes: the largest possible table. Longer files are rejected.
const MAX_LEN: u64 =
    START + (size_of::<Entry>() + size_of::<Links>() + size_of::<Rewrite>()) as u64 * (MAX_CAPACITY as u64 * 2);

/// The reason why sessions cannot be kept in files.
#[derive(Debug, thiserror::Error)]
pub enum SessionStoreError {
    /// Another process uses the folder.
    #[error(
        "{} is in use by another process\n  help: stop the other vswitch, or give each vswitch its own folder",
        folder.display()
    )]
    InUse {
        /// The folder of session files.
        folder: PathBuf,
    },
    /// A file or folder operation failed.
    #[error("cannot {what} {}: {source}\n  help: use a folder on a tmpfs that only root can write to", path.display())]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The memory for the tables could not be mapped.
    #[error(transparent)]
    Memory(#[from] SessionMemoryError),
}

/// A file that was not adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The reason, as a clause without a full stop.
    pub reason: String,
}

/// The result of adopting an earlier process's sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Sessions that continue if policy still allows them.
    pub adopted: u64,
    /// Sessions that had expired, were incomplete, or did not fit into the table.
    pub left_out: u64,
    /// Clients of Services with affinity that keep their backend, if it still exists.
    pub clients: u64,
    /// Damaged or foreign files, which were ignored.
    pub refused: Vec<RefusedFile>,
}

/// A session of an earlier process, as read from its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(super) entry: Entry,
    pub(super) next: [u32; 2],
    pub(super) is_audited: bool,
    /// Whether the server name of a session that was allowed by name is not compared yet.
    pub(super) is_unchecked: bool,
    pub(super) rewrite: Option<Rewrite>,
    /// The name by which the session was allowed. Its id is that of the process that wrote the file, until adoption replaces it by that of
    /// this process. `None` if the session was not allowed by name.
    pub(crate) name: Option<NameId>,
}

impl Stored {
    pub(super) const fn new(entry: Entry, links: &Links, rewrite: Option<Rewrite>) -> Self {
        Self {
            entry,
            next: links.next,
            is_audited: links.is_audited(),
            is_unchecked: links.is_unchecked(),
            rewrite,
            name: links.name(),
        }
    }

    pub(crate) const fn key(&self) -> Key {
        self.entry.key()
    }

    /// The kind of the port that receives the session's forward direction.
    pub(crate) const fn in_kind(&self) -> PortKind {
        self.entry.in_kind()
    }

    /// Returns the addresses of the initiator and of the responder. For a connection to a Service, the latter is the backend's.
    pub(crate) fn ends(&self) -> [IpAddr; 2] {
        let [source, destination] = self.entry.endpoints(Direction::Forward);
        [self.rewrite.map_or(source, |rewrite| rewrite.client()).0, destination.0]
    }
}

/// A folder with session files, locked by this process.
#[derive(Debug)]
pub struct SessionStore {
    folder: PathBuf,
    boot: [u8; 16],
    found: Vec<Stored>,
    clients: FoundClients,
    names: FoundNames,
    adoption: Adoption,
    /// The lock is held while this file is open.
    _lock: File,
}

impl SessionStore {
    /// Locks a folder, creating it if necessary, and reads the files of an earlier process.
    ///
    /// # Errors
    /// [`SessionStoreError`]. Files that cannot be adopted are no error: see [`Adoption::refused`].
    pub fn open(folder: &Path) -> Result<Self, SessionStoreError> {
        let fault = |what| move |source| SessionStoreError::System { what, path: folder.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fault("create the folder"))?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.join("lock"));
        let lock = lock.map_err(fault("open the lock of"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => SessionStoreError::InUse { folder: folder.to_owned() },
            TryLockError::Error(source) => fault("lock")(source),
        })?;
        let boot = boot_id().map_err(|source| {
            let path = PathBuf::from(BOOT_ID);
            SessionStoreError::System { what: "read", path, source }
        })?;
        let mut store = Self {
            folder: folder.to_owned(),
            boot,
            found: Vec::new(),
            clients: FoundClients::nothing(),
            names: FoundNames::nothing(),
            adoption: Adoption::default(),
            _lock: lock,
        };
        if !store.folder("current").exists() && store.folder("previous").exists() {
            // The last process died between the two renames of `commit`.
            fs::rename(store.folder("previous"), store.folder("current")).map_err(fault("rename a folder of"))?;
        }
        store.read().map_err(fault("read"))?;
        store.discard("next").and_then(|()| store.discard("previous")).map_err(fault("clean up"))?;
        DirBuilder::new().mode(0o700).create(store.folder("next")).map_err(fault("create a folder in"))?;
        Ok(store)
    }

    /// Whether a folder has sessions in a format that this version does not read. Changes nothing and needs no lock, so that another process
    /// may be using the folder. False if it has none or cannot be read.
    pub fn has_another_version(folder: &Path) -> bool {
        fs::read_dir(folder.join("current")).into_iter().flatten().flatten().any(|file| {
            let mut header = Header::new_zeroed();
            // A named pipe would wait for its writer.
            let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
            is_file
                && File::open(file.path()).and_then(|mut file| file.read_exact(header.as_mut_bytes())).is_ok()
                && header.is_of_another_version()
        })
    }

    /// Does not count this time, in which the kernel forwarded the sessions' packets without a process, as idle time of the sessions.
    pub fn pass_over(&mut self, away: Duration) {
        let away = u64::try_from(away.as_nanos()).unwrap_or(u64::MAX);
        for stored in &mut self.found {
            // Adoption limits the time to the present.
            stored.entry.seen_at = stored.entry.seen_at.saturating_add(away);
        }
    }

    /// Returns the result so far of adopting an earlier process's sessions.
    pub const fn adoption(&self) -> &Adoption {
        &self.adoption
    }

    pub(crate) const fn adoption_mut(&mut self) -> &mut Adoption {
        &mut self.adoption
    }

    /// Takes the sessions that were read, least recently used first.
    pub(crate) fn take(&mut self) -> Vec<Stored> {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by_key(|stored| stored.entry.seen_at);
        found
    }

    /// Creates the file of a worker's table. It becomes valid with [`SessionStore::commit`].
    pub(crate) fn create(&self, worker: usize, slots: usize) -> Result<TableFile, SessionStoreError> {
        let path = self.folder("next").join(worker.to_string());
        let header = Header::new(slots, self.boot);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.and_then(|file| {
            file.set_len(header.len())?;
            file.write_all_at(header.as_bytes(), 0)?;
            Ok(file)
        });
        let file = file.map_err(|source| SessionStoreError::System { what: "write", path, source })?;
        let entries = Column::in_file(&file, START, slots, slots)?;
        let links = Column::in_file(&file, header.links_start(), slots, slots)?;
        let rewrites = Column::in_file(&file, header.rewrites_start(), slots, slots)?;
        Ok(TableFile { entries, links, rewrites, growth: Growth::new(file, header) })
    }

    /// Creates the file of clients' affinity with the clients found earlier. `now` is in nanoseconds since 1970. It becomes valid with
    /// [`SessionStore::commit`].
    pub(crate) fn create_clients(&mut self, now: u64) -> Result<ClientAffinity, SessionStoreError> {
        let path = self.folder("next").join(CLIENTS);
        let found = std::mem::replace(&mut self.clients, FoundClients::nothing());
        let made = ClientAffinity::in_file(&path, self.boot, found, now / 1_000_000_000);
        let (clients, adopted) = made.map_err(|source| SessionStoreError::System { what: "write", path, source })?;
        self.adoption.clients = adopted;
        Ok(clients)
    }

    /// Creates the file of learned names, with the valid holdings of the earlier process's file. `learned` gets their names. `now` is in
    /// nanoseconds since 1970. The file becomes valid with [`SessionStore::commit`].
    pub(crate) fn create_names(&mut self, learned: &Learned, now: u64) -> Result<KeptNames, SessionStoreError> {
        let path = self.folder("next").join(NAMES);
        let made = KeptNames::in_file(&path, self.boot, &mut self.names, learned, now);
        made.map_err(|source| SessionStoreError::System { what: "write", path, source })
    }

    /// Returns the text of the name with this id in the earlier process. `None` if its file does not have the name, and after
    /// [`SessionStore::commit`].
    pub(crate) fn name(&self, id: NameId) -> Option<&str> {
        self.names.name(id.bits())
    }

    /// Replaces the old files by the new ones, after all sessions were copied.
    pub(crate) fn commit(&mut self) -> Result<(), SessionStoreError> {
        self.names = FoundNames::nothing();
        let (current, previous) = (self.folder("current"), self.folder("previous"));
        let moved = || {
            if current.exists() {
                fs::rename(&current, &previous)?;
            }
            fs::rename(self.folder("next"), &current)?;
            self.discard("previous")
        };
        moved().map_err(|source| SessionStoreError::System {
            what: "rename a folder of",
            path: self.folder.clone(),
            source,
        })
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn discard(&self, name: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.folder(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let files = match fs::read_dir(self.folder("current")) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for file in files {
            let path = file?.path();
            let is_read = match path.file_name().and_then(OsStr::to_str) {
                Some(CLIENTS) => FoundClients::read(&path, self.boot).map(|found| self.clients = found),
                Some(NAMES) => FoundNames::read(&path, self.boot).map(|found| self.names = found),
                _ => self.read_file(&path).map(|(stored, left_out)| {
                    self.found.extend(stored);
                    self.adoption.left_out += left_out;
                }),
            };
            if let Err(reason) = is_read {
                self.adoption.refused.push(RefusedFile { path, reason });
            }
        }
        Ok(())
    }

    /// Reads a file. Returns its sessions and the number of incomplete entries.
    fn read_file(&self, path: &Path) -> Result<(Vec<Stored>, u64), String> {
        let unreadable = |error: io::Error| format!("it cannot be read: {error}");
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() || about.len() > MAX_LEN {
            return Err("it is not a session table".to_owned());
        }
        let mut header = Header::new_zeroed();
        file.read_exact(header.as_mut_bytes()).map_err(|_| "it is not a session table".to_owned())?;
        if let Some(fault) = header.fault(self.boot, about.len()) {
            return Err(fault.to_owned());
        }
        let (mut found, mut left_out) = (Vec::new(), 0);
        // Reads in steps, so that a large file is not in memory twice.
        let mut entries = vec![Entry::FREE; STEP];
        let mut links = vec![[0u8; size_of::<Links>()]; STEP];
        let mut rewrites = vec![Rewrite::NONE; STEP];
        for first in (0..header.slots).step_by(STEP) {
            let count = usize::try_from(header.slots - first).unwrap_or(STEP).min(STEP);
            let (entries, links) = (&mut entries[..count], &mut links[..count]);
            let at = START + first * size_of::<Entry>() as u64;
            file.read_exact_at(entries.as_mut_bytes(), at).map_err(unreadable)?;
            if entries.iter().all(Entry::is_free) {
                continue;
            }
            let at = header.links_start() + first * size_of::<Links>() as u64;
            file.read_exact_at(links.as_mut_bytes(), at).map_err(unreadable)?;
            let rewrites = &mut rewrites[..count];
            if entries.iter().any(Entry::is_translated) {
                let at = header.rewrites_start() + first * size_of::<Rewrite>() as u64;
                file.read_exact_at(rewrites.as_mut_bytes(), at).map_err(unreadable)?;
            }
            let all = entries.iter().zip(links.iter()).zip(rewrites.iter());
            for ((entry, links), rewrite) in all.filter(|((entry, _), _)| !entry.is_free()) {
                let links = Links::read_from_bytes(links).map_err(|_| "it is damaged".to_owned())?;
                match entry.adoptable()? {
                    Some(entry) => found.push(Stored::new(entry, &links, entry.sound_rewrite(rewrite)?)),
                    None => left_out += 1,
                }
            }
        }
        Ok((found, left_out))
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the kernel's boot id: a UUID in text form.
fn boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string(BOOT_ID)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(number.to_be_bytes())
}

#[cfg(test)]
mod tests;
