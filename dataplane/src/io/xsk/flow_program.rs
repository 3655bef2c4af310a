//! The XDP program with a flow cache in front of the sockets.
//!
//! ```text
//!   no socket for the queue: drop, as without a cache
//!   whole TCP or UDP packet, IPv4 without options or IPv6 without extension headers, all there, another hop allowed;
//!   no SYN, FIN or RST                                              | no: to the socket
//!   in the map of flows, with this generation of the tables         | no: to the socket
//!   the MAC addresses are those that the flow came with             | no: to the socket
//!   not longer than what the way out carries, lease not over        | no: to the socket
//!   the gate is open                                                | no: counted there, to the socket
//!   the way out is open: count, one hop less, new MAC addresses, send
//! ```
//!
//! Every line is what the worker's own quick way asks, or stricter; what is odd in any way goes to the worker. So the
//! program drops nothing that the worker would pass, and passes nothing that the worker would not have passed when it added
//! the flow. A session that has ended since goes on for the rest of the lease, under the same tables.
//!
//! The map gives the place of a flow that it drops to another one at once, perhaps while the program still reads it. So the
//! program takes what it needs first, and then asks whether the flow is still there.

use super::bpf::Map;
use super::flow_layout::{cells, key, value};
use super::instruction::Operation::{Add, And, Or, ShiftLeft, ShiftRight};
use super::instruction::Test::{AtLeast, Differs, Equal, Greater, Less, Shares};
use super::instruction::Width::{Byte, Double, Short, Word};
use super::instruction::{Assembler, Instruction};
use crate::io::FlowSlot;

/// `struct xdp_md`.
mod context {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

/// Functions of the kernel.
mod function {
    pub(super) const MAP_LOOKUP: i32 = 1;
    pub(super) const REDIRECT_MAP: i32 = 51;
    /// `bpf_ktime_get_coarse_ns` (Linux 5.11): `CLOCK_MONOTONIC_COARSE`, a few nanoseconds where the exact clock takes 20.
    pub(super) const COARSE_TIME: i32 = 160;
}

/// `XDP_DROP`.
const DROP: i32 = 1;
/// `XDP_REDIRECT`.
const REDIRECT: i32 = 4;

/// The maps that a program with a cache uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps<'a> {
    pub(super) sockets: &'a Map,
    pub(super) flows: &'a Map,
    pub(super) interfaces: &'a Map,
    pub(super) cells: &'a Map,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    V6,
    Datagram,
    Segment,
    Known,
    /// The gate is.
    Open,
    HopV6,
    Rewrite,
    /// To the socket, which the program has already named.
    Worker,
    /// To the socket, which must be named again.
    WorkerAgain,
    End,
}
use Place::{Datagram, End, HopV6, Known, Open, Rewrite, Segment, V6, Worker, WorkerAgain};

/// Registers: what a call of the kernel leaves alone is 6 to 9.
const CONTEXT: u8 = 6;
const DATA: u8 = 7;
const DATA_END: u8 = 8;
/// The transport header, later the flow's place in the map.
const AT: u8 = 9;
const STACK: u8 = 10;

/// Places on the stack, which grows downwards.
const KEY: i16 = -key::LEN;
/// The frame's length by the IP header, 8 bytes.
const LENGTH: i16 = KEY - 8;
/// A copy of the flow's value.
const VALUE: i16 = LENGTH - value::LEN;

/// Ethernet, IPv4 and IPv6 headers, in bytes.
const ETHERNET: i32 = 14;
const IPV4: i32 = 20;
const IPV6: i32 = 40;
/// Where the IP header is.
const HEADER: i16 = 14;
/// UDP's header, and TCP's without options.
const UDP: i32 = 8;
const TCP: i32 = 20;
/// Longer packets are in several buffers and go to the socket. Must be low enough for the kernel's verifier.
const LONGEST: i32 = 16_000;

