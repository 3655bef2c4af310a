//! Arguments of `bulkhead test`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Planned, State};

/// `bulkhead test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead test --state pcaps/redis-policy examples/claims.yaml\n\n\
    A claim states which clients never, always or exclusively (only) reach which servers and ports. It is verified for all addresses and\n\
    ports. A failed claim comes with an example connection, the rules that decide, and a fix. A claim that matches no pod or address is\n\
    VACUOUS and fails. Workloads without pods are judged by their pod templates, so a rendered chart can serve as the state.\n\
    docs/answers.md describes claims and output; docs/claims.schema.json is the JSON schema for editors.\n\n\
    Exit code 0 if every claim holds, 1 if one fails, 2 for an error.")]
pub struct Test {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: TestFormat,
    /// Files of claims, YAML or JSON. If omitted, the last path after --state is the file of claims
    #[arg(value_name = "CLAIMS")]
    pub claims: Vec<PathBuf>,
}

/// Output format of `bulkhead test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For CI systems that show test results.
    Junit,
    /// For code scanning: SARIF 2.1.0.
    Sarif,
}
