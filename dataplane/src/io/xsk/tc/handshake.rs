//! Forwards the SYN-ACK of a connection whose SYN a worker has judged, and the first FIN of each side.
//!
//! ```text
//!   SYN-ACK, without FIN and RST:
//!     flow.has a handshake, comes from the responder                              | else: miss
//!     handshake has not ended, the packet acknowledges the SYN                    | else: miss
//!     handshake.responder_next = the number after the packet's
//!
//!   FIN, without RST, of a leased flow:
//!     flow has a handshake                                                        | else: unleased
//!     its number is near the sender's first one                                   | else: unleased
//!     handshake.fin of this side = true
//! ```
//!
//! The worker reads the record of the handshake until the opening's lease is over, and brings the session up to date. Later flows have no
//! record, so their FINs go to the worker. A reset always goes to the worker, which compares its number with the latest known one.
//!
//! Why: a packet through a worker takes about 6 µs of CPU time, and a connection with one request has nine packets. Without these steps, four
//! of them go through workers; with them, the SYN alone does.
//!
//! **Invariant.** The program checks what the worker would check: the SYN-ACK's acknowledgement, and the position of the FIN
//! ([`NEAR`]). It does not verify checksums, as the receiver does. A SYN-ACK with a wrong checksum is repeated, and the
//! record holds the latest one.

use super::super::flow_headers::{FIN, RST, SYN};
use super::super::flow_layout::{action, handshake, value};
use super::super::flow_place::Place::{self, FromInitiator, Leased, Miss, NoAnswer, Numbered, Open, Unleased};
use super::super::flow_stack::{ACKNOWLEDGEMENT, CONTROL, SCRATCH, SEQUENCE, STACK, VALUE};
use super::super::flow_steps::record;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, And, ShiftLeft, ShiftRight, Subtract};
use super::super::instruction::Test::{Differs, Equal, Greater, Shares};
use super::super::instruction::Width::{Byte, Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use crate::io::NEAR;

/// Records a SYN-ACK and jumps to `Open`. Jumps to `Miss` if it does not answer the flow's SYN. Continues with all other packets.
pub(super) fn answer(program: &mut Assembler<Place>, table: &FlowTable) {
    const STATE: u16 = action::HANDSHAKE | action::INITIATOR | action::BEGUN;
    const { assert!(handshake::IS_ANSWERED == handshake::RESPONDER_NEXT + 4) };
    program.load(Word, 1, STACK, CONTROL);
    program.push([Instruction::copy(2, 1)]);
    program.apply(And, 2, SYN);
    program.jump_if(2, Equal, 0, NoAnswer);
    program.jump_if(1, Differs, SYN, Miss);
    program.load(Short, 3, STACK, VALUE + value::ACTIONS);
    program.apply(And, 3, STATE.into());
    program.jump_if(3, Differs, action::HANDSHAKE.into(), Miss);
    record(program, table);
    program.load(Byte, 2, 1, handshake::HAS_ENDED);
    program.jump_if(2, Differs, 0, Miss);
    program.load(Word, 2, 1, handshake::INITIATOR_NEXT);
    program.load(Word, 3, STACK, ACKNOWLEDGEMENT);
    program.jump_if_register(2, Differs, 3, Miss);
    program.load(Double, 2, STACK, SEQUENCE);
    program.apply(Add, 2, 1);
    program.store(Word, STACK, 2, SCRATCH);
    program.push([Instruction::set(2, 1)]);
    program.store(Word, STACK, 2, SCRATCH + 4);
    program.load(Double, 2, STACK, SCRATCH);
    program.store(Double, 1, 2, handshake::RESPONDER_NEXT);
    program.jump(Open);
    program.place(NoAnswer);
}

/// Jumps to `Leased`, after recording a FIN. Jumps to `Unleased` if a worker must see the end of the connection.
pub(super) fn finish(program: &mut Assembler<Place>, table: &FlowTable) {
    const { assert!(handshake::RESPONDER_FIN == handshake::INITIATOR_FIN + 1) };
    program.load(Word, 1, STACK, CONTROL);
    program.push([Instruction::copy(2, 1)]);
    program.apply(And, 2, FIN | RST);
    program.jump_if(2, Equal, 0, Leased);
    program.jump_if(2, Shares, RST, Unleased);
    program.load(Short, 3, STACK, VALUE + value::ACTIONS);
    program.push([Instruction::copy(4, 3)]);
    program.apply(And, 4, i32::from(action::HANDSHAKE | action::BEGUN));
    program.jump_if(4, Differs, action::HANDSHAKE.into(), Unleased);
    record(program, table);
    program.jump_if(3, Shares, action::INITIATOR.into(), FromInitiator);
    program.load(Word, 2, 1, handshake::RESPONDER_NEXT);
    // So that the following store writes the responder's byte.
    program.apply(Add, 1, 1);
    program.jump(Numbered);
    program.place(FromInitiator);
    program.load(Word, 2, 1, handshake::INITIATOR_NEXT);
    program.place(Numbered);
    program.load(Double, 3, STACK, SEQUENCE);
    program.apply_register(Subtract, 3, 2);
    program.apply(Add, 3, NEAR.cast_signed());
    // Modulo 2^32.
    program.apply(ShiftLeft, 3, 32);
    program.apply(ShiftRight, 3, 32);
    program.jump_if(3, Greater, 2 * NEAR.cast_signed(), Unleased);
    program.push([Instruction::set(2, 1)]);
    program.store(Byte, 1, 2, handshake::INITIATOR_FIN);
    program.jump(Leased);
}
