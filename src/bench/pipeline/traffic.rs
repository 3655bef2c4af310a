//! The packets of the benchmark: UDP over IPv4 from many clients outside to one pod.

use std::net::Ipv4Addr;

use bulkhead_dataplane::BURST;

use super::node::Random;

/// Where all packets go.
pub(super) const POD_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// And to which port.
pub(super) const DPORT: u16 = 53;

/// 100.64.0.0/10, the clients.
const CLIENTS: u32 = 0x6440_0000;
/// Bits of a flow's number that choose the client; the rest is in the source port.
const CLIENT_BITS: u32 = 22;

/// Buffers that are used in turn: two bursts, as if one were still being sent.
const BUFFERS: usize = 2 * BURST;

/// Bytes from buffer to buffer. Not a power of two: the packets' headers would all fall into the same few sets of the
/// cache. VPP's buffers are about as far apart.
const STRIDE: usize = 2048 + 256;

const TTL: u8 = 64;

/// Which flow the next packet is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One after the other, and then the first again and again.
    Each,
    /// Any.
    Random,
    /// One that never was before.
    Fresh,
}

/// The generator.
pub(super) struct Traffic {
    buffers: Vec<u8>,
    template: Vec<u8>,
    /// The sum of the header's words without the source address.
    sum: u32,
    /// The buffer that the burst begins with: 0 or [`BURST`].
    at: usize,
    flows: u32,
    /// Keeps the flows of workers apart: two bits of the source port.
    worker: u16,
    random: Random,
    next: u64,
}

impl Traffic {
    pub(super) fn new(size: usize, flows: u32, worker: u16) -> Self {
        let template = template(size);
        let sum = header_sum(&template);
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (u64::from(worker) << 32));
        Self { buffers: vec![0; BUFFERS * STRIDE], template, sum, at: 0, flows, worker: worker << 14, random, next: 0 }
    }

    pub(super) const fn flows(&self) -> u32 {
        self.flows
    }

    /// Writes a burst over the one before the last.
    #[inline(never)]
    pub(super) fn generate(&mut self, order: Order) {
        self.at = BURST - self.at;
        for at in self.at..self.at + BURST {
            let flow = match order {
                Order::Random => u64::from(self.random.below(self.flows)),
                Order::Each if self.next >= u64::from(self.flows) => 0,
                Order::Each | Order::Fresh => self.next,
            };
            self.next += u64::from(order != Order::Random);
            self.write(at, flow);
        }
    }

    /// The frames of the burst.
    #[inline]
    pub(super) fn frames(&self) -> impl Iterator<Item = &[u8]> + '_ {
        let (buffers, len) = (&self.buffers[self.at * STRIDE..(self.at + BURST) * STRIDE], self.template.len());
        buffers.chunks_exact(STRIDE).map(move |buffer| &buffer[..len])
    }

    /// A frame of the burst.
    #[inline]
    pub(super) fn frame_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.buffers[(self.at + at) * STRIDE..][..self.template.len()]
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "bits are taken from a number, and a sum is folded to 16")]
    fn write(&mut self, at: usize, flow: u64) {
        let frame = &mut self.buffers[at * STRIDE..][..self.template.len()];
        frame.copy_from_slice(&self.template);
        let Some(head) = frame.first_chunk_mut::<42>() else { return };
        let src = CLIENTS + (flow as u32 & ((1 << CLIENT_BITS) - 1));
        let sport = (flow >> CLIENT_BITS) as u16 ^ (flow as u16 & 0x3fff) ^ self.worker;
        let sum = self.sum + (src >> 16) + (src & 0xffff);
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        head[24..26].copy_from_slice(&checksum.to_be_bytes());
        head[26..30].copy_from_slice(&src.to_be_bytes());
        head[34..36].copy_from_slice(&sport.to_be_bytes());
    }
}

/// A frame without source address, source port and checksums. UDP over IPv4 may go without one (RFC 768).
fn template(size: usize) -> Vec<u8> {
    let total = u16::try_from(size - 14).expect("a frame is at most 1514 bytes").to_be_bytes();
    let udp = u16::try_from(size - 34).expect("a frame is at most 1514 bytes").to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 1, 0, 2, 0, 0, 0, 9, 9, 8, 0];
    frame.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, 17, 0, 0, 0, 0, 0, 0]);
    frame.extend(POD_ADDRESS.octets());
    frame.extend([0, 0]);
    frame.extend(DPORT.to_be_bytes());
    frame.extend([udp[0], udp[1], 0, 0]);
    frame.resize(size, 0x5a);
    frame
}

/// The sum of the IPv4 header's words.
fn header_sum(frame: &[u8]) -> u32 {
    frame[14..34].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

/// Whether a frame is another one a hop later: the checksum is right again, the TTL is one less, the MAC addresses are
/// new, and all else is as before.
pub(super) fn is_one_hop(before: &[u8], after: &[u8], addresses: &[u8; 12]) -> bool {
    let folded = |frame: &[u8]| {
        let sum = header_sum(frame);
        (sum & 0xffff) + (sum >> 16)
    };
    let rest = |frame: &[u8]| [&frame[12..22], &frame[23..24], &frame[26..]].concat();
    folded(before) == 0xffff
        && folded(after) == 0xffff
        && after[22] == before[22] - 1
        && after[..12] == *addresses
        && rest(before) == rest(after)
}
