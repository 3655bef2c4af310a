//! Program steps that all flow cache programs share: from a packet's headers to its flow's key, and rewriting headers.
//!
//! ```text
//!   key = zeros, slot
//!   IPv4: key.source, key.destination = the packet's        IPv6: the same, 16 bytes each
//!   IPv4 without options, no fragment, or IPv6 without extension headers; hop limit above 1       | else: miss
//!   the packet is as long as its IP header says                                                   | else: miss
//!   BIG TCP instead: a length of 0, segments, and more than 65,535 bytes; IPv6: a jumbo header    | else: miss
//!   UDP: its length is not more than the packet's and holds its header                            | else: miss
//!   TCP: its header is in the packet; ACK, unless it is a reset                                    | else: miss
//!   SYN, FIN and RST: an XDP program misses; a tc program stores them                            (tc/handshake.rs, tc/away.rs)
//!   key.kind, key.ports = the packet's
//! ```
//!
//! Every check equals one of the worker's fast path, or is stricter.

use super::flow_layout::{action, key, value};
use super::flow_place::Place::{self, Datagram, HasAck, Known, Miss, Segment, Told, ToldV6, V6};
use super::flow_stack::{
    ACKNOWLEDGEMENT, AT, CONTEXT, CONTROL, DATA, DATA_END, HEADERS, JUMBO, KEY, LENGTH, SEQUENCE, STACK,
};
use super::instruction::Operation::{Add, And, Or, ShiftLeft, ShiftRight};
use super::instruction::Test::{Differs, Equal, Greater, Less, Shares};
use super::instruction::Width::{Byte, Double, Short, Word};
use super::instruction::{Assembler, Instruction};

/// Ethernet, IPv4 and IPv6 headers, in bytes.
pub(super) const ETHERNET: i32 = 14;
pub(super) const IPV4: i32 = 20;
pub(super) const IPV6: i32 = 40;
/// Offset of the IP header in the frame.
pub(super) const HEADER: i16 = 14;
/// Bytes of the hop-by-hop header that holds nothing but the length of a longer packet (RFC 2675).
pub(super) const JUMBO_HEADER: i32 = 8;
/// The longest packet whose length an IPv4 header can tell, and the longest payload that an IPv6 header can, in bytes.
const LONGEST_TOLD: i32 = 65_535;
/// EtherTypes, as a program loads them: in network order.
pub(super) const TYPE_V4: i32 = 0x0800_u16.to_be() as i32;
pub(super) const TYPE_V6: i32 = 0x86dd_u16.to_be() as i32;
/// Bytes of the UDP header, and of the TCP header without options.
pub(super) const UDP: i32 = 8;
const TCP: i32 = 20;
/// The shortest packet of a flow: Ethernet, IPv4 and UDP headers.
pub(super) const SHORTEST: i32 = ETHERNET + IPV4 + UDP;
/// The longest packet that an XDP program forwards; longer ones have several buffers. Low enough for the kernel's verifier.
const LONGEST: i32 = 16_000;

/// How a program finds the end of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The buffer ends with the packet.
    Buffer,
    /// `__sk_buff.len` and `__sk_buff.gso_size`, at these offsets in bytes, also count bytes that the program cannot access.
    Context { len: i16, gso_size: i16 },
}

/// TCP's flags.
pub(super) const FIN: i32 = 0x01;
pub(super) const SYN: i32 = 0x02;
pub(super) const RST: i32 = 0x04;

/// Clears key, acknowledgement number, flags and [`JUMBO`], and stores the slot of register `slot` in the key. `slot` must not be 1.
pub(super) fn clear_key(program: &mut Assembler<Place>, slot: u8) {
    program.push([Instruction::set(1, 0)]);
    for at in (0..key::LEN).step_by(8) {
        program.store(Double, STACK, 1, KEY + at);
    }
    program.store(Double, STACK, 1, ACKNOWLEDGEMENT);
    program.store(Double, STACK, 1, JUMBO);
    program.store(Word, STACK, slot, KEY + key::SLOT);
}

/// Jumps to `otherwise` unless the packet's linear part has `bytes` bytes from the address in register `from` on. Overwrites register 2.
pub(super) fn need(program: &mut Assembler<Place>, from: u8, bytes: i32, otherwise: Place) {
    program.push([Instruction::copy(2, from)]);
    program.apply(Add, 2, bytes);
    program.jump_if_register(2, Greater, DATA_END, otherwise);
}

/// Parses the headers into the key. Stores the frame's length by the IP header and the end of the headers on the stack.
pub(super) fn parse(program: &mut Assembler<Place>, extent: Extent) {
    const ETHERTYPE: i16 = 12;
    need(program, DATA, SHORTEST, Miss);
    program.load(Short, 3, DATA, ETHERTYPE);
    program.jump_if(3, Equal, TYPE_V6, V6);
    program.jump_if(3, Differs, TYPE_V4, Miss);
    parse_v4(program, extent);
    program.place(V6);
    parse_v6(program, extent);
    datagram(program);
    segment(program, extent);
}

