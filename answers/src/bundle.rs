//! `bulkhead bundle`: a vswitch's knowledge in one file, for offline analysis.
//!
//! ```text
//!   gzip( tar( bulkhead-bundle/manifest.json    format, version, node, length and SHA-256 of each other member
//!              bulkhead-bundle/state.jsonl      the objects in force, one per line
//!              bulkhead-bundle/journal          the flight recorder's journal
//!              bulkhead-bundle/tables.json, status.json, ports.json, policies.json, config.json ) )
//! ```
//! A tar file can be inspected with common tools. The state has the vswitch's own object format instead of Kubernetes': the reader gets
//! exactly what the vswitch judged by. The bundle cannot contain what the vswitch does not read: secrets, environment variables,
//! annotations. The configuration is stored as values without comments, and values of fields that look like secrets are removed.
//!
//! **Invariant.** Nothing is unpacked to disk. Members are read into memory by exact name, up to [`MOST_UNPACKED`] bytes, so a hostile file
//! can neither write files nor exhaust memory. A truncated or damaged bundle, or one of another version, is rejected.

mod pack;
mod said;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use bulkhead_control::attachments::{self, Attachment};
use bulkhead_control::object::{Enforcement, IngressIsolation, Object, PodName};
use bulkhead_control::source::{self, Loaded, Options, ServiceKinds, SourceErrors};
use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::output;

pub use pack::Contents;

const FORMAT: &str = "bulkhead-bundle";
/// Incremented when the meaning of a member changes.
const VERSION: u32 = 1;
const FOLDER: &str = "bulkhead-bundle";

const MANIFEST: &str = "manifest.json";
/// The member with the objects in force, one per line.
pub const STATE: &str = "state.jsonl";
/// The member with the flight recorder's journal.
pub const JOURNAL: &str = "journal";
/// All members except the manifest.
const MEMBERS: [&str; 7] = [STATE, JOURNAL, "tables.json", "status.json", "ports.json", "policies.json", "config.json"];

/// Maximum total size of the members in bytes: the largest journal plus the tables of a large node.
const MOST_UNPACKED: u64 = (1 << 30) + (1 << 28);

/// Magic number of gzip (RFC 1952). No YAML or JSON starts with it.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The settings that verdicts depend on besides objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Default isolation of a namespace without an `extensions/v1beta1` annotation.
    pub isolation: IngressIsolation,
    /// Enforcement of a policy without an annotation.
    pub enforcement: Enforcement,
    /// How Services are translated. `None` if the node's kernel translates them.
    pub services: Option<bulkhead_control::service::Settings>,
    /// Version of the program that judged.
    pub program: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    length: u64,
    sha256: String,
}

/// The manifest of a bundle: its origin, settings and members.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    /// Version of the program that wrote the bundle.
    program: String,
    node: String,
    /// Creation time, RFC 3339.
    made: String,
    /// Settings of the state. `None` if the bundle has no state.
    settings: Option<Settings>,
    /// Attached pods with their assigned addresses. Missing in bundles of earlier versions.
    #[serde(default)]
    attached: Vec<(PodName, Attachment)>,
    members: BTreeMap<String, Member>,
}

/// A bundle that was read.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    manifest: Manifest,
    members: BTreeMap<&'static str, Vec<u8>>,
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the member with this archive path. `None` if bundles have no such member.
fn member_name(path: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(path).ok()?.strip_prefix(FOLDER)?.strip_prefix('/')?;
    [MANIFEST].iter().chain(&MEMBERS).find(|known| **known == name).copied()
}

/// Whether the file starts with gzip's magic number.
fn is_bundle(path: &Path) -> bool {
    let mut magic = [0; 2];
    // Only regular files: reading from a pipe would consume these bytes.
    path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == GZIP
}

