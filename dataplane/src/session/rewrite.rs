//! The rewrite of a translated session (to a Service, or masqueraded). Over IPv4 it is [in the entry](super::compact). Over IPv6 it is in a
//! third column, which only such sessions touch.
//!
//! ```text
//!   on the wire, towards the backend    client:port > vip:port   --rewritten-->  source:port > backend:port
//!   on the wire, back                   client:port < vip:port   <--rewritten--  source:port < backend:port
//!                                       `---- the alias ------'                  `----- the key -------'
//! ```
//! The entry's key is what the backend sees. The source is the client, or an address and port of the node if answers would otherwise bypass
//! it. With masquerading the VIP is the destination itself. The client's packets are found by a second index entry, the *alias*, which is
//! verified against this record. A second session entry for the client's side was rejected: its time, state and share would have to follow
//! the first one's.

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Key;
use crate::packet::{Ends, Ports};

/// The translation of a session: the key of the client's packets before translation. All zeros if the session is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Rewrite {
    /// Key of packets between the client and the VIP.
    pub(super) alias: Key,
    /// Epoch of the Services that last confirmed the backend. Upper bits are ignored.
    pub(super) checked: u32,
    /// 1 if the client is the alias's lower endpoint, otherwise 0.
    client_is_low: u32,
    /// Pads the record to a cache line. Otherwise every second one would span two lines.
    spare: [u64; 2],
}

impl Rewrite {
    pub(super) const NONE: Self = Self::of(Key::UNUSED, false, 0);

    /// Creates the rewrite for a client's packets to a VIP of its family, or to the destination if only the source is rewritten.
    pub(crate) fn new(client: IpAddr, vip: IpAddr, protocol: u8, ports: Ports, checked: u32) -> Self {
        let (alias, is_low) = Key::of(client, vip, protocol, ports);
        Self::of(alias, is_low, checked)
    }

    /// Creates a rewrite from its parts. `alias` is the key of packets between the client and the VIP.
    pub(super) const fn of(alias: Key, client_is_low: bool, checked: u32) -> Self {
        Self { alias, checked, client_is_low: client_is_low as u32, spare: [0; 2] }
    }

    /// Whether the rewrite is valid for a session with this key.
    pub(super) const fn is_sound(&self, key: &Key) -> bool {
        let is_like = self.alias.is_like(key) && self.alias.is_echo() == key.is_echo();
        self.alias.is_sound() && is_like && self.client_is_low <= 1
    }

    /// Returns the client's address and port.
    pub(crate) fn client(&self) -> (IpAddr, u16) {
        self.alias.endpoints(self.client_is_low())[0]
    }

    /// Returns the address and port that the client connected to.
    pub(crate) fn vip(&self) -> (IpAddr, u16) {
        self.alias.endpoints(self.client_is_low())[1]
    }

    #[inline]
    pub(super) const fn client_is_low(&self) -> bool {
        self.client_is_low != 0
    }

    /// Translation of the client's packets. `key` is the entry's key, and whether the forward direction goes from its lower endpoint.
    pub(super) fn rewritten_forward(&self, key: (Key, bool)) -> Rewritten {
        Rewritten::new((self.alias, self.client_is_low()), key)
    }
}

/// A packet's addresses and ports before and after translation. Made of words of one size, because it is copied for every translated
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    received: Key,
    sent: Key,
    marks: u64,
}

/// Bits of [`Rewritten::marks`].
mod mark {
    /// Whether the source is the key's lower endpoint.
    pub(super) const RECEIVED_FROM_LOW: u64 = 1;
    pub(super) const SENT_FROM_LOW: u64 = 2;
    pub(super) const PLAIN: u64 = 4;

    #[inline]
    pub(super) const fn of(received_from_low: bool, sent_from_low: bool) -> u64 {
        (received_from_low as u64 * RECEIVED_FROM_LOW) | (sent_from_low as u64 * SENT_FROM_LOW)
    }
}

impl Rewritten {
    /// Creates the value from the keys before and after translation, each with whether the packet's source is its lower endpoint.
    #[inline]
    pub(super) const fn new((received, received_from_low): (Key, bool), (sent, sent_from_low): (Key, bool)) -> Self {
        Self { received, sent, marks: mark::of(received_from_low, sent_from_low) }
    }

    /// Returns the translation with the addresses and ports before and after exchanged.
    pub(super) const fn reversed(&self) -> Self {
        let (received, sent) = (self.marks & mark::RECEIVED_FROM_LOW != 0, self.marks & mark::SENT_FROM_LOW != 0);
        Self::new((self.sent, sent), (self.received, received))
    }

    /// Appends the translation of a [plain](crate::packet::Plain) packet, copying each part to its place. Building the value first and
    /// moving it would cause store-forwarding stalls.
    #[inline(always)]
    pub(super) fn add_of_a_plain_packet(
        all: &mut Vec<Self>,
        (received, received_from_low): (&Key, bool),
        (sent, sent_from_low): (&Key, bool),
    ) {
        all.push(Self { received: Key::UNUSED, sent: Key::UNUSED, marks: mark::PLAIN });
        if let Some(place) = all.last_mut() {
            (place.received, place.sent) = (*received, *sent);
            place.marks |= mark::of(received_from_low, sent_from_low);
        }
    }

    /// Whether the packet is known to be plain.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.marks & mark::PLAIN != 0
    }

    /// Addresses and ports before translation.
    pub(crate) const fn received(&self) -> Ends {
        self.received.ends(self.marks & mark::RECEIVED_FROM_LOW != 0)
    }

    /// Addresses and ports after translation.
    #[inline]
    pub(crate) const fn sent(&self) -> Ends {
        self.sent.ends(self.marks & mark::SENT_FROM_LOW != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_64_bytes_so_that_a_session_translated_over_ipv6_is_208() {
        assert_eq!(size_of::<Rewrite>(), 64);
    }
}
