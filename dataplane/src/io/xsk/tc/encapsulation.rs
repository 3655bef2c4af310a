//! Program steps that put a packet into the tunnel to another node, without the tunnel's device.
//!
//! ```text
//!   outer headers of IPv4, and the programs may send them (Outer)             | else: described
//!   bpf_skb_adjust_room(+50)                                                  | refused: described
//!   frame = [ Ethernet | IPv4, UDP, VXLAN of the next hop | the packet ]
//!   return bpf_redirect_neigh(hop.link, hop.neighbor, or the kernel's route)
//!
//! described: to_nodes sets the header description, and the device adds the headers
//! ```
//!
//! Why: the device looks up the route of each packet, through all routing rules, and the node's stack sends the outer packet. Here a neighbor needs
//! no look-up, and a node behind a router one on the link, which stays the same until the vswitch looks at the kernel's routes again.
//!
//! The outer checksum is 0, which RFC 7348 §4 prefers. The programs cannot tell the kernel that the segments of a long packet need one. Over IPv6
//! a checksum is required (RFC 8200 §8.1), so the device adds those headers.
//!
//! The outer header may be fragmented on its way and has a random identification. Its source port comes from the packet's hash, so that the
//! packets of a flow stay on one way and in order.

use super::super::flow_headers::{ETHERNET, HEADER, IPV4, TYPE_V4, TYPE_V6, need};
use super::super::flow_place::Place::{self, Described, End, HasMark, Marked, Routed};
use super::super::flow_stack::{AT, CONTEXT, DATA, ENCAPSULATION, STACK};
use super::super::flow_translation::finish_sum;
use super::super::instruction::Operation::{Add, And, Or, ShiftLeft, ShiftRight, Xor};
use super::super::instruction::Test::{Differs, Equal, Greater};
use super::super::instruction::Width::{Byte, Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{SHOT, context, function, load_ends};
use super::next_hops::hop;
use super::vxlan::{BEFORE_V4, BEHIND_ETHERNET, HAS_VNI};

/// Bytes of the outer packet beside the frame in it.
const AROUND: i32 = BEFORE_V4 - ETHERNET;
/// The outer header's time to live, the kernel's default.
const TTL: u8 = 64;
/// The IP protocol number of UDP.
const PROTOCOL: u8 = 17;
/// The congestion mark of the inner header, the outer header's identification and the packet's hash, 4 bytes each on the stack.
const MARK: i16 = ENCAPSULATION;
const IDENTIFICATION: i16 = ENCAPSULATION + 4;
const HASH: i16 = ENCAPSULATION + 8;

/// Returns the ones' complement sum of the outer IPv4 header's constant words: version, lifetime, protocol and both addresses.
pub(super) fn constant_sum(local: u32, remote: u32) -> u16 {
    let halves = |number: u32| (number >> 16) + (number & 0xffff);
    let constant = 0x4500 + (u32::from(TTL) << 8) + u32::from(PROTOCOL);
    let sum = halves(halves(constant + halves(local) + halves(remote)));
    u16::try_from(sum).expect("it is folded twice")
}

/// Adds the headers of the next hop in [`AT`] to the packet and sends it. Jumps to [`Described`] with an unchanged packet if the device must do
/// that.
pub(super) fn send(program: &mut Assembler<Place>) {
    program.load(Word, 1, AT, hop::LINK);
    program.jump_if(1, Equal, 0, Described);
    program.load(Word, 1, CONTEXT, context::LEN);
    // What an IPv4 header cannot tell, the device refuses.
    program.jump_if(1, Greater, 0xffff - AROUND, Described);
    read(program);
    make_room(program);
    write_ethernet(program);
    write_ip(program);
    write_tunnel(program);
    program.load(Word, 1, AT, hop::LINK);
    program.push([Instruction::set(2, 0), Instruction::set(3, 0), Instruction::set(4, 0)]);
    program.load(Word, 5, AT, hop::NEIGHBOR);
    program.jump_if(5, Equal, 0, Routed);
    program.push([Instruction::copy(2, AT)]);
    program.apply(Add, 2, hop::NEIGHBOR.into());
    program.push([Instruction::set(3, hop::NEIGHBOR_LEN)]);
    program.place(Routed);
    program.push([Instruction::call(function::REDIRECT_NEIGH)]);
    program.jump(End);
}

/// Stores what the outer headers take from the packet.
fn read(program: &mut Assembler<Place>) {
    // The congestion marks (RFC 3168) are the lowest bits of the second byte in IPv4; in IPv6, bits 4 and 5.
    program.load(Byte, 1, DATA, HEADER + 1);
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Differs, TYPE_V6, HasMark);
    program.apply(ShiftRight, 1, 4);
    program.place(HasMark);
    program.apply(And, 1, 3);
    // RFC 3168 §9.1.1: a mark that the packet has already is not copied, so that the other node need not take these packets out by its device.
    program.jump_if(1, Differs, 3, Marked);
    program.push([Instruction::set(1, 2)]);
    program.place(Marked);
    program.store(Word, STACK, 1, MARK);
    program.push([Instruction::call(function::RANDOM)]);
    program.apply(And, 0, 0xffff);
    program.store(Word, STACK, 0, IDENTIFICATION);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::HASH)]);
    program.store(Word, STACK, 0, HASH);
}

