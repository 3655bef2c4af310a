//! What is asked of one connection.

use std::path::PathBuf;

use super::{EndName, Format, PortProtocol, State};
use crate::admin::DEFAULT_SOCKET;

/// `bulkhead explain`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("paths", |paths| paths.required(false).required_unless_present("live")),
    after_help = "Examples:\n  bulkhead explain --state pcaps/redis-policy --from default/frontend --to default/db --port 6379\n  \
    bulkhead explain --live --from default/frontend --to default/db --port 6379\n\n\
    With --live the answer is that of the tables that the vswitch of this node enforces at this moment. It knows its own node's part of\n\
    the way: what leaves through the uplink is judged once more by the vswitch of the other node.\n\n\
    Exit code 0 when the connection is allowed, 1 when it is denied."
)]
pub struct Explain {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// Ask the running vswitch instead of reading a state
    #[arg(long, conflicts_with_all = ["paths", "lenient", "policy_semantics", "namespace_default", "ignore"])]
    pub live: bool,
    /// With --live, the vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, requires = "live")]
    pub socket: PathBuf,
    /// Who connects: namespace/pod, or an address outside the cluster
    #[arg(long, value_name = "NAMESPACE/POD|IP")]
    pub from: EndName,
    /// To whom: namespace/pod, or an address outside the cluster
    #[arg(long, value_name = "NAMESPACE/POD|IP")]
    pub to: EndName,
    /// The destination port and protocol, e.g. 80/TCP
    #[arg(long, value_name = "PORT/PROTOCOL")]
    pub port: PortProtocol,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}
