//! Program steps on the key of a next hop, which is on the stack ([`HOP_KEY`]): the prefix length in bits, and an address.

use super::super::flow_place::Place;
use super::super::flow_stack::{DATA, HOP_KEY, STACK};
use super::super::flow_steps::look_up;
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;

/// Stores the IPv4 address at this offset of the packet in the key of a next hop. Overwrites register 3.
pub(super) fn store_v4(program: &mut Assembler<Place>, at: i16) {
    begin_v4(program);
    program.load(Word, 3, DATA, at);
    program.store(Word, STACK, 3, HOP_KEY + 16);
}

/// Stores the IPv6 address at this offset of the packet in the key of a next hop. Overwrites register 3.
pub(super) fn store_v6(program: &mut Assembler<Place>, at: i16) {
    for word in [0, 4, 8, 12] {
        program.load(Word, 3, DATA, at + word);
        program.store(Word, STACK, 3, HOP_KEY + 4 + word);
    }
}

/// Stores what precedes an IPv4 address in the key of a next hop. Overwrites register 3.
pub(super) fn begin_v4(program: &mut Assembler<Place>) {
    program.push([Instruction::set(3, 0)]);
    program.store(Double, STACK, 3, HOP_KEY + 4);
    program.push([Instruction::set(3, i32::from_ne_bytes([0, 0, 0xff, 0xff]))]);
    program.store(Word, STACK, 3, HOP_KEY + 12);
}

/// Looks the next hop of the address in the key up. Register 0 becomes the hop's address, or 0 without a hop.
pub(super) fn find(program: &mut Assembler<Place>, hops: &Map) {
    /// The length of an address in bits.
    const WHOLE: i32 = 128;
    program.push([Instruction::set(1, WHOLE)]);
    program.store(Word, STACK, 1, HOP_KEY);
    look_up(program, hops, HOP_KEY);
}
