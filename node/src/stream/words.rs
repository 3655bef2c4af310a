//! Describes packets in Hubble's words.

use std::time::{Duration, UNIX_EPOCH};

use bulkhead_classifier::protocol;
use bulkhead_dataplane::Flow;

use bulkhead_answers::output::flag_names;

/// Summarizes a packet as Hubble does: `TCP Flags: SYN`, `UDP`, `ICMPv4 EchoRequest`. Empty without a flow.
pub(super) fn summary(flow: Option<&Flow>, tcp_flags: Option<u8>) -> String {
    let Some(flow) = flow else { return String::new() };
    match (flow.protocol, flow.icmp) {
        (protocol::TCP, _) => {
            tcp_flags.map_or_else(|| "TCP".to_owned(), |flags| format!("TCP Flags: {}", flag_names(flags).join(", ")))
        }
        (protocol::UDP, _) => "UDP".to_owned(),
        (protocol::SCTP, _) => "SCTP".to_owned(),
        (protocol::ICMP, Some((8, _))) => "ICMPv4 EchoRequest".to_owned(),
        (protocol::ICMP, Some((0, _))) => "ICMPv4 EchoReply".to_owned(),
        (protocol::ICMPV6, Some((128, _))) => "ICMPv6 EchoRequest".to_owned(),
        (protocol::ICMPV6, Some((129, _))) => "ICMPv6 EchoReply".to_owned(),
        (protocol::ICMP, Some((kind, code))) => format!("ICMPv4 type {kind} code {code}"),
        (protocol::ICMPV6, Some((kind, code))) => format!("ICMPv6 type {kind} code {code}"),
        (number, _) => format!("protocol {number}"),
    }
}

/// Formats nanoseconds since 1970.
pub(super) fn rfc3339(time: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(time)).to_string()
}
