//! Arguments of `bulkhead lint`.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;

use super::{Planned, State};
use crate::lint::ids;

/// `bulkhead lint`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead lint --state pcaps/redis-policy\n  \
    bulkhead lint --state pcaps/shop/state.yaml examples/shop/draft.yaml\n  \
    bulkhead lint --state cluster/ --hits /run/bulkhead/admin.sock\n  \
    bulkhead lint --state cluster/ --hits monday.pcapng --hits hubble.json --only unused-rule\n\n\
    A rule never decides if removing it changes no verdict between any two addresses at any port. docs/lint.md lists all checks.\n\
    Workloads without pods are judged by their pod templates, so a rendered chart can serve as the state.\n\n\
    Exit code 0 without findings, 1 with findings, 2 for an error.")]
pub struct Lint {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
    /// Also find rules that no traffic used, according to PATH: admin socket of a running vswitch, output of `bulkhead policies -o json`,
    /// capture (.pcap, .pcapng, .cap), or flow log as for `replay`. The output names the period that each source covers. May be repeated
    #[arg(long, value_name = "PATH")]
    pub hits: Vec<PathBuf>,
    /// If a capture starts in the middle of a TCP connection, take the sender of the first captured packet as the client
    #[arg(long, requires = "hits")]
    pub tcp_pickup: bool,
    /// JSON or YAML file with service_cidrs (docs/services.md), to find policy blocks inside them
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Report only findings of this kind; may be repeated
    #[arg(long, value_name = "ID", value_parser = PossibleValuesParser::new(ids()), hide_possible_values = true)]
    pub only: Vec<String>,
    /// Suppress findings of this kind; may be repeated
    #[arg(long, value_name = "ID", value_parser = PossibleValuesParser::new(ids()), hide_possible_values = true)]
    pub allow: Vec<String>,
    /// Report only findings about policies in this namespace; may be repeated
    #[arg(long = "namespace", value_name = "NAME")]
    pub namespaces: Vec<String>,
    /// Report only findings about this policy: NAMESPACE/NAME, or NAME for a cluster-scoped policy; may be repeated
    #[arg(long = "policy", value_name = "NAME")]
    pub policies: Vec<String>,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: LintFormat,
}

/// Output format of `bulkhead lint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LintFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For code scanning: SARIF 2.1.0.
    Sarif,
}
