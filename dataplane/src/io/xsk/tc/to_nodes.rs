//! Program steps that send a packet to a pod of another node, past the node's network stack.
//!
//! ```text
//!   hop = hops[destination]: another node's pods, and the packet or each of its segments fits   | else: indirect
//!   on a link: return bpf_redirect_neigh(hop.interface, hop.neighbor)
//!   the world, and the source is the node's address of masqueraded packets: return bpf_redirect_neigh(hop.link), by the kernel's route
//!   the world, and the source is no pod's (a Service): return bpf_redirect_neigh(hop.interface), by the kernel's route;
//!                      hops[source] is an address of this node with a link of its own: hop = hops[source]
//!   behind the tunnel: add the headers and send the packet over the link (encapsulation), or
//!                      bpf_skb_set_tunnel_key(hop.tunnel); return bpf_redirect(hop.interface)    | the helper fails: indirect
//!
//! indirect: return bpf_redirect(the host port's interface)
//! ```
//!
//! The node's kernel has the same ways as routes. It gets what does not fit, and answers it, except packets from its own addresses, which it drops.
//!
//! Only TCP and UDP take the way to nodes. The replies to other packets pass the node's kernel, whose connection tracking must see both
//! directions of them: an echo reply without its request is invalid there. To the world go all protocols, as their replies are the pods'.

