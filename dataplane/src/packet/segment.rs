//! Verifies packets that would change a session's state: their transport checksum, and a TCP segment's sequence numbers.
//!
//! The parsers skip both. Only one packet in ten thousand needs them, and computing a checksum costs more than judging the packet.

use bulkhead_classifier::protocol;

use super::{Bytes, Fragment, Inner, LinkType, TcpFlags, ipv4, ipv4_header, ipv6_headers, open, sctp, tcp, udp};
use crate::wire::checksum;
use crate::wire::ipv6::HEADER_LEN;

/// The result of verifying a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// The checksum is correct, or the protocol has none.
    Right,
    /// The checksum is wrong. The receiver discards the packet.
    Wrong,
    /// The checksum cannot be verified: a fragment, a truncated capture, or a packet of several frames.
    Unknown,
}

/// The sequence numbers of a TCP segment (RFC 9293 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeqSpan {
    pub(crate) seq: u32,
    /// The sequence number after the segment's last. SYN and FIN take one each.
    pub(crate) end: u32,
    /// The acknowledgement number. `None` without ACK.
    pub(crate) ack: Option<u32>,
}

/// The data behind a UDP or TCP header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data<'a> {
    pub(crate) bytes: &'a [u8],
    /// Whether `bytes` are all of the data. False if the capture is truncated, or if the frame is the first one of a longer packet.
    pub(crate) is_whole: bool,
    /// Sequence number and flags of a TCP segment. `None` for UDP.
    pub(crate) segment: Option<(u32, TcpFlags)>,
}

/// The transport header and payload of an unfragmented packet. A capture may have truncated it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    protocol: u8,
    bytes: &'a [u8],
    /// Length of the payload in bytes by the IP header. A capture may have less.
    len: usize,
    /// The sum over source and destination address, a part of the transport checksum.
    addresses: u64,
    is_v4: bool,
}

/// A fragment of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// The fragment's place in its datagram.
    pub(crate) part: Fragment,
    /// The fragment's bytes of the IP payload.
    pub(crate) bytes: &'a [u8],
    /// Whether `bytes` are the whole fragment. False if the capture is truncated.
    pub(crate) is_whole: bool,
}

impl<'a> Piece<'a> {
    /// Returns a frame's fragment. `None` if the frame is not IP, is a whole datagram, or has an invalid header.
    pub(crate) fn of(link: LinkType, frame: &'a [u8], wire_len: usize) -> Option<Self> {
        let (payload, part) = contents(link, frame, wire_len)?;
        Some(Self { part: part?, bytes: payload.bytes, is_whole: payload.bytes.len() == payload.len })
    }
}

/// Returns the bytes after a frame's IP headers, and their part of the datagram, which is `None` for a whole one. `None` if the frame is not
/// IP or has an invalid header.
fn contents(link: LinkType, frame: &[u8], wire_len: usize) -> Option<(Payload<'_>, Option<Fragment>)> {
    match open(link, frame, wire_len)?.0 {
        Inner::V4(packet) => {
            let header = ipv4_header::header(packet.seen)?;
            let len = header.total_len.checked_sub(header.header_len)?;
            let bytes = clip(packet.seen.get(header.header_len..)?, len);
            let part = ipv4::fragment(&header, Bytes { seen: bytes, wire_len: len }).ok()?;
            let addresses = checksum::sum(packet.seen.get(12..20)?);
            Some((Payload { protocol: header.protocol, bytes, len, addresses, is_v4: true }, part))
        }
        Inner::V6(packet) => {
            let header = ipv6_headers::header(packet.seen)?;
            let (bytes, wire_len) = (packet.seen.get(HEADER_LEN..)?, header.payload_len);
            let rest = Bytes { seen: clip(bytes, wire_len), wire_len };
            let chain = ipv6_headers::walk(header.next_header, rest).ok()?;
            let Bytes { seen, wire_len } = chain.payload;
            let addresses = checksum::sum(packet.seen.get(8..HEADER_LEN)?);
            let payload = Payload { protocol: chain.protocol, bytes: seen, len: wire_len, addresses, is_v4: false };
            Some((payload, chain.fragment))
        }
    }
}

impl<'a> Payload<'a> {
    /// Returns a frame's payload. `None` if the frame is not IP, is a fragment, or has an invalid header.
    pub(crate) fn of(link: LinkType, frame: &'a [u8], wire_len: usize) -> Option<Self> {
        contents(link, frame, wire_len).filter(|(_, part)| part.is_none()).map(|(payload, _)| payload)
    }

    /// Returns the payload of a reassembled UDP datagram for [`Payload::data`]. Its checksum is not known.
    pub(crate) const fn of_datagram(bytes: &'a [u8]) -> Self {
        Self { protocol: protocol::UDP, bytes, len: bytes.len(), addresses: 0, is_v4: true }
    }

