//! Command line of `bulkhead-bench`.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::pipeline::Pipeline;
use crate::wire::Attach;

/// Measure the vswitch on this machine.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-bench", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// The subcommand, which selects what to measure.
    #[command(subcommand)]
    pub(crate) work: Work,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Work {
    /// The vswitch between ports in memory, without interfaces: receive, classify, forward, send
    Pipeline(Pipeline),
    /// Raw frames between two veths, compared with a bare AF_XDP loop and the kernel (needs root)
    Frames(Frames),
    /// The program as it runs on nodes, compared with the kernel, with iperf3, redis and sockets (needs root)
    Wire(Wire),
    /// Pods of two nodes over a wire, compared with the kernel's routing and its VXLAN (needs root)
    Nodes(Nodes),
    /// The program as a cluster's daemon: policy events, CNI ADD, memory, status (needs root)
    Cluster(Cluster),
    /// Rules that name domains, in memory: first connections, forged answers, latency of answers, memory
    Names(Names),
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A text table for people.
    Text,
    /// JSON for programs.
    Json,
}

/// `bulkhead-bench frames`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench frames --seconds 3 --rounds 5 -o json\n\n\
    Without options all paths and TCP are measured in turns, and compared as ratios. The benchmark creates namespaces and veths\n\
    and removes them. Needs root, iproute2, ethtool, nftables and iperf3, and two cores.")]
pub(crate) struct Frames {
    /// Measure only the vswitch with its policy
    #[arg(long)]
    pub(crate) pipeline: bool,
    /// Measure only the vswitch with its policy and the flow cache in the kernel
    #[arg(long)]
    pub(crate) flow_cache: bool,
    /// Measure only a loop that moves frames between AF_XDP sockets, without policy
    #[arg(long)]
    pub(crate) bare: bool,
    /// Measure only the kernel's routing with the same policy in nftables and connection tracking
    #[arg(long)]
    pub(crate) kernel: bool,
    /// Measure only TCP, through the vswitch and through a kernel bridge
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Seconds per measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) seconds: u32,
    /// How many times each path is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Output format
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
    /// TCP from the node to a pod
    Host,
    /// Small datagrams between two pods
    Udp,
    /// Latency of GET requests from a pod to a redis pod
    Redis,
    /// Rate of new TCP connections between two pods, and their connection times
    Connect,
    /// TCP and new connections to a Service's cluster address
    Service,
    /// `attach: xdp` of this build compared with another build (needs --before)
    Xdp,
    /// Many pods on the node: memory, time to add a pod, idle CPU, time of a restart
    Pods,
    /// `kill -9` with open connections, then a new process: lost connections, longest gap
    Restart,
    /// Connection times while two pods flood the node with packets without a session
    Flood,
}

/// `bulkhead-bench wire`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench wire --attach tc --rounds 5 --only tcp --only udp -o json\n\n\
    Needs root, iproute2, ethtool, nftables, iperf3, redis-server, redis-benchmark and two cores. The benchmark creates namespaces\n\
    and removes them. The exit code is 0 even if a goal is missed: the table shows which goals are met.")]
pub(crate) struct Wire {
    /// Program to measure [default: `bulkhead` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) bulkhead: Option<PathBuf>,
    /// Another build of the program, such as an older version, to compare `attach: xdp` with
    #[arg(long, value_name = "PATH")]
    pub(crate) before: Option<PathBuf>,
    /// How the program attaches to interfaces
    #[arg(long, value_enum, default_value = "tc")]
    pub(crate) attach: Attach,
    /// Measure only this row; repeat for more
    #[arg(long, value_enum, value_name = "ROW")]
    pub(crate) only: Vec<Row>,
    /// Seconds per measurement
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How many times each alternative is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Number of pods in the row `pods`
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(2..=4_000))]
    pub(crate) pods: u16,
    /// Number of connections in the row `restart`
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) connections: u16,
    /// Seconds without a process in the row `restart`
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=3_600))]
    pub(crate) gone: u16,
    /// Cores of the vswitch's workers [default: the first two]
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub(crate) worker_cores: Vec<usize>,
    /// Additional lines of the vswitch's configuration, such as "flow_cache: false"
    #[arg(long, value_name = "YAML", default_value = "")]
    pub(crate) config: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