fn parse_v4(program: &mut Assembler<Place>, extent: Extent) {
    // Addresses first, as they also select the worker of other packets.
    for (from, to) in [(12, key::SOURCE), (16, key::DESTINATION)] {
        program.load(Word, 3, DATA, HEADER + from);
        program.store(Word, STACK, 3, KEY + to);
    }
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Miss);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.jump_if(3, Shares, 0x3fff, Miss);
    program.load(Byte, 3, DATA, HEADER + 8);
    program.jump_if(3, Less, 2, Miss);
    program.load(Byte, 4, DATA, HEADER + 9);
    program.load(Short, 3, DATA, HEADER + 2);
    program.swap_short(3);
    if let Extent::Context { len, gso_size } = extent {
        program.jump_if(3, Differs, 0, Told);
        program.jump_if(4, Differs, libc::IPPROTO_TCP, Miss);
        find_big_length(program, len, gso_size, ETHERNET);
        program.place(Told);
    }
    program.jump_if(3, Less, IPV4 + UDP, Miss);
    take_length(program, extent);
    choose(program, IPV4, 0, 4);
}

/// Computes the length of a "BIG TCP" packet, whose IP header has a length of 0 because it cannot tell the actual one (Linux 5.19, for IPv4
/// 6.3). Such a packet has segments. Register 3 becomes the number of bytes after the first `before`.
fn find_big_length(program: &mut Assembler<Place>, len: i16, gso_size: i16, before: i32) {
    program.load(Word, 2, CONTEXT, gso_size);
    program.jump_if(2, Equal, 0, Miss);
    program.load(Word, 3, CONTEXT, len);
    program.jump_if(3, Less, before + LONGEST_TOLD + 1, Miss);
    program.apply(Add, 3, -before);
}

fn parse_v6(program: &mut Assembler<Place>, extent: Extent) {
    need(program, DATA, ETHERNET + IPV6 + UDP, Miss);
    for at in [0, 4, 8, 12] {
        for (from, to) in [(8, key::SOURCE), (24, key::DESTINATION)] {
            program.load(Word, 3, DATA, HEADER + from + at);
            program.store(Word, STACK, 3, KEY + to + at);
        }
    }
    program.load(Byte, 3, DATA, HEADER);
    program.apply(And, 3, 0xf0);
    program.jump_if(3, Differs, 0x60, Miss);
    program.load(Byte, 3, DATA, HEADER + 7);
    program.jump_if(3, Less, 2, Miss);
    program.load(Byte, 4, DATA, HEADER + 6);
    program.load(Short, 3, DATA, HEADER + 4);
    program.swap_short(3);
    if let Extent::Context { len, gso_size } = extent {
        program.jump_if(3, Differs, 0, ToldV6);
        find_big_length(program, len, gso_size, ETHERNET + IPV6);
        program.jump_if(4, Equal, libc::IPPROTO_TCP, ToldV6);
        parse_jumbo(program, extent);
        program.place(ToldV6);
    }
    program.apply(Add, 3, IPV6);
    take_length(program, extent);
    choose(program, IPV6, 0, 6);
}

/// Parses the jumbo header of an IPv6 packet, which the kernel inserts before the TCP header if the packet is longer than its IPv6 header
/// can tell (RFC 2675). Linux 5.19 and newer insert it; what [`parse_v6`] accepts without it is for kernels that leave it out. Register 3
/// has the payload's length and register 4 the next header.
fn parse_jumbo(program: &mut Assembler<Place>, extent: Extent) {
    /// The next header (TCP), 0 further words of 8 bytes, the option's number, and the length of its value.
    const START: i32 = i32::from_ne_bytes([6, 0, 0xc2, 4]);
    program.jump_if(4, Differs, libc::IPPROTO_HOPOPTS, Miss);
    need(program, DATA, ETHERNET + IPV6 + JUMBO_HEADER + UDP, Miss);
    program.load(Word, 2, DATA, HEADER + 40);
    program.jump_if(2, Differs, START, Miss);
    program.load(Word, 2, DATA, HEADER + 44);
    program.swap_word(2);
    program.jump_if_register(2, Differs, 3, Miss);
    program.push([Instruction::set(4, JUMBO_HEADER)]);
    program.store(Double, STACK, 4, JUMBO);
    program.push([Instruction::set(4, libc::IPPROTO_TCP)]);
    program.apply(Add, 3, IPV6);
    take_length(program, extent);
    choose(program, IPV6, JUMBO_HEADER, 6);
}

/// Converts the IP length in register 3 to the frame's length and stores it. Jumps to `Miss` if the packet is shorter.
fn take_length(program: &mut Assembler<Place>, extent: Extent) {
    program.apply(Add, 3, ETHERNET);
    program.store(Double, STACK, 3, LENGTH);
    match extent {
        Extent::Buffer => {
            program.jump_if(3, Greater, LONGEST, Miss);
            program.push([Instruction::copy(2, DATA)]);
            program.apply_register(Add, 2, 3);
            program.jump_if_register(2, Greater, DATA_END, Miss);
        }
        Extent::Context { len, .. } => {
            program.load(Word, 2, CONTEXT, len);
            program.jump_if_register(3, Greater, 2, Miss);
        }
    }
}

