//! Program steps for masqueraded connections of pods to the world, past the node's network stack.
//!
//! ```text
//!   pod --> worker or program: source becomes node:61000..65535 --> [to_nodes]: hops[destination] is the world --> card
//!   pod <-- flow known <-- [from_nodes] at the card <-- world
//!   worker <-- else, if the packet answers a masqueraded one (sent), or is an ICMP error about one
//! ```
//!
//! All other packets to the node are its kernel's. Only a packet's first fragment has ports. It is recorded in the map of [`untranslated`], and the
//! fragments after it follow it to the worker; one that overtakes the first is lost.
//!
//! The kernel refuses packets that come over the host port with the node's own address as their source, so a masqueraded packet never passes the
//! stack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use super::super::flow_headers::{ETHERNET, HEADER, IPV4, IPV6, SHORTEST, UDP, need};
use super::super::flow_layout::{cells, key};
use super::super::flow_place::Place::{
    self, Answer, AnswerV6, ClaimError, ClaimFragment, ClaimPort, ClaimV4, ClaimV6, ClaimedBefore, Masqueraded,
    MasqueradedV6, Pass, ToWorker, Unclaimed,
};
use super::super::flow_stack::{CONTEXT, DATA, KEY, SCRATCH, SENT_KEY, STACK};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{And, Or};
use super::super::instruction::Test::{Differs, Equal, Greater, Less, Shares};
use super::super::instruction::Width::{Byte, Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;
use super::abi::{context, function, load_ends};
use super::{TcDatapath, sent, untranslated};

/// Byte offsets of the cells from the first one, whose address the steps load.
const PORTS: i16 = 4;
const V6: i16 = 8;
const _: () = assert!(cells::WORLD_PORTS - cells::WORLD_V4 == 4 && cells::WORLD_V6 - cells::WORLD_V4 == 8);
/// The register that is 1 for a packet's first fragment, else 0.
const IS_FRAGMENT: u8 = 5;
/// Bytes of the header of ICMP, and of an ICMP error before the packet that it is about.
const ICMP: i16 = 8;
/// Types of ICMP: an echo reply, and errors with the packet that they are about (RFC 792).
const ECHO_REPLY: i32 = 0;
const ERRORS: [i32; 3] = [3, 11, 12];
/// Types of ICMPv6: an echo reply, and the last error (RFC 4443).
const ECHO_REPLY_V6: i32 = 129;
const LAST_ERROR_V6: i32 = 4;

/// Jumps to `ToWorker` if the packet belongs to a masqueraded connection that no flow knows: it answers a recorded packet. Jumps to `Pass` with
/// other fragments, of which the key is overwritten, and with packets of VLANs. Goes on with all others. Loads the ends of the linear part again.
/// Overwrites registers 1 to 5.
pub(super) fn claim(program: &mut Assembler<Place>, table: &FlowTable, [sent, records]: [&Map; 2]) {
    // It is the VLAN interface's.
    program.load(Word, 1, CONTEXT, context::VLAN_PRESENT);
    program.jump_if(1, Differs, 0, Pass);
    load_ends(program);
    program.push([Instruction::set(IS_FRAGMENT, 0)]);
    need(program, DATA, SHORTEST, Unclaimed);
    program.push(Instruction::value(1, &table.cells, cells::WORLD_V4));
    program.load(Short, 3, DATA, 12);
    program.swap_short(3);
    program.jump_if(3, Equal, 0x86dd, ClaimV6);
    program.jump_if(3, Differs, 0x0800, Unclaimed);
    claim_v4(program, table);
    program.place(ClaimV6);
    claim_v6(program, table);
    program.place(ClaimPort);
    program.store(Short, STACK, 4, sent::NODE_PORT);
    program.swap_short(4);
    program.load(Short, 3, 1, PORTS);
    program.jump_if_register(4, Less, 3, Unclaimed);
    program.load(Short, 3, 1, PORTS + 2);
    program.jump_if_register(4, Greater, 3, Unclaimed);
    program.store(Double, STACK, IS_FRAGMENT, SCRATCH);
    look_up(program, sent, SENT_KEY);
    program.load(Double, IS_FRAGMENT, STACK, SCRATCH);
    program.jump_if(0, Equal, 0, Unclaimed);
    program.jump_if(IS_FRAGMENT, Equal, 0, ToWorker);
    untranslated::record(program, records);
    program.jump(ToWorker);
    program.place(ClaimedBefore);
    untranslated::is_recorded(program, records, Pass);
    program.jump(ToWorker);
    program.place(Unclaimed);
    program.jump_if(IS_FRAGMENT, Differs, 0, Pass);
}

fn claim_v4(program: &mut Assembler<Place>, table: &FlowTable) {
    /// The offset of a fragment, and the flag that others follow it (RFC 791 §3.1).
    const OFFSET: i32 = 0x1fff;
    const MORE: i32 = 0x2000;
    const TRANSPORT: i16 = HEADER + 20;
    const INNER: i16 = TRANSPORT + ICMP;
    is_own(program, HEADER + 16, 0, 4, Unclaimed);
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Unclaimed);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.push([Instruction::copy(4, 3)]);
    program.apply(And, 4, OFFSET | MORE);
    program.jump_if(4, Equal, 0, ClaimV4);
    program.load(Byte, 4, DATA, HEADER + 9);
    program.load(Short, IS_FRAGMENT, DATA, HEADER + 4);
    store_fragment(program);
    program.jump_if(3, Shares, OFFSET, ClaimedBefore);
    program.place(ClaimV4);
    sent::store_v4(program, HEADER + 12);
    program.load(Byte, 3, DATA, HEADER + 9);
    load_ports(program, [TRANSPORT, TRANSPORT + 2]);
    has_ports(program);
    program.jump_if(3, Differs, libc::IPPROTO_ICMP, Unclaimed);
    program.load(Byte, 3, DATA, TRANSPORT);
    load_identifier(program, TRANSPORT);
    program.jump_if(3, Equal, ECHO_REPLY, ClaimPort);
    for error in ERRORS {
        program.jump_if(3, Equal, error, ClaimError);
    }
    program.jump(Unclaimed);
    program.place(ClaimError);
    pull_error(program, table, ETHERNET + IPV4 + i32::from(ICMP) + IPV4 + UDP);
    is_own(program, INNER + 12, 0, 4, Unclaimed);
    program.load(Byte, 3, DATA, INNER);
    program.jump_if(3, Differs, 0x45, Unclaimed);
    sent::store_v4(program, INNER + 16);
    program.load(Byte, 3, DATA, INNER + 9);
    load_ports(program, [INNER + 22, INNER + 20]);
    has_ports(program);
    program.jump_if(3, Differs, libc::IPPROTO_ICMP, Unclaimed);
    load_identifier(program, INNER + 20);
    program.jump(ClaimPort);
}

