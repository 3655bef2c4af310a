//! Pins maps and links in a BPF file system, so that they outlive the process.
//!
//! ```text
//!   PATH/vLAYOUT-NAMESPACE/   bulkhead_flows, bulkhead_cells, ...   maps
//!                             in-INDEX, guard-INDEX                 links at the tc hooks of the interface with this index
//!                             nodes-INDEX                           link at tc ingress of a link to other nodes or to the world
//!                             out                                   link at the trunk's first end
//! ```
//!
//! After the process ends, the kernel forwards cached flows ([`super::away`]). Other packets go into the trunk, which nobody reads.
//! The next process adopts maps and links and atomically replaces the programs. LAYOUT is the version of the maps' layout; a process with
//! another layout adopts nothing. It detaches the old links after it has attached all ports. Until then, the old programs may run before
//! its own and drop packets of uncached flows.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::io::xsk::bpf::{self, BEFORE, Hook};
use crate::io::xsk::error::XskError;
use crate::io::xsk::namespace;

/// The version of the layout in `flow_layout.rs` and of the map of ports. Increment it with each change.
const LAYOUT: u32 = 8;

/// The folder of pins of one network namespace.
#[derive(Debug)]
pub(super) struct Pins {
    folder: PathBuf,
}

/// A hook to which the vswitch attaches a program by a link. The numbers are indexes of interfaces.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttachPoint {
    /// A hook of a port's interface.
    Port(Hook, u32),
    /// tc ingress of an interface over which packets of other nodes or of the world arrive.
    Nodes(u32),
    /// tc ingress of the trunk's first end.
    Trunk(u32),
}

/// The start of the names of pinned links of [`AttachPoint::Nodes`].
const NODES: &str = "nodes-";

impl AttachPoint {
    /// Returns the name of the pinned link.
    fn name(self) -> String {
        match self {
            Self::Port(Hook::TcEgress, interface) => format!("guard-{interface}"),
            Self::Port(_, interface) => format!("in-{interface}"),
            Self::Nodes(interface) => format!("{NODES}{interface}"),
            Self::Trunk(_) => "out".to_owned(),
        }
    }

    /// Returns the hook of the interface.
    const fn hook(self) -> Hook {
        match self {
            Self::Port(hook, _) => hook,
            Self::Nodes(_) | Self::Trunk(_) => Hook::TcIngress,
        }
    }

    /// Returns the index of the interface.
    pub(super) const fn interface(self) -> u32 {
        match self {
            Self::Port(_, interface) | Self::Nodes(interface) | Self::Trunk(interface) => interface,
        }
    }

    /// Returns the flags of `BPF_LINK_CREATE`. At ports and the trunk, the vswitch's program runs before those that others have attached by
    /// links. At a link to other nodes, whose packets are mostly not the vswitch's, it runs after them.
    const fn flags(self) -> u32 {
        match self {
            Self::Port(..) | Self::Trunk(_) => BEFORE,
            Self::Nodes(_) => 0,
        }
    }

    /// Whether the link is attached at this point in the calling thread's network namespace. False if the interface was moved, which gives
    /// it another index or namespace, or removed, since its link then reports index 0.
    pub(super) fn has(self, link: BorrowedFd<'_>) -> bool {
        bpf::attached_to(link).is_ok_and(|(index, _)| index == self.interface())
            && bpf::link_id(link)
                .is_ok_and(|id| bpf::at_hook(self.hook(), self.interface()).is_ok_and(|at| at.links.contains(&id)))
    }
}

impl Pins {
    /// Opens or creates the folder of the calling thread's network namespace below `path`.
    ///
    /// # Errors
    /// [`XskError::NoBpfFileSystem`] if `path` is not in a BPF file system.
    pub(super) fn new(path: &Path) -> Result<Self, XskError> {
        let failed = |source| XskError::NoBpfFileSystem { path: path.to_owned(), source };
        if !is_bpf(path).map_err(failed)? {
            return Err(failed(io::Error::other("the path is not in a BPF file system")));
        }
        let folder = Self::folder(path).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        fs::create_dir_all(&folder).map_err(failed)?;
        Ok(Self { folder })
    }

    /// Returns the folder of the calling thread's network namespace below `path`, which may not exist. `None` if the namespace cannot be read.
    pub(super) fn folder(path: &Path) -> Option<PathBuf> {
        Some(path.join(format!("v{LAYOUT}-{}", namespace::network_namespace()?)))
    }

