//! Problems of a configuration, and reading the files that it names.

use std::fs;
use std::path::Path;

/// A problem of a configuration. `help` is `None` if the general remedy applies.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) problem: String,
    pub(super) help: Option<String>,
}

impl Unusable {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: None }
    }

    pub(super) fn with_help(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: Some(help.into()) }
    }

    /// Returns the problem, prefixed with the part of the configuration that has it.
    pub(super) fn of(self, part: &str) -> Self {
        Self { problem: format!("{part}: {}", self.problem), ..self }
    }
}

/// Reads a file that the configuration names. The error names the file.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, Unusable> {
    fs::read(path).map_err(|error| Unusable::new(format!("{} cannot be read: {error}", path.display())))
}
