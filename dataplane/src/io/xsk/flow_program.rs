//! The XDP program with a flow cache before the sockets.
//!
//! ```text
//!   no socket for the queue: drop, as without a cache
//!   complete TCP or UDP packet, IPv4 without options or IPv6 without extension headers, hop limit above 1;
//!   no SYN, FIN or RST                                              | no: to the socket
//!   in the map of flows, with the epochs of its two ports           | no: to the socket
//!   the flow's received MAC addresses                               | no: to the socket
//!   not longer than the egress port's longest frame, lease valid    | no: to the socket
//!   the latch is open, or the handshake has ended                    | no: counted there, to the socket
//!   the egress port is open: count, translate (flow_translation), decrement the hop limit, set MAC addresses, send
//! ```
//!
//! Every check equals one of the worker's fast path, or is stricter; unusual packets go to the worker. So the program drops no packet that
//! the worker would forward, and forwards only packets that the worker would have forwarded when it added the flow. After a session ends,
//! its flow continues for the rest of the lease, under the same tables.

use super::flow_headers::{Extent, clear_key, parse, rewrite};
use super::flow_layout::value;
use super::flow_place::Place::{self, Drop, End, Miss, MissAgain};
use super::flow_stack::{CONTEXT, DATA, DATA_END, PACKETS, STACK, VALUE};
use super::flow_steps::{begin, check_addresses, check_lease, count, find};
use super::flow_table::FlowTable;
use super::flow_translation::{change_checksum, translate};
use super::instruction::Operation::Add;
use super::instruction::Test::{Differs, Greater};
use super::instruction::Width::{Double, Short, Word};
use super::instruction::{Assembler, Instruction};
use super::map::Map;
use crate::io::FlowSlot;

/// `struct xdp_md`.
mod context {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

/// Numbers of the kernel's helper functions.
mod function {
    pub(super) const REDIRECT_MAP: i32 = 51;
}

/// `XDP_DROP`.
const DROP: i32 = 1;
/// `XDP_REDIRECT`.
const REDIRECT: i32 = 4;

/// The maps that an XDP program with a flow cache uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps<'a> {
    pub(super) sockets: &'a Map,
    pub(super) interfaces: &'a Map,
    pub(super) table: &'a FlowTable,
}

/// Builds the program of the port in this slot.
pub(super) fn instructions(maps: Maps<'_>, slot: FlowSlot) -> Vec<Instruction> {
    let mut program = Assembler::new();
    program.push([Instruction::copy(CONTEXT, 1)]);
    name_socket(&mut program, maps.sockets);
    program.jump_if(0, Differs, REDIRECT, End);
    program.load(Word, DATA, CONTEXT, context::DATA);
    program.load(Word, DATA_END, CONTEXT, context::DATA_END);
    program.push([Instruction::set(2, i32::from(slot.0))]);
    clear_key(&mut program, 2);
    parse(&mut program, Extent::Buffer);
    find(&mut program, maps.table, |_| {});
    check_addresses(&mut program);
    fit(&mut program);
    begin(&mut program, maps.table, Miss);
    check_lease(&mut program, Miss);
    name_way_out(&mut program, maps.interfaces);
    program.push([Instruction::set(1, 1)]);
    program.store(Double, STACK, 1, PACKETS);
    count(&mut program, maps.table);
    translate(&mut program, change_checksum);
    rewrite(&mut program, VALUE, |_| {});
    program.push([Instruction::set(0, REDIRECT)]);
    program.jump(End);
    program.place(Drop);
    program.push([Instruction::set(0, DROP)]);
    program.jump(End);
    program.place(MissAgain);
    name_socket(&mut program, maps.sockets);
    program.jump(End);
    program.place(Miss);
    program.push([Instruction::set(0, REDIRECT)]);
    program.place(End);
    program.push([Instruction::exit()]);
    program.finish()
}

/// Selects the queue's socket as destination, or a drop without one. A later selection replaces it.
fn name_socket(program: &mut Assembler<Place>, sockets: &Map) {
    program.load(Word, 2, CONTEXT, context::RX_QUEUE_INDEX);
    program.push(Instruction::map(1, sockets));
    program.push([Instruction::set(3, DROP), Instruction::call(function::REDIRECT_MAP)]);
}

/// Jumps to `Miss` unless the egress port can send the frame, including link-layer padding.
fn fit(program: &mut Assembler<Place>) {
    program.load(Short, 1, STACK, VALUE + value::LONGEST);
    program.push([Instruction::copy(2, DATA)]);
    program.apply_register(Add, 2, 1);
    program.jump_if_register(DATA_END, Greater, 2, Miss);
}

/// Selects the flow's egress interface as destination. Jumps to `MissAgain` if it is closed.
fn name_way_out(program: &mut Assembler<Place>, interfaces: &Map) {
    program.push(Instruction::map(1, interfaces));
    program.load(Word, 2, STACK, VALUE + value::OUT);
    program.push([Instruction::set(3, 0), Instruction::call(function::REDIRECT_MAP)]);
    program.jump_if(0, Differs, REDIRECT, MissAgain);
}
