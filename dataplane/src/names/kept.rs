//! Keeps learned names in a file of [`Lines`]. Each address is in the file before its answer is forwarded, and
//! survives if the process is killed.
//!
//! ```text
//!   holdings: a line each: pod, address, end, name | names: five lines each: length, text, check
//! ```
//! A holding is one address that a pod has learned under one name. It has one of [`WAYS`] lines, which its hash selects, so that a later
//! answer overwrites it. The next process copies the file, and gives a pod its holdings back when the pod has a port with rules that name
//! domains again. Sessions refer to names by their numbers, so a number has the same meaning in this file and in the session files of the
//! same process.
//!
//! **Invariants.** A line that was being written when the process was killed is free or fails its check, and is ignored. Holdings that have
//! ended, and those of a pod with another address or another port's name, are not given back.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use zerocopy::IntoBytes;

use super::learned::NAMES;
use super::{LONGEST_TTL, Learned, Learner, NameId};
use crate::service::{Form, Keys, Lines, WORDS};
use crate::wire::checksum::crc32c;

const FORM: Form = Form {
    magic: *b"bulkname",
    version: 2,
    lines: HOLDINGS + NAMES * NAME_LINES,
    foreign: "it has no names",
    proof: |hasher| hasher.hash_one(("x/pod", IpAddr::V6(Ipv6Addr::LOCALHOST))),
};

/// Number of lines for holdings: 16 MB if all are in use. A holding whose lines are all in use replaces the one that ends first, which is
/// lost with the process.
const HOLDINGS: usize = 1 << 18;

/// Number of lines among which a holding gets one.
const WAYS: usize = 8;

/// Lines of one name: a word with length and check, the number, and up to 253 bytes of text. The lower 16 bits of a name's number select
/// its lines.
const NAME_LINES: usize = 5;

/// Maximum length of a name's text in bytes. Source: RFC 1035 §2.3.4.
const LONGEST: usize = 253;

/// The longest time in nanoseconds for which a holding may be valid: that of the longest TTL, and a day as the longest grace. A file with
/// later ends is damaged, or was written before the clock was set back.
const LONGEST_VALIDITY: u64 = (LONGEST_TTL as u64 + 86_400) * 1_000_000_000;

/// Lines per lock, so that workers that write others wait for microseconds only.
const STEP: usize = 1024;

/// Position of the end in a holding's line. 0 marks a free line.
const UNTIL: usize = 5;

/// Identifies a pod in all processes that have the same keys: one of its addresses, and a hash of its port's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pod([u64; 3]);

/// An address that a pod has learned under a name.
#[derive(Clone, Copy, Debug)]
struct Holding {
    pod: Pod,
    address: IpAddr,
    /// Nanoseconds since 1970.
    until: u64,
    /// The number of the name in the process that has written the line.
    name: u32,
}

/// The holdings and names in the file of an earlier process.
#[derive(Debug)]
pub(crate) struct FoundNames {
    keys: Keys,
    holdings: Vec<Holding>,
    names: HashMap<u32, String>,
}

/// The file of this process, and the holdings of the earlier process that were not given back yet.
#[derive(Debug)]
pub(crate) struct KeptNames {
    lines: Lines,
    /// Held while lines are written, so that two workers do not write the same line at once.
    writing: Mutex<()>,
    /// Hashes the names of ports, and maps holdings to lines.
    hasher: RandomState,
    /// The earlier process's holdings that were not given back yet. Their names have the numbers of this process.
    inherited: Mutex<HashMap<Pod, Vec<Holding>>>,
}

impl FoundNames {
    /// Returns a value without names and with random keys.
    pub(crate) fn nothing() -> Self {
        Self { keys: Keys::random(), holdings: Vec::new(), names: HashMap::new() }
    }

    /// Reads the file of an earlier process. `boot` is the kernel's boot id. Leaves out free lines and those that fail their check.
    ///
    /// # Errors
    /// The reason why the file is rejected, as a clause without a full stop.
    pub(crate) fn read(path: &Path, boot: [u8; 16]) -> Result<Self, String> {
        let mut found = Self::nothing();
        let mut text = [0u64; NAME_LINES * WORDS];
        found.keys = FORM.read(path, boot, |line, words| {
            let Some(line) = line.checked_sub(HOLDINGS) else {
                found.holdings.extend(holding(words));
                return;
            };
            let part = line % NAME_LINES;
            text[part * WORDS..][..WORDS].copy_from_slice(words);
            if part + 1 == NAME_LINES {
                found.names.extend(name(&text));
            }
        })?;
        Ok(found)
    }

