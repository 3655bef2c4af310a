//! A packet's addresses, ports and protocol, before and after translation.

use std::fmt;
use std::net::IpAddr;

/// A packet's addresses, protocol and ports, as parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IANA protocol number. For IPv6, that of the first header that is not an extension header.
    pub protocol: u8,
    /// Source port in host byte order. 0 if the protocol has no ports, or in a later fragment whose first fragment was not seen.
    pub sport: u16,
    /// Destination port in host byte order. 0 in the same cases as `sport`.
    pub dport: u16,
    /// ICMP type and code. `None` for other protocols.
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

/// The addresses and ports of a flow's packets after translation. Parts that do not change are equal to the flow's. Both addresses have the
/// flow's address family.
///
/// The opposite direction is a separate flow with the reverse translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port, in host byte order.
    pub sport: u16,
    /// Destination port, in host byte order.
    pub dport: u16,
}
