//! Reads the classic pcap format: a file header, then packet records. Source: draft-ietf-opsawg-pcap.

use std::io::Read;

use super::CaptureError;
use super::capture_record::{MAX_PACKET_LEN, Record};
use super::source::{ByteOrder, Source};

/// Length of the file header in bytes, without the magic number.
const HEADER_LEN: usize = 20;
const RECORD_HEADER_LEN: usize = 16;

/// Byte order and time unit of a file, which the magic number encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flavour {
    order: ByteOrder,
    /// Nanoseconds per unit of a timestamp's fraction: 1 or 1,000.
    unit: u64,
}

/// Returns the flavour that the magic number encodes. `None` if the file is no pcap.
pub(super) const fn flavour(magic: [u8; 4]) -> Option<Flavour> {
    let (order, unit) = match magic {
        [0xa1, 0xb2, 0xc3, 0xd4] => (ByteOrder::Big, 1000),
        [0xd4, 0xc3, 0xb2, 0xa1] => (ByteOrder::Little, 1000),
        [0xa1, 0xb2, 0x3c, 0x4d] => (ByteOrder::Big, 1),
        [0x4d, 0x3c, 0xb2, 0xa1] => (ByteOrder::Little, 1),
        _ => return None,
    };
    Some(Flavour { order, unit })
}

#[derive(Debug)]
pub(super) struct PcapReader {
    flavour: Flavour,
    link_code: u32,
}

impl PcapReader {
    pub(super) fn open<R: Read>(source: &mut Source<R>, flavour: Flavour) -> Result<Self, CaptureError> {
        let header = source.array::<HEADER_LEN>()?;
        if flavour.order.u16([header[0], header[1]]) != 2 {
            return Err(source.corrupt("the format's major version is not 2"));
        }
        // The upper bits describe the frame check sequence, which this reader ignores.
        let link = flavour.order.u32([header[16], header[17], header[18], header[19]]);
        Ok(Self { flavour, link_code: link & 0xffff })
    }

    pub(super) fn next_record<R: Read>(
        &self,
        source: &mut Source<R>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, CaptureError> {
        if !source.begin_record()? {
            return Ok(None);
        }
        let header = source.array::<RECORD_HEADER_LEN>()?;
        let word = |at: usize| self.flavour.order.u32([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = word(8) as usize;
        if len > MAX_PACKET_LEN {
            return Err(source.corrupt("the packet's length field exceeds 256 KiB"));
        }
        buffer.resize(len, 0);
        source.fill(buffer)?;
        // 2^32 s and 2^32 fractions are below 2^64 ns.
        let time = u64::from(word(0)) * 1_000_000_000 + u64::from(word(4)) * self.flavour.unit;
        Ok(Some(Record {
            time,
            link_code: self.link_code,
            interface: 0,
            direction: None,
            start: 0,
            len,
            original_len: word(12),
        }))
    }
}
