//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;
use std::ops::Range;

use crate::DropReason;

/// The message for 6-byte hardware and 4-byte protocol addresses.
const MESSAGE_LEN: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, address lengths 6 and 4: the only combination that is used.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

mod field {
    use super::Range;

    pub(super) const TYPES: Range<usize> = 0..6;
    pub(super) const OPERATION: Range<usize> = 6..8;
    pub(super) const SENDER_MAC: Range<usize> = 8..14;
    pub(super) const SENDER: usize = 14;
    pub(super) const TARGET: usize = 24;
}

/// What an ARP message wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// An ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    /// What it wants.
    pub(crate) operation: Operation,
    /// The hardware address that the sender claims.
    pub(crate) sender_mac: [u8; 6],
    /// The address that the sender claims; unspecified in a probe (RFC 5227).
    pub(crate) sender: Ipv4Addr,
    /// The address that it is about.
    pub(crate) target: Ipv4Addr,
}

/// Reads a message. Bytes after it are padding.
pub(super) fn parse(bytes: &[u8]) -> Result<Arp, DropReason> {
    let message = bytes.first_chunk::<MESSAGE_LEN>().ok_or(DropReason::ArpMalformed)?;
    if message[field::TYPES] != ETHERNET_IPV4 {
        return Err(DropReason::ArpMalformed);
    }
    let operation = match message[field::OPERATION] {
        [0, 1] => Operation::Request,
        [0, 2] => Operation::Reply,
        _ => return Err(DropReason::ArpMalformed),
    };
    let address = |at: usize| Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3]);
    let sender_mac = message[field::SENDER_MAC].try_into().expect("the range is six bytes long");
    Ok(Arp { operation, sender_mac, sender: address(field::SENDER), target: address(field::TARGET) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> [u8; MESSAGE_LEN] {
        let mut message = [0; MESSAGE_LEN];
        message[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        message[8..18].copy_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        message[24..].copy_from_slice(&[10, 0, 0, 2]);
        message
    }

    #[test]
    fn a_request_is_read() {
        let arp = parse(&message()).unwrap();
        assert_eq!(arp.operation, Operation::Request);
        assert_eq!(arp.sender_mac, [2, 0, 0, 0, 0, 1]);
        assert_eq!((arp.sender, arp.target), (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)));
    }

    #[test]
    fn short_messages_and_other_types_and_operations_are_malformed() {
        for len in 0..MESSAGE_LEN {
            assert_eq!(parse(&message()[..len]), Err(DropReason::ArpMalformed));
        }
        for at in 0..8 {
            let mut wrong = message();
            wrong[at] ^= 0x40;
            assert_eq!(parse(&wrong), Err(DropReason::ArpMalformed), "byte {at}");
        }
    }
}
