//! Reads the pcapng format: sections that consist of blocks. Source: draft-ietf-opsawg-pcapng; § numbers refer to its headings.

use std::io::Read;
use std::sync::Arc;

use super::capture_record::{MAX_PACKET_LEN, Record};
use super::source::{ByteOrder, Source};
use super::{CaptureError, Direction};

/// Type of a section header block. It reads the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Maximum length in bytes of a block that is kept: the largest packet, and as much again for options. Skipped block types may have
/// any length.
const MAX_BLOCK_LEN: u32 = 2 * 256 * 1024;
/// Maximum interfaces per section. The obsolete packet block numbers interfaces with 16 bits.
const MAX_INTERFACES: usize = 1 << 16;
/// Maximum length in bytes of an interface name; longer ones are ignored. A Kubernetes namespace and name together have at most 317.
const MAX_NAME_LEN: usize = 1024;
/// Maximum total length in bytes of the interface names of a section. Ten thousand pods with names of full length have 3.2 MB.
const MAX_NAMES_LEN: usize = 1 << 22;
/// Bytes of a block around its body: type, length, and the repeated length.
const FRAME_LEN: u32 = 12;

mod block {
    pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const OBSOLETE_PACKET: u32 = 2;
    pub(super) const SIMPLE_PACKET: u32 = 3;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

/// Option codes of interface and packet blocks.
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const PACKET_FLAGS: u16 = 2;
    pub(super) const NAME: u16 = 2;
    pub(super) const TIME_RESOLUTION: u16 = 9;
    pub(super) const TIME_OFFSET: u16 = 14;
}

/// An interface description block of the section. Packets name it by its index.
#[derive(Debug)]
struct Interface {
    link_code: u32,
    snap_len: u32,
    name: Option<Arc<str>>,
    /// `if_tsresol`: the time unit is 10 to the minus this number, or a power of 2 if the highest bit is set.
    resolution: u8,
    /// `if_tsoffset`: seconds to add to each timestamp.
    offset: i64,
}

#[derive(Debug)]
pub(super) struct PcapngReader {
    order: ByteOrder,
    interfaces: Vec<Interface>,
    /// Total length in bytes of the interfaces' names.
    names_len: usize,
    /// The last packet's time, used for simple packet blocks, which carry none.
    last_time: u64,
}

impl PcapngReader {
    /// Reads the first section header after its block type.
    pub(super) fn open<R: Read>(source: &mut Source<R>, buffer: &mut Vec<u8>) -> Result<Self, CaptureError> {
        let mut reader = Self { order: ByteOrder::Little, interfaces: Vec::new(), names_len: 0, last_time: 0 };
        reader.enter_section(source, buffer)?;
        Ok(reader)
    }

    pub(super) fn interface_name(&self, number: usize) -> Option<&Arc<str>> {
        self.interfaces.get(number)?.name.as_ref()
    }

