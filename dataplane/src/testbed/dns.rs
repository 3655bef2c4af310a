//! DNS messages for tests, without compression.

use std::net::IpAddr;

/// The number of type A.
pub(crate) const TYPE_A: u16 = 1;
/// The number of type AAAA.
pub(crate) const TYPE_AAAA: u16 = 28;

/// Flags of a query: recursion desired.
const QUERY: u16 = 0x0100;
/// Flags of a response: recursion desired and available.
const RESPONSE: u16 = 0x8180;

/// A record of an answer section: the owner, the TTL in seconds, and an address or the name of a CNAME record.
pub(crate) type Record<'a> = (&'a str, u32, &'a str);

/// Returns a query for the IPv4 addresses of a name.
pub(crate) fn query(id: u16, name: &str) -> Vec<u8> {
    query_of(id, name, TYPE_A)
}

/// Returns a query for records of type `kind`.
pub(crate) fn query_of(id: u16, name: &str, kind: u16) -> Vec<u8> {
    message((id, QUERY), name, kind, &[])
}

/// Returns a successful response to a query for the IPv4 addresses of a name.
pub(crate) fn answer(id: u16, name: &str, records: &[Record<'_>]) -> Vec<u8> {
    answer_of((id, 0), name, TYPE_A, records)
}

/// Returns a response with this response code to a query for records of type `kind`.
pub(crate) fn answer_of((id, code): (u16, u16), name: &str, kind: u16, records: &[Record<'_>]) -> Vec<u8> {
    message((id, RESPONSE | code), name, kind, records)
}

/// Returns a message with the length field that precedes it over TCP.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn message((id, flags): (u16, u16), name: &str, kind: u16, records: &[Record<'_>]) -> Vec<u8> {
    let count = u16::try_from(records.len()).unwrap();
    let mut bytes = [id, flags, 1, count, 0, 0].map(u16::to_be_bytes).concat();
    bytes.extend(wire(name));
    bytes.extend([kind, 1].map(u16::to_be_bytes).concat());
    for (owner, ttl, data) in records {
        let (kind, data) = match data.parse() {
            Ok(IpAddr::V4(v4)) => (TYPE_A, v4.octets().to_vec()),
            Ok(IpAddr::V6(v6)) => (TYPE_AAAA, v6.octets().to_vec()),
            Err(_) => (5, wire(data)),
        };
        bytes.extend(wire(owner));
        bytes.extend([kind, 1].map(u16::to_be_bytes).concat());
        bytes.extend(ttl.to_be_bytes());
        bytes.extend(framed(&data));
    }
    bytes
}

/// Returns a name in wire format.
fn wire(name: &str) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat());
    labels.chain([0]).collect()
}
