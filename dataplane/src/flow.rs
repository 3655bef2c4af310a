//! A packet's addresses, ports and protocol, and those that a translated packet leaves with.

use std::fmt;
use std::net::IpAddr;

/// Who talks to whom, as parsed, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IANA protocol number; for IPv6 that of the first header that is not an extension header.
    pub protocol: u8,
    /// Source port in host byte order; 0 where the protocol has none, and in a later fragment whose first one was
    /// not seen.
    pub sport: u16,
    /// Destination port in host byte order; 0 where the protocol has none, and in a later fragment whose first one was
    /// not seen.
    pub dport: u16,
    /// ICMP type and code.
    pub icmp: Option<(u8, u8)>,
}

impl fmt::Display for Flow {
    /// `10.0.0.1:4000 > 10.0.0.2:80 protocol 6`, `[fd00::1]:53 > …`, `10.0.0.1 > 10.0.0.2 protocol 1 type 8 code 0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { src, dst, protocol, sport, dport, icmp } = *self;
        if sport == 0 && dport == 0 {
            write!(f, "{src} > {dst}")?;
        } else {
            let (src, dst) = (std::net::SocketAddr::new(src, sport), std::net::SocketAddr::new(dst, dport));
            write!(f, "{src} > {dst}")?;
        }
        write!(f, " protocol {protocol}")?;
        match icmp {
            Some((kind, code)) => write!(f, " type {kind} code {code}"),
            None => Ok(()),
        }
    }
}

/// The addresses and ports that a flow's packets leave with. What stays is as in the flow, and both addresses are of its
/// family.
///
/// The other direction is a flow of its own, with a translation back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// The source address.
    pub src: IpAddr,
    /// The destination address.
    pub dst: IpAddr,
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
}
