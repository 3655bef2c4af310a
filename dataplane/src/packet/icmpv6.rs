//! ICMP for IPv6 (RFC 4443).

use super::Transport;
use super::embedded::embedded_v6;
use super::neighbour::{self, Neighbour};
use super::transport::Segment;
use crate::wire::icmpv6::{HEADER_LEN, kind};
use crate::{DropReason, Flow};

/// Length of type, code and checksum. Some messages have no more.
const MIN_HEADER_LEN: usize = 4;
/// The first type that is not an error. Lower types are errors, including unassigned ones (RFC 4443 §2.1).
const FIRST_INFORMATIONAL: u8 = 128;

/// Parses a message and sets the flow's type and code.
pub(super) fn parse(segment: Segment<'_>, has_fragment_header: bool, flow: &mut Flow) -> Result<Transport, DropReason> {
    let message = segment.bytes.seen;
    let &[kind, code, _, _] = message.first_chunk::<MIN_HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    flow.icmp = Some((kind, code));
    match kind {
        kind::ECHO_REQUEST | kind::ECHO_REPLY => {
            let header = message.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
            let id = u16::from_be_bytes([header[4], header[5]]);
            Ok(Transport::Echo { id, request: kind == kind::ECHO_REQUEST })
        }
        _ if kind < FIRST_INFORMATIONAL => Ok(Transport::IcmpError(message.get(HEADER_LEN..).and_then(embedded_v6))),
        _ if Neighbour::is_kind(kind) => {
            // RFC 6980: fragmented neighbour discovery only serves to evade filters.
            if has_fragment_header {
                return Err(DropReason::NdMalformed);
            }
            neighbour::parse(segment.bytes, segment.hop_limit, flow).map(Transport::Neighbour)
        }
        _ => Ok(Transport::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Bytes;
    use crate::packet::tests::{flow_of, frame_v6};

    fn parse_bytes(bytes: &[u8]) -> Result<Transport, DropReason> {
        let segment = Segment { bytes: Bytes::new(bytes, bytes.len()), hop_limit: 64, whole: true };
        parse(segment, false, &mut flow_of(58))
    }

    #[test]
    fn echoes_have_an_identifier_and_a_direction() {
        assert_eq!(parse_bytes(&[128, 0, 0, 0, 0, 7, 0, 0]), Ok(Transport::Echo { id: 7, request: true }));
        assert_eq!(parse_bytes(&[129, 0, 0, 0, 0, 7, 0, 0]), Ok(Transport::Echo { id: 7, request: false }));
    }

    #[test]
    fn a_short_message_is_truncated() {
        for len in 0..4 {
            assert_eq!(parse_bytes(&[200, 0, 0, 0][..len]), Err(DropReason::L4Truncated));
        }
        assert_eq!(parse_bytes(&[200, 0, 0, 0]), Ok(Transport::Other));
        assert_eq!(parse_bytes(&[128, 0, 0, 0, 0, 7, 0]), Err(DropReason::L4Truncated));
    }

    #[test]
    fn every_type_below_128_is_an_error_and_needs_an_embedded_packet() {
        let inner = frame_v6(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
        for kind in 0..128 {
            let message = [&[kind, 0, 0, 0, 0, 0, 0, 0], &inner[..]].concat();
            assert!(matches!(parse_bytes(&message), Ok(Transport::IcmpError(Some(_)))), "type {kind}");
            assert_eq!(parse_bytes(&message[..9]), Ok(Transport::IcmpError(None)));
            assert_eq!(parse_bytes(&message[..4]), Ok(Transport::IcmpError(None)));
        }
    }

    #[test]
    fn rfc_6980_neighbour_discovery_in_a_fragment_is_refused() {
        let message = [135; 24];
        let segment = Segment { bytes: Bytes::new(&message, 24), hop_limit: 255, whole: true };
        assert_eq!(parse(segment, true, &mut flow_of(58)), Err(DropReason::NdMalformed));
    }
}
