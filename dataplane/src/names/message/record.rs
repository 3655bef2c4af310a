//! Resource records (RFC 1035 section 4.1.3).

use std::net::IpAddr;

use super::Fault;
use super::labels::name_end;

/// Length in bytes of a record's type, class, TTL and RDLENGTH (RFC 1035 section 4.1.3).
const RECORD_FIELDS_LEN: usize = 10;

/// The class of the Internet (RFC 1035 section 3.2.4).
pub(super) const CLASS_IN: u16 = 1;
pub(super) const TYPE_A: u16 = 1;
pub(super) const TYPE_CNAME: u16 = 5;
/// RFC 3596 section 2.1.
pub(super) const TYPE_AAAA: u16 = 28;
/// The question type for records of every type: `*` in RFC 1035 section 3.2.3.
pub(super) const TYPE_ANY: u16 = 255;

/// A walk over the records of an answer section.
pub(super) struct Records<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) position: usize,
    /// Records that the walk has not read yet.
    pub(super) left: u16,
    /// Whether an incomplete record ends the section instead of being a fault.
    pub(super) may_be_cut: bool,
}

impl<'a> Records<'a> {
    /// Returns the next record. `None` after the last.
    pub(super) fn next_record(&mut self) -> Result<Option<Record<'a>>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        match Record::parse(self.bytes, self.position) {
            Ok(record) => {
                self.left -= 1;
                self.position = record.data_start + record.data.len();
                Ok(Some(record))
            }
            Err(Fault::Truncated) if self.may_be_cut => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Returns the next A or AAAA record of class IN. `None` after the last.
    pub(super) fn next_address(&mut self) -> Result<Option<Record<'a>>, Fault> {
        while let Some(record) = self.next_record()? {
            if record.class == CLASS_IN && matches!(record.kind, TYPE_A | TYPE_AAAA) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

/// A resource record (RFC 1035 section 4.1.3).
pub(super) struct Record<'a> {
    /// Offset of the owner's name. Its pointers are not checked.
    pub(super) owner: usize,
    pub(super) kind: u16,
    pub(super) class: u16,
    /// In seconds.
    pub(super) ttl: u32,
    data_start: usize,
    data: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses the record at offset `owner`. [`Fault::Truncated`] if the bytes end before the record.
    fn parse(bytes: &'a [u8], owner: usize) -> Result<Self, Fault> {
        let owner_end = name_end(bytes, owner)?;
        let fields =
            bytes.get(owner_end..).and_then(<[u8]>::first_chunk::<RECORD_FIELDS_LEN>).ok_or(Fault::Truncated)?;
        let data_start = owner_end + RECORD_FIELDS_LEN;
        let data_len = usize::from(u16::from_be_bytes([fields[8], fields[9]]));
        let ttl = u32::from_be_bytes([fields[4], fields[5], fields[6], fields[7]]);
        Ok(Self {
            owner,
            kind: u16::from_be_bytes([fields[0], fields[1]]),
            class: u16::from_be_bytes([fields[2], fields[3]]),
            ttl: if ttl >> 31 == 0 { ttl } else { 0 },
            data_start,
            data: bytes.get(data_start..data_start + data_len).ok_or(Fault::Truncated)?,
        })
    }

    /// Returns the address in an A or AAAA record. `None` if the RDATA does not have the length of an address.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.kind {
            TYPE_A => <[u8; 4]>::try_from(self.data).ok().map(IpAddr::from),
            TYPE_AAAA => <[u8; 16]>::try_from(self.data).ok().map(IpAddr::from),
            _ => None,
        }
    }

    /// Returns the offset of the name in a CNAME record. [`Fault::MalformedName`] unless the name fills the RDATA.
    pub(super) fn target(&self, bytes: &[u8]) -> Result<usize, Fault> {
        let data_end = self.data_start + self.data.len();
        let is_filled = name_end(bytes, self.data_start) == Ok(data_end);
        if is_filled { Ok(self.data_start) } else { Err(Fault::MalformedName) }
    }
}
