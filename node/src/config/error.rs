//! Errors of a configuration: file, line, field, problem and remedy.

use std::fmt;
use std::sync::Arc;

/// One fault of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// The file.
    pub file: Arc<str>,
    /// The line, from 1, where there is one.
    pub line: Option<u64>,
    /// The field, e.g. `ports[2].pod`; empty when it concerns the file.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub help: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}\n  help: {}", self.problem, self.help)
    }
}

/// Everything that is wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub(crate) struct ConfigErrors(pub Vec<ConfigError>);
