//! Reads captures of both formats, one packet at a time.
//!
//! The reader is our own and not `pcap-file` 2.0.0, which is held against it in tests. What ruled that one out, as
//! read in its source: pcapng times are taken for nanoseconds whatever `if_tsresol` and `if_tsoffset` say (Wireshark
//! writes microseconds); a pcap packet that was longer on the wire than the snap length, that is every packet that
//! was cut, is an error; an option that it cannot parse fails the file; errors do not tell where; and it takes 8 MB
//! for a buffer that is read through `unsafe`. The formats are small: what is needed of them is in two files.

use std::io::Read;

use super::pcap::{self, PcapReader};
use super::pcapng::{self, PcapngReader};
use super::source::Source;
use super::{CaptureError, CapturedPacket};
use crate::LinkType;

/// A capture file that is read packet by packet, in constant memory.
#[derive(Debug)]
pub struct CaptureReader<R> {
    source: Source<R>,
    format: Format,
    /// The current record.
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Format {
    Pcap(PcapReader),
    Pcapng(PcapngReader),
    /// After an error: a position in a damaged file means nothing.
    Ended,
}

impl<R: Read> CaptureReader<R> {
    /// Reads the file's header and tells the format by it. `file` is what errors call the file.
    ///
    /// # Errors
    /// When the file is empty, no capture, or damaged in its header.
    pub fn new(file: &str, read: R) -> Result<Self, CaptureError> {
        let mut source = Source::new(file, read);
        if !source.begin_record()? {
            return Err(CaptureError::Empty { file: source.file() });
        }
        let magic = source.array::<4>()?;
        let mut buffer = Vec::new();
        let format = if magic == pcapng::MAGIC {
            Format::Pcapng(PcapngReader::open(&mut source, &mut buffer)?)
        } else if let Some(flavour) = pcap::flavour(magic) {
            Format::Pcap(PcapReader::open(&mut source, flavour)?)
        } else {
            return Err(CaptureError::UnknownFormat { file: source.file(), what: what_is_it(magic) });
        };
        Ok(Self { source, format, buffer })
    }

    /// The next packet; none at the end of the file, and none after an error.
    ///
    /// # Errors
    /// When the file cannot be read further. It ends there.
    pub fn next_packet(&mut self) -> Result<Option<CapturedPacket<'_>>, CaptureError> {
        let Self { source, format, buffer } = self;
        let next = match format {
            Format::Pcap(reader) => reader.next_record(source, buffer),
            Format::Pcapng(reader) => reader.next_record(source, buffer),
            Format::Ended => Ok(None),
        };
        let record = match next {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(error) => {
                *format = Format::Ended;
                return Err(error);
            }
        };
        source.packets += 1;
        let number = source.packets;
        let Some(link) = LinkType::from_code(record.link_code) else {
            *format = Format::Ended;
            return Err(CaptureError::UnsupportedLink { file: source.file(), number, code: record.link_code });
        };
        let interface = match format {
            Format::Pcapng(reader) => reader.interface_name(record.interface),
            Format::Pcap(_) | Format::Ended => None,
        };
        let data = &buffer[record.start..record.start + record.len];
        Ok(Some(CapturedPacket {
            number,
            time: record.time,
            link,
            interface,
            direction: record.direction,
            data,
            original_len: data.len().max(record.original_len as usize),
        }))
    }
}

/// Names the usual mistakes.
fn what_is_it(magic: [u8; 4]) -> &'static str {
    match magic {
        [0x1f, 0x8b, ..] => "the file is compressed with gzip; decompress it first (`gunzip`)",
        [0x28, 0xb5, 0x2f, 0xfd] => "the file is compressed with zstd; decompress it first (`unzstd`)",
        [0xa1, 0xb2, 0xcd, 0x34] | [0x34, 0xcd, 0xb2, 0xa1] => {
            "the file is a modified pcap of old Linux kernels; convert it with `editcap -F pcapng`"
        }
        [b's', b'n', b'o', b'o'] => "the file is a Solaris snoop capture; convert it with `editcap -F pcapng`",
        _ => "the file is neither pcap nor pcapng; give a capture that tcpdump or Wireshark has written",
    }
}
