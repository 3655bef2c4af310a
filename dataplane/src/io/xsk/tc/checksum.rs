//! Corrects the transport's checksum of a packet that a tc program translates.
//!
//! ```text
//!   UDP, checksum 0: bpf_csum_update(flow.ports_change)
//!   else: at = flow.checksum_at + length of the jumbo header
//!         bpf_l4_csum_replace(at, flow.addresses_change, flow.checksum_flags + PSEUDO_HDR)   | fails: drop
//!         bpf_l4_csum_replace(at, flow.ports_change, flow.checksum_flags)                    | fails: drop
//!   IPv6: bpf_csum_update(flow.addresses_change)
//!   data, data_end = ctx.data, ctx.data_end
//! ```
//!
//! A helper function updates the checksum, unlike in XDP programs, because only the kernel knows whether the checksum is finished. Local
//! sockets send unfinished checksums (`CHECKSUM_PARTIAL`), as do all packets in segments. An unfinished checksum is the uncomplemented sum
//! over the pseudo-header; the sender on the wire adds the rest. So it depends on the addresses but not on the ports, and treating it as
//! finished would corrupt it. `BPF_F_PSEUDO_HDR` marks the addresses' change as the pseudo-header's; the ports' change lacks the flag.
//! `BPF_F_MARK_MANGLED_0` keeps a UDP checksum of 0, and writes one that becomes 0 as 0xffff.
//!
//! Some network cards provide the sum over the whole packet (`CHECKSUM_COMPLETE`). It stays constant if a field and a checksum over that
//! field change together. The helper subtracts the pseudo-header's change once, because IPv4 has two compensating checksums: the
//! transport's and the header's. IPv6 has only one, so the program adds the change again. (`BPF_F_IPV6` of Linux 6.16 does the same;
//! earlier kernels refuse it.) In a datagram without a checksum, nothing compensates the ports' change.

use super::super::flow_layout::value;
use super::super::flow_place::Place::{self, Drop, Finished, WithoutChecksum};
use super::super::flow_stack::{CONTEXT, JUMBO, STACK, VALUE};
use super::super::flow_translation::{load_checksum, load_version};
use super::super::instruction::Operation::{Add, Or};
use super::super::instruction::Test::Differs;
use super::super::instruction::Width::{Double, Short};
use super::super::instruction::{Assembler, Instruction};
use super::abi::{function, load_ends};

/// Corrects the transport's checksum for the flow's translation.
pub(super) fn change(program: &mut Assembler<Place>) {
    load_checksum(program, WithoutChecksum);
    replace(program, value::ADDRESSES_CHANGE, true);
    replace(program, value::PORTS_CHANGE, false);
    program.jump(Place::Summed);
    program.place(WithoutChecksum);
    add_to_sum(program, value::PORTS_CHANGE);
    program.place(Place::Summed);
    load_version(program, 3);
    program.jump_if(3, Differs, 6, Finished);
    add_to_sum(program, value::ADDRESSES_CHANGE);
    program.place(Finished);
    load_ends(program);
}

fn replace(program: &mut Assembler<Place>, change: i16, is_pseudo_header: bool) {
    /// `BPF_F_PSEUDO_HDR`.
    const PSEUDO_HEADER: i32 = 1 << 4;
    program.push([Instruction::copy(1, CONTEXT)]);
    program.load(Short, 2, STACK, VALUE + value::CHECKSUM_AT);
    program.load(Double, 3, STACK, JUMBO);
    program.apply_register(Add, 2, 3);
    program.push([Instruction::set(3, 0)]);
    program.load(Short, 4, STACK, VALUE + change);
    program.load(Short, 5, STACK, VALUE + value::CHECKSUM_FLAGS);
    if is_pseudo_header {
        program.apply(Or, 5, PSEUDO_HEADER);
    }
    program.push([Instruction::call(function::L4_CSUM_REPLACE)]);
    // Fails if the kernel has no memory to unshare the header.
    program.jump_if(0, Differs, 0, Drop);
}

/// Adds a change to the sum over the whole packet, if the packet has one.
fn add_to_sum(program: &mut Assembler<Place>, change: i16) {
    program.push([Instruction::copy(1, CONTEXT)]);
    program.load(Short, 2, STACK, VALUE + change);
    program.push([Instruction::call(function::CSUM_UPDATE)]);
}
