//! Where things are in the memory that the programs of a flow cache and the process share.

/// A flow's key in the map: 48 bytes.
pub(super) mod key {
    /// The slot of the port where its packets come in, 4 bytes.
    pub(in crate::io::xsk) const SLOT: i16 = 0;
    /// Protocol and 256 times the IP version, 4 bytes.
    pub(in crate::io::xsk) const KIND: i16 = 4;
    /// Source and destination port, in the network's order.
    pub(in crate::io::xsk) const PORTS: i16 = 8;
    /// Source address; an IPv4 address in the first four bytes.
    pub(in crate::io::xsk) const SOURCE: i16 = 16;
    pub(in crate::io::xsk) const DESTINATION: i16 = 32;
    pub(in crate::io::xsk) const LEN: i16 = 48;
}

/// What the map has for a flow: 72 bytes, and 48 that only translated flows use. Numbers are in the machine's order.
pub(super) mod value {
    /// The epoch of the port where its packets come in.
    pub(in crate::io::xsk) const FROM_EPOCH: i16 = 0;
    /// On `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
    pub(in crate::io::xsk) const EXPIRES: i16 = 8;
    /// The slot of the port where they leave.
    pub(in crate::io::xsk) const OUT: i16 = 16;
    /// The origin's number plus one, 2 bytes; 0 for none.
    pub(in crate::io::xsk) const ORIGIN: i16 = 20;
    /// What is done with its packets, 2 bytes: the bits of [`action`](super::action).
    pub(in crate::io::xsk) const ACTIONS: i16 = 22;
    /// MAC addresses as they come, destination first.
    pub(in crate::io::xsk) const RECEIVED: i16 = 24;
    /// The longest frame that the way out carries.
    pub(in crate::io::xsk) const LONGEST: i16 = 36;
    /// The number of the port where its packets come in, 2 bytes.
    pub(in crate::io::xsk) const FROM: i16 = 38;
    /// MAC addresses as they leave.
    pub(in crate::io::xsk) const SENT: i16 = 40;
    /// The latch's number, or that of the handshake, 2 bytes.
    pub(in crate::io::xsk) const LATCH: i16 = 52;
    /// The number of the port where they leave, 2 bytes.
    pub(in crate::io::xsk) const TO: i16 = 54;
    /// The epoch of that port.
    pub(in crate::io::xsk) const TO_EPOCH: i16 = 56;
    /// From when on a copy of a packet goes to the workers, on the clock of [`EXPIRES`]: they renew the flow then. Programs move it on.
    pub(in crate::io::xsk) const RENEW: i16 = 64;
    /// Where the part for translated flows begins. In others it is 0, and programs do not read it.
    pub(in crate::io::xsk) const TRANSLATION: i16 = 72;
    /// The addresses that packets leave with; an IPv4 address in the first four bytes.
    pub(in crate::io::xsk) const SOURCE: i16 = 72;
    pub(in crate::io::xsk) const DESTINATION: i16 = 88;
    /// Source and destination port that they leave with, in the network's order.
    pub(in crate::io::xsk) const PORTS: i16 = 104;
    /// What a checksum changes by when the addresses and when the ports do, 2 bytes each, in the network's order: the ones'
    /// complement sum of the new words and of the complements of the old ones (RFC 1624).
    pub(in crate::io::xsk) const ADDRESSES_CHANGE: i16 = 108;
    pub(in crate::io::xsk) const PORTS_CHANGE: i16 = 110;
    /// Where the transport's checksum is in the frame, 2 bytes.
    pub(in crate::io::xsk) const CHECKSUM_AT: i16 = 112;
    /// `BPF_F_MARK_MANGLED_0` for UDP, whose checksum 0 says that there is none, 2 bytes; else 0.
    pub(in crate::io::xsk) const CHECKSUM_FLAGS: i16 = 114;
    pub(in crate::io::xsk) const LEN: i16 = 120;
}

/// What is done with a flow's packets.
pub(super) mod action {
    /// Their TTL or hop limit becomes one less.
    pub(in crate::io::xsk) const HOP: u16 = 1;
    /// They leave with other addresses and ports.
    pub(in crate::io::xsk) const TRANSLATE: u16 = 2;
    /// Instead of a latch the flow has a handshake, behind which its packets are forwarded.
    pub(in crate::io::xsk) const HANDSHAKE: u16 = 4;
    /// Its packets may end that handshake.
    pub(in crate::io::xsk) const INITIATOR: u16 = 8;
    /// It has neither: its handshake ended before it was renewed.
    pub(in crate::io::xsk) const BEGUN: u16 = 16;
}