fn claim_v6(program: &mut Assembler<Place>, table: &FlowTable) {
    const TRANSPORT: i16 = HEADER + 40;
    const INNER: i16 = TRANSPORT + ICMP;
    need(program, DATA, ETHERNET + IPV6 + UDP, Unclaimed);
    is_own(program, HEADER + 24, V6, 16, Unclaimed);
    sent::store_v6(program, HEADER + 8);
    program.load(Byte, 3, DATA, HEADER + 6);
    program.jump_if(3, Equal, libc::IPPROTO_FRAGMENT, ClaimFragment);
    load_ports(program, [TRANSPORT, TRANSPORT + 2]);
    has_ports(program);
    program.jump_if(3, Differs, libc::IPPROTO_ICMPV6, Unclaimed);
    program.load(Byte, 3, DATA, TRANSPORT);
    load_identifier(program, TRANSPORT);
    program.jump_if(3, Equal, ECHO_REPLY_V6, ClaimPort);
    program.jump_if(3, Greater, LAST_ERROR_V6, Unclaimed);
    pull_error(program, table, ETHERNET + IPV6 + i32::from(ICMP) + IPV6 + UDP);
    is_own(program, INNER + 8, V6, 16, Unclaimed);
    sent::store_v6(program, INNER + 24);
    program.load(Byte, 3, DATA, INNER + 6);
    load_ports(program, [INNER + 42, INNER + 40]);
    has_ports(program);
    program.jump_if(3, Differs, libc::IPPROTO_ICMPV6, Unclaimed);
    load_identifier(program, INNER + 40);
    program.jump(ClaimPort);
    program.place(ClaimFragment);
    claim_fragment(program, TRANSPORT);
}

