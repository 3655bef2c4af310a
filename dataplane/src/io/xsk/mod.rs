//! AF_XDP sockets and tc programs over `libc`: packets move between the kernel and the vswitch's memory, past the kernel's stack.
//!
//! [`Interface`] attaches to an interface; [`XskPort`] is one of its queues as a [`Port`](super::Port). The module neither inspects packets
//! nor depends on workers.
//!
//! # The four rings
//!
//! A socket shares four rings in memory with the kernel. Entries are chunk addresses in the packet memory ([`Umem`]) that is registered
//! with the socket. Entries of the receive and transmit ring also have a length and flags. Each ring has one producer and one
//! consumer ([`ring`]):
//!
//! | ring       | written by | read by | an entry says                                            |
//! |------------|------------|---------|----------------------------------------------------------|
//! | fill       | vswitch    | kernel  | "receive into this chunk"                                |
//! | receive    | kernel     | vswitch | "a packet, or a part of one, is here"                    |
//! | transmit   | vswitch    | kernel  | "send the packet, or a part of one, that is here"        |
//! | completion | kernel     | vswitch | "this one is sent, the chunk is free again"              |
//!
//! Receiving: the XDP program ([`program`]) runs on the receiving core, which for a veth is the *sender's* core. It selects the socket,
//! and the kernel copies the packet into the next chunk of the fill ring:
//!
//! ```text
//!               FramePool --take--> Frame
//!                  ^                  | lend
//!        give      |                  v            kernel
//!   (after send)   |            +-----------+
//!                  |            |   fill    | ------------> chunk
//!                  |            +-----------+                 | copy of the packet
//!                  |            +-----------+                 v
//!               worker <--take--|  receive  | <------------ address, length, "more"   
//!                               +-----------+
//! ```
//!
//! Sending: the kernel reads the transmit ring after a *kick* (`sendto` without bytes), copies the packet and passes the copy to the
//! driver. When the copy is freed, the chunk returns:
//!
//! ```text
//!               worker --lend-->+-----------+      kernel
//!                               | transmit  | ------------> copy of the packet --> driver
//!            kick: sendto() --> +-----------+                 | when it is freed
//!                               +-----------+                 v
//!             FramePool <-take--| completion| <------------ address
//!                               +-----------+
//! ```
//!
//! A frame's life cycle: `FramePool` - fill ring - kernel - receive ring - worker - *another port's* transmit ring -
//! kernel - that port's completion ring - that worker's `FramePool`. All sockets register the same region, so forwarding
//! between ports moves 16 bytes and copies no packet.
//!
//! # Properties of the kernel, and consequences
//!
//! * **Chunk ownership** is one bit per chunk and port ([`lent`]). Lending a chunk to the kernel consumes its [`Frame`]; a ring entry
//!   from the kernel creates it again. Closing the port takes back all lent chunks. A ring entry for a chunk that is not lent is only
//!   counted.
//! * **One kick is not enough.** In copy mode the kernel sends 32 packets per call and returns `EAGAIN`. The port repeats the call until
//!   the transmit ring is empty; otherwise the rest waits for a next burst, which may never come.
//! * **Receiving on a veth needs no system call**: the kernel reads the fill ring by itself. Only drivers that set the "need wakeup" flag
//!   need a call. An idle worker sleeps in [`poll`] on the descriptor. A packet wakes it, but removal of the interface does not, so
//!   its sleep needs a timeout.
//! * **Packets of several frames** (jumbo) have `XDP_PKT_CONTD` set in all descriptors but the last. The kernel and the port pass them only
//!   whole.
//! * **The kernel never returns a chunk that it refuses to send**; it only counts the descriptor as invalid. So the port sends no empty
//!   frames and no chains that are too long.
//! * **Checksums.** A veth's sender leaves TCP and UDP checksums to absent hardware, and AF_XDP drops the mark that says so.
//!   [`set_transmit_checksum_offload`] turns the offload off at the sender. ICMP is unaffected, so a working ping proves nothing.
//! * **Flow cache.** With a flow cache ([`flow_cache`]), the XDP program itself forwards packets of flows that a worker has added. All
//!   other packets use the rings.
//! * **Ports attached at tc hooks have no sockets.** All ports share a trunk ([`tc`]) that ends at the workers' sockets.
//! * **The XDP program ends with the process**, because a descriptor (`bpf_link`) attaches it: `kill -9` restores the interface. A socket
//!   may stay bound for some milliseconds; binding again waits for that.
#![expect(
    unsafe_code,
    reason = "memory that is shared with the kernel, and system calls that libc has no safe form of"
)]