    /// Detaches all links pinned below `path` for the calling thread's network namespace and removes the pins of all layouts. Removes
    /// `path` if it is then empty. Returns the number of links.
    ///
    /// # Errors
    /// The first failure, after all pins have been tried.
    pub(super) fn remove_all(path: &Path) -> io::Result<usize> {
        let detached = remove_folders(folders(path)?)?;
        // Fails if another network namespace has pins there, and for the file system's root.
        let _ = fs::remove_dir(path);
        Ok(detached)
    }

    /// Like [`remove_all`](Self::remove_all), but keeps this layout's pins.
    pub(super) fn remove_other_layouts(&self) -> io::Result<usize> {
        let path = self.folder.parent().ok_or(io::ErrorKind::NotFound)?;
        remove_folders(folders(path)?.into_iter().filter(|folder| *folder != self.folder))
    }

    /// Returns the path of the folder with this network namespace's pins.
    pub(super) fn path(&self) -> &Path {
        &self.folder
    }

    /// Adopts the link that is pinned for this point, and replaces its program. `None` if no link is pinned, or if the pinned one is
    /// attached elsewhere: then it is detached, and its pin removed.
    pub(super) fn take(&self, point: AttachPoint, program: BorrowedFd<'_>) -> Option<OwnedFd> {
        let link = bpf::pinned(&self.of(point)).ok()?;
        if point.has(link.as_fd()) && bpf::replace(link.as_fd(), program).is_ok() {
            return Some(link);
        }
        self.detach(point);
        None
    }

    /// Attaches a program by a link, and pins that if `pins` is `Some`.
    ///
    /// # Errors
    /// If the kernel refuses. `EINVAL` before Linux 6.6, which has no such links.
    pub(super) fn attach(pins: Option<&Self>, point: AttachPoint, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let link = bpf::attach(point.hook(), program, point.interface(), point.flags())?;
        if let Some(pins) = pins {
            // A pin of a previous interface with the same index.
            pins.forget(point);
            bpf::pin(link.as_fd(), &pins.of(point))?;
        }
        Ok(link)
    }

    /// Removes the pin of the link at this point, which stays attached while a process has it open. Does nothing if no link is pinned.
    pub(super) fn forget(&self, point: AttachPoint) {
        let _ = fs::remove_file(self.of(point));
    }

    /// Detaches the link that is pinned for this point, and removes its pin. Does nothing if no link is pinned.
    pub(super) fn detach(&self, point: AttachPoint) {
        let _ = unpin(&self.of(point));
    }

    /// Detaches the pinned links of [`AttachPoint::Nodes`] except those of the interfaces with these indexes, and removes their pins.
    pub(super) fn retain_nodes(&self, wanted: &BTreeSet<u32>) {
        remove_nodes(&self.folder, wanted);
    }

    /// Detaches all links of [`AttachPoint::Nodes`] that vswitches have pinned below `path` for the calling thread's network namespace, in any layout,
    /// and removes their pins. Returns the number of links.
    pub(super) fn remove_nodes(path: &Path) -> usize {
        let folders = folders(path).unwrap_or_default();
        folders.iter().map(|folder| remove_nodes(folder, &BTreeSet::new())).sum()
    }

    /// Returns the path at which a link is pinned for this point.
    fn of(&self, point: AttachPoint) -> PathBuf {
        self.folder.join(point.name())
    }
}

/// Detaches the links of [`AttachPoint::Nodes`] that are pinned in a folder, except those of interfaces with an index in `wanted`, and
/// removes their pins. Returns the number of links. 0 if the folder cannot be read.
fn remove_nodes(folder: &Path, wanted: &BTreeSet<u32>) -> usize {
    let paths = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_unwanted = |path: &PathBuf| {
        let index = path.file_name().and_then(|name| name.to_str()?.strip_prefix(NODES)?.parse().ok());
        index.is_some_and(|index| !wanted.contains(&index))
    };
    paths.filter(is_unwanted).inspect(|path| _ = unpin(path)).count()
}

/// Removes a pin. Detaches its link first; a map has none. Returns whether it was a link.
///
/// # Errors
/// If the pin cannot be removed.
fn unpin(path: &Path) -> io::Result<bool> {
    let link = pinned_link(path);
    if let Some(link) = &link {
        // Fails only if the interface is gone.
        let _ = bpf::detach(link.as_fd());
    }
    fs::remove_file(path).map(|()| link.is_some())
}

