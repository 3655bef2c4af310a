//! The client table in a file beside the session files, normally on a tmpfs. Each change is in the file at once and survives the process.
//! The next process reads the file and copies current places to a new one.
//!
//! ```text
//!   header (keys of the hashes, boot, check) | at 4096: places of two words, as in memory
//! ```
//!
//! Two processes can share places only if they have the same keys and the same hash function. The header's `proof`, the hash of a known
//! input, verifies that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;

use ahash::RandomState;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::super::lines::Lines;
use super::{ClientAffinity, PLACES, WAYS, halves, second};
use crate::wire::checksum::crc32c;

/// Version of the file format. Increase it with any change of the layout or meaning.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"bulkaffi";

/// Offset of the places: one page, so that they can be mapped.
const START: u64 = 4096;

/// Size of a place in bytes.
const PLACE: usize = 2 * size_of::<u64>();

/// The longest affinity timeout in seconds (`sessionAffinityConfig.clientIP.timeoutSeconds` of a Service).
const LONGEST: u32 = 86_400;

/// Number of places read at once: 64 KiB.
const STEP: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    places: u64,
    keys: [u64; 4],
    proof: u64,
    /// The kernel's boot id when the file was written.
    boot: [u8; 16],
    version: u32,
    /// CRC-32C of the header's bytes before this field.
    check: u32,
}

impl Header {
    fn new(keys: [u64; 4], boot: [u8; 16]) -> Self {
        let proof = proof(keys);
        let mut header = Self { magic: MAGIC, places: PLACES as u64, keys, proof, boot, version: VERSION, check: 0 };
        header.check = header.sum();
        header
    }

    fn sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..std::mem::offset_of!(Self, check)])
    }

    /// Returns why a file with this header is rejected, or `None` if it is valid.
    fn fault(&self, boot: [u8; 16], len: u64) -> Option<&'static str> {
        if self.magic != MAGIC {
            Some("it is not a client table")
        } else if self.version != VERSION {
            Some("its format version is not supported")
        } else if self.check != self.sum() {
            Some("its header is damaged")
        } else if self.boot != boot {
            Some("it was written before the last boot")
        } else if self.places != PLACES as u64 || self.proof != proof(self.keys) {
            Some("another program wrote it")
        } else if len != LEN {
            Some("its length differs from its header")
        } else {
            None
        }
    }
}

/// Length of the file in bytes.
const LEN: u64 = START + (PLACES * PLACE) as u64;

/// Returns a hash of constant values, by which a file of a program or CPU that hashes differently is detected.
fn proof(keys: [u64; 4]) -> u64 {
    let hasher = hasher(keys);
    let of = |client: IpAddr| {
        let name = hasher.hash_one((client, 1u64));
        name ^ hasher.hash_one((name, &SocketAddr::new(client, 80)))
    };
    of(Ipv4Addr::LOCALHOST.into()) ^ of(Ipv6Addr::LOCALHOST.into())
}

const fn hasher([a, b, c, d]: [u64; 4]) -> RandomState {
    RandomState::with_seeds(a, b, c, d)
}

/// The clients read from the file of an earlier process, with the keys of its hashes.
#[derive(Debug)]
pub(crate) struct Found {
    keys: [u64; 4],
    /// The places in use, two words for each.
    places: Vec<[u64; 2]>,
}

impl Found {
    /// Returns a value without clients and with random keys, so that outsiders cannot choose clients that share places.
    pub(crate) fn nothing() -> Self {
        Self { keys: std::array::from_fn(|at| RandomState::new().hash_one(at)), places: Vec::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The reason why the file is rejected, as a clause without a full stop.
    pub(crate) fn read(path: &Path, boot: [u8; 16]) -> Result<Self, String> {
        let unreadable = |error: io::Error| format!("it cannot be read: {error}");
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        let mut header = Header::new_zeroed();
        if !about.is_file() || file.read_exact(header.as_mut_bytes()).is_err() {
            return Err("it is not a client table".to_owned());
        }
        if let Some(fault) = header.fault(boot, about.len()) {
            return Err(fault.to_owned());
        }
        let mut places = Vec::new();
        let mut read = vec![[0u64; 2]; STEP];
        for first in (0..PLACES).step_by(STEP) {
            let count = STEP.min(PLACES - first);
            let read = &mut read[..count];
            file.read_exact_at(read.as_mut_bytes(), START + (first * PLACE) as u64).map_err(unreadable)?;
            places.extend(read.iter().filter(|place| place.iter().all(|word| *word != 0)));
        }
        Ok(Self { keys: header.keys, places })
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
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(LEN)?;
        file.write_all_at(Header::new(keys, boot).as_bytes(), 0)?;
        let table = Self { hasher: hasher(keys), lines: Lines::in_file(file, START, PLACES / WAYS)? };
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