/// The program of the port in this slot.
pub(super) fn instructions(maps: Maps<'_>, slot: FlowSlot) -> Vec<Instruction> {
    let mut program = Assembler::new();
    program.push([Instruction::copy(CONTEXT, 1)]);
    name_socket(&mut program, maps.sockets);
    program.jump_if(0, Differs, REDIRECT, End);
    program.load(Word, DATA, CONTEXT, context::DATA);
    program.load(Word, DATA_END, CONTEXT, context::DATA_END);
    clear_key(&mut program, slot);
    parse(&mut program);
    find(&mut program, maps);
    count(&mut program, maps.cells, slot);
    rewrite(&mut program);
    program.place(WorkerAgain);
    name_socket(&mut program, maps.sockets);
    program.jump(End);
    program.place(Worker);
    program.push([Instruction::set(0, REDIRECT)]);
    program.place(End);
    program.push([Instruction::exit()]);
    program.finish()
}

/// The socket of the packet's queue is where it goes, unless something else is said later; a drop when there is none.
fn name_socket(program: &mut Assembler<Place>, sockets: &Map) {
    program.load(Word, 2, CONTEXT, context::RX_QUEUE_INDEX);
    program.push(Instruction::map(1, sockets));
    program.push([Instruction::set(3, DROP), Instruction::call(function::REDIRECT_MAP)]);
}

fn clear_key(program: &mut Assembler<Place>, slot: FlowSlot) {
    program.push([Instruction::set(1, 0)]);
    for at in (0..key::LEN).step_by(8) {
        program.store(Double, STACK, 1, KEY + at);
    }
    program.push([Instruction::set(1, i32::from(slot.0))]);
    program.store(Word, STACK, 1, KEY + key::SLOT);
}

/// Goes on only when so many bytes behind `from` are there.
fn need(program: &mut Assembler<Place>, from: u8, bytes: i32) {
    program.push([Instruction::copy(2, from)]);
    program.apply(Add, 2, bytes);
    program.jump_if_register(2, Greater, DATA_END, Worker);
}

/// Reads the headers into the key. The frame's length comes to the stack.
fn parse(program: &mut Assembler<Place>) {
    const ETHERTYPE: i16 = 12;
    need(program, DATA, ETHERNET + IPV4 + UDP);
    program.load(Short, 3, DATA, ETHERTYPE);
    program.swap_short(3);
    program.jump_if(3, Equal, 0x86dd, V6);
    program.jump_if(3, Differs, 0x0800, Worker);
    parse_v4(program);
    program.place(V6);
    parse_v6(program);
    datagram(program);
    segment(program);
}

fn parse_v4(program: &mut Assembler<Place>) {
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Worker);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.jump_if(3, Shares, 0x3fff, Worker);
    program.load(Byte, 3, DATA, HEADER + 8);
    program.jump_if(3, Less, 2, Worker);
    for (from, to) in [(12, key::SOURCE), (16, key::DESTINATION)] {
        program.load(Word, 3, DATA, HEADER + from);
        program.store(Word, STACK, 3, KEY + to);
    }
    program.load(Byte, 4, DATA, HEADER + 9);
    program.load(Short, 3, DATA, HEADER + 2);
    program.swap_short(3);
    program.jump_if(3, Less, IPV4 + UDP, Worker);
    take_length(program);
    choose(program, IPV4, 4);
}

fn parse_v6(program: &mut Assembler<Place>) {
    need(program, DATA, ETHERNET + IPV6 + UDP);
    program.load(Byte, 3, DATA, HEADER);
    program.apply(And, 3, 0xf0);
    program.jump_if(3, Differs, 0x60, Worker);
    program.load(Byte, 3, DATA, HEADER + 7);
    program.jump_if(3, Less, 2, Worker);
    for at in [0, 4, 8, 12] {
        for (from, to) in [(8, key::SOURCE), (24, key::DESTINATION)] {
            program.load(Word, 3, DATA, HEADER + from + at);
            program.store(Word, STACK, 3, KEY + to + at);
        }
    }
    program.load(Byte, 4, DATA, HEADER + 6);
    program.load(Short, 3, DATA, HEADER + 4);
    program.swap_short(3);
    program.apply(Add, 3, IPV6);
    take_length(program);
    choose(program, IPV6, 6);
}

