//! Arguments of the offline subcommands, and arguments that several crates share. Parsing them reads no files.

mod admin;
mod asked;
mod claims;
mod compile;
mod diff;
mod dns;
mod ends;
mod explain;
mod learn;
mod lint;
mod planned;
mod policies;
mod reach;
mod replay;
mod resolve;
mod state;
mod target;

use std::path::PathBuf;

use clap::ValueEnum;

pub use admin::{Admin, DEFAULT_SOCKET};
pub use asked::Asked;
pub use claims::{Test, TestFormat};
pub use compile::{Compile, RendererName};
pub use diff::{Diff, DiffFormat};
pub use dns::Dns;
pub use ends::{EndName, Focus, PodLabels, PortProtocol, Workload};
pub use explain::Explain;
pub use learn::{Learn, Learned};
pub use lint::{Lint, LintFormat};
pub use planned::Planned;
pub use policies::Policies;
pub use reach::{Reach, ReachFormat};
pub use replay::Replay;
pub use resolve::{Destination, Resolve, ResolveTarget};
pub use state::{EnforcementName, NamespaceDefault, PolicySemantics, State, semantics, without_captures};
pub use target::{ServicePortWord, ServiceTarget, Target};

/// Output format of most subcommands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `bulkhead classify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead classify --rules acl1.rules.gz --trace acl1.trace.gz -o json\n\n\
    Exit code 1 if the classifier's answer differs from the trace's.")]
pub struct Classify {
    /// Rules in ClassBench format, plain or gzip
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,
    /// Packets, each with the position of the rule that decides it; plain or gzip
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}
