//! ICMP messages that ask and those that answer: which types belong together.

use bulkhead_classifier::protocol;

use crate::wire::{icmpv4::kind as icmpv4, icmpv6::kind as icmpv6};

/// The types of requests and of their answers. Source: IANA "ICMP Type Numbers". Echoes come first; their sessions also have an identifier.
const V4: &[(u8, u8)] = &[(8, 0), (13, 14), (15, 16), (17, 18), (42, 43)];
/// The same for IPv6. Source: IANA "ICMPv6 Parameters".
const V6: &[(u8, u8)] = &[(128, 129), (139, 140), (144, 145), (146, 147), (160, 161)];

/// Returns the type of the request to which a message of type `kind` belongs, as the request itself or its answer. `number` is the protocol.
/// `None` for other messages.
pub(crate) fn request_of(number: u8, kind: u8) -> Option<u8> {
    pairs(number).iter().find(|(request, answer)| [*request, *answer].contains(&kind)).map(|(request, _)| *request)
}

/// Returns the type of the answer to a request. `None` for other messages.
pub(crate) fn answer_to(number: u8, kind: u8) -> Option<u8> {
    pairs(number).iter().find(|(request, _)| *request == kind).map(|(_, answer)| *answer)
}

/// Whether messages of this type are requests, which have answers of another type.
pub(crate) fn is_request(number: u8, kind: u8) -> bool {
    answer_to(number, kind).is_some()
}

/// Whether a message of this type may begin a conversation. False for echo replies, errors, redirects and neighbour discovery.
pub(crate) fn may_begin(number: u8, kind: u8) -> bool {
    if number == protocol::ICMP {
        return !matches!(
            kind,
            icmpv4::ECHO_REPLY
                | icmpv4::UNREACHABLE
                | icmpv4::SOURCE_QUENCH
                | icmpv4::REDIRECT
                | icmpv4::TIME_EXCEEDED
                | icmpv4::PARAMETER_PROBLEM
        );
    }
    let is_discovery = matches!(kind, icmpv6::ROUTER_SOLICITATION..=icmpv6::REDIRECT);
    kind >= icmpv6::FIRST_INFORMATIONAL && kind != icmpv6::ECHO_REPLY && !is_discovery
}

/// Returns the type of echo requests.
pub(crate) fn echo(number: u8) -> u8 {
    pairs(number)[0].0
}

fn pairs(number: u8) -> &'static [(u8, u8)] {
    if number == protocol::ICMP { V4 } else { V6 }
}
