//! Program steps that all flow cache programs share: from a flow's key to the counters.
//!
//! ```text
//!   value = copy of flows[key], with the translation only if it has one
//!   flows[key] is still the same entry                                      | else: miss
//!   epochs[value.from] <= value.from_epoch, epochs[value.to] <= value.to_epoch | else: miss
//!   the frame's MAC addresses = value.received (not of other nodes' frames)  | else: miss
//!   unless value has begun before:
//!     value has a handshake:
//!       handshakes[value.latch].has_ended                                       | else:
//!         the packet comes from the initiator and acknowledges the SYN-ACK      | else: miss
//!         handshakes[value.latch].has_ended = true
//!     else: latches[value.latch] is open                                        | else: counted there, unleased
//!   coarse time < value.expires                                             | else: unleased
//!   count for the ingress slot, the egress slot, and the rule
//! ```
//!
//! An unleased packet of an XDP program is a miss. `tc/away.rs` says when a tc program forwards it.
//!
//! The map may evict a flow and reuse its entry while the program reads it. So the program first copies the value, then looks the flow up
//! again and compares the entry's address.

use std::ops::Range;

use super::flow_layout::{action, cells, decisions, handshake, key, traffic, value};
use super::flow_place::Place::{self, Counted, Found, Latched, Miss, Open, WithTranslation};
use super::flow_stack::{ACKNOWLEDGEMENT, AT, DATA, IS_TRANSLATED, KEY, LENGTH, NOW, PACKETS, SCRATCH, STACK, VALUE};
use super::flow_table::FlowTable;
use super::instruction::Operation::{Add, And, ShiftLeft, ShiftRight};
use super::instruction::Test::{AtLeast, Differs, Equal, Greater, Shares};
use super::instruction::Width::{Byte, Double, Short, Word};
use super::instruction::{Assembler, Instruction};
use super::map::Map;

/// Numbers of the kernel's helper functions.
mod function {
    pub(super) const MAP_LOOKUP: i32 = 1;
    /// `bpf_ktime_get_coarse_ns` (Linux 5.11): `CLOCK_MONOTONIC_COARSE`. Takes a few nanoseconds, the exact clock 20.
    pub(super) const COARSE_TIME: i32 = 160;
}

/// Emits a lookup of the key at stack offset `key`. Register 0 becomes the address of the value, or 0 if the map lacks the key.
pub(super) fn look_up(program: &mut Assembler<Place>, map: &Map, key: i16) {
    program.push(Instruction::map(1, map));
    program.push([Instruction::copy(2, STACK)]);
    program.apply(Add, 2, i32::from(key));
    program.push([Instruction::call(function::MAP_LOOKUP)]);
}

/// Emits a read of the coarse clock. Register 0 becomes the time in nanoseconds.
pub(super) fn ask_time(program: &mut Assembler<Place>) {
    program.push([Instruction::call(function::COARSE_TIME)]);
}

/// Copies the flow to the stack and checks its epochs. Jumps to `Miss` on failure. Stores the time. `found` emits additional steps for a flow
/// that is on the stack, before the checks.
pub(super) fn find(program: &mut Assembler<Place>, table: &FlowTable, found: impl FnOnce(&mut Assembler<Place>)) {
    look_up(program, &table.flows, KEY);
    program.jump_if(0, Equal, 0, Miss);
    program.push([Instruction::copy(AT, 0)]);
    copy(program, 0..value::TRANSLATION);
    program.load(Short, 1, STACK, VALUE + value::ACTIONS);
    program.jump_if(1, Shares, action::TRANSLATE.into(), WithTranslation);
    still_there(program, table);
    program.push([Instruction::set(IS_TRANSLATED, 0)]);
    program.jump(Found);
    program.place(WithTranslation);
    copy(program, value::TRANSLATION..value::LEN);
    still_there(program, table);
    program.push([Instruction::set(IS_TRANSLATED, 1)]);
    program.place(Found);
    found(program);
    for (port, epoch) in [(value::FROM, value::FROM_EPOCH), (value::TO, value::TO_EPOCH)] {
        program.load(Short, 2, STACK, VALUE + port);
        program.apply(ShiftLeft, 2, 3);
        program.push(Instruction::value(1, &table.cells, cells::EPOCHS));
        program.apply_register(Add, 1, 2);
        program.load(Double, 1, 1, 0);
        program.load(Double, 2, STACK, VALUE + epoch);
        program.jump_if_register(1, Greater, 2, Miss);
    }
    ask_time(program);
    program.store(Double, STACK, 0, NOW);
}

/// Jumps to `Miss` unless the packet has the MAC addresses of the flow on the stack.
pub(super) fn check_addresses(program: &mut Assembler<Place>) {
    for (width, at) in [(Double, 0), (Word, 8)] {
        program.load(width, 1, DATA, at);
        program.load(width, 2, STACK, VALUE + value::RECEIVED + at);
        program.jump_if_register(1, Differs, 2, Miss);
    }
}

/// Jumps to `over` if the flow's lease is over.
pub(super) fn check_lease(program: &mut Assembler<Place>, over: Place) {
    program.load(Double, 1, STACK, VALUE + value::EXPIRES);
    program.load(Double, 2, STACK, NOW);
    program.jump_if_register(2, AtLeast, 1, over);
}

