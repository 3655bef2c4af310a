//! Program steps for connections between pods and the world, past the node's network stack.
//!
//! ```text
//!   pod --> worker or program: source becomes node:port --> [to_nodes]: hops[destination] is the world --> card
//!   pod <-- flow known <-- [from_nodes] at the card <-- world
//!   worker <-- else, if the packet answers a masqueraded one (sent), is to a virtual address (vips), or an ICMP error about these (claim)
//! ```
//!
//! All other packets to the node are its kernel's.
//!
//! The kernel refuses packets that come over the host port with the node's own address as their source, so these packets never pass the stack.

use super::super::flow_headers::{ETHERNET, HEADER, IPV6, TYPE_V6, need};
use super::super::flow_layout::{cells, key};
use super::super::flow_place::Place::{self, FindFrom, FindFromV6, Masqueraded, MasqueradedV6, Own, OwnV6};
use super::super::flow_stack::{CONTEXT, DATA, KEY, STACK};
use super::super::flow_table::FlowTable;
use super::super::flow_translation::load_version;
use super::super::instruction::Test::{Differs, Equal};
use super::super::instruction::Width::{Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;
use super::abi::context;
use super::hop_key::{self, store_v4, store_v6};
use super::next_hops::{hop, kind};

/// Byte offsets of the node's addresses from the cell `WORLD_PORTS`, whose address the steps load.
const OWN_V4: i16 = 16;
const OWN_V6: i16 = 32;
const _: () = assert!(cells::WORLD_V4 - cells::WORLD_PORTS == OWN_V4 as i32);
const _: () = assert!(cells::WORLD_V6 - cells::WORLD_PORTS == OWN_V6 as i32);
/// The offset of an IPv4 address in its mapped form.
const IN_MAPPED: i16 = 12;

/// What differs between the versions of IP. Offsets are in bytes from the start of the header.
pub(super) struct Ip {
    /// The offset of the source address.
    pub(super) source: i16,
    /// The offset of the destination address.
    pub(super) destination: i16,
    /// The offset of the protocol, or of the next header.
    pub(super) protocol: i16,
    /// The length of the header in bytes, without options.
    pub(super) len: i16,
    /// The length of an address in bytes.
    pub(super) address_len: i16,
    /// The protocol number of ICMP.
    pub(super) icmp: i32,
}

pub(super) const V4: Ip =
    Ip { source: 12, destination: 16, protocol: 9, len: 20, address_len: 4, icmp: libc::IPPROTO_ICMP };
pub(super) const V6: Ip =
    Ip { source: 8, destination: 24, protocol: 6, len: 40, address_len: 16, icmp: libc::IPPROTO_ICMPV6 };

/// Returns the instructions that load the address of the cell `WORLD_PORTS` into a register.
pub(super) fn own_cell(register: u8, table: &FlowTable) -> [Instruction; 2] {
    Instruction::value(register, &table.cells, cells::WORLD_PORTS)
}

/// Jumps to `otherwise` unless the address of 16 bytes at the stack offset `at` is one of this node's to which the world answers. An IPv4 address is in
/// its mapped form. Register 1 has the address of the cell `WORLD_PORTS`. Overwrites registers 2 to 4.
pub(super) fn is_own(program: &mut Assembler<Place>, at: i16, otherwise: Place) {
    // An unset address is all zeros, which no packet has.
    let compare = |program: &mut Assembler<Place>, own: i16, differs: Place| {
        for (register, half) in [(2, 0), (3, 8)] {
            program.load(Double, register, STACK, at + half);
            program.load(Double, 4, 1, own + half);
            program.jump_if_register(register, Differs, 4, differs);
        }
    };
    compare(program, OWN_V4, OwnV6);
    program.jump(Own);
    program.place(OwnV6);
    compare(program, OWN_V6, otherwise);
    program.place(Own);
}

/// Jumps to `otherwise` unless the destination in the flow's key is an address of this node to which the world answers. Places the labels `is_v6` and
/// `is_own`. Register 1 becomes the address of the cell `WORLD_PORTS`. Overwrites registers 2 and 3.
pub(super) fn is_to_node(
    program: &mut Assembler<Place>,
    table: &FlowTable,
    [is_v6, is_own]: [Place; 2],
    otherwise: Place,
) {
    program.push(own_cell(1, table));
    load_version(program, 3);
    program.jump_if(3, Equal, 6, is_v6);
    program.jump_if(3, Differs, 4, otherwise);
    program.load(Word, 2, STACK, KEY + key::DESTINATION);
    program.load(Word, 3, 1, OWN_V4 + IN_MAPPED);
    program.jump_if_register(2, Differs, 3, otherwise);
    program.jump(is_own);
    program.place(is_v6);
    for at in [0, 8] {
        program.load(Double, 2, STACK, KEY + key::DESTINATION + at);
        program.load(Double, 3, 1, OWN_V6 + at);
        program.jump_if_register(2, Differs, 3, otherwise);
    }
    program.place(is_own);
}

/// Jumps to `otherwise` unless the packet's destination is this node's address of the IP version to which the world answers. Register 1 has the address
/// of the cell `WORLD_PORTS`. Needs the IP header in the linear part. Overwrites registers 3 and 4.
pub(super) fn is_packet_to_node(program: &mut Assembler<Place>, ip: &Ip, otherwise: Place) {
    let own = if ip.address_len == V4.address_len { OWN_V4 + IN_MAPPED } else { OWN_V6 };
    for word in (0..ip.address_len).step_by(4) {
        program.load(Word, 3, DATA, HEADER + ip.destination + word);
        program.load(Word, 4, 1, own + word);
        program.jump_if_register(3, Differs, 4, otherwise);
    }
}

/// Jumps to `otherwise` unless the packet's source is one of this node's to which the world answers. Needs an IPv4 header in the linear part.
/// Overwrites registers 1 to 4.
pub(super) fn is_from_node(program: &mut Assembler<Place>, table: &FlowTable, otherwise: Place) {
    program.push(own_cell(1, table));
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, MasqueradedV6);
    program.load(Word, 3, DATA, HEADER + V4.source);
    program.load(Word, 4, 1, OWN_V4 + IN_MAPPED);
    program.jump_if_register(3, Differs, 4, otherwise);
    program.jump(Masqueraded);
    program.place(MasqueradedV6);
    need(program, DATA, ETHERNET + IPV6, otherwise);
    for word in [0, 4, 8, 12] {
        program.load(Word, 3, DATA, HEADER + V6.source + word);
        program.load(Word, 4, 1, OWN_V6 + word);
        program.jump_if_register(3, Differs, 4, otherwise);
    }
    program.place(Masqueraded);
}

