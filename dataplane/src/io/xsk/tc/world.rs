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

use super::super::flow_headers::{ETHERNET, HEADER, IPV6, SHORTEST, TYPE_V4, TYPE_V6, UDP, need};
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
use super::hop_key::{store_v4, store_v6};
use super::sent::{self, FRAGMENT, OFFSET_V4, OFFSET_V6, TRANSPORT_BEHIND_FRAGMENT};
use super::{TcDatapath, untranslated};

/// Byte offset of the source ports from the cell `WORLD_V4`, whose address the steps load.
const PORTS: i16 = 4;
const _: () = assert!(cells::WORLD_PORTS - cells::WORLD_V4 == PORTS as i32);
const _: () = assert!(cells::WORLD_V6 - cells::WORLD_V4 == V6.cell as i32);
/// The register that is 1 for a packet's first fragment, else 0.
const IS_FRAGMENT: u8 = 5;
/// The flag of an IPv4 fragment that others follow it, in host order with the offset (RFC 791 §3.1).
const MORE_V4: i32 = 0x2000;
/// Bytes of the header of ICMP, and of an ICMP error before the packet that it is about.
const ICMP: i16 = 8;
/// Types of ICMP: an echo reply, and errors with the packet that they are about (RFC 792).
const ECHO_REPLY: i32 = 0;
const ERRORS: [i32; 3] = [3, 11, 12];
/// Types of ICMPv6: an echo reply, and the last error (RFC 4443).
const ECHO_REPLY_V6: i32 = 129;
const LAST_ERROR_V6: i32 = 4;

/// What differs between the versions of IP. Offsets are in bytes, those of fields from the start of the header.
struct Ip {
    source: i16,
    destination: i16,
    /// The offset of the protocol, or of the next header.
    protocol: i16,
    /// The length of the header in bytes, without options.
    len: i16,
    /// The length of an address in bytes.
    address_len: i16,
    /// The offset of the source of masqueraded packets from the cell `WORLD_V4`.
    cell: i16,
    /// The protocol number of ICMP.
    icmp: i32,
}

const V4: Ip =
    Ip { source: 12, destination: 16, protocol: 9, len: 20, address_len: 4, cell: 0, icmp: libc::IPPROTO_ICMP };
const V6: Ip =
    Ip { source: 8, destination: 24, protocol: 6, len: 40, address_len: 16, cell: 8, icmp: libc::IPPROTO_ICMPV6 };

/// Jumps to `ToWorker` if the packet belongs to a masqueraded connection that no flow knows: it answers a recorded packet. Jumps to `Pass` with
/// other fragments, of which the key is overwritten, and with packets of VLANs. Goes on with all others. Loads the ends of the linear part again.
/// Overwrites registers 0 to 5.
pub(super) fn claim(program: &mut Assembler<Place>, table: &FlowTable, [sent, records]: [&Map; 2]) {
    // It is the VLAN interface's.
    program.load(Word, 1, CONTEXT, context::VLAN_PRESENT);
    program.jump_if(1, Differs, 0, Pass);
    load_ends(program);
    program.push([Instruction::set(IS_FRAGMENT, 0)]);
    need(program, DATA, SHORTEST, Unclaimed);
    program.push(Instruction::value(1, &table.cells, cells::WORLD_V4));
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, ClaimV6);
    program.jump_if(3, Differs, TYPE_V4, Unclaimed);
    claim_v4(program);
    program.place(ClaimError);
    claim_error(program, table, &V4);
    program.place(ClaimV6);
    claim_v6(program);
    claim_error(program, table, &V6);
    program.place(ClaimFragment);
    claim_fragment(program);
    program.place(ClaimPort);
    program.store(Short, STACK, 4, sent::NODE_PORT);
    // Spares most of the node's own packets the look-up.
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

/// Jumps to `ClaimPort` with an IPv4 packet that has a port or is an echo reply, to `ClaimError` with an ICMP error, to `ClaimedBefore` with a fragment
/// after the first, and to `Unclaimed` with others.
fn claim_v4(program: &mut Assembler<Place>) {
    is_own(program, &V4, HEADER + V4.destination, Unclaimed);
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Unclaimed);
    program.load(Short, 3, DATA, HEADER + 6);
    program.swap_short(3);
    program.push([Instruction::copy(4, 3)]);
    program.apply(And, 4, OFFSET_V4 | MORE_V4);
    program.jump_if(4, Equal, 0, ClaimV4);
    program.load(Byte, 4, DATA, HEADER + V4.protocol);
    program.load(Short, IS_FRAGMENT, DATA, HEADER + 4);
    store_fragment(program);
    program.jump_if(3, Shares, OFFSET_V4, ClaimedBefore);
    program.place(ClaimV4);
    store_v4(program, HEADER + V4.source);
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
    is_own(program, &V6, HEADER + V6.destination, Unclaimed);
    store_v6(program, HEADER + V6.source);
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
    program.load(Word, IS_FRAGMENT, DATA, AT + 4);
    store_fragment(program);
    program.load(Short, 3, DATA, AT + 2);
    program.swap_short(3);
    program.jump_if(3, Shares, OFFSET_V6, ClaimedBefore);
    need(program, DATA, ETHERNET + IPV6 + FRAGMENT + UDP, Unclaimed);
    load_answer(program, &V6, AT, TRANSPORT_BEHIND_FRAGMENT);
    program.jump_if(3, Differs, ECHO_REPLY_V6, Unclaimed);
}

