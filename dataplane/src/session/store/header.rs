//! The header of a worker's file, and the offsets of its parts.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Entry, Links, Rewrite};
use crate::DropReason;
use crate::wire::checksum::crc32c;

/// Version of the file format. Increase it with any change of the layout or meaning.
const VERSION: u32 = 3;
/// The oldest supported version, which keeps all rewrites outside of entries.
const OLDEST: u32 = 2;
const MAGIC: [u8; 8] = *b"bulksess";
/// The faults of a file that another version wrote.
const OTHER_VERSION: &str = "its format version is not supported";
const OTHER_PROGRAM: &str = "another program wrote it";

/// Offset of the entries: one page, so that they can be mapped.
pub(super) const START: u64 = 4096;

/// The header of a worker's session file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 8],
    /// Size of an entry and of its links, and the number of drop reasons. Other values mean another program.
    pub(super) entry: u64,
    links: u64,
    pub(super) reasons: u64,
    /// Number of entries for which the file has places.
    pub(super) slots: u64,
    /// The kernel's boot id when the file was written.
    pub(super) boot: [u8; 16],
    pub(super) version: u32,
    /// CRC-32C of the header's bytes before this field.
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

    /// Returns the offset of the links in the file, in bytes.
    pub(super) fn links_start(&self) -> u64 {
        aligned(START.saturating_add(self.slots.saturating_mul(size_of::<Entry>() as u64)))
    }

    /// Returns the offset of the rewrites in the file, in bytes.
    pub(super) fn rewrites_start(&self) -> u64 {
        aligned(self.links_start().saturating_add(self.slots.saturating_mul(size_of::<Links>() as u64)))
    }

    pub(super) fn len(&self) -> u64 {
        self.rewrites_start().saturating_add(self.slots.saturating_mul(size_of::<Rewrite>() as u64))
    }

    /// Returns why a file with this header is rejected, or `None` if it is valid.
    pub(super) fn fault(&self, boot: [u8; 16], len: u64) -> Option<&'static str> {
        let own = Self::new(0, boot);
        if self.magic != MAGIC {
            Some("it is not a session table")
        } else if !(OLDEST..=VERSION).contains(&self.version) {
            Some(OTHER_VERSION)
        } else if self.check != self.sum() {
            Some("its header is damaged")
        } else if (self.entry, self.links, self.reasons) != (own.entry, own.links, own.reasons) {
            Some(OTHER_PROGRAM)
        } else if self.boot != boot {
            Some("it was written before the last boot")
        } else if self.len() != len {
            Some("its length differs from its header")
        } else {
            None
        }
    }
    /// Whether another version wrote the file, in a format that this one does not read.
    pub(super) fn is_of_another_version(&self) -> bool {
        self.fault(self.boot, self.len()).is_some_and(|fault| [OTHER_VERSION, OTHER_PROGRAM].contains(&fault))
    }
}

/// Returns the first page boundary at or after an offset in bytes. Foreign headers have offsets up to the largest number.
const fn aligned(offset: u64) -> u64 {
    offset.saturating_add(START - 1) / START * START
}
