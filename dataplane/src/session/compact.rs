//! The [`Rewrite`] of an IPv4 session, stored in the three words of the key that IPv4 does not use.
//!
//! ```text
//!   Key of IPv6     low            low            high           high          ports and kind
//!   Key of IPv4     low | high     0              0              0             ports and kind
//!   EntryKey        low | high     alias:         alias's ports  checked |     ports and kind
//!                                  low | high     | changes      marks
//! ```
//! So a packet of a translated session reads only its bucket and its entry, like any other packet. A separate record, as over IPv6, would
//! cost one more cache miss per packet.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Key;
use super::key::kind;
use super::rewrite::Rewrite;
use crate::translations::Changes;

/// The [`Rewrite`] of an IPv4 session: the addresses and ports that its translation exchanges. All zeros if the session is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct CompactRewrite {
    /// Addresses of the alias, lower endpoint first.
    addresses: u64,
    /// Ports of the alias, lower endpoint first.
    ports: u32,
    /// [`Changes`] to the checksums of the client's packets.
    changed_by_addresses: u16,
    changed_by_all: u16,
    /// Epoch of the Services that last confirmed the backend; see [`Rewrite`].
    checked: u32,
    /// Flags; see [`mark`].
    marks: u32,
}

/// Bits of [`CompactRewrite::marks`].
mod mark {
    use super::kind;

    /// Whether the client is the alias's lower endpoint.
    pub(super) const CLIENT_IS_LOW: u32 = 1;
    /// Which endpoint sends pings, with the same bits as in the alias.
    pub(super) const PINGS: u32 = 0b110;
    const _: () = assert!(PINGS as u64 == kind::PINGS);
    pub(super) const ALL: u32 = CLIENT_IS_LOW | PINGS;
}

impl CompactRewrite {
    /// Creates the compact form of a session's rewrite. `None` if the key is IPv6. The checksum changes are computed, not read from a file.
    #[expect(clippy::cast_possible_truncation, reason = "each number is taken from its bits of a word")]
    pub(super) fn new(rewrite: &Rewrite, key: &Key, forward_is_from_low: bool) -> Option<Self> {
        if key.is_v6() {
            return None;
        }
        let rewritten = rewrite.rewritten_forward((*key, forward_is_from_low));
        let Changes { addresses, all } = Changes::of_v4(&rewritten.received(), &rewritten.sent());
        let alias = &rewrite.alias;
        Some(Self {
            addresses: alias.addresses[0],
            ports: (alias.rest >> 32) as u32,
            changed_by_addresses: addresses,
            changed_by_all: all,
            checked: rewrite.checked,
            marks: alias.rest as u32 & mark::PINGS | if rewrite.client_is_low() { mark::CLIENT_IS_LOW } else { 0 },
        })
    }

    /// The value of entries that are not translated, and of all entries in old files, which keep rewrites separately.
    const NONE: Self =
        Self { addresses: 0, ports: 0, changed_by_addresses: 0, changed_by_all: 0, checked: 0, marks: 0 };

    /// Returns the whole rewrite of an entry with this key. `None` if there is none or its marks are invalid.
    pub(super) fn rewrite(&self, key: &Key) -> Option<Rewrite> {
        if *self == Self::NONE || self.marks & !mark::ALL != 0 {
            return None;
        }
        let like_key = key.rest & kind::OF_PROTOCOL | kind::USED;
        let rest = u64::from(self.ports) << 32 | like_key | u64::from(self.marks & mark::PINGS);
        let alias = Key { addresses: [self.addresses, 0, 0, 0], rest };
        Some(Rewrite::of(alias, self.client_is_low(), self.checked))
    }

    #[inline(always)]
    pub(super) const fn client_is_low(&self) -> bool {
        self.marks & mark::CLIENT_IS_LOW != 0
    }

    /// Whether the key of a plain IPv4 packet is the alias in this rewrite. `rest` is the entry's word of ports and kind.
    #[inline(always)]
    pub(super) const fn is_alias(&self, rest: u64, packet: &Key) -> bool {
        // Except for pings, the alias has the key's kind and protocol.
        let alias = (self.ports as u64) << 32 | rest & 0xffff_ffff;
        (self.addresses == packet.addresses[0]) & (alias == packet.rest)
    }