/// Jumps to `ClaimPort` with an ICMP error about a packet that this node has sent and that has a port or is an echo request, else to `Unclaimed`. First
/// pulls that packet's headers into the linear part, where drivers put only the outer ones.
fn claim_error(program: &mut Assembler<Place>, table: &FlowTable, ip: &Ip) {
    let inner = HEADER + ip.len + ICMP;
    let transport = inner + ip.len;
    let bytes = i32::from(transport) + UDP;
    program.jump_if(IS_FRAGMENT, Differs, 0, Pass);
    program.load(Word, 2, CONTEXT, context::LEN);
    program.jump_if(2, Less, bytes, Unclaimed);
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(2, bytes), Instruction::call(function::PULL_DATA)]);
    load_ends(program);
    program.push([Instruction::set(IS_FRAGMENT, 0)]);
    need(program, DATA, bytes, Unclaimed);
    program.push(Instruction::value(1, &table.cells, cells::WORLD_V4));
    is_own(program, ip, inner + ip.source, Unclaimed);
    if ip.address_len == V4.address_len {
        program.load(Byte, 3, DATA, inner);
        program.jump_if(3, Differs, 0x45, Unclaimed);
        store_v4(program, inner + ip.destination);
    } else {
        store_v6(program, inner + ip.destination);
    }
    program.load(Byte, 3, DATA, inner + ip.protocol);
    load_ports(program, [transport + 2, transport]);
    program.jump_if(3, Differs, ip.icmp, Unclaimed);
    load_identifier(program, transport);
    program.jump(ClaimPort);
}

/// Jumps to `ClaimPort` if the transport header at this offset has ports. Else, register 3 becomes the type of ICMP, and register 4 the identifier that
/// an echo reply has. Jumps to `Unclaimed` if the protocol, which is at another offset, is neither. Needs 8 bytes of the transport header.
fn load_answer(program: &mut Assembler<Place>, ip: &Ip, protocol: i16, transport: i16) {
    program.load(Byte, 3, DATA, protocol);
    load_ports(program, [transport, transport + 2]);
    program.jump_if(3, Differs, ip.icmp, Unclaimed);
    program.load(Byte, 3, DATA, transport);
    load_identifier(program, transport);
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

/// Stores the protocol in register 3 and the world's port, at this offset of the packet, in the key of a record. Jumps to `ClaimPort` if the protocol
/// has ports; register 4 has the node's port, at the other offset. Overwrites register 2.
fn load_ports(program: &mut Assembler<Place>, [world, node]: [i16; 2]) {
    program.store(Word, STACK, 3, sent::PROTOCOL);
    program.load(Short, 2, DATA, world);
    program.store(Short, STACK, 2, sent::WORLD_PORT);
    program.load(Short, 4, DATA, node);
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP] {
        program.jump_if(3, Equal, protocol, ClaimPort);
    }
}

/// Stores 0 as the world's port in the key of a record. Register 4 becomes the identifier of an echo message whose header is at this offset.
/// Overwrites register 2.
fn load_identifier(program: &mut Assembler<Place>, at: i16) {
    program.push([Instruction::set(2, 0)]);
    program.store(Short, STACK, 2, sent::WORLD_PORT);
    program.load(Short, 4, DATA, at + 4);
}

/// Jumps to `otherwise` unless the address at this offset of the packet is the source of masqueraded packets. Register 1 has the address of the cell
/// `WORLD_V4`. Overwrites registers 3 and 4.
fn is_own(program: &mut Assembler<Place>, ip: &Ip, at: i16, otherwise: Place) {
    for word in (0..ip.address_len).step_by(4) {
        program.load(Word, 3, DATA, at + word);
        program.load(Word, 4, 1, ip.cell + word);
        program.jump_if_register(3, Differs, 4, otherwise);
    }
}

/// Jumps to `otherwise` unless the packet's source is that of masqueraded packets. Needs an IPv4 header in the linear part. Overwrites registers 1 to
/// 4.
pub(super) fn is_masqueraded(program: &mut Assembler<Place>, table: &FlowTable, otherwise: Place) {
    has_own(program, table, |ip| ip.source, [MasqueradedV6, Masqueraded], otherwise);
}

/// Jumps to `otherwise` unless the packet's destination is the source of masqueraded packets. Needs an IPv4 header in the linear part. Overwrites
/// registers 1 to 4.
pub(super) fn is_answer(program: &mut Assembler<Place>, table: &FlowTable, otherwise: Place) {
    has_own(program, table, |ip| ip.destination, [AnswerV6, Answer], otherwise);
}

/// Jumps to `otherwise` unless the address that `field` selects is the source of masqueraded packets. The labels are for these steps alone.
fn has_own(
    program: &mut Assembler<Place>,
    table: &FlowTable,
    field: impl Fn(&Ip) -> i16,
    [is_v6, is_own_address]: [Place; 2],
    otherwise: Place,
) {
    program.push(Instruction::value(1, &table.cells, cells::WORLD_V4));
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, is_v6);
    is_own(program, &V4, HEADER + field(&V4), otherwise);
    program.jump(is_own_address);
    program.place(is_v6);
    need(program, DATA, ETHERNET + IPV6, otherwise);
    is_own(program, &V6, HEADER + field(&V6), otherwise);
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
