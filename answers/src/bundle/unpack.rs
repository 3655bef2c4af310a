//! Places to which members of a bundle are unpacked while they are read.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use bulkhead_control::object::Object;

use super::weight;

/// Parses the objects of [`STATE`](super::STATE), one per line.
#[derive(Debug)]
pub(super) struct Objects {
    objects: Vec<Object>,
    /// The line that is not complete yet, and its number from 1.
    line: Vec<u8>,
    number: u64,
    /// Estimated memory of the objects, and its maximum, in bytes.
    weight: u64,
    most_weight: u64,
}

impl Objects {
    pub(super) const fn within(most_weight: u64) -> Self {
        Self { objects: Vec::new(), line: Vec::new(), number: 1, weight: 0, most_weight }
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<Object>> {
        self.end_line()?;
        Ok(self.objects)
    }

    fn end_line(&mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.weight += weight::of_line(&self.line);
            self.check(self.weight)?;
            let parsed = serde_json::from_slice(&self.line);
            self.objects.push(parsed.map_err(|error| self.refused(&format!("cannot parse an object: {error}")))?);
            self.line.clear();
        }
        self.number += 1;
        Ok(())
    }

    fn check(&self, weight: u64) -> io::Result<()> {
        let is_within = weight <= self.most_weight && self.line.len() as u64 <= weight::LONGEST_LINE;
        if is_within {
            return Ok(());
        }
        Err(self.refused("the objects are larger than a cluster's; the bundle is damaged or not from a vswitch"))
    }

    fn refused(&self, problem: &str) -> io::Error {
        io::Error::other(format!("line {}: {problem}", self.number))
    }
}

impl Write for Objects {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, is_end) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            self.line.extend_from_slice(text);
            self.check(self.weight + self.line.len() as u64)?;
            if is_end {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A temporary file without a name, which is gone when it is closed. Blocks of zeros take no room in it.
#[derive(Debug)]
pub(super) struct Unnamed {
    file: File,
    length: u64,
}

impl Unnamed {
    /// Creates the file in `$TMPDIR` or `/tmp`.
    pub(super) fn create() -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let name = format!("bulkhead-{}-{}.journal", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).with_context(|| {
            format!(
                "cannot unpack the journal to {}\n  help: set TMPDIR to a folder with room for the journal",
                path.display()
            )
        })?;
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        Ok(Self { file, length: 0 })
    }

    pub(super) fn finish(self) -> io::Result<File> {
        self.file.set_len(self.length)?;
        Ok(self.file)
    }
}

impl Write for Unnamed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().any(|&byte| byte != 0) {
            self.file.seek(SeekFrom::Start(self.length))?;
            self.file.write_all(bytes)?;
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
