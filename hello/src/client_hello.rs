//! Parses the handshake message ClientHello (RFC 8446 section 4.1.2) and its server name (RFC 6066 section 3).
//!
//! Strict where servers differ: two names, two extensions of one kind and bytes after the end are malformed, because one server would use
//! the first and another one the last.

use std::sync::Arc;

use crate::Reading;
use crate::cursor::Cursor;

/// Length of a handshake message's header in bytes: a type and a length of 3 bytes.
const HEADER_LEN: usize = 4;
/// The handshake message's type. Source: RFC 8446 section 4.
const CLIENT_HELLO: u8 = 1;
/// Types of extensions. Sources: RFC 6066 section 1.1, RFC 9849 section 11.1.
const SERVER_NAME: usize = 0;
const ENCRYPTED_CLIENT_HELLO: usize = 0xfe0d;
/// The only type of a server name. Source: RFC 6066 section 3.
const HOST_NAME: usize = 0;
/// Maximum length of a domain name, and of one of its labels, in octets. Source: RFC 1035 section 2.3.4.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// What a parser says about bytes that start with a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The hello is incomplete, and no shorter prefix than this completes it.
    Needs(usize),
    /// The hello's reading and its length. The reading is [`Reading::Name`] or [`Reading::NoName`].
    Complete(Reading, usize),
}

/// Parses the ClientHello at the start of the bytes of handshake messages. `None` if it is malformed. Ignores bytes after the ClientHello.
pub(crate) fn parse(handshake: &[u8]) -> Option<Parsed> {
    let mut cursor = Cursor(handshake);
    if handshake.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return None;
    }
    let Some(len) = cursor.bytes(1).and_then(|_| cursor.uint(3)) else { return Some(Parsed::Needs(HEADER_LEN)) };
    let end = HEADER_LEN + len;
    match cursor.bytes(len) {
        Some(body) => Some(Parsed::Complete(body_reading(body)?, end)),
        None => Some(Parsed::Needs(end)),
    }
}

/// Reads a whole ClientHello without its header. `None` if it is malformed.
fn body_reading(body: &[u8]) -> Option<Reading> {
    let mut cursor = Cursor(body);
    let (_version, _random) = (cursor.bytes(2)?, cursor.bytes(32)?);
    let (_session, _ciphers, _compressions) = (cursor.vector(1)?, cursor.vector(2)?, cursor.vector(1)?);
    // Before TLS 1.3, a hello may end here (RFC 5246 section 7.4.1.2).
    if cursor.0.is_empty() {
        return Some(Reading::NoName);
    }
    let mut extensions = Cursor(cursor.vector(2)?);
    if !cursor.0.is_empty() {
        return None;
    }
    let (mut name, mut has_ech) = (None, false);
    while !extensions.0.is_empty() {
        let (kind, data) = (extensions.uint(2)?, extensions.vector(2)?);
        let is_second = match kind {
            SERVER_NAME => name.replace(server_name(data)?).is_some(),
            ENCRYPTED_CLIENT_HELLO => std::mem::replace(&mut has_ech, true),
            _ => false,
        };
        if is_second {
            return None;
        }
    }
    Some(name.map_or(Reading::NoName, |name| Reading::Name { name, has_ech }))
}

/// Reads the data of the extension `server_name`. `None` if they are not exactly one host name.
fn server_name(data: &[u8]) -> Option<Arc<str>> {
    let mut cursor = Cursor(data);
    let mut list = Cursor(cursor.vector(2)?);
    let (kind, name) = (list.uint(1)?, list.vector(2)?);
    let is_alone = cursor.0.is_empty() && list.0.is_empty() && kind == HOST_NAME;
    // A client must not send a final dot. Servers that accept the dot ignore it.
    let name = name.strip_suffix(b".").unwrap_or(name);
    let is_label = |label: &[u8]| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
    };
    let is_name = is_alone && name.len() <= MAX_NAME && name.split(|byte| *byte == b'.').all(is_label);
    is_name.then(|| std::str::from_utf8(name).ok()).flatten().map(|name| name.to_ascii_lowercase().into())
}
