//! What is asked of captures and flow logs.

use std::path::PathBuf;

use super::{Format, State};

/// `bulkhead replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead replay --state pcaps/redis-policy --node node-1 pcaps/redis-policy/in.pcapng\n  \
    hubble observe --last 1000 -o json | bulkhead replay --state . --flows -\n\n\
    The port that a packet came in on is the capture's interface where that is named after a port (`namespace/pod`,\n\
    `uplink`, `host`), else the local pod that has the packet's source address or MAC, else the uplink.\n\n\
    What a flow log does not say (a port, who has opened the connection, an end that the state does not have) makes the verdict\n\
    `unknown`, with the reason. docs/answers.md describes the JSON."
)]
pub struct Replay {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// The node whose vswitch judges the packets of captures
    #[arg(long, required_unless_present = "flows")]
    pub node: Option<String>,
    /// Judge the flows of a log too, by the vswitches of all nodes: lines of `hubble observe -o json`, of `conntrack`, or what
    /// `bulkhead sessions -o json` printed; `-` for standard input. May be repeated
    #[arg(long, value_name = "FILE")]
    pub flows: Vec<PathBuf>,
    /// Write the packets with their verdicts as comments, for Wireshark
    #[arg(long, value_name = "OUT.pcapng")]
    pub write: Option<PathBuf>,
    /// A JSON or YAML object with the settings of Services: service_cidrs, cluster_cidrs and what else docs/services.md lists
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Judge a TCP connection that began before the capture by its first packet in it, as if its sender were the client;
    /// without this only a SYN starts one
    #[arg(long)]
    pub tcp_pickup: bool,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
    /// Captures: pcap or pcapng; `-` for standard input
    #[arg(required_unless_present = "flows", requires = "node", value_name = "CAPTURE")]
    pub captures: Vec<PathBuf>,
}
