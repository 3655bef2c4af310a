//! Keeps learned names in a file beside the session files, normally on a tmpfs. Each address is in the file before its answer is forwarded,
//! and survives if the process is killed.
//!
//! ```text
//!   header (boot, check) | holdings: a line each: pod, address, end, name | names: five lines each: length, text, check
//! ```
//! A holding is one address that a pod has learned under one name. It has one of [`WAYS`] lines, which its hash selects, so that a later
//! answer overwrites it. The next process reads the file. It gives a pod its holdings back when the pod has a port with rules that name
//! domains again. Sessions refer to names by their numbers, so a number has the same meaning in this file and in the session files of the
//! same process.
//!
//! **Invariant.** A line that was being written when the process was killed is free or fails its check, and is ignored. Holdings that have
//! ended are not given back.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Holder, Learned, NameId};
use crate::service::{Lines, WORDS};
use crate::wire::checksum::crc32c;

/// Version of the file format. Increase it with any change of the layout or meaning.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"bulkname";

/// Offset of the lines: one page, so that they can be mapped.
const START: u64 = 4096;

/// Number of lines for holdings: 16 MB if all are in use. A holding whose lines are all in use replaces the one that ends first, which is
/// lost with the process.
const HOLDINGS: usize = 1 << 18;

/// Number of lines among which a holding gets one.
const WAYS: usize = 8;

/// Number of names, as in [`super::learned`]. The lower 16 bits of a name's number select its lines.
const NAMES: usize = 1 << 16;
/// Lines of one name: a word with length and check, the number, and up to 253 bytes of text.
const NAME_LINES: usize = 5;

const LINES: usize = HOLDINGS + NAMES * NAME_LINES;

/// Length of the file in bytes. Pages that were never written take no memory.
const LEN: u64 = START + (LINES * WORDS * size_of::<u64>()) as u64;

/// Maximum length of a name's text in bytes. Source: RFC 1035 §2.3.4.
const LONGEST: usize = 253;

/// The start of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    lines: u64,
    /// The kernel's boot id when the file was written.
    boot: [u8; 16],
    version: u32,
    /// CRC-32C of the header's bytes before this field.
    check: u32,
}

impl Header {
    fn new(boot: [u8; 16]) -> Self {
        let mut header = Self { magic: MAGIC, lines: LINES as u64, boot, version: VERSION, check: 0 };
        header.check = header.sum();
        header
    }

    fn sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..std::mem::offset_of!(Self, check)])
    }

    /// Returns why a file with this header is rejected, or `None` if it is valid.
    fn fault(&self, boot: [u8; 16], len: u64) -> Option<&'static str> {
        if self.magic != MAGIC {
            Some("it has no names")
        } else if self.version != VERSION || self.lines != LINES as u64 {
            Some("its format version is not supported")
        } else if self.check != self.sum() {
            Some("its header is damaged")
        } else if self.boot != boot {
            Some("it was written before the last boot")
        } else if len != LEN {
            Some("its length differs from its header")
        } else {
            None
        }
    }
}

/// An address that a pod had learned under a name when an earlier process ran.
#[derive(Clone, Copy, Debug)]
struct Holding {
    pod: IpAddr,
    address: IpAddr,
    /// Nanoseconds since 1970.
    until: u64,
    /// The number of the name in the earlier process.
    name: u32,
}

/// The holdings and names in the file of an earlier process.
#[derive(Debug, Default)]
pub(crate) struct FoundNames {
    holdings: Vec<Holding>,
    names: HashMap<u32, String>,
}

/// The file of this process, and the holdings of the earlier process that were not given back yet.
#[derive(Debug)]
pub struct KeptNames {
    lines: Lines,
    /// Held while lines are written, so that two workers do not write the same line at once.
    writing: Mutex<()>,
    hasher: RandomState,
    /// The earlier process's holdings that were not given back yet, by the pod's address.
    inherited: Mutex<HashMap<IpAddr, Vec<Holding>>>,
    names: HashMap<u32, String>,
}

