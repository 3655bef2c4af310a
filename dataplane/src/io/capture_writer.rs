//! Writes packets with their verdicts as pcapng, readable by Wireshark. Source: draft-ietf-opsawg-pcapng.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::CapturedPacket;
use crate::{LinkType, PortConfig, PortId, PortKind, Verdict};

/// Exponent of the time unit, 10^-9 seconds, in which times are written.
const RESOLUTION: u8 = 9;
/// Maximum comment length in bytes. The option's length field has 16 bits, and padding must fit too.
const MAX_COMMENT_LEN: usize = 65_000;

/// A block under construction. All numbers are little-endian, as the section header declares.
#[derive(Debug)]
struct Block(Vec<u8>);

impl Block {
    fn new(kind: u32) -> Self {
        let mut block = Self(Vec::with_capacity(256));
        block.0.extend(kind.to_le_bytes());
        // The length, which `write` fills in.
        block.0.extend([0; 4]);
        block
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn option(&mut self, code: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len()).expect("option values are short or cut");
        self.0.extend(code.to_le_bytes());
        self.0.extend(len.to_le_bytes());
        self.bytes(value)
    }

    fn write<W: Write>(&mut self, write: &mut W) -> io::Result<()> {
        // opt_endofopt.
        self.u32(0);
        let len = u32::try_from(self.0.len() + 4).map_err(|_| io::Error::other("a packet of more than 4 GiB"))?;
        self.0[4..8].copy_from_slice(&len.to_le_bytes());
        self.u32(len);
        write.write_all(&self.0)
    }
}

/// Writes a capture file: the packets of a replay, each with its ingress port as interface and its verdict.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    write: W,
    /// Name and description of each port, by port id.
    ports: Vec<(String, String)>,
    /// The number of the interface block of a port and link type.
    interfaces: BTreeMap<(PortId, LinkType), u32>,
}

impl<W: Write> CaptureWriter<W> {
    /// Writes the section header. The first packet adds one interface per port, with the packet's link type. A packet of another
    /// link type adds another interface for its port.
    ///
    /// # Errors
    /// If writing fails.
    pub fn new(mut write: W, ports: &[PortConfig]) -> io::Result<Self> {
        const SECTION_HEADER: u32 = 0x0a0d_0d0a;
        const BYTE_ORDER: u32 = 0x1a2b_3c4d;
        const SHB_USERAPPL: u16 = 4;
        let mut block = Block::new(SECTION_HEADER);
        // Version 1.0, section length unknown.
        block.u32(BYTE_ORDER).u32(1).bytes(&[0xff; 8]);
        block.option(SHB_USERAPPL, b"bulkhead").write(&mut write)?;
        let ports = ports.iter().map(|port| (shortened(&port.name).to_owned(), describe(port))).collect();
        Ok(Self { write, ports, interfaces: BTreeMap::new() })
    }

    /// Writes a packet as captured, with its verdict and a comment. An empty comment is omitted.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(
        &mut self,
        packet: &CapturedPacket<'_>,
        in_port: PortId,
        verdict: Verdict,
        comment: &str,
    ) -> io::Result<()> {
        const ENHANCED_PACKET: u32 = 6;
        const OPT_COMMENT: u16 = 1;
        const EPB_FLAGS: u16 = 2;
        const EPB_VERDICT: u16 = 7;
        const INBOUND: u32 = 1;
        let interface = self.interface(in_port, packet.link)?;
        let captured = u32::try_from(packet.data.len()).map_err(|_| io::Error::other("a packet of more than 4 GiB"))?;
        let [high, low] =
            [packet.time >> 32, packet.time & 0xffff_ffff].map(|half| u32::try_from(half).expect("half of 64 bits"));
        let mut block = Block::new(ENHANCED_PACKET);
        block.u32(interface).u32(high).u32(low).u32(captured);
        block.u32(u32::try_from(packet.original_len).unwrap_or(u32::MAX)).bytes(packet.data);
        if !comment.is_empty() {
            block.option(OPT_COMMENT, shortened(comment).as_bytes());
        }
        block.option(EPB_FLAGS, &INBOUND.to_le_bytes());
        block.option(EPB_VERDICT, &verdict_option(verdict)).write(&mut self.write)
    }

    /// Flushes the stream.
    ///
    /// # Errors
    /// If writing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write.flush()
    }

    /// Flushes and returns the stream. Adds the interfaces first if no packet was written.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        if self.interfaces.is_empty() {
            self.add_ports(LinkType::Ethernet)?;
        }
        self.write.flush()?;
        Ok(self.write)
    }

    fn interface(&mut self, port: PortId, link: LinkType) -> io::Result<u32> {
        if self.interfaces.is_empty() {
            self.add_ports(link)?;
        }
        match self.interfaces.get(&(port, link)) {
            Some(&number) => Ok(number),
            None => self.add_interface(port, link),
        }
    }

    fn add_ports(&mut self, link: LinkType) -> io::Result<()> {
        for at in 0..self.ports.len() {
            let port = u16::try_from(at).map_err(|_| io::Error::other("more than 65536 ports"))?;
            self.add_interface(PortId(port), link)?;
        }
        Ok(())
    }

    fn add_interface(&mut self, port: PortId, link: LinkType) -> io::Result<u32> {
        const INTERFACE: u32 = 1;
        const IF_NAME: u16 = 2;
        const IF_DESCRIPTION: u16 = 3;
        const IF_TSRESOL: u16 = 9;
        let number = u32::try_from(self.interfaces.len()).map_err(|_| io::Error::other("too many interfaces"))?;
        let mut block = Block::new(INTERFACE);
        // Link type, 16 reserved bits, no snap length.
        block.u32(link.code().into()).u32(0);
        match self.ports.get(port.index()) {
            Some((name, description)) => {
                block.option(IF_NAME, name.as_bytes()).option(IF_DESCRIPTION, description.as_bytes());
            }
            None => {
                block.option(IF_NAME, b"unknown");
            }
        }
        block.option(IF_TSRESOL, &[RESOLUTION]).write(&mut self.write)?;
        self.interfaces.insert((port, link), number);
        Ok(number)
    }
}

/// Encodes `epb_verdict`: one octet for the kind, then the verdict in 64 bits. The kind is 2 (XDP), because the format has none for
/// other software. XDP's DROP (1) and REDIRECT (4) match the verdicts, and Wireshark can display and filter them.
fn verdict_option(verdict: Verdict) -> [u8; 9] {
    const XDP: u8 = 2;
    let action: u64 = match verdict {
        Verdict::Drop(_) => 1,
        Verdict::Forward(_) => 4,
    };
    let mut option = [XDP; 9];
    option[1..].copy_from_slice(&action.to_le_bytes());
    option
}

fn describe(port: &PortConfig) -> String {
    let kind = match port.kind {
        PortKind::Pod => "pod",
        PortKind::Uplink => "uplink",
        PortKind::Host => "node",
    };
    let addresses: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
    shortened(format!("{kind} {}", addresses.join(" ")).trim_end()).to_owned()
}

/// Cuts a text to [`MAX_COMMENT_LEN`] bytes, at a character boundary.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_COMMENT_LEN)]
}
