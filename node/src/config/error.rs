//! Errors of a configuration: file, line, field, problem and remedy.

use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// The path of the configuration file.
    pub file: Arc<str>,
    /// The line, from 1. `None` if the error concerns no particular line.
    pub line: Option<u64>,
    /// The field, for example `ports[2].pod`. Empty if the error concerns the whole file.
    pub field: String,
    /// What is wrong with the field's value, as text.
    pub problem: String,
    /// How to mend the configuration, as text.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub(crate) struct ConfigErrors(pub Vec<ConfigError>);
