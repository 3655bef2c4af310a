//! Where things are in the memory that the flow cache's programs and the process share.

/// A flow's key in the map: 48 bytes.
pub(super) mod key {
    /// Where its packets come in, 4 bytes.
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

/// What the map has for a flow: 64 bytes, numbers in the machine's order.
pub(super) mod value {
    pub(in crate::io::xsk) const GENERATION: i16 = 0;
    /// On `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
    pub(in crate::io::xsk) const EXPIRES: i16 = 8;
    /// Where its packets leave.
    pub(in crate::io::xsk) const OUT: i16 = 16;
    /// The origin's number plus one; 0 for none.
    pub(in crate::io::xsk) const ORIGIN: i16 = 20;
    /// MAC addresses as they come, destination first.
    pub(in crate::io::xsk) const RECEIVED: i16 = 24;
    /// The longest frame.
    pub(in crate::io::xsk) const LONGEST: i16 = 36;
    /// MAC addresses as they leave.
    pub(in crate::io::xsk) const SENT: i16 = 40;
    /// The gate's number, 2 bytes.
    pub(in crate::io::xsk) const GATE: i16 = 52;
    pub(in crate::io::xsk) const LEN: i16 = 64;
}

/// What program and process share: one value of an array, mapped into the process.
pub(super) mod cells {
    /// The generation in force.
    pub(in crate::io::xsk) const GENERATION: i32 = 0;
    /// Per slot: packets and bytes received, packets and bytes sent.
    pub(in crate::io::xsk) const TRAFFIC: i32 = 64;
    pub(in crate::io::xsk) const TRAFFIC_LEN: i32 = 32;
    /// Ports at a time; more than a node has pods. Those beyond go without the cache.
    pub(in crate::io::xsk) const SLOTS: i32 = 1024;
    /// Per origin: packets.
    pub(in crate::io::xsk) const DECISIONS: i32 = TRAFFIC + SLOTS * TRAFFIC_LEN;
    /// Origins that are counted: 512 KiB of counters. Later ones share the last counter.
    pub(in crate::io::xsk) const ORIGINS: i32 = 1 << 16;
    /// Gates, each a count of packets that found it closed, and a bit that says that it is open.
    pub(in crate::io::xsk) const GATES: i32 = DECISIONS + ORIGINS * 8;
    /// As many as flows: few share one. A flow's number for it has 16 bits.
    pub(in crate::io::xsk) const GATE_COUNT: i32 = 1 << 16;
    /// Counting does not reach it.
    pub(in crate::io::xsk) const OPEN_BIT: u32 = 62;
    pub(in crate::io::xsk) const LEN: i32 = GATES + GATE_COUNT * 8;
}
