//! Arguments of `bulkhead translate`. Parsing them reads no files.

use std::path::PathBuf;

use bulkhead_answers::args::{Planned, State};
use clap::ValueEnum;

/// `bulkhead translate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead translate --state cluster.yaml calico.yaml > policies.yaml\n  \
    bulkhead translate --state cluster.yaml cilium.yaml --out policies.yaml\n\n\
    Standard output has the objects, standard error the proof: what differs in this cluster, what would differ in others, what cannot be\n\
    translated. docs/translate.md has the rules.\n\n\
    Exit code 0 if every verdict is the same, 1 if one differs or a rule cannot be translated, 2 for an error.")]
pub struct Translate {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
    /// Write the objects to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Format of the objects
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "yaml")]
    pub output: ObjectFormat,
}

/// Format of translated objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// YAML documents with the comments of the original policies.
    Yaml,
    /// A JSON list.
    Json,
}
