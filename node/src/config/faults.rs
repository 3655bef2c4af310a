//! Collects the errors of a configuration file.

use serde_saphyr::Spanned;

use super::ConfigError;

/// Maximum length of a socket path in bytes. `sockaddr_un` has 108, including the final zero; the socket's temporary name needs some more.
pub(super) const MAX_SOCKET_PATH: usize = 96;

/// Collects the errors of one configuration file, so that all are reported together.
pub(super) struct Faults<'a> {
    pub(super) file: &'a str,
    pub(super) errors: Vec<ConfigError>,
}

impl Faults<'_> {
    pub(super) fn add(
        &mut self,
        line: Option<u64>,
        field: impl Into<String>,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (field, problem, help) = (field.into(), problem.into(), help.into());
        self.errors.push(ConfigError { file: self.file.into(), line, field, problem, help });
    }
}

pub(super) fn line<T>(value: &Spanned<T>) -> Option<u64> {
    Some(value.referenced.line())
}
