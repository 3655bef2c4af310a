//! Program steps that take packets without a flow from the node's kernel: those of masqueraded connections and to virtual addresses.
//!
//! ```text
//!   answer:          world -> node:port        node and world as the packet has them
//!   ICMP error about node:port -> world        node and world as the quoted packet has them
//!
//!   vips[protocol, port, node], at a link from the world or a node on the link | else:
//!   at a link: port is one of masqueraded packets, sent[protocol, ports, world] | else: the kernel's
//!   to a worker
//! ```
//!
//! Only a packet's first fragment has ports. It is recorded in the map of [`untranslated`], and the fragments after it follow it to the worker; one
//! that overtakes the first is lost.

use super::super::flow_headers::{ETHERNET, HEADER, IPV6, SHORTEST, TYPE_V4, TYPE_V6, UDP, need};
use super::super::flow_layout::key;
use super::super::flow_place::Place::{
    self, ClaimError, ClaimFragment, ClaimPort, ClaimSecond, ClaimSource, ClaimThird, ClaimV4, ClaimV6, Claimed,
    ClaimedBefore, NoVip, Pass, ToWorker, Unclaimed, VipFound,
};
use super::super::flow_stack::{CONTEXT, DATA, KEY, SCRATCH, SENT_KEY, STACK};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{And, Or};
use super::super::instruction::Test::{Differs, Equal, Greater, Less, Shares};
use super::super::instruction::Width::{Byte, Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{context, function, load_ends};
use super::entrance::{Entrance, Maps};
use super::hop_key::{self, store_v4, store_v6};
use super::sent::{self, FRAGMENT, OFFSET_V4, OFFSET_V6, TRANSPORT_BEHIND_FRAGMENT};
use super::world::{Ip, V4, V6};
use super::{taken_ports, untranslated, vips, world};

/// Stack offset of a flag of 8 bytes: 1 if the packet is a fragment, else 0.
const IS_FRAGMENT: i16 = SCRATCH;
/// The flag of an IPv4 fragment that others follow it, in host order with the offset (RFC 791 §3.1).
const MORE_V4: i32 = 0x2000;
/// The length in bytes of an ICMP header. The packet that an ICMP error is about follows it.
const ICMP: i16 = 8;
/// The ICMP type of an echo reply (RFC 792).
const ECHO_REPLY: i32 = 0;
/// The ICMP types of errors that contain the packet that they are about: unreachable, time exceeded, parameter problem (RFC 792).
const ERRORS: [i32; 3] = [3, 11, 12];
/// The ICMPv6 type of an echo reply (RFC 4443).
const ECHO_REPLY_V6: i32 = 129;
/// The highest ICMPv6 type of an error that contains the packet that it is about (RFC 4443).
const LAST_ERROR_V6: i32 = 4;

/// Jumps to `ToWorker` if the packet, which has no flow, is to a virtual address, or, at a link, answers a recorded packet of a masqueraded connection.
/// Jumps to `Pass` with all other fragments, whose flow key these steps overwrite, and with packets of VLANs. Goes on with all others. Loads the ends of
/// the linear part again. Overwrites registers 0 to 5.
pub(super) fn claim(program: &mut Assembler<Place>, table: &FlowTable, maps: &Maps<'_>, entrance: Entrance) {
    // It is the VLAN interface's.
    program.load(Word, 1, CONTEXT, context::VLAN_PRESENT);
    program.jump_if(1, Differs, 0, Pass);
    load_ends(program);
    program.push([Instruction::set(1, 0)]);
    program.store(Double, STACK, 1, IS_FRAGMENT);
    need(program, DATA, SHORTEST, Unclaimed);
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, ClaimV6);
    program.jump_if(3, Differs, TYPE_V4, Unclaimed);
    claim_v4(program);
    program.place(ClaimError);
    claim_error(program, &V4);
    program.place(ClaimV6);
    claim_v6(program);
    claim_error(program, &V6);
    program.place(ClaimFragment);
    claim_fragment(program);
    program.place(ClaimPort);
    claim_port(program, table, maps, entrance);
    program.place(Claimed);
    program.load(Double, 1, STACK, IS_FRAGMENT);
    program.jump_if(1, Equal, 0, ToWorker);
    untranslated::record(program, maps.records);
    program.jump(ToWorker);
    program.place(ClaimedBefore);
    untranslated::is_recorded(program, maps.records, Pass);
    program.jump(ToWorker);
    program.place(Unclaimed);
    program.load(Double, 1, STACK, IS_FRAGMENT);
    program.jump_if(1, Differs, 0, Pass);
}

