//! Saves the added ports in a file, so that they survive a restart.
//!
//! ```text
//!   {"format": "bulkhead-added-ports", "version": 1, "node": ..., "boot": ..., "ports": [...]}
//! ```
//! The file is written under another name and renamed, so it is always complete. A damaged file, or one of another version, is moved aside
//! and an error is logged. Its ports are not served. Their interfaces stay closed, because pinned programs of the previous process hold
//! them. A file from before the last boot is discarded, because its containers are gone.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::added::AddedEntry;
use crate::log;

const FORMAT: &str = "bulkhead-added-ports";
/// Version of the format, increased with each change of it.
const VERSION: u32 = 1;

/// Maximum length in bytes. A port takes some hundred bytes.
const MAX_LEN: u64 = 1 << 24;

#[derive(Debug, Deserialize, Serialize)]
struct Content {
    format: String,
    version: u32,
    node: String,
    /// The kernel's boot ID, which changes with each boot.
    boot: String,
    ports: Vec<AddedEntry>,
}

/// The fields that every version of the file has, to recognize other versions.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

/// A handle to the file with the added ports of one node.
#[derive(Debug)]
pub(crate) struct PortFile {
    path: PathBuf,
    node: Arc<str>,
    boot: String,
}

impl PortFile {
    /// Creates a handle to the file for `node` in this folder. Does not open the file.
    pub(crate) fn new(folder: &Path, node: &Arc<str>) -> Self {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let name: String = node.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path: folder.join(format!("ports-{name}.json")), node: node.clone(), boot: boot.trim().to_owned() }
    }

    /// Reads the ports that the previous process saved. A file that cannot be used is moved aside, and an error is logged.
    pub(crate) fn read(&self) -> Vec<AddedEntry> {
        let error = match self.try_read() {
            Ok(ports) => return ports,
            Err(error) => error,
        };
        let aside = self.path.with_extension("json.damaged");
        let moved = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("the file was moved to {}", aside.display()),
            Err(error) => format!("the file cannot be moved aside: {error}"),
        };
        log::error(&format!(
            "the added ports are lost: {}: {error:#}; {moved}\n\
             help: restart the pods of this node, or let the CNI plugin add their ports again",
            self.path.display()
        ));
        Vec::new()
    }

    fn try_read(&self) -> anyhow::Result<Vec<AddedEntry>> {
        match fs::metadata(&self.path) {
            Ok(file) => anyhow::ensure!(file.is_file() && file.len() <= MAX_LEN, "it is not a file of added ports"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let text = fs::read(&self.path)?;
        let head: Head = serde_json::from_slice(&text).context("it is damaged")?;
        anyhow::ensure!(head.format == FORMAT, "it is not a file of added ports");
        anyhow::ensure!(head.version == VERSION, "its version is {}, not {VERSION}", head.version);
        let content: Content = serde_json::from_slice(&text).context("it is damaged")?;
        anyhow::ensure!(*content.node == *self.node, "it belongs to node `{}`", content.node);
        if content.boot != self.boot {
            log::info("discarded the ports that were added before the last boot: their containers have ended");
            return Ok(Vec::new());
        }
        Ok(content.ports)
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// If the system refuses. The old file then stays.
    pub(crate) fn write<'a>(&self, ports: impl Iterator<Item = &'a AddedEntry>) -> anyhow::Result<()> {
        let content = Content {
            format: FORMAT.into(),
            version: VERSION,
            node: self.node.to_string(),
            boot: self.boot.clone(),
            ports: ports.cloned().collect(),
        };
        let text = serde_json::to_vec(&content)?;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
        let new = self.path.with_extension("json.new");
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            // Not synced: the file is for the next process, and worthless after a reboot.
            fs::rename(&new, &self.path)
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::tests::asked;
    use super::*;
    use crate::scratch::Scratch;
    use bulkhead_observe::admin::AddPort;

    fn entries() -> Vec<AddedEntry> {
        let plain = asked("one", "x/a", "v1", &["10.0.0.1", "fd00::1"]);
        let full = AddPort {
            network: Some("pods".into()),
            pod_uid: Some("6f1c".into()),
            netns: Some("/run/netns/a".into()),
            mac: Some("02:00:00:00:00:01".into()),
            ..asked("two", "x/b", "v2", &[])
        };
        let read = |(number, asked): (u64, AddPort)| AddedEntry { number, ..AddedEntry::read(&asked).unwrap() };
        [(3, plain), (7, full)].map(read).to_vec()
    }

    #[test]
    fn what_was_kept_is_what_is_read() {
        let folder = Scratch::new("added-ports");
        let place = folder.path().join("made/for/it");
        let file = PortFile::new(&place, &"a/node".into());
        assert!(file.path.ends_with("ports-a_node.json") && file.read().is_empty());
        file.write(entries().iter()).unwrap();
        assert_eq!(file.read(), entries());
        file.write(entries().iter().take(1)).unwrap();
        assert_eq!(file.read().len(), 1);
        assert_eq!(place.read_dir().unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_or_foreign_file_is_moved_aside_and_one_of_before_a_boot_is_forgotten() {
        let folder = Scratch::new("added-ports-damage");
        let file = PortFile::new(folder.path(), &"n".into());
        let aside = file.path.with_extension("json.damaged");
        file.write(entries().iter()).unwrap();
        let whole = fs::read_to_string(&file.path).unwrap();
        let other = |from: &str, to: &str| whole.replace(from, to);
        for text in [
            whole[..whole.len() / 2].to_owned(),
            String::new(),
            other("\"version\":1", "\"version\":2"),
            other(FORMAT, "something-else"),
            other("\"node\":\"n\"", "\"node\":\"m\""),
            other("\"interface\"", "\"interfaces\""),
        ] {
            assert_ne!(text, whole);
            fs::write(&file.path, &text).unwrap();
            assert!(file.read().is_empty(), "{text}");
            assert_eq!(fs::read_to_string(&aside).unwrap(), text);
            assert!(!file.path.exists());
        }
        fs::remove_file(&aside).unwrap();
        fs::write(&file.path, other(&file.boot, "another")).unwrap();
        assert!(file.read().is_empty() && !aside.exists(), "nothing is wrong with it");
    }

    #[test]
    fn every_cut_is_noticed() {
        let folder = Scratch::new("added-ports-cut");
        let file = PortFile::new(folder.path(), &"n".into());
        file.write(entries().iter()).unwrap();
        let whole = fs::read(&file.path).unwrap();
        for end in 0..whole.len() {
            fs::write(&file.path, &whole[..end]).unwrap();
            assert!(file.try_read().is_err(), "cut at {end}");
        }
    }
}
