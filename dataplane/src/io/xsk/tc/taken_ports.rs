//! The taken ports: a bit for each port number that a virtual address or a masqueraded packet has, or had. Most packets to the node have other ports,
//! and the bits spare them look-ups.
//!
//! The bits are never cleared, since connections to a removed Service go on, and so may those from a source port that is free again.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;

use super::super::flow_headers::{ETHERNET, HEADER, IPV6, SHORTEST, TYPE_V4, TYPE_V6, UDP, need};
use super::super::flow_layout::cells;
use super::super::flow_place::Place::{self, Pass, SparePort, SpareTransport, SpareV6, Spared};
use super::super::flow_stack::DATA;
use super::super::flow_table::FlowTable;
use super::super::instruction::Operation::{Add, And, ShiftLeft, ShiftRight};
use super::super::instruction::Test::{Differs, Equal, Greater, Less, Shares};
use super::super::instruction::Width::{Byte, Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::abi::load_ends;
use super::world::{V4, V6};
use super::{TcDatapath, world};
use crate::SourcePorts;

/// Marks a port as taken.
pub(super) fn set(table: &FlowTable, port: u16) {
    let word = cells::TAKEN_PORTS + i32::from(port / 32) * 4;
    table.half_cell(word).fetch_or(1 << (port % 32), Ordering::SeqCst);
}

/// Finds the bit of the port that register 4 has in host order. Register 1 becomes the address of the bit's word of 4 bytes, and register 3 the bit's
/// number in this word: 0, the lowest bit, to 31. Overwrites register 2.
fn find_bit(program: &mut Assembler<Place>, table: &FlowTable) {
    program.push([Instruction::copy(2, 4), Instruction::copy(3, 4)]);
    // The verifier does not know the bounds of a swapped number.
    program.apply(And, 2, 0xffff);
    program.apply(ShiftRight, 2, 5);
    program.apply(ShiftLeft, 2, 2);
    program.push(Instruction::value(1, &table.cells, cells::TAKEN_PORTS));
    program.apply_register(Add, 1, 2);
    program.apply(And, 3, 31);
}

/// Jumps to `otherwise` unless the port that register 4 has in host order is taken. Overwrites registers 1 to 3.
pub(super) fn has(program: &mut Assembler<Place>, table: &FlowTable, otherwise: Place) {
    find_bit(program, table);
    program.load(Word, 2, 1, 0);
    program.apply_register(ShiftRight, 2, 3);
    program.apply(And, 2, 1);
    program.jump_if(2, Equal, 0, otherwise);
}

/// Marks the port that register 4 has in host order as taken. Overwrites registers 1 to 3.
pub(super) fn take(program: &mut Assembler<Place>, table: &FlowTable) {
    find_bit(program, table);
    program.push([Instruction::set(2, 1)]);
    program.apply_register(ShiftLeft, 2, 3);
    program.or_atomic(1, 2, 0);
}

/// Jumps to `otherwise` unless the port that register 4 has in host order is in a range of source ports of masqueraded packets. Places the other three
/// labels: `second` and `third` where the steps compare these ranges, `inside` at their end. Overwrites registers 1 and 2.
pub(super) fn is_source(
    program: &mut Assembler<Place>,
    table: &FlowTable,
    [second, third, inside]: [Place; SourcePorts::MOST],
    otherwise: Place,
) {
    program.push(world::own_cell(1, table));
    for (at, next) in [(0, second), (4, third), (8, otherwise)] {
        program.load(Short, 2, 1, at);
        program.jump_if_register(4, Less, 2, next);
        program.load(Short, 2, 1, at + 2);
        program.jump_if_register(4, Greater, 2, next);
        program.jump(inside);
        if at < 8 {
            program.place(next);
        }
    }
    program.place(inside);
}

/// Jumps to `Pass` with TCP and UDP packets to this node whose destination port is not taken and not the tunnel's: most of the node's own packets. Goes
/// on with all other packets. Loads the ends of the linear part. Overwrites registers 1 to 5. These are the first steps of the program at a link.
pub(super) fn spare(program: &mut Assembler<Place>, table: &FlowTable) {
    const FRAGMENT_V4: i32 = 0x3fff_u16.to_be() as i32;
    load_ends(program);
    need(program, DATA, SHORTEST, Spared);
    program.push(world::own_cell(1, table));
    program.load(Short, 3, DATA, 12);
    program.jump_if(3, Equal, TYPE_V6, SpareV6);
    program.jump_if(3, Differs, TYPE_V4, Spared);
    program.load(Byte, 3, DATA, HEADER);
    program.jump_if(3, Differs, 0x45, Spared);
    program.load(Short, 3, DATA, HEADER + 6);
    program.jump_if(3, Shares, FRAGMENT_V4, Spared);
    world::is_packet_to_node(program, &V4, Spared);
    program.load(Byte, 3, DATA, HEADER + V4.protocol);
    program.load(Short, 4, DATA, HEADER + V4.len + 2);
    program.jump(SparePort);
    program.place(SpareV6);
    need(program, DATA, ETHERNET + IPV6 + UDP, Spared);
    world::is_packet_to_node(program, &V6, Spared);
    program.load(Byte, 3, DATA, HEADER + V6.protocol);
    program.load(Short, 4, DATA, HEADER + V6.len + 2);
    program.place(SparePort);
    program.jump_if(3, Equal, libc::IPPROTO_TCP, SpareTransport);
    program.jump_if(3, Differs, libc::IPPROTO_UDP, Spared);
    program.place(SpareTransport);
    program.swap_short(4);
    program.push(Instruction::value(1, &table.cells, cells::TUNNEL_PORT));
    program.load(Word, 3, 1, 0);
    program.jump_if_register(4, Equal, 3, Spared);
    has(program, table, Pass);
    program.place(Spared);
}

impl TcDatapath {
    /// Tells the programs to which addresses of this node the world answers, the first one of each family in `sources`, and the source ports of
    /// masqueraded packets. `ports` is `None` if packets are not masqueraded. The programs take answers to masqueraded packets of these families only.
    pub fn take_answers(&self, sources: &[IpAddr], ports: Option<&SourcePorts>) {
        let v4 = sources
            .iter()
            .find_map(|source| if let IpAddr::V4(v4) = source { Some(v4.to_ipv6_mapped()) } else { None });
        let v6 = sources.iter().find_map(|source| if let IpAddr::V6(v6) = source { Some(*v6) } else { None });
        let ranges = ports.map_or(&[][..], SourcePorts::ranges);
        for (cell, at) in (cells::WORLD_PORTS..).step_by(4).zip(0..SourcePorts::MOST) {
            let [first, last] =
                ranges.get(at).map_or([1, 0], |range| [*range.start(), *range.end()]).map(u16::to_ne_bytes);
            let range = u32::from_ne_bytes([first[0], first[1], last[0], last[1]]);
            self.table.half_cell(cell).store(range, Ordering::SeqCst);
        }
        // Ports of the other ranges are taken when a worker uses them.
        ranges.first().into_iter().flat_map(Clone::clone).for_each(|port| set(&self.table, port));
        for (cell, address) in [(cells::WORLD_V4, v4), (cells::WORLD_V6, v6)] {
            let [first @ .., a, b, c, d, e, f, g, h] = address.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
            self.table.cell(cell).store(u64::from_ne_bytes(first), Ordering::SeqCst);
            self.table.cell(cell + 8).store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Ordering::SeqCst);
        }
    }
}
