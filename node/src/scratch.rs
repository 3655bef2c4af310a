//! A temporary folder for one test, removed when it is dropped.
#![allow(dead_code, reason = "other crates include this file, and use a part of it")]

use std::path::{Path, PathBuf};

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty folder. `name` must be unique to the test.
    pub(crate) fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Like [`Self::new`], in memory if the system has `/dev/shm`: for tests that write to the disk thousands of times.
    pub(crate) fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory, name) } else { Self::new(name) }
    }

    fn below(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("bulkhead-live-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in the folder. Returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