/// What programs and process share: one value of an array, mapped into the process.
pub(super) mod cells {
    /// Of tc programs: the trunk's interface, 4 bytes, and the number of workers, 4 bytes.
    pub(in crate::io::xsk) const TRUNK: i32 = 0;
    pub(in crate::io::xsk) const WORKERS: i32 = 4;
    /// Of tc programs: three keys of the hash that chooses a worker.
    pub(in crate::io::xsk) const HASH: i32 = 8;
    /// Of tc programs: what a segment on the slow path costs a port, in nanoseconds of its time, and how many it may have saved.
    pub(in crate::io::xsk) const COST: i32 = 32;
    pub(in crate::io::xsk) const SAVED: i32 = 40;
    /// Per slot: where packets leave (interface and how, 4 bytes each), and until when a port's time on the slow path is used.
    pub(in crate::io::xsk) const SLOT: i32 = 64;
    /// A cache line, since different cores write them.
    pub(in crate::io::xsk) const SLOT_LEN: i32 = 64;
    pub(in crate::io::xsk) const WAY: i16 = 0;
    pub(in crate::io::xsk) const HOW: i16 = 4;
    pub(in crate::io::xsk) const USED: i16 = 8;
    /// Ports at a time; as many as an 802.1Q tag can number, which is more than a node has pods.
    pub(in crate::io::xsk) const SLOTS: i32 = 4096;
    /// Per port number: the epoch.
    pub(in crate::io::xsk) const EPOCHS: i32 = SLOT + SLOTS * SLOT_LEN;
    /// As many as a port number can say.
    pub(in crate::io::xsk) const EPOCH_COUNT: i32 = 1 << 16;
    /// Latches, each a count of packets that found it closed, and a bit that says that it is open.
    pub(in crate::io::xsk) const LATCHES: i32 = EPOCHS + EPOCH_COUNT * 8;
    /// As many as flows: few share one. A flow's number for it has 16 bits.
    pub(in crate::io::xsk) const LATCH_COUNT: i32 = 1 << 16;
    /// Counting does not reach it.
    pub(in crate::io::xsk) const OPEN_BIT: u32 = 62;
    /// Handshakes: the acknowledgement number that ends it, 4 bytes in the network's order, and whether it has ended, 4 bytes.
    pub(in crate::io::xsk) const HANDSHAKES: i32 = LATCHES + LATCH_COUNT * 8;
    pub(in crate::io::xsk) const HAS_ENDED: i16 = 4;
    pub(in crate::io::xsk) const LEN: i32 = HANDSHAKES + crate::io::HANDSHAKES.cast_signed() * 8;
}

/// What is counted per slot, by each core for itself: 8 bytes each.
pub(super) mod traffic {
    /// Packets and bytes of flows that came in.
    pub(in crate::io::xsk) const RECEIVED: i16 = 0;
    pub(in crate::io::xsk) const RECEIVED_BYTES: i16 = 8;
    /// Packets and bytes of flows that left.
    pub(in crate::io::xsk) const SENT: i16 = 16;
    pub(in crate::io::xsk) const SENT_BYTES: i16 = 24;
    /// Of tc programs: segments dropped because the port has used up its time on the slow path.
    pub(in crate::io::xsk) const LIMITED: i16 = 32;
    /// Of tc programs: packets dropped that the node's kernel sent to the port past the vswitch.
    pub(in crate::io::xsk) const BYPASSED: i16 = 40;
    /// Of tc programs, in slot 0: packets dropped because their interface's port is closed.
    pub(in crate::io::xsk) const CLOSED: i16 = 48;
    pub(in crate::io::xsk) const LEN: i16 = 64;
}

/// Packets per origin, by each core for itself.
pub(super) mod decisions {
    /// Counters in one value of the map: the kernel allots up to 32 KiB at once per core.
    pub(in crate::io::xsk) const PER_VALUE: i32 = 1 << 12;
    /// Origins that are counted: 512 KiB of counters per core. Later ones share the last counter.
    pub(in crate::io::xsk) const ORIGINS: i32 = 1 << 16;
}

const KEY_LEN: usize = key::LEN.cast_unsigned() as usize;
const VALUE_LEN: usize = value::LEN.cast_unsigned() as usize;
pub(super) type FlowKey = [u8; KEY_LEN];
pub(super) type FlowValue = [u8; VALUE_LEN];

pub(super) fn put(bytes: &mut [u8], offset: i16, part: &[u8]) {
    bytes[place(offset.into())..][..part.len()].copy_from_slice(part);
}

pub(super) fn place(offset: i32) -> usize {
    usize::try_from(offset).expect("offsets are not negative")
}
