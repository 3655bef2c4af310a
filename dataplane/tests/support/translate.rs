//! Builds TCP and UDP frames, and translates them as a reference that computes all checksums from scratch.

use std::net::IpAddr;

use bulkhead_dataplane::Flow;
use bulkhead_dataplane::io::Translation;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const ETHERNET: usize = 14;

/// A frame of a flow with this payload and correct checksums. A TCP frame is an ACK.
pub(crate) fn frame(flow: &Flow, mac_addresses: &[u8; 12], payload: &[u8]) -> Vec<u8> {
    let ports = [flow.sport, flow.dport].map(u16::to_be_bytes).as_flattened().to_vec();
    let rest = if flow.protocol == UDP {
        [&(8 + payload.len() as u16).to_be_bytes()[..], &[0xff, 0xff]].concat()
    } else {
        vec![0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0x40, 0, 0, 0, 0, 0]
    };
    let segment = [&ports[..], &rest, payload].concat();
    let len = segment.len() as u16;
    let header = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let head = [&[0x45, 0][..], &(20 + len).to_be_bytes(), &[0x12, 0x34, 0x40, 0, 64, flow.protocol, 0, 0]];
            [&[0x08, 0x00][..], &head.concat(), &src.octets(), &dst.octets()].concat()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let head = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[flow.protocol, 64]];
            [&[0x86, 0xdd][..], &head.concat(), &src.octets(), &dst.octets()].concat()
        }
        both => panic!("{both:?}"),
    };
    let frame = [&mac_addresses[..], &header, &segment].concat();
    let Flow { src, dst, sport, dport, .. } = *flow;
    translated(&frame, &Translation { src, dst, sport, dport })
}

/// The offset of the transport checksum in a frame.
pub(crate) fn checksum_at(frame: &[u8]) -> usize {
    let (transport, protocol, _) = extent(frame);
    transport + if protocol == UDP { 6 } else { 16 }
}

/// The offset of the transport header, the protocol, and the offset of the packet's end.
fn extent(frame: &[u8]) -> (usize, u8, usize) {
    let number = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    match frame[12..14] {
        [0x08, 0x00] => (ETHERNET + 20, frame[ETHERNET + 9], ETHERNET + number(ETHERNET + 2)),
        _ => (ETHERNET + 40, frame[ETHERNET + 6], ETHERNET + 40 + number(ETHERNET + 4)),
    }
}

/// The frame with translated addresses and ports. A UDP checksum of 0 stays 0.
pub(crate) fn translated(frame: &[u8], translation: &Translation) -> Vec<u8> {
    let (transport, protocol, end) = extent(frame);
    let mut frame = frame.to_vec();
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let addresses = [octets(translation.src), octets(translation.dst)].concat();
    frame[transport - addresses.len()..transport].copy_from_slice(&addresses);
    let ports = [translation.sport, translation.dport].map(u16::to_be_bytes);
    frame[transport..transport + 4].copy_from_slice(ports.as_flattened());
    if frame[12..14] == [0x08, 0x00] {
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let checksum = checksum(&[&frame[ETHERNET..transport]]);
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    let at = checksum_at(&frame);
    if protocol == UDP && frame[at..at + 2] == [0, 0] {
        return frame;
    }
    frame[at..at + 2].fill(0);
    let pseudo = [&addresses[..], &[0, protocol], &((end - transport) as u16).to_be_bytes()].concat();
    let mut checksum = checksum(&[&pseudo, &frame[transport..end]]);
    if protocol == UDP && checksum == 0 {
        checksum = 0xffff;
    }
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// The Internet checksum (RFC 1071). Each part except the last must have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum = words.map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0))).sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// xorshift64 (Marsaglia 2003): repeats the same frames in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn port(&mut self) -> u16 {
        1 + self.below(0xffff) as u16
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.below(256) as u8)
    }

    fn address(&mut self, is_v4: bool) -> IpAddr {
        if is_v4 { self.bytes::<4>().into() } else { self.bytes::<16>().into() }
    }

    /// A random flow, with a translation of its source, its destination, or both.
    pub(crate) fn flow(&mut self, is_v4: bool, protocol: u8) -> (Flow, Translation) {
        let (src, dst) = (self.address(is_v4), self.address(is_v4));
        let flow = Flow { src, dst, protocol, sport: self.port(), dport: self.port(), icmp: None };
        let mut new = Translation { src, dst, sport: flow.sport, dport: flow.dport };
        let which = self.below(3);
        if which != 0 {
            (new.src, new.sport) = (self.address(is_v4), self.port());
        }
        if which != 1 {
            (new.dst, new.dport) = (self.address(is_v4), self.port());
        }
        (flow, new)
    }

    /// Frames of a flow: a random one, one without a checksum for UDP over IPv4, and two whose translated checksums are edge cases.
    pub(crate) fn frames(&mut self, flow: &Flow, new: &Translation, mac_addresses: &[u8; 12]) -> Vec<Vec<u8>> {
        let len = 2 + self.below(600);
        let mut payload = self.bytes::<602>()[..len].to_vec();
        let any = frame(flow, mac_addresses, &payload);
        let mut frames = vec![any.clone()];
        if flow.protocol == UDP && flow.src.is_ipv4() {
            let (mut without, at) = (any, checksum_at(&frames[0]));
            without[at..at + 2].fill(0);
            frames.push(without);
        }
        payload[..2].fill(0);
        let after = translated(&frame(flow, mac_addresses, &payload), new);
        let at = checksum_at(&after);
        let missing = u32::from(u16::from_be_bytes([after[at], after[at + 1]]));
        // Payloads for a sum of 0xffff, and for a sum of 1 in host byte order, which needs an end-around carry.
        for sum in [missing, missing + u32::from(1_u16.to_be())] {
            payload[..2].copy_from_slice(&(((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
            frames.push(frame(flow, mac_addresses, &payload));
        }
        frames
    }
}
