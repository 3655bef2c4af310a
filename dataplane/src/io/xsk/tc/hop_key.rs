//! Program steps on the key of a next hop, which is on the stack ([`HOP_KEY`]): the prefix length in bits (4 bytes), and an address (16 bytes). An IPv4
//! address is in its mapped form: 10 bytes 0, 2 bytes 0xff, the address (RFC 4291 §2.5.5.2).

use super::super::flow_place::Place;
use super::super::flow_stack::{DATA, HOP_KEY, STACK};
use super::super::flow_steps::look_up;
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;

/// Stack offset in bytes of the address in the key.
const ADDRESS: i16 = HOP_KEY + 4;

/// Stores the IPv4 address at byte `at` of the packet in the key of a next hop. Overwrites register 3.
pub(super) fn store_v4(program: &mut Assembler<Place>, at: i16) {
    store_mapped(program, at, ADDRESS);
}

/// Stores the IPv6 address at byte `at` of the packet in the key of a next hop. Overwrites register 3.
pub(super) fn store_v6(program: &mut Assembler<Place>, at: i16) {
    store_whole(program, at, ADDRESS);
}

/// Stores the IPv4 address at byte `at` of the packet, in its mapped form of 16 bytes, from the stack offset `to` on. Overwrites register 3.
pub(super) fn store_mapped(program: &mut Assembler<Place>, at: i16, to: i16) {
    begin_mapped(program, to);
    program.load(Word, 3, DATA, at);
    program.store(Word, STACK, 3, to + 12);
}

/// Stores the IPv6 address at byte `at` of the packet from the stack offset `to` on. Overwrites register 3.
pub(super) fn store_whole(program: &mut Assembler<Place>, at: i16, to: i16) {
    for word in [0, 4, 8, 12] {
        program.load(Word, 3, DATA, at + word);
        program.store(Word, STACK, 3, to + word);
    }
}

/// Stores the first 12 bytes of a mapped address in the key of a next hop. The caller stores the IPv4 address itself, 4 bytes at `HOP_KEY + 16`.
/// Overwrites register 3.
pub(super) fn begin_v4(program: &mut Assembler<Place>) {
    begin_mapped(program, ADDRESS);
}

/// Stores the first 12 bytes of a mapped address, which are the same for all IPv4 addresses, from the stack offset `to` on. The caller stores the last
/// 4 bytes. Overwrites register 3.
fn begin_mapped(program: &mut Assembler<Place>, to: i16) {
    program.push([Instruction::set(3, 0)]);
    program.store(Double, STACK, 3, to);
    program.push([Instruction::set(3, i32::from_ne_bytes([0, 0, 0xff, 0xff]))]);
    program.store(Word, STACK, 3, to + 8);
}

/// Looks up the address in the key in `hops`, the map of next hops. Register 0 becomes the pointer to the entry of the longest network that
/// contains the address, or 0 if no network does. Completes the key with the prefix length, 128 bits. Overwrites registers 1 to 5.
pub(super) fn find(program: &mut Assembler<Place>, hops: &Map) {
    /// The length of an address in bits.
    const WHOLE: i32 = 128;
    program.push([Instruction::set(1, WHOLE)]);
    program.store(Word, STACK, 1, HOP_KEY);
    look_up(program, hops, HOP_KEY);
}
