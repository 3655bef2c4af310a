//! Reads captures of both formats, one packet at a time.
//!
//! The alternative, the crate `pcap-file` 2.0.0, lost for five reasons (tests compare both readers):
//!
//! * It takes all pcapng times for nanoseconds and ignores `if_tsresol` and `if_tsoffset`. Wireshark writes microseconds.
//! * It rejects pcap packets that the snap length has cut.
//! * One option that it cannot parse fails the whole file.
//! * Its errors name no position.
//! * It reads an 8 MB buffer through `unsafe`.

use std::io::Read;

use super::pcap::{self, PcapReader};
use super::pcapng::{self, PcapngReader};
use super::source::Source;
use super::{CaptureError, CapturedPacket};
use crate::LinkType;

/// Reads a capture file packet by packet, in constant memory.
#[derive(Debug)]
pub struct CaptureReader<R> {
    source: Source<R>,
    format: Format,
    /// The bytes of the record that was read last.
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Format {
    Pcap(PcapReader),
    Pcapng(PcapngReader),
    /// Reading failed, so nothing more is read: the position in a damaged file is meaningless.
    Ended,
}

impl<R: Read> CaptureReader<R> {
    /// Reads the file's header and recognises the format. `file` is the file's name in errors.
    ///
    /// # Errors
    /// If the file is empty, is no capture, or has a damaged header.
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

    /// Returns the next packet. `None` at the end of the file and after an error.
    ///
    /// # Errors
    /// If the file is damaged or a read fails.
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

/// Describes a file that is no capture, by its first four bytes, with a remedy.
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