/// The rows of `bulkhead-bench nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodesRow {
    /// TCP between pods of two nodes by routes, 1 and 8 flows, with and without the wire's offloads
    Route,
    /// The same in the tunnel
    Tunnel,
    /// Rate of new TCP connections in the tunnel
    Connect,
    /// Small datagrams in the tunnel
    Datagrams,
    /// Round-trip time in the tunnel
    Latency,
    /// TCP from a pod to a machine outside, which sees the node: bulk, and the rate of new connections
    World,
    /// TCP from a machine outside to a pod through a node port: bulk, and the rate of new connections
    NodePort,
    /// TCP and small datagrams from a machine outside to the node itself, with and without the vswitch
    Card,
}

/// `bulkhead-bench nodes`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench nodes --rounds 5 --only tunnel -o json\n\n\
    Needs root, iproute2, ethtool, nftables, iperf3 and two cores. The benchmark creates namespaces and removes them.\n\
    The exit code is 0 even if a goal is missed: the table shows which goals are met.")]
pub(crate) struct Nodes {
    /// Program to measure [default: `bulkhead` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) bulkhead: Option<PathBuf>,
    /// Measure only this row; repeat for more
    #[arg(long, value_enum, value_name = "ROW")]
    pub(crate) only: Vec<NodesRow>,
    /// Seconds per measurement
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How many times each alternative is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

/// The rows of `bulkhead-bench cluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClusterRow {
    /// Time from a policy event until all workers enforce it
    Policy,
    /// CNI ADD, alone and many at once, and the first packets after it
    Add,
    /// Memory while the program follows a large cluster
    Memory,
    /// Time of `bulkhead status`, with the start of its process
    Status,
    /// Requests between two pods while thousands of pods of other nodes change
    Events,
}

/// `bulkhead-bench cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench cluster --only policy --changes 400 -o json\n\n\
    Needs root, iproute2 and two cores. The benchmark creates namespaces and removes them. The exit code is 0\n\
    even if a goal is missed: the table shows which goals are met.")]
pub(crate) struct Cluster {
    /// Program to measure [default: `bulkhead` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) bulkhead: Option<PathBuf>,
    /// Measure only this row; repeat for more
    #[arg(long, value_enum, value_name = "ROW")]
    pub(crate) only: Vec<ClusterRow>,
    /// Number of pods on other nodes
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    pub(crate) pods: u16,
    /// Number of policies
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) policies: u16,
    /// Number of policy changes in the row `policy`
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) changes: u16,
    /// Number of pods on the node in the rows `add` (at once) and `status`
    #[arg(long, value_name = "N", default_value_t = 110, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) ports: u16,
    /// Number of pods in the row `memory`
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) many_pods: u32,
    /// Pod events per second in the row `events`
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) events: u16,
    /// Seconds per measurement of the row `events`
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How many times each alternative is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Cores of the vswitch's workers [default: the first two]
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub(crate) worker_cores: Vec<usize>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

/// The rows of `bulkhead-bench names`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NamesRow {
    /// Memory of the learned addresses, and the time to learn one and to look one up
    Memory,
    /// TCP connections, each at once after the DNS answer that allows it, by four workers on four threads
    Connections,
    /// Forged DNS answers of seven kinds, each followed by a TCP connection to its address
    Forged,
    /// Time that learning adds to a DNS answer, and the answers that a worker takes per second
    Latency,
}

/// `bulkhead-bench names`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench names --only connections --connections 100000 -o json\n\n\
    Workers judge frames in memory: the benchmark needs no root, interfaces or DNS server. The exit\n\
    code is 1 if a connection of the row `connections` is denied, or one of the row `forged` allowed.\n\
    It is 0 if another goal is missed: the table shows which goals are met.")]
pub(crate) struct Names {
    /// Measure only this row; repeat for more
    #[arg(long, value_enum, value_name = "ROW")]
    pub(crate) only: Vec<NamesRow>,
    /// Number of connections in the row `connections`
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) connections: u32,
    /// Number of forged answers in the row `forged`
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) forged: u32,
    /// Number of answers per round of the row `latency`
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) answers: u32,
    /// Number of rounds of the row `latency`
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Number of names in the row `memory`
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) names: u32,
    /// Number of pods in the row `memory`
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) pods: u32,
    /// Number of addresses of each name in the row `memory`
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) addresses: u32,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("give a time from 0.05 to 3600 seconds".to_owned())
    }
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
