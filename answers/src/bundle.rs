//! `bulkhead bundle`: a vswitch's knowledge in one file, for offline analysis.
//!
//! ```text
//!   gzip( tar( bulkhead-bundle/manifest.json    format, version, node, length and SHA-256 of each other member
//!              bulkhead-bundle/state.jsonl      the objects in force, one per line
//!              bulkhead-bundle/journal          the flight recorder's journal
//!              bulkhead-bundle/tables.json, status.json, ports.json, policies.json, nodes.json, config.json ) )
//! ```
//! A tar file can be inspected with common tools. The state has the vswitch's own object format instead of Kubernetes': the reader gets
//! exactly what the vswitch judged by. The bundle cannot contain what the vswitch does not read: secrets, environment variables,
//! annotations. The configuration is stored as values without comments, and values of fields that look like secrets are removed.
//!
//! **Invariant.** A hostile file can neither choose a path to write to nor exhaust memory. Members are recognised by exact name and pass
//! through a small buffer, up to [`MOST_UNPACKED`] bytes. Only the one that the command needs is kept: the state as objects of bounded
//! [`weight`], the journal in a temporary file without a name, because it may have a gigabyte. A truncated or damaged bundle, or one of
//! another version, is rejected.

mod pack;
mod said;
mod unpack;
pub mod weight;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use bulkhead_control::attachments::{self, Attachment};
use bulkhead_control::object::{Enforcement, IngressIsolation, Object, PodName};
use bulkhead_control::source::{self, Loaded, Options, ServiceKinds, SourceErrors};
use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::output;
use crate::progress;

pub use pack::Contents;
use unpack::{Objects, Unnamed};

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
const MEMBERS: [&str; 8] =
    [STATE, JOURNAL, "tables.json", "status.json", "ports.json", "policies.json", "nodes.json", "config.json"];

/// Maximum total size of the members in bytes: the largest journal plus the tables of a large node.
const MOST_UNPACKED: u64 = (1 << 30) + (1 << 28);

/// Maximum size of the manifest in bytes: the addresses of some thousand attached pods, of 200 bytes each.
const MOST_MANIFEST: u64 = 1 << 20;

/// Size of the buffer through which members pass, in bytes.
const BUFFER: usize = 1 << 16;

/// Position of the word `ustar` in the header of a tar archive, in bytes from its start (POSIX.1-2024, pax).
const TAR_MAGIC: Range<usize> = 257..262;

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

/// The member that a command needs. The others are checked and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    State,
    Journal,
}

/// A bundle that was read, with its state.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    manifest: Manifest,
    /// The objects that were in force. `None` if the bundle has no state.
    objects: Option<Vec<Object>>,
}