mod addresses;
mod big_tcp;
mod bpf;
mod change_watch;
pub mod cores;
mod datagram;
mod error;
mod features;
mod firewall;
mod flow_cache;
mod flow_changes;
mod flow_encoding;
mod flow_epochs;
mod flow_headers;
mod flow_layout;
mod flow_place;
mod flow_program;
mod flow_renewal;
mod flow_stack;
mod flow_steps;
mod flow_table;
mod flow_translation;
#[cfg(feature = "bench")]
mod generator;
mod generic;
mod hooks;
mod host_pair;
mod instruction;
mod interface;
mod kernel_flows;
mod kernel_routes;
mod lent;
mod link;
mod link_status;
mod link_watch;
mod map;
mod mapping;
mod namespace;
mod netfilter;
mod netlink;
mod netlink_write;
mod own_routes;
mod port;
mod program;
mod queue_config;
mod ring;
mod socket;
mod tc;
mod tunnel;
mod umem;
mod wait;
mod xdp_mode;

pub use addresses::{InterfaceAddress, addresses};
pub use big_tcp::TcpLimits;
pub use change_watch::{ChangeWatch, Watched};
pub use datagram::{Datagram, DatagramSocket, Refusal, Undelivered};
pub use error::XskError;
pub use features::takes_xdp_frames;
pub use firewall::{Firewall, FirewallDrop, FirewallHook, FirewallPacket, nft_chain_names};
pub use flow_cache::KernelFlowCache;
#[cfg(feature = "bench")]
pub use generator::Generator;
pub use hooks::{TcHook, TcProgram, tc_programs};
pub use host_pair::{HostPair, HostRoute};
pub use interface::Interface;
pub use kernel_routes::{Encapsulation, KernelRoute, Reach, kernel_routes, reach, reach_from};
pub use link::{
    LinkFeatures, LinkInfo, set_generic_receive_offload, set_transmit_checksum_offload, transmit_checksum_offload,
};
pub use link_status::{LinkEvent, LinkStatus, default_route_mtu, links};
pub use link_watch::LinkWatch;
pub use mapping::MappedFile;
pub(crate) use mapping::{FileWords, map_file};
pub use namespace::{in_namespace, network_namespace};
pub use netfilter::has_nft_rules;
pub use netlink::{default_route_interfaces, xdp_programs};
pub use netlink_write::set_link_up;
pub use own_routes::{MAIN_TABLE, OwnRoute, RouteRefused, own_routes, replace_routes};
pub use port::XskPort;
pub use queue_config::QueueConfig;
pub use tc::{
    Absence, Away, NodeHop, Outer, SlowPathLimit, TcAttachment, TcConfig, TcDatapath, TunnelEnd, claim_trunk,
    has_another_layout, is_trunk_claimed, pinned_links, remove_node_programs, remove_tc_datapath, trunk_claimant,
};
pub use tunnel::{TUNNEL_TABLE, Tunnel, TunnelConfig, TunnelDrops, TunnelPeer, remove_tunnel};
pub use umem::{Frame, Umem, UmemError};
pub use wait::{PollSet, Waker, poll};
pub use xdp_mode::XdpMode;

/// Returns the size of a kernel structure in bytes, as system calls take it.
#[expect(clippy::cast_possible_truncation, reason = "asked at compile time")]
const fn small_size<T>() -> u32 {
    const { assert!(size_of::<T>() < 4096) };
    size_of::<T>() as u32
}