/// Looks up the next hop of the packet's source. Register 0 becomes the address of the hop's entry, or 0 without one. Jumps to `otherwise` if the IP
/// header is not in the linear part, which has at least 20 bytes of it. Overwrites registers 1 to 5.
pub(super) fn find_source(program: &mut Assembler<Place>, hops: &Map, otherwise: Place) {
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, FindFromV6);
    store_v4(program, HEADER + V4.source);
    program.jump(FindFrom);
    program.place(FindFromV6);
    need(program, DATA, ETHERNET + IPV6, otherwise);
    store_v6(program, HEADER + V6.source);
    program.place(FindFrom);
    hop_key::find(program, hops);
}

/// Checks the source of a packet at a link. Register 0 has the address of its next hop's entry, or is 0 without one. Jumps to `on_link` if the source is
/// another node's on this link, to `from_world` if no node of the cluster has it, and else to `Pass`: the address is that of a pod that cannot have sent
/// the packet. Overwrites registers 1 and 2.
pub(super) fn check_source(program: &mut Assembler<Place>, [on_link, from_world]: [Place; 2]) {
    program.jump_if(0, Equal, 0, from_world);
    program.load(Word, 1, 0, hop::KIND);
    for kind in [kind::OWN, kind::NODE, kind::SOURCE, kind::TUNNEL] {
        program.jump_if(1, Equal, kind.cast_signed(), Place::Pass);
    }
    program.jump_if(1, Differs, kind::LINK.cast_signed(), from_world);
    is_on_link(program);
    program.jump(on_link);
}

/// Jumps to `Pass` unless the next hop, whose entry's address register 0 has, is over the link at which the packet has arrived. Overwrites registers 1
/// and 2.
pub(super) fn is_on_link(program: &mut Assembler<Place>) {
    program.load(Word, 1, 0, hop::INTERFACE);
    program.load(Word, 2, CONTEXT, context::IFINDEX);
    program.jump_if_register(1, Differs, 2, Place::Pass);
}