/// Decides whether a worker gets a packet without a flow. Jumps to
/// * `Claimed` if the packet is to a virtual address, or if it has arrived at a link and answers a recorded packet of a masqueraded
///   connection. The caller places this label behind these steps;
/// * `Pass` if the packet has arrived at a link with the source address of a pod that cannot have sent it;
/// * `Unclaimed` with all others.
///
/// Needs the protocol and the world's port in the key of a record, the world's address in that of a next hop, the node's address in that of
/// a virtual address, and the node's port in register 4, in network order. Overwrites registers 0 to 5.
fn claim_port(program: &mut Assembler<Place>, table: &FlowTable, maps: &Maps<'_>, entrance: Entrance) {
    program.store(Short, STACK, 4, sent::NODE_PORT);
    program.swap_short(4);
    // At the tunnel, the guard has checked the source.
    let found = if entrance == Entrance::Link { [VipFound, NoVip] } else { [Claimed, Unclaimed] };
    vips::find(program, table, maps.vips, found);
    if entrance == Entrance::Link {
        program.place(VipFound);
        hop_key::find(program, maps.hops);
        world::check_source(program, [Claimed, Claimed]);
        program.place(NoVip);
        program.load(Short, 4, STACK, sent::NODE_PORT);
        program.swap_short(4);
        // Spares most of the node's own packets the look-up.
        taken_ports::is_source(program, table, [ClaimSecond, ClaimThird, ClaimSource], Unclaimed);
        world::is_own(program, vips::ADDRESS, Unclaimed);
        look_up(program, maps.sent, SENT_KEY);
        program.jump_if(0, Equal, 0, Unclaimed);
    }
}

/// Jumps to `ClaimPort` with an IPv4 packet that has a port or is an echo reply, to `ClaimError` with an ICMP error, to `ClaimedBefore` with a fragment
/// after the first, and to `Unclaimed` with others.
fn claim_v4(program: &mut Assembler<Place>) {
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Unclaimed);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.push([Instruction::copy(4, 3)]);
    program.apply(And, 4, OFFSET_V4 | MORE_V4);
    program.jump_if(4, Equal, 0, ClaimV4);
    program.load(Byte, 4, DATA, HEADER + V4.protocol);
    program.load(Short, 5, DATA, HEADER + 4);
    store_fragment(program);
    program.jump_if(3, Shares, OFFSET_V4, ClaimedBefore);
    program.place(ClaimV4);
    store_addresses(program, &V4, [HEADER + V4.source, HEADER + V4.destination]);
    load_answer(program, &V4, HEADER + V4.protocol, HEADER + V4.len);
    program.jump_if(3, Equal, ECHO_REPLY, ClaimPort);
    for error in ERRORS {
        program.jump_if(3, Equal, error, ClaimError);
    }
    program.jump(Unclaimed);
}

/// Jumps to `ClaimPort` with an IPv6 packet that has a port or is an echo reply, to `ClaimFragment` with a fragment, and to `Unclaimed` with others.
/// Goes on with an ICMPv6 error.
fn claim_v6(program: &mut Assembler<Place>) {
    need(program, DATA, ETHERNET + IPV6 + UDP, Unclaimed);
    store_addresses(program, &V6, [HEADER + V6.source, HEADER + V6.destination]);
    program.load(Byte, 3, DATA, HEADER + V6.protocol);
    program.jump_if(3, Equal, libc::IPPROTO_FRAGMENT, ClaimFragment);
    load_answer(program, &V6, HEADER + V6.protocol, HEADER + V6.len);
    program.jump_if(3, Equal, ECHO_REPLY_V6, ClaimPort);
    program.jump_if(3, Greater, LAST_ERROR_V6, Unclaimed);
}

/// Jumps to `ClaimedBefore` with an IPv6 fragment after the first, and to `Unclaimed` unless the first one has a port or is an echo reply. The fragment
/// header follows the IPv6 header (RFC 8200 §4.5).
fn claim_fragment(program: &mut Assembler<Place>) {
    const AT: i16 = HEADER + V6.len;
    need(program, DATA, ETHERNET + IPV6 + FRAGMENT, Unclaimed);
    program.load(Byte, 4, DATA, AT);
    program.load(Word, 5, DATA, AT + 4);
    store_fragment(program);
    program.load(Short, 3, DATA, AT + 2);
    program.swap_short(3);
    program.jump_if(3, Shares, OFFSET_V6, ClaimedBefore);
    need(program, DATA, ETHERNET + IPV6 + FRAGMENT + UDP, Unclaimed);
    load_answer(program, &V6, AT, TRANSPORT_BEHIND_FRAGMENT);
    program.jump_if(3, Differs, ECHO_REPLY_V6, Unclaimed);
}

