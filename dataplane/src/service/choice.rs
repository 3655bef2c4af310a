//! Chooses a backend from a list.
//!
//! Up to 32 backends use rendezvous hashing: each backend is hashed with the packet, and the highest hash wins. If a backend disappears,
//! only its own connections move. The cost is one multiplication per backend. Longer lists use a Maglev table (Eisenbud et al., NSDI 2016):
//! one lookup for any length, about a hundred places of two bytes per backend, and a few new connections of other backends move too.
//! Established connections are pinned by their sessions. A random choice would be cheaper, but different nodes, and one node before and
//! after a restart, would disagree.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Backend;
use crate::Flow;

/// The longest list that is chosen from without a table: 32 hashes take about 40 ns, as long as a table lookup with a cache miss.
const MOST_LOTS: usize = 32;

/// Table sizes: primes, as the method requires. The last is the largest that fits 16-bit positions.
const SIZES: [usize; 5] = [4093, 8191, 16_381, 32_749, 65_521];

/// Places per backend. With a hundred, shares differ by at most one percent (§5.3 of the paper).
const PLACES_EACH: usize = 100;

/// A list of backends, prepared for choosing. Only the first 65,521 are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    all: Arc<[Backend]>,
    /// The Maglev table. `None` for a short list.
    pub(super) table: Option<Arc<[u16]>>,
}

impl Backends {
    /// Prepares a list in any order. Building a table takes a few milliseconds.
    pub fn new(backends: impl IntoIterator<Item = Backend>) -> Self {
        let mut all: Vec<Backend> = backends.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(SIZES[SIZES.len() - 1]);
        let table = (all.len() > MOST_LOTS).then(|| table(&all).into());
        Self { all: all.into(), table }
    }

    /// Returns the backends in ascending order.
    pub fn as_slice(&self) -> &[Backend] {
        &self.all
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Chooses the backend of a connection. The list must not be empty.
    pub(super) fn choose(&self, seed: u64, flow: &Flow) -> Backend {
        let hash = hash_of(seed, flow);
        match &self.table {
            Some(table) => self.all[usize::from(table[share(hash, table.len())])],
            None => {
                let lot = |backend: &&Backend| mix(hash ^ number(&backend.socket));
                *self.all.iter().max_by_key(lot).expect("the list is not empty")
            }
        }
    }
}

/// Fills the table: each backend in turn takes the next free place of its own permutation.
fn table(all: &[Backend]) -> Vec<u16> {
    let size = SIZES.into_iter().find(|&size| size >= PLACES_EACH * all.len()).unwrap_or(SIZES[SIZES.len() - 1]);
    let mut turns: Vec<(usize, usize)> = all
        .iter()
        .map(|backend| {
            let number = number(&backend.socket);
            (share(mix(number), size), 1 + share(mix(!number), size - 1))
        })
        .collect();
    let mut places = vec![u16::MAX; size];
    let mut left = size;
    loop {
        for (backend, (place, step)) in turns.iter_mut().enumerate() {
            while places[*place] != u16::MAX {
                *place = (*place + *step) % size;
            }
            places[*place] = u16::try_from(backend).expect("the list was cut to what 16 bits can name");
            left -= 1;
            if left == 0 {
                return places;
            }
        }
    }
}

/// Hashes a backend, equally on all nodes.
fn number(socket: &SocketAddr) -> u64 {
    let (high, low) = halves(socket.ip());
    mix(mix(high ^ SALTS[0]) ^ low) ^ mix(u64::from(socket.port()) ^ SALTS[1])
}

fn hash_of(seed: u64, flow: &Flow) -> u64 {
    let (src, dst) = (halves(flow.src), halves(flow.dst));
    let ports = u64::from(flow.sport) << 32 | u64::from(flow.dport) << 8 | u64::from(flow.protocol);
    [src.0, src.1, dst.0, dst.1, ports].into_iter().fold(mix(seed ^ SALTS[2]), |hash, word| mix(hash ^ word))
}

/// A different salt for each use, so that no hash is the input of another (digits of pi).
const SALTS: [u64; 3] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0];

/// Permutes the 64-bit numbers so that each bit affects all others: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014).
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Maps a hash to `0..count`.
#[expect(clippy::cast_possible_truncation, reason = "the product's upper half is less than the count")]
const fn share(hash: u64, count: usize) -> usize {
    ((hash as u128 * count as u128) >> 64) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
fn halves(address: IpAddr) -> (u64, u64) {
    match address {
        IpAddr::V4(address) => (0, u64::from(u32::from(address))),
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            ((bits >> 64) as u64, bits as u64)
        }
    }
}
