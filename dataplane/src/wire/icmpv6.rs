//! ICMP for IPv6 (RFC 4443): echoes and errors. Neighbour discovery (RFC 4861): solicitations and advertisements.

use std::net::Ipv6Addr;

use super::ethernet::Mac;
use super::{WireError, checksum, double_word, protocol, set_double_word, set_word};

/// Length in bytes of the header: type, code, checksum, and four bytes that depend on the type.
pub const HEADER_LEN: usize = 8;

/// Byte offsets in the header.
pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const TYPE: usize = 0;
    pub(crate) const CODE: usize = 1;
    pub(crate) const CHECKSUM: usize = 2;
    pub(crate) const REST: usize = 4;
    /// Target of a neighbour solicitation or advertisement.
    pub(crate) const TARGET: Range<usize> = 8..24;
    /// Options of a neighbour solicitation or advertisement.
    pub(crate) const OPTIONS: usize = 24;
}

/// Message types. Source: IANA "ICMPv6 Parameters".
pub mod kind {
    /// Destination unreachable, see [`unreachable`](super::unreachable).
    pub const UNREACHABLE: u8 = 1;
    /// The packet exceeds the next link's MTU.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// The hop limit or the time for reassembly is exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// The first type that is not an error. Lower types are errors, including unassigned ones (RFC 4443 §2.1).
    pub const FIRST_INFORMATIONAL: u8 = 128;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Requests router advertisements. The first type of neighbour discovery.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Announces a router.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Requests an address's MAC address.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Announces an address's MAC address.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Names a better router for a destination. The last type of neighbour discovery.
    pub const REDIRECT: u8 = 137;
}

/// Codes of [`kind::UNREACHABLE`].
pub mod unreachable {
    /// No route.
    pub const NO_ROUTE: u8 = 0;
    /// A filter denies the packet.
    pub const ADMINISTRATIVELY_PROHIBITED: u8 = 1;
    /// No host has the address.
    pub const ADDRESS: u8 = 3;
    /// No socket listens on the port.
    pub const PORT: u8 = 4;
}

/// A header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Message type, see [`kind`].
    pub kind: u8,
    /// Code, whose meaning depends on the type.
    pub code: u8,
    /// Echo: identifier and sequence number. "Packet too big": the MTU. Neighbour advertisement: flags.
    pub rest: u32,
}

/// A message with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct Message<T>(T);

impl<T: AsRef<[u8]>> Message<T> {
    /// Checks that the header is complete.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(WireError::Truncated { protocol: "ICMPv6" });
        }
        Ok(Self(bytes))
    }

    /// Message type, see [`kind`].
    pub fn kind(&self) -> u8 {
        self.0.as_ref()[field::TYPE]
    }

    /// Code, whose meaning depends on the type.
    pub fn code(&self) -> u8 {
        self.0.as_ref()[field::CODE]
    }

    /// Returns the four header bytes after the checksum, whose meaning depends on the type.
    pub fn rest(&self) -> u32 {
        double_word(self.0.as_ref(), field::REST)
    }

    /// Whether the checksum is correct for these addresses.
    pub fn has_right_checksum(&self, source: Ipv6Addr, destination: Ipv6Addr) -> bool {
        checksum::transport(source.into(), destination.into(), protocol::ICMPV6, self.0.as_ref()) == 0
    }
}

impl Repr {
    /// Creates the header of an echo request or reply.
    pub const fn echo(kind: u8, id: u16, sequence: u16) -> Self {
        Self { kind, code: 0, rest: (id as u32) << 16 | sequence as u32 }
    }

    /// Reads a header.
    pub fn parse<T: AsRef<[u8]>>(message: &Message<T>) -> Self {
        Self { kind: message.kind(), code: message.code(), rest: message.rest() }
    }

    /// Writes the header, with the checksum of the whole `message`.
    ///
    /// # Panics
    /// If `message` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr, message: &mut [u8]) {
        (message[field::TYPE], message[field::CODE]) = (self.kind, self.code);
        set_double_word(message, field::REST, self.rest);
        set_word(message, field::CHECKSUM, 0);
        let sum = checksum::transport(source.into(), destination.into(), protocol::ICMPV6, message);
        set_word(message, field::CHECKSUM, sum);
    }
}

/// Neighbour solicitations and advertisements, each with one option.
pub mod ndisc {
    use super::{Ipv6Addr, Mac, Repr, field, kind};

    /// Length in bytes of a message with its option.
    pub const MESSAGE_LEN: usize = field::OPTIONS + OPTION_LEN;
    /// Hop limit of every message. It proves that no router has forwarded the message (RFC 4861 §3.1).
    pub const HOP_LIMIT: u8 = 255;

    /// Length in bytes of a link-layer address option: type, length, address.
    const OPTION_LEN: usize = 8;
    pub(crate) const SOURCE_LINK_LAYER: u8 = 1;
    const TARGET_LINK_LAYER: u8 = 2;

    /// Flags of an advertisement, in the first byte after the checksum.
    pub mod flags {
        /// The sender is a router.
        pub const ROUTER: u8 = 0x80;
        /// The advertisement answers a solicitation.
        pub const SOLICITED: u8 = 0x40;
        /// The advertisement overrides a cached address.
        pub const OVERRIDE: u8 = 0x20;
    }

