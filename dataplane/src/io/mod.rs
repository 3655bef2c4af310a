//! Packet input and output: capture files and live ports.
//!
//! ```text
//!   any Read -> CaptureReader -> CapturedPacket -> PortFinder -> (Worker) -> CaptureWriter -> any Write
//!               pcap, pcapng                        which port?               pcapng with verdicts
//! ```
//!
//! **Invariant.** Capture files are untrusted input. The reader returns packets, or an error with a position; it uses bounded
//! memory and never panics. It returns all packets before a fault, then the error.
//!
//! Live ports implement [`Port`]. They pass frames of one shared memory region ([`Umem`]) to a worker, which passes them to another port.

#[cfg(feature = "afxdp")]
mod afxdp_port;
mod capture_error;
#[cfg(target_os = "linux")]
mod capture_port;
mod capture_reader;
mod capture_record;
mod capture_writer;
#[cfg(target_os = "linux")]
mod fault_port;
mod flow_cache;
#[cfg(target_os = "linux")]
mod frame_pool;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod loopback_port;
mod pcap;
mod pcapng;
mod port_finder;
#[cfg(target_os = "linux")]
mod segments;
mod source;
#[cfg(target_os = "linux")]
mod xsk;

use std::sync::Arc;

#[cfg(feature = "afxdp")]
pub use afxdp_port::AfxdpPort;
pub use capture_error::CaptureError;
#[cfg(target_os = "linux")]
pub use capture_port::{CaptureClock, CaptureFilter, CaptureInput, CapturePort, CapturePortError};
pub use capture_reader::CaptureReader;
pub use capture_writer::CaptureWriter;
#[cfg(target_os = "linux")]
pub use fault_port::{FaultCounts, FaultPlan, FaultPort, FaultTally, FaultWatch, Faults};
pub use flow_cache::{
    CachedFlow, CachedTraffic, FirstNumbers, FlowCache, FlowChange, FlowChangeKind, FlowHandshake, FlowLatch, FlowSlot,
    FlowStart, FlowSteps, ForwardedFlow, HANDSHAKES, Initiator, KernelFlows, NEAR, RENEWED_IN_LAST,
};
#[cfg(target_os = "linux")]
pub use frame_pool::FramePool;
#[cfg(target_os = "linux")]
pub use live::{Port, PortError, PortStatistics};
#[cfg(target_os = "linux")]
pub use loopback_port::{LoopbackError, LoopbackPeer, LoopbackPort};
pub use port_finder::PortFinder;
#[cfg(feature = "bench")]
pub use xsk::Generator;
#[cfg(target_os = "linux")]
pub use xsk::{
    Absence, Away, ChangeWatch, Datagram, DatagramSocket, Encapsulation, Firewall, FirewallDrop, FirewallHook,
    FirewallPacket, Frame, HostPair, HostRoute, Interface, InterfaceAddress, KernelFlowCache, KernelRoute, LinkEvent,
    LinkFeatures, LinkInfo, LinkStatus, LinkWatch, MAIN_TABLE, MappedFile, NodeHop, Outer, OwnRoute, PollSet,
    QueueConfig, Reach, Refusal, RouteRefused, SlowPathLimit, TUNNEL_TABLE, TcAttachment, TcConfig, TcDatapath, TcHook,
    TcProgram, TcpLimits, Tunnel, TunnelConfig, TunnelDrops, TunnelEnd, TunnelPeer, Umem, UmemError, Undelivered,
    Waker, Watched, XdpMode, XskError, XskPort, addresses, claim_trunk, cores, default_route_interfaces,
    default_route_mtu, has_another_layout, has_nft_rules, in_namespace, is_trunk_claimed, kernel_routes, links,
    network_namespace, nft_chain_names, own_routes, pinned_links, poll, reach, reach_from, remove_node_programs,
    remove_tc_datapath, remove_tunnel, replace_routes, set_generic_receive_offload, set_link_up,
    set_transmit_checksum_offload, takes_xdp_frames, tc_programs, transmit_checksum_offload, trunk_claimant,
    xdp_programs,
};
#[cfg(target_os = "linux")]
pub(crate) use xsk::{FileWords, map_file};

pub use crate::flow::Translation;

use crate::LinkType;

/// A packet's direction at the interface that captured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The machine that captured the packet received it.
    Inbound,
    /// The machine that captured the packet sent it.
    Outbound,
}

/// One packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// The packet's position in the file, from 1, as in Wireshark.
    pub number: u64,
    /// Nanoseconds since 1970-01-01 UTC. Earlier times are 0; times after 2554 are clamped.
    pub time: u64,
    /// The frame's link-layer header type.
    pub link: LinkType,
    /// Name of the capturing interface. `None` if the file does not say.
    pub interface: Option<&'a Arc<str>>,
    /// Whether the capturing interface received or sent the packet. `None` if the file does not say.
    pub direction: Option<Direction>,
    /// The captured bytes.
    pub data: &'a [u8],
    /// The frame's length on the wire in bytes, at least `data.len()`.
    pub original_len: usize,
}

#[cfg(test)]
mod tests;
