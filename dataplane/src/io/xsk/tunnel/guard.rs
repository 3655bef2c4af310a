//! The program at tc ingress of the tunnel's device. It drops packets whose sender may not send them.
//!
//! ```text
//!   outer source, VNI = the tunnel header's           | none, or another VNI: drop
//!   inner source = the IPv4 or IPv6 header's          | another protocol: drop
//!   (outer source, inner source) in the map           | no: drop
//!   mark the packet as this host's, pass it to the next filter or to the kernel
//! ```
//!
//! The map is a trie: its key is the outer source followed by the prefix of the inner source, so one lookup answers both questions.
//! IPv4 addresses are in their mapped form (RFC 4291 §2.5.5.2). Drops are counted.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ipnet::IpNet;

use super::{TunnelPeer, pairs};
use crate::io::xsk::bpf::{self, Hook};
use crate::io::xsk::flow_headers::{TYPE_V4, TYPE_V6};
use crate::io::xsk::flow_table::possible_cores;
use crate::io::xsk::instruction::Operation::Add;
use crate::io::xsk::instruction::Test::{Differs, Equal};
use crate::io::xsk::instruction::Width::Word;
use crate::io::xsk::instruction::{Assembler, Instruction};
use crate::io::xsk::map::{MAP_PERCPU_ARRAY, MAP_TRIE, Map, MapKind, NO_PREALLOC};
use crate::io::xsk::netlink::mapped;
use crate::io::xsk::small_size;
use crate::io::xsk::tc::Filter;

/// The name of program and filter.
const NAME: &str = "bulkhead_tunnel";

/// Maximum number of pairs of an outer source and an inner prefix. Five thousand nodes with two addresses and two pod networks have forty
/// thousand; the map's memory grows with its entries.
const PAIRS: u32 = 1 << 16;

/// Bytes of a key: the prefix length in bits as a number, outer source, inner source.
const KEY: usize = 36;

/// The loaded program with its maps.
#[derive(Debug)]
pub(super) struct Guard {
    program: OwnedFd,
    /// The trie.
    allowed: Map,
    /// The pairs in the trie.
    known: BTreeSet<(IpAddr, IpNet)>,
    drops: TunnelDrops,
}

impl Guard {
    /// Loads the program, which accepts packets of this VNI. It allows nothing at first.
    pub(super) fn load(vni: u32) -> io::Result<Self> {
        let allowed = Map::of(&MapKind {
            kind: MAP_TRIE,
            name: "bulkhead_peers",
            key_size: small_size::<[u8; KEY]>(),
            value_size: 4,
            entries: PAIRS,
            flags: NO_PREALLOC,
        })?;
        let counter = Map::new(MAP_PERCPU_ARRAY, "bulkhead_drops", 8, 1)?;
        let program = bpf::load_program(Hook::TcIngress, NAME, &instructions(&allowed, &counter, vni), 0)?;
        let drops = TunnelDrops { counter: Arc::new(counter), cores: possible_cores()? };
        Ok(Self { program, allowed, known: BTreeSet::new(), drops })
    }

    /// Attaches the program to the device, and replaces a previous process's.
    pub(super) fn attach(&self, interface: u32) -> io::Result<()> {
        // The filter belongs to the interface, so it stays when the process ends.
        Filter::attach(Hook::TcIngress, self.program.as_fd(), NAME, interface).map(drop)
    }

    /// Replaces the nodes from which packets are accepted.
    ///
    /// # Errors
    /// If the trie is full, or the kernel refuses. Then some of the nodes may be missing, but none remains that is not among them.
    pub(super) fn allow(&mut self, peers: &[TunnelPeer]) -> io::Result<()> {
        let wanted = pairs(peers);
        for pair in self.known.difference(&wanted).copied().collect::<Vec<_>>() {
            self.allowed.remove(&key(&pair))?;
            self.known.remove(&pair);
        }
        for pair in wanted {
            if !self.known.contains(&pair) {
                self.allowed.insert(&key(&pair), &[0; 4])?;
                self.known.insert(pair);
            }
        }
        Ok(())
    }