    /// Verifies the packet's transport checksum.
    pub(crate) fn checksum(&self) -> Checksum {
        if self.bytes.len() < self.len {
            return Checksum::Unknown;
        }
        let is_right = match self.protocol {
            protocol::TCP => self.sums_up(self.bytes),
            protocol::UDP => match self.udp() {
                // 0 means no checksum (RFC 768). Over IPv6 it is mandatory (RFC 8200 §8.1).
                Some((_, [0, 0])) => self.is_v4,
                Some((datagram, _)) => self.sums_up(datagram),
                None => false,
            },
            protocol::SCTP => self.has_crc(),
            _ => true,
        };
        if is_right { Checksum::Right } else { Checksum::Wrong }
    }

    /// Returns a TCP segment's sequence numbers. `None` for other protocols and truncated headers.
    pub(crate) fn segment(&self) -> Option<SeqSpan> {
        let header = self.bytes.first_chunk::<{ tcp::MIN_HEADER_LEN }>().filter(|_| self.protocol == protocol::TCP)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (seq, flags) = (word(4), TcpFlags(header[13]));
        let data = self.len.checked_sub(usize::from(header[12] >> 4) * 4)?;
        let marks = u32::from(flags.has(TcpFlags::SYN)) + u32::from(flags.has(TcpFlags::FIN));
        let end = seq.wrapping_add(u32::try_from(data).ok()?).wrapping_add(marks);
        Some(SeqSpan { seq, end, ack: flags.has(TcpFlags::ACK).then_some(word(8)) })
    }

    /// Returns the data behind a UDP or TCP header. `None` for other protocols, truncated headers and invalid header or UDP lengths.
    pub(crate) fn data(&self) -> Option<Data<'a>> {
        match self.protocol {
            protocol::UDP => {
                let header = self.bytes.first_chunk::<{ udp::HEADER_LEN }>()?;
                let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
                let bytes = clip(self.bytes, len).get(udp::HEADER_LEN..)?;
                Some(Data { bytes, is_whole: self.bytes.len() >= len, segment: None })
            }
            protocol::TCP => {
                let header = self.bytes.first_chunk::<{ tcp::MIN_HEADER_LEN }>()?;
                let bytes = self.bytes.get(usize::from(header[12] >> 4) * 4..)?;
                let seq = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                Some(Data { bytes, is_whole: self.bytes.len() >= self.len, segment: Some((seq, TcpFlags(header[13]))) })
            }
            _ => None,
        }
    }

    /// Returns a datagram, cut to its own length, and its checksum field. `None` if it is incomplete or its length is invalid.
    fn udp(&self) -> Option<(&'a [u8], [u8; 2])> {
        let header = self.bytes.first_chunk::<{ udp::HEADER_LEN }>()?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        Some((self.bytes.get(..len).filter(|_| len >= udp::HEADER_LEN)?, [header[6], header[7]]))
    }

    fn sums_up(&self, bytes: &[u8]) -> bool {
        let pseudo = self.addresses + u64::from(self.protocol) + bytes.len() as u64;
        checksum::fold(pseudo + checksum::sum(bytes)) == u16::MAX
    }

    fn has_crc(&self) -> bool {
        const AT: std::ops::Range<usize> = 8..12;
        let Some(head) = self.bytes.first_chunk::<{ sctp::HEADER_LEN }>() else { return false };
        let found = [head[8], head[9], head[10], head[11]];
        checksum::crc32c_of(&[&head[..AT.start], &[0; 4], &self.bytes[AT.end..]]).to_le_bytes() == found
    }
}

