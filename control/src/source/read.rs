//! Reads files, directories and standard input.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use super::load::Loader;

/// The path that denotes standard input.
pub(super) const STDIN: &str = "-";

/// File extensions that are read from a directory, ignoring case.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Maximum depth of nested directories. No tree of manifests is as deep.
const MAX_DEPTH: usize = 32;

/// Maximum size of a file, in bytes: several times that of 100,000 pods. A larger file is a mistake, such as a disk image or `/dev/zero`.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// The first bytes of a text that is compressed by gzip (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Maximum ratio of a text to its compressed size. Large states compress to a thirtieth; a small file must not fill the memory.
const MAX_RATIO: u64 = 100;

/// Size in bytes up to which any ratio is accepted: small texts of equal lines compress better.
const MIN_UNCOMPRESSED: u64 = 16 << 20;

pub(super) struct ReadFault {
    problem: String,
    help: String,
}

impl ReadFault {
    fn new(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: help.into() }
    }

    fn io(error: &io::Error) -> Self {
        let help = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "make the file readable for this user",
            _ => "no object of this file was read",
        };
        Self::new(format!("cannot read: {error}"), help)
    }
}

/// Returns the text of a file, without a byte order mark.
pub(super) fn file_text(path: &Path) -> Result<String, ReadFault> {
    fs::File::open(path).map_err(|error| ReadFault::io(&error)).and_then(text_of)
}

fn text_of(source: impl Read) -> Result<String, ReadFault> {
    let mut bytes = bounded(source, MAX_FILE_BYTES)?;
    if bytes.starts_with(&GZIP) {
        let compressed = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let most = compressed.saturating_mul(MAX_RATIO).clamp(MIN_UNCOMPRESSED, MAX_FILE_BYTES);
        bytes = bounded(MultiGzDecoder::new(&*bytes), most)?;
    }
    match bytes.get(..2) {
        Some([0xff, 0xfe]) => return of_utf16(&bytes[2..], u16::from_le_bytes),
        Some([0xfe, 0xff]) => return of_utf16(&bytes[2..], u16::from_be_bytes),
        _ => {}
    }
    String::from_utf8(bytes).map(without_mark).map_err(|error| {
        let line =
            error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        ReadFault::new(format!("line {line} is not UTF-8"), "convert the file to UTF-8")
    })
}

/// Reads a source to its end.
fn bounded(source: impl Read, most: u64) -> Result<Vec<u8>, ReadFault> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(|error| ReadFault::io(&error))?;
    if bytes.len() as u64 > most {
        let problem = format!("larger than {} MiB", most >> 20);
        return Err(ReadFault::new(problem, "split the file, or check that it is the right one"));
    }
    Ok(bytes)
}

/// Decodes UTF-16 after its byte order mark. PowerShell writes it when it redirects a program's output.
fn of_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, ReadFault> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let text: Result<String, _> = char::decode_utf16(pairs.iter().copied().map(unit)).collect();
    match text {
        Ok(text) if rest.is_empty() => Ok(text),
        _ => {
            Err(ReadFault::new("not UTF-16, although it begins with its byte order mark", "convert the file to UTF-8"))
        }
    }
}

/// Removes the byte order mark, which editors on Windows write and JSON does not allow.
fn without_mark(text: String) -> String {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

/// Whether a file of a directory is read, by its name.
fn is_read(path: &Path) -> bool {
    let ends = |path: &Path, known: &str| {
        path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ending.eq_ignore_ascii_case(known))
    };
    let inner = if ends(path, "gz") { path.with_extension("") } else { path.to_owned() };
    ENDINGS.iter().any(|known| ends(&inner, known))
}

impl Loader {
    /// Reads a file, a directory or standard input.
    pub(super) fn read_path(&mut self, path: &Path) {
        let name: Arc<str> = path.to_string_lossy().into();
        if &*name == STDIN {
            return self.read_source(&name, text_of(io::stdin().lock()));
        }
        if path.is_dir() {
            self.read_directory(path, &name);
        } else {
            self.read_source(&name, file_text(path));
        }
    }

    fn read_directory(&mut self, path: &Path, name: &Arc<str>) {
        let (mut files, before) = (Vec::new(), self.passed_over());
        self.list(path, &mut Vec::new(), &mut files);
        let help = "check the path; a single file may have any name".to_owned();
        if files.is_empty() {
            let problem = "the directory contains no file that ends in .yaml, .yml or .json".to_owned();
            return self.refuse(name, None, problem, help);
        }
        for file in &files {
            let member = file.to_string_lossy().into();
            match is_endless(file) {
                true if self.is_mixed() => self.pass_over(&member),
                true => {
                    let problem = "neither a file nor a directory, so that reading it may never end".to_owned();
                    self.refuse(&member, None, problem, "remove it from the directory".to_owned());
                }
                false => match file_text(file) {
                    Ok(text) => self.read_member(&member, &text),
                    Err(fault) => self.refuse(&member, None, fault.problem, fault.help),
                },
            }
        }
        if self.passed_over() - before == files.len() {
            let problem = format!("none of the {} files of the directory holds a Kubernetes object", files.len());
            self.refuse(name, None, problem, help);
        }
    }

    fn read_source(&mut self, name: &Arc<str>, text: Result<String, ReadFault>) {
        match text {
            Ok(text) => self.read_text(name, &text),
            Err(fault) => self.refuse(name, None, fault.problem, fault.help),
        }
    }

    /// Adds the files of a directory to `files`, recursively and sorted by name. `above` are the real paths of the directories on the way.
    fn list(&mut self, directory: &Path, above: &mut Vec<PathBuf>, files: &mut Vec<PathBuf>) {
        let name: Arc<str> = directory.to_string_lossy().into();
        let entries = fs::read_dir(directory).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        let listed = real(directory).and_then(|real| entries.map(|entries| (real, entries)));
        let (real, entries) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                let fault = ReadFault::io(&error);
                return self.refuse(&name, None, fault.problem, fault.help);
            }
        };
        let is_above = above.contains(&real) || above.first().is_some_and(|root| root.starts_with(&real));
        if is_above {
            return self.warn_of_loop(&name);
        }
        if above.len() == MAX_DEPTH {
            let problem = format!("directories are nested more than {MAX_DEPTH} deep");
            return self.refuse(&name, None, problem, "read a directory below".to_owned());
        }
        above.push(real);
        let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            // A mounted ConfigMap contains each file twice: under its name and below `..data`.
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("..")) {
                continue;
            }
            if path.is_dir() {
                self.list(&path, above, files);
            } else if is_read(&path) {
                files.push(path);
            }
        }
        above.pop();
    }
}

/// Returns a directory's path without symbolic links.
#[cfg(unix)]
fn real(directory: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(directory)
}

/// Returns the path as it is: the playground's files have no symbolic links, and its C library cannot resolve any.
#[cfg(not(unix))]
fn real(directory: &Path) -> io::Result<PathBuf> {
    Ok(directory.to_owned())
}

/// Whether reading a path may never end: a pipe, a socket or a device.
fn is_endless(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| !about.is_file())
}
