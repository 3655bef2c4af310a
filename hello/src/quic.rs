//! QUIC: finds the ClientHello in the Initial packets of a client, versions 1 (RFC 9000, RFC 9001) and 2 (RFC 9369).
//!
//! An Initial packet is encrypted with keys that everyone can derive from its connection id, so that every observer can read it. The
//! ClientHello is divided into CRYPTO frames of one or more packets: with post-quantum key shares, most need two datagrams.
//!
//! **Which keys.** The keys of a connection come from the destination connection id of the client's first packet. The client then changes
//! to the id that the server chose, and may change the version, but the connection id that the keys come from stays. A packet is therefore
//! tried with the id of every known connection of the flow, and then with its own id. If its own id opens the packet, a connection begins:
//!
//! * the first one, or a further one over the same addresses and ports, as libraries open that use one socket for all connections;
//! * the continuation after the server's Retry: the client sends its whole hello again, now with the id from the Retry.
//!
//! Each connection has its own hello and its own reading. No connection is forgotten before the flow is: otherwise a client could send a
//! part of a hello, have its connection forgotten, and send the rest, which alone says nothing.

mod frames;
mod keys;
mod packet;

use crate::Reading;
use crate::client_hello::{self, Parsed};
use crate::gathering::{Gathering, Progress};
use keys::Keys;
use packet::Packet;

/// Maximum number of connections of one flow. Each holds at most [`MAX_HELLO`](crate::MAX_HELLO) bytes. A Retry makes a second one.
pub const MAX_CONNECTIONS: usize = 4;

/// The datagrams from one client's address and port to one server's.
///
/// The caller keeps the flow as long as it forwards datagrams between the two. With a new one, the rest of an earlier hello would read as
/// [`Reading::NeedMore`].
///
/// ```
/// use bulkhead_hello::{Reading, quic::Flow};
///
/// let mut flow = Flow::default();
/// assert_eq!(flow.take(b"\x80\x1a\x2a\x3a\x4a\0\0"), Reading::UnknownVersion(0x1a2a_3a4a));
/// assert_eq!(flow.take(b"no packet of QUIC"), Reading::NotTls);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Oldest first.
    connections: Vec<Connection>,
}

#[derive(Clone, Debug)]
struct Connection {
    /// The connection id that the keys come from.
    id: Box<[u8]>,
    /// One more than the largest packet number seen.
    next_number: u64,
    hello: Gathering,
}

impl Flow {
    /// Adds a datagram's payload. Returns the reading of the connection to which its Initial packets belong.
    ///
    /// A datagram without Initial packets has the reading of the newest connection, and [`Reading::NotTls`] if the flow has no connection.
    /// The result is about this datagram: [`Reading::UnknownVersion`], and [`Reading::Malformed`] because of a packet that no known key
    /// opens, say nothing about later ones. The caller must compare the name of every result, because a flow may have several connections.
    pub fn take(&mut self, datagram: &[u8]) -> Reading {
        let mut rest = datagram;
        let mut connection = None;
        // A packet with a short header, or zeros that fill the datagram, end the list of packets.
        while rest.first().is_some_and(|byte| packet::is_long(*byte)) {
            let packet = match Packet::parse(&mut rest) {
                Ok(packet) => packet,
                Err(reading) => return reading,
            };
            if !packet.is_initial {
                continue;
            }
            let index = match self.receive(&packet) {
                Ok(index) => index,
                Err(reading) => return reading,
            };
            // All packets of a datagram are for one connection (RFC 9000 section 12.2). This reading is about one.
            if *connection.get_or_insert(index) != index {
                return Reading::Malformed;
            }
        }
        let connection = connection.map_or(self.connections.last(), |index| self.connections.get(index));
        connection.map_or(Reading::NotTls, |connection| connection.hello.reading().clone())
    }

    /// Returns the number of bytes of memory behind the flow, at most [`MAX_CONNECTIONS`] times [`MAX_HELLO`](crate::MAX_HELLO) and 2 KiB.
    pub fn memory(&self) -> usize {
        let of_connection =
            |connection: &Connection| size_of::<Connection>() + connection.id.len() + connection.hello.memory();
        self.connections.iter().map(of_connection).sum()
    }

    /// Decrypts an Initial packet and adds its CRYPTO frames to its connection. Returns the connection's index.
    fn receive(&mut self, packet: &Packet<'_>) -> Result<usize, Reading> {
        let mut scratch = Vec::new();
        let mut open =
            |id: &[u8], next_number| packet.open(&Keys::of_client(packet.version, id)?, next_number, &mut scratch);
        let known =
            self.connections.iter().enumerate().find_map(|(index, connection)| {
                open(&connection.id, connection.next_number).map(|opened| (index, opened))
            });
        let (index, opened) = match known {
            Some(found) => found,
            None => {
                let opened = open(packet.id, 0).ok_or(Reading::Malformed)?;
                if self.connections.len() == MAX_CONNECTIONS {
                    return Err(Reading::TooLong);
                }
                let hello = Gathering::default();
                self.connections.push(Connection { id: packet.id.into(), next_number: 0, hello });
                (self.connections.len() - 1, opened)
            }
        };
        let Some(connection) = self.connections.get_mut(index) else { return Err(Reading::Malformed) };
        connection.next_number = connection.next_number.max(opened.number + 1);
        let hello = &mut connection.hello;
        let is_valid = frames::crypto(&scratch[opened.payload], |offset, data| {
            hello.take(offset, data, |prefix| parse(prefix).unwrap_or(Progress::MALFORMED));
        });
        if is_valid.is_none() {
            hello.end(Reading::Malformed);
        }
        Ok(index)
    }
}

/// Parses the CRYPTO stream of Initial packets: a ClientHello, and a second one with the same name after the server's HelloRetryRequest.
/// `None` if they are malformed.
fn parse(prefix: &[u8]) -> Option<Progress> {
    let (first, end) = match client_hello::parse(prefix)? {
        Parsed::Complete(reading, end) => (reading, end),
        Parsed::Needs(len) => return Some(Progress { reading: Reading::NeedMore, needs: Some(len) }),
    };
    let rest = &prefix[end..];
    if rest.is_empty() {
        return Some(Progress { reading: first, needs: Some(end + 1) });
    }
    match client_hello::parse(rest)? {
        Parsed::Needs(len) => Some(Progress { reading: first, needs: Some(end + len) }),
        Parsed::Complete(second, len) if second == first && rest.len() == len => {
            Some(Progress { reading: first, needs: Some(end + len + 1) })
        }
        Parsed::Complete(..) => None,
    }
}
