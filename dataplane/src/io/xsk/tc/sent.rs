//! Records of the masqueraded packets that leave over the card, by which the program there knows their answers.
//!
//! ```text
//!   a worker sends a packet to the world: store its record;      a program sends one: touch the record
//!   a packet without a flow comes to the node's address and one of the source ports: its record exists?  | else: the kernel's
//! ```
//!
//! A range of ports alone does not suffice: the node's kernel may give its own connections the same ports (rules with `random-fully`).
//!
//! The map evicts the records that were not used for the longest time. The answers of a connection without a record and without a flow come to the
//! node's kernel, which resets the connection.

use std::io;
use std::path::Path;

use super::super::flow_headers::{ETHERNET, HEADER, IPV4, IPV6, TYPE_V6, UDP, need};
use super::super::flow_place::Place::{
    self, Remembered, SentEcho, SentFragment, SentKey, SentSecond, SentSource, SentThird, SentV6, SentV6Ports,
};
use super::super::flow_stack::{DATA, SENT_KEY, STACK};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::Add;
use super::super::instruction::Test::{Differs, Equal, Shares};
use super::super::instruction::Width::{Byte, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::{MAP_LRU_HASH, Map, MapKind};
use super::abi::function;
use super::taken_ports;
use crate::io::xsk::small_size;

/// Maximum number of records, about 100 bytes each: twice the source ports of one destination, since the kernel evicts some before the map is full.
const RECORDS: u32 = 1 << 17;
/// Stack offsets of a record's protocol (4 bytes), and of the world's and the node's port (2 bytes each, in network order). An echo request has its
/// identifier instead of the node's port, and 0 as the world's. The world's address follows, in its mapped form for IPv4.
pub(super) const PROTOCOL: i16 = SENT_KEY;
pub(super) const WORLD_PORT: i16 = SENT_KEY + 4;
pub(super) const NODE_PORT: i16 = SENT_KEY + 6;
/// Length of a record's key in bytes.
const KEY: usize = 24;

/// Masks of the 16 bits, in host order, that have a fragment's offset: in the IPv4 header (RFC 791 §3.1), and in the fragment header of IPv6 (RFC 8200
/// §4.5).
pub(super) const OFFSET_V4: i32 = 0x1fff;
pub(super) const OFFSET_V6: i32 = 0xfff8;
/// The length in bytes of the fragment header of IPv6, and the byte of the packet at which the transport header begins behind one.
pub(super) const FRAGMENT: i32 = 8;
pub(super) const TRANSPORT_BEHIND_FRAGMENT: i16 = HEADER + 48;

/// Where a packet comes from that the program sends to another node or to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// From a worker. The packet may be the first one of its connection.
    Worker,
    /// From a pod, by a known flow. A worker has sent the first packet of its connection.
    Program,
}

/// Opens the map that is pinned in this folder, or creates it. Without a folder, creates a map that is not pinned.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn records(folder: Option<&Path>) -> io::Result<Map> {
    let kind = MapKind {
        kind: MAP_LRU_HASH,
        name: "bulkhead_sent",
        key_size: small_size::<[u8; KEY]>(),
        value_size: small_size::<u64>(),
        entries: RECORDS,
        flags: 0,
    };
    Map::at(&kind, folder)
}

/// Records the packet if its source port is one of masqueraded packets. Its destination is in the key of a next hop. Packets that have no answers of their
/// own are not recorded: fragments after the first, and ICMP other than echo requests. Overwrites registers 0 to 5.
pub(super) fn remember(program: &mut Assembler<Place>, table: &FlowTable, records: &Map, sender: Sender) {
    const TRANSPORT: i16 = HEADER + 20;
    const TRANSPORT_V6: i16 = HEADER + 40;
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, SentV6);
    need(program, DATA, ETHERNET + IPV4 + UDP, Remembered);
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Remembered);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.jump_if(3, Shares, OFFSET_V4, Remembered);
    program.load(Byte, 3, DATA, HEADER + 9);
    load_transport(program, TRANSPORT);
    program.jump_if(3, Equal, libc::IPPROTO_ICMP, SentEcho);
    program.jump(SentKey);
    program.place(SentV6);
    need(program, DATA, ETHERNET + IPV6 + UDP, Remembered);
    program.load(Byte, 3, DATA, HEADER + 6);
    program.jump_if(3, Equal, libc::IPPROTO_FRAGMENT, SentFragment);
    load_transport(program, TRANSPORT_V6);
    program.place(SentV6Ports);
    program.jump_if(3, Equal, libc::IPPROTO_ICMPV6, SentEcho);
    program.jump(SentKey);
    program.place(SentFragment);
    need(program, DATA, ETHERNET + IPV6 + FRAGMENT + UDP, Remembered);
    program.load(Short, 3, DATA, TRANSPORT_V6 + 2);
    program.swap_short(3);
    program.jump_if(3, Shares, OFFSET_V6, Remembered);
    program.load(Byte, 3, DATA, TRANSPORT_V6);
    load_transport(program, TRANSPORT_BEHIND_FRAGMENT);
    program.jump(SentV6Ports);
    program.place(SentEcho);
    // The identifier, and no port of the world.
    program.push([Instruction::copy(4, 0), Instruction::set(5, 0)]);
    program.place(SentKey);
    program.store(Word, STACK, 3, PROTOCOL);
    program.store(Short, STACK, 5, WORLD_PORT);
    program.store(Short, STACK, 4, NODE_PORT);
    program.swap_short(4);
    taken_ports::is_source(program, table, [SentSecond, SentThird, SentSource], Remembered);
    match sender {
        Sender::Worker => {
            taken_ports::take(program, table);
            store(program, records);
        }
        Sender::Program => look_up(program, records, SENT_KEY),
    }
    program.place(Remembered);
}

/// Loads three numbers of the transport header at byte `at` of the packet, in network order: the source port into register 4, the destination port into
/// register 5, and an echo's identifier into register 0.
fn load_transport(program: &mut Assembler<Place>, at: i16) {
    program.load(Short, 4, DATA, at);
    program.load(Short, 5, DATA, at + 2);
    program.load(Short, 0, DATA, at + 4);
}

/// Stores the record whose key is on the stack. Its value is its protocol and ports, which nothing reads.
fn store(program: &mut Assembler<Place>, records: &Map) {
    program.push(Instruction::map(1, records));
    for (register, at) in [(2, SENT_KEY), (3, SENT_KEY)] {
        program.push([Instruction::copy(register, STACK)]);
        program.apply(Add, register, at.into());
    }
    program.push([Instruction::set(4, 0), Instruction::call(function::MAP_UPDATE)]);
}
