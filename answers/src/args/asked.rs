//! Arguments that name the connection to explain.

use super::ends::node_name;
use super::{EndName, PortProtocol, Target};

/// The connection to explain: its client, server and port.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// Client: a pod (namespace/pod), the pods of a workload (deploy/shop/web) or with labels (`app=web -n shop`), a node or an IP address
    #[arg(long, value_name = "NAMESPACE/POD|KIND/NAMESPACE/NAME|LABELS -n NAMESPACE|node/NAME|IP")]
    pub from: EndName,
    /// Server: in the same forms, or a Service
    #[arg(long, value_name = "END|service/NAMESPACE/NAME[:PORT]")]
    pub to: Target,
    /// Destination port and protocol, e.g. 80/TCP, or type and code of ICMP: 8/ICMP, 13:0/ICMP, 128/ICMPv6; optional for a Service with one
    /// port
    #[arg(long, value_name = "PORT/PROTOCOL")]
    pub port: Option<PortProtocol>,
    /// Node where an external client's connection to a Service arrives
    #[arg(long, value_parser = node_name)]
    pub node: Option<String>,
}