/// The same for an IPv6 packet with a fragment header at this offset (RFC 8200 §4.5).
fn claim_fragment(program: &mut Assembler<Place>, at: i16) {
    /// The bits of the offset.
    const OFFSET: i32 = 0xfff8;
    const LEN: i32 = 8;
    let transport = at + 8;
    need(program, DATA, ETHERNET + IPV6 + LEN, Unclaimed);
    program.load(Byte, 4, DATA, at);
    program.load(Word, IS_FRAGMENT, DATA, at + 4);
    store_fragment(program);
    program.load(Short, 3, DATA, at + 2);
    program.swap_short(3);
    program.jump_if(3, Shares, OFFSET, ClaimedBefore);
    need(program, DATA, ETHERNET + IPV6 + LEN + UDP, Unclaimed);
    program.load(Byte, 3, DATA, at);
    load_ports(program, [transport, transport + 2]);
    has_ports(program);
    program.jump_if(3, Differs, libc::IPPROTO_ICMPV6, Unclaimed);
    program.load(Byte, 3, DATA, transport);
    load_identifier(program, transport);
    program.jump_if(3, Differs, ECHO_REPLY_V6, Unclaimed);
}

/// Pulls the first `bytes` bytes of an ICMP error into the linear part, where drivers put only the headers. Jumps to `Unclaimed` if it has fewer, and
/// to `Pass` with a fragment. Register 1 stays the cell's address.
fn pull_error(program: &mut Assembler<Place>, table: &FlowTable, bytes: i32) {
    program.jump_if(IS_FRAGMENT, Differs, 0, Pass);
    program.load(Word, 2, CONTEXT, context::LEN);
    program.jump_if(2, Less, bytes, Unclaimed);
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(2, bytes), Instruction::call(function::PULL_DATA)]);
    load_ends(program);
    program.push([Instruction::set(IS_FRAGMENT, 0)]);
    need(program, DATA, bytes, Unclaimed);
    program.push(Instruction::value(1, &table.cells, cells::WORLD_V4));
}

/// Stores protocol (register 4) and identification ([`IS_FRAGMENT`]) of a fragment in the key, in which flows never have this version. The latter
/// register becomes 1.
fn store_fragment(program: &mut Assembler<Place>) {
    const VERSION: i32 = 0xff00;
    program.apply(Or, 4, VERSION);
    program.store(Word, STACK, 4, KEY + key::KIND);
    program.store(Word, STACK, IS_FRAGMENT, KEY + key::PORTS);
    program.push([Instruction::set(IS_FRAGMENT, 1)]);
}

/// Stores the protocol in register 3 and the world's port in the key of the record. Register 4 becomes the node's port. The ports are at these offsets
/// of the packet. Overwrites register 2.
fn load_ports(program: &mut Assembler<Place>, [world, node]: [i16; 2]) {
    program.store(Word, STACK, 3, sent::PROTOCOL);
    program.load(Short, 2, DATA, world);
    program.store(Short, STACK, 2, sent::WORLD_PORT);
    program.load(Short, 4, DATA, node);
}

