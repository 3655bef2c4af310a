//! Program steps at links that take the packets of known flows out of the tunnel, without its device.
//!
//! ```text
//!   to the tunnel's port, in IPv4 without options or fragments, or in IPv6; VXLAN header without options  | else: a packet of the link
//!   no congestion mark (CE) in the outer header                                                           | else: pass
//!   continue with the inner frame: parse -> key, flow known                                               | else: pass
//!   hops[inner source] is a node behind the tunnel, and the outer header is the one by which this node
//!   would reach it, turned round: addresses, VNI                                                          | else: pass
//!   ...
//!   bpf_skb_adjust_room(-outer headers): the frame has the outer MAC addresses, which the program replaces
//!
//! pass: the node's kernel gets the packet unchanged, and takes it out of the tunnel
//! ```
//!
//! Why the program does it: the tunnel's device would allocate memory for the outer header of each packet, after the node's stack has received the
//! packet. The program also takes packets that the card has merged from several segments. If the device took those, later single segments of the
//! connection would overtake them.
//!
//! The tunnel's device would copy a congestion mark to the inner header (RFC 6040), so packets with one go there. The program verifies neither
//! the outer checksums nor the outer lengths, which RFC 7348 §4.1 permits. The receiver verifies the inner checksum; the inner length must fit into
//! the packet.
//!
//! The kernel's note that a merged packet comes out of a tunnel stays, as no helper clears it. That is of no importance to a pod's sockets, nor to a
//! pod that sends the packet on: its kernel segments by the inner headers.

use super::super::flow_headers::{ETHERNET, HEADER, IPV6, SHORTEST, TYPE_V4, TYPE_V6, UDP, need};
use super::super::flow_layout::cells;
use super::super::flow_place::Place::{
    self, AfterV6, Decapsulated, Drop, Encapsulated, InnerFrame, InnerV6, OuterV6, Pass, Plain, PullInner, PullWhole,
    SameFamily, Sender, SenderV6, Unwrapped,
};
use super::super::flow_stack::{CONTEXT, DATA, LENGTH, OUTER, STACK};
use super::super::flow_table::FlowTable;
use super::super::flow_translation::load_version;
use super::super::instruction::Operation::{Add, And, ShiftLeft, Subtract};
use super::super::instruction::Test::{AtLeast, Differs, Equal, Greater, Shares};
use super::super::instruction::Width::{Byte, Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{context, function, load_ends};
use super::ingress::PULLED;
use super::next_hops::{hop, kind};
use super::vxlan::{BEFORE_V4, BEFORE_V6, BEHIND_ETHERNET, HAS_VNI};

/// Bytes from the outer IP header to the inner frame.
const FROM_V4: i16 = 36;
const FROM_V6: i16 = 56;

/// Emits the steps that find the inner frame. [`OUTER`] becomes the number of bytes before it, and [`DATA`] its address. Both stay as they are if
/// the packet is no outer packet of the tunnel. Jumps to `Pass` with outer packets that only the kernel can take apart.
pub(super) fn find_inner(program: &mut Assembler<Place>, table: &FlowTable) {
    need(program, DATA, SHORTEST, Plain);
    program.push(Instruction::value(4, &table.cells, cells::TUNNEL_PORT));
    program.load(Word, 4, 4, 0);
    program.jump_if(4, Equal, 0, Plain);
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, OuterV6);
    program.jump_if(3, Differs, TYPE_V4, Plain);
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Plain);
    is_for_tunnel(program, HEADER + 9, HEADER + 22);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.jump_if(3, Shares, 0x3fff, Pass);
    // The lowest bits of the type of service, and in IPv6 of the traffic class.
    is_unmarked(program, HEADER + 1, 0x03);
    program.push([Instruction::set(4, BEFORE_V4)]);
    program.jump(Encapsulated);
    program.place(OuterV6);
    need(program, DATA, ETHERNET + IPV6 + UDP, Plain);
    is_for_tunnel(program, HEADER + 6, HEADER + 42);
    is_unmarked(program, HEADER + 1, 0x30);
    program.push([Instruction::set(4, BEFORE_V6)]);
    program.place(Encapsulated);
    program.store(Double, STACK, 4, OUTER);
    enter(program);
    program.place(Plain);
}

/// Moves [`DATA`] to the inner frame, and pulls its headers into the linear part. Register 4 has the number of bytes before it.
fn enter(program: &mut Assembler<Place>) {
    program.apply_register(Add, DATA, 4);
    // Only if necessary: pulling bytes out of the payload leaves the rest unaligned, which doubles the cost of copying it.
    need(program, DATA, SHORTEST, PullInner);
    program.jump(InnerFrame);
    program.place(PullInner);
    program.load(Double, 2, STACK, OUTER);
    program.apply(Add, 2, PULLED);
    program.load(Word, 3, CONTEXT, context::LEN);
    program.jump_if_register(3, AtLeast, 2, PullWhole);
    program.push([Instruction::copy(2, 3)]);
    program.place(PullWhole);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::PULL_DATA)]);
    load_ends(program);
    program.load(Double, 4, STACK, OUTER);
    program.apply_register(Add, DATA, 4);
    need(program, DATA, SHORTEST, Pass);
    program.place(InnerFrame);
    program.load(Word, 3, DATA, -8);
    program.jump_if(3, Differs, HAS_VNI, Pass);
}