    pub(super) fn next_record<R: Read>(
        &mut self,
        source: &mut Source<R>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, CaptureError> {
        while source.begin_record()? {
            let kind = self.order.u32(source.array()?);
            if kind == block::SECTION_HEADER {
                self.enter_section(source, buffer)?;
                continue;
            }
            let len = self.order.u32(source.array()?);
            if len < FRAME_LEN || !len.is_multiple_of(4) {
                return Err(source.corrupt("the block's length is below 12 or not a multiple of 4"));
            }
            match kind {
                block::INTERFACE | block::OBSOLETE_PACKET | block::SIMPLE_PACKET | block::ENHANCED_PACKET => {
                    self.read_body(source, buffer, len, FRAME_LEN)?;
                }
                _ => {
                    source.skip((len - FRAME_LEN).into())?;
                    self.check_trailer(source, len)?;
                }
            }
            let found = match kind {
                block::INTERFACE => self.add_interface(buffer).map(|()| None),
                block::ENHANCED_PACKET => self.enhanced_packet(buffer).map(Some),
                block::OBSOLETE_PACKET => self.obsolete_packet(buffer).map(Some),
                block::SIMPLE_PACKET => self.simple_packet(buffer).map(Some),
                _ => Ok(None),
            };
            if let Some(record) = found.map_err(|what| source.corrupt(what))? {
                self.last_time = record.time;
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Reads a section header block (§4.1) after its type. The byte order mark follows the length field, so it is read first.
    fn enter_section<R: Read>(&mut self, source: &mut Source<R>, buffer: &mut Vec<u8>) -> Result<(), CaptureError> {
        let len = source.array::<4>()?;
        self.order = match source.array::<4>()? {
            [0x1a, 0x2b, 0x3c, 0x4d] => ByteOrder::Big,
            [0x4d, 0x3c, 0x2b, 0x1a] => ByteOrder::Little,
            _ => return Err(source.corrupt("the section's byte order mark is wrong")),
        };
        self.interfaces.clear();
        self.names_len = 0;
        let len = self.order.u32(len);
        /// Frame, byte order mark, version and section length.
        const MIN_LEN: u32 = FRAME_LEN + 16;
        if len < MIN_LEN || !len.is_multiple_of(4) {
            return Err(source.corrupt("the section header's length is below 28 or not a multiple of 4"));
        }
        self.read_body(source, buffer, len, FRAME_LEN + 4)?;
        if self.order.u16_at(buffer, 0) != Some(1) {
            return Err(source.corrupt("the format's major version is not 1"));
        }
        Ok(())
    }

    /// Reads a block's body and its trailing length. `around` bytes of the block's length `len` do not belong to the body.
    fn read_body<R: Read>(
        &self,
        source: &mut Source<R>,
        buffer: &mut Vec<u8>,
        len: u32,
        around: u32,
    ) -> Result<(), CaptureError> {
        if len > MAX_BLOCK_LEN {
            return Err(source.corrupt("the block's length field exceeds 512 KiB"));
        }
        buffer.resize((len - around) as usize, 0);
        source.fill(buffer)?;
        self.check_trailer(source, len)
    }

    fn check_trailer<R: Read>(&self, source: &mut Source<R>, len: u32) -> Result<(), CaptureError> {
        let again = self.order.u32(source.array()?);
        if again == len { Ok(()) } else { Err(source.corrupt("the two length fields of the block differ")) }
    }

    /// Adds an interface description block (§4.2).
    fn add_interface(&mut self, body: &[u8]) -> Result<(), &'static str> {
        let too_short = "the interface block is too short";
        let mut interface = Interface {
            link_code: self.order.u16_at(body, 0).ok_or(too_short)?.into(),
            snap_len: self.order.u32_at(body, 4).ok_or(too_short)?,
            name: None,
            resolution: 6,
            offset: 0,
        };
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err("the section has more than 65536 interfaces");
        }
        self.each_option(&body[8..], |code, value| match (code, value) {
            (option::NAME, value) if value.len() <= MAX_NAME_LEN => {
                let name = String::from_utf8_lossy(value);
                let name = name.trim_end_matches('\0');
                interface.name = (!name.is_empty()).then(|| name.into());
            }
            (option::TIME_RESOLUTION, &[resolution, ..]) => interface.resolution = resolution,
            (option::TIME_OFFSET, value) => {
                if let Some(&bytes) = value.first_chunk::<8>() {
                    interface.offset = match self.order {
                        ByteOrder::Little => i64::from_le_bytes(bytes),
                        ByteOrder::Big => i64::from_be_bytes(bytes),
                    };
                }
            }
            _ => {}
        });
        self.names_len += interface.name.as_ref().map_or(0, |name| name.len());
        if self.names_len > MAX_NAMES_LEN {
            return Err("the names of the section's interfaces have more than 4 MiB");
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Parses an enhanced packet block (§4.3).
    fn enhanced_packet(&self, body: &[u8]) -> Result<Record, &'static str> {
        let number = self.order.u32_at(body, 0).ok_or(TOO_SHORT)? as usize;
        self.timed_packet(body, number)
    }

    /// Parses an obsolete packet block (Appendix A), which has a 16-bit interface index and a drop count.
    fn obsolete_packet(&self, body: &[u8]) -> Result<Record, &'static str> {
        let number = self.order.u16_at(body, 0).ok_or(TOO_SHORT)?.into();
        self.timed_packet(body, number)
    }

    fn timed_packet(&self, body: &[u8], number: usize) -> Result<Record, &'static str> {
        const DATA: usize = 20;
        let word = |at: usize| self.order.u32_at(body, at).ok_or(TOO_SHORT);
        let interface = self
            .interfaces
            .get(number)
            .ok_or("the packet refers to an interface that the section does not describe")?;
        let units = u64::from(word(4)?) << 32 | u64::from(word(8)?);
        let (len, original_len) = (word(12)? as usize, word(16)?);
        if len > MAX_PACKET_LEN || body.len() - DATA < len {
            return Err("the packet's length field exceeds its block");
        }
        let mut direction = None;
        let options = body.get(DATA + len.next_multiple_of(4)..).unwrap_or_default();
        self.each_option(options, |code, value| {
            if let (option::PACKET_FLAGS, Some(flags)) = (code, self.order.u32_at(value, 0)) {
                direction = direction_of(flags);
            }
        });
        Ok(Record {
            time: interface.time(units),
            link_code: interface.link_code,
            interface: number,
            direction,
            start: DATA,
            len,
            original_len,
        })
    }

    /// Parses a simple packet block (§4.4), which has no time and belongs to the first interface.
    fn simple_packet(&self, body: &[u8]) -> Result<Record, &'static str> {
        const DATA: usize = 4;
        let interface =
            self.interfaces.first().ok_or("the packet refers to an interface that the section does not describe")?;
        let original_len = self.order.u32_at(body, 0).ok_or(TOO_SHORT)?;
        let limit = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
        let len = original_len.min(limit) as usize;
        if len > MAX_PACKET_LEN || body.len() - DATA < len {
            return Err("the packet's length field exceeds its block");
        }
        Ok(Record {
            time: self.last_time,
            link_code: interface.link_code,
            interface: 0,
            direction: None,
            start: DATA,
            len,
            original_len,
        })
    }