/// Makes the IP length in register 3 the frame's, remembers it, and goes on only when so much is there.
fn take_length(program: &mut Assembler<Place>) {
    program.apply(Add, 3, ETHERNET);
    program.jump_if(3, Greater, LONGEST, Worker);
    program.store(Double, STACK, 3, LENGTH);
    program.push([Instruction::copy(2, DATA)]);
    program.apply_register(Add, 2, 3);
    program.jump_if_register(2, Greater, DATA_END, Worker);
}

/// Goes on behind an IP header of this length and version by the protocol in register 4. Register 3 is the frame's length and
/// becomes the transport's; [`AT`] is where that is.
fn choose(program: &mut Assembler<Place>, header: i32, version: i32) {
    program.apply(Add, 3, -(ETHERNET + header));
    program.push([Instruction::copy(AT, DATA)]);
    program.apply(Add, AT, ETHERNET + header);
    program.push([Instruction::copy(5, 4)]);
    program.apply(Or, 5, version << 8);
    program.store(Word, STACK, 5, KEY + key::KIND);
    program.load(Word, 5, AT, 0);
    program.store(Word, STACK, 5, KEY + key::PORTS);
    program.jump_if(4, Equal, libc::IPPROTO_UDP, Datagram);
    program.jump_if(4, Equal, libc::IPPROTO_TCP, Segment);
    program.jump(Worker);
}

/// The length of a UDP datagram is not more than the packet's and holds its header.
fn datagram(program: &mut Assembler<Place>) {
    program.place(Datagram);
    program.load(Short, 4, AT, 4);
    program.swap_short(4);
    program.jump_if(4, Less, UDP, Worker);
    program.jump_if_register(4, Greater, 3, Worker);
    program.jump(Known);
}

/// A TCP segment's header is in the packet, and its flags tell nothing new of an established connection.
fn segment(program: &mut Assembler<Place>) {
    const FIN_SYN_RST: i32 = 0x07;
    const ACK: i32 = 0x10;
    program.place(Segment);
    need(program, AT, TCP);
    program.load(Byte, 4, AT, 12);
    program.apply(ShiftRight, 4, 4);
    program.apply(ShiftLeft, 4, 2);
    program.jump_if(4, Less, TCP, Worker);
    program.jump_if_register(4, Greater, 3, Worker);
    program.load(Byte, 4, AT, 13);
    program.jump_if(4, Shares, FIN_SYN_RST, Worker);
    program.apply(And, 4, ACK);
    program.jump_if(4, Equal, 0, Worker);
    program.place(Known);
}

/// Register 0 is where the flow of the key is, or 0.
fn look_up(program: &mut Assembler<Place>, flows: &Map) {
    program.push(Instruction::map(1, flows));
    program.push([Instruction::copy(2, STACK)]);
    program.apply(Add, 2, i32::from(KEY));
    program.push([Instruction::call(function::MAP_LOOKUP)]);
}