/// Makes room for the headers and loads the ends of the packet. Jumps to `Described` if the kernel refuses, for example with a packet that is in
/// another tunnel already.
fn make_room(program: &mut Assembler<Place>) {
    /// `BPF_F_ADJ_ROOM_FIXED_GSO`, `_ENCAP_L3_IPV4`, `_ENCAP_L4_UDP`, `_NO_CSUM_RESET`, `_ENCAP_L2_ETH`.
    const FLAGS: i32 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6;
    /// `BPF_ADJ_ROOM_ENCAP_L2_SHIFT`: above it, the length of the inner Ethernet header.
    const INNER_LENGTH: i32 = 56;
    program.push([
        Instruction::copy(1, CONTEXT),
        Instruction::set(2, BEFORE_V4),
        Instruction::set(3, BEHIND_ETHERNET),
        Instruction::set(4, ETHERNET),
    ]);
    program.apply(ShiftLeft, 4, INNER_LENGTH);
    program.apply(Or, 4, FLAGS);
    program.push([Instruction::call(function::ADJUST_ROOM)]);
    program.jump_if(0, Differs, 0, Described);
    load_ends(program);
    // Never taken; the verifier requires the check.
    program.push([Instruction::set(0, SHOT)]);
    need(program, DATA, BEFORE_V4 + ETHERNET, End);
}

/// Copies the frame's Ethernet header behind the new headers. The kernel sets the outer MAC addresses.
fn write_ethernet(program: &mut Assembler<Place>) {
    /// Offset of the inner frame.
    const INNER: i16 = HEADER + 36;
    const { assert!(INNER as i32 == BEFORE_V4) };
    for (width, at) in [(Double, 0), (Word, 8), (Short, 12)] {
        program.load(width, 1, DATA, at);
        program.store(width, DATA, 1, INNER + at);
    }
    program.push([Instruction::set(1, TYPE_V4)]);
    program.store(Short, DATA, 1, 12);
}

/// Writes the outer IPv4 header. Register 5 becomes the outer packet's length in bytes.
fn write_ip(program: &mut Assembler<Place>) {
    program.load(Word, 5, CONTEXT, context::LEN);
    program.apply(Add, 5, -ETHERNET);
    program.load(Word, 3, STACK, MARK);
    program.load(Word, 4, STACK, IDENTIFICATION);
    // Version and header length, type of service.
    program.push([Instruction::set(1, 0x45)]);
    program.store(Byte, DATA, 1, HEADER);
    program.store(Byte, DATA, 3, HEADER + 1);
    program.push([Instruction::copy(1, 5)]);
    program.swap_short(1);
    program.store(Short, DATA, 1, HEADER + 2);
    program.push([Instruction::copy(1, 4)]);
    program.swap_short(1);
    program.store(Short, DATA, 1, HEADER + 4);
    program.push([Instruction::set(1, 0)]);
    program.store(Short, DATA, 1, HEADER + 6);
    program.push([Instruction::set(1, i32::from_ne_bytes([TTL, PROTOCOL, 0, 0]))]);
    program.store(Short, DATA, 1, HEADER + 8);
    program.load(Short, 2, AT, hop::CONSTANT_SUM);
    for part in [3, 4, 5] {
        program.apply_register(Add, 2, part);
    }
    finish_sum(program, 2);
    program.swap_short(2);
    program.store(Short, DATA, 2, HEADER + 10);
    for (from, to) in [(hop::LOCAL, 12), (hop::REMOTE, 16)] {
        program.load(Word, 1, AT, from);
        program.swap_word(1);
        program.store(Word, DATA, 1, HEADER + to);
    }
}

/// Writes the UDP and VXLAN headers. Register 5 has the outer packet's length in bytes.
fn write_tunnel(program: &mut Assembler<Place>) {
    const UDP: i16 = HEADER + 20;
    /// The first of the dynamic ports, and the mask of their number (RFC 6335 §6).
    const FIRST_PORT: i32 = 0xc000;
    const PORTS: i32 = 0x3fff;
    program.load(Word, 1, STACK, HASH);
    program.push([Instruction::copy(2, 1)]);
    program.apply(ShiftRight, 2, 16);
    program.apply_register(Xor, 1, 2);
    program.apply(And, 1, PORTS);
    program.apply(Or, 1, FIRST_PORT);
    program.swap_short(1);
    program.store(Short, DATA, 1, UDP);
    program.load(Short, 1, AT, hop::PORT);
    program.swap_short(1);
    program.store(Short, DATA, 1, UDP + 2);
    program.apply(Add, 5, -IPV4);
    program.swap_short(5);
    program.store(Short, DATA, 5, UDP + 4);
    program.push([Instruction::set(1, 0)]);
    program.store(Short, DATA, 1, UDP + 6);
    program.push([Instruction::set(1, HAS_VNI)]);
    program.store(Word, DATA, 1, UDP + 8);
    program.load(Word, 1, AT, hop::TUNNEL);
    program.apply(ShiftLeft, 1, 8);
    program.swap_word(1);
    program.store(Word, DATA, 1, UDP + 12);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_sum_completes_the_checksum_of_a_header() {
        // RFC 1071: the ones' complement sum of a header with its checksum is 0.
        let [local, remote] = [[10, 255, 254, 1], [192, 168, 255, 255]].map(u32::from_be_bytes);
        for (length, identification, mark) in [(0xffff, 0xffff, 3), (86, 0, 0), (1500, 0x8001, 2)] {
            let mut sum = u32::from(constant_sum(local, remote)) + length + identification + mark;
            for _ in 0..2 {
                sum = (sum >> 16) + (sum & 0xffff);
            }
            let words = [0x4500 + mark, length, identification, 0, 0x4011, sum ^ 0xffff];
            let addresses = [local >> 16, local & 0xffff, remote >> 16, remote & 0xffff];
            assert_eq!(words.iter().chain(&addresses).sum::<u32>() % 0xffff, 0, "{length} {identification} {mark}");
        }
    }
}