    /// Calls `each` for every option (§3.5). Stops at a truncated option; the packet itself stays valid.
    fn each_option(&self, mut options: &[u8], mut each: impl FnMut(u16, &[u8])) {
        while let (Some(code), Some(len)) = (self.order.u16_at(options, 0), self.order.u16_at(options, 2)) {
            let len = usize::from(len);
            let Some(value) = options.get(4..4 + len).filter(|_| code != option::END) else { return };
            each(code, value);
            options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

const TOO_SHORT: &str = "the packet block is too short";

/// Returns the packet's direction from the lowest two bits of its flags (§4.3.1). `None` if they do not say.
const fn direction_of(flags: u32) -> Option<Direction> {
    match flags & 3 {
        1 => Some(Direction::Inbound),
        2 => Some(Direction::Outbound),
        _ => None,
    }
}

impl Interface {
    /// Converts a timestamp to nanoseconds since 1970, clamped to 64 bits.
    fn time(&self, units: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let nanoseconds: u128 = if self.resolution & 0x80 != 0 {
            // Below 2^94, and a shift by at most 127.
            (u128::from(units) * 1_000_000_000) >> exponent
        } else if exponent <= 9 {
            u128::from(units) * 10u128.pow(9 - exponent)
        } else {
            // The divisor exceeds every 64-bit value, so the time is 0.
            10u128.checked_pow(exponent - 9).map_or(0, |divisor| u128::from(units) / divisor)
        };
        let offset = i128::from(self.offset) * 1_000_000_000;
        let sum = i128::try_from(nanoseconds).unwrap_or(i128::MAX).saturating_add(offset);
        u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(resolution: u8, offset: i64, units: u64) -> u64 {
        Interface { link_code: 1, snap_len: 0, name: None, resolution, offset }.time(units)
    }

    #[test]
    fn times_are_counted_in_the_units_of_their_interface() {
        assert_eq!(time(6, 0, 1_500_000), 1_500_000_000);
        assert_eq!(time(9, 0, 1_500_000_000), 1_500_000_000);
        assert_eq!(time(0, 0, 7), 7_000_000_000);
        assert_eq!(time(12, 0, 1_500_000_000_000), 1_500_000_000);
        assert_eq!(time(0x80 | 10, 0, 1536), 1_500_000_000);
        assert_eq!(time(6, 10, 500_000), 10_500_000_000);
        assert_eq!(time(6, -1, 1_500_000), 500_000_000);
    }

    #[test]
    fn times_out_of_range_stop_at_its_ends() {
        assert_eq!(time(0, 0, u64::MAX), u64::MAX);
        assert_eq!(time(6, i64::MIN, 0), 0);
        assert_eq!(time(0, i64::MAX, u64::MAX), u64::MAX);
        for resolution in 0..=u8::MAX {
            let _ = time(resolution, i64::MAX, u64::MAX);
        }
        assert_eq!(time(0x7f, 0, u64::MAX), 0);
    }
}