    /// Returns the counter of dropped packets.
    pub(super) fn drops(&self) -> TunnelDrops {
        self.drops.clone()
    }
}

/// The counter of packets that a tunnel's guard has dropped. It stays readable when the tunnel is gone.
#[derive(Clone, Debug)]
pub struct TunnelDrops {
    /// A number for each core.
    counter: Arc<Map>,
    /// Number of possible cores.
    cores: usize,
}

impl TunnelDrops {
    /// Returns the number of packets since this process set the tunnel up.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn count(&self) -> io::Result<u64> {
        let values = self.counter.of_each_core(&0_u32.to_ne_bytes(), self.cores)?;
        let counts = values.chunks_exact(8).filter_map(|bytes| bytes.first_chunk());
        Ok(counts.map(|bytes| u64::from_ne_bytes(*bytes)).sum())
    }
}

/// Builds the trie's key of an outer source and an inner prefix.
fn key(&(outer, inner): &(IpAddr, IpNet)) -> [u8; KEY] {
    // The bits of the outer source, and of what precedes an inner IPv4 address in its mapped form.
    let before = 128 + if inner.addr().is_ipv4() { 96 } else { 0 };
    let length: u32 = before + u32::from(inner.prefix_len());
    let mut key = [0; KEY];
    key[..4].copy_from_slice(&length.to_ne_bytes());
    key[4..20].copy_from_slice(&mapped(outer));
    key[20..].copy_from_slice(&mapped(inner.network()));
    key
}

/// Jump labels.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    V4Outer,
    Known,
    V4Inner,
    LookUp,
    Drop,
    End,
}

/// Numbers of the kernel's helper functions, and the offset of `protocol` in `struct __sk_buff`, in bytes.
const MAP_LOOKUP: i32 = 1;
const GET_TUNNEL_KEY: i32 = 20;
const LOAD_BYTES: i32 = 26;
const CHANGE_TYPE: i32 = 32;
const PROTOCOL: i16 = 16;
/// `TC_ACT_UNSPEC`, after which a filter behind the guard decides, and `TC_ACT_SHOT`.
const NEXT: i32 = -1;
const SHOT: i32 = 2;
/// `struct bpf_tunnel_key` up to `local_ipv4`, all that kernels before 6.0 have: its size, and the offset of `remote_ipv4`.
const TUNNEL_KEY_LEN: i32 = 28;
const REMOTE: i16 = 4;

/// Registers: the frame pointer and the context.
const STACK: u8 = 10;
const CONTEXT: u8 = 6;
/// Stack offsets: the trie's key, the outer and inner source in it, the tunnel header.
const AT_KEY: i16 = -40;
const AT_OUTER: i16 = AT_KEY + 4;
const AT_INNER: i16 = AT_KEY + 20;
const AT_TUNNEL: i16 = -72;

/// Builds the program. It accepts packets of this VNI whose sources are in `allowed`, and counts the others in `drops`.
fn instructions(allowed: &Map, drops: &Map, vni: u32) -> Vec<Instruction> {
    let mut program = Assembler::new();
    program.push([Instruction::copy(CONTEXT, 1)]);
    load_tunnel(&mut program, vni);
    load_inner(&mut program);
    program.place(Place::LookUp);
    program.push([Instruction::set(1, 256)]);
    program.store(Word, STACK, 1, AT_KEY);
    look_up(&mut program, allowed, AT_KEY);
    program.jump_if(0, Equal, 0, Place::Drop);
    // `PACKET_HOST`.
    program.push([Instruction::copy(1, CONTEXT), Instruction::set(2, 0), Instruction::call(CHANGE_TYPE)]);
    program.push([Instruction::set(0, NEXT)]);
    program.jump(Place::End);
    program.place(Place::Drop);
    program.push([Instruction::set(1, 0)]);
    program.store(Word, STACK, 1, AT_KEY);
    look_up(&mut program, drops, AT_KEY);
    program.push([Instruction::copy(7, 0), Instruction::set(0, SHOT)]);
    program.jump_if(7, Equal, 0, Place::End);
    program.push([Instruction::set(1, 1)]);
    program.add_to(7, 1, 0, 2);
    program.place(Place::End);
    program.push([Instruction::exit()]);
    program.finish()
}

