//! A vswitch that runs, and what it leaves.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;

use super::Format;

/// `bulkhead run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead run --config examples/node.yaml --check\n\n\
    The configuration and the state's files are watched: ports, routes and policy change while it runs.\n\
    SIGTERM and SIGINT stop it and give the interfaces back; SIGUSR1 prints the summary that also comes at the end;\n\
    SIGHUP looks at the files at once. A second SIGTERM or SIGINT, a second or more after the first, ends it without waiting.\n\
    Exit codes: 0 stopped by a signal; with --check 0 it would start, 1 it would not; 2 an error, or a capture that is not\n\
    whole; 143 or 130 ended by a second SIGTERM or SIGINT.")]
pub struct Run {
    /// The configuration; examples/node.yaml shows every field
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The node's name, instead of the configuration's: where one file is for all nodes of a cluster
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only check whether it would start, and touch nothing
    #[arg(long)]
    pub check: bool,
    /// Take an interface even if it carries the node's default route
    #[arg(long)]
    pub force: bool,
    /// How events are written to standard error, instead of as the configuration says (log.format)
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Write this file when forwarding has started; systemd is told as well (Type=notify)
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
    /// Record what comes in, with its verdicts, until the end: for looking, it costs a copy of every packet
    #[arg(long, value_name = "OUT.pcapng")]
    pub capture: Option<PathBuf>,
    /// The form of the summary and of the findings of --check
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// How events of a running vswitch are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people, more lines indented.
    #[default]
    Text,
    /// An object in one line.
    Json,
}

/// `bulkhead cleanup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead cleanup\n  bulkhead cleanup --config node.yaml\n\n\
    After it nothing of a vswitch is in the kernel of this network namespace; sessions that it had left end at once. Exit code 0 when\n\
    there is nothing to remove; 2 when a vswitch still runs here. The flight recorder's journal stays, for whoever asks why afterwards: it is a\n\
    file, `journal-NODE` in journal.folder.")]
pub struct Cleanup {
    /// The configuration that the vswitch had, for its `pins` and the interfaces that it has had made (`create`); without it pins are
    /// where they are by default, and no interfaces are removed but the trunk
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
