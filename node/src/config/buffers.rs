//! Number of packet buffers, and their distribution over ports and workers.
//!
//! The kernel pins the whole region and allocates bookkeeping for every buffer and socket in advance. So memory and the time to open a port
//! grow with ports times buffers. With a network card's default ring sizes, a node of a hundred pods would need gigabytes, so pods' rings
//! are smaller.

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::QueueConfig;

/// Buffers for the uplink's and host's rings and for packets in flight: 64 MiB.
const BASE: u32 = 16_384;
/// Number of additional buffers for each port.
const PER_PORT: u32 = PODS.receive;
/// Rings of the uplink and host, and of pods on a node with at most [`FEW`] ports.
const LARGE: QueueConfig = QueueConfig { receive: 1024, transmit: 1024 };
/// Rings of a pod on a node with many ports: a quarter of a millisecond at a million packets per second.
const PODS: QueueConfig = QueueConfig { receive: 256, transmit: 256 };
/// Maximum number of ports with large rings. These take half of the default buffers.
const FEW: usize = 8;
/// Buffers that no receive ring may use, for packets that are processed, wait for a neighbour, or are being sent.
pub(crate) const UNDER_WAY: u32 = 2_048;
/// Maximum number of buffers: 16 GiB, more than a node can spare.
pub(super) const MOST: u32 = 1 << 22;
/// Size of a buffer in bytes.
pub(crate) const BYTES: u64 = 4_096;
/// Kernel memory per buffer and socket in bytes, approximately (measured on Linux 6.18).
pub(crate) const NOTES: u64 = 170;

/// Returns the default number of buffers with [`Attach::Xdp`](super::Attach::Xdp).
pub(super) fn default_frames(ports: usize) -> u32 {
    let ports = u32::try_from(ports).unwrap_or(u32::MAX);
    ports.saturating_mul(PER_PORT).saturating_add(BASE).min(MOST)
}

/// Rings of each worker's queue of the trunk, which all ports share: four milliseconds at a million packets per second.
pub(crate) const TRUNK: QueueConfig = QueueConfig { receive: 4096, transmit: 4096 };

/// Returns the default number of buffers with [`Attach::Tc`](super::Attach::Tc): for the trunk's rings, and as many for packets in flight.
pub(super) fn trunk_frames(workers: usize) -> u32 {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    workers.saturating_mul(2 * (TRUNK.receive + TRUNK.transmit)).min(MOST)
}

/// Returns the ring sizes, in buffers, of each queue of a port, on a node with `ports` ports.
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
            // The first eight pods have large rings.
            assert!(left >= 8 * LARGE.receive, "{left} of {ports} ports");
        }
    }
}
