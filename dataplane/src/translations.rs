//! Translations of a burst's packets.
//!
//! ```text
//!   engine --hit over IPv4-------> [ PlainV4 ]   32 bytes: as the headers have it, and what it changes checksums by
//!          --other packets-------> [ Rewritten ] two keys
//!          --ICMP errors---------> [ TranslatedError ]
//!                                       ^
//!   Judged.translation: the place ------'   --Worker::translated--> Translated --vswitch--> the frame
//! ```
//! Nearly all packets use the first column. Its values are computed once per session where possible.

use std::net::IpAddr;
use std::num::NonZeroU32;

use crate::flow::Translation;
use crate::packet::Ends;
use crate::session::Rewritten;
use crate::wire::checksum;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Translated<'a> {
    /// New addresses and ports of a [plain](crate::packet::Plain) TCP or UDP packet over IPv4.
    PlainV4(&'a PlainV4),
    /// New addresses and ports of any other packet.
    Packet(&'a Rewritten),
    /// New addresses of an ICMP error, and the translation of the packet that it quotes.
    Error(&'a TranslatedError),
}

impl Translated<'_> {
    /// Returns addresses and ports after translation. For an ICMP error, those of the quoted packet.
    pub(crate) fn sent(&self) -> Translation {
        match self {
            Self::PlainV4(packet) => packet.sent().translation(),
            Self::Packet(packet) => packet.sent().translation(),
            Self::Error(error) => error.quoted.sent().translation(),
        }
    }

    /// Returns addresses and ports before translation. `None` for an ICMP error.
    pub(crate) fn received(&self) -> Option<Translation> {
        match self {
            Self::PlainV4(packet) => Some(packet.received().translation()),
            Self::Packet(packet) => Some(packet.received().translation()),
            Self::Error(_) => None,
        }
    }
}

/// IPv4 addresses and ports before and after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainV4 {
    /// The addresses before translation, the lower endpoint first. Rarely read.
    received: u64,
    /// The addresses after translation, the source first.
    sent: u64,
    received_ports: u32,
    sent_ports: u32,
    changes: Changes,
    received_from_low: bool,
}

impl PlainV4 {
    /// Creates the value from addresses, ports and a flag for whether the lower endpoint is the source. The upper half of a number is the
    /// lower endpoint before translation and the source after it.
    #[inline(always)]
    pub(crate) const fn new(
        (received, received_ports, received_from_low): (u64, u32, bool),
        (sent, sent_ports): (u64, u32),
        changes: Changes,
    ) -> Self {
        Self { received, sent, received_ports, sent_ports, changes, received_from_low }
    }

    /// Addresses and ports after translation.
    #[inline]
    pub(crate) const fn sent(&self) -> Ends {
        Ends::v4(self.sent, self.sent_ports)
    }

    /// Addresses and ports before translation.
    pub(crate) const fn received(&self) -> Ends {
        let turned = !self.received_from_low as u32;
        Ends::v4(self.received.rotate_left(32 * turned), self.received_ports.rotate_left(16 * turned))
    }

    /// Returns the translation's changes to checksums.
    #[inline]
    pub(crate) const fn changes(&self) -> Changes {
        self.changes
    }
}

/// A translation's changes to checksums: ~m + m' of RFC 1624, folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Change of the IPv4 header's checksum, which is also the addresses' part of the transport checksum.
    pub(crate) addresses: u16,
    /// Change of the transport checksum by addresses and ports.
    pub(crate) all: u16,
}

impl Changes {
    /// Computes the changes for IPv4 packets.
    pub(crate) fn of_v4(received: &Ends, sent: &Ends) -> Self {
        let addresses = checksum::change(&received.addresses_v4(), &sent.addresses_v4());
        let ports = checksum::change(&received.ports(), &sent.ports());
        Self { addresses: checksum::fold(addresses), all: checksum::fold(addresses + ports) }
    }

    /// Returns the changes of the opposite direction if `is_back` is set: the ones' complement negative is the complement.
    #[inline(always)]
    pub(crate) const fn turned_if(self, is_back: bool) -> Self {
        let mask = if is_back { u16::MAX } else { 0 };
        Self { addresses: self.addresses ^ mask, all: self.all ^ mask }
    }
}

/// The translation of an ICMP error about a translated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TranslatedError {
    /// The error's addresses before translation, source first.
    pub(crate) received: (IpAddr, IpAddr),
    /// The error's addresses after translation, source first.
    pub(crate) sent: (IpAddr, IpAddr),
    /// Translation of the quoted packet.
    pub(crate) quoted: Rewritten,
}

/// Bits of a position that name the list of the translation. The other bits are the index in that list, from 1.
mod column {
    pub(super) const ERROR: u32 = 1 << 31;
    pub(super) const PLAIN_V4: u32 = 1 << 30;
    pub(super) const ALL: u32 = ERROR | PLAIN_V4;
}

/// Translations of the packets since [`Translations::clear`], in a list for each kind. A position identifies one of them.
#[derive(Debug, Default)]
pub(crate) struct Translations {
    plain_v4: Vec<PlainV4>,
    packets: Vec<Rewritten>,
    errors: Vec<TranslatedError>,
}

impl Translations {
    pub(crate) fn clear(&mut self) {
        self.plain_v4.clear();
        self.packets.clear();
        self.errors.clear();
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.plain_v4.is_empty() && self.packets.is_empty() && self.errors.is_empty()
    }

    /// Adds the translation of a plain IPv4 packet. Returns its position.
    #[inline(always)]
    pub(crate) fn add_plain_v4(&mut self, packet: PlainV4) -> Option<NonZeroU32> {
        self.plain_v4.push(packet);
        place(self.plain_v4.len(), column::PLAIN_V4)
    }

    /// Calls `add`, which must append one translation of a packet. Returns its position.
    #[inline(always)]
    pub(crate) fn add_packet(&mut self, add: impl FnOnce(&mut Vec<Rewritten>)) -> Option<NonZeroU32> {
        add(&mut self.packets);
        place(self.packets.len(), 0)
    }

    /// Adds the translation of an ICMP error. Returns its position.
    pub(crate) fn add_error(&mut self, error: TranslatedError) -> Option<NonZeroU32> {
        self.errors.push(error);
        place(self.errors.len(), column::ERROR)
    }

    /// Returns the translation at a position that an `add` method returned. `None` without a position.
    #[inline]
    pub(crate) fn get(&self, place: Option<NonZeroU32>) -> Option<Translated<'_>> {
        let place = place?.get();
        let at = (place & !column::ALL) as usize - 1;
        match place & column::ALL {
            column::PLAIN_V4 => self.plain_v4.get(at).map(Translated::PlainV4),
            0 => self.packets.get(at).map(Translated::Packet),
            _ => self.errors.get(at).map(Translated::Error),
        }
    }
}

/// Returns the position of the last element of a list with `len` elements. `None` if there are too many.
#[inline(always)]
fn place(len: usize, column: u32) -> Option<NonZeroU32> {
    u32::try_from(len).ok().map(|len| len | column).and_then(NonZeroU32::new)
}
