//! ARP for IPv4 over Ethernet (RFC 826).

use crate::DropReason;
use crate::wire::arp::Packet;
pub(crate) use crate::wire::arp::{Operation, Repr as Arp};

/// Parses a message. Bytes after it are padding.
pub(super) fn parse(bytes: &[u8]) -> Result<Arp, DropReason> {
    let message = Packet::new_checked(bytes).map_err(|_| DropReason::ArpMalformed)?;
    Ok(Arp::parse(&message))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wire::arp::MESSAGE_LEN;

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
