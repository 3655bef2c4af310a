//! # The server name of a TLS or QUIC client: packets in, a name out
//!
//! **Purpose.** A TLS client names its server in the clear, in the first message that it sends. [`tls::Stream`] reads this name from the
//! segments of a TCP connection, and `quic::Flow` from the datagrams of a QUIC client.
//!
//! **Not its purpose.** It decides nothing and holds no packet back. It has no clock, no I/O and no threads. It reads only what a client
//! sends: no answer of a server, no certificate, no HTTP.
//!
//! ```text
//!   segments --tls::Stream----.                         .--> Name, NoName
//!                             +--> ClientHello --> Reading --> NeedMore
//!   datagrams --quic::Flow----'                         '--> NotTls, Malformed, TooLong, UnknownVersion
//! ```
//!
//! ```
//! use bulkhead_hello::{Reading, tls};
//!
//! let mut stream = tls::Stream::default();
//! assert_eq!(stream.take(0, b"\x16\x03\x01"), &Reading::NeedMore);
//! // The bytes that the client sent first cannot be exchanged later.
//! assert_eq!(stream.take(0, b"\x17\x03\x01"), &Reading::Malformed);
//! assert_eq!(tls::Stream::default().take(0, b"GET / HTTP/1.1\r\n"), &Reading::NotTls);
//! ```
//!
//! **Invariants.** A reading is [`Reading::Name`] only after every byte of the ClientHello was there, and no byte of it was sent with two
//! values. No input causes a panic. A reader holds at most [`MAX_HELLO`] bytes of a hello in at most [`MAX_PIECES`] pieces.
//!
//! # What the name proves
//!
//! The client is the adversary: it wants to reach a server under a name that the policy does not list. If the caller forwards a packet
//! only after its reading, and keeps the reader as long as its documentation says, the server has a complete hello only if the reader has
//! the same one. A client could try two ways around this:
//!
//! * **Two values of a byte.** The client sends a byte twice, with different values, and makes the server miss the first one: by a wrong
//!   checksum or a low TTL. A reader that prefers either value can be deceived, because the network and the server decide which one counts.
//!   Here the first one stays, and the difference is [`Reading::Malformed`], also after a name was found. For TCP, the server's
//!   acknowledgement of the hello ends this: later copies have no effect ([`tls::Stream::end`]).
//! * **A second ClientHello** after the server's HelloRetryRequest. It must repeat the first one's name (RFC 8446 section 4.1.2), but some
//!   servers do not compare and use the second one. Another name is [`Reading::Malformed`].
//!
//! A correct name does not prove which site answers. A server of many sites may serve another one for the `Host` of an HTTP request. The
//! name is the outer one if the client encrypts its hello (RFC 9849): it names the client-facing server, not the one behind it.

mod client_hello;
mod cursor;
mod gathering;
mod pieces;
#[cfg(feature = "quic")]
pub mod quic;
pub mod tls;

use std::sync::Arc;

pub use pieces::MAX_PIECES;

/// Maximum number of bytes from the start of a stream to the end of its ClientHello, headers of records included. Hellos have 200 to 2,000
/// bytes; session tickets and post-quantum key shares make the long ones.
pub const MAX_HELLO: usize = 16 << 10;

/// What the bytes of a client say up to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The ClientHello is not complete. A server that has no more bytes of it cannot answer either.
    NeedMore,
    /// A complete ClientHello with a server name.
    Name {
        /// The name in lower case without a final dot: labels of ASCII letters, digits, `-` and `_`.
        name: Arc<str>,
        /// Whether the hello has the extension `encrypted_client_hello` (RFC 9849). `name` then belongs to the client-facing server.
        /// Browsers also send the extension without meaning, to all other servers. An observer cannot distinguish the two.
        has_ech: bool,
    },
    /// A complete ClientHello without a server name.
    NoName,
    /// The bytes are not the start of a TLS stream, or the datagrams are not those of a QUIC client.
    NotTls,
    /// The bytes break the rules of TLS or QUIC so that servers may understand them differently, or two versions of
    /// the same    /// byte differ.
    Malformed,
    /// The ClientHello does not end within [`MAX_HELLO`] bytes, its bytes arrive in more than [`MAX_PIECES`] pieces, or a UDP flow has more
    /// QUIC connections than are followed.
    TooLong,
    /// A QUIC packet of a version other than 1 and 2, whose encryption is not known. Clients also send such packets to test the negotiation
    /// of versions, and continue with a known version after the server's answer.
    UnknownVersion(u32),
}