/// Stores the outer source in the key. Jumps to `Drop` without a tunnel header, and if it has another VNI.
fn load_tunnel(program: &mut Assembler<Place>, vni: u32) {
    /// `BPF_F_TUNINFO_IPV6`.
    const V6: i32 = 1;
    let ask = |program: &mut Assembler<Place>, flags| {
        program.push([Instruction::copy(1, CONTEXT), Instruction::copy(2, STACK)]);
        program.apply(Add, 2, i32::from(AT_TUNNEL));
        program.push([Instruction::set(3, TUNNEL_KEY_LEN), Instruction::set(4, flags)]);
        program.push([Instruction::call(GET_TUNNEL_KEY)]);
    };
    ask(program, 0);
    program.jump_if(0, Equal, 0, Place::V4Outer);
    ask(program, V6);
    program.jump_if(0, Differs, 0, Place::Drop);
    for at in [0, 4, 8, 12] {
        program.load(Word, 1, STACK, AT_TUNNEL + REMOTE + at);
        program.store(Word, STACK, 1, AT_OUTER + at);
    }
    program.jump(Place::Known);
    program.place(Place::V4Outer);
    store_mapped(program, AT_OUTER);
    // The helper returns an IPv4 address as a number in host byte order.
    program.load(Word, 1, STACK, AT_TUNNEL + REMOTE);
    program.swap_word(1);
    program.store(Word, STACK, 1, AT_OUTER + 12);
    program.place(Place::Known);
    program.load(Word, 1, STACK, AT_TUNNEL);
    program.jump_if(1, Differs, vni.cast_signed(), Place::Drop);
}

/// Stores the inner source in the key. Jumps to `Drop` if the packet has another protocol or no whole header.
fn load_inner(program: &mut Assembler<Place>) {
    /// Offsets of the source address in a frame.
    const SOURCE_V4: i32 = 14 + 12;
    const SOURCE_V6: i32 = 14 + 8;
    let load = |program: &mut Assembler<Place>, from, to: i16, len| {
        program.push([Instruction::copy(1, CONTEXT), Instruction::set(2, from), Instruction::copy(3, STACK)]);
        program.apply(Add, 3, i32::from(to));
        program.push([Instruction::set(4, len), Instruction::call(LOAD_BYTES)]);
        program.jump_if(0, Differs, 0, Place::Drop);
    };
    program.load(Word, 1, CONTEXT, PROTOCOL);
    program.jump_if(1, Equal, TYPE_V4, Place::V4Inner);
    program.jump_if(1, Differs, TYPE_V6, Place::Drop);
    load(program, SOURCE_V6, AT_INNER, 16);
    program.jump(Place::LookUp);
    program.place(Place::V4Inner);
    store_mapped(program, AT_INNER);
    load(program, SOURCE_V4, AT_INNER + 12, 4);
}

/// Stores the first 12 bytes of an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2) on the stack, at the offset `to`. The IPv4 address follows.
fn store_mapped(program: &mut Assembler<Place>, to: i16) {
    program.push([Instruction::set(1, 0)]);
    program.store(Word, STACK, 1, to);
    program.store(Word, STACK, 1, to + 4);
    program.push([Instruction::set(1, i32::from_ne_bytes([0, 0, 0xff, 0xff]))]);
    program.store(Word, STACK, 1, to + 8);
}

/// Looks the key on the stack up. Register 0 becomes the value's address, or 0.
fn look_up(program: &mut Assembler<Place>, map: &Map, key: i16) {
    program.push(Instruction::map(1, map));
    program.push([Instruction::copy(2, STACK)]);
    program.apply(Add, 2, i32::from(key));
    program.push([Instruction::call(MAP_LOOKUP)]);
}
