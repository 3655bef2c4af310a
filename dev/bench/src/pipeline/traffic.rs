//! The benchmark's packets: UDP over IPv4 from many outside clients to one pod.

use std::net::Ipv4Addr;

use super::node::Node;
use crate::memory_ports::own_mac;
use crate::random::Random;

/// Destination address of all packets: the pod's or a Service's.
pub(super) const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// Destination port of all packets.
pub(super) const DPORT: u16 = 53;
/// The pod behind a Service's address.
pub(super) const BACKEND: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 1, 0, 3), 5353);
/// An arbitrary UDP checksum. The worker does not verify it, but must adjust it when it translates addresses.
const CHECKSUM: [u8; 2] = [0x5a, 0x5a];

/// The clients' network, 100.64.0.0/10.
const CLIENTS: u32 = 0x6440_0000;
/// Number of bits in a flow's number that select the client. The remaining bits select the source port.
const CLIENT_BITS: u32 = 22;

const TTL: u8 = 64;

/// Order in which flows send packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Each flow sends one packet, in order.
    Each,
    /// Each packet belongs to a random flow.
    Random,
    /// Each packet starts a new flow.
    Fresh,
}

/// A packet generator: writes frames of many flows in a given order.
pub(super) struct Traffic {
    template: Vec<u8>,
    /// Sum of the header's words, except the source address.
    sum: u32,
    flows: u32,
    random: Random,
    next: u64,
}

impl Traffic {
    /// Returns a generator of packets of `size` bytes. Each worker's generator has different random numbers.
    pub(super) fn new(size: usize, flows: u32, worker: u16, has_checksum: bool) -> Self {
        let mut template = template(size);
        if has_checksum {
            template[40..42].copy_from_slice(&CHECKSUM);
        }
        let sum = header_sum(&template);
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (u64::from(worker) << 32));
        Self { template, sum, flows, random, next: 0 }
    }

    /// Returns the size of each packet in bytes.
    pub(super) fn size(&self) -> usize {
        self.template.len()
    }

    /// Writes the next packet into a frame of this size. Returns its flow's number. `None` after each flow had its turn.
    #[inline]
    pub(super) fn write(&mut self, order: Order, frame: &mut [u8]) -> Option<u64> {
        let flow = match order {
            Order::Random => u64::from(self.random.below(self.flows)),
            Order::Each if self.next >= u64::from(self.flows) => return None,
            Order::Each | Order::Fresh => self.next,
        };
        self.next += u64::from(order != Order::Random);
        self.write_flow(flow, frame);
        Some(flow)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "bits are taken from a number, and a sum is folded to 16")]
    fn write_flow(&self, flow: u64, frame: &mut [u8]) {
        frame.copy_from_slice(&self.template);
        let Some(head) = frame.first_chunk_mut::<42>() else { return };
        let src = CLIENTS + (flow as u32 & ((1 << CLIENT_BITS) - 1));
        let sport = (flow >> CLIENT_BITS) as u16 ^ (flow as u16 & 0x3fff);
        let sum = self.sum + (src >> 16) + (src & 0xffff);
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        head[24..26].copy_from_slice(&checksum.to_be_bytes());
        head[26..30].copy_from_slice(&src.to_be_bytes());
        head[34..36].copy_from_slice(&sport.to_be_bytes());
    }
}

/// Returns a frame without source address, source port and checksums. UDP over IPv4 permits no checksum (RFC 768).
fn template(size: usize) -> Vec<u8> {
    let total = u16::try_from(size - 14).expect("a frame is at most 1514 bytes").to_be_bytes();
    let udp = u16::try_from(size - 34).expect("a frame is at most 1514 bytes").to_be_bytes();
    let mut frame = [&own_mac(Node::UPLINK)[..], &[2, 0, 0, 0, 9, 9, 8, 0]].concat();
    frame.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, 17, 0, 0, 0, 0, 0, 0]);
    frame.extend(DESTINATION.octets());
    frame.extend([0, 0]);
    frame.extend(DPORT.to_be_bytes());
    frame.extend([udp[0], udp[1], 0, 0]);
    frame.resize(size, 0x5a);
    frame
}

/// Returns the sum of the IPv4 header's words.
fn header_sum(frame: &[u8]) -> u32 {
    frame[14..34].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

/// Whether `after` is `before` one hop later: a correct checksum, a TTL less by one, the new MAC addresses, all other bytes equal. If
/// translated, `after` has the backend's address and port.
pub(super) fn is_one_hop(before: &[u8], after: &[u8], addresses: &[u8; 12], is_translated: bool) -> bool {
    let folded = |frame: &[u8]| {
        let sum = header_sum(frame);
        (sum & 0xffff) + (sum >> 16)
    };
    let mut expected = before.to_vec();
    if is_translated {
        expected[30..34].copy_from_slice(&BACKEND.0.octets());
        expected[36..38].copy_from_slice(&BACKEND.1.to_be_bytes());
        // Equation 3 of RFC 1624, word by word.
        let words = |frame: &[u8]| [30, 32, 36].map(|at| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]])));
        let checksum = u32::from(u16::from_be_bytes(CHECKSUM));
        let removed: u32 = words(before).into_iter().map(|word| !word & 0xffff).sum();
        let sum = (!checksum & 0xffff) + removed + words(&expected).into_iter().sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        expected[40..42].copy_from_slice(&u16::try_from(!folded & 0xffff).expect("16 bits").to_be_bytes());
    }
    let rest = |frame: &[u8]| [&frame[12..22], &frame[23..24], &frame[26..]].concat();
    folded(before) == 0xffff
        && folded(after) == 0xffff
        && after[22] == before[22] - 1
        && after[..12] == *addresses
        && rest(&expected) == rest(after)
}
