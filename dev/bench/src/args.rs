//! What the user typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::pipeline::Pipeline;
use crate::wire::Attach;

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
    /// The program as nodes run it, beside the kernel, with iperf3, redis and sockets (needs root)
    Wire(Wire),
    /// The program as a cluster's daemon: policy events, CNI ADD, memory, status (needs root)
    Cluster(Cluster),
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

/// The rows of `bulkhead-bench wire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Row {
    /// TCP between two pods, 1 and 8 flows
    Tcp,
    /// TCP from a pod to a second node
    Node2,
    /// TCP from the node itself to a pod
    Host,
    /// Small datagrams between two pods
    Udp,
    /// Requests to redis: how long they take
    Redis,
    /// New connections a second
    Connect,
    /// TCP and new connections to a Service's cluster address
    Service,
    /// `attach: xdp` of this build beside another one's (needs --before)
    Xdp,
    /// Many pods on the node: memory, one more, idle CPU, a restart
    Pods,
    /// `kill -9` under connections, and a new process
    Restart,
    /// Connections while two pods flood
    Flood,
}

/// `bulkhead-bench wire`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench wire --attach tc --rounds 5 --only tcp --only udp -o json\n\n\
    Needs root, iproute2, ethtool, nftables, iperf3, redis-server, redis-benchmark and two cores. It makes namespaces of its own\n\
    and removes them. Exit code 0 whatever was measured: the table says what keeps its promise.")]
pub(crate) struct Wire {
    /// The program to measure; by default the one beside this
    #[arg(long, value_name = "PATH")]
    pub(crate) bulkhead: Option<PathBuf>,
    /// Another build of the program, e.g. of an older version, to compare `attach: xdp` with
    #[arg(long, value_name = "PATH")]
    pub(crate) before: Option<PathBuf>,
    /// How it takes interfaces
    #[arg(long, value_enum, default_value = "tc")]
    pub(crate) attach: Attach,
    /// Only this row; may be repeated
    #[arg(long, value_enum, value_name = "ROW")]
    pub(crate) only: Vec<Row>,
    /// How long each measurement takes
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How often each way has its turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Pods of the row `pods`
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(2..=4_000))]
    pub(crate) pods: u16,
    /// Connections of the row `restart`
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) connections: u16,
    /// The cores of the vswitch's workers; by default the first two
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub(crate) worker_cores: Vec<usize>,
    /// More lines of the vswitch's configuration, e.g. "flow_cache: false"
    #[arg(long, value_name = "YAML", default_value = "")]
    pub(crate) config: String,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

/// The rows of `bulkhead-bench cluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClusterRow {
    /// From a policy event to all workers enforcing
    Policy,
    /// CNI ADD, alone and many at once, and the first packets after it
    Add,
    /// Memory while a large cluster is followed
    Memory,
    /// `bulkhead status`, the whole process
    Status,
    /// Requests between two pods while pods of other nodes change by the thousand
    Events,
}

/// `bulkhead-bench cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench cluster --only policy --changes 400 -o json\n\n\
    Needs root, iproute2, the CNI plugin host-local (containernetworking-plugins) and two cores. It makes namespaces of its own and\n\
    removes them. Exit code 0 whatever was measured: the table says what keeps its promise.")]
pub(crate) struct Cluster {
    /// The program to measure; by default the one beside this
    #[arg(long, value_name = "PATH")]
    pub(crate) bulkhead: Option<PathBuf>,
    /// Only this row; may be repeated
    #[arg(long, value_enum, value_name = "ROW")]
    pub(crate) only: Vec<ClusterRow>,
    /// Pods of other nodes
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    pub(crate) pods: u16,
    /// Policies
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) policies: u16,
    /// Changes of a policy, in the row `policy`
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) changes: u16,
    /// Pods of the node, in the rows `add` (at once) and `status`
    #[arg(long, value_name = "N", default_value_t = 110, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) ports: u16,
    /// Pods of the row `memory`
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) many_pods: u32,
    /// Pod events a second, in the row `events`
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) events: u16,
    /// How long each measurement of the row `events` takes
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How often each way has its turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// The cores of the vswitch's workers; by default the first two
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub(crate) worker_cores: Vec<usize>,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.05..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.05 to 3600 seconds".to_owned()) }
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
