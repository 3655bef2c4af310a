//! The programs that deliver packets from workers to ports, and that keep all other packets from pods.
//!
//! Tc ingress of the trunk's first end:
//!
//! ```text
//!   an 802.1ad tag in the metadata               | else: drop
//!   slots[tag] is open                           | else: drop
//!   pop the tag
//!   PACKET_OTHERHOST: set PACKET_HOST, as the MAC address is the port's and not the trunk's
//!   to a pod: return bpf_redirect_peer(way); to other nodes: to_nodes; else: return bpf_redirect(way)
//! ```
//!
//! Tc egress of a pod's interface, on the node:
//!
//! ```text
//!   count for the interface's port, drop
//! ```
//!
//! Only the node's kernel sends there. Packets of workers and of cached flows enter the pod at the veth's other end.

use super::super::flow_layout::{cells, traffic};
use super::super::flow_place::Place::{self, Drop, End, Known};
use super::super::flow_stack::{CONTEXT, STACK};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, And, ShiftLeft};
use super::super::instruction::Test::{Differs, Equal};
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;
use super::abi::{SERVICE_TAG, SHOT, context, function};
use super::ingress::redirect;
use super::sent::Sender;
use super::{how, to_nodes};

/// Stack offset of the egress interface's index and how to send to it ([`super::how`]), 8 bytes together.
const WAY: i16 = -8;
/// Stack offset of the key for a lookup, 8 bytes.
const SCRATCH: i16 = -16;

/// Builds the program at the trunk's first end, which delivers packets from workers to ports.
pub(super) fn to_ports(table: &FlowTable, to_nodes: [&Map; 2]) -> Vec<Instruction> {
    /// `PACKET_HOST`, `PACKET_OTHERHOST`.
    const HOST: i32 = 0;
    const OTHER_HOST: i32 = 3;
    let mut program = Assembler::new();
    program.push([Instruction::copy(CONTEXT, 1)]);
    program.load(Word, 1, CONTEXT, context::VLAN_PRESENT);
    program.jump_if(1, Equal, 0, Drop);
    program.load(Word, 1, CONTEXT, context::VLAN_PROTO);
    program.jump_if(1, Differs, SERVICE_TAG, Drop);
    program.load(Word, 2, CONTEXT, context::VLAN_TCI);
    // The other bits are priority and "drop eligible".
    program.apply(And, 2, cells::SLOTS - 1);
    program.apply(ShiftLeft, 2, cells::SLOT_LEN.ilog2().cast_signed());
    program.push(Instruction::value(1, &table.cells, cells::SLOT));
    program.apply_register(Add, 1, 2);
    program.load(Double, 2, 1, cells::WAY);
    program.store(Double, STACK, 2, WAY);
    program.load(Word, 2, STACK, WAY + cells::HOW);
    program.jump_if(2, Equal, how::CLOSED.cast_signed(), Drop);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::VLAN_POP)]);
    program.jump_if(0, Differs, 0, Drop);
    program.load(Word, 1, CONTEXT, context::PKT_TYPE);
    program.jump_if(1, Differs, OTHER_HOST, Known);
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(2, HOST), Instruction::call(function::CHANGE_TYPE)]);
    program.place(Known);
    redirect(&mut program, WAY);
    let length = |program: &mut Assembler<Place>| program.load(Word, 1, CONTEXT, context::LEN);
    to_nodes::send(&mut program, table, to_nodes, WAY, Sender::Worker, length);
    drop_and_end(program)
}

/// Builds the program at tc egress of a pod's interface, which drops all packets.
pub(super) fn guard(table: &FlowTable, ports: &Map) -> Vec<Instruction> {
    let mut program = Assembler::new();
    program.load(Word, 2, 1, context::IFINDEX);
    program.store(Word, STACK, 2, SCRATCH);
    look_up(&mut program, ports, SCRATCH);
    program.jump_if(0, Equal, 0, Drop);
    program.load(Word, 1, 0, 0);
    program.store(Double, STACK, 1, SCRATCH);
    look_up(&mut program, &table.traffic, SCRATCH);
    program.jump_if(0, Equal, 0, Drop);
    program.push([Instruction::set(2, 1)]);
    program.add_to(0, 2, traffic::BYPASSED, 1);
    drop_and_end(program)
}

fn drop_and_end(mut program: Assembler<Place>) -> Vec<Instruction> {
    program.place(Drop);
    program.push([Instruction::set(0, SHOT)]);
    program.place(End);
    program.push([Instruction::exit()]);
    program.finish()
}
