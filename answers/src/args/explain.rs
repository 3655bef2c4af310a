//! What is asked of one connection.

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
    An address of a Service, or the Service itself, is explained backend by backend: policy is judged on the client's own address, the\n\
    backend's address and the backend's port. docs/services.md describes the JSON.\n\n\
    With --live the answer is that of the tables that the vswitch of this node enforces at this moment. It knows its own node's part of\n\
    the way: what leaves through the uplink is judged once more by the vswitch of the other node.\n\n\
    Exit code 0 when the connection is allowed, to a Service with every backend that it may be given; else 1."
)]
pub struct Explain {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// What of it is not there yet.
    #[command(flatten)]
    pub planned: Planned,
    /// Ask the running vswitch instead of reading a state
    #[arg(long, conflicts_with_all = ["paths", "lenient", "policy_semantics", "namespace_default", "ignore", "settings", "node", "pod_cidrs"])]
    pub live: bool,
    /// With --live, the vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, requires = "live")]
    pub socket: PathBuf,
    /// Which connection.
    #[command(flatten)]
    pub asked: Asked,
    /// A JSON or YAML object with service_cidrs, cluster_cidrs and what else docs/services.md lists
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}