    /// Returns the text of the name with this number in the earlier process. `None` if the file does not have it.
    pub(crate) fn name(&self, number: u32) -> Option<&str> {
        self.names.get(&number).map(String::as_str)
    }
}

/// Returns the holding in a line. `None` if the line is free or fails its check.
fn holding(&[pod_high, pod_low, port, high, low, until, rest, _]: &[u64; WORDS]) -> Option<Holding> {
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
    let (name, check) = ((rest >> 32) as u32, rest as u32);
    let bytes = [pod_high, pod_low, port, high, low, until, u64::from(name)];
    (until != 0 && crc32c(bytes.as_bytes()) == check).then(|| Holding {
        pod: Pod([pod_high, pod_low, port]),
        address: address([high, low]),
        until,
        name,
    })
}

/// Returns the number and the text of the name in [`NAME_LINES`] lines. `None` if the lines are free or fail their check.
fn name(words: &[u64]) -> Option<(u32, String)> {
    let [head, numbered @ ..] = words else { return None };
    let len = usize::try_from(head >> 32).ok().filter(|len| (1..=LONGEST).contains(len))?;
    let bytes = &numbered.as_bytes()[..size_of::<u64>() + len];
    let is_whole = u64::from(crc32c(bytes)) == head & u64::from(u32::MAX);
    let text = std::str::from_utf8(&bytes[size_of::<u64>()..]).ok().filter(|_| is_whole)?;
    Some((u32::try_from(*numbered.first()?).ok()?, text.to_owned()))
}

fn address([high, low]: [u64; 2]) -> IpAddr {
    let bits = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    bits.to_ipv4_mapped().map_or(IpAddr::V6(bits), IpAddr::V4)
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
    [(bits >> 64) as u64, bits as u64]
}

impl KeptNames {
    /// Creates the file of this process. Moves the holdings of `found` that are valid at `now` to the file, so that another process finds
    /// them if this one is killed. [`KeptNames::give_back`] gives them back. Stores their names in `learned`, without addresses. `now` is
    /// in nanoseconds since 1970.
    ///
    /// # Errors
    /// If the file exists, or cannot be created, written or mapped.
    pub(crate) fn in_file(
        path: &Path,
        boot: [u8; 16],
        found: &mut FoundNames,
        learned: &Learned,
        now: u64,
    ) -> io::Result<Self> {
        let (writing, hasher, inherited) = (Mutex::default(), found.keys.hasher(), Mutex::default());
        let mut kept = Self { lines: FORM.create(path, boot, found.keys)?, writing, hasher, inherited };
        let mut inherited: HashMap<Pod, Vec<Holding>> = HashMap::new();
        for Holding { pod, address, until, name } in std::mem::take(&mut found.holdings) {
            let until = until.min(now.saturating_add(LONGEST_VALIDITY));
            let Some(name) = found.name(name).filter(|_| until > now) else { continue };
            let Some(id) = kept.intern(learned, name, now) else { continue };
            let holding = Holding { pod, address, until, name: id.bits() };
            kept.write(&holding);
            inherited.entry(pod).or_default().push(holding);
        }
        kept.inherited = Mutex::new(inherited);
        Ok(kept)
    }

    /// Writes to the file that a pod has learned addresses under a name, each until a time in nanoseconds since 1970. `pod` has the name of
    /// the pod's port and the pod's address. `id` is the name's number in this process.
    pub(crate) fn keep(&self, pod: (&str, IpAddr), (id, name): (NameId, &str), addresses: &[(IpAddr, u64)]) {
        let pod = self.pod(pod);
        let _writing = lock(&self.writing);
        self.keep_name(id, name);
        for &(address, until) in addresses {
            self.write(&Holding { pod, address, until, name: id.bits() });
        }
    }

    /// Stores a name in `learned`, without addresses, and in the file. Returns its id. `None` if `learned` is full. `now` is in nanoseconds
    /// since 1970.
    pub(crate) fn intern(&self, learned: &Learned, name: &str, now: u64) -> Option<NameId> {
        let id = learned.intern(name, now).ok()?;
        let _writing = lock(&self.writing);
        self.keep_name(id, name);
        Some(id)
    }

