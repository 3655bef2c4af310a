//! Stores the last complete state from the API server in a file, so that the vswitch can start without the server.
//!
//! ```text
//!   gzip( {"format": ..., "version": 1, "node": ..., "written": seconds, "objects": N}
//!         one object a line )
//! ```
//! A new file is written under another name and renamed, so the file is always complete. A file that is damaged (gzip has a checksum), or
//! of another version or node, is refused as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bulkhead_control::object::Object;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

const FORMAT: &str = "bulkhead-last-good";
/// Version of the objects' format, increased with each change of it.
const VERSION: u32 = 1;

/// Maximum unpacked size, in bytes: several times the largest cluster's. A small damaged file could otherwise exhaust the memory.
const MAX_SIZE: u64 = 1 << 30;

#[derive(Debug, Deserialize, Serialize)]
struct Header {
    format: String,
    version: u32,
    node: String,
    /// When the file was written, in seconds since 1970.
    written: u64,
    objects: usize,
}

/// The objects of a saved state, and its age.
#[derive(Debug)]
pub(super) struct LastGood {
    pub(super) objects: Vec<Object>,
    /// Time since the file was written, by the system clock. Zero if the clock was set back.
    pub(super) age: Duration,
}

/// Returns the path of a node's file. Other letters than ASCII letters, digits, `-`, `.` and `_` become `_`.
pub(super) fn path(folder: &Path, node: &str) -> PathBuf {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    let node: String = node.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    folder.join(format!("last-good-{node}.gz"))
}

/// Encodes the objects and their header, uncompressed.
///
/// # Errors
/// If an object cannot be serialized, which no known object causes.
pub(super) fn encode<'a>(node: &str, objects: impl Iterator<Item = &'a Object>) -> anyhow::Result<Vec<u8>> {
    let (mut lines, mut count) = (Vec::new(), 0);
    for object in objects {
        serde_json::to_writer(&mut lines, object)?;
        lines.push(b'\n');
        count += 1;
    }
    let written = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let header = Header { format: FORMAT.into(), version: VERSION, node: node.into(), written, objects: count };
    let mut text = serde_json::to_vec(&header)?;
    text.push(b'\n');
    text.append(&mut lines);
    Ok(text)
}

/// Compresses the encoded text and replaces the file.
///
/// # Errors
/// If writing fails. The previous file then stays unchanged.
pub(super) fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let new = path.with_extension("new");
    // Labels and addresses of a cluster are confidential: only the owner may read the file.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
    let file = file.with_context(|| format!("cannot write {}", new.display()))?;
    let mut packer = GzEncoder::new(file, Compression::fast());
    packer.write_all(text)?;
    packer.finish()?.sync_all()?;
    fs::rename(&new, path).with_context(|| format!("cannot rename {}", new.display()))
}

/// Reads the file. `None` if it does not exist.
///
/// # Errors
/// If the file cannot be read, is damaged, or belongs to another version or node.
pub(super) fn read(path: &Path, node: &str) -> anyhow::Result<Option<LastGood>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut lines = BufReader::new(MultiGzDecoder::new(file).take(MAX_SIZE));
    let mut line = String::new();
    lines.read_line(&mut line).context("it is damaged")?;
    let header: Header = serde_json::from_str(&line).context("its header cannot be read")?;
    anyhow::ensure!(header.format == FORMAT, "it is not a file of a last good state");
    anyhow::ensure!(header.version == VERSION, "it is of version {}, not {VERSION}", header.version);
    anyhow::ensure!(header.node == node, "it is of node `{}`", header.node);
    let mut objects = Vec::new();
    for line in lines.lines() {
        objects
            .push(serde_json::from_str(&line.context("it is damaged")?).context("one of its objects cannot be read")?);
    }
    anyhow::ensure!(objects.len() == header.objects, "{} of {} objects are missing", header.objects, objects.len());
    let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(header.written)).unwrap_or_default();
    Ok(Some(LastGood { objects, age }))
}

#[cfg(test)]
mod tests {
    use bulkhead_control::source::{Strictness, load_text};

    use super::*;
    use crate::scratch::Scratch;

    /// Returns one object of each kind, with all fields set.
    fn objects() -> Vec<Object> {
        let state = r#"
apiVersion: v1
kind: Namespace
metadata: {name: x, labels: {team: red}, annotations: {bulkhead.dev/denied: refuse}}
---
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {a: b}}
spec: {podCIDRs: [10.1.0.0/16, "fd00::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
status: {phase: Running, startTime: "2026-01-01T00:00:00Z", podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: x}
spec:
  podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [b, a]}]}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.2.0.0/16]}}], ports: [{port: http}, {port: 1, endPort: 9, protocol: UDP}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: c}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {matchLabels: {team: red}}}
  ingress: [{name: r, action: Deny, from: [{namespaces: {}}]}]
"#;
        load_text("state", state, Strictness::Strict).unwrap().objects
    }

    #[test]
    fn what_was_kept_is_what_is_read() {
        let folder = Scratch::new("last-good");
        let path = path(&folder.path().join("made/for/it"), "a/node");
        assert!(path.ends_with("last-good-a_node.gz"));
        assert!(read(&path, "a/node").unwrap().is_none());
        write(&path, &encode("a/node", objects().iter()).unwrap()).unwrap();
        let kept = read(&path, "a/node").unwrap().unwrap();
        assert_eq!(kept.objects, objects());
        assert!(kept.age < Duration::from_secs(60));
        write(&path, &encode("a/node", std::iter::empty()).unwrap()).unwrap();
        assert!(read(&path, "a/node").unwrap().unwrap().objects.is_empty());
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_with_any_damage_is_refused_whole() {
        let folder = Scratch::new("last-good-damage");
        let path = path(folder.path(), "n");
        write(&path, &encode("n", objects().iter()).unwrap()).unwrap();
        let whole = fs::read(&path).unwrap();
        assert!(read(&path, "another").is_err());
        for end in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(read(&path, "n").is_err(), "cut at {end}");
        }
        // The time and system in gzip's header do not matter.
        for at in 10..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            // Padding bits of the last compressed byte do not matter.
            let kept = read(&path, "n").ok().flatten();
            assert!(kept.is_none_or(|kept| kept.objects == objects()), "byte {at}");
        }
        let mut text = encode("n", objects().iter()).unwrap();
        let lines = text.iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines, 6);
        let last = text[..text.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
        text.truncate(last + 1);
        write(&path, &text).unwrap();
        assert!(read(&path, "n").unwrap_err().to_string().contains("missing"), "an object less");
        let other = String::from_utf8(encode("n", objects().iter()).unwrap())
            .unwrap()
            .replace("\"version\":1", "\"version\":2");
        write(&path, other.as_bytes()).unwrap();
        assert!(read(&path, "n").unwrap_err().to_string().contains("version 2"));
    }
}
