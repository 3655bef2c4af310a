//! Arguments of `bulkhead reach`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;

use super::{Focus, Planned, PortProtocol, State, Target};

/// `bulkhead reach`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead reach --state pcaps/redis-policy --port 6379/TCP --port 53/UDP --external 192.0.2.1\n  \
    bulkhead reach --state examples/services.yaml examples/service-policy.yaml --to service/shop/web:http\n  \
    bulkhead reach --state pcaps/shop/state.yaml examples/shop/policies.yaml --port 6379 --port 8080 -o mermaid --focus shop\n\n\
    Each verdict is what the vswitches decide about a first packet and its reply. Of more than 50 pods, text shows groups: pods that\n\
    reach the same ends share a line, and pods that are reached alike share a name. Use --all for the matrix of all pods.\n\n\
    With --to, prints for each client and Service whether policy allows all possible backends (`allow`), some (`some`) or none (`deny`),\n\
    or why the Service itself refuses the connection: no endpoint, no local endpoint, source range. Pods use the cluster IP. External\n\
    clients (--external) use the load balancer's address, else external IPs, else the node port, at every node. docs/services.md\n\
    describes the JSON."
)]
pub struct Reach {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
    /// Destination port and protocol, e.g. 80/TCP, or type and code of ICMP: 8/ICMP, 13:0/ICMP, 128/ICMPv6; may be repeated. If omitted, all
    /// ports that the pods declare. With --to: a port of the Service, all its ports if omitted
    #[arg(long = "port", value_name = "PORT/PROTOCOL")]
    pub ports: Vec<PortProtocol>,
    /// Services whose clients to list.
    #[arg(
        long = "to",
        value_name = "service/NAMESPACE/NAME[:PORT]|IP",
        help = "Service whose clients to list, by name or by one of its addresses; may be repeated"
    )]
    pub to: Vec<Target>,
    /// Address outside the cluster to include; may be repeated
    #[arg(long = "external", value_name = "IP")]
    pub external: Vec<IpAddr>,
    /// With --to: JSON or YAML file with Service settings: service_cidrs, cluster_cidrs and others (docs/services.md)
    #[arg(long, value_name = "FILE", requires = "to")]
    pub settings: Option<PathBuf>,
    /// With -o md, csv, dot or mermaid: show only connections of this namespace, pod, workload (deploy/shop/web), node (node/n1),
    /// address or of pods with these labels ('app=web -n shop'); may be repeated
    #[arg(long, value_name = "NAMESPACE[/NAME]", conflicts_with = "to")]
    pub focus: Vec<Focus>,
    /// With -o text: draw the matrix of all pods, even if they do not fit a screen
    #[arg(long, conflicts_with = "to")]
    pub all: bool,
    /// Output format. All formats except text and json merge identical pods of a workload
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: ReachFormat,
}

/// Output format of `bulkhead reach`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReachFormat {
    /// For people: a matrix of pods, or a list of groups of them.
    Text,
    /// For programs: every pair of pods.
    Json,
    /// A table for a pull request.
    #[value(alias = "markdown")]
    Md,
    /// For spreadsheets: RFC 4180.
    Csv,
    /// A graph for Graphviz.
    Dot,
    /// A graph for Mermaid, which GitHub draws between fences.
    Mermaid,
}
