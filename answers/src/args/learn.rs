//! What is asked of captures and flow logs by `learn`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::State;

/// `bulkhead learn`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead learn --state pcaps/http pcaps/http/in.pcapng\n  \
    hubble observe --last 100000 -o json | bulkhead learn --state . --flows - > learned.yaml\n\n\
    Standard output gets NetworkPolicies for `kubectl apply`, only those that are missing beside the state's own. Standard error gets\n\
    the proof: whether all that was seen is allowed with them, what they allow that was not seen, and how mature the evidence is.\n\n\
    A direction of a workload in which nothing was seen is left open, and said to be so. Flows that were logged as dropped are not\n\
    learned, nor are those that nobody answered and that the state's policies deny.\n\n\
    Exit code 0 when all that was seen and that policies can name is allowed; else 1.")]
pub struct Learn {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// Learn from a flow log: lines of `hubble observe -o json`, of `conntrack`, or what `bulkhead sessions -o json` printed; `-` for
    /// standard input. May be repeated
    #[arg(long, value_name = "FILE")]
    pub flows: Vec<PathBuf>,
    /// Make policies for pods of this namespace only; what was seen of others is evidence about their peers. May be repeated
    #[arg(long = "namespace", short = 'n', value_name = "NAMESPACE")]
    pub namespaces: Vec<String>,
    /// Which directions to make policies for
    #[arg(long, value_enum, value_name = "DIRECTION", default_value = "both")]
    pub direction: Learned,
    /// How many pairs of an outside address and a port that were not seen a policy may allow in all, so that its blocks are fewer
    #[arg(long, value_name = "PAIRS", default_value = "0")]
    pub slack: u64,
    /// A JSON or YAML object with the settings of Services: service_cidrs, cluster_cidrs and what else docs/services.md lists
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Take the sender of a TCP connection's first packet in a capture as its client where its beginning is not in it
    #[arg(long)]
    pub tcp_pickup: bool,
    /// Captures: pcap or pcapng; `-` for standard input. Directly behind --state they are told by their names' ends
    #[arg(value_name = "CAPTURE")]
    pub captures: Vec<PathBuf>,
}

/// The directions that policies are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Learned {
    /// Both.
    Both,
    /// What comes to pods.
    Ingress,
    /// What goes out from pods.
    Egress,
}