impl FoundNames {
    /// Reads the file of an earlier process. `boot` is the kernel's boot id. Leaves out free lines and those that fail their check.
    ///
    /// # Errors
    /// The reason why the file is rejected, as a clause without a full stop.
    pub(crate) fn read(path: &Path, boot: [u8; 16]) -> Result<Self, String> {
        let unreadable = |error: io::Error| format!("it cannot be read: {error}");
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        let mut header = Header::new_zeroed();
        if !about.is_file() || file.read_exact(header.as_mut_bytes()).is_err() {
            return Err("it has no names".to_owned());
        }
        if let Some(fault) = header.fault(boot, about.len()) {
            return Err(fault.to_owned());
        }
        let mut found = Self::default();
        // Without rules that name domains, only the header has a block.
        if about.blocks() * 512 <= START {
            return Ok(found);
        }
        read_lines(&file, 0, HOLDINGS, |_, words| found.holdings.extend(holding(words))).map_err(unreadable)?;
        let mut text = [0u64; NAME_LINES * WORDS];
        read_lines(&file, HOLDINGS, NAMES * NAME_LINES, |at, words| {
            let part = at % NAME_LINES;
            text[part * WORDS..][..WORDS].copy_from_slice(words);
            if part + 1 == NAME_LINES {
                found.names.extend(name(&text));
            }
        })
        .map_err(unreadable)?;
        Ok(found)
    }
}

/// Calls `each` with `count` lines from line `first` on: the distance from the first, and the words of the line. Skips no line.
fn read_lines(file: &File, first: usize, count: usize, mut each: impl FnMut(usize, &[u64])) -> io::Result<()> {
    /// Lines read at once: 64 KiB.
    const STEP: usize = 1024;
    let mut read = vec![[0u64; WORDS]; STEP];
    for from in (0..count).step_by(STEP) {
        let read = &mut read[..STEP.min(count - from)];
        let offset = START + ((first + from) * WORDS * size_of::<u64>()) as u64;
        file.read_exact_at(read.as_mut_bytes(), offset)?;
        read.iter().enumerate().for_each(|(at, words)| each(from + at, words));
    }
    Ok(())
}

