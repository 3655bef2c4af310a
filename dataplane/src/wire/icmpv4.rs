//! ICMP for IPv4 (RFC 792): echoes and errors.

use super::{WireError, checksum, double_word, set_double_word, set_word, word};

/// Type, code, checksum, and four bytes whose meaning the type says.
pub const HEADER_LEN: usize = 8;

/// Positions in the header.
pub(crate) mod field {
    pub(crate) const TYPE: usize = 0;
    pub(crate) const CODE: usize = 1;
    pub(crate) const CHECKSUM: usize = 2;
    pub(crate) const REST: usize = 4;
}

/// Types of messages. Source: IANA "ICMP Parameters".
pub mod kind {
    /// Returns an echo request.
    pub const ECHO_REPLY: u8 = 0;
    /// The destination cannot be reached, see [`unreachable`](super::unreachable).
    pub const UNREACHABLE: u8 = 3;
    /// Asks the sender to be slower; deprecated (RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// There is a better router for this destination.
    pub const REDIRECT: u8 = 5;
    /// Asks for an echo.
    pub const ECHO_REQUEST: u8 = 8;
    /// TTL or time for reassembly are used up.
    pub const TIME_EXCEEDED: u8 = 11;
    /// A field of the header is wrong.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Codes of unreachable destinations.
pub mod unreachable {
    /// No route.
    pub const NET: u8 = 0;
    /// Nobody answers for the address.
    pub const HOST: u8 = 1;
    /// Nobody listens at the port.
    pub const PORT: u8 = 3;
    /// The packet is too big and may not be fragmented (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// A filter forbids it (RFC 1812 §5.2.7.1).
    pub const ADMINISTRATIVELY_PROHIBITED: u8 = 13;
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message<T>(T);

impl<T: AsRef<[u8]>> Message<T> {
    /// A message with a whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(WireError::Truncated { protocol: "ICMP" });
        }
        Ok(Self(bytes))
    }

    /// What it is, see [`kind`].
    pub fn kind(&self) -> u8 {
        self.0.as_ref()[field::TYPE]
    }

    /// More about what it is.
    pub fn code(&self) -> u8 {
        self.0.as_ref()[field::CODE]
    }

    /// The four bytes behind the checksum.
    pub fn rest(&self) -> u32 {
        double_word(self.0.as_ref(), field::REST)
    }

    /// Whether the checksum is right.
    pub fn has_right_checksum(&self) -> bool {
        checksum::internet(&[self.0.as_ref()]) == 0
    }

    /// The checksum.
    pub fn checksum(&self) -> u16 {
        word(self.0.as_ref(), field::CHECKSUM)
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// What the message is, see [`kind`].
    pub kind: u8,
    /// More about what it is.
    pub code: u8,
    /// Of an echo identifier and sequence number, of "fragmentation needed" the MTU.
    pub rest: u32,
}

impl Repr {
    /// An echo request, or its answer.
    pub const fn echo(kind: u8, id: u16, sequence: u16) -> Self {
        Self { kind, code: 0, rest: (id as u32) << 16 | sequence as u32 }
    }

    /// Reads a header.
    pub fn parse<T: AsRef<[u8]>>(message: &Message<T>) -> Self {
        Self { kind: message.kind(), code: message.code(), rest: message.rest() }
    }

    /// Writes the header; the bytes behind it are the rest of the message. The checksum is over all.
    ///
    /// # Panics
    /// When there are less than [`HEADER_LEN`] bytes.
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
