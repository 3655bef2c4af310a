//! Which backend a client had last, for Services that want it to have the same one again (`sessionAffinity: ClientIP`).
//!
//! One table for all workers: a client's connections to the several addresses of a service port belong to different ones. Only a
//! new connection reads or writes it. It is of a fixed size and forgets: a client that finds no place, and one whose place another
//! one took, is given a backend as if it came for the first time.
//!
//! ```text
//!   hash(client, service port) --> 4 neighbouring places of two words
//!                                    word 0: the whole hash       word 1: hash of the backend | second of the last connection
//! ```
//! Two workers may write one place at a time. The backend's hash is keyed with the place's, so that two halves that do not belong
//! together name no backend, which is as if the place were empty.
//!
//! The table may lie in a file that outlives the process ([`mod@file`]). Nothing in it is a number that another process would understand
//! differently: a service port has its [identity](super::ServicePort::identity), a backend its address and port. What is looked up is
//! only compared with the backends that may be chosen, so neither a damaged file nor an old one gives a client any other.

#[cfg(target_os = "linux")]
mod file;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::lines::{Lines, WORDS};
#[cfg(target_os = "linux")]
pub(crate) use file::Found;

/// Places: 4 MiB, which is touched as it is used. A quarter of a million clients of Services with affinity, per node.
const PLACES: usize = 1 << 18;

/// Places of a client: those of a line.
const WAYS: usize = WORDS / 2;

/// What remembering a client took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// It had a place.
    Again,
    /// A place that nobody had.
    Newly,
    /// The place of another client, which is forgotten.
    Instead,
    /// There is no memory for it: it is not remembered.
    Not,
}

/// The table.
#[derive(Debug)]
pub(crate) struct ClientAffinity {
    /// Keyed at random: nobody outside can choose who shares places.
    hasher: RandomState,
    lines: Lines,
}

/// The backend that a client had last: enough to find it again in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBackend<'a> {
    table: &'a ClientAffinity,
    name: u64,
    backend: u32,
}

impl LastBackend<'_> {
    /// Whether it is this one.
    pub(crate) fn is(&self, socket: &SocketAddr) -> bool {
        self.table.backend(self.name, socket) == self.backend
    }
}

impl ClientAffinity {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), lines: Lines::new(PLACES / WAYS) }
    }

    /// The client's last backend of a service port, which has this identity, if its last new connection was not longer ago than
    /// the timeout. Both in seconds.
    pub(crate) fn last(&self, client: IpAddr, port: u64, now: u64, timeout: u32) -> Option<LastBackend<'_>> {
        let name = self.name(client, port);
        let mut places = self.lines.read(self.line(name)).chunks_exact(2);
        let place = places.find(|place| place[0].load(Ordering::Acquire) == name)?;
        let (backend, seen) = halves(place[1].load(Ordering::Relaxed));
        let is_fresh = second(now).wrapping_sub(seen) < timeout;
        is_fresh.then_some(LastBackend { table: self, name, backend })
    }

    /// The client has a new connection with this backend.
    pub(crate) fn remember(&self, client: IpAddr, port: u64, socket: &SocketAddr, now: u64) -> Remembered {
        let name = self.name(client, port);
        let places = || self.lines.write(self.line(name)).chunks_exact(2);
        let own = places().find(|place| place[0].load(Ordering::Relaxed) == name);
        // Else the one that was used longest ago. One that was never used is.
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

    /// How many clients it has room for.
    pub(crate) const fn capacity() -> usize {
        PLACES
    }

    #[expect(clippy::cast_possible_truncation, reason = "some bits are wanted")]
    const fn line(&self, name: u64) -> usize {
        name as usize % self.lines.len()
    }

    /// Never 0, as empty places have it.
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
        assert_eq!(table.remember(ip(1), 2, &socket(1), 600), Remembered::Instead);
        assert_eq!(table.remember(ip(1), 2, &socket(1), 600), Remembered::Again);
        let known: Vec<u32> = clients.filter(|&client| table.last(ip(client), 1, 600, 1000).is_some()).collect();
        assert!(known.len() > PLACES * 9 / 10, "{}", known.len());
        assert!(known.iter().all(|&client| table.last(ip(client), 1, 600, 1000).unwrap().is(&socket(client))));
    }
}
