//! ICMP messages that ask and those that answer: which types belong together.

use bulkhead_classifier::protocol;

/// The types of requests and of their answers. Source: IANA "ICMP Type Numbers". Echoes come first; their sessions also have an identifier.
const V4: &[(u8, u8)] = &[(8, 0), (13, 14), (15, 16), (17, 18), (42, 43)];
/// The same for IPv6. Source: IANA "ICMPv6 Parameters".
const V6: &[(u8, u8)] = &[(128, 129), (139, 140), (144, 145), (146, 147), (160, 161)];

/// Returns the type of the request to which a message of type `kind` belongs, as the request itself or its answer. `number` is the protocol.
/// `None` for other messages.
pub(crate) fn request_of(number: u8, kind: u8) -> Option<u8> {
    pairs(number).iter().find(|(request, answer)| [*request, *answer].contains(&kind)).map(|(request, _)| *request)
}

/// Whether messages of this type are requests, which have answers of another type.
pub(crate) fn is_request(number: u8, kind: u8) -> bool {
    pairs(number).iter().any(|(request, _)| *request == kind)
}

/// Returns the type of echo requests.
pub(crate) fn echo(number: u8) -> u8 {
    pairs(number)[0].0
}

fn pairs(number: u8) -> &'static [(u8, u8)] {
    if number == protocol::ICMP { V4 } else { V6 }
}
