//! Parsing of connection ends and ports.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use bulkhead_control::object::{PodName, Transport};

/// A destination port and its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortProtocol {
    /// Destination port, 1 to 65535.
    pub port: u16,
    /// Protocol: TCP, UDP or SCTP.
    pub transport: Transport,
}

impl std::fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.port, self.transport)
    }
}

impl FromStr for PortProtocol {
    type Err = String;

    /// Parses `80/TCP` or `80/tcp`. The protocol of `80` is TCP.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
        let port = port.parse().ok().filter(|&port: &u16| port > 0);
        let port = port.ok_or_else(|| format!("`{text}` has no port from 1 to 65535; write for example 80/TCP"))?;
        let transport = Transport::from_name(&protocol.to_ascii_uppercase());
        let transport = transport.ok_or_else(|| format!("unknown protocol `{protocol}`; write TCP, UDP or SCTP"))?;
        Ok(Self { port, transport })
    }
}

/// One end of a connection as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndName {
    /// A pod by namespace and name.
    Pod(PodName),
    /// A node by name: `node/n1`. A pod of a namespace called `node` is written the same way, see [`Self::of_namespace_node`].
    Node(Arc<str>),
    /// The address of a pod, or one outside the cluster.
    Address(IpAddr),
}

impl FromStr for EndName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.split_once('/') {
            Some(("node", name)) if !name.is_empty() => Ok(Self::Node(name.into())),
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Pod(PodName::new(namespace, name)))
            }
            _ => Err(format!("`{text}` is neither namespace/pod, node/NAME nor an IP address")),
        }
    }
}

impl EndName {
    /// Returns the pod of the namespace `node` that is written like a node of this name.
    pub fn of_namespace_node(name: &str) -> PodName {
        PodName::new("node", name)
    }
}

impl std::fmt::Display for EndName {
    /// Writes the form that parsing accepts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pod(name) => write!(f, "{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_taken_as_people_write_them() {
        let tcp80 = PortProtocol { port: 80, transport: Transport::Tcp };
        assert_eq!("80".parse(), Ok(tcp80));
        assert_eq!("80/tcp".parse(), Ok(tcp80));
        assert_eq!("9/SCTP".parse(), Ok(PortProtocol { port: 9, transport: Transport::Sctp }));
        for wrong in ["0/TCP", "65536/TCP", "http/TCP", "80/ICMP", "/TCP", ""] {
            assert!(wrong.parse::<PortProtocol>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_end_is_a_pod_a_node_or_an_address() {
        assert_eq!("x/a".parse(), Ok(EndName::Pod(PodName::new("x", "a"))));
        assert_eq!("node/n1".parse(), Ok(EndName::Node("n1".into())));
        assert_eq!("fd00::1".parse(), Ok(EndName::Address("fd00::1".parse().unwrap())));
        assert!(
            "a".parse::<EndName>().is_err() && "/a".parse::<EndName>().is_err() && "node/".parse::<EndName>().is_err()
        );
    }
}