    /// Addresses and ports of the alias, source first, for a packet from the lower endpoint or from the higher one.
    #[inline(always)]
    pub(super) const fn ends(&self, from_low: bool) -> (u64, u32) {
        let turned = !from_low as u32;
        (self.addresses.rotate_left(32 * turned), self.ports.rotate_left(16 * turned))
    }

    /// Returns the changes to the checksums of packets from the client, or of packets to the client.
    #[inline(always)]
    pub(super) const fn changes(&self, is_clients: bool) -> Changes {
        Changes { addresses: self.changed_by_addresses, all: self.changed_by_all }.turned_if(!is_clients)
    }

    /// Returns the epoch of the Services that last confirmed the backend.
    #[inline(always)]
    pub(super) const fn checked(&self) -> u32 {
        self.checked
    }

    pub(super) const fn set_checked(&mut self, epoch: u32) {
        self.checked = epoch;
    }
}

/// The key of an entry. Over IPv4 it also contains the session's [`CompactRewrite`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct EntryKey {
    first: u64,
    /// The rewrite over IPv4. Over IPv6, a part of the addresses.
    compact: CompactRewrite,
    rest: u64,
}

impl EntryKey {
    /// The key of a free slot.
    pub(super) const UNUSED: Self = Self::of_words(&Key::UNUSED);

    /// Creates a key without a rewrite.
    pub(super) const fn new(key: &Key) -> Self {
        Self::of_words(key)
    }

    const fn of_words(key: &Key) -> Self {
        zerocopy::transmute!(*key)
    }

    #[inline(always)]
    const fn words(&self) -> &Key {
        zerocopy::transmute_ref!(self)
    }

    #[inline]
    pub(super) const fn key(&self) -> Key {
        let Key { addresses: [a, b, c, d], rest } = *self.words();
        // Without a branch, which would be mispredicted: words outside of an IPv4 key are masked.
        let mask = 0u64.wrapping_sub(self.words().is_v6() as u64);
        Key { addresses: [a, b & mask, c & mask, d & mask], rest }
    }

    /// Whether this is the given key, and the entry has no compact rewrite.
    #[inline(always)]
    pub(super) fn is_just(&self, key: &Key) -> bool {
        self.words() == key
    }

    /// Whether this is the given IPv4 key. The entry must be over IPv4.
    #[inline(always)]
    pub(super) const fn is_v4(&self, key: &Key) -> bool {
        (self.first == key.addresses[0]) & (self.rest == key.rest)
    }

    pub(super) const fn is_unused(&self) -> bool {
        self.words().is_unused()
    }

    /// Returns the key without its used bit. A slot written with it counts as free until the whole key is written.
    pub(super) const fn unfinished(&self) -> Self {
        Self { rest: 0, ..*self }
    }

    /// Clears the used bit, so that the slot counts as free.
    pub(super) const fn unmark(&mut self) {
        self.rest = 0;
    }

    /// Returns a packet's IPv4 addresses and ports; see [`Key::ends_v4`].
    #[inline(always)]
    pub(super) const fn ends_v4(&self, from_low: bool) -> (u64, u32) {
        self.words().ends_v4(from_low)
    }

    /// Returns the word of ports and kind.
    #[inline(always)]
    pub(super) const fn rest(&self) -> u64 {
        self.rest
    }

    /// Returns the rewrite of an IPv4 entry. Meaningless over IPv6 and for an entry that is not translated.
    #[inline(always)]
    pub(super) const fn compact(&self) -> &CompactRewrite {
        &self.compact
    }

    pub(super) const fn compact_mut(&mut self) -> &mut CompactRewrite {
        &mut self.compact
    }

    /// Stores a rewrite beside an IPv4 key.
    pub(super) fn set_compact(&mut self, compact: CompactRewrite) {
        debug_assert!(!self.words().is_v6(), "the words are not free");
        self.compact = compact;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Ends, Ports};
    use crate::session::Rewritten;
    use proptest::prelude::*;
    use std::net::IpAddr;

