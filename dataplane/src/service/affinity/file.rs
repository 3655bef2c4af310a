//! The client table in a file of [`Lines`](crate::service::Lines) that outlives the process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering;

use ahash::RandomState;

use super::super::lines::{Form, Keys, WORDS};
use super::{ClientAffinity, PLACES, WAYS, halves, second};

const FORM: Form =
    Form { magic: *b"bulkaffi", version: 1, lines: PLACES / WAYS, foreign: "it is not a client table", proof };

/// The longest affinity timeout in seconds (`sessionAffinityConfig.clientIP.timeoutSeconds` of a Service).
const LONGEST: u32 = 86_400;

fn proof(hasher: &RandomState) -> u64 {
    let of = |client: IpAddr| {
        let name = hasher.hash_one((client, 1u64));
        name ^ hasher.hash_one((name, &SocketAddr::new(client, 80)))
    };
    of(Ipv4Addr::LOCALHOST.into()) ^ of(Ipv6Addr::LOCALHOST.into())
}

/// The clients read from the file of an earlier process, with the keys of its hashes.
#[derive(Debug)]
pub(crate) struct Found {
    keys: Keys,
    /// The places in use, two words for each.
    places: Vec<[u64; 2]>,
}

impl Found {
    /// Returns a value without clients and with random keys.
    pub(crate) fn nothing() -> Self {
        Self { keys: Keys::random(), places: Vec::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The reason why the file is rejected, as a clause without a full stop.
    pub(crate) fn read(path: &Path, boot: [u8; 16]) -> Result<Self, String> {
        let mut places = Vec::new();
        let keys = FORM.read(path, boot, |_, words: &[u64; WORDS]| {
            places.extend(words.as_chunks().0.iter().filter(|place| place.iter().all(|word| *word != 0)));
        })?;
        Ok(Self { keys, places })
    }
}

impl ClientAffinity {
    /// Creates a table in a new file and copies the found places that have not expired at second `now`. Returns the table and the number of
    /// copied places.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn in_file(path: &Path, boot: [u8; 16], found: Found, now: u64) -> io::Result<(Self, u64)> {
        let Found { keys, places } = found;
        let table = Self { hasher: keys.hasher(), lines: FORM.create(path, boot, keys)? };
        let adopted = places.into_iter().filter(|place| table.adopt(*place, second(now))).count();
        Ok((table, adopted as u64))
    }

    /// Copies a place of an earlier process. Returns false if it has expired or memory is short.
    fn adopt(&self, [name, word]: [u64; 2], now: u32) -> bool {
        let (backend, seen) = halves(word);
        // The clock may have been set back.
        let seen = seen.min(now);
        if now - seen >= LONGEST {
            return false;
        }
        let free = |place: &&[super::AtomicU64]| place[0].load(Ordering::Relaxed) == 0;
        let Some(place) = self.lines.write(self.line(name)).chunks_exact(2).find(free) else { return false };
        place[1].store(u64::from(backend) << 32 | u64::from(seen), Ordering::Relaxed);
        place[0].store(name, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests;
