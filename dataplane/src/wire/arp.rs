//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use super::ethernet::Mac;
use super::{WireError, set_word, word};

/// Length in bytes of a message with 6-byte hardware and 4-byte protocol addresses.
pub const MESSAGE_LEN: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, address lengths 6 and 4. Other combinations are not supported.
pub(crate) const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const TYPES: Range<usize> = 0..6;
    pub(crate) const OPERATION: usize = 6;
    pub(crate) const SENDER_MAC: Range<usize> = 8..14;
    pub(crate) const SENDER: Range<usize> = 14..18;
    pub(crate) const TARGET_MAC: Range<usize> = 18..24;
    pub(crate) const TARGET: Range<usize> = 24..28;
}

/// A message's operation code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Requests the target address's MAC address.
    Request,
    /// Announces the sender's addresses.
    Reply,
}

impl Operation {
    /// Returns the operation code.
    pub const fn number(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
        }
    }

    /// Returns the operation with this code. `None` for codes other than request and reply.
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Request),
            2 => Some(Self::Reply),
            _ => None,
        }
    }
}

/// A complete message for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks the length, address types and operation. Bytes after the message are padding.
    ///
    /// # Errors
    /// [`WireError`] if the message is truncated or has other address types or operations.
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        let message = bytes.as_ref();
        if message.len() < MESSAGE_LEN {
            return Err(WireError::Truncated { protocol: "ARP" });
        }
        if message[field::TYPES] != ETHERNET_IPV4 || Operation::from_number(word(message, field::OPERATION)).is_none() {
            return Err(WireError::Malformed { protocol: "ARP" });
        }
        Ok(Self(bytes))
    }

    fn mac(&self, at: std::ops::Range<usize>) -> Mac {
        self.0.as_ref()[at].try_into().expect("the range is six bytes long")
    }

    fn address(&self, at: std::ops::Range<usize>) -> Ipv4Addr {
        <[u8; 4]>::try_from(&self.0.as_ref()[at]).expect("the range is four bytes long").into()
    }

    /// Returns the operation.
    pub fn operation(&self) -> Operation {
        Operation::from_number(word(self.0.as_ref(), field::OPERATION)).unwrap_or(Operation::Request)
    }
}

/// A message's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The operation.
    pub operation: Operation,
    /// The sender's MAC address.
    pub sender_mac: Mac,
    /// The sender's IP address. Unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// The target's MAC address. Zero in a request.
    pub target_mac: Mac,
    /// The target's IP address.
    pub target: Ipv4Addr,
}

impl Repr {
    /// Reads a message.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self {
            operation: packet.operation(),
            sender_mac: packet.mac(field::SENDER_MAC),
            sender: packet.address(field::SENDER),
            target_mac: packet.mac(field::TARGET_MAC),
            target: packet.address(field::TARGET),
        }
    }

    /// Writes the message.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`MESSAGE_LEN`].
    pub fn emit(&self, bytes: &mut [u8]) {
        let message = &mut bytes[..MESSAGE_LEN];
        message[field::TYPES].copy_from_slice(&ETHERNET_IPV4);
        set_word(message, field::OPERATION, self.operation.number());
        message[field::SENDER_MAC].copy_from_slice(&self.sender_mac);
        message[field::SENDER].copy_from_slice(&self.sender.octets());
        message[field::TARGET_MAC].copy_from_slice(&self.target_mac);
        message[field::TARGET].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::ArpPacketSlice;

    const REPR: Repr = Repr {
        operation: Operation::Reply,
        sender_mac: [2, 0, 0, 0, 0, 1],
        sender: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: [2, 0, 0, 0, 0, 2],
        target: Ipv4Addr::new(10, 0, 0, 2),
    };

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        for repr in [REPR, Repr { operation: Operation::Request, target_mac: [0; 6], ..REPR }] {
            let mut bytes = [0xaa; MESSAGE_LEN + 3];
            repr.emit(&mut bytes);
            assert_eq!(Repr::parse(&Packet::new_checked(&bytes).unwrap()), repr);
            let arp = ArpPacketSlice::from_slice(&bytes).unwrap();
            assert_eq!((arp.sender_hw_addr(), arp.target_hw_addr()), (&repr.sender_mac[..], &repr.target_mac[..]));
            assert_eq!(arp.sender_protocol_addr(), repr.sender.octets());
            assert_eq!(arp.target_protocol_addr(), repr.target.octets());
            assert_eq!(arp.operation().0, repr.operation.number());
        }
    }

    #[test]
    fn other_protocols_operations_and_what_is_cut_short_are_errors() {
        let mut bytes = [0; MESSAGE_LEN];
        REPR.emit(&mut bytes);
        for (at, value) in [(1, 6), (3, 1), (4, 8), (5, 16), (7, 3), (7, 0)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Packet::new_checked(other).unwrap_err(), WireError::Malformed { protocol: "ARP" }, "{at}");
        }
        assert_eq!(Packet::new_checked(&bytes[..27]).unwrap_err(), WireError::Truncated { protocol: "ARP" });
    }
}
