//! AF_XDP sockets over `libc`: packets between the kernel and our memory, past the kernel's own stack.
//!
//! **Purpose.** [`Interface`] takes an interface over; [`XskPort`] is one queue of it as a [`Port`](super::Port).
//! **Not its purpose:** looking into packets, or knowing what a worker is.
//!
//! # The four rings
//!
//! A socket has four rings in memory that it shares with the kernel. Entries are chunk addresses in the region of
//! packet memory ([`Umem`]) that is registered with the socket, in two of the rings with a length and flags. Each ring
//! has one producer and one consumer ([`ring`]):
//!
//! | ring       | written by | read by | an entry says                                            |
//! |------------|------------|---------|----------------------------------------------------------|
//! | fill       | us         | kernel  | "receive into this chunk"                                |
//! | receive    | kernel     | us      | "a packet, or a part of one, is here"                    |
//! | transmit   | us         | kernel  | "send the packet, or a part of one, that is here"        |
//! | completion | kernel     | us      | "this one is sent, the chunk is yours again"             |
//!
//! Receiving. The XDP program ([`program`]) runs where the packet comes in, on the *sender's* core for a veth, and
//! names the socket; the kernel copies the packet into the next chunk of the fill ring:
//!
//! ```text
//!               FramePool --take--> Frame
//!                  ^                  | lend
//!        give      |                  v            kernel
//!   (after send)   |            +-----------+
//!                  |            |   fill    | ------------> chunk
//!                  |            +-----------+                 | copy of the packet
//!                  |            +-----------+                 v
//!               worker <--take--|  receive  | <------------ address, length, "goes on"
//!                               +-----------+
//! ```
//!
//! Sending. The kernel looks at the transmit ring when it is told to (a *kick*: `sendto` without bytes), copies the
//! packet and hands it to the driver; when the copy is freed, the chunk comes back:
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
//! The life of a frame: `FramePool` - fill ring - kernel - receive ring - worker - *another port's* transmit ring -
//! kernel - that port's completion ring - that worker's `FramePool`. Every socket has registered the same region, so
//! between ports 16 bytes move and no packet does.
//!
//! # What has to be known
//!
//! * **Who owns a chunk** is a bit per chunk and port ([`lent`]): a [`Frame`] is consumed when its chunk is lent to the
//!   kernel and made again when the kernel names it in a ring. When the port is closed, what is still lent is taken
//!   back; when the kernel names what it does not have, nothing happens but a count.
//! * **One kick is not enough.** In copy mode the kernel sends 32 packets per call and says `EAGAIN`; the port repeats
//!   it until the transmit ring is empty. Without that, the rest would wait for the next burst, which may never come.
//! * **Nothing wakes a receiver** on a veth but the fill ring, which the kernel looks at by itself: only drivers that
//!   set the "need wakeup" flag are called. A worker that wants to sleep polls the descriptor ([`poll`]). A packet
//!   wakes it; an interface that is removed does not, so it must not sleep for ever.
//! * **Packets of several frames** (jumbo) have `XDP_PKT_CONTD` on all descriptors but the last. The kernel gives them
//!   whole or not at all, and so do we.
//! * **A chunk that the kernel refuses to send is lost**: a descriptor that it takes for wrong is counted and does not
//!   come back. So the port sends none of those: no empty frame, no chain that is too long.
//! * **Checksums.** A veth's sender leaves TCP and UDP checksums to hardware that is not there, and the mark that says
//!   so is lost on the way to a socket. [`set_transmit_checksum_offload`] turns that off on the sender's end. ICMP is
//!   not concerned, so ping works either way and tests nothing.
//! * **Not every packet comes here.** With a flow cache the program itself sends packets of flows that a worker has added
//!   ([`flow_cache`]); what it does not send comes through the rings as ever.
//! * **Ports need no sockets of their own** where they are attached at their tc hooks: then the sockets are at one end of a trunk that
//!   all ports share ([`tc`]).
//! * **The program goes with the process**, since it is attached by a descriptor (`bpf_link`): after `kill -9` the
//!   interface is as before. A socket may be bound for some more milliseconds; binding again waits for that.
#![expect(
    unsafe_code,
    reason = "memory that is shared with the kernel, and system calls that libc has no safe form of"
)]

mod addresses;
mod big_tcp;
mod bpf;
pub mod cores;
mod error;
mod features;
mod flow_cache;
mod flow_encoding;
mod flow_headers;
mod flow_layout;
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
mod port;
mod program;
mod queue_config;
mod ring;
mod socket;
mod tc;
mod umem;
mod wait;
mod xdp_mode;

pub use addresses::{AddressWatch, InterfaceAddress, addresses};
pub use big_tcp::set_longest_tcp_packet;
pub use error::XskError;
pub use features::takes_xdp_frames;
pub use flow_cache::KernelFlowCache;
#[cfg(feature = "bench")]
pub use generator::Generator;
pub use hooks::{TcHook, TcProgram, tc_programs};
pub use host_pair::{HostPair, HostRoute};
pub use interface::Interface;
pub use kernel_routes::{KernelRoute, kernel_routes};
pub use link::{
    LinkFeatures, LinkInfo, set_generic_receive_offload, set_transmit_checksum_offload, transmit_checksum_offload,
};
pub use link_status::{LinkEvent, LinkStatus, links};
pub use link_watch::LinkWatch;
pub use mapping::MappedFile;
pub(crate) use mapping::{FileWords, map_file};
pub use namespace::in_namespace;
pub use netfilter::has_nft_rules;
pub use netlink::{default_route_interfaces, xdp_programs};
pub use netlink_write::set_link_up;
pub use port::XskPort;
pub use queue_config::QueueConfig;
pub use tc::{SlowPathLimit, TcAttachment, TcConfig, TcDatapath, is_trunk_in_use, remove_tc_datapath};
pub use umem::{Frame, Umem, UmemError};
pub use wait::{PollSet, Waker, poll};
pub use xdp_mode::XdpMode;

/// The size of a structure of the kernel's interfaces, as these take it.
#[expect(clippy::cast_possible_truncation, reason = "asked at compile time")]
const fn small_size<T>() -> u32 {
    const { assert!(size_of::<T>() < 4096) };
    size_of::<T>() as u32
}
