//! DNS messages for tests, without compression.

use crate::names::Encoder;

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
    let mut encoder = Encoder::new(name, kind, 1, false);
    encoder.bytes[..4].copy_from_slice(&[id, flags].map(u16::to_be_bytes).concat());
    let add = |encoder: Encoder, &(owner, ttl, data): &Record<'_>| match data.parse() {
        Ok(address) => encoder.address(owner, ttl, address),
        Err(_) => encoder.cname(owner, data),
    };
    records.iter().fold(encoder, add).bytes
}
