//! The program at tc ingress of the links and the tunnel that lead to other nodes and to the world. It takes packets to pods here, past the
//! node's network stack: from pods of other nodes, and those that the vswitch translates.
//!
//! ```text
//!   not to this node, or to a port of virtual addresses or of masqueraded packets (taken_ports) | else: pass
//!   the port to other nodes is open; to this host, without VLAN tag                      | else: pass
//!   parse -> key (flow_headers)                                                          | unopened
//!   flow known                                                                           | else: unopened
//!   hops[source] is another node's, on this link; or the world's, and the packet is not to a pod | else: pass
//!   from here on as packets of a port (ingress), except that MAC addresses are set, not compared
//!
//! unopened:
//!   to a virtual address from such a source, or the answer to a masqueraded packet (claim): to a worker
//!   a SYN without ACK, or a datagram (untranslated)                                      | else: pass
//!   hops[source] is another node's, on this link; hops[destination] is this node's       | else: pass; a datagram: recorded
//!   to a worker, as a packet of the port to other nodes
//!
//! pass: the node's kernel gets the packet unchanged, and forwards it to the host port
//! ```
//!
//! At a link, a packet of the tunnel whose inner frame belongs to a known flow is taken out of it ([`decapsulation`]). All others pass the tunnel's
//! device, which has this program too.
//!
//! At the tunnel, the guard has compared the source with its sender before.
//!
//! What is no known flow and begins none passes the kernel: it may be the reply to a packet that the node's kernel has translated (kube-proxy),
//! and only the kernel can translate it back.
//!
//! **Invariant.** The kernel's connection tracking sees both directions of a TCP connection from its beginning, or neither of them. It would
//! call packets invalid of which it saw only one direction, and kube-proxy drops those.

