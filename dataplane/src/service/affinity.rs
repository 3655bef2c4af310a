//! The last backend of each client, for Services with `sessionAffinity: ClientIP`.
//!
//! All workers share one table, because a client's connections to the addresses of a service port belong to different workers. Only new
//! connections read or write it. The size is fixed: a client that finds no free place, or is overwritten, gets a backend like a new client.
//!
//! ```text
//!   hash(client, service port) --> 4 neighbouring places of two words
//!                                    word 0: the whole hash       word 1: hash of the backend | second of the last connection
//! ```
//!
//! Two workers may write a place at the same time. The backend's hash is keyed with the client's hash, so two halves that do not belong
//! together match no backend, as if the place were empty.
//!
//! The table may be in a file that outlives the process. It contains only values that are the same in every process: a
//! service port's [identity](super::ServicePort::identity), a backend's address and port. A result is only compared with eligible backends,
//! so a damaged or outdated file never selects any other backend.

#[cfg(target_os = "linux")]
mod file;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::lines::{Lines, WORDS};
#[cfg(target_os = "linux")]
pub(crate) use file::Found;

/// Number of places, each for one client and service port: 4 MiB, allocated on first use. A quarter of a million clients per node.
const PLACES: usize = 1 << 18;

/// Number of places among which a client may be stored: one cache line.
const WAYS: usize = WORDS / 2;

/// The result of storing a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// The client was already stored, and its backend was updated.
    Again,
    /// The client was stored in a place that was free.
    Newly,
    /// The client has replaced another one, which is no longer stored.
    Instead,
    /// No memory was available, so the client is not stored.
    Not,
}

#[derive(Debug)]
pub(crate) struct ClientAffinity {
    /// Hashes clients and backends. Keyed at random, so that outsiders cannot choose clients that share places.
    hasher: RandomState,
    lines: Lines,
}

/// A client's last backend, as a hash that can be compared with backends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBackend<'a> {
    table: &'a ClientAffinity,
    name: u64,
    backend: u32,
}

impl LastBackend<'_> {
    /// Whether the client's last backend has this address and port.
    pub(crate) fn is(&self, socket: &SocketAddr) -> bool {
        self.table.backend(self.name, socket) == self.backend
    }
}

impl ClientAffinity {
    /// Creates an empty table.
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), lines: Lines::new(PLACES / WAYS) }
    }

    /// Returns the client's last backend of the service port with this identity. `None` if the client is unknown, or its last new
    /// connection is older than the timeout. `now` and `timeout` are in seconds.
    pub(crate) fn last(&self, client: IpAddr, port: u64, now: u64, timeout: u32) -> Option<LastBackend<'_>> {
        let name = self.name(client, port);
        let mut places = self.lines.read(self.line(name)).chunks_exact(2);
        let place = places.find(|place| place[0].load(Ordering::Acquire) == name)?;
        let (backend, seen) = halves(place[1].load(Ordering::Relaxed));
        let is_fresh = second(now).wrapping_sub(seen) < timeout;
        is_fresh.then_some(LastBackend { table: self, name, backend })
    }

    /// Stores the backend of a client's new connection. `now` is in seconds.
    pub(crate) fn remember(&self, client: IpAddr, port: u64, socket: &SocketAddr, now: u64) -> Remembered {
        let name = self.name(client, port);
        let places = || self.lines.write(self.line(name)).chunks_exact(2);
        let own = places().find(|place| place[0].load(Ordering::Relaxed) == name);
        // Otherwise the least recently used place. Unused places come first.
        let age = |place: &&[AtomicU64]| match place[1].load(Ordering::Relaxed) {
            0 => u32::MAX,
            word => second(now).wrapping_sub(halves(word).1),
        };
        let is_known = own.is_some();
        let Some(place) = own.or_else(|| places().max_by_key(age)) else { return Remembered::Not };
        let is_free = place[0].load(Ordering::Relaxed) == 0;
        place[1].store(u64::from(self.backend(name, socket)) << 32 | u64::from(second(now)), Ordering::Relaxed);
        place[0].store(name, Ordering::Release);
        match (is_known, is_free) {
            (true, _) => Remembered::Again,
            (false, true) => Remembered::Newly,
            (false, false) => Remembered::Instead,
        }
    }

    /// Maximum number of clients.
    pub(crate) const fn capacity() -> usize {
        PLACES
    }

    #[expect(clippy::cast_possible_truncation, reason = "some bits are wanted")]
    const fn line(&self, name: u64) -> usize {
        name as usize % self.lines.len()
    }

    /// Hashes a client and service port. Never 0, which marks a free place.
    fn name(&self, client: IpAddr, port: u64) -> u64 {
        self.hasher.hash_one((client, port)).max(1)
    }

    #[expect(clippy::cast_possible_truncation, reason = "half of a hash is wanted")]
    fn backend(&self, name: u64, socket: &SocketAddr) -> u32 {
        self.hasher.hash_one((name, socket)) as u32
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half comes round after 136 years")]
const fn second(now: u64) -> u32 {
    now as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from((0x0af4_0000 + number).to_be_bytes())
    }

    #[test]
    fn a_client_has_its_backend_until_the_timeout_after_its_last_connection() {
        let table = ClientAffinity::new();
        let [one, other] = [1, 2].map(|port| SocketAddr::new(ip(9), port));
        table.remember(ip(1), 7, &one, 100);
        let last = |port, now| table.last(ip(1), port, now, 10);
        assert!(last(7, 109).unwrap().is(&one) && !last(7, 109).unwrap().is(&other));
        assert!(last(7, 110).is_none(), "the time is up");
        assert!(last(8, 100).is_none(), "another service port");
        assert!(table.last(ip(2), 7, 100, 10).is_none(), "another client");
        table.remember(ip(1), 7, &other, 109);
        assert!(last(7, 118).unwrap().is(&other), "the last connection counts");
    }

    #[test]
    fn a_full_table_forgets_and_never_gives_a_client_another_ones_backend() {
        let table = ClientAffinity::new();
        let socket = |client: u32| SocketAddr::new(ip(client), 80);
        let clients = 0..u32::try_from(PLACES).unwrap() * 2;
        let (mut newly, mut instead) = (0, 0);
        for client in clients.clone() {
            match table.remember(ip(client), 1, &socket(client), u64::from(client / 1000)) {
                Remembered::Newly => newly += 1,
                Remembered::Instead => instead += 1,
                Remembered::Again | Remembered::Not => panic!("each client comes once, and there is memory"),
            }
        }
        assert_eq!(newly + instead, PLACES * 2);
        assert!(newly <= PLACES && newly > PLACES * 9 / 10, "{newly} places are in use");
        // The hash has a random key, so a few sets may not be full.
        let replaces = |&client: &u32| table.remember(ip(client), 2, &socket(client), 600) == Remembered::Instead;
        let client = clients.clone().take(100).find(replaces).expect("nine of ten places are in use");
        assert_eq!(table.remember(ip(client), 2, &socket(client), 600), Remembered::Again);
        let known: Vec<u32> = clients.filter(|&client| table.last(ip(client), 1, 600, 1000).is_some()).collect();
        assert!(known.len() > PLACES * 9 / 10, "{}", known.len());
        assert!(known.iter().all(|&client| table.last(ip(client), 1, 600, 1000).unwrap().is(&socket(client))));
    }
}
