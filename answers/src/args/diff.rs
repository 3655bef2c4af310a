//! Arguments of `bulkhead diff`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Planned, State};

/// `bulkhead diff`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  bulkhead diff --state pcaps/redis-policy/state.yaml --against pcaps/redis-no-policy/state.yaml\n\n\
    The answer is exact for all addresses, protocols and ports. An address range excludes the addresses of pods inside it.\n\
    docs/answers.md describes the output and its JSON. Exit code 1 if there is a difference."
)]
pub struct Diff {
    /// The old state.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods, in both states.
    #[command(flatten)]
    pub planned: Planned,
    /// New state: files or folders as for --state, read with the same options
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    pub against: Vec<PathBuf>,
    /// Print one entry per pair of pods, per pod and external address range, and per protocol, instead of grouping pods by namespace
    #[arg(long)]
    pub ungrouped: bool,
    /// Exit with 1 only if the new state allows something that the old one denies
    #[arg(long)]
    pub no_new_access: bool,
    /// Flow logs, as for `replay`: report which of their flows would be cut or opened; may be repeated
    #[arg(long, value_name = "FILE")]
    pub flows: Vec<PathBuf>,
    /// If a capture starts in the middle of a TCP connection, take the sender of the first captured packet as the client
    #[arg(long)]
    pub tcp_pickup: bool,
    /// With captures or flow logs: JSON or YAML file with Service settings: service_cidrs, cluster_cidrs and others (docs/services.md)
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: DiffFormat,
    /// Captures, pcap or pcapng, with addresses of the old state: report which flows would be cut or opened. After --against, paths that
    /// end in .pcap, .pcapng or .cap are captures
    #[arg(value_name = "CAPTURE")]
    pub captures: Vec<PathBuf>,
}

/// Output format of `bulkhead diff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// A table for a pull request.
    #[value(alias = "md")]
    Markdown,
    /// For code scanning: SARIF 2.1.0.
    Sarif,
}
