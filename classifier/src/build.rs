//! Limits of a build, and its errors.

/// Maximum number of rules in one list.
///
/// A position and an action fit into 24 bits, so that a rule to verify takes half a cache line with its verdict. 2^23 is 40 times the
/// largest list measured (200,000 rules).
pub const MAX_RULES: usize = 1 << 23;

/// Why a list was not compiled. The tables in use stay in force.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The list is longer than [`MAX_RULES`].
    #[error("the list has {rules} rules; a table holds at most {MAX_RULES}")]
    TooManyRules {
        /// The number of rules in the list.
        rules: usize,
    },
    /// More rules overlap in all fields than any structure can hold.
    #[error(
        "the rules overlap in too many ways to be compiled in bounded memory; use fewer different ranges or prefixes"
    )]
    TooComplex,
    /// The compiled form would be larger than [`BuildOptions::max_bytes`].
    #[error("the compiled rules exceed the limit of {max_bytes} bytes")]
    TooLarge {
        /// The limit, in bytes.
        max_bytes: usize,
    },
    /// [`BuildOptions::cancelled`] returned true.
    #[error("the build was cancelled")]
    Cancelled,
}

/// Limits of a build: memory, and a way to cancel it.
#[derive(Clone, Copy)]
pub struct BuildOptions<'a> {
    /// Maximum heap bytes of one address family's compiled form. A build may use up to four times as much temporarily.
    pub max_bytes: usize,
    /// Called repeatedly during a build. The build stops when it returns true.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Default for BuildOptions<'_> {
    /// 256 MiB, 20 times the largest measured list (200,000 rules); never cancelled.
    fn default() -> Self {
        Self { max_bytes: 256 << 20, cancelled: &|| false }
    }
}

impl BuildOptions<'_> {
    /// Returns [`BuildError::Cancelled`] if the build was cancelled.
    pub(crate) fn proceed(&self) -> Result<(), BuildError> {
        if (self.cancelled)() { Err(BuildError::Cancelled) } else { Ok(()) }
    }
}
