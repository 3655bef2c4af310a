//! Reads files, directories and standard input.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::load::Loader;

/// The path that denotes standard input.
pub(super) const STDIN: &str = "-";

/// File extensions that are read from a directory, ignoring case.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Maximum depth of nested directories. It ends loops of symbolic links; no tree of manifests is as deep.
const MAX_DEPTH: usize = 32;

/// Maximum size of a file, in bytes: several times that of 100,000 pods. A larger file is a mistake, such as a disk image or `/dev/zero`.
const MAX_FILE_BYTES: u64 = 4 << 30;

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
    let mut bytes = Vec::new();
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| ReadFault::io(&error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let problem = format!("larger than {} GiB", MAX_FILE_BYTES >> 30);
        return Err(ReadFault::new(problem, "split the file, or check that it is the right one"));
    }
    String::from_utf8(bytes).map(without_mark).map_err(|error| {
        let line =
            error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        ReadFault::new(format!("line {line} is not UTF-8"), "convert the file to UTF-8")
    })
}

/// Removes the byte order mark, which editors on Windows write and JSON does not allow.
fn without_mark(text: String) -> String {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

impl Loader {
    /// Reads a file, a directory or standard input.
    pub(super) fn read_path(&mut self, path: &Path) {
        let name: Arc<str> = path.to_string_lossy().into();
        if &*name == STDIN {
            return self.read_source(&name, text_of(io::stdin().lock()));
        }
        if path.is_dir() {
            let mut files = Vec::new();
            self.list(path, MAX_DEPTH, &mut files);
            if files.is_empty() {
                let problem = "the directory contains no file that ends in .yaml, .yml or .json".to_owned();
                self.refuse(&name, None, problem, "check the path; a single file may have any name".to_owned());
            }
            for file in files {
                self.read_source(&file.to_string_lossy().into(), file_text(&file));
            }
        } else {
            self.read_source(&name, file_text(path));
        }
    }

    fn read_source(&mut self, name: &Arc<str>, text: Result<String, ReadFault>) {
        match text {
            Ok(text) => self.read_text(name, &text),
            Err(fault) => self.refuse(name, None, fault.problem, fault.help),
        }
    }

    /// Adds the files of a directory to `files`, recursively and sorted by name.
    fn list(&mut self, directory: &Path, depth: usize, files: &mut Vec<PathBuf>) {
        let name: Arc<str> = directory.to_string_lossy().into();
        let Some(depth) = depth.checked_sub(1) else {
            let problem = format!("directories are nested more than {MAX_DEPTH} deep");
            return self.refuse(&name, None, problem, "check for a symbolic link to a parent directory".to_owned());
        };
        let entries = fs::read_dir(directory).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        let mut paths: Vec<_> = match entries {
            Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
            Err(error) => {
                let fault = ReadFault::io(&error);
                return self.refuse(&name, None, fault.problem, fault.help);
            }
        };
        paths.sort();
        for path in paths {
            // A mounted ConfigMap contains each file twice: under its name and below `..data`.
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("..")) {
                continue;
            }
            if path.is_dir() {
                self.list(&path, depth, files);
                continue;
            }
            let ending = path.extension().and_then(|ending| ending.to_str());
            if ending.is_some_and(|ending| ENDINGS.iter().any(|known| known.eq_ignore_ascii_case(ending))) {
                files.push(path);
            }
        }
    }
}
