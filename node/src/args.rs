//! Arguments of `bulkhead run` and `bulkhead cleanup`.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;

use super::Format;

/// `bulkhead run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead run --config examples/node.yaml --check\n\n\
    The vswitch watches its configuration and state files and applies changes of ports, routes and policy while it runs.\n\
    SIGTERM and SIGINT stop it and detach it from all interfaces. SIGUSR1 prints the summary that is also printed at exit.\n\
    SIGHUP re-reads the files at once. A second SIGTERM or SIGINT, at least 1 s after the first, ends it without waiting.\n\
    Exit codes: 0 stopped by a signal; with --check, 0 it can start, 1 it cannot; 2 an error or an incomplete capture;\n\
    143 or 130 ended by a second SIGTERM or SIGINT.")]
pub struct Run {
    /// The configuration; examples/node.yaml shows every field
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Name of this node, overriding the configuration: for one file shared by all nodes of a cluster
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Check whether the vswitch can start, without changing anything
    #[arg(long)]
    pub check: bool,
    /// If another vswitch runs in this network namespace, wait until it has ended, and then take over
    #[arg(long, conflicts_with = "check")]
    pub standby: bool,
    /// Use an interface as a port even if it carries the node's default route
    #[arg(long)]
    pub force: bool,
    /// Format of the log on standard error, overriding log.format of the configuration
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Create this file when forwarding has started; systemd is notified too (Type=notify)
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
    /// Capture all received packets with their verdicts until exit, for debugging: every packet is copied
    #[arg(long, value_name = "OUT.pcapng")]
    pub capture: Option<PathBuf>,
    /// Format of the summary and of the findings of --check
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text: one line per event, further lines indented.
    #[default]
    Text,
    /// JSON: one object per line.
    Json,
}

/// `bulkhead cleanup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead cleanup\n  bulkhead cleanup --config node.yaml\n\n\
    Removes everything that a vswitch left in the kernel of this network namespace; the sessions it left end at once.\n\
    The journal (`journal-NODE` in journal.folder) is kept for later investigation.\n\
    Exit codes: 0 removed, or nothing to remove; 2 an error, or a vswitch still runs here.")]
pub struct Cleanup {
    /// The configuration of the vswitch, for its `pins` and the interfaces it created (`create`). Without it, the default
    /// folder of pins is used, and the only interface removed is the trunk
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
