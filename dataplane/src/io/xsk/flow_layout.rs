//! The layout of the memory that a flow cache's programs and the process share.

/// Byte offsets of the fields in a flow's key, which has 48 bytes.
pub(super) mod key {
    /// The ingress port's slot, 4 bytes.
    pub(in crate::io::xsk) const SLOT: i16 = 0;
    /// Offset of the protocol plus 256 times the IP version, 4 bytes.
    pub(in crate::io::xsk) const KIND: i16 = 4;
    /// Source and destination port, 2 bytes each in network order.
    pub(in crate::io::xsk) const PORTS: i16 = 8;
    /// Source address. An IPv4 address uses the first four bytes.
    pub(in crate::io::xsk) const SOURCE: i16 = 16;
    pub(in crate::io::xsk) const DESTINATION: i16 = 32;
    pub(in crate::io::xsk) const LEN: i16 = 48;
}

/// Byte offsets of the fields in a flow's value: 80 bytes, and 48 that only translated flows use. Numbers are in host order.
pub(super) mod value {
    /// The highest value of the ingress port's epoch cell with which the flow is valid.
    pub(in crate::io::xsk) const FROM_EPOCH: i16 = 0;
    /// End of the lease on `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
    pub(in crate::io::xsk) const EXPIRES: i16 = 8;
    /// The egress port's slot.
    pub(in crate::io::xsk) const OUT: i16 = 16;
    /// The origin's number plus one, 2 bytes; 0 for no origin.
    pub(in crate::io::xsk) const ORIGIN: i16 = 20;
    /// The bits of [`action`](super::action), 2 bytes.
    pub(in crate::io::xsk) const ACTIONS: i16 = 22;
    /// MAC addresses of received packets, destination first.
    pub(in crate::io::xsk) const RECEIVED: i16 = 24;
    /// The longest frame that the egress port can send, in bytes.
    pub(in crate::io::xsk) const LONGEST: i16 = 36;
    /// The ingress port's number, 2 bytes.
    pub(in crate::io::xsk) const FROM: i16 = 38;
    /// MAC addresses of sent packets, destination first.
    pub(in crate::io::xsk) const SENT: i16 = 40;
    /// The number of the latch or handshake, 2 bytes.
    pub(in crate::io::xsk) const LATCH: i16 = 52;
    /// The egress port's number, 2 bytes.
    pub(in crate::io::xsk) const TO: i16 = 54;
    /// The highest value of the egress port's epoch cell with which the flow is valid.
    pub(in crate::io::xsk) const TO_EPOCH: i16 = 56;
    /// Time after which the program sends a copy of a packet to a worker for renewal, on the clock of [`EXPIRES`]. The program postpones
    /// it.
    pub(in crate::io::xsk) const RENEW: i16 = 64;
    /// tc programs only: how long the flow outlasts its lease while no worker is alive, in nanoseconds.
    pub(in crate::io::xsk) const IDLE: i16 = 72;
    /// Start of the part for translated flows. Zeros in other flows, where programs do not read it.
    pub(in crate::io::xsk) const TRANSLATION: i16 = 80;
    /// The translated source address. An IPv4 address uses the first four bytes.
    pub(in crate::io::xsk) const SOURCE: i16 = 80;
    pub(in crate::io::xsk) const DESTINATION: i16 = 96;
    /// The translated source and destination port, 2 bytes each in network order.
    pub(in crate::io::xsk) const PORTS: i16 = 112;
    /// Checksum differences for the new addresses and ports, 2 bytes each in network order: the ones' complement sum of the new words and
    /// the complements of the old ones (RFC 1624).
    pub(in crate::io::xsk) const ADDRESSES_CHANGE: i16 = 116;
    pub(in crate::io::xsk) const PORTS_CHANGE: i16 = 118;
    /// Offset of the transport's checksum in the frame, 2 bytes.
    pub(in crate::io::xsk) const CHECKSUM_AT: i16 = 120;
    /// `BPF_F_MARK_MANGLED_0` for UDP, whose checksum 0 means none, 2 bytes; else 0.
    pub(in crate::io::xsk) const CHECKSUM_FLAGS: i16 = 122;
    pub(in crate::io::xsk) const LEN: i16 = 128;
}

