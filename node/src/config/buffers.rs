//! Number of packet buffers, and their distribution over ports and workers.
//!
//! The kernel pins the whole region, and keeps notes on every buffer for every socket: both at once and not as buffers are
//! used. So memory and the time to open a port grow with ports times buffers, and with as many buffers per port as a network
//! card has by default a node of a hundred pods needs gigabytes. A pod's rings are smaller for that reason.

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::QueueConfig;

/// 64 MiB of packet memory: rings of an uplink and the host, and what is under way.
const BASE: u32 = 16_384;
/// What each port adds.
const PER_PORT: u32 = PODS.receive;
/// Of a queue where many ports are busy at once, or where there are few ports.
const LARGE: QueueConfig = QueueConfig { receive: 1024, transmit: 1024 };
/// Of a pod's queue on a node with many: a quarter of a millisecond at a million packets per second.
const PODS: QueueConfig = QueueConfig { receive: 256, transmit: 256 };
/// Up to this many ports there is memory enough for large rings: half of what there is by default.
const FEW: usize = 8;
/// Buffers that no ring gets to receive into: packets that are processed, wait for a neighbour, or are being sent.
pub(crate) const UNDER_WAY: u32 = 2_048;
/// 16 GiB, more than a node has to spare.
pub(super) const MOST: u32 = 1 << 22;
/// Bytes of a buffer.
pub(crate) const BYTES: u64 = 4_096;
/// Bytes that the kernel needs for each buffer and socket, about: seen with Linux 6.18.
pub(crate) const NOTES: u64 = 170;

/// How many there are when the file does not say it.
pub(super) fn default_frames(ports: usize) -> u32 {
    let ports = u32::try_from(ports).unwrap_or(u32::MAX);
    ports.saturating_mul(PER_PORT).saturating_add(BASE).min(MOST)
}

/// Of each worker's queue of the trunk, which all ports share: four milliseconds at a million packets per second.
pub(crate) const TRUNK: QueueConfig = QueueConfig { receive: 4096, transmit: 4096 };

/// How many there are when the file does not say it and ports have no rings of their own: the trunk's, and as many again for what
/// is under way.
pub(super) fn trunk_frames(workers: usize) -> u32 {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    workers.saturating_mul(2 * (TRUNK.receive + TRUNK.transmit)).min(MOST)
}

/// The rings of each queue of a port, where there are so many ports.
pub(crate) fn rings(kind: PortKind, ports: usize) -> QueueConfig {
    if kind == PortKind::Pod && ports > FEW { PODS } else { LARGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_all_ports_have_buffers_to_receive_into_and_some_are_left_for_what_is_under_way() {
        for ports in [1, 2, 8, 9, 40, 110, 250, 1000] {
            let pods = u32::try_from(ports - 1).unwrap();
            let taken = rings(PortKind::Uplink, ports).receive + pods * rings(PortKind::Pod, ports).receive;
            let left = default_frames(ports) - taken;
            assert!(left >= 4 * UNDER_WAY, "{left} of {ports} ports");
            // Eight pods came first and have large rings.
            assert!(left >= 8 * LARGE.receive, "{left} of {ports} ports");
        }
    }
}
