//! Arguments of `bulkhead learn`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Dns, State};

/// `bulkhead learn`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead learn --state pcaps/http pcaps/http/in.pcapng\n  \
    hubble observe --last 100000 -o json | bulkhead learn --state . --flows - > learned.yaml\n\n\
    Writes the NetworkPolicies that the state lacks to standard output, for `kubectl apply`, and ClusterNetworkPolicies for outside\n\
    destinations that all pods of a workload have reached by domain name. Writes the proof to standard error: whether they allow all\n\
    observed traffic, what unobserved traffic they allow, and how mature the evidence is.\n\n\
    A workload stays open in a direction without observed traffic; the proof lists these. Flows that were logged as dropped are not\n\
    learned, nor are unanswered flows that the state's policies deny.\n\n\
    Exit code 0 if all observed traffic that policies can match is allowed, 1 otherwise.")]
pub struct Learn {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// Flow log to learn from: output of `hubble observe -o json`, `conntrack` or `bulkhead sessions -o json`; `-` for standard input. May
    /// be repeated
    #[arg(long, value_name = "FILE")]
    pub flows: Vec<PathBuf>,
    /// Generate policies only for pods of this namespace; traffic of other pods still counts as evidence. May be repeated
    #[arg(long = "namespace", short = 'n', value_name = "NAMESPACE")]
    pub namespaces: Vec<String>,
    /// Directions to generate policies for
    #[arg(long, value_enum, value_name = "DIRECTION", default_value = "both")]
    pub direction: Learned,
    /// Number of unobserved (external address, port) pairs that a policy may allow in total to merge its CIDR blocks into fewer
    #[arg(long, value_name = "PAIRS", default_value = "0")]
    pub slack: u64,
    /// JSON or YAML file with Service settings: service_cidrs, cluster_cidrs and others (docs/services.md)
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// DNS servers of captures.
    #[command(flatten)]
    pub dns: Dns,
    /// If a capture starts in the middle of a TCP connection, take the sender of the first captured packet as the client
    #[arg(long)]
    pub tcp_pickup: bool,
    /// Captures, pcap or pcapng; `-` for standard input. After --state, paths that end in .pcap, .pcapng or .cap are captures
    #[arg(value_name = "CAPTURE")]
    pub captures: Vec<PathBuf>,
}

/// Directions to generate policies for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Learned {
    /// Ingress and egress.
    Both,
    /// Traffic towards pods.
    Ingress,
    /// Traffic from pods.
    Egress,
}