/// Bits for the treatment of a flow's packets.
pub(super) mod action {
    /// Decrement the TTL or hop limit of the packet.
    pub(in crate::io::xsk) const HOP: u16 = 1;
    /// Translate addresses and ports.
    pub(in crate::io::xsk) const TRANSLATE: u16 = 2;
    /// The flow has a handshake instead of a latch; forward packets after its end.
    pub(in crate::io::xsk) const HANDSHAKE: u16 = 4;
    /// The flow's packets come from the initiator and may end the handshake.
    pub(in crate::io::xsk) const INITIATOR: u16 = 8;
    /// The flow has neither latch nor handshake, because its handshake ended before a renewal.
    pub(in crate::io::xsk) const BEGUN: u16 = 16;
    /// tc programs only, set by them: the flow's source has sent a FIN, its destination has, or either has sent a reset. A worker's renewal
    /// clears these bits, because it renews only flows of sessions that have not ended.
    pub(in crate::io::xsk) const FIN: u16 = 32;
    pub(in crate::io::xsk) const PEER_FIN: u16 = 64;
    pub(in crate::io::xsk) const RESET: u16 = 128;
    pub(in crate::io::xsk) const ENDS: u16 = FIN | PEER_FIN | RESET;
}

/// Byte offsets in the cells: one array value that programs and process share, mapped into the process.
pub(super) mod cells {
    /// tc programs only: the trunk's interface index and the number of workers, 4 bytes each.
    pub(in crate::io::xsk) const TRUNK: i32 = 0;
    pub(in crate::io::xsk) const WORKERS: i32 = 4;
    /// tc programs only: three keys of the hash that selects a worker.
    pub(in crate::io::xsk) const HASH: i32 = 8;
    /// tc programs only: the slow path limit's cost per segment and its saved maximum, in nanoseconds of the port's time.
    pub(in crate::io::xsk) const COST: i32 = 32;
    pub(in crate::io::xsk) const SAVED: i32 = 40;
    /// tc programs only: until when programs assume that workers are alive, and until when they forward flows without workers, both on
    /// `CLOCK_MONOTONIC_COARSE` in nanoseconds.
    pub(in crate::io::xsk) const ALIVE_UNTIL: i32 = 48;
    pub(in crate::io::xsk) const AWAY_UNTIL: i32 = 56;
    /// tc programs only: idle timeouts of TCP flows after one FIN, and after both FINs or a reset, in nanoseconds.
    pub(in crate::io::xsk) const HALF_CLOSED: i32 = 64;
    pub(in crate::io::xsk) const CLOSED: i32 = 72;
    /// tc programs only: the slot of the port to other nodes, 4 bytes; 0 without one.
    pub(in crate::io::xsk) const NODES_SLOT: i32 = 80;
    /// tc programs only: the MAC addresses of frames that the node's kernel sends to the host port, destination first, 12 bytes.
    pub(in crate::io::xsk) const NODES_ADDRESSES: i32 = 88;
    /// tc programs only: the UDP port of the tunnel, 4 bytes; 0 without one.
    pub(in crate::io::xsk) const TUNNEL_PORT: i32 = 100;
    /// tc programs only: three ranges of source ports of masqueraded packets, first and last, 2 bytes each in host order. In an unused range, the first
    /// is higher than the last.
    pub(in crate::io::xsk) const WORLD_PORTS: i32 = 104;
    /// tc programs only: the addresses of this node to which the world answers, 16 bytes each, the IPv4 address in its mapped form; all zeros without
    /// one.
    pub(in crate::io::xsk) const WORLD_V4: i32 = 120;
    pub(in crate::io::xsk) const WORLD_V6: i32 = 136;
    /// Per slot: the egress (interface index and `how`, 4 bytes each), and the time until which the port's slow path limit is used.
    pub(in crate::io::xsk) const SLOT: i32 = 192;
    /// One cache line per slot, as different cores write them.
    pub(in crate::io::xsk) const SLOT_LEN: i32 = 64;
    pub(in crate::io::xsk) const WAY: i16 = 0;
    pub(in crate::io::xsk) const HOW: i16 = 4;
    pub(in crate::io::xsk) const USED: i16 = 8;
    /// Maximum open ports: the range of a VLAN tag, which exceeds a node's pods.
    pub(in crate::io::xsk) const SLOTS: i32 = 4096;
    /// One epoch cell per port number.
    pub(in crate::io::xsk) const EPOCHS: i32 = SLOT + SLOTS * SLOT_LEN;
    /// Number of epoch cells: the range of a port number.
    pub(in crate::io::xsk) const EPOCH_COUNT: i32 = 1 << 16;
    /// Latches: each counts the packets that found it closed, with a bit for open.
    pub(in crate::io::xsk) const LATCHES: i32 = EPOCHS + EPOCH_COUNT * 8;
    /// Number of latches: one for each flow of the map, so that few share one. Flows number them with 16 bits.
    pub(in crate::io::xsk) const LATCH_COUNT: i32 = 1 << 16;
    /// The bit of a latch that means "open", too high for the count to reach.
    pub(in crate::io::xsk) const OPEN_BIT: u32 = 62;
    /// The records of handshakes, see [`handshake`](super::handshake).
    pub(in crate::io::xsk) const HANDSHAKES: i32 = LATCHES + LATCH_COUNT * 8;
    /// tc programs only: a bit for each port number, set if a virtual address or a masqueraded packet has it or had it, in words of 4 bytes in host order.
    /// Port 0 has the lowest bit of the first word.
    pub(in crate::io::xsk) const TAKEN_PORTS: i32 =
        HANDSHAKES + crate::io::HANDSHAKES.cast_signed() * super::handshake::LEN as i32;
    pub(in crate::io::xsk) const LEN: i32 = TAKEN_PORTS + (1 << 16) / 8;
}