/// Copies a part of the flow's value from the map to the stack.
fn copy(program: &mut Assembler<Place>, part: Range<i16>) {
    for at in part.step_by(8) {
        program.load(Double, 1, AT, at);
        program.store(Double, STACK, 1, VALUE + at);
    }
}

/// Jumps to `Miss` unless the flow's entry is unchanged.
fn still_there(program: &mut Assembler<Place>, table: &FlowTable) {
    look_up(program, &table.flows, KEY);
    program.jump_if_register(0, Differs, AT, Miss);
}

/// Jumps to `closed` unless the latch is open, and to `Miss` unless the handshake has ended.
pub(super) fn begin(program: &mut Assembler<Place>, table: &FlowTable, closed: Place) {
    program.load(Short, 3, STACK, VALUE + value::ACTIONS);
    program.jump_if(3, Shares, action::BEGUN.into(), Open);
    program.push([Instruction::copy(4, 3)]);
    program.apply(And, 4, action::HANDSHAKE.into());
    program.jump_if(4, Equal, 0, Latched);
    end_handshake(program, table);
    program.place(Latched);
    pass_latch(program, table, closed);
    program.place(Open);
}

/// Jumps to `Miss` unless the handshake has ended or ends with this packet. Register 3 has the flow's actions.
fn end_handshake(program: &mut Assembler<Place>, table: &FlowTable) {
    record(program, table);
    program.load(Byte, 2, 1, handshake::HAS_ENDED);
    program.jump_if(2, Differs, 0, Open);
    program.apply(And, 3, action::INITIATOR.into());
    program.jump_if(3, Equal, 0, Miss);
    program.load(Word, 2, 1, handshake::IS_ANSWERED);
    program.jump_if(2, Equal, 0, Miss);
    program.load(Word, 2, 1, handshake::RESPONDER_NEXT);
    program.load(Word, 3, STACK, ACKNOWLEDGEMENT);
    program.jump_if_register(2, Differs, 3, Miss);
    program.push([Instruction::set(2, 1)]);
    program.store(Byte, 1, 2, handshake::HAS_ENDED);
    program.jump(Open);
}

/// Register 1 becomes the address of the record of the flow's handshake. Overwrites register 2.
pub(super) fn record(program: &mut Assembler<Place>, table: &FlowTable) {
    numbered_cell(program, table, cells::HANDSHAKES, handshake::LEN);
}

/// Register 1 becomes the address of the flow's latch or handshake in the cells from offset `first`, of `len` bytes each.
fn numbered_cell(program: &mut Assembler<Place>, table: &FlowTable, first: i32, len: i16) {
    program.load(Short, 2, STACK, VALUE + value::LATCH);
    program.apply(ShiftLeft, 2, len.ilog2().cast_signed());
    program.push(Instruction::value(1, &table.cells, first));
    program.apply_register(Add, 1, 2);
}

/// Jumps to `closed` unless the latch is open. One atomic operation counts and reads the bit, so a packet that finds the latch closed is
/// counted before a worker can open it.
fn pass_latch(program: &mut Assembler<Place>, table: &FlowTable, closed: Place) {
    const OPEN_BIT: i32 = cells::OPEN_BIT.cast_signed();
    numbered_cell(program, table, cells::LATCHES, 8);
    program.load(Double, 2, 1, 0);
    program.apply(ShiftRight, 2, OPEN_BIT);
    program.jump_if(2, Differs, 0, Open);
    program.push([Instruction::set(2, 1)]);
    program.count_before(1, 2, 0);
    program.apply(ShiftRight, 2, OPEN_BIT);
    program.jump_if(2, Equal, 0, closed);
}

/// Adds [`LENGTH`] bytes and [`PACKETS`] packets to the counters of both slots and the origin. Counters are per core, to avoid contention.
pub(super) fn count(program: &mut Assembler<Place>, table: &FlowTable) {
    let ways = [
        (KEY + key::SLOT, [traffic::RECEIVED, traffic::RECEIVED_BYTES]),
        (VALUE + value::OUT, [traffic::SENT, traffic::SENT_BYTES]),
    ];
    for (slot, counters) in ways {
        look_up(program, &table.traffic, slot);
        // Never taken; the verifier requires the check.
        program.jump_if(0, Equal, 0, Counted);
        for (amount, counter) in [PACKETS, LENGTH].into_iter().zip(counters) {
            program.load(Double, 2, STACK, amount);
            program.add_to(0, 2, counter, 1);
        }
    }
    program.load(Short, 1, STACK, VALUE + value::ORIGIN);
    program.apply(ShiftRight, 1, decisions::PER_VALUE.ilog2().cast_signed());
    program.store(Word, STACK, 1, SCRATCH);
    look_up(program, &table.decisions, SCRATCH);
    program.jump_if(0, Equal, 0, Counted);
    program.load(Short, 1, STACK, VALUE + value::ORIGIN);
    program.apply(And, 1, decisions::PER_VALUE - 1);
    program.apply(ShiftLeft, 1, 3);
    program.apply_register(Add, 0, 1);
    program.load(Double, 2, STACK, PACKETS);
    program.add_to(0, 2, 0, 1);
    program.place(Counted);
}
