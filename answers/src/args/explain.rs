//! Arguments of `bulkhead explain`.

use std::path::PathBuf;

use super::{Asked, DEFAULT_SOCKET, Format, Planned, State};

/// `bulkhead explain`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("paths", |paths| paths.required(false).required_unless_present("live")),
    after_help = "Examples:\n  bulkhead explain --state pcaps/redis-policy --from default/frontend --to default/db --port 6379\n  \
    bulkhead explain --live --from default/frontend --to default/db --port 6379\n  \
    bulkhead explain --live --from shop/probe --to service/shop/web\n  \
    bulkhead explain --state examples/services.yaml examples/service-policy.yaml --from shop/cart --to service/shop/web:http\n\n\
    A connection to a Service, or to its address, is explained for each backend: policy is judged on the client's own address, the\n\
    backend's address and the backend's port. docs/services.md describes the JSON.\n\n\
    With --live, the vswitch of this node answers from the tables that it enforces now. It judges only its own node's part of the\n\
    path: the vswitch of the other node judges packets that leave through the uplink again.\n\n\
    Exit code 0 if the connection is allowed (to a Service: with every possible backend), 1 otherwise."
)]
pub struct Explain {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
    /// Query the running vswitch instead of reading a state
    #[arg(long, conflicts_with_all = ["paths", "lenient", "policy_semantics", "namespace_default", "ignore", "settings", "node", "pod_cidrs"])]
    pub live: bool,
    /// With --live: admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, requires = "live")]
    pub socket: PathBuf,
    /// The connection to explain.
    #[command(flatten)]
    pub asked: Asked,
    /// JSON or YAML file with Service settings: service_cidrs, cluster_cidrs and others (docs/services.md)
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}
