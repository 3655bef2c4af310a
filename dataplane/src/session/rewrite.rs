//! What a translated session knows besides, to a Service's address or masqueraded. Over IPv4 that is [in the entry](super::compact), over
//! IPv6 in a third column, touched only for the sessions that have one.
//!
//! ```text
//!   on the wire, towards the backend    client:port > vip:port   --rewritten-->  source:port > backend:port
//!   on the wire, back                   client:port < vip:port   <--rewritten--  source:port < backend:port
//!                                       `---- the alias ------'                  `----- the key -------'
//! ```
//! The entry has the key of what the backend sees. The source is the client, or an address of the node with a port of its own where
//! the answer would not come back otherwise. With masquerading that is all there is to it, and the VIP is the backend itself. What the
//! client sends is found by a second place in the index, the *alias*, of which the record here says whether it is the right one. (A
//! second entry for the client's side was the alternative: its time, its state and its share would have to follow the first one's.)

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Key;
use crate::packet::{Ends, Ports};

/// One record. All zeros is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Rewrite {
    /// The key of the client's packets.
    pub(super) alias: Key,
    /// The epoch of the Services by which the backend was last found to answer; its upper bits do not matter.
    pub(super) checked: u32,
    /// Whether the client is the alias's lower endpoint: 1 or 0.
    client_is_low: u32,
    /// A record is one cache line: a part of the next one would be another miss for every other session.
    spare: [u64; 2],
}

impl Rewrite {
    pub(super) const NONE: Self = Self::of(Key::UNUSED, false, 0);

    /// Of what a client sends to a virtual address of its family, or to the destination itself where only the source is rewritten.
    pub(crate) fn new(client: IpAddr, vip: IpAddr, protocol: u8, ports: Ports, checked: u32) -> Self {
        let (alias, is_low) = Key::of(client, vip, protocol, ports);
        Self::of(alias, is_low, checked)
    }

    /// Of an alias of which the client is the lower endpoint, or is not.
    pub(super) const fn of(alias: Key, client_is_low: bool, checked: u32) -> Self {
        Self { alias, checked, client_is_low: client_is_low as u32, spare: [0; 2] }
    }

    /// Whether a session with this key may have it.
    pub(super) const fn is_sound(&self, key: &Key) -> bool {
        let is_like = self.alias.is_like(key) && self.alias.is_echo() == key.is_echo();
        self.alias.is_sound() && is_like && self.client_is_low <= 1
    }

    /// Who has opened the connection.
    pub(crate) fn client(&self) -> (IpAddr, u16) {
        self.alias.endpoints(self.client_is_low())[0]
    }

    /// What he has opened it to.
    pub(crate) fn vip(&self) -> (IpAddr, u16) {
        self.alias.endpoints(self.client_is_low())[1]
    }

    #[inline]
    pub(super) const fn client_is_low(&self) -> bool {
        self.client_is_low != 0
    }

    /// What the client's packets have on the wire, and what they leave with. `key` is the entry's, with whether the forward direction goes from its lower endpoint.
    pub(super) fn rewritten_forward(&self, key: (Key, bool)) -> Rewritten {
        Rewritten::new((self.alias, self.client_is_low()), key)
    }
}

/// A packet's addresses and ports, as it came and as it leaves. In words of one size, for it is copied for every packet that is
/// translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    received: Key,
    sent: Key,
    marks: u64,
}

/// Bits of [`Rewritten::marks`].
mod mark {
    /// Whether the packet comes from the key's lower endpoint.
    pub(super) const RECEIVED_FROM_LOW: u64 = 1;
    pub(super) const SENT_FROM_LOW: u64 = 2;
    pub(super) const PLAIN: u64 = 4;

    #[inline]
    pub(super) const fn of(received_from_low: bool, sent_from_low: bool) -> u64 {
        (received_from_low as u64 * RECEIVED_FROM_LOW) | (sent_from_low as u64 * SENT_FROM_LOW)
    }
}

impl Rewritten {
    /// Each with whether the packet comes from the key's lower endpoint.
    #[inline]
    pub(super) const fn new((received, received_from_low): (Key, bool), (sent, sent_from_low): (Key, bool)) -> Self {
        Self { received, sent, marks: mark::of(received_from_low, sent_from_low) }
    }

    /// As if it had come as it leaves.
    pub(super) const fn reversed(&self) -> Self {
        let (received, sent) = (self.marks & mark::RECEIVED_FROM_LOW != 0, self.marks & mark::SENT_FROM_LOW != 0);
        Self::new((self.sent, sent), (self.received, received))
    }

    /// Adds that of a packet that was found to be [plain](crate::packet::Plain), each part copied to its place. One that is made first
    /// and then moved is read in other pieces than it was just written in, for which the CPU waits.
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

    /// As it came.
    pub(crate) const fn received(&self) -> Ends {
        self.received.ends(self.marks & mark::RECEIVED_FROM_LOW != 0)
    }

    /// As it leaves.
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