    #[test]
    fn a_key_with_a_rewrite_is_as_long_as_one_without() {
        assert_eq!(size_of::<EntryKey>(), size_of::<Key>());
    }

    #[test]
    fn over_ipv6_there_is_no_room() {
        let [client, vip, backend] = ["fd00::1", "fd00::2", "fd00::3"].map(|text| text.parse::<IpAddr>().unwrap());
        let rewrite = Rewrite::new(client, vip, 17, Ports::Pair(1, 2), 3);
        let (key, from_low) = Key::of(client, backend, 17, Ports::Pair(1, 4));
        assert_eq!(CompactRewrite::new(&rewrite, &key, from_low), None);
        assert_eq!(EntryKey::new(&key).key(), key, "all words are compared");
    }

    #[test]
    fn nothing_and_marks_that_do_not_exist_are_no_rewrite() {
        let key = Key::v4(1, 2, 6, 3, 4).0;
        assert_eq!(CompactRewrite::NONE.rewrite(&key), None);
        for bit in 0..32 {
            let compact = CompactRewrite { addresses: 5, marks: 1 << bit, ..CompactRewrite::NONE };
            assert_eq!(compact.rewrite(&key).is_some(), 1 << bit & mark::ALL != 0, "bit {bit}");
        }
    }

    fn ports() -> impl Strategy<Value = (u8, Ports, Ports)> {
        let pair = (any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>());
        let pairs = move |protocol: u8| {
            pair.prop_map(move |(client, vip, source, backend)| {
                (protocol, Ports::Pair(client, vip), Ports::Pair(source, backend))
            })
        };
        let echoes = (any::<u16>(), any::<u16>())
            .prop_map(|(client, source)| (1, Ports::EchoRequest(client), Ports::EchoRequest(source)));
        prop_oneof![pairs(6), pairs(17), echoes]
    }

    proptest! {
        /// Few addresses, so that equal ones and both orders of a pair occur.
        #[test]
        fn what_an_entry_keeps_is_the_whole_rewrite(
            [client, vip, source, backend] in [0u8..3, 0..3, 0..3, 0..3],
            (protocol, outside, inside) in ports(),
            checked: u32,
        ) {
            let [client, vip, source, backend] = [client, vip, source, backend].map(|host| IpAddr::from([10, 0, 0, host]));
            let rewrite = Rewrite::new(client, vip, protocol, outside, checked);
            let (key, from_low) = Key::of(source, backend, protocol, inside);
            let compact = CompactRewrite::new(&rewrite, &key, from_low).unwrap();
            prop_assert_eq!(compact.rewrite(&key), Some(rewrite));

            let mut own = EntryKey::new(&key);
            prop_assert!(own.is_just(&key));
            own.set_compact(compact);
            prop_assert_eq!((own.key(), own.is_v4(&key)), (key, true));
            prop_assert!(!own.is_just(&key), "code without translation ignores the entry");
            prop_assert!(own.unfinished().is_unused());
            own.compact_mut().set_checked(7);
            prop_assert_eq!((own.key(), own.compact().checked()), (key, 7));

            // The new addresses and ports of packets, and the change of their checksums.
            let forward = Rewritten::new((rewrite.alias, rewrite.client_is_low()), (key, from_low));
            for is_forward in [true, false] {
                let (addresses, ports) = compact.ends(rewrite.client_is_low() == is_forward);
                prop_assert_eq!(Ends::v4(addresses, ports), rewrite.alias.ends(rewrite.client_is_low() == is_forward));
            }
            let changes = Changes::of_v4(&forward.received(), &forward.sent());
            prop_assert_eq!((compact.changes(true), compact.changes(false)), (changes, changes.turned_if(true)));

            if protocol != 1 {
                let packets = [rewrite.alias, key, Key::of(client, backend, protocol, outside).0, Key::of(vip, source, protocol, inside).0];
                for packet in packets {
                    prop_assert_eq!(compact.is_alias(own.rest(), &packet), packet == rewrite.alias);
                    prop_assert_eq!(own.is_v4(&packet), packet == key);
                }
            }
        }
    }
}