use super::super::flow_headers::{ETHERNET, HEADER, IPV4, IPV6, TYPE_V4, TYPE_V6, need};
use super::super::flow_place::Place::{
    self, Described, End, FindHop, FromVip, HasHeader, HasProtocol, Indirect, OverLink, ToNodes, ToNodesV6, ToWorld,
    ToWorldNow, Transport, Tunneled,
};
use super::super::flow_stack::{AT, CONTEXT, DATA, FRAME, STACK};
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::Add;
use super::super::instruction::Test::{Differs, Equal, Greater};
use super::super::instruction::Width::{Byte, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;
use super::abi::{function, load_ends};
use super::hop_key::{find, store_v4, store_v6};
use super::next_hops::{hop, kind};
use super::sent::{self, Sender};
use super::{encapsulation, world};

/// Numbers of IP protocols.
const TCP: i32 = libc::IPPROTO_TCP;
const UDP: i32 = libc::IPPROTO_UDP;

/// Emits the steps at [`ToNodes`], which send the packet to the next hop of its destination. `way` is the stack offset of the host port's
/// interface index. `length` emits steps that load a length in bytes into register 1: that of the packet, or of each of its segments, with the
/// Ethernet header. A worker's packet may be other than TCP or UDP; such a packet to a node goes to the host port.
pub(super) fn send(
    program: &mut Assembler<Place>,
    table: &FlowTable,
    [hops, sent]: [&Map; 2],
    way: i16,
    sender: Sender,
    length: impl FnOnce(&mut Assembler<Place>),
) {
    program.place(ToNodes);
    load_ends(program);
    load_destination(program);
    program.place(FindHop);
    find(program, hops);
    program.jump_if(0, Equal, 0, Indirect);
    program.push([Instruction::copy(AT, 0)]);
    length(program);
    program.store(Word, STACK, 1, FRAME);
    program.load(Word, 2, AT, hop::LONGEST);
    program.jump_if_register(1, Greater, 2, Indirect);
    program.load(Word, 1, AT, hop::KIND);
    program.jump_if(1, Equal, kind::WORLD.cast_signed(), ToWorld);
    if sender == Sender::Worker {
        check_protocol(program);
    }
    program.jump_if(1, Equal, kind::TUNNEL.cast_signed(), Tunneled);
    program.jump_if(1, Differs, kind::LINK.cast_signed(), Indirect);
    program.load(Word, 1, AT, hop::INTERFACE);
    program.push([Instruction::copy(2, AT)]);
    program.apply(Add, 2, hop::NEIGHBOR.into());
    program.push([Instruction::set(3, hop::NEIGHBOR_LEN), Instruction::set(4, 0)]);
    program.push([Instruction::call(function::REDIRECT_NEIGH)]);
    program.jump(End);
    program.place(Tunneled);
    encapsulation::send(program);
    program.place(Described);
    set_tunnel(program, hop::TUNNEL_LEN);
    program.jump_if(0, Equal, 0, HasHeader);
    set_tunnel(program, hop::OLD_TUNNEL_LEN);
    program.jump_if(0, Differs, 0, Indirect);
    program.place(HasHeader);
    program.load(Word, 1, AT, hop::INTERFACE);
    program.push([Instruction::set(2, 0), Instruction::call(function::REDIRECT)]);
    program.jump(End);
    program.place(ToWorld);
    world::is_from_node(program, table, FromVip);
    sent::remember(program, table, sent, sender);
    program.load(Word, 1, AT, hop::LINK);
    program.jump(OverLink);
    program.place(FromVip);
    world::find_source(program, hops, Indirect);
    follow_source(program);
    program.place(ToWorldNow);
    program.load(Word, 1, AT, hop::INTERFACE);
    program.place(OverLink);
    program.push([2, 3, 4].map(|register| Instruction::set(register, 0)));
    program.push([Instruction::call(function::REDIRECT_NEIGH)]);
    program.jump(End);
    program.place(Indirect);
    program.load(Word, 1, STACK, way);
    program.push([Instruction::set(2, 0), Instruction::call(function::REDIRECT)]);
    program.jump(End);
}

/// Replaces the next hop in [`AT`] by that of the packet's source, if the source is an address of this node with a link of its own. Register 0 has the
/// address of the entry of the source's next hop, or is 0. Jumps to `Indirect` if the source is a pod's or one for Services, or if the packet does not fit
/// its link, and to `ToWorldNow` with all other sources. Overwrites registers 1 and 2.
fn follow_source(program: &mut Assembler<Place>) {
    program.jump_if(0, Equal, 0, ToWorldNow);
    program.load(Word, 1, 0, hop::KIND);
    for own in [kind::OWN, kind::NODE] {
        program.jump_if(1, Equal, own.cast_signed(), Indirect);
    }
    program.jump_if(1, Differs, kind::SOURCE.cast_signed(), ToWorldNow);
    program.load(Word, 1, STACK, FRAME);
    program.load(Word, 2, 0, hop::LONGEST);
    program.jump_if_register(1, Greater, 2, Indirect);
    program.push([Instruction::copy(AT, 0)]);
}

/// Sets the header of the tunnel from the next hop at the address in [`AT`], whose `struct bpf_tunnel_key` has `length` bytes. Register 0 becomes
/// 0, or an error.
fn set_tunnel(program: &mut Assembler<Place>, length: i32) {
    program.push([Instruction::copy(1, CONTEXT), Instruction::copy(2, AT)]);
    program.apply(Add, 2, hop::TUNNEL.into());
    program.push([Instruction::set(3, length)]);
    program.load(Word, 4, AT, hop::FLAGS);
    program.push([Instruction::call(function::SET_TUNNEL_KEY)]);
}

/// Stores the packet's destination in the key of a next hop. Jumps to `Indirect` if the packet is not IP.
fn load_destination(program: &mut Assembler<Place>) {
    need(program, DATA, ETHERNET + IPV4, Indirect);
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, ToNodesV6);
    program.jump_if(3, Differs, TYPE_V4, Indirect);
    store_v4(program, HEADER + 16);
    program.jump(FindHop);
    program.place(ToNodesV6);
    need(program, DATA, ETHERNET + IPV6, Indirect);
    store_v6(program, HEADER + 24);
}

/// Jumps to `Indirect` unless the IP packet's protocol is TCP or UDP. Needs the first 20 bytes of the IP header in the linear part.
fn check_protocol(program: &mut Assembler<Place>) {
    program.load(Byte, 3, DATA, HEADER + 9);
    program.load(Short, 2, DATA, 12);
    program.jump_if(2, Equal, TYPE_V4, HasProtocol);
    program.load(Byte, 3, DATA, HEADER + 6);
    program.place(HasProtocol);
    program.jump_if(3, Equal, TCP, Transport);
    program.jump_if(3, Differs, UDP, Indirect);
    program.place(Transport);
}
