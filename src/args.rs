//! The subcommands of `bulkhead`. Each crate defines the arguments of its own subcommands.

#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod sync;

use std::path::PathBuf;

use bulkhead_answers::args::{Classify, Compile, Diff, Explain, Learn, Lint, Policies, Reach, Replay, Resolve, Test};
use bulkhead_migrate::args::Translate;
use bulkhead_observe::args::Why;
use clap::{Parser, Subcommand};

#[cfg(target_os = "linux")]
pub use live::LiveCommand;
#[cfg(target_os = "linux")]
pub use sync::{Sync, SyncNeutron, SyncTarget};

/// A Kubernetes node's vswitch in user space that enforces NetworkPolicy.
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 success, 1 the answer is \"no\", 2 error.")]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// A subcommand of `bulkhead`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Judge every packet of a capture with a node's tables
    Replay(Replay),
    /// Generate the NetworkPolicies that allow observed traffic, and prove that they do
    Learn(Learn),
    /// Show which pods can reach which: the connectivity matrix of a cluster
    Reach(Reach),
    /// Trace one connection through every table and name the rule that decides
    Explain(Explain),
    /// Explain a past connection: its verdict, the deciding rule, and what has changed since. Reads the flight recorder
    Why(Why),
    /// List every connection whose verdict differs between two states, and the rules responsible
    Diff(Diff),
    /// Find rules that never decide, and policies that probably do not do what their author meant
    Lint(Lint),
    /// List the backends that a new connection to a Service may be sent to
    Resolve(Resolve),
    /// Verify claims about a state: never, always, only
    Test(Test),
    /// Print the tables that a renderer compiles from a node's policies
    Compile(Compile),
    /// Translate policies of Calico and Cilium and AdminNetworkPolicies to those of Kubernetes, and prove that they mean the same
    Translate(Translate),
    /// Check and time the classifier with a ClassBench rule set and trace
    Classify(Classify),
    /// Show how much each policy and rule of the running vswitch allowed and denied, or which policies of a state select a pod
    Policies(Policies),
    /// Subcommands that run on Linux only.
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Live(LiveCommand),
    /// Print a shell completion script
    Completions(Completions),
    /// Write man pages for the program and each subcommand
    Man(Man),
}

/// `bulkhead completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead completions bash > /etc/bash_completion.d/bulkhead")]
pub struct Completions {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `bulkhead man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead man --out /usr/local/share/man/man1")]
pub struct Man {
    /// Folder to write to; created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }
}