/// Jumps to `ClaimPort` with an ICMP error about a packet that has a port or is an echo request, else to `Unclaimed`. First pulls that packet's headers
/// into the linear part, where drivers put only the outer ones.
fn claim_error(program: &mut Assembler<Place>, ip: &Ip) {
    let inner = HEADER + ip.len + ICMP;
    let transport = inner + ip.len;
    let bytes = i32::from(transport) + UDP;
    program.load(Double, 1, STACK, IS_FRAGMENT);
    program.jump_if(1, Differs, 0, Pass);
    program.load(Word, 2, CONTEXT, context::LEN);
    program.jump_if(2, Less, bytes, Unclaimed);
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(2, bytes), Instruction::call(function::PULL_DATA)]);
    load_ends(program);
    need(program, DATA, bytes, Unclaimed);
    if ip.address_len == V4.address_len {
        program.load(Byte, 3, DATA, inner);
        program.jump_if(3, Differs, 0x45, Unclaimed);
    }
    store_addresses(program, ip, [inner + ip.destination, inner + ip.source]);
    program.load(Byte, 3, DATA, inner + ip.protocol);
    load_ports(program, [transport + 2, transport]);
    program.jump_if(3, Differs, ip.icmp, Unclaimed);
    load_identifier(program, transport);
    program.jump(ClaimPort);
}

/// Stores two addresses of the packet: the one at byte `of_world` in the key of a record, and the one at byte `of_node` in the key of a
/// virtual address. Overwrites register 3.
fn store_addresses(program: &mut Assembler<Place>, ip: &Ip, [of_world, of_node]: [i16; 2]) {
    if ip.address_len == V4.address_len {
        store_v4(program, of_world);
        hop_key::store_mapped(program, of_node, vips::ADDRESS);
    } else {
        store_v6(program, of_world);
        hop_key::store_whole(program, of_node, vips::ADDRESS);
    }
}

/// Jumps to `ClaimPort` if the protocol, at byte `protocol` of the packet, has ports, and to `Unclaimed` if it is not ICMP either. Of an ICMP message,
/// register 3 becomes the type, and register 4 an echo's identifier in network order. `transport` is the offset of the transport header, of which 8
/// bytes are in the linear part. Overwrites register 2.
fn load_answer(program: &mut Assembler<Place>, ip: &Ip, protocol: i16, transport: i16) {
    program.load(Byte, 3, DATA, protocol);
    load_ports(program, [transport, transport + 2]);
    program.jump_if(3, Differs, ip.icmp, Unclaimed);
    program.load(Byte, 3, DATA, transport);
    load_identifier(program, transport);
}

/// Turns the flow's key into that of a fragment: stores the protocol (register 4), the identification (register 5), and an IP version that
/// no flow has. Sets [`IS_FRAGMENT`] to 1. Overwrites register 4.
fn store_fragment(program: &mut Assembler<Place>) {
    const VERSION: i32 = 0xff00;
    program.apply(Or, 4, VERSION);
    program.store(Word, STACK, 4, KEY + key::KIND);
    program.store(Word, STACK, 5, KEY + key::PORTS);
    program.push([Instruction::set(4, 1)]);
    program.store(Double, STACK, 4, IS_FRAGMENT);
}

/// Stores the protocol, which register 3 has, and the world's port, at byte `world` of the packet, in the key of a record. Register 4 becomes the node's
/// port, at byte `node`, in network order. Jumps to `ClaimPort` if the protocol has ports. Overwrites register 2.
fn load_ports(program: &mut Assembler<Place>, [world, node]: [i16; 2]) {
    program.store(Word, STACK, 3, sent::PROTOCOL);
    program.load(Short, 2, DATA, world);
    program.store(Short, STACK, 2, sent::WORLD_PORT);
    program.load(Short, 4, DATA, node);
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP] {
        program.jump_if(3, Equal, protocol, ClaimPort);
    }
}

/// Stores 0 as the world's port in the key of a record. Register 4 becomes the identifier, in network order, of the echo message whose header is at byte
/// `at` of the packet. Overwrites register 2.
fn load_identifier(program: &mut Assembler<Place>, at: i16) {
    program.push([Instruction::set(2, 0)]);
    program.store(Short, STACK, 2, sent::WORLD_PORT);
    program.load(Short, 4, DATA, at + 4);
}