/// Whether another version of the program pinned maps below `path` for the calling thread's network namespace, in a layout that this one
/// cannot adopt, and this one pinned none. False if `path` cannot be read.
pub fn has_another_layout(path: &Path) -> bool {
    let (all, own) = (folders(path).unwrap_or_default(), Pins::folder(path));
    !all.is_empty() && !all.iter().any(|folder| own.as_ref() == Some(folder))
}

/// Returns the kernel's ids of the links that vswitches have pinned below `path` for the calling thread's network namespace, in any layout.
/// Empty if `path` cannot be read.
pub fn pinned_links(path: &Path) -> BTreeSet<u32> {
    let entries = folders(path).unwrap_or_default().into_iter().filter_map(|folder| fs::read_dir(folder).ok());
    let links = entries.flatten().filter_map(|entry| pinned_link(&entry.ok()?.path()));
    links.filter_map(|link| bpf::link_id(link.as_fd()).ok()).collect()
}

/// Opens a pinned link. `None` if a map is pinned there, or nothing.
fn pinned_link(path: &Path) -> Option<OwnedFd> {
    let is_map = path.file_name()?.to_str()?.starts_with("bulkhead_");
    if is_map { None } else { bpf::pinned(path).ok() }
}

/// Returns the folders of the calling thread's network namespace, of all layouts.
fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(namespace) = namespace::network_namespace().filter(|_| path.exists()) else { return Ok(Vec::new()) };
    let is_ours = |folder: &PathBuf| {
        let name = folder.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix('v'));
        let parts = name.and_then(|name| name.split_once('-'));
        parts.is_some_and(|(layout, of)| layout.parse::<u32>().is_ok() && of.parse() == Ok(namespace))
    };
    let all: Vec<PathBuf> =
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    Ok(all.into_iter().filter(is_ours).collect())
}

/// Detaches the links that are pinned in these folders, and removes the folders. Returns the number of links.
///
/// # Errors
/// The first failure, after all folders have been tried.
fn remove_folders(folders: impl IntoIterator<Item = PathBuf>) -> io::Result<usize> {
    let results: Vec<_> = folders.into_iter().map(|folder| remove(&folder)).collect();
    results.into_iter().sum()
}

/// Detaches the links that are pinned in a folder, and removes the folder. Returns the number of links.
///
/// # Errors
/// The first failure, after all pins have been tried.
fn remove(folder: &Path) -> io::Result<usize> {
    let (mut detached, mut result) = (0, Ok(()));
    for entry in fs::read_dir(folder)? {
        match unpin(&entry?.path()) {
            Ok(was_link) => detached += usize::from(was_link),
            Err(error) => result = result.and(Err(error)),
        }
    }
    result?;
    fs::remove_dir(folder)?;
    Ok(detached)
}

/// Whether a path, or its closest existing parent, is in a BPF file system.
fn is_bpf(path: &Path) -> io::Result<bool> {
    /// `BPF_FS_MAGIC`.
    const MAGIC: i64 = 0xcafe_4a11;
    let mut known = path;
    while !known.exists() {
        known = known.parent().ok_or(io::ErrorKind::NotFound)?;
    }
    bpf::file_system(known).map(|kind| kind == MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_of_another_version_alone_are_of_another_layout() {
        let path = std::env::temp_dir().join(format!("bulkhead-layouts-{}", std::process::id()));
        assert!(!has_another_layout(&path));
        let namespace = namespace::network_namespace().unwrap();
        for (folder, has_another) in [
            (format!("v5-{}", namespace + 1), false),
            (format!("v5-{namespace}"), true),
            (format!("v{LAYOUT}-{namespace}"), false),
        ] {
            fs::create_dir_all(path.join(folder)).unwrap();
            assert_eq!(has_another_layout(&path), has_another);
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_removed_does_not_keep_the_rest() {
        let path = std::env::temp_dir().join(format!("bulkhead-pins-{}", std::process::id()));
        let [stuck, free] = ["stuck", "free"].map(|name| path.join(name));
        for folder in [&stuck, &free] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("bulkhead_cells"), "").unwrap();
        }
        // `remove_file` refuses a folder.
        fs::create_dir(stuck.join("bulkhead_a")).unwrap();
        assert!(remove_folders([stuck.clone(), free.clone()]).is_err());
        assert!(!free.exists() && !stuck.join("bulkhead_cells").exists());
        fs::remove_dir_all(&path).unwrap();
    }
}
