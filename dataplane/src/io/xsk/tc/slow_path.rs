//! Program steps that send a packet to a worker: the port's limit, the worker's queue, the trunk.

use super::super::flow_layout::{cells, key};
use super::super::flow_place::Place::{self, Drop, End};
use super::super::flow_stack::{CONTEXT, DATA, KEY, PACKETS, SCRATCH, SLOT, STACK};
use super::super::flow_steps::ask_time;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, Multiply, Or, ShiftLeft, ShiftRight, Subtract, Xor};
use super::super::instruction::Test::{AtLeast, Differs, Equal, Greater};
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{SERVICE_TAG, context, function};

/// Register 1 becomes the address of the cells of the slot in register 2.
pub(super) fn slot_cell(program: &mut Assembler<Place>, table: &FlowTable) {
    // Never taken; the verifier requires the check.
    program.jump_if(2, AtLeast, cells::SLOTS, Drop);
    program.apply(ShiftLeft, 2, cells::SLOT_LEN.ilog2().cast_signed());
    program.push(Instruction::value(1, &table.cells, cells::SLOT));
    program.apply_register(Add, 1, 2);
}

/// Jumps to `over` if the port has exceeded its slow path limit. A cost of 0 means no limit. Each use needs its own two labels.
pub(super) fn limit(program: &mut Assembler<Place>, table: &FlowTable, over: Place, [recent, unlimited]: [Place; 2]) {
    const { assert!(cells::SAVED == cells::COST + 8) };
    program.push(Instruction::value(1, &table.cells, cells::COST));
    program.load(Double, 4, 1, 0);
    program.jump_if(4, Equal, 0, unlimited);
    program.load(Double, 5, 1, 8);
    program.store(Double, STACK, 4, SCRATCH);
    program.push([Instruction::copy(DATA, 5)]);
    ask_time(program);
    program.load(Word, 2, STACK, SLOT);
    slot_cell(program, table);
    // used = max(used, now - saved)
    program.load(Double, 3, 1, cells::USED);
    program.push([Instruction::copy(4, 0)]);
    program.apply_register(Subtract, 4, DATA);
    program.jump_if_register(3, AtLeast, 4, recent);
    program.push([Instruction::copy(3, 4)]);
    program.place(recent);
    program.jump_if_register(3, Greater, 0, over);
    program.load(Double, 4, STACK, SCRATCH);
    program.load(Double, 5, STACK, PACKETS);
    program.apply_register(Multiply, 4, 5);
    program.apply_register(Add, 3, 4);
    program.store(Double, 1, 3, cells::USED);
    program.place(unlimited);
}

/// Selects the trunk's queue of the worker that owns the session, with the hash of `Affinity`. Packets whose addresses the program does not
/// know go to any worker, which passes them on.
pub(super) fn choose_worker(program: &mut Assembler<Place>, table: &FlowTable) {
    program.push(Instruction::value(1, &table.cells, cells::HASH));
    for (at, register) in [(0, 2), (8, 3)] {
        program.load(Double, register, 1, at);
    }
    // Register 0 becomes the sum over both addresses of (first half * one key + second half) * other key, folded.
    for (first, result) in [(key::SOURCE, 4), (key::DESTINATION, 0)] {
        program.load(Double, result, STACK, KEY + first);
        program.apply_register(Multiply, result, 2);
        program.load(Double, 5, STACK, KEY + first + 8);
        program.apply_register(Add, result, 5);
        program.apply_register(Multiply, result, 3);
        program.push([Instruction::copy(5, result)]);
        program.apply(ShiftRight, 5, 32);
        program.apply_register(Xor, result, 5);
    }
    program.apply_register(Add, 0, 4);
    program.load(Double, 2, 1, 16);
    program.apply_register(Multiply, 0, 2);
    program.apply(ShiftRight, 0, 32);
    program.push(Instruction::value(1, &table.cells, cells::WORKERS));
    program.load(Word, 2, 1, 0);
    program.apply_register(Multiply, 0, 2);
    program.apply(ShiftRight, 0, 32);
    // Queue mapping 0 would let the kernel choose.
    program.apply(Add, 0, 1);
    program.store(Word, CONTEXT, 0, context::QUEUE_MAPPING);
}

/// Redirects the packet to the trunk, with the port's slot as VLAN tag.
pub(super) fn send_to_worker(program: &mut Assembler<Place>, table: &FlowTable) {
    push_tag(program, 0, Drop);
    program.push(Instruction::value(1, &table.cells, cells::TRUNK));
    program.load(Word, 1, 1, 0);
    program.push([Instruction::set(2, 0), Instruction::call(function::REDIRECT)]);
    program.jump(End);
}

/// Pushes a VLAN tag with the port's slot and these bits of the control word. Jumps to `failed` if the kernel refuses.
pub(super) fn push_tag(program: &mut Assembler<Place>, bits: i32, failed: Place) {
    program.load(Word, 3, STACK, SLOT);
    program.apply(Or, 3, bits);
    program.push([
        Instruction::copy(1, CONTEXT),
        Instruction::set(2, SERVICE_TAG),
        Instruction::call(function::VLAN_PUSH),
    ]);
    program.jump_if(0, Differs, 0, failed);
}
