//! The virtual addresses of Services and host ports whose packets the programs take where packets of other nodes and of the world arrive.
//!
//! ```text
//!   client --> node:30080 --> [from_nodes] at the card: no flow; vips[protocol, port, address] exists --> worker: backend, policy, session
//!                                          `- a flow is known --> rewritten, to the pod
//!   client <-- node:30080 <-- [to_nodes]   <-- flow known, or worker <-- pod
//! ```
//!
//! A virtual address may be one of the node's. So most packets to the node are none of the vswitch's, and should cost little: see [`taken_ports`].

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::super::flow_place::Place;
use super::super::flow_stack::{STACK, VIP_KEY};
use super::super::flow_steps::look_up;
use super::super::flow_table::FlowTable;
use super::super::instruction::Test::Differs;
use super::super::instruction::Width::{Short, Word};
use super::super::instruction::{Assembler, Instruction};
use super::super::map::{MAP_HASH, Map, MapKind, NO_PREALLOC};
use super::super::netlink::mapped;
use super::{TcDatapath, sent, taken_ports};
use crate::Vip;
use crate::io::xsk::small_size;

/// Maximum number of virtual addresses: room for all 2,768 node ports of the default range at 23 addresses of the node.
const VIPS: u32 = 1 << 16;

/// A key of the map: the protocol's number (4 bytes in host order), 2 zeros, the port in network order (2 bytes), and the address (16 bytes), of IPv4 in
/// its mapped form.
type Key = [u8; 24];

/// Stack offset in bytes of the address in the key.
pub(super) const ADDRESS: i16 = VIP_KEY + 8;

/// The map of virtual addresses, and the process's copy of its keys.
#[derive(Debug)]
pub(super) struct Vips {
    pub(super) map: Map,
    /// The map's keys.
    known: Mutex<BTreeSet<Key>>,
}

impl Vips {
    /// Opens the map that is pinned in a folder with its contents, or creates it empty. Without a folder, the map is not pinned.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn new(folder: Option<&Path>) -> io::Result<Self> {
        let kind = MapKind {
            kind: MAP_HASH,
            name: "bulkhead_vips",
            key_size: small_size::<Key>(),
            value_size: small_size::<u32>(),
            entries: VIPS,
            flags: NO_PREALLOC,
        };
        let map = Map::at(&kind, folder)?;
        let mut known = BTreeSet::new();
        map.for_each(|key, _| known.extend(key.first_chunk().copied()))?;
        Ok(Self { map, known: Mutex::new(known) })
    }

    /// Replaces the virtual addresses. Removes obsolete ones first.
    ///
    /// # Errors
    /// The kernel's error, for example if the map is full. The method stops at the first one, and a part of the new addresses is missing.
    pub(super) fn replace(&self, table: &FlowTable, wanted: impl IntoIterator<Item = Vip>) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: BTreeSet<Key> =
            wanted.into_iter().inspect(|vip| taken_ports::set(table, vip.port)).map(key_of).collect();
        let gone: Vec<Key> = known.difference(&wanted).copied().collect();
        for key in gone {
            self.map.remove(&key)?;
            known.remove(&key);
        }
        for key in wanted {
            if !known.contains(&key) {
                self.map.insert(&key, &[0; size_of::<u32>()])?;
                known.insert(key);
            }
        }
        Ok(())
    }
}

/// Returns the key of a virtual address.
fn key_of(vip: Vip) -> Key {
    let mut key = [0; size_of::<Key>()];
    key[..4].copy_from_slice(&u32::from(vip.protocol).to_ne_bytes());
    key[6..8].copy_from_slice(&vip.port.to_be_bytes());
    key[8..].copy_from_slice(&mapped(vip.address));
    key
}

/// Jumps to `found` if there is a virtual address with the protocol and the node's port of the key of a record ([`sent`]) and the address at [`ADDRESS`],
/// else to `otherwise`. Register 4 has the node's port in host order. Completes the key of the virtual address. Overwrites registers 0 to 5.
pub(super) fn find(program: &mut Assembler<Place>, table: &FlowTable, vips: &Map, [found, otherwise]: [Place; 2]) {
    taken_ports::has(program, table, otherwise);
    program.load(Word, 2, STACK, sent::PROTOCOL);
    program.store(Word, STACK, 2, VIP_KEY);
    program.push([Instruction::set(2, 0)]);
    program.store(Short, STACK, 2, VIP_KEY + 4);
    program.load(Short, 2, STACK, sent::NODE_PORT);
    program.store(Short, STACK, 2, VIP_KEY + 6);
    look_up(program, vips, VIP_KEY);
    program.jump_if(0, Differs, 0, found);
    program.jump(otherwise);
}

impl TcDatapath {
    /// Makes the programs at links and at the tunnel take the packets to these virtual addresses, and no longer those to others.
    ///
    /// # Errors
    /// If there are more than 65,536 addresses, or the kernel refuses. The programs then take packets to a part of them.
    pub fn take_vips(&self, vips: impl IntoIterator<Item = Vip>) -> io::Result<()> {
        self.vips.replace(&self.table, vips)
    }
}
