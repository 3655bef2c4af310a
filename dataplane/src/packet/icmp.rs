//! ICMP for IPv4 (RFC 792).

use super::embedded::embedded_v4;
use super::{Bytes, Transport};
use crate::wire::icmpv4::{HEADER_LEN, kind};
use crate::{DropReason, Flow};

/// Parses a message and sets the flow's type and code.
pub(super) fn parse(message: Bytes<'_>, flow: &mut Flow) -> Result<Transport, DropReason> {
    let header = message.seen.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    flow.icmp = Some((header[0], header[1]));
    let id = u16::from_be_bytes([header[4], header[5]]);
    Ok(match header[0] {
        kind::ECHO_REQUEST => Transport::Echo { id, request: true },
        kind::ECHO_REPLY => Transport::Echo { id, request: false },
        kind::UNREACHABLE | kind::TIME_EXCEEDED | kind::PARAMETER_PROBLEM => {
            Transport::IcmpError(embedded_v4(&message.seen[HEADER_LEN..]))
        }
        // RFC 6633 deprecates source quench. It only serves to slow down the receiver.
        kind::REDIRECT | kind::SOURCE_QUENCH => Transport::IcmpRedirect,
        _ => Transport::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::{flow_of, frame_v4};

    fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], rest].concat()
    }

    fn parse_bytes(bytes: &[u8]) -> Result<Transport, DropReason> {
        parse(Bytes::new(bytes, bytes.len()), &mut flow_of(1))
    }

    #[test]
    fn echoes_have_an_identifier_and_a_direction() {
        assert_eq!(parse_bytes(&message(8, &[])), Ok(Transport::Echo { id: 0x1234, request: true }));
        assert_eq!(parse_bytes(&message(0, &[])), Ok(Transport::Echo { id: 0x1234, request: false }));
    }

    #[test]
    fn a_short_message_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse_bytes(&message(8, &[])[..len]), Err(DropReason::L4Truncated));
        }
    }

    #[test]
    fn redirects_and_source_quenches_are_told_from_errors() {
        let inner = frame_v4(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
        for kind in [4, 5] {
            assert_eq!(parse_bytes(&message(kind, &inner)), Ok(Transport::IcmpRedirect));
        }
        for kind in [3, 11, 12] {
            assert!(matches!(parse_bytes(&message(kind, &inner)), Ok(Transport::IcmpError(Some(_)))));
        }
    }
}
