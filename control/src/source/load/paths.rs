//! Finds and reads the texts behind the paths of an input: files, all files below directories, and standard input.
//!
//! A directory may be a repository's, with files that are not for Kubernetes. They are passed over if [`Folders::Mixed`] is set, except for
//! what could be a policy. A file or directory to which several links lead is read once.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::Folders;
use super::super::error::SourceError;
use super::super::parse::could_be_policy;
use super::super::pieces::parse;
use super::super::read::{ReadFault, STDIN, file_text, text_of};
use super::super::tree::Entry;
use super::Loader;

/// File extensions that are read from a directory, ignoring case.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Maximum depth of nested directories. No tree of manifests is as deep.
const MAX_DEPTH: usize = 32;

impl Loader {
    /// Reads a file, a directory or standard input.
    pub(in super::super) fn read_path(&mut self, path: &Path) {
        let name: Arc<str> = path.to_string_lossy().into();
        if &*name == STDIN {
            self.read_source(&name, text_of(io::stdin().lock()), Self::read_text);
        } else if path.is_dir() {
            self.read_directory(path, &name);
        } else {
            self.read_source(&name, file_text(path), Self::read_text);
        }
    }

    /// Passes a text to `read`, or reports why there is none.
    fn read_source(&mut self, name: &Arc<str>, text: Result<String, ReadFault>, read: fn(&mut Self, &Arc<str>, &str)) {
        match text {
            Ok(text) => read(self, name, &text),
            Err(fault) => self.refuse(name, None, fault.problem, fault.help),
        }
    }

    /// Reads a directory with all directories below it.
    fn read_directory(&mut self, path: &Path, name: &Arc<str>) {
        let (mut files, before) = (Vec::new(), self.loaded.passed_over.len());
        self.list(path, &mut Vec::new(), &mut HashSet::new(), &mut files);
        let help = "check the path; a single file may have any name".to_owned();
        if files.is_empty() {
            let problem = "the directory contains no file that ends in .yaml, .yml or .json".to_owned();
            return self.refuse(name, None, problem, help);
        }
        for file in &files {
            let member = file.to_string_lossy().into();
            match fs::metadata(file) {
                Ok(about) if !about.is_file() && !self.is_mixed() => {
                    let problem = "neither a file nor a directory, so that reading it may never end".to_owned();
                    self.refuse(&member, None, problem, "remove it from the directory".to_owned());
                }
                Ok(about) if !about.is_file() => self.pass_over(&member),
                // A link to a file that does not exist.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_mixed() => self.pass_over(&member),
                Ok(_) | Err(_) => self.read_regular(file, &member),
            }
        }
        if self.loaded.passed_over.len() - before == files.len() {
            let problem = format!("none of the {} files of the directory holds a Kubernetes object", files.len());
            self.refuse(name, None, problem, help);
        }
    }

    /// Reads a regular file of a directory. If the directory may be mixed, passes over what is not UTF-8, such as Latin-1, and has no field
    /// `kind`. With that field it is an error, because it could be a policy that its author believes to be in force.
    fn read_regular(&mut self, file: &Path, name: &Arc<str>) {
        match file_text(file) {
            Err(fault) if self.is_mixed() && fault.lossy.as_ref().is_some_and(|text| !could_be_policy(text)) => {
                self.pass_over(name);
            }
            text => self.read_source(name, text, Self::read_member),
        }
    }

    /// Reads the text of a directory's file. If the directory may be mixed, passes over the file if it holds no object, or else those of its
    /// documents that are no object, with a warning about the first of them.
    fn read_member(&mut self, file: &Arc<str>, text: &str) {
        let mut parsed = parse(file, text);
        if self.is_mixed() {
            match &mut parsed {
                Ok((entries, _)) if !entries.is_empty() => {
                    if entries.iter().all(Entry::is_no_object) {
                        return self.pass_over(file);
                    }
                    if let Some(first) = entries.iter().find(|entry| entry.is_no_object()) {
                        self.warn_of_foreign(file, first);
                        entries.retain(|entry| !entry.is_no_object());
                    }
                }
                Err(_) if !could_be_policy(text) => return self.pass_over(file),
                Ok(_) | Err(_) => {}
            }
        }
        self.take(file, text, parsed);
    }

    /// Warns of a document that is no object, beside others that are.
    fn warn_of_foreign(&mut self, file: &Arc<str>, Entry { document, line, .. }: &Entry) {
        self.loaded.warnings.push(SourceError {
            file: Arc::clone(file),
            document: *document,
            line: Some(*line),
            object: None,
            path: String::new(),
            problem:
                "the document holds no Kubernetes object and is passed over, as are others of this file that hold none"
                    .to_owned(),
            help: "remove it, or write its `apiVersion` and `kind`".to_owned(),
        });
    }

    /// Warns of a symbolic link to a directory above it, which is not followed.
    fn warn_of_loop(&mut self, file: &Arc<str>) {
        let problem = "a symbolic link to a directory above it is not followed".to_owned();
        let help = "name that directory if its files belong to the state; otherwise remove the link".to_owned();
        let (file, object, path) = (Arc::clone(file), None, String::new());
        self.loaded.warnings.push(SourceError { file, document: 0, line: None, object, path, problem, help });
    }

    fn is_mixed(&self) -> bool {
        self.options.folders == Folders::Mixed
    }

    /// Records that a file of a directory holds no object.
    fn pass_over(&mut self, file: &Arc<str>) {
        self.loaded.passed_over.push(Arc::clone(file));
    }

    /// Adds the files of a directory to `files`, recursively and sorted by name. `above` are the real paths of the directories on the way,
    /// `seen` those of all files and directories so far, which are not read again.
    fn list(
        &mut self,
        directory: &Path,
        above: &mut Vec<PathBuf>,
        seen: &mut HashSet<PathBuf>,
        files: &mut Vec<PathBuf>,
    ) {
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
        if !seen.insert(real.clone()) {
            return;
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
                self.list(&path, above, seen, files);
            } else if is_read(&path) && self::real(&path).map_or(true, |real| seen.insert(real)) {
                files.push(path);
            }
        }
        above.pop();
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

/// Returns a path without symbolic links. An error if a link leads nowhere.
#[cfg(unix)]
fn real(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

/// Returns the path as it is: the playground's files have no symbolic links, and its C library cannot resolve any.
#[cfg(not(unix))]
fn real(path: &Path) -> io::Result<PathBuf> {
    Ok(path.to_owned())
}
