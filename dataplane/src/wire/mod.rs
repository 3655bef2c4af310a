//! Wire formats: the layout of each protocol header, defined once.
//!
//! Each protocol has a file with:
//!
//! * its lengths and numbers as constants, and the offsets of its fields in `mod field`;
//! * a view (`Frame`, `Packet`, `Segment`, `Datagram`) over bytes. `new_checked` verifies that the header is complete. Then getters cannot
//!   fail. Mutable views have setters;
//! * `Repr`, a header as a value. `parse` reads it from a view, `emit` writes it with its checksum.
//!
//! This module is for code that builds packets or reads single fields. The fast path's parser uses the same constants, but makes one pass
//! over all headers and returns a drop reason for inconsistent ones.
//!
//! Lengths are in bytes, numbers in host byte order. Functions never panic because of a packet's content. `emit` panics if the buffer is
//! shorter than `header_len` or `buffer_len`.

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

/// The reason why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header is incomplete.
    #[error("the {protocol} header is cut short")]
    Truncated {
        /// The protocol of the header.
        protocol: &'static str,
    },
    /// A field contradicts other fields or the protocol.
    #[error("the {protocol} header is malformed")]
    Malformed {
        /// The protocol of the header.
        protocol: &'static str,
    },
}

/// Reads two bytes. The caller has checked the length.
pub(crate) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads four bytes. The caller has checked the length.
fn double_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes two bytes. The caller has checked the length.
pub(crate) fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes four bytes. The caller has checked the length.
fn set_double_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