/// A bundle that was read, with the member that was wanted. `None` if the bundle does not have it.
#[derive(Debug)]
struct Unpacked {
    manifest: Manifest,
    objects: Option<Vec<Object>>,
    journal: Option<File>,
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the member with this archive path. `None` if bundles have no such member.
fn member_name(path: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(path).ok()?.strip_prefix(FOLDER)?.strip_prefix('/')?;
    [MANIFEST].iter().chain(&MEMBERS).find(|known| **known == name).copied()
}

/// Whether the file is a compressed archive. A compressed text of objects is none. Reads at most [`BUFFER`] bytes of the file.
fn is_bundle(path: &Path) -> bool {
    // Only regular files: reading from a pipe would consume these bytes.
    if !path.is_file() {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let mut start = Vec::new();
    // Of a damaged bundle, what could be unpacked tells that it is one.
    let _ = GzDecoder::new(file.take(BUFFER as u64)).take(TAR_MAGIC.end as u64).read_to_end(&mut start);
    start.get(TAR_MAGIC).is_some_and(|magic| magic == b"ustar")
}

/// Reads a bundle and keeps the member that is wanted.
fn open(path: &Path, wanted: Wanted) -> anyhow::Result<Unpacked> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open the bundle {name}"))?;
    progress::step(format!("unpacking {name}"));
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(u64::MAX, |about| about.len());
    read(BufReader::new(file), size, wanted).with_context(|| format!("cannot use the bundle {name}"))
}

/// Reads a bundle of `size` compressed bytes.
fn read(file: impl Read, size: u64, wanted: Wanted) -> anyhow::Result<Unpacked> {
    let mut left = MOST_UNPACKED;
    // Read more than allowed, to detect the excess.
    let mut archive = tar::Archive::new(GzDecoder::new(file).take(MOST_UNPACKED + (1 << 20)));
    let (mut manifest, mut found) = (None, BTreeMap::new());
    let (mut objects, mut journal) = (None, None);
    // Raw, because extended name headers would be read into memory without a limit.
    for entry in archive.entries().context("the file is not a bundle; `bulkhead bundle` writes one")?.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path_bytes().into_owned();
        let shown = output::printable(&String::from_utf8_lossy(&path));
        let Some(known) = member_name(&path).filter(|_| entry.header().entry_type().is_file()) else {
            bail!("unknown member `{shown}`: the bundle was written by another program or a later version");
        };
        let length = entry.size();
        ensure!(!found.contains_key(known), "the bundle has two members `{known}`");
        ensure!(length <= left, "the members up to `{known}` exceed {MOST_UNPACKED} bytes");
        left -= length;
        let mut unpack = |into: &mut dyn Write| unpack(&mut entry, length, known, into);
        if known == MANIFEST {
            ensure!(manifest.is_none() && found.is_empty(), "the manifest is not the first member");
            ensure!(length <= MOST_MANIFEST, "the manifest exceeds {MOST_MANIFEST} bytes");
            let mut bytes = Vec::new();
            unpack(&mut bytes)?;
            manifest = Some(serde_json::from_slice::<Manifest>(&bytes).context("cannot parse the manifest")?);
            continue;
        }
        let member = match (known, wanted) {
            (STATE, Wanted::State) => {
                let mut parsed = Objects::within(weight::most(size));
                let member = unpack(&mut parsed)?;
                objects = Some(parsed.finish().context(in_member(known))?);
                member
            }
            (JOURNAL, Wanted::Journal) => {
                let mut file = Unnamed::create()?;
                let member = unpack(&mut file)?;
                journal = Some(file.finish().context(in_member(known))?);
                member
            }
            _ => unpack(&mut std::io::sink())?,
        };
        found.insert(known, member);
    }
    // Read to the end, where gzip's checksum is.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink()).map_err(damaged)?;
    let manifest = manifest.context("the file has no manifest, so it is not a bundle")?;
    ensure!(manifest.format == FORMAT, "the file is not a bundle; `bulkhead bundle` writes one");
    let version = manifest.version;
    ensure!(version == VERSION, "the bundle has version {version}, this program reads version {VERSION}");
    for (name, member) in &manifest.members {
        let found =
            found.get(&**name).with_context(|| format!("member `{name}` is missing: the bundle is truncated"))?;
        ensure!(found == member, "member `{name}` does not match its checksum: the bundle is damaged");
    }
    let unnamed = found.keys().find(|name| !manifest.members.contains_key(**name));
    ensure!(unnamed.is_none(), "the manifest does not list member `{}`", unnamed.unwrap_or(&""));
    Ok(Unpacked { manifest, objects, journal })
}

fn in_member(name: &str) -> String {
    format!("cannot read member `{name}`")
}