/// Returns the holding in a line. `None` if the line is free or fails its check.
fn holding(words: &[u64]) -> Option<Holding> {
    let &[pod_high, pod_low, high, low, until, rest, ..] = words else { return None };
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
    let (name, check) = ((rest >> 32) as u32, rest as u32);
    let bytes = [pod_high, pod_low, high, low, until, u64::from(name)];
    (until != 0 && crc32c(bytes.as_bytes()) == check).then(|| Holding {
        pod: address([pod_high, pod_low]),
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
    /// Creates the file of this process. `found` has the earlier process's holdings, which [`KeptNames::give_back`] gives back.
    ///
    /// # Errors
    /// If the file exists, or cannot be created, written or mapped.
    pub(crate) fn in_file(path: &Path, boot: [u8; 16], found: FoundNames) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(LEN)?;
        file.write_all_at(Header::new(boot).as_bytes(), 0)?;
        let lines = Lines::in_file(file, START, LINES)?;
        let mut inherited: HashMap<IpAddr, Vec<Holding>> = HashMap::new();
        for holding in found.holdings {
            inherited.entry(holding.pod).or_default().push(holding);
        }
        let (writing, hasher) = (Mutex::default(), RandomState::new());
        Ok(Self { lines, writing, hasher, inherited: Mutex::new(inherited), names: found.names })
    }

    /// Writes to the file that the pod with the address `pod` has learned `address` under a name until `until`, in nanoseconds since 1970.
    /// `id` is the name's number in this process.
    pub(crate) fn keep(&self, pod: IpAddr, (id, name): (NameId, &str), address: IpAddr, until: u64) {
        let _writing = lock(&self.writing);
        self.keep_name(id, name);
        let [pod_high, pod_low] = halves(pod);
        let [high, low] = halves(address);
        let key = [pod_high, pod_low, high, low, u64::from(id.bits())];
        #[expect(clippy::cast_possible_truncation, reason = "some bits are wanted")]
        let first = self.hasher.hash_one(key) as usize % (HOLDINGS / WAYS) * WAYS;
        let load =
            |line: usize, word: usize| self.lines.read(line).get(word).map_or(0, |word| word.load(Ordering::Relaxed));
        let is_same = |line: usize| {
            (0..4).all(|word| load(line, word) == key[word]) && load(line, 5) >> 32 == u64::from(id.bits())
        };
        let all = first..first + WAYS;
        let line = all.clone().find(|&line| is_same(line)).or_else(|| all.min_by_key(|&line| load(line, 4)));
        let Some(words) = line.map(|line| self.lines.write(line)) else { return };
        let sum = crc32c([pod_high, pod_low, high, low, until, u64::from(id.bits())].as_bytes());
        let rest = u64::from(id.bits()) << 32 | u64::from(sum);
        store(words, &[pod_high, pod_low, high, low, until, rest], 4);
    }

    fn keep_name(&self, id: NameId, name: &str) {
        if name.len() > LONGEST {
            return;
        }
        let first = id.bits() as usize % NAMES;
        let mut words = [0u64; NAME_LINES * WORDS];
        words[1] = id.bits().into();
        words[2..].as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        let sum = crc32c(&words[1..].as_bytes()[..size_of::<u64>() + name.len()]);
        words[0] = (name.len() as u64) << 32 | u64::from(sum);
        let lines = HOLDINGS + first * NAME_LINES;
        let head = self.lines.read(lines).first().map_or(0, |word| word.load(Ordering::Relaxed));
        if head == words[0] {
            return;
        }
        // The head is written last.
        for line in (0..NAME_LINES).rev() {
            let target = self.lines.write(lines + line);
            if line == 0 {
                target.first().into_iter().for_each(|head| head.store(0, Ordering::Release));
            }
            store(target, &words[line * WORDS..][..WORDS], 0);
        }
    }

    /// Stores the name that an earlier process knew by `number`, without addresses, in `learned` and in the file. Returns its id in this
    /// process. `None` if the earlier file does not have the name, or if `learned` is full. `now` is in nanoseconds since 1970.
    pub(crate) fn renumber(&self, learned: &Learned, number: u32, now: u64) -> Option<NameId> {
        let name = self.names.get(&number)?;
        // An address that has ended stores the name alone.
        let id = learned.learn(Holder(u32::MAX), name, Ipv6Addr::UNSPECIFIED.into(), now, now).ok()?;
        let _writing = lock(&self.writing);
        self.keep_name(id, name);
        Some(id)
    }

    /// Gives a holder, once, the holdings that an earlier process had of the pod with the addresses `pod`. Returns the number of holdings
    /// that are valid at `now`, in nanoseconds since 1970, and were stored.
    pub fn give_back(&self, learned: &Learned, holder: Holder, pod: &[IpAddr], now: u64) -> usize {
        let mut given = 0;
        for own in pod {
            let holdings = lock(&self.inherited).remove(own).unwrap_or_default();
            for Holding { address, until, name, .. } in holdings.into_iter().filter(|holding| holding.until > now) {
                let Some(name) = self.names.get(&name) else { continue };
                if let Ok(id) = learned.learn(holder, name, address, now, until) {
                    self.keep(*own, (id, name), address, until);
                    given += 1;
                }
            }
        }
        given
    }
}

/// Writes `values` to the words of a line. Sets the word at `last` to 0 first and to its value last. So an interrupted write leaves 0
/// there, which marks the line as free.
fn store(words: &[AtomicU64], values: &[u64], last: usize) {
    let mark = words.get(last).zip(values.get(last));
    if let Some((word, _)) = mark {
        word.store(0, Ordering::Release);
    }
    let others = words.iter().zip(values).enumerate().filter(|(at, _)| *at != last);
    others.for_each(|(_, (word, value))| word.store(*value, Ordering::Release));
    if let Some((word, value)) = mark {
        word.store(*value, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [7; 16];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A folder that is removed at the end.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bulkhead-names-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn names(learned: &Learned, holder: u32, address: &str, now: u64) -> Vec<String> {
        let mut found = Vec::new();
        learned.names_of(Holder(holder), ip(address), now, |_, name| found.push(name.to_owned()));
        found
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_next_process_gives_a_pod_back_what_it_had_learned() {
        let folder = Folder::new("back");
        let (one, other) = (folder.0.join("one"), folder.0.join("other"));
        let kept = KeptNames::in_file(&one, BOOT, FoundNames::default()).unwrap();
        let learned = Learned::new();
        let (a, b) = (ip("10.0.0.1"), ip("fd00::2"));
        let learn = |holder, pod, name: &str, address, until| {
            let id = learned.learn(Holder(holder), name, ip(address), SECOND, until).unwrap();
            kept.keep(pod, (id, name), ip(address), until);
            id
        };
        let id = learn(1, a, "www.example.com", "203.0.113.7", 90 * SECOND);
        learn(1, a, "www.example.com", "203.0.113.7", 99 * SECOND);
        learn(1, a, "old.example.com", "203.0.113.8", 20 * SECOND);
        learn(2, b, "b.example.org", "2001:db8::7", 99 * SECOND);
        drop(kept);

        let found = FoundNames::read(&one, BOOT).unwrap();
        assert_eq!((found.holdings.len(), found.names.len()), (3, 3), "a later answer overwrites");
        let kept = KeptNames::in_file(&other, BOOT, found).unwrap();
        let later = Learned::new();
        // Another name gets the first number first.
        later.learn(Holder(9), "x.example.net", ip("203.0.113.1"), SECOND, 99 * SECOND).unwrap();
        let renumbered = kept.renumber(&later, id.bits(), 50 * SECOND).unwrap();
        assert_eq!(later.text(renumbered).as_deref(), Some("www.example.com"));
        assert_eq!(kept.renumber(&later, 77, 50 * SECOND), None);
        assert_eq!(kept.give_back(&later, Holder(5), &[a], 50 * SECOND), 1, "the other has ended");
        assert_eq!(names(&later, 5, "203.0.113.7", 95 * SECOND), ["www.example.com"]);
        assert!(names(&later, 5, "2001:db8::7", 51 * SECOND).is_empty(), "another pod's");
        assert_eq!(kept.give_back(&later, Holder(6), &[a], 50 * SECOND), 0, "only once");
        assert_eq!(kept.give_back(&later, Holder(7), &[b], 50 * SECOND), 1);
        // What was given back is in the new file, and so is the name that only a session has.
        let again = FoundNames::read(&other, BOOT).unwrap();
        assert_eq!((again.holdings.len(), again.names.len()), (2, 2));
    }

    #[test]
    fn a_file_of_another_boot_or_a_damaged_one_is_not_believed() {
        let folder = Folder::new("damaged");
        let path = folder.0.join("names");
        let kept = KeptNames::in_file(&path, BOOT, FoundNames::default()).unwrap();
        let id = Learned::new().learn(Holder(1), "www.example.com", ip("203.0.113.7"), 1, 99 * SECOND).unwrap();
        kept.keep(ip("10.0.0.1"), (id, "www.example.com"), ip("203.0.113.7"), 99 * SECOND);
        assert_eq!(FoundNames::read(&path, [8; 16]).unwrap_err(), "it was written before the last boot");
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - bytes.iter().rev().position(|byte| *byte != 0).unwrap() - 1;
        let holding = (4096..bytes.len()).find(|&at| bytes[at] != 0).unwrap();
        for (what, at) in [("a name", at), ("a holding", holding)] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            let found = FoundNames::read(&path, BOOT).unwrap();
            assert_eq!(found.holdings.len() + found.names.len(), 1, "{what}");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(FoundNames::read(&path, BOOT).unwrap_err(), "its length differs from its header");
        std::fs::write(&path, b"nonsense").unwrap();
        assert_eq!(FoundNames::read(&path, BOOT).unwrap_err(), "it has no names");
    }
}
