//! ICMP for IPv4 (RFC 792): echoes and errors.

use super::{WireError, checksum, double_word, set_double_word, set_word, word};

/// Length in bytes of the header: type, code, checksum, and four bytes that depend on the type.
pub const HEADER_LEN: usize = 8;

/// Byte offsets in the header.
pub(crate) mod field {
    pub(crate) const TYPE: usize = 0;
    pub(crate) const CODE: usize = 1;
    pub(crate) const CHECKSUM: usize = 2;
    pub(crate) const REST: usize = 4;
}

/// Message types. Source: IANA "ICMP Parameters".
pub mod kind {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable, see [`unreachable`](super::unreachable).
    pub const UNREACHABLE: u8 = 3;
    /// Requests a lower sending rate. Deprecated (RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Names a better router for a destination.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// The TTL or the time for reassembly is exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// A header field is invalid.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Codes of [`kind::UNREACHABLE`].
pub mod unreachable {
    /// No route.
    pub const NET: u8 = 0;
    /// No host has the address.
    pub const HOST: u8 = 1;
    /// No socket listens on the port.
    pub const PORT: u8 = 3;
    /// The packet exceeds the MTU and must not be fragmented (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// A filter denies the packet (RFC 1812 §5.2.7.1).
    pub const ADMINISTRATIVELY_PROHIBITED: u8 = 13;
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
            return Err(WireError::Truncated { protocol: "ICMP" });
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

    /// Returns the four header bytes after the checksum, whose meaning depends on type and code.
    pub fn rest(&self) -> u32 {
        double_word(self.0.as_ref(), field::REST)
    }

    /// Whether the checksum is correct.
    pub fn has_right_checksum(&self) -> bool {
        checksum::internet(&[self.0.as_ref()]) == 0
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        word(self.0.as_ref(), field::CHECKSUM)
    }
}

/// A header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Message type, see [`kind`].
    pub kind: u8,
    /// Code, whose meaning depends on the type.
    pub code: u8,
    /// Echo: identifier and sequence number. "Fragmentation needed": the MTU.
    pub rest: u32,
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
    pub fn emit(&self, message: &mut [u8]) {
        (message[field::TYPE], message[field::CODE]) = (self.kind, self.code);
        set_double_word(message, field::REST, self.rest);
        set_word(message, field::CHECKSUM, 0);
        let sum = checksum::internet(&[message]);
        set_word(message, field::CHECKSUM, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Icmpv4Slice, Icmpv4Type};

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let too_big = Repr { kind: kind::UNREACHABLE, code: unreachable::FRAGMENTATION_NEEDED, rest: 1400 };
        for repr in [too_big, Repr::echo(kind::ECHO_REQUEST, 7, 9), Repr::echo(kind::ECHO_REPLY, 0xffff, 1)] {
            let mut bytes = [0xaa; HEADER_LEN + 5];
            repr.emit(&mut bytes);
            let message = Message::new_checked(&bytes).unwrap();
            assert_eq!(Repr::parse(&message), repr);
            assert!(message.has_right_checksum());
            let slice = Icmpv4Slice::from_slice(&bytes).unwrap();
            assert_eq!(slice.icmp_type().calc_checksum(&[0xaa; 5]), message.checksum());
            match slice.icmp_type() {
                Icmpv4Type::DestinationUnreachable(header) => {
                    assert_eq!((header.code_u8(), repr), (unreachable::FRAGMENTATION_NEEDED, too_big));
                }
                Icmpv4Type::EchoRequest(echo) => assert_eq!((echo.id, echo.seq), (7, 9)),
                Icmpv4Type::EchoReply(echo) => assert_eq!((echo.id, echo.seq), (0xffff, 1)),
                other => panic!("{other:?}"),
            }
            bytes[12] ^= 1;
            assert!(!Message::new_checked(&bytes).unwrap().has_right_checksum());
        }
    }

    #[test]
    fn a_header_that_is_cut_short_is_an_error() {
        for len in 0..HEADER_LEN {
            assert!(Message::new_checked(vec![0; len]).is_err());
        }
    }
}
