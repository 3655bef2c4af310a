//! Renews a used flow before its lease ends, so that the flow never leaves the kernel.
//!
//! ```text
//!   now < flow.renew, or the lease is over                                        | count, done
//!   flows[key].renew = middle between now and the end of the lease
//!   the port is within its slow path limit                                        | else: count, done
//!   select the queue as for a miss
//!   push an 802.1ad tag with the port's slot, and drop eligible
//!   bpf_clone_redirect(trunk)
//!   pop the tag; restore the queue
//!   the copy was sent                                                             | done, else: count, done
//! ```
//!
//! The worker judges the copy like any packet, counts it instead of the program, renews the flow, and sends nothing. Without a renewal, the
//! program sends another copy after half of the remaining lease. After the lease the flow ends, and its packets go to the worker.
//!
//! Why copies: a flow that returns to the worker gets a latch, which takes up to 5 ms to open. Meanwhile a bulk connection would exceed the
//! port's limit and the worker's capacity.
//!
//! Cost: the tag is metadata, so the packet is not moved. The trunk segments a copy of 64 KiB before the program continues. The port's slow
//! path limit counts all these segments, as for a miss.

use super::super::flow_headers::{SHORTEST, need};
use super::super::flow_layout::{cells, value};
use super::super::flow_place::Place::{self, CopyRecent, CopyUnlimited, Counted, Drop, Miss, Uncounted, WithoutTag};
use super::super::flow_stack::{CONTEXT, DATA, KEY, NOW, STACK, VALUE, WAY};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, ShiftRight, Subtract};
use super::super::instruction::Test::{AtLeast, Differs, Equal, Greater};
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{context, function, load_ends};
use super::slow_path::{choose_worker, limit, push_tag};

/// The "drop eligible" bit of a tag's control word, which marks a copy.
const IS_COPY: i32 = 0x1000;

/// The result of `bpf_clone_redirect` (0 if the copy was sent), and the packet's queue mapping, 4 bytes each on the stack.
const SENT: i16 = WAY - 8;
const QUEUE: i16 = SENT + 4;

/// Requests a renewal of the flow on the stack if it is due. Jumps to [`Counted`] if the worker counts the packet.
pub(super) fn ask(program: &mut Assembler<Place>, table: &FlowTable) {
    program.load(Double, 1, STACK, NOW);
    program.load(Double, 2, STACK, VALUE + value::RENEW);
    program.jump_if_register(2, Greater, 1, Uncounted);
    // Without workers, a flow outlasts its lease.
    program.load(Double, 2, STACK, VALUE + value::EXPIRES);
    program.jump_if_register(1, AtLeast, 2, Uncounted);
    look_up(program, &table.flows, KEY);
    program.jump_if(0, Equal, 0, Uncounted);
    put_off(program);
    program.push([Instruction::set(1, 1)]);
    program.store(Word, STACK, 1, SENT);
    program.load(Word, 1, CONTEXT, context::QUEUE_MAPPING);
    program.store(Word, STACK, 1, QUEUE);
    limit(program, table, WithoutTag, [CopyRecent, CopyUnlimited]);
    choose_worker(program, table);
    send_copy(program, table);
    program.place(WithoutTag);
    program.load(Word, 1, STACK, QUEUE);
    program.store(Word, CONTEXT, 1, context::QUEUE_MAPPING);
    load_ends(program);
    // Always true; the verifier requires the check.
    need(program, DATA, SHORTEST, Miss);
    program.load(Word, 1, STACK, SENT);
    program.jump_if(1, Equal, 0, Counted);
    program.place(Uncounted);
}

/// Postpones the next request of the flow, whose value's address is in register 0, by half of the remaining lease. If the map has reused
/// the entry, another flow requests its renewal later or once more.
fn put_off(program: &mut Assembler<Place>) {
    program.load(Double, 1, STACK, NOW);
    program.load(Double, 2, STACK, VALUE + value::EXPIRES);
    program.apply_register(Subtract, 2, 1);
    program.apply(ShiftRight, 2, 1);
    program.apply_register(Add, 1, 2);
    program.store(Double, 0, 1, value::RENEW);
}

/// Sends a copy to the trunk, with the port's slot as VLAN tag.
fn send_copy(program: &mut Assembler<Place>, table: &FlowTable) {
    push_tag(program, IS_COPY, WithoutTag);
    program.push(Instruction::value(1, &table.cells, cells::TRUNK));
    program.load(Word, 2, 1, 0);
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(3, 0), Instruction::call(function::CLONE_REDIRECT)]);
    program.store(Word, STACK, 0, SENT);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::VLAN_POP)]);
    program.jump_if(0, Differs, 0, Drop);
}