fn clip(bytes: &[u8], len: usize) -> &[u8] {
    &bytes[..len.min(bytes.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Probe, ProbeKind};
    use crate::testbed::{fragments_v4, fragments_v6, ip};

    fn packets() -> impl Iterator<Item = Vec<u8>> {
        [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")].into_iter().flat_map(|(src, dst)| {
            [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp].into_iter().flat_map(move |kind| {
                let probe = Probe { src: ip(src), dst: ip(dst), kind, sport: 40_000, dport: 80 };
                [probe.request().unwrap(), probe.reply().unwrap()]
            })
        })
    }

    fn checksum_of(packet: &[u8]) -> Checksum {
        Payload::of(LinkType::Raw, packet, packet.len()).unwrap().checksum()
    }

    #[test]
    fn a_right_checksum_is_right_and_any_changed_bit_behind_the_ip_header_makes_it_wrong() {
        for packet in packets() {
            assert_eq!(checksum_of(&packet), Checksum::Right);
            let start = if packet[0] >> 4 == 6 { 40 } else { 20 };
            for at in start..packet.len() {
                let mut wrong = packet.clone();
                wrong[at] ^= 0x10;
                assert_eq!(checksum_of(&wrong), Checksum::Wrong, "byte {at}");
            }
        }
    }

    #[test]
    fn the_addresses_belong_to_the_sum_of_tcp_and_udp() {
        for packet in packets().filter(|packet| packet[if packet[0] >> 4 == 6 { 6 } else { 9 }] != protocol::SCTP) {
            let mut wrong = packet.clone();
            wrong[if packet[0] >> 4 == 6 { 30 } else { 15 }] ^= 1;
            assert_eq!(checksum_of(&wrong), Checksum::Wrong);
        }
    }

    #[test]
    fn padding_behind_the_packet_does_not_count() {
        for packet in packets() {
            assert_eq!(checksum_of(&[&packet[..], &[7; 9]].concat()), Checksum::Right);
        }
    }

    #[test]
    fn what_is_not_all_there_is_unknown() {
        for packet in packets() {
            let cut = &packet[..packet.len() - 1];
            assert_eq!(Payload::of(LinkType::Raw, cut, packet.len()).unwrap().checksum(), Checksum::Unknown);
        }
        let long = [packets().next().unwrap(), vec![0; 40]].concat();
        for part in fragments_v4(&long, 1, 24) {
            assert!(Payload::of(LinkType::Raw, &part, part.len()).is_none());
        }
    }

    #[test]
    fn a_checksum_behind_ipv6_extension_headers_is_verified() {
        for packet in packets().filter(|packet| packet[0] >> 4 == 6) {
            let mut extended = [&packet[..40], &[packet[6], 0, 1, 4, 0, 0, 0, 0], &packet[40..]].concat();
            (extended[5], extended[6]) = (extended[5] + 8, 60);
            assert_eq!(checksum_of(&extended), Checksum::Right);
            *extended.last_mut().unwrap() ^= 1;
            assert_eq!(checksum_of(&extended), Checksum::Wrong);
        }
    }

    #[test]
    fn a_fragment_is_a_piece_and_a_whole_datagram_is_none() {
        for packet in packets() {
            assert!(Piece::of(LinkType::Raw, &packet, packet.len()).is_none());
            let header = if packet[0] >> 4 == 6 { 40 } else { 20 };
            let mut long = [&packet[..], &[7; 43]].concat();
            let len = u8::try_from(long.len() - if header == 40 { 40 } else { 0 }).unwrap();
            long[if header == 40 { 5 } else { 3 }] = len;
            let fragments = if header == 40 { fragments_v6(&long, 1, 24) } else { fragments_v4(&long, 1, 24) };
            let mut found = Vec::new();
            for fragment in &fragments {
                assert!(Payload::of(LinkType::Raw, fragment, fragment.len()).is_none());
                let piece = Piece::of(LinkType::Raw, fragment, fragment.len()).unwrap();
                assert_eq!((piece.part.start as usize, piece.is_whole), (found.len(), true));
                found.extend_from_slice(piece.bytes);
                let cut = Piece::of(LinkType::Raw, &fragment[..fragment.len() - 1], fragment.len()).unwrap();
                assert!(!cut.is_whole);
            }
            assert_eq!(found, long[header..]);
        }
    }

    #[test]
    fn udp_without_a_checksum_is_right_over_ipv4_only() {
        for (src, dst, expected) in [("10.0.0.1", "10.0.0.2", Checksum::Right), ("fd00::1", "fd00::2", Checksum::Wrong)]
        {
            let probe = Probe { src: ip(src), dst: ip(dst), kind: ProbeKind::Udp, sport: 1, dport: 2 };
            let mut packet = probe.request().unwrap();
            let at = packet.len() - 2;
            packet[at..].fill(0);
            assert_eq!(checksum_of(&packet), expected);
        }
    }

    #[test]
    fn a_segment_ends_behind_its_data_and_its_marks() {
        let probe = Probe { src: ip("10.0.0.1"), dst: ip("10.0.0.2"), kind: ProbeKind::Tcp, sport: 1, dport: 2 };
        let segment = |packet: &[u8]| Payload::of(LinkType::Raw, packet, packet.len()).unwrap().segment();
        assert_eq!(segment(&probe.request().unwrap()), Some(SeqSpan { seq: 1, end: 2, ack: None }));
        assert_eq!(segment(&probe.reply().unwrap()), Some(SeqSpan { seq: 1, end: 2, ack: Some(2) }));
        let mut data = [probe.request().unwrap(), vec![0; 5]].concat();
        data[3] += 5;
        data[33] = TcpFlags::ACK | TcpFlags::FIN;
        assert_eq!(segment(&data), Some(SeqSpan { seq: 1, end: 7, ack: Some(0) }));
        let udp = Probe { kind: ProbeKind::Udp, ..probe }.request().unwrap();
        assert_eq!(segment(&udp), None);
    }
}