use super::super::flow_headers::{ETHERNET, SYN, need};
use super::super::flow_layout::{cells, key, traffic};
use super::super::flow_place::Place::{
    self, Checked, Drop, End, FindOpening, FindOpeningV6, FindOwn, FindOwnV6, FindSource, FindSourceV6, FromWorld,
    Limited, Miss, NotToNode, Opens, Pass, Recent, ToNode, ToNodeV6, ToOther, ToOtherV6, ToWorker, Unlimited,
    Unwrapped,
};
use super::super::flow_stack::{ACKNOWLEDGEMENT, CONTEXT, CONTROL, DATA, HOP_KEY, IS_KNOWN, KEY, OUTER, SLOT, STACK};
use super::super::flow_steps::find;
use super::super::flow_table::FlowTable;
use super::super::flow_translation::load_version;
use super::super::instruction::Test::{Differs, Equal};
use super::super::instruction::Width::{Double, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::Map;
use super::abi::{NEXT, SHOT, context, load_ends};
use super::entrance::{Entrance, Maps};
use super::ingress::{count_drop, forward, read_packet};
use super::next_hops::{hop, kind};
use super::slow_path::{choose_worker, limit, send_to_worker, slot_cell};
use super::untranslated::{self, load_protocol};
use super::{claim, decapsulation, hop_key, how, taken_ports, world};

/// Builds the program.
pub(super) fn instructions(table: &FlowTable, maps: &Maps<'_>, entrance: Entrance) -> Vec<Instruction> {
    let &Maps { hops, sent, .. } = maps;
    let mut program = Assembler::new();
    program.push([Instruction::copy(CONTEXT, 1)]);
    if entrance == Entrance::Link {
        taken_ports::spare(&mut program, table);
    }
    find_port(&mut program, table);
    program.push([Instruction::set(1, 0)]);
    program.store(Double, STACK, 1, IS_KNOWN);
    // Kernels before 6.3 refuse a program that may read what it has not stored.
    program.store(Double, STACK, 1, OUTER);
    let is_link = entrance == Entrance::Link;
    read_packet(&mut program, |program| {
        if is_link {
            decapsulation::find_inner(program, table);
        }
    });
    find(&mut program, table, |program| {
        find_hop(program, hops, KEY + key::SOURCE, [FindSourceV6, FindSource]);
        if is_link {
            decapsulation::check_sender(program);
            program.jump(Checked);
            program.place(Unwrapped);
            world::check_source(program, [Checked, FromWorld]);
            program.place(FromWorld);
            world::is_to_node(program, table, [ToNodeV6, ToNode], NotToNode);
            program.jump(Checked);
            program.place(NotToNode);
            find_hop(program, hops, KEY + key::DESTINATION, [ToOtherV6, ToOther]);
            refuse_pods(program);
        } else {
            check_opening(program, entrance);
        }
        program.place(Checked);
        program.push([Instruction::set(1, 1)]);
        program.store(Double, STACK, 1, IS_KNOWN);
    });
    forward(&mut program, table, [hops, sent], is_link.then_some(OUTER), |program| {
        if is_link {
            decapsulation::decapsulate(program);
        }
        set_addresses(program, table);
    });
    program.place(Miss);
    if is_link {
        program.load(Double, 1, STACK, OUTER);
        program.jump_if(1, Differs, 0, Pass);
    }
    open(&mut program, table, maps, entrance);
    program.place(ToWorker);
    load_ends(&mut program);
    need(&mut program, DATA, ETHERNET, Drop);
    set_addresses(&mut program, table);
    limit(&mut program, table, Limited, [Recent, Unlimited]);
    choose_worker(&mut program, table);
    send_to_worker(&mut program, table);
    program.place(Limited);
    count_drop(&mut program, table, traffic::LIMITED);
    program.place(Drop);
    program.push([Instruction::set(0, SHOT)]);
    program.jump(End);
    program.place(Pass);
    program.push([Instruction::set(0, NEXT)]);
    program.place(End);
    program.push([Instruction::exit()]);
    program.finish()
}

/// Stores the slot of the port to other nodes. Jumps to `Pass` if it is not open, and for packets that are not to this host.
fn find_port(program: &mut Assembler<Place>, table: &FlowTable) {
    // 0 is `PACKET_HOST`.
    program.load(Word, 1, CONTEXT, context::PKT_TYPE);
    program.jump_if(1, Differs, 0, Pass);
    program.push(Instruction::value(1, &table.cells, cells::NODES_SLOT));
    program.load(Word, 1, 1, 0);
    program.jump_if(1, Equal, 0, Pass);
    program.store(Double, STACK, 1, SLOT);
    program.push([Instruction::copy(2, 1)]);
    slot_cell(program, table);
    // A process without this port, such as an older version, has closed the slot.
    program.load(Word, 2, 1, cells::HOW);
    program.jump_if(2, Differs, how::NODES.cast_signed(), Pass);
}

/// Jumps to `ToWorker` if the flow is known, for packets that [`claim`](claim::claim) takes, and for a SYN that opens a connection between pods of
/// another node and of this one, else to `Pass`. Records a datagram between such pods.
fn open(program: &mut Assembler<Place>, table: &FlowTable, maps: &Maps<'_>, entrance: Entrance) {
    let &Maps { hops, records, .. } = maps;
    program.load(Double, 1, STACK, IS_KNOWN);
    program.jump_if(1, Differs, 0, ToWorker);
    claim::claim(program, table, maps, entrance);
    load_protocol(program);
    program.jump_if(1, Equal, libc::IPPROTO_UDP, Opens);
    program.load(Word, 1, STACK, CONTROL);
    program.jump_if(1, Differs, SYN, Pass);
    program.load(Word, 1, STACK, ACKNOWLEDGEMENT);
    program.jump_if(1, Differs, 0, Pass);
    program.place(Opens);
    find_hop(program, hops, KEY + key::SOURCE, [FindOpeningV6, FindOpening]);
    check_opening(program, entrance);
    find_hop(program, hops, KEY + key::DESTINATION, [FindOwnV6, FindOwn]);
    program.jump_if(0, Equal, 0, Pass);
    program.load(Word, 1, 0, hop::KIND);
    program.jump_if(1, Differs, kind::OWN.cast_signed(), Pass);
    load_protocol(program);
    program.jump_if(1, Differs, libc::IPPROTO_UDP, ToWorker);
    untranslated::record(program, records);
    program.jump(Pass);
}

/// Looks up the next hop of the address at the stack offset `address`, of the IP version in the flow's key. Register 0 becomes the address of the hop's
/// entry, or 0 without a hop. Places the labels `v6` and `stored`. Overwrites registers 1 to 5.
fn find_hop(program: &mut Assembler<Place>, hops: &Map, address: i16, [v6, stored]: [Place; 2]) {
    load_version(program, 3);
    program.jump_if(3, Equal, 6, v6);
    hop_key::begin_v4(program);
    program.load(Word, 3, STACK, address);
    program.store(Word, STACK, 3, HOP_KEY + 16);
    program.jump(stored);
    program.place(v6);
    for at in [0, 8] {
        program.load(Double, 3, STACK, address + at);
        program.store(Double, STACK, 3, HOP_KEY + 4 + at);
    }
    program.place(stored);
    hop_key::find(program, hops);
}

/// Jumps to `Pass` if the packet of a known flow from the world is to a pod or to a source address for Services, instead of to a virtual address.
/// Register 0 has the address of the entry of the destination's next hop; jumps to `Checked` if it is 0. Overwrites register 1.
fn refuse_pods(program: &mut Assembler<Place>) {
    program.jump_if(0, Equal, 0, Checked);
    program.load(Word, 1, 0, hop::KIND);
    for own in [kind::OWN, kind::NODE] {
        program.jump_if(1, Equal, own.cast_signed(), Pass);
    }
}

/// Jumps to `Pass` unless the packet's source is another node's, and at a link, one that is reached over this link. Register 0 has the address of the
/// entry of the source's next hop, or is 0 without one. Overwrites registers 1 and 2.
fn check_opening(program: &mut Assembler<Place>, entrance: Entrance) {
    program.jump_if(0, Equal, 0, Pass);
    program.load(Word, 1, 0, hop::KIND);
    match entrance {
        Entrance::Link => {
            program.jump_if(1, Differs, kind::LINK.cast_signed(), Pass);
            world::is_on_link(program);
        }
        // Another node may send through the tunnel although this one reaches it over a link.
        Entrance::Tunnel => {
            for kind in [kind::OWN, kind::NODE, kind::WORLD, kind::SOURCE, kind::KERNEL] {
                program.jump_if(1, Equal, kind.cast_signed(), Pass);
            }
        }
    }
}

/// Sets the MAC addresses that frames of the node's kernel have, which the worker expects at its port to other nodes.
fn set_addresses(program: &mut Assembler<Place>, table: &FlowTable) {
    program.push(Instruction::value(1, &table.cells, cells::NODES_ADDRESSES));
    for (width, at) in [(Double, 0), (Word, 8)] {
        program.load(width, 2, 1, at);
        program.store(width, DATA, 2, at);
    }
}
