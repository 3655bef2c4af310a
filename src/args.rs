//! The command line: which subcommands there are. Each crate defines the arguments of its own.

#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod sync;

use std::path::PathBuf;

use bulkhead_answers::args::{Classify, Compile, Diff, Explain, Learn, Lint, Policies, Reach, Replay, Resolve, Test};
use bulkhead_observe::args::Why;
use clap::{Parser, Subcommand};

#[cfg(target_os = "linux")]
pub use live::LiveCommand;
#[cfg(target_os = "linux")]
pub use sync::{Sync, SyncNeutron, SyncTarget};

/// A Kubernetes node's vswitch in user space that enforces NetworkPolicy.
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 ok, 1 the answer is \"no\", 2 an error.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Judge every packet of a capture by a node's tables
    Replay(Replay),
    /// Make the NetworkPolicies that allow what captures and flow logs show, and prove it
    Learn(Learn),
    /// Show who can reach whom: the truth table of a cluster
    Reach(Reach),
    /// Walk one connection through every table and name the rule that decides
    Explain(Explain),
    /// Say what became of a connection at a time in the past, by which rule, and what has changed since: the flight recorder
    Why(Why),
    /// Name what changes verdict from one state to another, exactly, and the rules that make the difference
    Diff(Diff),
    /// Find rules that never decide, and what policies say otherwise than was meant
    Lint(Lint),
    /// Name the backends that a new connection to a Service may be given
    Resolve(Resolve),
    /// Prove what is claimed of a state: never, always, only
    Test(Test),
    /// Print what a renderer makes of a node's policies: its compiled tables
    Compile(Compile),
    /// Check and time the classifier on a ClassBench rule set and trace
    Classify(Classify),
    /// List what each policy and rule of the running vswitch has let through and denied, or which policies of a state select a pod
    Policies(Policies),
    /// What needs a Linux machine.
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Live(LiveCommand),
    /// Print the script that completes this command line in a shell
    Completions(Completions),
    /// Write man pages, of the program and of each subcommand
    Man(Man),
}

/// `bulkhead completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead completions bash > /etc/bash_completion.d/bulkhead")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `bulkhead man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead man --out /usr/local/share/man/man1")]
pub struct Man {
    /// The folder that they are written to; it is made where there is none
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
