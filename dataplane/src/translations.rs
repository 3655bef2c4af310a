//! What is written into the packets of a burst that are translated, and where.
//!
//! ```text
//!   engine --hit over IPv4-------> [ PlainV4 ]   32 bytes: as the headers have it, and what it changes checksums by
//!          --other packets-------> [ Rewritten ] two keys
//!          --ICMP errors---------> [ TranslatedError ]
//!                                       ^
//!   Judged.translation: the place ------'   --Worker::translated--> Translated --vswitch--> the frame
//! ```
//! Nearly all packets are the first kind. What it needs is worked out once per session and not once per packet, as far as possible.

use std::net::IpAddr;
use std::num::NonZeroU32;

use crate::flow::Translation;
use crate::packet::Ends;
use crate::session::Rewritten;
use crate::wire::checksum;

/// What is written into a packet of a connection to a Service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Translated<'a> {
    /// Other addresses and ports for a TCP or UDP packet over IPv4 that was parsed and found to be [plain](crate::packet::Plain).
    PlainV4(&'a PlainV4),
    /// Other addresses and ports.
    Packet(&'a Rewritten),
    /// An ICMP error about one.
    Error(&'a TranslatedError),
}

impl Translated<'_> {
    /// The addresses and ports that the packet leaves with, or the one that it quotes.
    pub(crate) fn sent(&self) -> Translation {
        match self {
            Self::PlainV4(packet) => packet.sent().translation(),
            Self::Packet(packet) => packet.sent().translation(),
            Self::Error(error) => error.quoted.sent().translation(),
        }
    }

    /// The addresses and ports that the packet came with; none for an error.
    pub(crate) fn received(&self) -> Option<Translation> {
        match self {
            Self::PlainV4(packet) => Some(packet.received().translation()),
            Self::Packet(packet) => Some(packet.received().translation()),
            Self::Error(_) => None,
        }
    }
}

/// A packet's IPv4 addresses and ports, as it came and as it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainV4 {
    /// The lower endpoint first, as few ask for them.
    received: u64,
    /// The source first.
    sent: u64,
    received_ports: u32,
    sent_ports: u32,
    changes: Changes,
    received_from_low: bool,
}

impl PlainV4 {
    /// Addresses and ports: of what was received with the lower endpoint in the upper half, and whether that is the source; of what is sent
    /// with the source there.
    #[inline(always)]
    pub(crate) const fn new(
        (received, received_ports, received_from_low): (u64, u32, bool),
        (sent, sent_ports): (u64, u32),
        changes: Changes,
    ) -> Self {
        Self { received, sent, received_ports, sent_ports, changes, received_from_low }
    }

    /// As it leaves.
    #[inline]
    pub(crate) const fn sent(&self) -> Ends {
        Ends::v4(self.sent, self.sent_ports)
    }

    /// As it came.
    pub(crate) const fn received(&self) -> Ends {
        let turned = !self.received_from_low as u32;
        Ends::v4(self.received.rotate_left(32 * turned), self.received_ports.rotate_left(16 * turned))
    }

    /// What the way from the first to the second changes checksums by.
    #[inline]
    pub(crate) const fn changes(&self) -> Changes {
        self.changes
    }
}

/// What other addresses and ports change checksums by: ~m + m' of RFC 1624, folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// That of the IPv4 header, and the part of the addresses in that of a transport header.
    pub(crate) addresses: u16,
    /// That of a transport header.
    pub(crate) all: u16,
}

impl Changes {
    /// Of packets over IPv4.
    pub(crate) fn of_v4(received: &Ends, sent: &Ends) -> Self {
        let addresses = checksum::change(&received.addresses_v4(), &sent.addresses_v4());
        let ports = checksum::change(&received.ports(), &sent.ports());
        Self { addresses: checksum::fold(addresses), all: checksum::fold(addresses + ports) }
    }

    /// The way back, if it is asked for: the negative, which in ones' complement is the complement.
    #[inline(always)]
    pub(crate) const fn turned_if(self, is_back: bool) -> Self {
        let mask = if is_back { u16::MAX } else { 0 };
        Self { addresses: self.addresses ^ mask, all: self.all ^ mask }
    }
}

/// What is written into an ICMP error about a packet of a connection to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TranslatedError {
    /// Its addresses as it came, source first.
    pub(crate) received: (IpAddr, IpAddr),
    /// Those that it leaves with.
    pub(crate) sent: (IpAddr, IpAddr),
    /// Those of the packet that it quotes.
    pub(crate) quoted: Rewritten,
}

/// In a place, the column that it is in; the other bits count from 1.
mod column {
    pub(super) const ERROR: u32 = 1 << 31;
    pub(super) const PLAIN_V4: u32 = 1 << 30;
    pub(super) const ALL: u32 = ERROR | PLAIN_V4;
}

/// All that is written into packets since [`Translations::clear`].
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

    /// Adds what a plain packet over IPv4 gets. Returns its place.
    #[inline(always)]
    pub(crate) fn add_plain_v4(&mut self, packet: PlainV4) -> Option<NonZeroU32> {
        self.plain_v4.push(packet);
        place(self.plain_v4.len(), column::PLAIN_V4)
    }

    /// Adds what any other packet gets, as `add` does. Returns its place.
    #[inline(always)]
    pub(crate) fn add_packet(&mut self, add: impl FnOnce(&mut Vec<Rewritten>)) -> Option<NonZeroU32> {
        add(&mut self.packets);
        place(self.packets.len(), 0)
    }

    /// Adds what an ICMP error gets. Returns its place.
    pub(crate) fn add_error(&mut self, error: TranslatedError) -> Option<NonZeroU32> {
        self.errors.push(error);
        place(self.errors.len(), column::ERROR)
    }

    /// What is at a place.
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

/// The place of the last one of so many in a column.
#[inline(always)]
fn place(len: usize, column: u32) -> Option<NonZeroU32> {
    u32::try_from(len).ok().map(|len| len | column).and_then(NonZeroU32::new)
}
