//! What the user typed.

use clap::{Parser, Subcommand, ValueEnum};

use crate::pipeline::Pipeline;

/// Measure what the vswitch can do on this machine.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-bench", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) work: Work,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Work {
    /// The vswitch between ports in memory, without interfaces: receive, judge, forward, send
    Pipeline(Pipeline),
    /// Raw frames between two veths, against a bare AF_XDP loop and the kernel (needs root)
    Frames(Frames),
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `bulkhead-bench frames`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench frames --seconds 3 --rounds 5 -o json\n\n\
    Without a choice all paths are measured in turns and set into ratios, and TCP as well. It makes namespaces and veths of\n\
    its own and removes them. Needs root, iproute2, ethtool, nftables and iperf3, and two cores.")]
pub(crate) struct Frames {
    /// Only the vswitch with its policy
    #[arg(long)]
    pub(crate) pipeline: bool,
    /// Only the vswitch with its policy and with its flow cache in the kernel
    #[arg(long)]
    pub(crate) flow_cache: bool,
    /// Only a loop that moves frames between AF_XDP sockets, without any policy
    #[arg(long)]
    pub(crate) bare: bool,
    /// Only the kernel's routing with the same policy in nftables and connection tracking
    #[arg(long)]
    pub(crate) kernel: bool,
    /// Only TCP, through the vswitch and through a kernel bridge
    #[arg(long)]
    pub(crate) tcp: bool,
    /// How long each measurement takes
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) seconds: u32,
    /// How often each path has its turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
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
