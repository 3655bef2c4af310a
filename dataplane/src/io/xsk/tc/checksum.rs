//! The transport's checksum of a packet that gets other addresses and ports in a tc program.
//!
//! ```text
//!   UDP, checksum 0: bpf_csum_update(flow.ports_change)
//!   else: bpf_l4_csum_replace(flow.checksum_at, flow.addresses_change, flow.checksum_flags + PSEUDO_HDR)   | fails: drop
//!         bpf_l4_csum_replace(flow.checksum_at, flow.ports_change, flow.checksum_flags)                    | fails: drop
//!   IPv6: bpf_csum_update(flow.addresses_change)
//!   data, data_end = ctx.data, ctx.data_end
//! ```
//!
//! The kernel's function does it, and no arithmetic as in an XDP program: only the kernel knows whether the checksum is finished, and
//! a program cannot ask. Local sockets send packets with unfinished ones (`CHECKSUM_PARTIAL`), and every packet in segments has one.
//! It is the sum over the pseudo-header, not complemented; whoever sends the packet on a wire adds the rest. So it changes with the
//! addresses, and not with the ports. A program that takes it for a finished one spoils it, which nobody sees until somebody finishes
//! it. `BPF_F_PSEUDO_HDR` says that the change is the pseudo-header's, and the ports' change goes without it. The packet stays whole.
//! `BPF_F_MARK_MANGLED_0` keeps a UDP checksum of 0, and writes one that becomes 0 as 0xffff.
//!
//! Some network cards tell the sum over the whole packet (`CHECKSUM_COMPLETE`). It stays the same when a field and a checksum over
//! that field change together. The function takes the pseudo-header's change out of it once more, because with IPv4 two checksums make
//! up for it: the transport's and the header's. IPv6 has only the one, so there the change is added again. (The flag `BPF_F_IPV6` of
//! Linux 6.16 does the same; earlier kernels refuse it.) In a datagram without a checksum nothing makes up for the ports.

use super::super::flow_headers::Place::{self, Drop, Finished, WithoutChecksum};
use super::super::flow_layout::value;
use super::super::flow_stack::{CONTEXT, STACK, VALUE};
use super::super::flow_translation::{load_checksum, load_version};
use super::super::instruction::Operation::Or;
use super::super::instruction::Test::Differs;
use super::super::instruction::Width::Short;
use super::super::instruction::{Assembler, Instruction};
use super::abi::{function, load_ends};

/// Makes the transport's checksum right for the flow's addresses and ports.
pub(super) fn change(program: &mut Assembler<Place>) {
    load_checksum(program, WithoutChecksum);
    replace(program, value::ADDRESSES_CHANGE, true);
    replace(program, value::PORTS_CHANGE, false);
    program.jump(Place::Summed);
    program.place(WithoutChecksum);
    add_to_sum(program, value::PORTS_CHANGE);
    program.place(Place::Summed);
    load_version(program);
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
    program.push([Instruction::set(3, 0)]);
    program.load(Short, 4, STACK, VALUE + change);
    program.load(Short, 5, STACK, VALUE + value::CHECKSUM_FLAGS);
    if is_pseudo_header {
        program.apply(Or, 5, PSEUDO_HEADER);
    }
    program.push([Instruction::call(function::L4_CSUM_REPLACE)]);
    // The kernel has no memory for a header of the packet's own.
    program.jump_if(0, Differs, 0, Drop);
}

/// Changes the sum over the whole packet, if there is one.
fn add_to_sum(program: &mut Assembler<Place>, change: i16) {
    program.push([Instruction::copy(1, CONTEXT)]);
    program.load(Short, 2, STACK, VALUE + change);
    program.push([Instruction::call(function::CSUM_UPDATE)]);
}
