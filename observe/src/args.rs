//! Arguments of the subcommands that query a running vswitch or its journal.

mod admin;
mod top;
mod wait;
mod watch;
mod why;

pub use admin::{Audit, AuditAction, Names, Reload, Sessions, Status, Tables};
pub use top::{PortOrder, Top};
pub use wait::{PolicyReference, Wait};
pub use watch::{Capture, Monitor, Trace, Traced, WatchedEnds};
pub use why::{Bundle, Why};

/// Parses the arguments of one subcommand. `words` excludes its name.
#[cfg(test)]
pub(crate) fn parsed<'a, T: clap::Args + clap::FromArgMatches>(words: impl IntoIterator<Item = &'a str>) -> T {
    let command = T::augment_args(clap::Command::new("bulkhead").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
}