/// Copies the flow to the stack, and asks whether it may still go this way. Its way out is named then.
fn find(program: &mut Assembler<Place>, maps: Maps<'_>) {
    look_up(program, maps.flows);
    program.jump_if(0, Equal, 0, Worker);
    program.push([Instruction::copy(AT, 0)]);
    for at in (0..value::LEN).step_by(8) {
        program.load(Double, 1, AT, at);
        program.store(Double, STACK, 1, VALUE + at);
    }
    look_up(program, maps.flows);
    program.jump_if_register(0, Differs, AT, Worker);
    program.push(Instruction::value(1, maps.cells, cells::GENERATION));
    program.load(Double, 1, 1, 0);
    program.load(Double, 2, STACK, VALUE + value::GENERATION);
    program.jump_if_register(1, Differs, 2, Worker);
    for (width, at) in [(Double, 0), (Word, 8)] {
        program.load(width, 1, DATA, at);
        program.load(width, 2, STACK, VALUE + value::RECEIVED + at);
        program.jump_if_register(1, Differs, 2, Worker);
    }
    // The frame as it is, with what the link layer has added behind the packet.
    program.load(Short, 1, STACK, VALUE + value::LONGEST);
    program.push([Instruction::copy(2, DATA)]);
    program.apply_register(Add, 2, 1);
    program.jump_if_register(DATA_END, Greater, 2, Worker);
    program.push([Instruction::call(function::COARSE_TIME)]);
    program.load(Double, 1, STACK, VALUE + value::EXPIRES);
    program.jump_if_register(0, AtLeast, 1, Worker);
    pass_gate(program, maps.cells);
    program.push(Instruction::map(1, maps.interfaces));
    program.load(Word, 2, STACK, VALUE + value::OUT);
    program.push([Instruction::set(3, 0), Instruction::call(function::REDIRECT_MAP)]);
    program.jump_if(0, Differs, REDIRECT, WorkerAgain);
}

/// Goes on when the gate is open. Counting and the look at the bit are one step: a packet that has found the gate closed is
/// counted before it can be opened.
fn pass_gate(program: &mut Assembler<Place>, shared: &Map) {
    const OPEN_BIT: i32 = cells::OPEN_BIT.cast_signed();
    program.load(Short, 2, STACK, VALUE + value::GATE);
    program.apply(ShiftLeft, 2, 3);
    program.push(Instruction::value(1, shared, cells::GATES));
    program.apply_register(Add, 1, 2);
    program.load(Double, 2, 1, 0);
    program.apply(ShiftRight, 2, OPEN_BIT);
    program.jump_if(2, Differs, 0, Open);
    program.push([Instruction::set(2, 1)]);
    program.count_before(1, 2, 0);
    program.apply(ShiftRight, 2, OPEN_BIT);
    program.jump_if(2, Equal, 0, Worker);
    program.place(Open);
}

fn count(program: &mut Assembler<Place>, shared: &Map, slot: FlowSlot) {
    program.load(Double, 4, STACK, LENGTH);
    program.push([Instruction::set(3, 1)]);
    let received = cells::TRAFFIC + i32::from(slot.0) * cells::TRAFFIC_LEN;
    program.push(Instruction::value(1, shared, received));
    program.count(1, 3, 0);
    program.count(1, 4, 8);
    program.load(Word, 2, STACK, VALUE + value::OUT);
    // Always so; the verifier cannot know.
    program.jump_if(2, AtLeast, cells::SLOTS, WorkerAgain);
    program.apply(ShiftLeft, 2, cells::TRAFFIC_LEN.ilog2().cast_signed());
    program.push(Instruction::value(1, shared, cells::TRAFFIC));
    program.apply_register(Add, 1, 2);
    program.count(1, 3, 16);
    program.count(1, 4, 24);
    program.load(Word, 2, STACK, VALUE + value::ORIGIN);
    program.jump_if(2, AtLeast, cells::ORIGINS, WorkerAgain);
    program.apply(ShiftLeft, 2, 3);
    program.push(Instruction::value(1, shared, cells::DECISIONS));
    program.apply_register(Add, 1, 2);
    program.count(1, 3, 0);
}

/// One hop less and new MAC addresses, as `forward::rewrite` does.
fn rewrite(program: &mut Assembler<Place>) {
    program.load(Short, 3, DATA, 12);
    program.swap_short(3);
    program.jump_if(3, Differs, 0x0800, HopV6);
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
    program.jump(Rewrite);
    program.place(HopV6);
    program.load(Byte, 3, DATA, HEADER + 7);
    program.apply(Add, 3, -1);
    program.store(Byte, DATA, 3, HEADER + 7);
    program.place(Rewrite);
    for (width, at) in [(Double, 0), (Word, 8)] {
        program.load(width, 1, STACK, VALUE + value::SENT + at);
        program.store(width, DATA, 1, at);
    }
    program.push([Instruction::set(0, REDIRECT)]);
    program.jump(End);
}
