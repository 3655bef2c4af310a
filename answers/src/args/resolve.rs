//! Arguments of `bulkhead resolve`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use bulkhead_control::object::Transport;

use super::ends::{is_word_for_service, node_name};
use super::{EndName, Format, ServiceTarget, Target};

/// `bulkhead resolve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  bulkhead resolve --state examples/services.yaml --node node-1 --from 10.244.1.2 --to 10.96.0.20:80\n  \
    bulkhead resolve --state examples/services.yaml --node node-1 --from shop/cart --to service/shop/web:http\n\n\
    The client is a pod if its address belongs to a pod of the state, a node's podCIDRs or cluster_cidrs. It is the node if the address\n\
    is the node's own or the destination. Any other client is external. Policy is not evaluated; use `explain` for that.\n\n\
    Exit code 0 if the connection goes to a backend or to no Service, 1 if it is rejected or dropped."
)]
pub struct Resolve {
    /// Files or folders with Services, EndpointSlices, Nodes and Pods, or a file from `bulkhead bundle`; `-` for standard input
    #[arg(long = "state", value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Skip Services and endpoints that cannot be parsed instead of failing
    #[arg(long)]
    pub lenient: bool,
    /// Node where the connection's first packet is processed
    #[arg(long, value_parser = node_name)]
    pub node: String,
    /// Client: a pod (namespace/pod), a workload (deploy/shop/web) or labels (`app=web -n shop`), of which the first pod is asked, a node or an IP
    /// address
    #[arg(long, value_name = "NAMESPACE/POD|KIND/NAMESPACE/NAME|LABELS -n NAMESPACE|node/NAME|IP")]
    pub from: EndName,
    /// Destination of the connection.
    #[arg(
        long,
        value_name = "service/NAMESPACE/NAME[:PORT]|IP:PORT/PROTOCOL",
        help = "Destination: service/shop/web:http, 10.96.0.20:80/TCP or [fd00::20]:53/UDP; 10.96.0.20/ICMP for a ping"
    )]
    pub to: ResolveTarget,
    /// JSON or YAML file with Service settings: service_cidrs, cluster_cidrs, node_port_addresses and others (docs/services.md)
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// The destination as the user names it: a Service or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveTarget {
    /// A Service, by namespace and name.
    Service(ServiceTarget),
    /// An address and port.
    Address(Destination),
}

impl FromStr for ResolveTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.split_once('/').is_some_and(|(kind, _)| is_word_for_service(kind)) {
            return text.parse().map(Self::Address);
        }
        match text.parse()? {
            Target::Service(service) => Ok(Self::Service(service)),
            Target::End(_) => Err(format!("`{text}` has no namespace; write service/NAMESPACE/NAME")),
        }
    }
}

/// The destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// IPv4 or IPv6 address.
    pub address: IpAddr,
    /// The destination port and its protocol. `None` for ICMP.
    pub port: Option<(Transport, u16)>,
}

impl FromStr for Destination {
    type Err = String;

    /// Parses `10.0.0.1:80/TCP`, `[fd00::1]:80/tcp`, or `10.0.0.1:80` as TCP. A port before `/ICMP` is ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let (place, protocol) = text.rsplit_once('/').unwrap_or((text, "TCP"));
        let protocol = protocol.to_ascii_uppercase();
        if protocol == "ICMP" || protocol == "ICMPV6" {
            let alone = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(place);
            let address = alone.parse().or_else(|_| place.parse::<SocketAddr>().map(|socket| socket.ip()));
            let address = address.map_err(|_| format!("`{place}` is no address; write for example 10.96.0.20/ICMP"))?;
            return Ok(Self { address, port: None });
        }
        let transport = Transport::from_name(&protocol);
        let transport = transport.ok_or_else(|| match text.contains(':') || place.parse::<IpAddr>().is_ok() {
            true => format!("unknown protocol `{protocol}`; write TCP, UDP, SCTP or ICMP"),
            false => format!(
                "`{text}` is neither a Service (service/NAMESPACE/NAME) nor an address; `explain` answers about connections to others"
            ),
        })?;
        let socket: SocketAddr = place.parse().map_err(|_| match place.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => {
                format!("`{place}` has no port; write for example [fd00::20]:80/TCP, with the brackets")
            }
            Ok(IpAddr::V4(_)) => format!("`{place}` has no port; write for example {place}:80/TCP"),
            Err(_) if !place.starts_with('[') && place.matches(':').count() > 1 => {
                format!("`{place}` is no address and port; write an IPv6 address in brackets: [fd00::20]:80/TCP")
            }
            Err(_) => format!("`{place}` is no address and port; write for example 10.96.0.20:80/TCP"),
        })?;
        if socket.port() == 0 {
            return Err(format!("`{text}` has no port from 1 to 65535"));
        }
        Ok(Self { address: socket.ip(), port: Some((transport, socket.port())) })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some((transport, port)) => write!(f, "{}/{transport}", SocketAddr::new(self.address, port)),
            None => write!(f, "{}/ICMP", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_taken_as_people_write_it() {
        let tcp80 = Some((Transport::Tcp, 80));
        let destination = |address: &str, port| Ok(Destination { address: address.parse().unwrap(), port });
        assert_eq!("10.0.0.1:80/TCP".parse(), destination("10.0.0.1", tcp80));
        assert_eq!("10.0.0.1:80".parse(), destination("10.0.0.1", tcp80));
        assert_eq!("[fd00::1]:80/tcp".parse(), destination("fd00::1", tcp80));
        assert_eq!("10.0.0.1:53/sctp".parse(), destination("10.0.0.1", Some((Transport::Sctp, 53))));
        for icmp in ["fd00::1/ICMP", "[fd00::1]/ICMPv6", "[fd00::1]:0/ICMP"] {
            assert_eq!(icmp.parse(), destination("fd00::1", None), "{icmp}");
        }
        assert_eq!("10.0.0.1:0/ICMP".parse(), destination("10.0.0.1", None));
        for (wrong, help) in [
            ("10.0.0.1/TCP", "write for example 10.0.0.1:80/TCP"),
            ("fd00::1/TCP", "with the brackets"),
            ("fd00::1:8080:80000/TCP", "in brackets"),
            ("10.0.0.1:0/TCP", "no port from 1 to 65535"),
            ("10.0.0.1:80/HTTP", "unknown protocol `HTTP`"),
            ("deploy/shop/web", "neither a Service"),
            ("node/n1", "neither a Service"),
            ("web:80/TCP", "write for example 10.96.0.20:80/TCP"),
            ("10.0.0.256/ICMP", "is no address"),
            ("", "is no address and port"),
        ] {
            let error = wrong.parse::<Destination>().unwrap_err();
            assert!(error.contains(help), "{wrong}: {error}");
        }
    }
}