/// Dispatches by the protocol in register 4, after an IP header of this length and version and a jumbo header of `jumbo` bytes. Register 3
/// changes from the frame's length to the transport's; [`AT`] becomes the transport header's address.
fn choose(program: &mut Assembler<Place>, header: i32, jumbo: i32, version: i32) {
    program.apply(Add, 3, -(ETHERNET + header + jumbo));
    program.push([Instruction::set(5, ETHERNET + header)]);
    program.store(Double, STACK, 5, HEADERS);
    program.push([Instruction::copy(AT, DATA)]);
    program.apply(Add, AT, ETHERNET + header + jumbo);
    program.push([Instruction::copy(5, 4)]);
    program.apply(Or, 5, version << 8);
    program.store(Word, STACK, 5, KEY + key::KIND);
    program.load(Word, 5, AT, 0);
    program.store(Word, STACK, 5, KEY + key::PORTS);
    program.jump_if(4, Equal, libc::IPPROTO_UDP, Datagram);
    program.jump_if(4, Equal, libc::IPPROTO_TCP, Segment);
    program.jump(Miss);
}

/// Stores the end of the headers. Register 4 has the transport header's length.
fn end_headers(program: &mut Assembler<Place>) {
    program.load(Double, 5, STACK, HEADERS);
    program.apply_register(Add, 5, 4);
    program.store(Double, STACK, 5, HEADERS);
}

/// Checks that a UDP datagram's length holds its header and does not exceed the packet.
fn datagram(program: &mut Assembler<Place>) {
    program.place(Datagram);
    program.load(Short, 4, AT, 4);
    program.swap_short(4);
    program.jump_if(4, Less, UDP, Miss);
    program.jump_if_register(4, Greater, 3, Miss);
    program.push([Instruction::set(4, UDP)]);
    end_headers(program);
    program.jump(Known);
}

/// Checks that a TCP header is in the packet, with ACK. Stores SYN, FIN, RST and the sequence number for a tc program.
fn segment(program: &mut Assembler<Place>, extent: Extent) {
    const ACK: i32 = 0x10;
    program.place(Segment);
    need(program, AT, TCP, Miss);
    program.load(Byte, 4, AT, 12);
    program.apply(ShiftRight, 4, 4);
    program.apply(ShiftLeft, 4, 2);
    program.jump_if(4, Less, TCP, Miss);
    program.jump_if_register(4, Greater, 3, Miss);
    end_headers(program);
    program.load(Byte, 4, AT, 13);
    match extent {
        Extent::Buffer => program.jump_if(4, Shares, SYN | FIN | RST, Miss),
        Extent::Context { .. } => {
            program.push([Instruction::copy(5, 4)]);
            program.apply(And, 5, SYN | FIN | RST);
            program.store(Word, STACK, 5, CONTROL);
            program.load(Word, 3, AT, 4);
            program.swap_word(3);
            program.store(Double, STACK, 3, SEQUENCE);
            // A reset of a closed port has no ACK.
            program.jump_if(5, Shares, RST, HasAck);
        }
    }
    program.apply(And, 4, ACK);
    program.jump_if(4, Equal, 0, Miss);
    program.place(HasAck);
    program.load(Word, 4, AT, 8);
    program.swap_word(4);
    program.store(Word, STACK, 4, ACKNOWLEDGEMENT);
    program.place(Known);
}

/// Decrements the hop limit if the flow at this stack offset requires it, and sets the new MAC addresses, like `forward::rewrite`. `v6`
/// emits additional steps for IPv6.
pub(super) fn rewrite(program: &mut Assembler<Place>, flow: i16, v6: impl FnOnce(&mut Assembler<Place>)) {
    program.load(Short, 3, STACK, flow + value::ACTIONS);
    program.apply(And, 3, action::HOP.into());
    program.jump_if(3, Equal, 0, Place::Rewrite);
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Differs, TYPE_V4, Place::HopV6);
    program.load(Byte, 3, DATA, HEADER + 8);
    program.apply(Add, 3, -1);
    program.store(Byte, DATA, 3, HEADER + 8);
    // RFC 1624 with the carry of one's complement.
    program.load(Short, 3, DATA, HEADER + 10);
    program.swap_short(3);
    program.apply(Add, 3, 0x0100);
    program.push([Instruction::copy(4, 3)]);
    program.apply(Add, 4, 1);
    program.apply(ShiftRight, 4, 16);
    program.apply_register(Add, 3, 4);
    program.swap_short(3);
    program.store(Short, DATA, 3, HEADER + 10);
    program.jump(Place::Rewrite);
    program.place(Place::HopV6);
    program.load(Byte, 3, DATA, HEADER + 7);
    program.apply(Add, 3, -1);
    program.store(Byte, DATA, 3, HEADER + 7);
    v6(program);
    program.place(Place::Rewrite);
    for (width, at) in [(Double, 0), (Word, 8)] {
        program.load(width, 1, STACK, flow + value::SENT + at);
        program.store(width, DATA, 1, at);
    }
}
