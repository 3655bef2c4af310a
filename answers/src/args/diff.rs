//! `bulkhead diff`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Planned, State};

/// `bulkhead diff`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  bulkhead diff --state pcaps/redis-policy/state.yaml --against pcaps/redis-no-policy/state.yaml\n\n\
    The answer is exact for all addresses, protocols and ports; docs/answers.md describes it and its JSON. A range of addresses stands\n\
    for those of its addresses that no pod has. Exit code 1 when there is a difference."
)]
pub struct Diff {
    /// The old state.
    #[command(flatten)]
    pub state: State,
    /// How workloads without pods count, in both states.
    #[command(flatten)]
    pub planned: Planned,
    /// The new state: files or folders as for --state. It is read with the same options
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    pub against: Vec<PathBuf>,
    /// One entry for each pair of pods, each pod and range of addresses outside, and protocol; without it pods are told by namespace
    #[arg(long)]
    pub ungrouped: bool,
    /// Exit with 1 only when something is newly allowed
    #[arg(long)]
    pub no_new_access: bool,
    /// Flow logs as for `replay`: which of their flows would be cut or opened; may be repeated
    #[arg(long, value_name = "FILE")]
    pub flows: Vec<PathBuf>,
    /// Judge a TCP connection that began before the capture by its first packet in it, as if its sender were the client
    #[arg(long)]
    pub tcp_pickup: bool,
    /// With captures or flow logs: a JSON or YAML object with the settings of Services: service_cidrs, cluster_cidrs and what else
    /// docs/services.md lists
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// The form of the answer
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: DiffFormat,
    /// Captures, pcap or pcapng, whose addresses are those of the old state: which flows would be cut or opened. Directly behind
    /// --against they are told by their names' ends
    #[arg(value_name = "CAPTURE")]
    pub captures: Vec<PathBuf>,
}

/// The form of a difference.
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
