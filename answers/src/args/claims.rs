//! What is claimed of a state.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Planned, State};

/// `bulkhead test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead test --state pcaps/redis-policy examples/claims.yaml\n\n\
    A claim says never, always or only: who connects to whom, at which ports. It is proven for all addresses and ports at once, and one\n\
    that fails names a connection that shows it, the rules that decide, and what would mend it. A claim about nobody is VACUOUS and fails.\n\
    Workloads without pods are judged by their templates, so a rendered chart will do for a state. docs/answers.md describes claims and\n\
    output, docs/claims.schema.json tells them to editors.\n\n\
    Exit code 0 when every claim holds, 1 when one does not, 2 an error.")]
pub struct Test {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// What of it is not there yet.
    #[command(flatten)]
    pub planned: Planned,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: TestFormat,
    /// Claims: YAML or JSON. Without them the last path behind --state is one
    #[arg(value_name = "CLAIMS")]
    pub claims: Vec<PathBuf>,
}

/// The form of the answer about claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For systems that show test results.
    Junit,
    /// For systems that show findings in code.
    Sarif,
}
