//! Saves the audit counts in a file, so that they survive a restart.
//!
//! ```text
//!   gzip( {"format": "bulkhead-audit", "version": 1, "node": ...}
//!         the ledger )
//! ```
//! The file is written under another name and renamed, so it is always complete. A damaged file (the gzip checksum tells), or one of
//! another version or node, is moved aside and not used at all. Partial counts could make a busy policy look unused.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::ledger::Ledger;

const FORMAT: &str = "bulkhead-audit";
/// Version of the ledger's format.
const VERSION: u32 = 1;

/// Maximum unpacked size in bytes, many times a full ledger. Limits the memory that a small malicious file can use.
const MAX_SIZE: u64 = 1 << 26;

#[derive(Debug, Deserialize, Serialize)]
struct Header {
    format: String,
    version: u32,
    node: String,
}

/// A handle to the file with a node's audit counts.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    node: Arc<str>,
}

impl AuditFile {
    /// Creates a handle to the node's file in this folder. Does not open the file.
    pub(super) fn new(folder: &Path, node: &Arc<str>) -> Self {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let name: String = node.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        Self { path: folder.join(format!("audit-{name}.gz")), node: node.clone() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the counts of an earlier process. `None` if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or is of another version or node. It has then been moved aside.
    pub(super) fn read(&self) -> anyhow::Result<Option<Ledger>> {
        self.try_read().map_err(|error| {
            let aside = self.path.with_extension("gz.damaged");
            let moved = match fs::rename(&self.path, &aside) {
                Ok(()) => format!("the file was moved to {}", aside.display()),
                Err(error) => format!("the file cannot be moved aside: {error}"),
            };
            anyhow::anyhow!("{}: {error:#}; {moved}", self.path.display())
        })
    }

    fn try_read(&self) -> anyhow::Result<Option<Ledger>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = BufReader::new(MultiGzDecoder::new(file).take(MAX_SIZE));
        let mut line = String::new();
        text.read_line(&mut line).context("it is damaged")?;
        let header: Header = serde_json::from_str(&line).context("its header cannot be read")?;
        anyhow::ensure!(header.format == FORMAT, "it is not a file of audit counts");
        anyhow::ensure!(header.version == VERSION, "it is of version {}, not {VERSION}", header.version);
        anyhow::ensure!(*header.node == *self.node, "it is of node `{}`", header.node);
        let mut rest = Vec::new();
        // Reads to the end, where the checksum is.
        text.read_to_end(&mut rest).context("it is damaged")?;
        Ok(Some(serde_json::from_slice(&rest).context("it is damaged")?))
    }

    /// Encodes a ledger with the file's header, uncompressed. [`write`](Self::write) saves the result.
    ///
    /// # Errors
    /// If the ledger cannot be serialized, which no known ledger causes.
    pub(super) fn encode(&self, ledger: &Ledger) -> anyhow::Result<Vec<u8>> {
        let header = Header { format: FORMAT.into(), version: VERSION, node: self.node.to_string() };
        let mut text = serde_json::to_vec(&header)?;
        text.push(b'\n');
        serde_json::to_writer(&mut text, ledger)?;
        Ok(text)
    }

    /// Replaces the file's content.
    ///
    /// # Errors
    /// If the file cannot be written or renamed. The previous file is then unchanged.
    pub(super) fn write(&self, text: &[u8]) -> anyhow::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
        let new = self.path.with_extension("gz.new");
        let write = || -> std::io::Result<()> {
            // Only the owner may read who talks to whom.
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            let mut packer = GzEncoder::new(file, Compression::fast());
            packer.write_all(text)?;
            packer.finish()?;
            fs::rename(&new, &self.path)
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Connection;
    use super::*;
    use crate::scratch::Scratch;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.follow(["x/p".to_owned()].into_iter(), 100);
        for (from, time) in [("x/a", 110), ("192.0.2.1", 120)] {
            let (origin, to) = ("ingress isolated by x/p".to_owned(), "x/db".to_owned());
            let connection = Connection { origin, from: from.to_owned(), to, protocol: 6, port: 6379 };
            ledger.count(connection, vec!["x/p".to_owned()], time);
        }
        ledger.take_changed();
        ledger
    }

    #[test]
    fn what_was_kept_is_what_is_read_and_what_is_damaged_is_refused_whole() {
        let folder = Scratch::new("audit-file");
        let file = AuditFile::new(&folder.path().join("made/for/it"), &"a/node".into());
        assert!(file.path().ends_with("audit-a_node.gz") && file.read().unwrap().is_none());
        file.write(&file.encode(&ledger()).unwrap()).unwrap();
        assert_eq!(file.read().unwrap(), Some(ledger()));
        let whole = fs::read(file.path()).unwrap();
        let aside = file.path().with_extension("gz.damaged");
        for end in 0..whole.len() {
            fs::write(file.path(), &whole[..end]).unwrap();
            assert!(file.read().is_err(), "cut at {end}");
            assert!(aside.exists() && !file.path().exists());
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x10;
            fs::write(file.path(), &wrong).unwrap();
            // Some bits of a gzip header have no meaning.
            assert!(file.read().is_ok_and(|read| read == Some(ledger())) || aside.exists(), "byte {at}");
            let _ = fs::remove_file(&aside);
        }
    }

    #[test]
    fn a_file_of_another_version_or_node_is_refused() {
        let folder = Scratch::new("audit-version");
        let file = AuditFile::new(folder.path(), &"n".into());
        let text = String::from_utf8(file.encode(&ledger()).unwrap()).unwrap();
        for (from, to, why) in [
            ("\"version\":1", "\"version\":2", "of version 2"),
            (FORMAT, "something-else", "not a file of audit counts"),
            ("\"node\":\"n\"", "\"node\":\"m\"", "of node `m`"),
            ("\"policies\"", "\"polices\"", "damaged"),
        ] {
            file.write(text.replacen(from, to, 1).as_bytes()).unwrap();
            let error = format!("{:#}", file.read().unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
