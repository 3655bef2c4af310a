//! Program steps by which UDP conversations that pods of other nodes begin leave the node's network stack.
//!
//! ```text
//!   from_nodes: a datagram without a flow, from another node's pod to one of this node: record its addresses and ports, pass it to the kernel
//!   ingress of the host port: a datagram without a flow, with the same addresses and ports, soon after: it is the port's to other nodes
//! ```
//!
//! The first datagram may be the reply to one that the node's kernel has translated (kube-proxy), and a program cannot tell. If it comes out of
//! the kernel as it went in, the kernel does not translate the conversation. The worker then adds its flow for the port to other nodes, and the
//! next datagrams and the replies pass the stack by.
//!
//! A datagram that the kernel sends to a pod instead of the node, as for a NodePort, has no record: on the wire, its destination was the node.

use std::io;

use super::super::flow_layout::{cells, key};
use super::super::flow_place::Place::{self, Chosen};
use super::super::flow_stack::{CONTEXT, KEY, NOW, SLOT, STACK};
use super::super::flow_steps::{ask_time, look_up};
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, And, Subtract};
use super::super::instruction::Test::{Differs, Equal, Greater};
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::{MAP_LRU_HASH, Map, MapKind};
use super::abi::{context, function};
use super::slow_path::slot_cell;

/// How long a record counts, in nanoseconds: much longer than the kernel's forwarding takes, and short enough that a later conversation with the
/// same ports has to record itself.
const VALID: i32 = 1_000_000_000;

/// Maximum number of records, 56 bytes each; a full map evicts the least recently used one. A datagram whose record is evicted while the kernel
/// forwards it is judged as the host port's, and its conversation stays in the kernel. So the number is far above that of the datagrams which the
/// kernel forwards at a time.
const RECORDS: u32 = 1 << 13;

/// Creates the map of records: from the key of a flow of the port to other nodes to the coarse time in nanoseconds, 8 bytes.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn records() -> io::Result<Map> {
    Map::of(&MapKind {
        kind: MAP_LRU_HASH,
        name: "bulkhead_wire",
        key_size: u32::from(key::LEN.cast_unsigned()),
        value_size: 8,
        entries: RECORDS,
        flags: 0,
    })
}

/// Loads the number of the packet's IP protocol into register 1; 0 if the program has not parsed the headers that far.
pub(super) fn load_protocol(program: &mut Assembler<Place>) {
    program.load(Word, 1, STACK, KEY + key::KIND);
    program.apply(And, 1, 0xff);
}

/// Records the packet whose key is on the stack.
pub(super) fn record(program: &mut Assembler<Place>, records: &Map) {
    ask_time(program);
    program.store(Double, STACK, 0, NOW);
    program.push(Instruction::map(1, records));
    for (register, at) in [(2, KEY), (3, NOW)] {
        program.push([Instruction::copy(register, STACK)]);
        program.apply(Add, register, at.into());
    }
    program.push([Instruction::set(4, 0), Instruction::call(function::MAP_UPDATE)]);
}

/// Replaces the slot on the stack by that of the port to other nodes if the packet is a datagram that the kernel has forwarded unchanged, at the
/// interface that both ports share. Overwrites the slot in the key.
pub(super) fn choose_slot(program: &mut Assembler<Place>, table: &FlowTable, records: &Map) {
    load_protocol(program);
    program.jump_if(1, Differs, libc::IPPROTO_UDP, Chosen);
    program.push(Instruction::value(1, &table.cells, cells::NODES_SLOT));
    program.load(Word, 2, 1, 0);
    program.jump_if(2, Equal, 0, Chosen);
    program.store(Word, STACK, 2, KEY + key::SLOT);
    slot_cell(program, table);
    program.load(Word, 2, 1, cells::WAY);
    program.load(Word, 3, CONTEXT, context::IFINDEX);
    program.jump_if_register(2, Differs, 3, Chosen);
    is_recorded(program, records, Chosen);
    program.load(Word, 1, STACK, KEY + key::SLOT);
    program.store(Double, STACK, 1, SLOT);
    program.place(Chosen);
}

/// Jumps to `otherwise` unless the key was recorded within [`VALID`].
pub(super) fn is_recorded(program: &mut Assembler<Place>, records: &Map, otherwise: Place) {
    look_up(program, records, KEY);
    program.jump_if(0, Equal, 0, otherwise);
    program.load(Double, 1, 0, 0);
    program.store(Double, STACK, 1, NOW);
    ask_time(program);
    program.load(Double, 1, STACK, NOW);
    program.apply_register(Subtract, 0, 1);
    program.jump_if(0, Greater, VALID, otherwise);
}
