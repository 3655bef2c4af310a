//! Who can reach whom.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;

use super::{Planned, PortProtocol, State, Target};

/// `bulkhead reach`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead reach --state pcaps/redis-policy --port 6379/TCP --port 53/UDP --external 192.0.2.1\n  \
    bulkhead reach --state examples/services.yaml examples/service-policy.yaml --to service/shop/web:http\n  \
    bulkhead reach --state pcaps/shop/state.yaml examples/shop/policies.yaml --port 6379 --port 8080 -o mermaid --focus shop\n\n\
    Each answer comes from a first packet and its reply that are pushed through the tables of every node on the way.\n\n\
    With --to the answer is about Services: for each source whether policy lets it reach all backends that its node may give it\n\
    (`allow`), some of them (`some`) or none (`deny`); or why the Service itself refuses: no endpoint, no local endpoint, source range.\n\
    Pods use the cluster address. An address outside (--external) uses the load balancer's address, else external addresses, else the\n\
    node port, and is asked about at every node. docs/services.md describes the JSON."
)]
pub struct Reach {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// What of it is not there yet.
    #[command(flatten)]
    pub planned: Planned,
    /// The destination port and protocol to ask about, e.g. 80/TCP; may be repeated. With --to a port of the Service; without it all
    #[arg(long = "port", value_name = "PORT/PROTOCOL", required_unless_present = "to")]
    pub ports: Vec<PortProtocol>,
    /// Who reaches this Service; may be repeated
    #[arg(
        long = "to",
        value_name = "service/NAMESPACE/NAME[:PORT]|IP",
        help = "Ask who reaches this Service, by its name or by one of its addresses; may be repeated"
    )]
    pub to: Vec<Target>,
    /// An address outside the cluster to ask about too; may be repeated
    #[arg(long = "external", value_name = "IP")]
    pub external: Vec<IpAddr>,
    /// With --to: a JSON or YAML object with service_cidrs, cluster_cidrs and what else docs/services.md lists
    #[arg(long, value_name = "FILE", requires = "to")]
    pub settings: Option<PathBuf>,
    /// With -o md, csv, dot or mermaid: only what talks with the pods of this namespace, or with this workload or pod; may be repeated
    #[arg(long, value_name = "NAMESPACE[/NAME]", conflicts_with = "to")]
    pub focus: Vec<String>,
    /// The form of the answer. All but text and json tell equal pods of a workload as one
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: ReachFormat,
}

/// The form of a truth table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReachFormat {
    /// For people: a matrix of pods.
    Text,
    /// For programs: every two pods.
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
