//! Arguments of `bulkhead replay`.

use std::path::PathBuf;

use super::ends::node_name;
use super::{Dns, Format, State};
use crate::run::NameSettings;
use bulkhead_dataplane::ServerNameCheck;

/// `bulkhead replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead replay --state pcaps/redis-policy --node node-1 pcaps/redis-policy/in.pcapng\n  \
    hubble observe --last 1000 -o json | bulkhead replay --state . --flows -\n\n\
    The ingress port of a packet is the capture's interface if it is named after a port (`namespace/pod`, `uplink`, `host`), else the\n\
    local pod with the packet's source address or MAC, else the uplink.\n\n\
    If a flow log lacks a port or the client side, or the state lacks an end, the verdict is `unknown` with the reason. docs/traffic.md\n\
    describes the JSON."
)]
pub struct Replay {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// Node whose vswitch judges the packets of captures
    #[arg(long, value_parser = node_name, required_unless_present = "flows")]
    pub node: Option<String>,
    /// Flow log to judge with the tables of all nodes: output of `hubble observe -o json`, `conntrack` or `bulkhead sessions -o json`; `-`
    /// for standard input. May be repeated
    #[arg(long, value_name = "FILE")]
    pub flows: Vec<PathBuf>,
    /// Write the packets to a pcapng file with their verdicts as comments, for Wireshark
    #[arg(long, value_name = "OUT.pcapng")]
    pub write: Option<PathBuf>,
    /// JSON or YAML file with Service settings: service_cidrs, cluster_cidrs and others (docs/services.md)
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// DNS servers of captures.
    #[command(flatten)]
    pub dns: Dns,
    /// What happens to connections that were allowed by domain name and whose TLS or QUIC client names another server: off, audit or drop
    #[arg(long, value_name = "ACTION", default_value = "off", value_parser = NameSettings::server_name_check)]
    pub verify_server_name: ServerNameCheck,
    /// If a capture starts in the middle of a TCP connection, take the sender of the first captured packet as the client. If omitted, only
    /// a SYN starts a TCP connection
    #[arg(long)]
    pub tcp_pickup: bool,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
    /// Captures, pcap or pcapng; `-` for standard input
    #[arg(required_unless_present = "flows", requires = "node", value_name = "CAPTURE")]
    pub captures: Vec<PathBuf>,
}
