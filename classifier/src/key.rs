//! The fields of a packet that a rule may look at.

use std::net::IpAddr;

/// IANA protocol numbers that the project names.
/// Source: IANA "Assigned Internet Protocol Numbers".
pub mod protocol {
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
}

/// One packet as the classifier sees it: addresses, protocol number and ports in host byte order.
///
/// A packet whose protocol has no ports carries zeros; for ICMP the two port fields have room for type and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    dst_port: u16,
    protocol: u8,
}

impl Key {
    /// A key of its five fields. Ports are in host byte order, 0 where the protocol has none.
    pub const fn new(src: IpAddr, dst: IpAddr, protocol: u8, src_port: u16, dst_port: u16) -> Self {
        Self { src, dst, src_port, dst_port, protocol }
    }

    /// The source address.
    pub const fn src(&self) -> IpAddr {
        self.src
    }

    /// The destination address.
    pub const fn dst(&self) -> IpAddr {
        self.dst
    }

    /// The IANA protocol number.
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The source port, 0 where the protocol has none.
    pub const fn src_port(&self) -> u16 {
        self.src_port
    }

    /// The destination port, 0 where the protocol has none.
    pub const fn dst_port(&self) -> u16 {
        self.dst_port
    }
}