/// Jumps to `Plain` unless the protocol and the destination port at these offsets are the tunnel's. Register 4 has the tunnel's port.
fn is_for_tunnel(program: &mut Assembler<Place>, protocol: i16, port: i16) {
    program.load(Byte, 3, DATA, protocol);
    program.jump_if(3, Differs, libc::IPPROTO_UDP, Plain);
    program.load(Short, 3, DATA, port);
    program.swap_short(3);
    program.jump_if_register(3, Differs, 4, Plain);
}

/// Jumps to `Pass` if the outer header has a congestion mark: these bits of the byte at this offset are all set.
fn is_unmarked(program: &mut Assembler<Place>, at: i16, bits: i32) {
    program.load(Byte, 3, DATA, at);
    program.apply(And, 3, bits);
    program.jump_if(3, Equal, bits, Pass);
}

/// Jumps to `Pass` unless the next hop in register 0, that of the inner source, is the node whose outer header the packet has. Jumps to `Unwrapped`
/// with a packet without outer headers.
pub(super) fn check_sender(program: &mut Assembler<Place>) {
    program.load(Double, 1, STACK, OUTER);
    program.jump_if(1, Equal, 0, Unwrapped);
    // The inner length, by its IP header, must not exceed the packet.
    program.load(Double, 2, STACK, LENGTH);
    program.apply_register(Add, 2, 1);
    program.load(Word, 3, CONTEXT, context::LEN);
    program.jump_if_register(2, Greater, 3, Pass);
    program.jump_if(0, Equal, 0, Pass);
    program.load(Word, 2, 0, hop::KIND);
    program.jump_if(2, Differs, kind::TUNNEL.cast_signed(), Pass);
    program.load(Word, 2, DATA, -4);
    program.swap_word(2);
    program.load(Word, 3, 0, hop::TUNNEL);
    program.apply(ShiftLeft, 3, 8);
    program.jump_if_register(2, Differs, 3, Pass);
    program.load(Word, 3, 0, hop::FLAGS);
    program.jump_if(1, Equal, BEFORE_V6, SenderV6);
    program.jump_if(3, Differs, 0, Pass);
    for (packet, own) in [(12, hop::REMOTE), (16, hop::LOCAL)] {
        program.load(Word, 2, DATA, packet - FROM_V4);
        program.swap_word(2);
        program.load(Word, 3, 0, own);
        program.jump_if_register(2, Differs, 3, Pass);
    }
    program.jump(Sender);
    program.place(SenderV6);
    program.jump_if(3, Equal, 0, Pass);
    for (packet, own) in [(8, hop::REMOTE), (24, hop::LOCAL)] {
        for at in [0, 4, 8, 12] {
            program.load(Word, 2, DATA, packet - FROM_V6 + at);
            program.load(Word, 3, 0, own + at);
            program.jump_if_register(2, Differs, 3, Pass);
        }
    }
    program.place(Sender);
}

/// Takes the frame out of its outer headers, if it has any. It then has the outer frame's MAC addresses. Jumps to `Pass` if the kernel refuses.
pub(super) fn decapsulate(program: &mut Assembler<Place>) {
    /// `BPF_F_ADJ_ROOM_FIXED_GSO` and `BPF_F_ADJ_ROOM_NO_CSUM_RESET`.
    const FLAGS: i32 = 1 | 1 << 5;
    /// `BPF_F_ADJ_ROOM_DECAP_L3_IPV4` and `_IPV6` (Linux 6.3), necessary only if the inner frame has the other IP version.
    const TO_V4: i32 = 1 << 7;
    const TO_V6: i32 = 1 << 8;
    /// `BPF_CSUM_LEVEL_DEC`: the card has verified one checksum less of what is left.
    const ONE_LESS: i32 = 2;
    program.load(Double, 1, STACK, OUTER);
    program.jump_if(1, Equal, 0, Decapsulated);
    program.push([Instruction::set(2, 0), Instruction::set(3, BEHIND_ETHERNET), Instruction::set(4, FLAGS)]);
    program.apply_register(Subtract, 2, 1);
    load_version(program, 5);
    program.jump_if(5, Equal, 6, InnerV6);
    program.jump_if(1, Equal, BEFORE_V4, SameFamily);
    program.apply(Add, 4, TO_V4);
    program.jump(SameFamily);
    program.place(InnerV6);
    program.jump_if(1, Equal, BEFORE_V6, SameFamily);
    program.apply(Add, 4, TO_V6);
    program.place(SameFamily);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::ADJUST_ROOM)]);
    program.jump_if(0, Differs, 0, Pass);
    program.store(Double, STACK, 0, OUTER);
    program.push([
        Instruction::copy(1, CONTEXT),
        Instruction::set(2, ONE_LESS),
        Instruction::call(function::CSUM_LEVEL),
    ]);
    load_ends(program);
    need(program, DATA, SHORTEST, Drop);
    load_version(program, 5);
    program.push([Instruction::set(1, TYPE_V6)]);
    program.jump_if(5, Equal, 6, AfterV6);
    program.push([Instruction::set(1, TYPE_V4)]);
    program.place(AfterV6);
    program.store(Short, DATA, 1, 12);
    program.place(Decapsulated);
}