    /// A neighbour solicitation or advertisement.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Message {
        /// Requests an address's MAC address.
        Solicitation {
            /// The address whose owner is requested.
            target: Ipv6Addr,
            /// The sender's MAC address.
            source: Mac,
        },
        /// Announces an address's MAC address.
        Advertisement {
            /// The flags of the advertisement, see [`flags`].
            flags: u8,
            /// The address whose MAC address is announced.
            target: Ipv6Addr,
            /// The announced MAC address.
            at: Mac,
        },
    }

    impl Message {
        /// Writes the message and its checksum.
        ///
        /// # Panics
        /// If `message` does not have exactly [`MESSAGE_LEN`] bytes.
        pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr, message: &mut [u8]) {
            assert_eq!(message.len(), MESSAGE_LEN, "a message with one option");
            let (kind, flags, target, option, mac) = match *self {
                Self::Solicitation { target, source } => {
                    (kind::NEIGHBOUR_SOLICITATION, 0, target, SOURCE_LINK_LAYER, source)
                }
                Self::Advertisement { flags, target, at } => {
                    (kind::NEIGHBOUR_ADVERTISEMENT, flags, target, TARGET_LINK_LAYER, at)
                }
            };
            message[field::TARGET].copy_from_slice(&target.octets());
            // The length is in units of eight bytes.
            message[field::OPTIONS..field::OPTIONS + 2].copy_from_slice(&[option, 1]);
            message[field::OPTIONS + 2..].copy_from_slice(&mac);
            let rest = u32::from_be_bytes([flags, 0, 0, 0]);
            Repr { kind, code: 0, rest }.emit(source, destination, message);
        }

        /// Returns the MAC address in a message's options. `None` for other message types, and if no option has one.
        pub fn link_layer_option(message: &[u8]) -> Option<Mac> {
            let mut options = match *message.first()? {
                kind::NEIGHBOUR_SOLICITATION | kind::NEIGHBOUR_ADVERTISEMENT => message.get(field::OPTIONS..)?,
                kind::ROUTER_SOLICITATION => message.get(super::HEADER_LEN..)?,
                _ => return None,
            };
            while let &[kind, length, ..] = options {
                if matches!(kind, SOURCE_LINK_LAYER | TARGET_LINK_LAYER) {
                    return options.get(2..OPTION_LEN)?.try_into().ok();
                }
                options = options.get(usize::from(length.max(1)) * OPTION_LEN..)?;
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Icmpv6Slice, Icmpv6Type};

    const SRC: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const DST: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let too_big = Repr { kind: kind::PACKET_TOO_BIG, code: 0, rest: 1400 };
        for repr in [too_big, Repr::echo(kind::ECHO_REQUEST, 7, 9), Repr::echo(kind::ECHO_REPLY, 7, 9)] {
            let mut bytes = [0xaa; HEADER_LEN + 5];
            repr.emit(SRC, DST, &mut bytes);
            let message = Message::new_checked(&bytes).unwrap();
            assert_eq!(Repr::parse(&message), repr);
            assert!(message.has_right_checksum(SRC, DST));
            assert!(!message.has_right_checksum(SRC, "fd00::3".parse().unwrap()));
            let slice = Icmpv6Slice::from_slice(&bytes).unwrap();
            assert!(slice.is_checksum_valid(SRC.octets(), DST.octets()));
            match slice.icmp_type() {
                Icmpv6Type::PacketTooBig { mtu } => assert_eq!((mtu, repr), (1400, too_big)),
                Icmpv6Type::EchoRequest(echo) | Icmpv6Type::EchoReply(echo) => assert_eq!((echo.id, echo.seq), (7, 9)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn neighbour_discovery_names_target_and_mac() {
        let solicitation = ndisc::Message::Solicitation { target: DST, source: MAC };
        let flags = ndisc::flags::ROUTER | ndisc::flags::SOLICITED;
        let advertisement = ndisc::Message::Advertisement { flags, target: DST, at: MAC };
        for (written, kind, first, option) in [(solicitation, 135, 0, 1), (advertisement, 136, 0xc0, 2)] {
            let mut bytes = [0xaa; ndisc::MESSAGE_LEN];
            written.emit(SRC, DST, &mut bytes);
            let message = Message::new_checked(&bytes).unwrap();
            assert!(message.has_right_checksum(SRC, DST));
            assert_eq!((message.kind(), message.code(), message.rest()), (kind, 0, first << 24));
            assert_eq!((&bytes[8..24], &bytes[24..26], &bytes[26..]), (&DST.octets()[..], &[option, 1][..], &MAC[..]));
            assert_eq!(ndisc::Message::link_layer_option(&bytes), Some(MAC));
            assert!(Icmpv6Slice::from_slice(&bytes).unwrap().is_checksum_valid(SRC.octets(), DST.octets()));
        }
    }

    #[test]
    fn an_option_is_found_behind_others_and_none_where_there_is_none() {
        let mut message = vec![135; 24];
        assert_eq!(ndisc::Message::link_layer_option(&message), None);
        message.extend([14, 2]);
        message.extend([0; 14]);
        message.extend([1, 1, 2, 0, 0, 0, 0, 7]);
        assert_eq!(ndisc::Message::link_layer_option(&message), Some(MAC));
        for len in 0..message.len() {
            assert_eq!(ndisc::Message::link_layer_option(&message[..len]), None, "{len}");
        }
        message[0] = 134;
        assert_eq!(ndisc::Message::link_layer_option(&message), None);
    }

    #[test]
    fn a_header_that_is_cut_short_is_an_error() {
        for len in 0..HEADER_LEN {
            assert!(Message::new_checked(vec![0; len]).is_err());
        }
    }
}