/// Byte offsets in the record of a handshake. Sequence numbers have 4 bytes in host order. Each other field is written by the packets of one
/// direction only, so that no step is lost.
pub(super) mod handshake {
    /// The number after the initiator's SYN.
    pub(in crate::io::xsk) const INITIATOR_NEXT: i16 = 0;
    /// Whether the handshake has ended, and which sides have sent a FIN, a byte each.
    pub(in crate::io::xsk) const HAS_ENDED: i16 = 4;
    pub(in crate::io::xsk) const INITIATOR_FIN: i16 = 5;
    pub(in crate::io::xsk) const RESPONDER_FIN: i16 = 6;
    /// The number after the SYN-ACK, and whether there was one (4 bytes). Programs write both at once.
    pub(in crate::io::xsk) const RESPONDER_NEXT: i16 = 8;
    pub(in crate::io::xsk) const IS_ANSWERED: i16 = 12;
    pub(in crate::io::xsk) const LEN: i16 = 16;
}

/// Byte offsets of per-slot, per-core counters, 8 bytes each.
pub(super) mod traffic {
    /// Packets and bytes forwarded from the port.
    pub(in crate::io::xsk) const RECEIVED: i16 = 0;
    pub(in crate::io::xsk) const RECEIVED_BYTES: i16 = 8;
    /// Packets and bytes forwarded to the port.
    pub(in crate::io::xsk) const SENT: i16 = 16;
    pub(in crate::io::xsk) const SENT_BYTES: i16 = 24;
    /// tc programs only: segments dropped by the slow path limit.
    pub(in crate::io::xsk) const LIMITED: i16 = 32;
    /// tc programs only: packets dropped because the node's kernel sent them to the port without the vswitch.
    pub(in crate::io::xsk) const BYPASSED: i16 = 40;
    /// tc programs only, in slot 0: packets dropped because their interface's port is closed.
    pub(in crate::io::xsk) const CLOSED: i16 = 48;
    pub(in crate::io::xsk) const LEN: i16 = 64;
}

/// Packet counters per origin and core.
pub(super) mod decisions {
    /// Counters per map value. The kernel allocates up to 32 KiB per core and value.
    pub(in crate::io::xsk) const PER_VALUE: i32 = 1 << 12;
    /// Number of origin counters: 512 KiB per core. Later origins share the last counter.
    pub(in crate::io::xsk) const ORIGINS: i32 = 1 << 16;
}

const KEY_LEN: usize = key::LEN.cast_unsigned() as usize;
const VALUE_LEN: usize = value::LEN.cast_unsigned() as usize;
pub(super) type FlowKey = [u8; KEY_LEN];
pub(super) type FlowValue = [u8; VALUE_LEN];

pub(super) fn put(bytes: &mut [u8], offset: i16, part: &[u8]) {
    bytes[place(offset.into())..][..part.len()].copy_from_slice(part);
}

/// Reads a number at an offset of the flow's value.
pub(super) fn part<const N: usize>(flow: &FlowValue, offset: i16) -> [u8; N] {
    *flow[place(offset.into())..].first_chunk().expect("it is part of a value")
}

pub(super) fn place(offset: i32) -> usize {
    usize::try_from(offset).expect("offsets are not negative")
}