impl Bundle {
    /// Reads a bundle.
    ///
    /// # Errors
    /// If the file is not a bundle, or is damaged or truncated.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open the bundle {name}"))?;
        Self::read(path, BufReader::new(file)).with_context(|| format!("cannot use the bundle {name}"))
    }

    fn read(path: &Path, file: impl Read) -> anyhow::Result<Self> {
        // Read one byte more than allowed, to detect the excess.
        let mut left = MOST_UNPACKED;
        let mut archive = tar::Archive::new(GzDecoder::new(file).take(MOST_UNPACKED + (1 << 20)));
        let (mut manifest, mut members) = (None, BTreeMap::new());
        // Raw, because extended name headers would be read into memory without a limit.
        for entry in archive.entries().context("the file is not a bundle; `bulkhead bundle` writes one")?.raw(true) {
            let mut entry = entry.map_err(damaged)?;
            let path = entry.path_bytes().into_owned();
            let shown = output::printable(&String::from_utf8_lossy(&path));
            let Some(known) = member_name(&path).filter(|_| entry.header().entry_type().is_file()) else {
                bail!("unknown member `{shown}`: the bundle was written by another program or a later version");
            };
            let length = entry.size();
            ensure!(length <= left, "the members exceed {MOST_UNPACKED} bytes");
            left -= length;
            let mut bytes = Vec::new();
            (&mut entry).take(length).read_to_end(&mut bytes).map_err(damaged)?;
            ensure!(bytes.len() as u64 == length, "the bundle is damaged or truncated in member `{known}`");
            if known == MANIFEST {
                ensure!(manifest.is_none() && members.is_empty(), "the manifest is not the first member");
                manifest = Some(serde_json::from_slice::<Manifest>(&bytes).context("cannot parse the manifest")?);
            } else {
                ensure!(members.insert(known, bytes).is_none(), "the bundle has two members `{known}`");
            }
        }
        // Read to the end, where gzip's checksum is.
        std::io::copy(&mut archive.into_inner(), &mut std::io::sink()).map_err(damaged)?;
        let manifest = manifest.context("the file has no manifest, so it is not a bundle")?;
        ensure!(manifest.format == FORMAT, "the file is not a bundle; `bulkhead bundle` writes one");
        let version = manifest.version;
        ensure!(version == VERSION, "the bundle has version {version}, this program reads version {VERSION}");
        for (name, Member { length, sha256 }) in &manifest.members {
            let bytes =
                members.get(&**name).with_context(|| format!("member `{name}` is missing: the bundle is truncated"))?;
            let is_same = bytes.len() as u64 == *length && digest(bytes) == *sha256;
            ensure!(is_same, "member `{name}` does not match its checksum: the bundle is damaged");
        }
        let unnamed = members.keys().find(|name| !manifest.members.contains_key(**name));
        ensure!(unnamed.is_none(), "the manifest does not list member `{}`", unnamed.unwrap_or(&""));
        Ok(Self { path: path.to_owned(), manifest, members })
    }

    fn member(&self, name: &str) -> anyhow::Result<&[u8]> {
        let bytes = self.members.get(name).map(Vec::as_slice);
        bytes.with_context(|| {
            let (path, node) = (self.path.display(), output::printable(&self.manifest.node));
            if self.members.contains_key(JOURNAL) {
                return format!("the bundle {path} has no {name}: the journal of node {node} did not contain it");
            }
            format!(
                "the bundle {path} has no {name}: the journal of node {node} was disabled\n  help: set journal.folder in the node's configuration and write a new bundle"
            )
        })
    }

    /// Returns the flight recorder's journal, up to a gigabyte. Consumes the bundle to avoid a copy.
    ///
    /// # Errors
    /// If the bundle has no journal.
    pub fn into_journal(mut self) -> anyhow::Result<Vec<u8>> {
        self.member(JOURNAL)?;
        Ok(self.members.remove(JOURNAL).unwrap_or_default())
    }

    /// Returns the objects that were in force.
    fn objects(&self) -> anyhow::Result<Vec<Object>> {
        let lines = self.member(STATE)?.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let objects: Result<_, _> = lines.map(serde_json::from_slice).collect();
        objects.with_context(|| format!("cannot parse an object in the bundle {}", self.path.display()))
    }
}

fn damaged(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => anyhow::anyhow!("the bundle is truncated"),
        _ => anyhow::Error::new(error).context("the bundle is damaged, or the file is not a bundle"),
    }
}

/// The inputs of a question about a state: files of objects, and bundles. A bundle is opened once per question.
#[derive(Debug)]
pub struct Sources {
    bundles: Vec<Bundle>,
    /// Paths that are not bundles.
    paths: Vec<PathBuf>,
}

impl Sources {
    /// Opens the bundles among the paths.
    ///
    /// # Errors
    /// If a bundle cannot be used.
    pub fn open(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let (bundles, paths): (Vec<PathBuf>, Vec<PathBuf>) = paths.iter().cloned().partition(|path| is_bundle(path));
        let open = |path: &PathBuf| {
            let mut bundle = Bundle::open(path)?;
            // The journal may have a gigabyte.
            bundle.members.retain(|name, _| *name == STATE);
            Ok(bundle)
        };
        Ok(Self { bundles: bundles.iter().map(open).collect::<anyhow::Result<_>>()?, paths })
    }

    /// Reads the objects of all inputs. Pods of a bundle have the addresses that the container runtime gave them.
    ///
    /// # Errors
    /// See [`source::load`]; also if the objects of a bundle cannot be parsed.
    pub fn load(&self, options: &Options) -> anyhow::Result<Result<Loaded, SourceErrors>> {
        let mut loaded = match source::load(&self.paths, options.clone()) {
            Ok(loaded) => loaded,
            faults => return Ok(faults),
        };
        let is_wanted = |object: &Object| {
            let is_service = matches!(object, Object::Service(_) | Object::EndpointSlice(_));
            !is_service || options.services == ServiceKinds::Read
        };
        for bundle in &self.bundles {
            loaded.objects.extend(bundle.objects()?.into_iter().filter(is_wanted));
            loaded.files += 1;
        }
        let attached = self.bundles.iter().flat_map(|bundle| bundle.manifest.attached.iter().cloned()).collect();
        attachments::give(&mut loaded.objects, &attached);
        Ok(Ok(loaded))
    }
}

#[cfg(test)]
mod tests;
