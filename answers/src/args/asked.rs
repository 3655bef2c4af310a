//! Which connection is asked about.

use super::{EndName, PortProtocol, Target};

/// Which connection is asked about.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// Who connects: namespace/pod, or an address
    #[arg(long, value_name = "NAMESPACE/POD|IP")]
    pub from: EndName,
    /// To whom: namespace/pod, an address, or a Service
    #[arg(long, value_name = "NAMESPACE/POD|IP|service/NAMESPACE/NAME[:PORT]")]
    pub to: Target,
    /// The destination port and protocol, e.g. 80/TCP; not needed for a Service with one port
    #[arg(long, value_name = "PORT/PROTOCOL")]
    pub port: Option<PortProtocol>,
    /// The node at which the connection of a client outside the cluster to a Service comes in
    #[arg(long)]
    pub node: Option<String>,
}
