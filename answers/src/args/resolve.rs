//! What is asked of one connection to a Service.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use bulkhead_control::object::Transport;

use super::Format;

/// `bulkhead resolve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  bulkhead resolve --state examples/services.yaml --node node-1 --from 10.244.1.2 --to 10.96.0.20:80\n\n\
    What connects is a pod if a pod of the state has its address, or it lies in a node's podCIDRs or in cluster_cidrs; the node's\n\
    own address, or the destination itself, is the node; everything else is outside. Policy is not asked: `explain` does, of a backend.\n\n\
    Exit code 0 when the connection goes to a backend or is no Service's, 1 when it is rejected or dropped."
)]
pub struct Resolve {
    /// Files or folders of Kubernetes objects: Services, EndpointSlices, Nodes, Pods; `-` for standard input; or what `bulkhead bundle` has
    /// written
    #[arg(long = "state", value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Go on when an object is not understood: such a Service is left out, and so is such an endpoint of a slice
    #[arg(long)]
    pub lenient: bool,
    /// The node that the connection's first packet is at
    #[arg(long)]
    pub node: String,
    /// Who connects
    #[arg(long, value_name = "ADDRESS")]
    pub from: IpAddr,
    /// To what.
    #[arg(
        long,
        value_name = "IP:PORT/PROTOCOL",
        help = "To what, e.g. 10.96.0.20:80/TCP or [fd00::20]:53/UDP; 10.96.0.20/ICMP for a ping"
    )]
    pub to: Destination,
    /// A JSON or YAML object with service_cidrs, cluster_cidrs, node_port_addresses and what else docs/services.md lists
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Where a connection goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address.
    pub address: IpAddr,
    /// Protocol and port; none for ICMP.
    pub port: Option<(Transport, u16)>,
}

impl FromStr for Destination {
    type Err = String;

    /// `10.0.0.1:80/TCP`, `[fd00::1]:80/tcp`; without a protocol TCP. `10.0.0.1/ICMP`, with any port.
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
        let transport =
            transport.ok_or_else(|| format!("unknown protocol `{protocol}`; write TCP, UDP, SCTP or ICMP"))?;
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
            ("web:80/TCP", "is no address and port"),
            ("10.0.0.256/ICMP", "is no address"),
            ("", "is no address and port"),
        ] {
            let error = wrong.parse::<Destination>().unwrap_err();
            assert!(error.contains(help), "{wrong}: {error}");
        }
    }
}
