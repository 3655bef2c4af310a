//! Forwards established flows while no worker is alive.
//!
//! A vswitch that runs moves [`cells::ALIVE_UNTIL`] ahead several times a second ([`Heartbeat`](super::heartbeat::Heartbeat)). After its end,
//! nobody renews leases, opens latches or ends sessions. The program then does without them, until [`cells::AWAY_UNTIL`]:
//!
//! ```text
//!   FIN or RST: record it in the flow and in that of the opposite direction
//!   the latch is open and the lease is valid; no RST, no FIN without a record (handshake)  | forward as always, else: unleased
//!
//! unleased:
//!   alive_until <= now < away_until                                                   | else: miss
//!   idle = value.idle; closed or half closed: at most cells.closed or cells.half_closed
//!   now < value.expires + idle                                                        | else: miss
//!   value.expires = now, if it was before
//!   forward
//! ```
//!
//! So a flow ends when it was idle for its session's timeout, and soon after its TCP connection has ended. A forged reset does not end a flow
//! that both ends still use, as it only shortens the idle timeout: the program does not know sequence numbers.
//!
//! **Invariant.** Epochs and MAC addresses are checked as always, so the program forwards only what the last process allowed. It makes no
//! new flows: a SYN always goes to the workers.

use super::super::flow_headers::{FIN, RST};
use super::super::flow_layout::{action, cells, key, value};
use super::super::flow_place::Place::{
    self, Ended, Ending, Leased, Miss, Opposite, Recorded, Timed, TranslatedPeer, Unleased,
};
use super::super::flow_stack::{CONTROL, IS_TRANSLATED, KEY, NOW, PEER_KEY, SCRATCH, STACK, VALUE};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, And, Or};
use super::super::instruction::Test::{AtLeast, Equal, Greater, Less, Shares};
use super::super::instruction::Width::{Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};

/// Bits to record in the flow and in that of the opposite direction, 4 bytes each on the stack.
const OWN: i16 = SCRATCH;
const PEER: i16 = SCRATCH + 4;

/// Records a FIN or RST in the flow on the stack and in that of the opposite direction.
pub(super) fn record_end(program: &mut Assembler<Place>, table: &FlowTable) {
    program.load(Word, 1, STACK, CONTROL);
    program.apply(And, 1, FIN | RST);
    program.jump_if(1, Equal, 0, Recorded);
    program.push([Instruction::set(2, action::RESET.into()), Instruction::set(3, action::RESET.into())]);
    program.jump_if(1, Shares, RST, Ending);
    program.push([Instruction::set(2, action::FIN.into()), Instruction::set(3, action::PEER_FIN.into())]);
    program.place(Ending);
    program.store(Word, STACK, 2, OWN);
    program.store(Word, STACK, 3, PEER);
    look_up(program, &table.flows, KEY);
    program.jump_if(0, Equal, 0, Miss);
    set_bits(program, OWN);
    turn_key(program);
    look_up(program, &table.flows, PEER_KEY);
    program.jump_if(0, Equal, 0, Recorded);
    set_bits(program, PEER);
    program.place(Recorded);
}

/// Sets bits at this stack offset in the actions of the value whose address is in register 0. If the map has reused the entry, another flow
/// gets a shorter idle timeout without workers.
fn set_bits(program: &mut Assembler<Place>, bits: i16) {
    program.load(Short, 1, 0, value::ACTIONS);
    program.load(Word, 2, STACK, bits);
    program.apply_register(Or, 1, 2);
    program.store(Short, 0, 1, value::ACTIONS);
}

/// Stores the key of the opposite direction, whose packets arrive at the egress port with the translated addresses.
fn turn_key(program: &mut Assembler<Place>) {
    program.load(Word, 1, STACK, VALUE + value::OUT);
    program.store(Word, STACK, 1, PEER_KEY + key::SLOT);
    program.load(Word, 1, STACK, KEY + key::KIND);
    program.store(Word, STACK, 1, PEER_KEY + key::KIND);
    program.push([Instruction::set(1, 0)]);
    program.store(Double, STACK, 1, PEER_KEY + key::PORTS);
    program.jump_if(IS_TRANSLATED, Greater, 0, TranslatedPeer);
    turn(program, [KEY + key::PORTS, KEY + key::SOURCE, KEY + key::DESTINATION]);
    program.jump(Opposite);
    program.place(TranslatedPeer);
    turn(program, [value::PORTS, value::SOURCE, value::DESTINATION].map(|at| VALUE + at));
    program.place(Opposite);
}

/// Swaps the ports and the addresses at these stack offsets into the key of the opposite direction.
fn turn(program: &mut Assembler<Place>, [ports, source, destination]: [i16; 3]) {
    for (from, to) in [(ports, 2), (ports + 2, 0)] {
        program.load(Short, 1, STACK, from);
        program.store(Short, STACK, 1, PEER_KEY + key::PORTS + to);
    }
    for (from, to) in [(source, key::DESTINATION), (destination, key::SOURCE)] {
        for half in [0, 8] {
            program.load(Double, 1, STACK, from + half);
            program.store(Double, STACK, 1, PEER_KEY + to + half);
        }
    }
}

/// Jumps to `Miss` unless workers are away and the flow is in use. Continues with the forwarding.
pub(super) fn pass_unleased(program: &mut Assembler<Place>, table: &FlowTable) {
    const { assert!(cells::AWAY_UNTIL == cells::ALIVE_UNTIL + 8) };
    program.place(Unleased);
    program.push(Instruction::value(1, &table.cells, cells::ALIVE_UNTIL));
    program.load(Double, 2, 1, 0);
    program.load(Double, 3, 1, 8);
    program.load(Double, 4, STACK, NOW);
    program.jump_if_register(2, Greater, 4, Miss);
    program.jump_if_register(4, AtLeast, 3, Miss);
    choose_timeout(program, table);
    program.load(Double, 4, STACK, NOW);
    program.load(Double, 2, STACK, VALUE + value::EXPIRES);
    program.apply_register(Add, 1, 2);
    program.jump_if_register(4, AtLeast, 1, Miss);
    program.jump_if_register(2, AtLeast, 4, Leased);
    look_up(program, &table.flows, KEY);
    program.jump_if(0, Equal, 0, Miss);
    program.load(Double, 1, STACK, NOW);
    program.store(Double, 0, 1, value::EXPIRES);
}

/// Register 1 becomes the flow's idle timeout, by the ends that were recorded before this packet.
fn choose_timeout(program: &mut Assembler<Place>, table: &FlowTable) {
    const { assert!(cells::CLOSED == cells::HALF_CLOSED + 8) };
    const FINS: u16 = action::FIN | action::PEER_FIN;
    program.load(Double, 1, STACK, VALUE + value::IDLE);
    program.load(Short, 3, STACK, VALUE + value::ACTIONS);
    program.apply(And, 3, action::ENDS.into());
    program.jump_if(3, Equal, 0, Timed);
    program.push(Instruction::value(2, &table.cells, cells::HALF_CLOSED));
    program.jump_if(3, AtLeast, FINS.into(), Ended);
    program.load(Double, 2, 2, 0);
    program.jump_if_register(1, Less, 2, Timed);
    program.push([Instruction::copy(1, 2)]);
    program.jump(Timed);
    program.place(Ended);
    program.load(Double, 2, 2, 8);
    program.jump_if_register(1, Less, 2, Timed);
    program.push([Instruction::copy(1, 2)]);
    program.place(Timed);
}
