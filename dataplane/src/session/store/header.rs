//! The header of a worker's file, and where its parts lie.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Entry, Links, Rewrite};
use crate::DropReason;
use crate::wire::checksum::crc32c;

/// Changes with the meaning of any byte behind it.
const VERSION: u32 = 3;
/// What an earlier program has left is taken over as well: all rewrites lie beside their entries there.
const OLDEST: u32 = 2;
const MAGIC: [u8; 8] = *b"bulksess";

/// Where the entries begin: a page, so that they can be mapped.
pub(super) const START: u64 = 4096;

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 8],
    /// Bytes of an entry and of its links, and how many reasons of refusals there are: a program that has others is another one.
    pub(super) entry: u64,
    links: u64,
    pub(super) reasons: u64,
    /// Entries that the file has room for.
    pub(super) slots: u64,
    /// The kernel's number for the time since the machine was started.
    pub(super) boot: [u8; 16],
    pub(super) version: u32,
    /// CRC-32C of what is before it.
    pub(super) check: u32,
}

impl Header {
    pub(super) fn new(slots: usize, boot: [u8; 16]) -> Self {
        let mut header = Self {
            magic: MAGIC,
            entry: size_of::<Entry>() as u64,
            links: size_of::<Links>() as u64,
            reasons: DropReason::COUNT as u64,
            slots: slots as u64,
            boot,
            version: VERSION,
            check: 0,
        };
        header.check = header.sum();
        header
    }

    pub(super) fn sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..std::mem::offset_of!(Self, check)])
    }

    /// Where the links begin.
    pub(super) fn links_start(&self) -> u64 {
        (START + self.slots.saturating_mul(size_of::<Entry>() as u64)).next_multiple_of(START)
    }

    /// Where the rewrites begin.
    pub(super) fn rewrites_start(&self) -> u64 {
        let end = self.links_start().saturating_add(self.slots.saturating_mul(size_of::<Links>() as u64));
        end.saturating_add(START - 1) / START * START
    }

    pub(super) fn len(&self) -> u64 {
        self.rewrites_start().saturating_add(self.slots.saturating_mul(size_of::<Rewrite>() as u64))
    }

    /// Why a file with this header is not adopted.
    pub(super) fn fault(&self, boot: [u8; 16], len: u64) -> Option<&'static str> {
        let own = Self::new(0, boot);
        if self.magic != MAGIC {
            Some("it is not a session table")
        } else if !(OLDEST..=VERSION).contains(&self.version) {
            Some("its format version is not supported")
        } else if self.check != self.sum() {
            Some("its header is damaged")
        } else if (self.entry, self.links, self.reasons) != (own.entry, own.links, own.reasons) {
            Some("another program wrote it")
        } else if self.boot != boot {
            Some("it was written before the last boot")
        } else if self.len() != len {
            Some("its length differs from its header")
        } else {
            None
        }
    }
}
