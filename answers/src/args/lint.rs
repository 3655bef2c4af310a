//! What is found wrong with policies.

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
    A rule never decides when removing it changes no verdict between any two addresses at any port; docs/answers.md lists what else is\n\
    found. Workloads without pods are judged by their templates, so a rendered chart will do for a state.\n\n\
    Exit code 0 when nothing is found, 1 when something is, 2 an error.")]
pub struct Lint {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// What of it is not there yet.
    #[command(flatten)]
    pub planned: Planned,
    /// Also find rules that nothing has used: by the admin socket of a running vswitch, by what `bulkhead policies -o json` printed, by
    /// captures (.pcap, .pcapng, .cap), or by flow logs as for `replay`. May be repeated; the time that each covers is told
    #[arg(long, value_name = "PATH")]
    pub hits: Vec<PathBuf>,
    /// Judge a TCP connection that began before a capture by its first packet in it, as if its sender were the client
    #[arg(long, requires = "hits")]
    pub tcp_pickup: bool,
    /// A JSON or YAML object with service_cidrs (docs/services.md), to find blocks that lie in them
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Only findings of this kind; may be repeated
    #[arg(long, value_name = "ID", value_parser = PossibleValuesParser::new(ids()), hide_possible_values = true)]
    pub only: Vec<String>,
    /// No findings of this kind; may be repeated
    #[arg(long, value_name = "ID", value_parser = PossibleValuesParser::new(ids()), hide_possible_values = true)]
    pub allow: Vec<String>,
    /// Only findings about policies of this namespace; may be repeated
    #[arg(long = "namespace", value_name = "NAME")]
    pub namespaces: Vec<String>,
    /// Only findings about this policy: NAMESPACE/NAME, or the name of a policy without a namespace; may be repeated
    #[arg(long = "policy", value_name = "NAME")]
    pub policies: Vec<String>,
    /// The form of the answer
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: LintFormat,
}

/// The form of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LintFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For systems that show findings in code: SARIF 2.1.0.
    Sarif,
}