/// The same for the identifier of an echo message whose header is at this offset. Leaves the protocol.
fn load_identifier(program: &mut Assembler<Place>, at: i16) {
    program.push([Instruction::set(2, 0)]);
    program.store(Short, STACK, 2, sent::WORLD_PORT);
    program.load(Short, 4, DATA, at + 4);
}

/// Jumps to `ClaimPort` if the protocol in register 3 has ports.
fn has_ports(program: &mut Assembler<Place>) {
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP] {
        program.jump_if(3, Equal, protocol, ClaimPort);
    }
}

/// Jumps to `otherwise` unless the packet's address of `bytes` bytes at this offset is that of masqueraded packets, `cell` bytes from the address in
/// register 1. Overwrites registers 3 and 4.
fn is_own(program: &mut Assembler<Place>, at: i16, cell: i16, bytes: i16, otherwise: Place) {
    for word in (0..bytes).step_by(4) {
        program.load(Word, 3, DATA, at + word);
        program.load(Word, 4, 1, cell + word);
        program.jump_if_register(3, Differs, 4, otherwise);
    }
}

/// Jumps to `otherwise` unless the packet's source is that of masqueraded packets. Needs an IPv4 header in the linear part. Overwrites registers 1 to
/// 4.
pub(super) fn is_masqueraded(program: &mut Assembler<Place>, table: &FlowTable, otherwise: Place) {
    has_own(program, table, [HEADER + 12, HEADER + 8], [MasqueradedV6, Masqueraded], otherwise);
}

/// Jumps to `otherwise` unless the packet's destination is the source of masqueraded packets. Else as [`is_masqueraded`].
pub(super) fn is_answer(program: &mut Assembler<Place>, table: &FlowTable, otherwise: Place) {
    has_own(program, table, [HEADER + 16, HEADER + 24], [AnswerV6, Answer], otherwise);
}

/// Jumps to `otherwise` unless the address at `v4` of an IPv4 packet, or at `v6` of an IPv6 packet, is that of masqueraded packets. The labels are for
/// these steps alone.
fn has_own(
    program: &mut Assembler<Place>,
    table: &FlowTable,
    [v4, v6]: [i16; 2],
    [is_v6, is_own_address]: [Place; 2],
    otherwise: Place,
) {
    program.push(Instruction::value(1, &table.cells, cells::WORLD_V4));
    program.load(Short, 3, DATA, 12);
    program.swap_short(3);
    program.jump_if(3, Equal, 0x86dd, is_v6);
    is_own(program, v4, 0, 4, otherwise);
    program.jump(is_own_address);
    program.place(is_v6);
    need(program, DATA, ETHERNET + IPV6, otherwise);
    is_own(program, v6, V6, 16, otherwise);
    program.place(is_own_address);
}

impl TcDatapath {
    /// Takes the answers to masqueraded packets at the links to the world: those to `sources`, of which the first of each family counts, with a port
    /// or an echo identifier in `ports`. Without a source, takes none of that family.
    pub fn take_answers(&self, sources: &[IpAddr], ports: &RangeInclusive<u16>) {
        let v4 = sources.iter().find_map(|source| if let IpAddr::V4(v4) = source { Some(*v4) } else { None });
        let v6 = sources.iter().find_map(|source| if let IpAddr::V6(v6) = source { Some(*v6) } else { None });
        let v4 = v4.unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
        let [first @ .., a, b, c, d, e, f, g, h] = v6.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
        let [low, high] = [*ports.start(), *ports.end()].map(u16::to_ne_bytes);
        self.table
            .half_cell(cells::WORLD_PORTS)
            .store(u32::from_ne_bytes([low[0], low[1], high[0], high[1]]), Ordering::SeqCst);
        self.table.half_cell(cells::WORLD_V4).store(u32::from_ne_bytes(v4), Ordering::SeqCst);
        self.table.cell(cells::WORLD_V6).store(u64::from_ne_bytes(first), Ordering::SeqCst);
        self.table.cell(cells::WORLD_V6 + 8).store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Ordering::SeqCst);
    }
}