/// Passes a member of this length to `into`. Returns its length and checksum.
fn unpack(entry: &mut impl Read, length: u64, name: &str, into: &mut dyn Write) -> anyhow::Result<Member> {
    let (mut sum, mut left, mut buffer) = (Sha256::new(), length, vec![0; BUFFER]);
    while left > 0 {
        let read = entry.read(&mut buffer).map_err(damaged).with_context(|| in_member(name))?;
        ensure!(read > 0, "the bundle is damaged or truncated in member `{name}`");
        sum.update(&buffer[..read]);
        into.write_all(&buffer[..read]).with_context(|| in_member(name))?;
        left = left.saturating_sub(read as u64);
    }
    Ok(Member { length, sha256: hex(&sum.finalize()) })
}

/// Returns the flight recorder's journal of a bundle: a temporary file without a name.
///
/// # Errors
/// If the file is not a bundle, is damaged or truncated, or has no journal, or if there is no room for the journal.
pub fn open_journal(path: &Path) -> anyhow::Result<File> {
    let Unpacked { manifest, journal, .. } = open(path, Wanted::Journal)?;
    journal.with_context(|| missing(JOURNAL, path, &manifest))
}

/// Describes why a bundle does not have a member.
fn missing(name: &str, path: &Path, manifest: &Manifest) -> String {
    let (path, node) = (path.display(), output::printable(&manifest.node));
    if manifest.members.contains_key(JOURNAL) {
        return format!("the bundle {path} has no {name}: the journal of node {node} did not contain it");
    }
    format!(
        "the bundle {path} has no {name}: the journal of node {node} was disabled\n  help: set journal.folder in the node's configuration and write a new bundle"
    )
}

impl Bundle {
    /// Reads a bundle's state.
    ///
    /// # Errors
    /// If the file is not a bundle, or is damaged or truncated.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let Unpacked { manifest, objects, .. } = open(path, Wanted::State)?;
        Ok(Self { path: path.to_owned(), manifest, objects })
    }

    /// Returns the objects that were in force.
    fn objects(&self) -> anyhow::Result<&[Object]> {
        self.objects.as_deref().with_context(|| missing(STATE, &self.path, &self.manifest))
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

/// The words for the path `-` in progress reports.
const STDIN: &str = "standard input";

/// Maximum number of paths that a progress report names; it counts the others. More would not fit a line.
const MAX_NAMED: usize = 2;

impl Sources {
    /// Opens the bundles among the paths.
    ///
    /// # Errors
    /// If a bundle cannot be used.
    pub fn open(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let (bundles, paths): (Vec<PathBuf>, Vec<PathBuf>) = paths.iter().cloned().partition(|path| is_bundle(path));
        let bundles = bundles.iter().map(|path| Bundle::open(path)).collect::<anyhow::Result<_>>()?;
        Ok(Self { bundles, paths })
    }

    /// Reads the objects of all inputs. Pods of a bundle have the addresses that the container runtime gave them.
    ///
    /// # Errors
    /// See [`source::load`]; also if the objects of a bundle cannot be parsed.
    pub fn load(&self, options: &Options) -> anyhow::Result<Result<Loaded, SourceErrors>> {
        let name = |path: &PathBuf| if path.as_os_str() == "-" { STDIN.to_owned() } else { path.display().to_string() };
        let names: Vec<String> = self.paths.iter().map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if !names.is_empty() {
            progress::step(format!("reading {}", output::some_of(&names, MAX_NAMED)));
        }
        let mut loaded = match source::load(&self.paths, options.clone()) {
            Ok(loaded) => loaded,
            faults => return Ok(faults),
        };
        let is_wanted = |object: &&Object| {
            let is_service = matches!(object, Object::Service(_) | Object::EndpointSlice(_));
            !is_service || options.services == ServiceKinds::Read
        };
        for bundle in &self.bundles {
            loaded.objects.extend(bundle.objects()?.iter().filter(is_wanted).cloned());
            loaded.files += 1;
        }
        let attached = self.bundles.iter().flat_map(|bundle| bundle.manifest.attached.iter().cloned()).collect();
        attachments::give(&mut loaded.objects, &attached);
        Ok(Ok(loaded))
    }
}

#[cfg(test)]
mod tests;
