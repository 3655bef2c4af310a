//! A flow that is in use is renewed before its lease ends, and never leaves the kernel for it.
//!
//! ```text
//!   now < flow.renew                                                              | count, done
//!   flows[key].renew = in the middle between now and the end of the lease
//!   the port has time left on the slow path                                       | else: count, done
//!   queue = as for a miss
//!   push an 802.1ad tag with the port's slot, and drop eligible
//!   bpf_clone_redirect(trunk)
//!   take the tag off; queue = as it was
//!   the copy was sent                                                             | done, else: count, done
//! ```
//!
//! The worker judges the copy as it does any packet, renews the flow, and sends nothing. It counts the packet in the program's place.
//! Without an answer the program asks again, each time after half of what is left of the lease. At its end the flow ends, and its packets
//! come to the worker.
//!
//! Why copies: a flow that comes back to the worker has a latch, which takes up to 5 ms to open. What a bulk connection sends
//! meanwhile is more than a port may send to the workers, and more than a worker forwards.
//!
//! What they cost: the tag lies beside the packet, so that the packet is not moved for it. The trunk cuts a copy of 64 KiB into
//! segments before the packet goes on, and the port pays for all of them with its time on the slow path, as for those of a miss.

use super::super::flow_headers::Place::{self, CopyRecent, CopyUnlimited, Counted, Drop, Uncounted, WithoutTag};
use super::super::flow_headers::{SHORTEST, need};
use super::super::flow_layout::{cells, value};
use super::super::flow_stack::{CONTEXT, DATA, KEY, NOW, STACK, VALUE, WAY};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, ShiftRight, Subtract};
use super::super::instruction::Test::{Differs, Equal, Greater};
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{context, function, load_ends};
use super::slow_path::{choose_worker, limit, push_tag};

/// Drop eligible, in a tag's control word: says that a packet is a copy.
const IS_COPY: i32 = 0x1000;

/// What `bpf_clone_redirect` says, 0 when the copy was sent, and the packet's queue, 4 bytes each on the stack.
const SENT: i16 = WAY - 8;
const QUEUE: i16 = SENT + 4;

/// Asks the worker to renew the flow on the stack when it is time. Goes on at [`Counted`] when the worker counts the packet.
pub(super) fn ask(program: &mut Assembler<Place>, table: &FlowTable) {
    program.load(Double, 1, STACK, NOW);
    program.load(Double, 2, STACK, VALUE + value::RENEW);
    program.jump_if_register(2, Greater, 1, Uncounted);
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
    // Always so; the verifier cannot know.
    need(program, DATA, SHORTEST);
    program.load(Word, 1, STACK, SENT);
    program.jump_if(1, Equal, 0, Counted);
    program.place(Uncounted);
}

/// The flow, whose place in the map is in register 0, asks again after half of what is left of its lease. In the meantime the place may
/// be another flow's, which then asks later or once more.
fn put_off(program: &mut Assembler<Place>) {
    program.load(Double, 1, STACK, NOW);
    program.load(Double, 2, STACK, VALUE + value::EXPIRES);
    program.apply_register(Subtract, 2, 1);
    program.apply(ShiftRight, 2, 1);
    program.apply_register(Add, 1, 2);
    program.store(Double, 0, 1, value::RENEW);
}

/// Sends a copy into the trunk, with the port's slot as a tag.
fn send_copy(program: &mut Assembler<Place>, table: &FlowTable) {
    push_tag(program, IS_COPY, WithoutTag);
    program.push(Instruction::value(1, &table.cells, cells::TRUNK));
    program.load(Word, 2, 1, 0);
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(3, 0), Instruction::call(function::CLONE_REDIRECT)]);
    program.store(Word, STACK, 0, SENT);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::VLAN_POP)]);
    program.jump_if(0, Differs, 0, Drop);
}
