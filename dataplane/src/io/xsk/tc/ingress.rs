//! The program at tc ingress of every port's interface: it forwards cached flows in the kernel and sends all other packets over the trunk
//! to the workers.
//!
//! ```text
//!   port = ports[ctx.ifindex]                                                        | else: count, drop
//!   no VLAN tag in the metadata, headers in the linear part                          | else: miss
//!   parse -> key (flow_headers)                                                      | miss
//!   find the flow, its epochs, its MAC addresses (flow_steps)                        | miss
//!   segment length, or length, <= the egress port's longest frame                    | else: miss
//!   the latch is open, or the handshake has ended or ends with this packet, or the
//!   packet is its SYN-ACK (handshake)                                                | else: miss
//!   the lease is valid; no RST, and no FIN that only a worker can record (handshake) | else: miss, unless no worker is alive (away)
//!   slots[flow.out] is open                                                          | else: miss
//!   send a copy to a worker if a renewal is due (renewal)
//!   count; translate (flow_translation); decrement the hop limit; set MAC addresses
//!   to a pod: return bpf_redirect_peer(way); to other nodes: to_nodes; else: return bpf_redirect(way)
//!
//! miss:
//!   port = that of other nodes, for a datagram of theirs that the node's kernel has not changed (untranslated)
//!   used = max(slots[port].used, now - saved) + cost * segments;  more than now      | count, drop
//!   queue = hash of both addresses, the same in both directions, over the workers
//!   push an 802.1ad tag with the port's slot
//!   return bpf_redirect(trunk)
//! ```
//!
//! The program redirects a flow's packets unchanged: a packet of 64 KiB is not segmented, and its checksum stays unfinished. The kernel
//! segments and completes packets on the trunk, because the trunk's first end has no offloads.
//!
//! The limit applies before the trunk, whose queues all ports share. It counts segments, as one packet of 64 KiB is 45 frames behind the
//! trunk. Two cores that run the program for one port at once may exceed the limit by a few packets.
//!
//! A link follows an interface to another network namespace, where the maps' interface indexes mean other interfaces. Packets to the trunk
//! are lost there, since the trunk has a random index that the kernel does not assign. Forwarding of flows stops when the process detaches
//! the link after the kernel's notification of the move. A program cannot read its namespace:
//! `bpf_get_netns_cookie` returns that of the packet's socket, and helpers that look an interface up are restricted to GPL programs.

