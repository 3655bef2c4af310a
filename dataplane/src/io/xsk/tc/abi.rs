//! The kernel's interface to tc programs: `struct __sk_buff`, helper functions, return codes.

use super::super::flow_place::Place;
use super::super::flow_stack::{CONTEXT, DATA, DATA_END};
use super::super::instruction::Assembler;
use super::super::instruction::Width::Word;

/// `struct __sk_buff`.
pub(super) mod context {
    pub(in crate::io::xsk::tc) const LEN: i16 = 0;
    pub(in crate::io::xsk::tc) const PKT_TYPE: i16 = 4;
    pub(in crate::io::xsk::tc) const QUEUE_MAPPING: i16 = 12;
    pub(in crate::io::xsk::tc) const VLAN_PRESENT: i16 = 20;
    pub(in crate::io::xsk::tc) const VLAN_TCI: i16 = 24;
    pub(in crate::io::xsk::tc) const VLAN_PROTO: i16 = 28;
    pub(in crate::io::xsk::tc) const IFINDEX: i16 = 40;
    pub(in crate::io::xsk::tc) const DATA: i16 = 76;
    pub(in crate::io::xsk::tc) const DATA_END: i16 = 80;
    pub(in crate::io::xsk::tc) const GSO_SEGS: i16 = 164;
    pub(in crate::io::xsk::tc) const GSO_SIZE: i16 = 176;
}

/// Numbers of the kernel's helper functions.
pub(super) mod function {
    pub(in crate::io::xsk::tc) const MAP_UPDATE: i32 = 2;
    pub(in crate::io::xsk::tc) const RANDOM: i32 = 7;
    pub(in crate::io::xsk::tc) const L4_CSUM_REPLACE: i32 = 11;
    pub(in crate::io::xsk::tc) const CLONE_REDIRECT: i32 = 13;
    pub(in crate::io::xsk::tc) const VLAN_PUSH: i32 = 18;
    pub(in crate::io::xsk::tc) const VLAN_POP: i32 = 19;
    pub(in crate::io::xsk::tc) const REDIRECT: i32 = 23;
    pub(in crate::io::xsk::tc) const CHANGE_TYPE: i32 = 32;
    pub(in crate::io::xsk::tc) const HASH: i32 = 34;
    pub(in crate::io::xsk::tc) const PULL_DATA: i32 = 39;
    pub(in crate::io::xsk::tc) const CSUM_UPDATE: i32 = 40;
    pub(in crate::io::xsk::tc) const SET_TUNNEL_KEY: i32 = 21;
    pub(in crate::io::xsk::tc) const ADJUST_ROOM: i32 = 50;
    /// `bpf_csum_level`, since Linux 5.8.
    pub(in crate::io::xsk::tc) const CSUM_LEVEL: i32 = 135;
    /// `bpf_redirect_neigh`, since Linux 5.10.
    pub(in crate::io::xsk::tc) const REDIRECT_NEIGH: i32 = 152;
    /// `bpf_redirect_peer`, since Linux 5.10.
    pub(in crate::io::xsk::tc) const REDIRECT_PEER: i32 = 155;
}

/// `TC_ACT_UNSPEC`: the next filter decides.
pub(super) const NEXT: i32 = -1;
/// `TC_ACT_SHOT`.
pub(super) const SHOT: i32 = 2;

/// The 802.1ad EtherType in network order, as `__sk_buff` and the helpers use it.
pub(super) const SERVICE_TAG: i32 = 0x88a8_u16.to_be() as i32;

/// Loads the ends of the linear part, which may move with every helper that changes the packet.
pub(super) fn load_ends(program: &mut Assembler<Place>) {
    program.load(Word, DATA, CONTEXT, context::DATA);
    program.load(Word, DATA_END, CONTEXT, context::DATA_END);
}
