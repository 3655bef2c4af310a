//! What a build may use, and why one fails.

/// The most rules that one list may hold.
///
/// A position and an action are kept in 24 bits, so that a rule to be verified is half a cache line with its verdict.
/// 2^23 is 40 times the largest list that is measured (200,000 rules).
pub const MAX_RULES: usize = 1 << 23;

/// Why a list could not be compiled. The tables in use stay as they are.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The list is longer than [`MAX_RULES`].
    #[error("{rules} rules in one table; the most that fit are {MAX_RULES}")]
    TooManyRules {
        /// How many there are.
        rules: usize,
    },
    /// More rules overlap in every field than the engine may hold.
    #[error(
        "the rules overlap in too many ways to be compiled in bounded memory; use fewer different ranges or prefixes"
    )]
    TooComplex,
    /// The compiled form would be larger than [`BuildOptions::max_bytes`].
    #[error("the compiled rules take more than the {max_bytes} bytes that are allowed")]
    TooLarge {
        /// The bound.
        max_bytes: usize,
    },
    /// [`BuildOptions::cancelled`] said so.
    #[error("the build was cancelled")]
    Cancelled,
}

/// What a build may use.
#[derive(Clone, Copy)]
pub struct BuildOptions<'a> {
    /// The most heap bytes of the compiled form of one address family. While it is built, up to four times as much is
    /// in use.
    pub max_bytes: usize,
    /// Asked now and then; the build gives up when it says true.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Default for BuildOptions<'_> {
    /// 256 MiB, 20 times what the largest measured list (200,000 rules) takes, and not to be cancelled.
    fn default() -> Self {
        Self { max_bytes: 256 << 20, cancelled: &|| false }
    }
}

impl BuildOptions<'_> {
    /// An error when the build should stop.
    pub(crate) fn proceed(&self) -> Result<(), BuildError> {
        if (self.cancelled)() { Err(BuildError::Cancelled) } else { Ok(()) }
    }
}
