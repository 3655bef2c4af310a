//! Why packets do not arrive, in words for an operator.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::io::Undelivered;

/// Bytes between the longest packet that arrives and the shortest that does not at which the search for the limit ends.
pub(super) const EXACT: u32 = 4;

/// The cause of a broken way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The kernel has no way to the node, or its Node object is wrong: the message of the plan.
    NoWay(String),
    /// The kernel does not send to the address, with its error.
    Unsent(IpAddr, String),
    /// Another node answers at the address.
    WrongAddress(IpAddr, Arc<str>),
    /// The node, or a router, refuses the probes to the address.
    Refused {
        /// The destination of the probes.
        to: IpAddr,
        /// The address that refuses them. `None` if this node does.
        by: Option<IpAddr>,
        /// The reason that it gives.
        cause: Undelivered,
        /// The port of the probes.
        port: u16,
    },
    /// The node answers outside of the tunnel, and not inside.
    Filtered {
        /// The node's address at the other end of the tunnel.
        to: IpAddr,
        /// The port of the probes.
        port: u16,
        /// The tunnel's port.
        tunnel: u16,
    },
    /// Nothing answers at the address and port of the probes.
    Silent(IpAddr, u16),
    /// Long packets do not arrive, short ones do.
    TooLong {
        /// The length of the longest packets that arrive, in bytes.
        arrives: u32,
        /// The length of the shortest packets that do not arrive, in bytes.
        lost: u32,
        /// The MTU in bytes that a router reports, with its address. `None` if none does.
        reported: Option<(u32, IpAddr)>,
    },
}

impl Fault {
    /// Returns the name of the cause, for programs and metrics.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::NoWay(_) => "no_route",
            Self::Unsent(..) => "not_sent",
            Self::WrongAddress(..) => "wrong_address",
            Self::Refused { cause: Undelivered::NoListener, .. } => "refused",
            Self::Refused { cause: Undelivered::Prohibited, .. } | Self::Filtered { .. } => "filtered_port",
            Self::Refused { .. } => "unreachable",
            Self::Silent(..) => "no_answer",
            Self::TooLong { .. } => "mtu",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWay(why) => f.write_str(why),
            Self::Unsent(to, error) => {
                write!(f, "this node cannot send to {to}: {error}; see `ip route get {to}` and the node's firewall")
            }
            Self::WrongAddress(to, other) => {
                write!(f, "wrong address: node {other} answers at {to}; correct the Node objects")
            }
            Self::Refused { to, by, cause, port } => refused(f, *to, *by, *cause, *port),
            Self::Filtered { to, port, tunnel } => write!(
                f,
                "filtered port: {to} answers at UDP port {port} but not through the tunnel; open UDP port {tunnel} in both directions, and \
                 use the same vxlan.port and vxlan.vni at both nodes"
            ),
            Self::Silent(to, port) => write!(
                f,
                "{to} does not answer at UDP port {port}: the node is down, the port is filtered, or its vswitch does not run or is a \
                 version without probes"
            ),
            Self::TooLong { arrives, reported: Some((mtu, by)), .. } => write!(
                f,
                "MTU: packets longer than {} bytes do not arrive, as {by} reports; set the links' MTU to {0}, or repair that link",
                mtu.max(arrives)
            ),
            Self::TooLong { arrives, lost, reported: None } => {
                if lost.saturating_sub(*arrives) > EXACT {
                    write!(f, "MTU: packets of {lost} bytes do not arrive, those of {arrives} bytes do")?;
                } else {
                    write!(f, "MTU: packets longer than {arrives} bytes do not arrive")?;
                }
                f.write_str(
                    ", and no router says so; set the same MTU at all links between the nodes, and let ICMP through",
                )
            }
        }
    }
}

fn refused(f: &mut fmt::Formatter<'_>, to: IpAddr, by: Option<IpAddr>, cause: Undelivered, port: u16) -> fmt::Result {
    let by = by.map_or_else(|| "this node's kernel".to_owned(), |by| by.to_string());
    match cause {
        Undelivered::NoListener => write!(
            f,
            "{to} refuses UDP port {port}: its vswitch does not run, is a version without probes, or has another probe.port"
        ),
        Undelivered::Prohibited => {
            write!(f, "filtered port: a firewall at {by} refuses UDP port {port} to {to}; open it")
        }
        Undelivered::Unreachable => {
            write!(f, "{by} reports that {to} is unreachable: the node is down, or a link or route is missing")
        }
        Undelivered::TooBig(mtu) => write!(f, "{by} reports an MTU of {mtu} bytes to {to}, too small for a probe"),
    }
}