    /// Gives pods, once, the holdings that they had in an earlier process. Returns the number of holdings that are valid at `now`, in
    /// nanoseconds since 1970, and were stored in `learned`. Drops those that have ended.
    pub(crate) fn give_back(&self, learned: &Learned, pods: &[Learner], now: u64) -> usize {
        let mut inherited = lock(&self.inherited);
        inherited.retain(|_, holdings| holdings.iter().any(|holding| holding.until > now));
        let mut given = 0;
        for (holder, pod) in pods.iter().flat_map(|pod| self.pods(pod).map(|own| (pod.holder, own))) {
            let holdings = inherited.remove(&pod).unwrap_or_default();
            for Holding { address, until, name, .. } in holdings.into_iter().filter(|holding| holding.until > now) {
                learned.with_name(NameId::from_bits(name), |name| {
                    given += usize::from(learned.learn(holder, name, address, now, until).is_ok());
                });
            }
        }
        given
    }

    /// Removes the holdings of pods that are gone or have no rules that name domains any more. Reads all lines for holdings, at most a
    /// quarter of a million.
    pub(crate) fn forget(&self, pods: &[Learner]) {
        let gone: HashSet<Pod> = pods.iter().flat_map(|pod| self.pods(pod)).collect();
        if gone.is_empty() {
            return;
        }
        lock(&self.inherited).retain(|pod, _| !gone.contains(pod));
        for first in (0..HOLDINGS).step_by(STEP) {
            let _writing = lock(&self.writing);
            for words in (first..first + STEP).map(|line| self.lines.read(line)) {
                let [a, b, c, ..] = words else { continue };
                if gone.contains(&Pod([a, b, c].map(|word| word.load(Ordering::Relaxed)))) {
                    words[UNTIL].store(0, Ordering::Relaxed);
                }
            }
        }
    }

    fn pods<'a>(&'a self, pod: &'a Learner) -> impl Iterator<Item = Pod> + 'a {
        pod.addresses.iter().map(|address| self.pod((&pod.port, *address)))
    }

    fn pod(&self, (port, address): (&str, IpAddr)) -> Pod {
        let [high, low] = halves(address);
        Pod([high, low, self.hasher.hash_one(port)])
    }

    /// Writes a holding to its line, or to that of the one that ends first among those with which it shares lines. Never shortens a
    /// validity. The caller holds the lock, or has not shared the value yet.
    fn write(&self, &Holding { pod: Pod([pod_high, pod_low, port]), address, until, name }: &Holding) {
        let [high, low] = halves(address);
        let key = [pod_high, pod_low, port, high, low];
        let first = self.line(key, name);
        let load =
            |line: usize, word: usize| self.lines.read(line).get(word).map_or(0, |word| word.load(Ordering::Relaxed));
        let name = u64::from(name);
        let is_same = |line: usize| (0..UNTIL).all(|word| load(line, word) == key[word]) && load(line, 6) >> 32 == name;
        let all = first..first + WAYS;
        let known = all.clone().find(|&line| is_same(line));
        let until = known.map_or(0, |line| load(line, UNTIL)).max(until);
        let Some(line) = known.or_else(|| all.min_by_key(|&line| load(line, UNTIL))) else { return };
        let sum = crc32c([pod_high, pod_low, port, high, low, until, name].as_bytes());
        store(&self.lines, line, &[pod_high, pod_low, port, high, low, until, name << 32 | u64::from(sum)]);
    }

    /// Returns the number of the first of the [`WAYS`] lines of a holding.
    #[expect(clippy::cast_possible_truncation, reason = "some bits are wanted")]
    fn line(&self, key: [u64; UNTIL], name: u32) -> usize {
        self.hasher.hash_one((key, name)) as usize % (HOLDINGS / WAYS) * WAYS
    }

    fn keep_name(&self, id: NameId, name: &str) {
        if name.len() > LONGEST {
            return;
        }
        let mut words = [0u64; NAME_LINES * WORDS];
        words[1] = id.bits().into();
        words[2..].as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        let sum = crc32c(&words[1..].as_bytes()[..size_of::<u64>() + name.len()]);
        words[0] = (name.len() as u64) << 32 | u64::from(sum);
        let first = HOLDINGS + id.bits() as usize % NAMES * NAME_LINES;
        let is_word = |at: usize| {
            let word = self.lines.read(first).get(at);
            word.is_some_and(|word| word.load(Ordering::Relaxed) == words[at])
        };
        if is_word(0) && is_word(1) {
            return;
        }
        (first..).zip(words.chunks(WORDS)).for_each(|(line, words)| store(&self.lines, line, words));
    }
}

/// Writes values to the words of a line. An interrupted write fails the check of the line.
fn store(lines: &Lines, line: usize, values: &[u64]) {
    lines.write(line).iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