use super::super::flow_headers::{Extent, SHORTEST, clear_key, parse, rewrite};
use super::super::flow_layout::{cells, traffic, value};
use super::super::flow_place::Place::{
    self, Closed, Compare, Drop, End, Leased, Limited, Linear, Miss, Peer, Recent, Segments, ToNodes, Unleased,
    Unlimited,
};
use super::super::flow_stack::{
    CONTEXT, DATA, DATA_END, HEADERS, LENGTH, PACKETS, SCRATCH, SEQUENCE, SLOT, STACK, VALUE, WAY,
};
use super::super::flow_steps::{begin, check_addresses, check_lease, count, find, look_up};
use super::super::flow_table::FlowTable;
use super::super::flow_translation::translate;
use super::super::instruction::Operation::{Add, Subtract};
use super::super::instruction::Test::{AtLeast, Differs, Equal, Greater, Less};
use super::super::instruction::Width::{Double, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;
use super::abi::{SHOT, context, function, load_ends};
use super::sent::Sender;
use super::slow_path::{choose_worker, limit, send_to_worker, slot_cell};
use super::{away, checksum, handshake, how, renewal, to_nodes, untranslated};

/// Bytes of TCP over IPv6 headers without options. The program pulls as much if the linear part lacks UDP headers, as with some drivers.
pub(super) const PULLED: i32 = 74;

/// Builds the program at tc ingress of ports' interfaces.
pub(super) fn instructions(table: &FlowTable, ports: &Map, [hops, sent]: [&Map; 2], records: &Map) -> Vec<Instruction> {
    let mut program = Assembler::new();
    program.push([Instruction::copy(CONTEXT, 1)]);
    find_port(&mut program, ports);
    read_packet(&mut program, |_| {});
    find(&mut program, table, |_| {});
    check_addresses(&mut program);
    forward(&mut program, table, [hops, sent], None, |_| {});
    program.place(Miss);
    untranslated::choose_slot(&mut program, table, records);
    limit(&mut program, table, Limited, [Recent, Unlimited]);
    choose_worker(&mut program, table);
    send_to_worker(&mut program, table);
    program.place(Limited);
    count_drop(&mut program, table, traffic::LIMITED);
    program.place(Closed);
    program.push([Instruction::set(1, 0)]);
    program.store(Double, STACK, 1, SLOT);
    program.push([Instruction::set(1, 1)]);
    program.store(Double, STACK, 1, PACKETS);
    count_drop(&mut program, table, traffic::CLOSED);
    program.place(Drop);
    program.push([Instruction::set(0, SHOT)]);
    program.place(End);
    program.push([Instruction::exit()]);
    program.finish()
}

/// Stores the slot of the interface's port. Jumps to `Closed` if the interface has no open port.
fn find_port(program: &mut Assembler<Place>, ports: &Map) {
    program.load(Word, 1, CONTEXT, context::IFINDEX);
    program.store(Word, STACK, 1, SCRATCH);
    look_up(program, ports, SCRATCH);
    program.jump_if(0, Equal, 0, Closed);
    program.load(Word, 1, 0, 0);
    program.store(Double, STACK, 1, SLOT);
}

/// Parses the packet into the key of a flow from the slot on the stack. Jumps to `Miss` if no flow has such packets. `enter` emits additional steps
/// that move [`DATA`] to the frame to parse.
pub(super) fn read_packet(program: &mut Assembler<Place>, enter: impl FnOnce(&mut Assembler<Place>)) {
    count_segments(program);
    program.load(Word, 2, STACK, SLOT);
    clear_key(program, 2);
    program.store(Double, STACK, 1, SEQUENCE);
    program.load(Word, 1, CONTEXT, context::VLAN_PRESENT);
    program.jump_if(1, Differs, 0, Miss);
    find_headers(program);
    enter(program);
    parse(program, Extent::Context { len: context::LEN, gso_size: context::GSO_SIZE });
}

/// Forwards the packet in the flow on the stack. Jumps to `Miss` if a worker must see it. `outer` is the stack offset of the number of bytes before
/// the frame, `None` if the packet begins with it. `prepare` emits additional steps that change a packet which will be forwarded, before a copy of
/// it may go to a worker; they remove what is before the frame.
pub(super) fn forward(
    program: &mut Assembler<Place>,
    table: &FlowTable,
    to_nodes: [&Map; 2],
    outer: Option<i16>,
    prepare: impl FnOnce(&mut Assembler<Place>),
) {
    away::record_end(program, table);
    fit(program, outer);
    handshake::answer(program, table);
    begin(program, table, Unleased);
    check_lease(program, Unleased);
    handshake::finish(program, table);
    away::pass_unleased(program, table);
    program.place(Leased);
    find_way(program, table);
    prepare(program);
    renewal::ask(program, table);
    count(program, table);
    translate(program, checksum::change);
    rewrite(program, VALUE, adjust_checksum);
    hand_over(program, table, to_nodes, WAY);
}

/// Stores the number of packets that this packet has on a wire.
fn count_segments(program: &mut Assembler<Place>) {
    program.load(Word, 1, CONTEXT, context::GSO_SEGS);
    program.jump_if(1, Differs, 0, Segments);
    program.push([Instruction::set(1, 1)]);
    program.place(Segments);
    program.store(Double, STACK, 1, PACKETS);
}

/// Loads the ends of the packet's linear part, after pulling headers into it.
fn find_headers(program: &mut Assembler<Place>) {
    load_ends(program);
    program.push([Instruction::copy(2, DATA)]);
    program.apply(Add, 2, SHORTEST);
    program.jump_if_register(DATA_END, AtLeast, 2, Linear);
    program.load(Word, 2, CONTEXT, context::LEN);
    program.jump_if(2, Less, SHORTEST, Miss);
    program.jump_if(2, Less, PULLED, Place::Pull);
    program.push([Instruction::set(2, PULLED)]);
    program.place(Place::Pull);
    program.push([Instruction::copy(1, CONTEXT), Instruction::call(function::PULL_DATA)]);
    load_ends(program);
    program.place(Linear);
}

/// Jumps to `Miss` unless the egress port can send the packet, or each of its segments. The worker refuses longer packets.
fn fit(program: &mut Assembler<Place>, outer: Option<i16>) {
    program.load(Word, 1, CONTEXT, context::LEN);
    if let Some(outer) = outer {
        program.load(Double, 2, STACK, outer);
        program.apply_register(Subtract, 1, 2);
    }
    program.store(Double, STACK, 1, LENGTH);
    add_headers(program, Compare);
    program.load(Short, 2, STACK, VALUE + value::LONGEST);
    program.jump_if_register(1, Greater, 2, Miss);
}

/// Replaces the length of the packet in register 1 by that of each of its segments, if it has any. Needs the end of its headers. Overwrites register 2.
fn add_headers(program: &mut Assembler<Place>, loaded: Place) {
    program.load(Word, 2, CONTEXT, context::GSO_SIZE);
    program.jump_if(2, Equal, 0, loaded);
    program.load(Double, 1, STACK, HEADERS);
    program.apply_register(Add, 1, 2);
    program.place(loaded);
}

/// Stores the flow's egress interface and `how`. Jumps to `Miss` if the egress port is closed.
fn find_way(program: &mut Assembler<Place>, table: &FlowTable) {
    program.load(Word, 2, STACK, VALUE + value::OUT);
    slot_cell(program, table);
    program.load(Double, 2, 1, cells::WAY);
    program.store(Double, STACK, 2, WAY);
    program.load(Word, 2, STACK, WAY + cells::HOW);
    program.jump_if(2, Equal, how::CLOSED.cast_signed(), Miss);
}

/// Updates the sum over the whole packet that some network cards provide (`CHECKSUM_COMPLETE`). An IPv6 header has no checksum to
/// compensate a changed hop limit. Decrementing a word's lower byte equals adding 0xfffe.
fn adjust_checksum(program: &mut Assembler<Place>) {
    program.push([
        Instruction::copy(1, CONTEXT),
        Instruction::set(2, i32::from(0xfffe_u16.to_be())),
        Instruction::call(function::CSUM_UPDATE),
    ]);
}

/// Redirects a flow's packet to the interface and `how` at this stack offset.
fn hand_over(program: &mut Assembler<Place>, table: &FlowTable, to_nodes: [&Map; 2], way: i16) {
    redirect(program, way);
    to_nodes::send(program, table, to_nodes, way, Sender::Program, |program| {
        program.load(Word, 1, CONTEXT, context::LEN);
        add_headers(program, Place::Sized);
    });
}

/// Redirects the packet to the interface and `how` at this stack offset. Jumps to `ToNodes` with [`how::NODES`].
pub(super) fn redirect(program: &mut Assembler<Place>, way: i16) {
    program.load(Word, 1, STACK, way);
    program.load(Word, 3, STACK, way + cells::HOW);
    program.push([Instruction::set(2, 0)]);
    program.jump_if(3, Equal, how::PEER.cast_signed(), Peer);
    program.jump_if(3, Equal, how::NODES.cast_signed(), ToNodes);
    program.push([Instruction::call(function::REDIRECT)]);
    program.jump(End);
    program.place(Peer);
    program.push([Instruction::call(function::REDIRECT_PEER)]);
    program.jump(End);
}

/// Counts the packet for the slot on the stack and drops it.
pub(super) fn count_drop(program: &mut Assembler<Place>, table: &FlowTable, counter: i16) {
    look_up(program, &table.traffic, SLOT);
    program.jump_if(0, Equal, 0, Drop);
    program.load(Double, 2, STACK, PACKETS);
    program.add_to(0, 2, counter, 1);
    program.jump(Drop);
}
