//! Protocols on the wire: where each header has which field, written once.
//!
//! One file per protocol, all of one shape:
//!
//! * the lengths and numbers of the protocol as constants, the positions of its fields in `mod field`;
//! * a view (`Frame`, `Packet`, `Segment`, `Datagram`) over bytes: `new_checked` makes sure that the header is there, after
//!   that a getter reads one field and cannot fail; where the bytes may be changed there are setters;
//! * `Repr`, a header as a value: `parse` reads it from a view, `emit` writes it and its checksum.
//!
//! This is for code that builds packets or reads single fields of them. The parser of the fast path uses the same
//! constants, makes one pass over all headers, and refuses what contradicts itself with a reason.
//!
//! Lengths are in bytes, numbers in host byte order. No function panics on what is in a packet; `emit` panics when the
//! buffer is shorter than `header_len` or `buffer_len` say, which is a fault of the caller.

pub mod arp;
pub(crate) mod checksum;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;
pub mod vlan;

/// Protocol numbers of IPv4 and next headers of IPv6. Source: IANA "Protocol Numbers".
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// Why bytes are no header of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header is not all there.
    #[error("the {protocol} header is cut short")]
    Truncated {
        /// The protocol.
        protocol: &'static str,
    },
    /// A field of the header contradicts the others or the protocol.
    #[error("the {protocol} header is malformed")]
    Malformed {
        /// The protocol.
        protocol: &'static str,
    },
}

/// Two bytes of a header. The caller has checked that they are there.
pub(crate) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes of a header. The caller has checked that they are there.
fn double_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes two bytes of a header. The caller has checked that they are there.
pub(crate) fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes four bytes of a header. The caller has checked that they are there.
fn set_double_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
