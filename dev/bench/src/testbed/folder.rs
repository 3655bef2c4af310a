//! Temporary folders, removed with their value.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

use super::programs::run;
use super::remains::{prefix, remains};

/// A temporary folder, removed with its contents and mounts on drop.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

/// File systems that can be mounted in a folder.
const FILE_SYSTEMS: [&str; 2] = ["bpf", "tmpfs"];

/// Removes a folder and the file systems mounted in it.
pub(crate) fn remove_folder(folder: &Path) {
    // Unmounts first: pinned objects go with their file system.
    for mounted in FILE_SYSTEMS.map(|kind| folder.join(kind)).iter().filter(|mounted| mounted.exists()) {
        let _ = Command::new("umount").arg(mounted).stderr(Stdio::null()).status();
    }
    let _ = std::fs::remove_dir_all(folder);
}

impl Folder {
    /// # Errors
    /// If the folder cannot be created.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    /// Creates a folder in another one than that for temporary files.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub(crate) fn new_in(parent: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = parent.join(format!("{}{}", prefix(), NEXT.fetch_add(1, Ordering::Relaxed)));
        remains().folders.insert(path.clone());
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Mounts a file system, one of [`FILE_SYSTEMS`]. Returns its path.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub(crate) fn mount(&self, kind: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(kind);
        std::fs::create_dir(&path)?;
        run("mount", &format!("-t {kind} -o mode=0700 {kind} {}", path.display()))?;
        Ok(path)
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let (new, path) = (self.path(&format!("{name}.new")), self.path(name));
        File::create(&new).and_then(|mut file| file.write_all(text.as_bytes()))?;
        std::fs::rename(new, &path)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove_folder(&self.0);
        remains().folders.remove(&self.0);
    }
}
